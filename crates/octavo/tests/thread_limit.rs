//! The limit on a user's processes stops threads, too. Alone in its process, which it forks.

use std::io::{Read, Write, pipe};

use octavo::{Manager, SwapFile};
use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};

#[test]
fn an_error_for_want_of_threads_names_the_limit_on_processes() {
    if !getuid().is_root() {
        return eprintln!("not tested: only root may become another user, who has no other processes");
    }
    let (mut reader, mut writer) = pipe().unwrap();
    let code = octavo_platform::run_in_forked_child(|| {
        // The kernel does not limit root.
        let user = Uid::from_raw(54321);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        setrlimit(Resource::Nproc, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        let built = Manager::builder().budget_bytes(16 << 20).swap_file(SwapFile::None).build();
        let error = built.err().unwrap();
        write!(writer, "{error:?}\n{}", error.what_happened()).unwrap();
        0
    });
    drop(writer);
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();
    assert_eq!(code.unwrap(), 0, "{told}");
    let (told, happened) = told.split_once('\n').unwrap();
    let limit = "; this user may have 0 processes (RLIMIT_NPROC, ulimit -u)";
    assert!(told.starts_with("System: cannot start ") && told.contains(limit), "{told}");
    assert!(happened.contains("thread") && !happened.contains("RLIMIT"), "the limit is advice: {happened}");
}
