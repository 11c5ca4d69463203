//! Many processes in one limit, and the part of a CPU that the runner's monitor takes beside them. The
//! measure is the CPU time of the monitor's thread. On a busy machine, the thread gets less CPU time, and
//! never more.

mod common;

use std::fs;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::runs::{RunMark, assert_passed, children, comm, kill, octavo, torture, wait_for};

/// Starts children of a shell that share its memory, and wait for a line that never comes.
const WAITING: &str = "mkfifo never; for i in $(seq $0); do ( read line <never ) & done; : >started; wait";
/// How long the monitor is measured, after its looks have found nothing new for a while.
const MEASURED: Duration = Duration::from_secs(2);

/// Returns the CPU time of the monitor's thread: the runner's first.
fn cpu_time(runner: &Child) -> Duration {
    let pid = runner.id();
    let told = fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap();
    Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
}

/// Returns the part of a CPU that the monitor takes beside `count` waiting children, in thousandths.
fn thousandths(count: usize) -> u128 {
    let folder = tempfile::tempdir().unwrap();
    // The children have more than this limit, so that the monitor looks as often as it can.
    let mut command = octavo(&["--memory", "32M"], "/bin/sh", &["-c", WAITING, &count.to_string()]);
    command.current_dir(folder.path()).stdin(Stdio::null());
    let (mark, runner) = RunMark::start(command);
    wait_for("all children", || folder.path().join("started").exists().then_some(()));
    let shell = children(runner.id()).into_iter().find(|pid| comm(*pid) == "sh").unwrap();
    wait_for("children that wait", || (children(shell).len() == count).then_some(()));
    sleep(MEASURED);
    let (began, before) = (Instant::now(), cpu_time(&runner));
    sleep(MEASURED);
    let used = cpu_time(&runner) - before;
    let part = used.as_micros() * 1000 / began.elapsed().as_micros();
    println!("{count} children: {used:?}, {part} thousandths");
    mark.processes().into_iter().for_each(kill);
    mark.wait_until_nobody_is_left();
    part
}

/// The monitor takes about a tenth of a CPU, depending on the load of the caches. If it asked about all
/// children at each look, it would take nearly a whole CPU.
#[test]
fn three_hundred_children_that_do_nothing_cost_less_than_a_fifth_of_a_cpu() {
    assert!(thousandths(300) < 200);
}

/// Small programs that need three times the limit together. Each checks what it reads.
const SMALL: &str = "for i in $(seq 24); do $0 --memory 7M --threads 1 --seconds 2 --patience 600 --only writers & all=\"$all $!\"; done; \
                     for one in $all; do wait $one || exit 1; done";

#[test]
fn small_processes_are_taken_over_where_together_they_outgrow_the_limit() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = ["--memory", "64M", "--json", json.path().to_str().unwrap()];
    let arguments = ["-c", SMALL, torture().to_str().unwrap()];
    assert_passed(&octavo(&options, "/bin/sh", &arguments).output().unwrap());
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert!(summary["managed_processes"].as_u64().unwrap() > 0, "{summary}");
    assert!(summary["swapped_out_bytes"].as_u64().unwrap() > 0, "{summary}");
}
