//! `octavo run`, with real programs.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use common::runs::{OCTAVO, assert_passed, octavo, signal, text, torture};

/// Runs the torture program in half of the memory that it needs, and returns the summary.
#[track_caller]
fn endure(kinds: &str, seconds: &str, seed: &str) -> serde_json::Value {
    endure_with("192M", "2", kinds, seconds, seed)
}

/// Like [`endure`], with this much memory and this many threads of each kind.
#[track_caller]
fn endure_with(memory: &str, threads: &str, kinds: &str, seconds: &str, seed: &str) -> serde_json::Value {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", "96M", "--json", json.path().to_str().unwrap()];
    let size = ["--memory", memory, "--threads", threads];
    let arguments = ["--seconds", seconds, "--seed", seed, "--only", kinds, "--patience", "120"];
    let output = octavo(&options, torture(), &[&size[..], &arguments].concat()).output().unwrap();
    assert_passed(&output);
    // In the end, the run has found out which child is which.
    assert!(!text(&output.stderr).contains("another process"), "{}", text(&output.stderr));
    serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap()
}

#[test]
fn programs_that_store_through_pointers_lose_nothing() {
    let summary = endure("writers", "6", "1");
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["swapped_out_bytes"].as_u64().unwrap() > 0, "{summary}");
    assert_eq!(summary["managed_processes"], 1, "{summary}");
    assert!(summary["areas"][0]["written_bytes"].as_u64().is_some(), "{summary}");
    let timed = summary["latencies"].as_object().unwrap().values();
    assert!(timed.map(|waits| waits["count"].as_u64().unwrap()).sum::<u64>() > 0, "{summary}");
}

#[test]
fn programs_that_change_their_mappings_lose_nothing() {
    let summary = endure("layout", "6", "2");
    assert!(summary["faults"]["changes"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn programs_that_reserve_and_commit_lose_nothing() {
    endure("protect,brk", "5", "3");
}

#[test]
fn forks_that_go_on_lose_nothing() {
    let summary = endure("fork", "5", "4");
    assert!(summary["processes"].as_u64().unwrap() > 1, "{summary}");
}

/// Children share slots with their parents and end, while threads of the parents store to clean pages. If the
/// budget is too small for all of them, the tree is stopped with a reason, and no process has read a wrong
/// byte.
#[test]
fn programs_with_threads_that_fork_in_little_memory_read_no_wrong_byte() {
    for seed in ["1", "2", "3", "4"] {
        let arguments = ["--memory", "100M", "--seconds", "4", "--seed", seed, "--only", "fork,writers"];
        let arguments = [&arguments[..], &["--patience", "120"]].concat();
        let output = octavo(&["--memory", "32M"], torture(), &arguments).output().unwrap();
        let errors = text(&output.stderr);
        assert!(!errors.contains("should"), "seed {seed}: {errors}");
        assert!(
            output.status.success() || errors.contains("the program was stopped"),
            "seed {seed}: {errors}"
        );
    }
}

#[test]
fn children_of_programs_that_end_right_after_a_fork_lose_nothing() {
    endure("orphans", "5", "6");
}

#[test]
fn threads_that_come_and_go_lose_nothing_and_mutexes_of_those_that_end_are_handed_on() {
    endure("threads", "6", "7");
}

#[test]
fn direct_reads_and_registered_buffers_lose_nothing() {
    endure("io", "5", "5");
}

#[test]
fn children_do_not_get_what_is_wiped_for_them() {
    let summary = endure_with("128M", "1", "wiped", "4", "9");
    assert!(summary["swapped_out_bytes"].as_u64().unwrap() > 0, "{summary}");
}

/// Four threads read up to 16 MiB at once, in a quarter of their memory. No store reveals what a device
/// writes.
#[test]
fn direct_reads_of_many_pages_lose_nothing() {
    let summary = endure_with("384M", "4", "direct", "8", "8");
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn a_program_that_fits_is_left_alone_and_its_output_and_exit_code_pass_through() {
    let script = "echo out; echo err >&2; cat; exit 7";
    let mut child = octavo(&["--memory", "512M", "--stats"], "/bin/sh", &["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "out\nin\n");
    let errors = text(&output.stderr);
    assert!(errors.starts_with("err\n") && errors.contains("octavo: 0 of "), "{errors}");
}

#[test]
fn the_exit_code_passes_through_where_nobody_reads_what_is_said() {
    let mut child = octavo(&["--memory", "64M", "--stats"], "/bin/sh", &["-c", "read line; exit 7"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn without_a_program_a_demonstration_runs_in_a_third_of_its_memory() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(OCTAVO).args(["run", "--json"]).arg(json.path()).output().unwrap();
    assert_passed(&output);
    assert!(text(&output.stdout).ends_with("Every number is right.\n"), "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("octavo: 1 of 1 processes managed"), "{}", text(&output.stderr));
    // The program writes 200,000 pages in order, and reads them twice. Most of them come in with others.
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    // Only root may make the kernel read page tables.
    assert!(summary["accessed_bits"] == true || !rustix::process::geteuid().is_root(), "{summary}");
    assert!(summary["faults"]["missing"].as_u64().unwrap() < 50_000, "{summary}");
}

#[test]
fn a_program_that_a_signal_ends_ends_the_runner_by_the_same_signal() {
    use std::os::unix::process::ExitStatusExt;
    let output = octavo(&["--memory", "512M"], "/bin/sh", &["-c", "kill -USR1 $$"]).output().unwrap();
    assert_eq!(output.status.signal(), Some(10));
}

/// The kernel then keeps no status of a child that has ended.
#[test]
fn a_run_whose_parent_ignores_the_ends_of_children_ends() {
    for rung in ["auto", "file"] {
        let run = format!("exec {OCTAVO} run --memory 64M --rung {rung} -- sh -c 'exit 3'");
        let script = format!("trap '' CHLD; {run}");
        let output = Command::new("timeout").args(["60", "bash", "-c", &script]).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{rung}: {}", text(&output.stderr));
    }
}

/// A terminal sends the signal to the program as well. Other processes may send it to the runner only.
#[test]
fn an_interrupt_that_somebody_sends_to_the_runner_reaches_the_program() {
    let script = "trap 'exit 3' INT; echo ready; while :; do sleep 0.01; done";
    let mut runner =
        octavo(&["--memory", "512M"], "/bin/sh", &["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = String::new();
    BufReader::new(runner.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    signal(runner.id(), "-INT");
    assert_eq!(runner.wait().unwrap().code(), Some(3));
}

#[test]
fn the_socket_tells_the_figures_of_a_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("figures");
    let script = "touch $0/started; while [ ! -e $0/enough ]; do sleep 0.01; done";
    let arguments = ["-c", script, folder.path().to_str().unwrap()];
    let options = ["--memory", "512M", "--socket", path.to_str().unwrap()];
    let mut runner = octavo(&options, "/bin/sh", &arguments).spawn().unwrap();
    while !folder.path().join("started").exists() {
        assert!(runner.try_wait().unwrap().is_none(), "the runner has ended");
        thread::sleep(Duration::from_millis(10));
    }
    let mut line = String::new();
    std::io::Read::read_to_string(&mut UnixStream::connect(&path).unwrap(), &mut line).unwrap();
    let figures: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(figures["budget_bytes"], 512 << 20);
    let second = octavo(&options, "/bin/true", &[]).output().unwrap();
    assert!(text(&second.stderr).contains("give --socket another path"), "{}", text(&second.stderr));
    fs::write(folder.path().join("enough"), "").unwrap();
    assert!(runner.wait().unwrap().success());
    assert!(!path.exists());
}

#[test]
fn swap_files_that_hold_something_are_refused_and_kept_unless_forced() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("precious");
    let place = format!("{}:300M", path.display());
    let users = "root:x:0:0:root:/root:/bin/bash\n".repeat(100);
    for kept in ["one line\n", &users] {
        fs::write(&path, kept).unwrap();
        let refused =
            octavo(&["--memory", "64M", "--swap", &place], "/bin/echo", &["started"]).output().unwrap();
        let errors = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{errors}");
        let words = [path.to_str().unwrap(), "not Octavo's", "left as it is", "--force"];
        assert!(words.into_iter().all(|word| errors.contains(word)), "{errors}");
        assert_eq!(text(&refused.stdout), "", "the program was not started");
        assert_eq!(fs::read_to_string(&path).unwrap(), kept);
    }
    // The file is used with `--force` first, then because it is a file of Octavo, and then because it is
    // empty.
    for force in [true, false, false] {
        let mut options = vec!["--memory", "96M", "--swap", &place, "--compression", "off"];
        options.extend(force.then_some("--force"));
        let arguments =
            ["--memory", "192M", "--seconds", "2", "--seed", "1", "--only", "writers", "--patience", "120"];
        assert_passed(&octavo(&options, torture(), &arguments).output().unwrap());
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.starts_with(b"Octavo swap area") && bytes.len() > 1 << 20, "{} bytes", bytes.len());
        if !force {
            fs::write(&path, "").unwrap();
        }
    }
}

#[test]
fn where_swap_is_full_the_program_is_stopped_and_told() {
    let swap = tempfile::tempdir().unwrap();
    let place = format!("{}:8M", swap.path().display());
    let options = ["--memory", "96M", "--swap", &place, "--compression", "off"];
    let arguments = ["--memory", "256M", "--seconds", "60", "--only", "writers"];
    let output = octavo(&options, torture(), &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(
        errors.contains("the program was stopped: process") && errors.contains("octavo-torture"),
        "{errors}"
    );
}

/// Tests that run with `cargo xtask test --all`.
mod slow {
    use super::*;

    /// Threads write, free, map, move, fork and end at once, and the kernel writes for them, in a third of
    /// the memory that they need. All of them make progress: no page and no call on mappings waits for long,
    /// however busy the machine is. (Memory that is made read-only is left out, since it cannot go out.)
    #[test]
    fn a_program_that_does_everything_at_once_reads_no_wrong_byte_and_never_stalls() {
        const LONGEST_WAIT_MS: u64 = 20_000;
        let kinds = "writers,layout,brk,fork,io,threads";
        let arguments = ["--memory", "288M", "--seconds", "60", "--seed", "8", "--only", kinds];
        let arguments = [&arguments[..], &["--patience", "240"]].concat();
        let output = octavo(&["--memory", "96M"], torture(), &arguments).output().unwrap();
        assert_passed(&output);
        let said = text(&output.stdout);
        let waits = said.lines().find_map(|line| line.strip_prefix("longest waits: ")).expect("it says that");
        let longest = waits.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).max().unwrap();
        assert!(longest < LONGEST_WAIT_MS, "{waits}\n{}", text(&output.stderr));
    }
}
