//! What a process without the right to windows, or without room for them, is told. Alone in its process,
//! which it forks.

use std::fs;
use std::io::{Read, Write, pipe};

use octavo::{Manager, SwapFile};
use octavo_window::Windows;
use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, set_capabilities, set_keep_capabilities, set_thread_res_uid,
};

/// Returns the error of making windows in a child, after `prepare`.
fn refused(prepare: impl FnOnce()) -> String {
    let (mut reader, mut writer) = pipe().unwrap();
    let code = octavo_platform::run_in_forked_child(|| {
        let manager = Manager::builder().budget_bytes(16 << 20).swap_file(SwapFile::None).build().unwrap();
        prepare();
        match Windows::new(&manager) {
            Ok(_) => write!(writer, "there are windows").unwrap(),
            Err(error) => write!(writer, "{error:?}").unwrap(),
        }
        0
    });
    drop(writer);
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();
    assert_eq!(code.unwrap(), 0, "{told}");
    told
}

/// Takes all rights from this thread, if it has any.
fn become_nobody() {
    if getuid().is_root() {
        let nobody = Uid::from_raw(65534);
        set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
}

/// Leaves this thread no right but that to windows, and no room for another thread.
fn become_tracer_without_threads() {
    set_keep_capabilities(true).unwrap();
    let user = Uid::from_raw(54322);
    set_thread_res_uid(user, user, user).unwrap();
    // The files of this process in /proc belong to root now.
    let rights = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_OVERRIDE;
    let (effective, permitted) = (rights, rights);
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
        .unwrap();
    set_limit(Resource::Nproc, 0);
}

fn set_limit(resource: Resource, most: u64) {
    setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
}

fn is_allowed_to_all() -> bool {
    fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|text| text.trim() == "1")
}

#[test]
fn a_process_is_told_which_right_or_limit_it_lacks() {
    let files = "System: windows cannot be made: Too many open files (os error 24); \
                 this process may have 0 open files (RLIMIT_NOFILE, `ulimit -n`): raise that limit";
    assert_eq!(refused(|| set_limit(Resource::Nofile, 0)), files);
    // The same holds for a process that may perhaps use the device, which it cannot open now.
    let told = refused(|| {
        become_nobody();
        set_limit(Resource::Nofile, 0);
    });
    assert_eq!(told, files);

    if getuid().is_root() {
        let told = refused(become_tracer_without_threads);
        let words = "; this user may have 0 processes (RLIMIT_NPROC, `ulimit -u`), threads included: raise";
        assert!(told.starts_with("System: windows cannot be made: ") && told.contains(words), "{told}");
    }
    let told = refused(become_nobody);
    if is_allowed_to_all() || told == "there are windows" {
        return eprintln!("not tested: every process may have windows here");
    }
    assert!(told.starts_with("Unsupported: windows are not allowed here: "), "{told}");
    for word in ["CAP_SYS_PTRACE", "/dev/userfaultfd", "vm.unprivileged_userfaultfd to 1"] {
        let (happened, advice) = told.split_once("; ").unwrap();
        assert!(advice.contains(word) && !happened.contains(word), "{word:?} is no advice in: {told}");
    }
}
