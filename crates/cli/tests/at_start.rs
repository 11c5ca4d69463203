//! What `octavo run` checks before it starts a program, and what it prints. With `--check`, it only prints
//! the results.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use common::runs::{OCTAVO, as_nobody, assert_passed, octavo, octavo_without, text, torture, without_rights};

#[test]
fn a_program_that_is_not_there_and_a_limit_that_is_too_small_are_said() {
    let output = octavo(&[], "/nowhere/program", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "as a shell says it");
    assert!(text(&output.stderr).contains("cannot run /nowhere/program"), "{}", text(&output.stderr));
    let output = octavo(&[], "/etc/passwd", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    assert!(
        text(&output.stderr).contains("cannot run /etc/passwd: Permission denied"),
        "{}",
        text(&output.stderr)
    );
    let mistyped = Command::new(OCTAVO).args(["run", "--memroy", "64M", "--", "true"]).output().unwrap();
    assert!(
        text(&mistyped.stderr).contains("there is no option --memroy, and no program of that name"),
        "{}",
        text(&mistyped.stderr)
    );
    let output = octavo(&["--swap", "/nowhere/swap"], "/bin/true", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("there is no folder /nowhere"), "{}", text(&output.stderr));
    let output = octavo(&["--swap", "/dev/shm"], "/bin/true", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("the file system there is memory"), "{}", text(&output.stderr));
    let output = octavo(&[], "/bin/true", &[]).env("TMPDIR", "/nowhere").output().unwrap();
    assert!(text(&output.stderr).contains("there is no folder /nowhere"), "{}", text(&output.stderr));
    let output = octavo(&["--swap", "/var/tmp:10"], "/bin/true", &[]).output().unwrap();
    assert!(
        !output.status.success() && text(&output.stderr).contains("10 bytes"),
        "{}",
        text(&output.stderr)
    );
    let output = octavo(&["--swap", "/var/tmp:12Q"], "/bin/true", &[]).output().unwrap();
    assert!(
        text(&output.stderr).contains("12Q is not a size, and there is no file"),
        "{}",
        text(&output.stderr)
    );
    let few = Command::new("bash").args(["-c", "ulimit -n 20 && exec $0 run true", OCTAVO]).output().unwrap();
    assert!(text(&few.stderr).contains("20 open files here (RLIMIT_NOFILE)"), "{}", text(&few.stderr));
    let output = octavo(&["--json", "/nowhere/summary"], "/bin/true", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("summary to /nowhere/summary"), "{}", text(&output.stderr));
    let output = octavo(&["--memory", "64"], "/bin/true", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("did you mean 64M?"), "{}", text(&output.stderr));
    let output = octavo(&["--memory", "100T"], "/bin/true", &[]).output().unwrap();
    assert!(text(&output.stderr).contains("is more than the"), "{}", text(&output.stderr));
    let output = octavo(&["--memory", "1M"], "/bin/true", &[]).output().unwrap();
    assert!(
        text(&output.stderr).contains("bytes is too small to run a program; give --memory at least 32M"),
        "{}",
        text(&output.stderr)
    );
    let output = octavo(&["--memory", "much"], "/bin/true", &[]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Runs `octavo run --check` in a shell, behind `limits`.
fn check(limits: &str, options: &str) -> Output {
    let script = format!("{limits} exec $0 run --check {options}");
    Command::new("bash").args(["-c", &script, OCTAVO]).output().unwrap()
}

#[test]
fn a_check_says_what_is_there_and_runs_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let output = check("", &format!("--memory 64M -- touch {}", made.display()));
    let said = text(&output.stdout);
    for what in ["limit", "swap", "addresses", "open files", "rights", "a process", "pages in use"] {
        assert!(
            said.lines().any(|line| line.trim_start_matches(['!', ' ']).starts_with(what)),
            "{what}: {said}"
        );
    }
    assert!(!made.exists());
    // Only root has all of these rights.
    if rustix::process::geteuid().is_root() {
        assert_passed(&output);
        assert!(said.ends_with("A run can do all of it.\n"), "{said}");
    }
}

/// If a run did not check these limits, each of them would end the job when memory gets short.
#[test]
fn limits_of_the_process_are_named_before_the_program_starts() {
    let cases = [
        (
            "ulimit -n 20;",
            "--memory 64M",
            "20 open files here (RLIMIT_NOFILE), and a run needs 64; allow more",
        ),
        (
            "ulimit -v 400000;",
            "--memory 64M",
            "a process may have 390.6 MiB of addresses here (RLIMIT_AS), and the runner takes",
        ),
        ("ulimit -f 1000;", "--memory 64M", "/var/tmp has room for 1000 KiB only; free some there"),
        (
            "TMPDIR=/nowhere;export TMPDIR;",
            "",
            "there is no folder /nowhere; give --swap a folder, a file or a disk",
        ),
        ("", "--swap /dev/shm", "the file system there is memory (tmpfs)"),
        ("", "--swap /etc/passwd", "give --swap another path, or add --force to overwrite this one"),
        ("", "--swap /var/tmp/x:10", "a swap limit of 10 bytes holds no page"),
        ("", "--swap /var/tmp/x --swap /var/tmp/../tmp/x:1G", "/var/tmp/../tmp/x is given twice"),
        ("", "--json /nowhere/x", "cannot write the summary to /nowhere/x"),
        ("", "-- /nowhere/program", "cannot run /nowhere/program: there is no such program"),
        ("", "-- /etc/passwd", "cannot run /etc/passwd"),
        ("", "--socket /nowhere/socket", "no socket can be made at /nowhere/socket"),
        (
            "",
            "--socket /etc/passwd",
            "another process listens at /etc/passwd, or /etc/passwd is not a socket",
        ),
    ];
    for (limits, options, expected) in cases {
        let limits = format!("unset TMPDIR; {limits}");
        let checked = check(&limits, options);
        assert_eq!(checked.status.code(), Some(1), "{limits}");
        let said = text(&checked.stdout);
        assert!(
            said.contains(expected) && said.lines().any(|line| line.starts_with("! ")),
            "{limits} {said}"
        );
        assert!(said.ends_with("A run cannot do all of it.\n"), "{said}");
        // A run without `--check` prints the same, and does not start the program.
        let program = if options.starts_with("-- ") { "" } else { "-- echo started" };
        let script = format!("{limits} exec $0 run {options} {program}");
        let run = Command::new("bash").args(["-c", &script, OCTAVO]).output().unwrap();
        assert!(!run.status.success() && run.stdout.is_empty(), "{limits}");
        assert!(text(&run.stderr).contains(expected), "{limits} {}", text(&run.stderr));
    }
}

/// Advice that does not help is worse than none.
#[test]
fn the_swap_that_is_advised_needs_no_more_addresses_than_there_are() {
    for place in ["", "--swap /var/tmp:1G"] {
        let refused = check("ulimit -v 500000;", &format!("--memory 64M {place}"));
        let said = text(&refused.stdout);
        let Some(advice) = said.split("or use less swap, as by ").nth(1) else {
            assert!(said.contains("addresses      enough"), "{said}");
            continue;
        };
        let advised = check("ulimit -v 500000;", &format!("--memory 64M {}", advice.lines().next().unwrap()));
        assert!(text(&advised.stdout).contains("addresses      enough"), "{said} {}", text(&advised.stdout));
    }
    let hopeless = check("ulimit -v 280000;", "--memory 64M");
    assert!(text(&hopeless.stdout).contains("`ulimit -v unlimited`\n"), "{}", text(&hopeless.stdout));
}

/// A soft limit that the process may raise itself does not count.
#[test]
fn soft_limits_are_raised_for_the_run_and_not_for_its_program() {
    let script =
        "ulimit -Sn 20; ulimit -Sf 1000; exec $0 run --memory 64M -- bash -c 'ulimit -Sn; ulimit -Sf'";
    let output = Command::new("bash").args(["-c", script, OCTAVO]).output().unwrap();
    assert_passed(&output);
    assert_eq!(text(&output.stdout), "20\n1000\n");
}

#[test]
fn the_reader_of_a_check_may_close() {
    let closed = Command::new("bash").args(["-c", "exec $0 run --check | true", OCTAVO]).output().unwrap();
    assert!(!text(&closed.stderr).contains("panicked"), "{}", text(&closed.stderr));
}

#[test]
fn a_script_whose_interpreter_is_missing_is_told_apart_from_one_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("a-script-of-nobody");
    fs::write(&script, "#!/nowhere/interpreter\n").unwrap();
    fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    let run = |program: &Path, path: &Path| {
        let output = octavo(&["--memory", "64M"], program, &[]).env("PATH", path).output().unwrap();
        assert_eq!(output.status.code(), Some(127));
        text(&output.stderr)
    };
    for program in [script.as_path(), Path::new("a-script-of-nobody")] {
        let told = run(program, folder.path());
        assert!(told.contains("the file exists, but its interpreter or loader does not"), "{told}");
    }
    let told = run(Path::new("a-script-of-nobody"), Path::new("/bin"));
    assert!(told.contains("there is no such program"), "{told}");
}

#[test]
fn without_rights_a_run_says_so_at_the_start_and_a_strict_one_does_not_start() {
    let Some((_folder, octavo)) = without_rights() else { return };
    let words =
        "Octavo may not manage memory here, so it can keep no limit: the kernel refuses userfaultfd to it";
    let lenient =
        as_nobody(&octavo).arg("run").args(["--memory", "64M", "--", "echo", "started"]).output().unwrap();
    assert_passed(&lenient);
    assert_eq!(text(&lenient.stdout), "started\n");
    assert!(text(&lenient.stderr).contains(words), "{}", text(&lenient.stderr));
    let strict = as_nobody(&octavo)
        .arg("run")
        .args(["--memory", "64M", "--strict", "--", "echo", "started"])
        .output()
        .unwrap();
    assert!(!strict.status.success() && strict.stdout.is_empty());
    assert!(
        [words, "run as root", "Without --strict the program would run"]
            .iter()
            .all(|words| text(&strict.stderr).contains(words)),
        "{}",
        text(&strict.stderr)
    );
    // The built-in program is a demonstration. Without rights, there is nothing to demonstrate.
    let built_in = as_nobody(&octavo).arg("run").output().unwrap();
    assert!(!built_in.status.success() && built_in.stdout.is_empty());
    assert!(text(&built_in.stderr).contains(words), "{}", text(&built_in.stderr));
    let checked = as_nobody(&octavo).arg("run").arg("--check").output().unwrap();
    assert_eq!(checked.status.code(), Some(1));
    assert!(text(&checked.stdout).contains("! a process"), "{}", text(&checked.stdout));
}

/// Root still gets a userfaultfd from the device, but this userfaultfd does not report forks.
#[test]
fn who_may_not_trace_every_process_learns_what_is_missing() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/userfaultfd").exists() {
        return;
    }
    let output = octavo_without("sys_ptrace", &["--strict"], "echo", &["started"]).output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    let words = "the kernel tells of forks only to a process with CAP_SYS_PTRACE; run as root, or with CAP_SYS_PTRACE";
    assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
}

#[test]
fn a_user_who_may_have_no_more_processes_is_told_so() {
    let Some((_folder, octavo)) = without_rights() else { return };
    // Use a separate user, so that processes of other tests and of the machine do not count.
    let user = format!("{}", 65_600 + std::process::id() % 10_000);
    let script = "ulimit -u 1; exec setpriv --reuid=$1 --regid=$1 --clear-groups $0 run --memory 1G -- true";
    let output = Command::new("bash").args(["-c", script]).arg(&octavo).arg(user).output().unwrap();
    let errors = text(&output.stderr);
    assert!(!output.status.success(), "{errors}");
    assert!(errors.contains("no more processes: it may have 1 (RLIMIT_NPROC)"), "{errors}");
}

/// A script under `octavo run` calls `octavo run`.
#[test]
fn a_run_inside_of_a_run_leaves_the_limit_to_the_outer_one() {
    let arguments =
        ["--memory", "192M", "--seconds", "3", "--seed", "1", "--only", "writers", "--patience", "120"];
    let json = tempfile::NamedTempFile::new().unwrap();
    let outer = ["--memory", "96M", "--json", json.path().to_str().unwrap()];
    let inner = [&["run", "--memory", "64M", "--", torture().to_str().unwrap()], &arguments[..]].concat();
    let output = octavo(&outer, OCTAVO, &inner).output().unwrap();
    assert_passed(&output);
    let errors = text(&output.stderr);
    assert!(errors.contains("whose limit of 96 MiB holds for all of it. The options"), "{errors}");
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert_eq!(summary["managed_processes"], 1, "{summary}");
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
    let strict = octavo(&[], OCTAVO, &["run", "--strict", "--", "echo", "started"]).output().unwrap();
    assert!(!strict.status.success() && strict.stdout.is_empty(), "{}", text(&strict.stderr));
    // A program in between may have taken the environment away, as `sudo` does.
    let script = format!("env -i {OCTAVO} run --memory 64M -- echo started; true");
    let hidden = octavo(&[], "sh", &["-c", &script]).output().unwrap();
    assert_passed(&hidden);
    assert_eq!(text(&hidden.stdout), "started\n");
    assert!(
        text(&hidden.stderr).contains("this is inside of another `octavo run`"),
        "{}",
        text(&hidden.stderr)
    );
    // A missing program is reported in the same way as without the outer run.
    let missing = octavo(&[], OCTAVO, &["run", "--", "/nowhere/program"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127));
    // The environment of a run that has ended is ignored.
    let stale = Command::new(OCTAVO)
        .args(["run", "--memory", "64M", "--", "true"])
        .env("OCTAVO_OUTER_RUN", "1 12345 67108864")
        .output()
        .unwrap();
    assert_passed(&stale);
    assert_eq!(text(&stale.stderr), "");
}
