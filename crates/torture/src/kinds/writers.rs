//! Threads that write and read back: in sequence, at random, with a stride, and counters.
//!
//! Each counter is on a separate page. All threads share the atomic counters. A plain counter belongs to one
//! thread, which increments it by one instruction. If a pager loses a store, the counter is too low.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::finding::insist;
use crate::memory::{OwnMapping, PAGE, WORDS};
use crate::patterned::Patterned;
use crate::work::{Sabotage, Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "pages written in sequence",
    "pages read in sequence",
    "pages written at random",
    "words read at random",
    "pages written with a stride",
    "pages read with a stride",
    "plain increments",
    "atomic increments",
    "idle times",
];

/// Counters take 1/[`COUNTERS_PART`] of the memory.
const COUNTERS_PART: usize = 32;
/// The longest run of pages of one operation.
const LONGEST_RUN: usize = 2048;

/// A page for each counter, and its expected value.
struct PageCounters {
    memory: OwnMapping,
    expected: Vec<AtomicU64>,
}

impl PageCounters {
    fn new(bytes: usize) -> Self {
        let memory = OwnMapping::anonymous(bytes.max(PAGE));
        let expected = (0..memory.pages()).map(|_| AtomicU64::new(0)).collect();
        Self { memory, expected }
    }

    /// Returns where the counter of a page is. Offsets differ, so that counters do not share one cache set.
    fn offset(page: usize) -> usize {
        page * PAGE + page % WORDS * 8
    }

    fn check(&self, page: usize, when: &str) {
        let word = self.memory.word(Self::offset(page));
        let (found, expected) = (word.load(Relaxed), self.expected[page].load(Relaxed));
        insist!(
            found == expected,
            "{when}, the counter at {:p} stands at {found} and should stand at {expected}.",
            word.as_ptr()
        );
    }
}

pub fn run(team: Team<'_>) {
    let shared = PageCounters::new(team.bytes / COUNTERS_PART);
    team.run(|work| {
        let own = PageCounters::new(work.bytes / COUNTERS_PART);
        let mut memory = Patterned::new(work.bytes - 2 * work.bytes / COUNTERS_PART);
        memory.fill_all(work);
        while work.goes_on() {
            step(work, &mut memory, &own, &shared);
        }
        memory.check_all("at the end");
        (0..own.memory.pages()).for_each(|page| own.check(page, "after plain increments by one thread"));
    });
    (0..shared.memory.pages()).for_each(|page| shared.check(page, "after atomic increments by all threads"));
}

fn step(work: &mut WorkerState<'_>, memory: &mut Patterned, own: &PageCounters, shared: &PageCounters) {
    let pages = memory.pages();
    match work.random.below(16) {
        0..4 => {
            let run = work.random.run(pages, LONGEST_RUN);
            memory.check(run.clone(), "before it was written anew");
            work.team.tally.add("pages written in sequence", run.len() as u64);
            memory.fill(work, run);
        }
        4..7 => {
            let run = work.random.run(pages, LONGEST_RUN);
            work.team.tally.add("pages read in sequence", run.len() as u64);
            memory.check(run, "in a sequence of reads");
        }
        7..9 => {
            for _ in 0..256 {
                let page = work.random.below(pages);
                memory.check(page..page + 1, "before it was written at random");
                memory.fill(work, page..page + 1);
                work.count("pages written at random");
            }
        }
        9..11 => {
            for _ in 0..4096 {
                let (page, index) = (work.random.below(pages), work.random.below(WORDS));
                let word = memory.mapping.word(page * PAGE + index * 8);
                let (found, expected) = (word.load(Relaxed), memory.content(page).word(index));
                insist!(
                    found == expected,
                    "in reads at random, the word at {:p} is {found:#018x} and should be {expected:#018x}.",
                    word.as_ptr()
                );
            }
            work.team.tally.add("words read at random", 4096);
        }
        11..13 => {
            let stride = 2 + work.random.below(70);
            let (first, writes) = (work.random.below(stride.min(pages)), work.random.once_in(2));
            for page in (first..pages).step_by(stride) {
                memory.check(page..page + 1, "with a stride");
                work.count("pages read with a stride");
                if writes {
                    memory.fill(work, page..page + 1);
                    work.count("pages written with a stride");
                }
            }
        }
        13..15 => count(work, own, shared),
        _ => {
            work.idle(50);
            work.count("idle times");
        }
    }
}

fn count(work: &mut WorkerState<'_>, own: &PageCounters, shared: &PageCounters) {
    for _ in 0..256 {
        let page = work.random.below(own.memory.pages());
        own.check(page, "before a plain increment");
        own.memory.increment_plainly(PageCounters::offset(page));
        own.expected[page].fetch_add(1, Relaxed);
        if work.spoils(Sabotage::Lose) {
            own.memory.word(PageCounters::offset(page)).fetch_sub(1, Relaxed);
        }
        let page = work.random.below(shared.memory.pages());
        shared.memory.word(PageCounters::offset(page)).fetch_add(1, Relaxed);
        shared.expected[page].fetch_add(1, Relaxed);
    }
    work.team.tally.add("plain increments", 256);
    work.team.tally.add("atomic increments", 256);
}
