//! The kernel rung: a control group and a swap file that exist for one run. Only root may make them; for
//! others, each test passes.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::runs::{
    OCTAVO, RunMark, assert_passed, children, comm, kill, octavo, text, torture, wait_for, wait_until_gone,
};
use serde_json::Value;
use tempfile::TempDir;

/// Whether the rung works here.
fn works() -> bool {
    let output = Command::new(OCTAVO).args(["doctor", "--json", "-"]).output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    found["rungs"]["kernel"]["works"] == true
}

/// A folder for swap files on a disk.
fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn run_in(folder: &Path, seconds: &str) -> Command {
    let place = format!("{}:512M", folder.display());
    let options = ["--rung", "kernel", "--memory", "64M", "--swap", &place];
    let options = [&options[..], &["--json", "-", "--stats", "--explain"]].concat();
    let arguments = ["--memory", "128M", "--only", "writers", "--seed", "1", "--seconds", seconds];
    octavo(&options, torture(), &arguments)
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// Returns the folders of runs' groups that a keeper with this number has made.
fn groups_of(keeper: u32) -> Vec<PathBuf> {
    let name = format!("octavo-swap-{keeper}");
    let found = Command::new("find").args(["/sys/fs/cgroup", "-name", &name]).output().unwrap();
    text(&found.stdout).lines().map(PathBuf::from).collect()
}

fn is_swapped_to(folder: &Path) -> bool {
    fs::read_to_string("/proc/swaps").unwrap().contains(folder.to_str().unwrap())
}

#[test]
fn a_program_runs_in_half_of_its_memory_and_leaves_nothing_behind() {
    if !works() {
        return;
    }
    let folder = folder();
    let output = run_in(folder.path(), "2").output().unwrap();
    assert_passed(&output);
    let last = text(&output.stdout).lines().last().unwrap().to_owned();
    let summary: Value = serde_json::from_str(&last).unwrap();
    let peak = summary["peak_bytes"].as_u64().unwrap();
    assert!((32 << 20..=64 << 20).contains(&peak), "{summary}");
    let told = text(&output.stderr);
    assert!(told.contains("takes the kernel rung"), "{told}");
    // Half of the program's memory was in swap, and the kernel tells so.
    let swapped = summary["kernel"]["swap_peak_bytes"].as_u64();
    assert!(swapped.is_none_or(|bytes| bytes > 32 << 20), "{summary}");
    let words = ["octavo: the kernel paged: ", "faults waited for a disk", "for pages was not measured"];
    let counts_waits = !summary["kernel"]["waited_seconds"].is_null();
    assert!(counts_waits || words.iter().all(|words| told.contains(words)), "{told}");
    let wrong = ["processes managed", "0 bytes", "hardly waited", "-0.0", "packing"];
    assert!(!wrong.iter().any(|words| told.contains(words)), "{told}");
    assert!(swapped.is_none() || told.contains("what would help most: --memory "), "{told}");
    assert!(is_empty(folder.path()) && !is_swapped_to(folder.path()));
}

#[test]
fn processes_that_the_kernel_kills_for_want_of_memory_are_told() {
    if !works() {
        return;
    }
    let folder = folder();
    let place = format!("{}:16M", folder.path().display());
    let options = ["--rung", "kernel", "--memory", "32M", "--swap", &place];
    let output = octavo(&options, torture(), &["--memory", "128M", "--only", "writers"]).output().unwrap();
    assert!(!output.status.success());
    let errors = text(&output.stderr);
    assert!(errors.contains("the kernel killed 1 of its processes for want of memory"), "{errors}");
    assert!(is_empty(folder.path()));
}

#[test]
fn exit_codes_are_those_of_a_shell() {
    if !works() {
        return;
    }
    let folder = folder();
    let run = |program: &str, arguments: &[&str]| {
        let options = ["--rung", "kernel", "--memory", "64M", "--swap", folder.path().to_str().unwrap()];
        octavo(&options, program, arguments).output().unwrap()
    };
    assert_eq!(run("sh", &["-c", "exit 7"]).status.code(), Some(7));
    let missing = run("/nowhere/program", &[]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(text(&missing.stderr).contains("there is no such program"), "{}", text(&missing.stderr));
    let refused = octavo(&["--rung", "kernel", "--swap", "/dev/shm"], "true", &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(is_empty(folder.path()));
}

/// Returns the run's processes once the program runs: the runner, its keeper and the program.
fn started(folder: &Path) -> (RunMark, std::process::Child, u32, u32) {
    let mut command = run_in(folder, "60");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mark, runner) = RunMark::start(command);
    let named = |is_it: fn(&str) -> bool| {
        wait_for("a process of the run", || children(runner.id()).into_iter().find(|pid| is_it(&comm(*pid))))
    };
    let program = named(|name| name == "octavo-torture");
    let keeper = named(|name| name != "octavo-torture");
    (mark, runner, keeper, program)
}

#[test]
fn a_killed_runner_takes_the_program_with_it_and_nothing_stays() {
    if !works() {
        return;
    }
    let folder = folder();
    let (mark, mut runner, keeper, program) = started(folder.path());
    kill(runner.id());
    runner.wait().unwrap();
    for pid in [program, keeper] {
        wait_until_gone(pid);
    }
    mark.wait_until_nobody_is_left();
    assert!(is_empty(folder.path()) && !is_swapped_to(folder.path()));
    assert_eq!(groups_of(keeper), [] as [PathBuf; 0]);
}

#[test]
fn what_a_killed_keeper_leaves_the_next_one_takes_down() {
    if !works() {
        return;
    }
    let folder = folder();
    let (mark, mut runner, keeper, program) = started(folder.path());
    [keeper, runner.id()].into_iter().for_each(kill);
    runner.wait().unwrap();
    wait_until_gone(keeper);
    assert!(is_swapped_to(folder.path()), "nobody is there to take it down");
    let place = folder.path().to_str().unwrap();
    let next =
        octavo(&["--rung", "kernel", "--memory", "64M", "--swap", place], "true", &[]).output().unwrap();
    assert_passed(&next);
    wait_until_gone(program);
    assert!(is_empty(folder.path()) && !is_swapped_to(folder.path()));
    assert_eq!(groups_of(keeper), [] as [PathBuf; 0]);
    drop(mark);
}
