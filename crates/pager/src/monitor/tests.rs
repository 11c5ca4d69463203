use std::process::{Child, Command, Stdio};

use octavo::io::{Device, Submitted, SwapArea, Transfer, Urgency};

use super::*;

const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;
use crate::managed::tests::{Commons, wait_until};

fn monitor(commons: &Commons) -> Monitor {
    let unused = Box::new(|| Err("nobody asks for a manager".into()));
    Monitor::new(Arc::clone(&commons.ledger), unused, false).unwrap()
}

#[test]
fn a_driver_that_is_busy_is_not_waited_for_when_its_process_has_ended() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let (parent, kernel) = commons.managed(Some(7), 1);
    parent.hold_driver(|parent| {
        kernel.fork();
        monitor.let_go(7, parent);
        monitor.take_last_forks().unwrap();
        assert!(monitor.has_managed(), "a fork of it comes still");
        assert_eq!((monitor.ending.len(), monitor.forks.len()), (1, 0));
    });
    wait_until(|| {
        monitor.take_last_forks().unwrap();
        monitor.ending.is_empty()
    });
    assert_eq!(monitor.forks.iter().map(|fork| fork.parent).collect::<Vec<_>>(), [7]);
    assert_eq!(commons.guardian.pids(), [0], "the child");
}

#[test]
fn a_fork_that_cannot_be_served_stops_the_tree_though_its_parent_has_ended() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let (parent, kernel) = commons.managed(Some(7), 1);
    let _spaces = commons.all_spaces();
    parent.hold_driver(|parent| {
        kernel.fork();
        monitor.let_go(7, parent);
        monitor.take_last_forks().unwrap();
    });
    let mut failed = None;
    wait_until(|| {
        failed = monitor.take_last_forks().err();
        failed.is_some()
    });
    let Failed(why) = failed.unwrap();
    assert!(why.contains("a fork of it cannot be served"), "{why}");
    assert!(monitor.has_managed());
    assert_eq!(commons.guardian.pids(), [0, 0], "the child waits until the tree is stopped");
}

#[test]
fn a_fork_that_could_not_be_served_stops_nobody_once_it_has_ended() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let (parent, kernel) = commons.managed(Some(7), 1);
    let _spaces = commons.all_spaces();
    kernel.fork();
    wait_until(|| parent.failure_of_forks().is_some());
    parent.end_unserved();
    monitor.let_go(7, parent);
    wait_until(|| {
        monitor.take_last_forks().unwrap();
        monitor.ending.is_empty()
    });
}

#[test]
fn the_guardian_forgets_the_number_of_a_process_that_has_ended() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let (ended, _kernel) = commons.managed(Some(7), 1);
    ended.hold_driver(|ended| {
        assert_eq!(commons.guardian.pids(), [7]);
        monitor.let_go(7, ended);
        assert_eq!(commons.guardian.pids(), [0]);
    });
}

#[test]
fn what_has_failed_in_a_process_that_has_ended_stops_nobody_but_the_children_of_its_forks() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    for forks in [false, true] {
        let (parent, kernel) = commons.managed(Some(7), 1);
        parent.fail();
        if forks {
            kernel.fork();
        }
        monitor.let_go(7, parent);
        let mut has_failed = false;
        wait_until(|| {
            has_failed |= monitor.take_last_forks().is_err();
            has_failed || monitor.ending.is_empty()
        });
        assert_eq!(has_failed, forks);
    }
}

/// Starts a shell whose forks run until its input ends, as if their memory were watched. Returns the shell
/// and its forks once there are `count`.
fn family(monitor: &mut Monitor, script: &str, count: usize) -> (Child, Vec<u32>) {
    let shell = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
    let mut forks = Vec::new();
    wait_until(|| {
        monitor.tree.look().unwrap();
        forks.clear();
        proc::children(shell.id(), &mut forks).unwrap();
        let mut index = 0;
        while index < forks.len() {
            proc::children(forks[index], &mut forks).unwrap();
            index += 1;
        }
        let stack = proc::stat(shell.id()).unwrap().stack;
        let is_there = |pid| monitor.tree.processes.get(pid).is_some_and(|fork| fork.stack == stack);
        // Other tests start programs as well, which are forks of this process until they execute.
        let has_families = monitor.tree.has_families();
        forks.len() == count && forks.iter().all(is_there) && has_families == (count > 0)
    });
    let stack = proc::stat(shell.id()).unwrap().stack;
    monitor.watched.extend(forks.iter().map(|pid| ((*pid, stack), true)));
    (shell, forks)
}

#[test]
fn a_child_whose_parent_was_mistaken_is_found_once_its_siblings_are_known() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let script = "exec 3<&0; ( (read word <&3) & wait) & wait";
    let (mut shell, forks) = family(&mut monitor, script, 2);
    let [child, grandchild] = forks[..] else { unreachable!("there are two") };
    let stack = proc::stat(child).unwrap().stack;
    let kernels = [(); 2].map(|()| {
        let (mut fork, kernel) = commons.managed(None, stack);
        fork.parent = shell.id();
        monitor.forks.push(fork);
        kernel
    });
    monitor.find_forks();
    assert_eq!((monitor.forks.len(), commons.guardian.pids()), (1, vec![child, 0]));
    monitor.note_vain_looks();
    monitor.find_forks();
    assert_eq!(commons.guardian.pids(), [child, grandchild]);
    drop((shell.stdin.take(), kernels));
    shell.wait().unwrap();
}

#[test]
fn a_forks_child_that_was_taken_for_a_sibling_is_looked_for_again() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let script = "exec 3<&0; (read word <&3) & (read word <&3) & wait";
    let (mut shell, mut children) = family(&mut monitor, script, 2);
    children.sort_unstable();
    let stack = proc::stat(shell.id()).unwrap().stack;
    let mut kernels = Vec::new();
    for _ in 0..2 {
        let (mut fork, kernel) = commons.managed(None, stack);
        fork.parent = shell.id();
        monitor.forks.push(fork);
        kernels.push(kernel);
    }
    let [a, b] = children[..] else { unreachable!("there are two") };
    monitor.find_forks();
    assert_eq!(commons.guardian.pids(), [a, b]);
    // Act as if no process could get a mover.
    monitor.managed.values_mut().for_each(Managed::refuse);
    monitor.look_again(a);
    assert!(!monitor.forks.iter().any(Managed::is_refused), "the right ones may get movers");
    assert_eq!((monitor.forks.len(), commons.guardian.pids()), (2, vec![0, 0]));
    monitor.find_forks();
    assert_eq!(commons.guardian.pids(), [b, a]);
    // This child is neither of the two. The other child may still be either.
    monitor.look_again(b);
    monitor.find_forks();
    assert_eq!((monitor.forks.len(), commons.guardian.pids()), (1, vec![0, a]));
    // The process ends, but the child's memory still exists.
    drop(shell.stdin.take());
    shell.wait().unwrap();
    monitor.tree.look().unwrap();
    monitor.end_those_that_ended();
    assert_eq!((monitor.forks.len(), commons.guardian.pids()), (2, vec![0, 0]));
    assert!(monitor.has_managed() && monitor.managed.is_empty());
}

fn stands_still(pid: u32) -> bool {
    proc::stat(pid).unwrap().state == b'T'
}

/// Otherwise, it would fill the memory while its mover waits for a CPU.
#[test]
fn a_process_stands_still_while_it_is_taken_over_if_it_could_fill_the_memory_meanwhile() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    monitor.manager = Some(commons.manager.clone());
    let (mut shell, _) = family(&mut monitor, "read word", 0);
    let pid = shell.id();
    monitor.growth.in_reaction = monitor.ledger.limit_bytes() / growth::MOVER_REACTIONS;
    monitor.keep_still(&[(LEAST_PROCESS - 1, pid)], PAGE_BYTES, 0, 0);
    monitor.keep_still(&[(LEAST_PROCESS, pid)], 0, 0, 0);
    assert!(!monitor.standstill.has(pid), "it is too small to be taken over, or there is room");
    monitor.keep_still(&[(LEAST_PROCESS, pid)], PAGE_BYTES, 0, 0);
    wait_until(|| stands_still(pid));
    monitor.standstill.end(None);
    wait_until(|| !stands_still(pid));
    // Without a manager, its pages cannot go out at all.
    monitor.manager = None;
    monitor.growth.in_reaction = 0;
    monitor.keep_still(&[(LEAST_PROCESS, pid)], 0, 0, 0);
    wait_until(|| stands_still(pid));
    monitor.standstill.end(None);
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

#[test]
fn a_process_that_runs_another_program_is_asked_again_whether_its_memory_is_watched() {
    let own = std::process::id();
    let mut known = BTreeMap::from([((own, 1), true)]);
    assert_eq!(is_watched(&mut known, own, 1), Some(true));
    assert_eq!(is_watched(&mut known, own, 2), Some(false));
}

#[test]
fn at_the_end_of_a_run_no_driver_waits_for_another_ones_end() {
    let commons = Commons::new();
    let mut monitor = monitor(&commons);
    let (first, kernel) = commons.managed(Some(7), 1);
    let (second, _kernel) = commons.managed(Some(8), 2);
    let is_stopped = second.is_stopped();
    let finishing = first.hold_driver(|first| {
        kernel.fork();
        monitor.managed.extend([(7, first), (8, second)]);
        let finishing = std::thread::spawn(move || monitor.finish(false));
        wait_until(&is_stopped);
        finishing
    });
    finishing.join().unwrap();
    assert!(commons.guardian.pids().is_empty());
}

/// A device that is never used.
struct Unused {
    _there: Arc<()>,
}

impl Device for Unused {
    fn capacity_pages(&self) -> u32 {
        1024
    }

    fn submit(&self, transfer: Transfer, _: Urgency) -> Submitted {
        transfer.complete(Ok(()));
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        "an unused device".into()
    }
}

#[test]
fn devices_are_closed_at_the_end_of_a_run_or_left_to_the_end_of_the_process() {
    for is_left in [false, true] {
        let there = Arc::new(());
        let device = Unused { _there: Arc::clone(&there) };
        let builder = Manager::builder().budget_bytes(32 << 20).swap_area(SwapArea::device(Box::new(device)));
        let commons = Commons::new();
        let mut monitor = monitor(&commons);
        monitor.manager = Some(builder.build().unwrap());
        monitor.finish(is_left);
        assert_eq!(Arc::strong_count(&there) > 1, is_left);
    }
}

#[test]
fn a_fork_that_the_guardian_cannot_have_stops_the_tree_and_waits_until_then() {
    let commons = Commons::new();
    let (parent, kernel) = commons.managed(Some(7), 1);
    commons.guardian.refuse();
    kernel.fork();
    wait_until(|| parent.failure().is_some());
    assert!(parent.failure().is_some_and(|why| why.contains("a fork of it cannot be served")));
    assert!(parent.failure_of_forks().is_some(), "the child's descriptor is there still");
}
