//! What the guardian finds when the runner is killed: also processes whose parents run other programs by now.

mod common;

use std::fs;
use std::process::Stdio;

use common::runs::{RunMark, comm, is_watched, kill, octavo, userfaultfds, wait_for, wait_until_gone};

const CHILDREN: usize = 4;

/// A shell with 12 MB is taken over when another program has taken most of the memory for a moment. Then the
/// shell starts children. Each child forks one child and executes another program at once. In the end, the
/// shell executes another program, too. The grandchildren continue to run in memory from forks, below
/// programs that are not managed.
const BENEATH_OTHERS: &str = "\
    x=$(head -c 12000000 /dev/zero | tr '\\0' x); echo $$ >first
    mkfifo never
    until [ -e go ]; do dd if=/dev/zero of=/dev/null bs=100M count=1 status=none; sleep 0.1; done
    sleep 0.5
    for i in 1 2 3 4; do
      ( ( while [ ${#x} = 12000000 ]; do read y <never; done; echo lost >finding ) & echo $! >>grandchildren; exec sleep 600 ) &
    done
    exec sleep 600";

#[test]
fn forks_children_beneath_programs_that_nobody_manages_end_with_the_runner() {
    let folder = tempfile::tempdir().unwrap();
    let pids = |name: &str| -> Vec<u32> {
        let text = fs::read_to_string(folder.path().join(name)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let mut command = octavo(&["--memory", "128M"], "/bin/sh", &["-c", BENEATH_OTHERS]);
    command.current_dir(folder.path()).stdin(Stdio::null());
    let (mark, mut runner) = RunMark::start(command);
    let first = wait_for("a shell", || pids("first").first().copied());
    wait_for("a shell under management", || is_watched(first).then_some(()));
    fs::write(folder.path().join("go"), "").unwrap();
    let grandchildren = wait_for("a shell's grandchildren", || {
        Some(pids("grandchildren")).filter(|pids| pids.len() == CHILDREN)
    });
    wait_for("another program in the first shell's place", || (comm(first) == "sleep").then_some(()));
    assert!(grandchildren.iter().all(|pid| is_watched(*pid)), "the forks have watched memory");
    // When the runner notices that the first shell has ended, the runner closes the shell's descriptor.
    wait_for("the end of the first shell in the runner's eyes", || {
        let watched = mark.processes().into_iter().filter(|pid| is_watched(*pid)).count();
        (userfaultfds(runner.id()) == watched).then_some(())
    });
    kill(runner.id());
    runner.wait().unwrap();
    grandchildren.into_iter().for_each(wait_until_gone);
    assert!(!folder.path().join("finding").exists());
    // The programs that were executed have fresh memory, and continue.
    assert_eq!(comm(first), "sleep");
    mark.processes().into_iter().for_each(kill);
    mark.wait_until_nobody_is_left();
}
