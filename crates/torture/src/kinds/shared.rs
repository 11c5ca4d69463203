//! Memory that processes share. No pager may take it, and every owner must see each store.

use std::sync::atomic::Ordering::Relaxed;

use crate::finding::insist;
use crate::memory::{OwnMapping, PAGE};
use crate::patterned::Patterned;
use crate::process::fork;
use crate::work::Team;

pub const OPERATIONS: &[&str] = &["pages written", "pages read by a child", "stores of children seen"];

/// How many stores one child makes.
const STORES: u64 = 1000;
const LONGEST_RUN: usize = 1024;

pub fn run(team: Team<'_>) {
    team.run(|work| {
        let counter = OwnMapping::shared(PAGE);
        let mut memory = Patterned::over(OwnMapping::shared(work.bytes.max(PAGE)));
        memory.fill_all(work);
        let mut expected = 0;
        while work.goes_on() {
            let run = work.random.run(memory.pages(), LONGEST_RUN);
            memory.check(run.clone(), "in shared memory");
            work.team.tally.add("pages written", run.len() as u64);
            memory.fill(work, run);
            let run = work.random.run(memory.pages(), LONGEST_RUN);
            let child = fork(|| {
                memory.check(run.clone(), "in shared memory, in a child");
                for _ in 0..STORES {
                    counter.word(0).fetch_add(1, Relaxed);
                }
            });
            child.wait("a child that shares memory");
            expected += STORES;
            let found = counter.word(0).load(Relaxed);
            insist!(
                found == expected,
                "the stores of children to shared memory are {found}, not {expected}."
            );
            work.team.tally.add("pages read by a child", run.len() as u64);
            work.team.tally.add("stores of children seen", STORES);
        }
        memory.check_all("in shared memory, at the end");
    });
}
