//! Forked children that keep running: both sides write, and each must see its own words only.

use std::thread;
use std::time::Duration;

use crate::finding::insist;
use crate::memory::{OwnMapping, PAGE};
use crate::patterned::Patterned;
use crate::process::{fork, fork_orphan, spawn_anew, vfork_and_exec};
use crate::work::{Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "forks where both sides write",
    "grandchildren",
    "snapshots held by a child",
    "forks in a storm",
    "starts by vfork and exec",
    "starts by posix_spawn",
    "pages written",
    "idle times",
];

pub const ORPHANS: &[&str] = &["orphans", "pages written"];

pub const WIPED: &[&str] =
    &["children without a part of the memory", "children with all of it", "pages written"];

/// A child may copy all pages, and so may a grandchild.
const COPIES: usize = 3;
const STORM: usize = 24;
const EXEC_STACK_BYTES: usize = 64 << 10;

pub fn run(team: Team<'_>) {
    team.run(|work| {
        let mut memory = Patterned::new(work.bytes / COPIES);
        let stack = OwnMapping::anonymous(EXEC_STACK_BYTES);
        memory.fill_all(work);
        while work.goes_on() {
            match work.random.below(10) {
                0..3 => both_sides(work, &mut memory),
                3 => with_grandchild(work, &mut memory),
                4..6 => snapshot(work, &mut memory),
                6 => storm(work, &mut memory),
                7 => {
                    vfork_and_exec(&stack).wait("a program started by vfork and exec");
                    work.count("starts by vfork and exec");
                }
                8 => {
                    spawn_anew().wait("a program started by posix_spawn");
                    work.count("starts by posix_spawn");
                }
                _ => {
                    work.idle(60);
                    work.count("idle times");
                }
            }
            overwrite(work, &mut memory, 1024, "after a fork");
        }
        memory.check_all("at the end");
    });
}

/// Runs orphans: children of children that end at once.
pub fn run_orphans(team: Team<'_>) {
    team.run(|work| {
        let mut memory = Patterned::new(work.bytes / COPIES);
        memory.fill_all(work);
        while work.goes_on() {
            orphan(work, &mut memory);
            overwrite(work, &mut memory, 1024, "after an orphan");
        }
        memory.check_all("at the end");
    });
}

/// Runs children that do not get all of the memory (`MADV_WIPEONFORK`).
pub fn run_wiped(team: Team<'_>) {
    team.run(|work| {
        let mut memory = Patterned::new(work.bytes);
        memory.fill_all(work);
        while work.goes_on() {
            let wiped = if work.random.once_in(4) { 0 } else { work.random.below(memory.pages()) };
            wipe(work, &mut memory, wiped);
            overwrite(work, &mut memory, 1024, "after a fork that wipes");
        }
        memory.check_all("at the end");
    });
}

/// Forks a child that gets zeros for the first pages. The child may use these pages, and the parent keeps its
/// own words.
fn wipe(work: &mut WorkerState<'_>, memory: &mut Patterned, wiped: usize) {
    for (pages, advice) in [(0..wiped, libc::MADV_WIPEONFORK), (wiped..memory.pages(), libc::MADV_KEEPONFORK)]
    {
        let error = memory.mapping.advise(pages.start, pages.len(), advice);
        insist!(error == 0, "madvise {advice} was refused with error {error}.");
    }
    let child = fork(|| {
        work.branch(10);
        memory.set_zero(0..wiped);
        memory.check_all("in a child that has not all of the memory");
        overwrite(work, memory, 1024, "in a child that has not all of the memory");
    });
    child.wait("a child that has not all of the memory");
    work.count(if wiped > 0 { WIPED[0] } else { WIPED[1] });
}

/// Checks some pages, and overwrites them.
fn overwrite(work: &mut WorkerState<'_>, memory: &mut Patterned, longest: usize, when: &str) {
    let run = work.random.run(memory.pages(), longest);
    memory.check(run.clone(), when);
    work.team.tally.add("pages written", run.len() as u64);
    memory.fill(work, run);
}

fn both_sides(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    let pages = memory.pages();
    let child = fork(|| {
        work.branch(1);
        for _ in 0..4 {
            overwrite(work, memory, pages / 4 + 1, "in a forked child");
        }
        memory.check_all("at the end of a forked child");
    });
    work.branch(2);
    for _ in 0..4 {
        overwrite(work, memory, pages / 4 + 1, "in a parent beside its child");
    }
    child.wait("a forked child that writes");
    memory.check_all("when a forked child has ended");
    work.count("forks where both sides write");
}

fn with_grandchild(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    let pages = memory.pages();
    let child = fork(|| {
        work.branch(3);
        overwrite(work, memory, pages / 3 + 1, "in a child that will fork");
        let grandchild = fork(|| {
            work.branch(4);
            overwrite(work, memory, pages / 3 + 1, "in a grandchild");
            memory.check_all("at the end of a grandchild");
        });
        work.branch(5);
        overwrite(work, memory, pages / 3 + 1, "in a child beside its own child");
        grandchild.wait("a grandchild");
        work.count("grandchildren");
        memory.check_all("in a child when its child has ended");
    });
    work.branch(6);
    overwrite(work, memory, pages / 3 + 1, "in a parent beside child and grandchild");
    child.wait("a child that forked");
}

/// The child reads all pages slowly, like a snapshot that is written to disk, while the parent overwrites all
/// of them.
fn snapshot(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    let part = memory.pages().div_ceil(8);
    let child = fork(|| {
        for first in (0..memory.pages()).step_by(part) {
            thread::sleep(Duration::from_millis(10));
            memory.check(first..(first + part).min(memory.pages()), "in a child that holds a snapshot");
        }
    });
    work.branch(7);
    for first in (0..memory.pages()).step_by(part) {
        let run = first..(first + part).min(memory.pages());
        memory.check(run.clone(), "in a parent beside a snapshot");
        work.team.tally.add("pages written", run.len() as u64);
        memory.fill(work, run);
    }
    child.wait("a child that holds a snapshot");
    work.count("snapshots held by a child");
}

/// The orphan and this process write, and each must see its own words only.
fn orphan(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    let pages = memory.pages();
    let orphan = fork_orphan(|| {
        work.branch(8);
        overwrite(work, memory, pages / 4 + 1, "in an orphan");
        memory.check_all("at the end of an orphan");
    });
    work.branch(9);
    overwrite(work, memory, pages / 4 + 1, "in a parent beside an orphan");
    orphan.wait();
    work.count("orphans");
}

/// Forks many children that end at once, some of them after they have checked a page.
fn storm(work: &mut WorkerState<'_>, memory: &mut Patterned) {
    let mut children = Vec::with_capacity(STORM);
    for number in 0..STORM {
        let page = work.random.below(memory.pages());
        children.push(fork(|| {
            if number % 2 == 0 {
                memory.check(page..page + 1, "in a child of a storm of forks");
            }
        }));
        let page = work.random.below(memory.pages());
        memory.fill(work, page..page + 1);
    }
    for child in children {
        child.wait("a child of a storm of forks");
    }
    work.team.tally.add("forks in a storm", STORM as u64);
}

/// The work of this program when it is started again: it writes and checks a little memory.
pub fn started_anew(work: &mut WorkerState<'_>) {
    let mut memory = Patterned::new(64 * PAGE);
    memory.fill_all(work);
    memory.check_all("in a program that was started anew");
}
