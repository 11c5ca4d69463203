//! Runs that say the messages of `docs/messages.md` which no other test reads, and a check that every message
//! has such a run.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::runs::{OCTAVO, assert_passed, kinds, octavo, octavo_without, said_once, text, torture};
use rustix::process::geteuid;

/// Goes through twice the limit of 64 MiB until its time is over.
const WRITES: [&str; 8] = ["--memory", "128M", "--seconds", "4", "--seed", "1", "--only", "writers"];
const LIMIT: [&str; 2] = ["--memory", "64M"];

/// A user that no other test is, so that its processes can be counted.
const USER: &str = "64123";

/// Runs a program for a user who may have so many processes, and may take processes over.
fn with_processes(most: u32, folder: &Path) -> Output {
    let (user, group) = (format!("--reuid={USER}"), format!("--regid={USER}"));
    // The program holds its memory until its input ends.
    let mut command = Command::new("sh");
    command.args(["-c", "sleep 2 | \"$@\"", "sh", "setpriv", &user, &group, "--clear-groups"]);
    command.args(["--inh-caps=-all,+sys_ptrace", "--ambient-caps=-all,+sys_ptrace"]);
    command.args(["--bounding-set=-all,+sys_ptrace", "prlimit", &format!("--nproc={most}")]);
    command.arg(folder.join("octavo")).arg("run").args(LIMIT).args(["--swap", "/var/tmp", "--"]);
    command.arg(folder.join("octavo-kinds")).args(["held", "128"]);
    command.output().unwrap()
}

/// With one process more each time, the next step of a run is the one that the kernel refuses.
#[test]
fn a_limit_on_processes_is_named_at_each_step_that_it_stops() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can become another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for program in [Path::new(OCTAVO), &kinds()] {
        fs::copy(program, folder.path().join(program.file_name().unwrap())).unwrap();
    }
    let mut all = String::new();
    for most in 1..=8 {
        let output = with_processes(most, folder.path());
        let errors = text(&output.stderr);
        let is_named =
            errors.contains("(RLIMIT_NPROC)") || output.status.success() && !errors.contains("not managed");
        assert!(is_named, "{most}: {errors}");
        assert!(!errors.contains("budget_bytes") && !errors.contains("-0.0"), "{most}: {errors}");
        all += &errors;
    }
    for words in [
        "no guardian could be started: ",
        "this user may have no more processes",
        "no thread could be started: ",
        "no thread could be started: cannot start ",
        "is not managed: ",
    ] {
        assert!(all.contains(words), "no step says {words:?}: {all}");
    }
}

/// The runner opens its swap when memory gets short.
#[test]
fn a_swap_place_that_goes_while_the_program_runs_is_named() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let place = folder.path().join("inner/swap");
    fs::create_dir_all(&place).unwrap();
    let goes = format!("rm -r {} && exec \"$@\"", folder.path().join("inner").display());
    let program = [&["-c", &goes, "sh", torture().to_str().unwrap()], &WRITES[..]].concat();
    let options = [&LIMIT[..], &["--swap", place.to_str().unwrap()]].concat();
    let output = octavo(&options, "sh", &program).output().unwrap();
    let errors = text(&output.stderr);
    let words =
        ["memory cannot be managed: cannot make a swap file at ", "that stays until the run has ended"];
    assert!(words.iter().all(|words| errors.contains(words)), "{errors}");
}

#[test]
fn a_limit_on_file_sizes_is_named_when_swap_has_reached_it() {
    let script = "ulimit -f 20480; exec $0 run --memory 64M --compression off --swap /var/tmp -- \"$@\"";
    let mut command = Command::new("bash");
    command.args(["-c", script, OCTAVO]).arg(torture()).args(WRITES);
    let errors = text(&command.output().unwrap().stderr);
    assert!(errors.contains("A file may have no more than 20 MiB here (RLIMIT_FSIZE)"), "{errors}");
}

#[test]
fn a_program_of_32_bits_is_not_managed_and_told() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("fill.c"), folder.path().join("fill"));
    // It fills memory and reads a byte. After two minutes, a signal ends it.
    let text_of = "static volatile char memory[96 << 20];
        static int call(int number, int first, volatile void *second, int third) {
            __asm__ volatile(\"int $0x80\" : \"+a\"(number) : \"b\"(first), \"c\"(second), \"d\"(third) : \"memory\");
            return number;
        }
        void _start(void) {
            call(27, 120, 0, 0);
            for (unsigned at = 0; at < sizeof memory; at += 4096) memory[at] = 1;
            call(3, 0, memory, 1);
            call(1, 0, 0, 0);
        }";
    fs::write(&source, text_of).unwrap();
    let flags = ["-m32", "-O1", "-nostdlib", "-static", "-fno-pie", "-no-pie", "-ffreestanding", "-o"];
    let built = Command::new("cc").args(flags).arg(&program).arg(&source).status();
    let runs = || Command::new(&program).stdin(Stdio::null()).status().is_ok_and(|status| status.success());
    if !built.is_ok_and(|status| status.success()) || !runs() {
        eprintln!("SKIPPED: no program of 32 bits can be built or run here");
        return;
    }
    let said = said_once(octavo(&LIMIT, &program, &[]), "is not managed");
    assert!(said.contains("it runs 32-bit code; use its 64-bit build"), "{said}");
}

/// Returns whether there is `strace` here, which traces, and lets system calls fail.
fn has_strace() -> bool {
    let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status();
    let has_it = traced.is_ok_and(|status| status.success());
    if !has_it {
        eprintln!("SKIPPED: there is no `strace` here");
    }
    has_it
}

/// Returns what a run says while system calls of its first thread fail as `faults` says.
fn said_with_faults(faults: &str, run: &mut Command) -> String {
    let mut command = Command::new("strace");
    command.args(["-qq", "-o", "/dev/null", "-e", &format!("inject={faults}")]);
    text(&command.arg(run.get_program()).args(run.get_args()).output().unwrap().stderr)
}

#[test]
fn what_the_kernel_refuses_to_the_runner_is_said() {
    if !has_strace() {
        return;
    }
    let mut writes = octavo(&[&LIMIT[..], &["--swap", "/var/tmp"]].concat(), torture(), &WRITES);
    for (faults, words) in [
        ("socketpair:error=EMFILE", &["octavo: cannot watch "][..]),
        ("ppoll:error=ENOMEM:when=20+", &["the program was stopped: cannot wait for the program to end: "]),
        (
            "eventfd2:error=EMFILE",
            &[
                "is not managed: making a bell for its thread failed: Too many open files",
                "open files here (RLIMIT_NOFILE)",
            ],
        ),
    ] {
        let errors = said_with_faults(faults, &mut writes);
        assert!(words.iter().all(|words| errors.contains(words)), "{faults}: {errors}");
    }
    for (faults, rung, words) in [
        ("seccomp:error=EINVAL", "file", "system calls of the program cannot be listened to: "),
        ("clone,clone3,vfork:error=EAGAIN", "kernel", "the keeper of the swap file cannot be started: "),
    ] {
        let errors = said_with_faults(faults, &mut octavo(&["--rung", rung], "true", &[]));
        assert!(errors.contains(words), "{faults}: {errors}");
    }
}

#[test]
fn a_program_under_a_tracer_is_told_what_becomes_of_the_limit() {
    if !has_strace() {
        return;
    }
    let traced = [&["-f", "-o", "/dev/null", torture().to_str().unwrap()], &WRITES[..]].concat();
    let output = octavo(&["--memory", "48M", "--strict"], "strace", &traced).output().unwrap();
    let errors = text(&output.stderr);
    assert!(
        errors.contains(") traces it, so its memory counts, but cannot be paged until strace ("),
        "{errors}"
    );
    assert!(errors.contains("attach to it later: `strace -p` and `gdb -p` work on"), "{errors}");
}

/// A rung refuses before the program starts. Each command has the program in `$0`.
#[test]
fn a_rung_that_cannot_be_had_says_why() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount");
        return;
    }
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let mounts =
        format!("D={}; mount --bind $D $D && mount -o remount,bind,noexec $D", folder.path().display());
    let nobody = "exec setpriv --reuid=65534 --regid=65534 --clear-groups";
    let closed = "C=/sys/fs/cgroup; [ ! -e $C/memory ] || C=$C/memory; mount -o remount,bind,ro $C";
    let cases: [(&str, &str); 5] = [
        (
            &format!("{mounts} && exec $0 run --rung file --swap $D -- true"),
            "is mounted noexec; name a folder",
        ),
        (
            "mount -t tmpfs none /sys/fs/cgroup && exec $0 run --rung kernel -- true",
            "no memory control group is visible here; run outside of the container",
        ),
        (
            &format!("{nobody} $0 run --rung kernel -- true"),
            "switching the kernel's swap on takes CAP_SYS_ADMIN",
        ),
        (
            &format!("{closed} && exec $0 run --rung kernel -- true"),
            "; run as root, outside of the container",
        ),
        (
            "exec strace -qq -f -o /dev/null -e inject=swapon:error=EINVAL $0 run --rung kernel -- true",
            "; name a folder on ext4 or xfs with --swap",
        ),
    ];
    for (command, words) in
        cases.into_iter().filter(|(command, _)| !command.contains("strace") || has_strace())
    {
        let output = Command::new("unshare").args(["-m", "sh", "-c", command, OCTAVO]).output().unwrap();
        let errors = text(&output.stderr);
        assert!(errors.contains(words), "{command}: {errors}");
    }
}

/// The file rung cannot keep the limit when its folder is full, and says so. The program goes on.
#[test]
fn a_full_folder_of_the_file_rung_is_told() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let disk = format!(
        "cd {} && truncate -s 40M disk && mkfs.ext4 -q -m 0 disk && mkdir full && mount -o loop disk full",
        folder.path().display()
    );
    let run = "exec $0 run --rung file --memory 64M --swap full -- \"$@\"";
    let can_mount = Command::new("unshare").args(["-m", "sh", "-c", &disk]).output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: there is no loop device here; run as root");
        return;
    }
    fs::remove_dir(folder.path().join("full")).unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{disk} && {run}"), OCTAVO]).arg(torture()).args(WRITES);
    let output = command.output().unwrap();
    assert_passed(&output);
    let errors = text(&output.stderr);
    assert!(errors.contains("; the program goes on without a limit; give --swap another folder"), "{errors}");
}

/// A child of a managed program may not do what a helper needs, and shares most of the limit.
#[test]
fn a_forks_child_that_cannot_be_managed_is_told() {
    let program = octavo_without("sys_admin", &["--memory", "40M"], kinds(), &["filtered-child", "48"]);
    let said = said_once(program, "a fork's child");
    assert!(said.contains("a fork's child is served, but its pages cannot go out: it"), "{said}");
}

/// The child's own pages fill the limit. The tree does not wait for ever for others to go out.
#[test]
fn a_forks_child_that_cannot_be_managed_and_fills_the_limit_is_ended() {
    let arguments = ["filtered-child-fills", "48"];
    let output = octavo_without("sys_admin", &["--memory", "40M"], kinds(), &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let errors = text(&output.stderr);
    let why =
        "a fork's child needs memory that cannot be had: the limit is used up, and nothing more can go out";
    let cause = "MiB of processes that are not managed, such as process";
    assert!(errors.contains(why) && errors.contains(cause), "{errors}");
}

/// The keys of messages that no test makes a run say, and why.
const WITHOUT_A_RUN: [(&str, &str); 22] = [
    ("MiB is exceeded, with", "the limit holds wherever memory can be paged, also where it comes fast"),
    ("or a child of it", "a new parent outside of the run takes a race with the end of two processes"),
    ("use Linux 6.8 or later", "this kernel can move pages"),
    ("no process may trace another", "this kernel has no Yama"),
    ("it may not be traced", "who may have a userfaultfd that tells of forks may trace every process, too"),
    ("it shares the memory of", "the process becomes the program within a moment"),
    ("it has no code in", "the kernel puts a page with a system call into every process"),
    ("it began another program just", "it takes a race with `exec`, and the next try succeeds"),
    ("it was stopped and continued", "it takes a race with signals, and a later try succeeds"),
    ("none of its threads could", "it takes a device that does not answer"),
    ("stay in memory", "the check of swap places says so before; this is for `octavo doctor`"),
    ("no process can be started", "`octavo doctor` says it, whose start takes as many processes"),
    ("the swap file or its", "it takes memory that is too short to read swap back"),
    ("it has ended", "a process that has ended is only told in a summary"),
    ("the kernel does not say", "it takes a race with changes of mappings"),
    ("it is another process than", "Octavo goes on looking, and finds the child"),
    ("its memory cannot be taken", "said in place of the message before it while pages are taken over"),
    ("a change of its mappings", "the unit tests of managed processes read it"),
    ("a fork of it cannot", "the unit tests of managed processes read it"),
    ("the faults of a process", "only a bug ends the thread"),
    ("MiB of its memory cannot", "it takes a device that holds half of the limit"),
    ("", "any other error has the engine's own words"),
];

#[test]
fn every_message_of_the_guide_is_read_from_a_run() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = fs::read_dir(folder.join("tests")).unwrap().map(|file| file.unwrap().path());
    // This list is no run.
    let tests = tests.filter_map(|path| fs::read_to_string(path).ok());
    let tests: String =
        tests.map(|text| text.split("const WITHOUT_A_RUN").next().unwrap_or_default().to_owned()).collect();
    let guide = fs::read_to_string(folder.join("../../docs/messages.md")).unwrap();
    let rows = guide.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| message"));
    let keys: Vec<_> = rows.map(key_of).collect();
    let is_listed = |key: &str| WITHOUT_A_RUN.iter().any(|(listed, _)| *listed == key);
    let unread: Vec<_> = keys.iter().filter(|key| !tests.contains(&***key) && !is_listed(key)).collect();
    assert!(unread.is_empty(), "messages that no test reads, by their keys: {unread:#?}");
    let is_useless = |(key, _): &&(&str, &str)| {
        !key.is_empty() && tests.contains(key) || !keys.iter().any(|row| row == key)
    };
    let useless: Vec<_> = WITHOUT_A_RUN.iter().filter(is_useless).collect();
    assert!(useless.is_empty(), "messages that are listed without need: {useless:#?}");
}

/// The first words of a row's message by which a test reads it, or of its remedy if the message is another
/// text. Empty if neither has words of its own.
fn key_of(row: &str) -> String {
    let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
    let longest = |text: &str| {
        let pieces = text.split('*').step_by(2);
        let pieces = pieces.map(|piece| piece.trim_matches([' ', ',', ':', '.', '(', ')', ';']));
        pieces.max_by_key(|piece| piece.split(' ').count()).unwrap_or_default().to_owned()
    };
    let piece = Some(longest(cells[0])).filter(|piece| piece.split(' ').count() >= 3);
    let piece = piece.unwrap_or_else(|| cells.get(2).map_or_else(String::new, |remedy| longest(remedy)));
    piece.split(' ').take(5).collect::<Vec<_>>().join(" ")
}
