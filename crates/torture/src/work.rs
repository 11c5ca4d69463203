//! The state of one worker thread: its share of memory, its random numbers, its end, and its counts.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::memory::{OwnMapping, PAGE};
use crate::random::{Random, mix};

/// An error that the program makes on purpose, to show that its checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// A byte of a page that was just written changes.
    Flip,
    /// A page that was just written becomes zero.
    Zero,
    /// An increment of a counter is undone.
    Lose,
    /// A page that should be protected stays writable.
    Open,
}

impl Sabotage {
    pub const NAMES: [(&'static str, Sabotage); 4] = [
        ("flip", Sabotage::Flip),
        ("zero", Sabotage::Zero),
        ("lose", Sabotage::Lose),
        ("open", Sabotage::Open),
    ];
}

/// One write in this many is spoilt.
const WRITINGS_TO_SABOTAGE: u64 = 20;

/// Counts of operations by name, in memory that forked children share.
#[derive(Debug)]
pub struct Tally {
    names: &'static [&'static str],
    counts: OwnMapping,
}

impl Tally {
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, counts: OwnMapping::shared(8 * names.len().max(1)) }
    }

    fn of(&self, name: &str) -> &AtomicU64 {
        let place = self.names.iter().position(|known| *known == name);
        self.counts.word(8 * place.expect("the kind lists the names of all its operations"))
    }

    pub fn add(&self, name: &str, count: u64) {
        self.of(name).fetch_add(count, Relaxed);
    }

    /// Returns the counts with their names, in one line.
    pub fn line(&self) -> String {
        let each = |name: &&str| format!("{} {name}", self.of(name).load(Relaxed));
        self.names.iter().map(each).collect::<Vec<_>>().join(", ")
    }
}

/// The state that all workers of one kind share.
#[derive(Clone, Copy, Debug)]
pub struct Team<'a> {
    pub tally: &'a Tally,
    /// Memory for the whole kind.
    pub bytes: usize,
    pub threads: usize,
    pub seed: u64,
    pub end: Instant,
    pub folder: &'a Path,
    pub sabotage: Option<Sabotage>,
}

impl<'a> Team<'a> {
    /// Runs one worker per thread, and waits for all of them.
    pub fn run(&self, worker: impl Fn(&mut WorkerState<'a>) + Sync) {
        thread::scope(|scope| {
            for index in 0..self.threads {
                let mut work = WorkerState::new(*self, index);
                let worker = &worker;
                scope.spawn(move || worker(&mut work));
            }
        });
    }
}

/// The state of one worker.
#[derive(Debug)]
pub struct WorkerState<'a> {
    pub team: Team<'a>,
    /// This worker's share of the memory.
    pub bytes: usize,
    pub random: Random,
    generation: u64,
    writings: u64,
}

impl<'a> WorkerState<'a> {
    pub fn new(team: Team<'a>, index: usize) -> Self {
        let seed = mix(team.seed).wrapping_add(index as u64);
        Self {
            team,
            bytes: team.bytes / team.threads,
            random: Random::new(seed),
            generation: mix(seed) << 32,
            writings: 0,
        }
    }

    pub fn goes_on(&self) -> bool {
        Instant::now() < self.team.end
    }

    pub fn count(&self, name: &str) {
        self.team.tally.add(name, 1);
    }

    pub fn new_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// Makes the generations of a forked child differ from its parent's.
    pub fn branch(&mut self, branch: u64) {
        self.generation = mix(self.generation.wrapping_add(branch)) << 32;
        self.random = Random::new(self.random.next().wrapping_add(branch));
    }

    /// Leaves the memory alone for a while, so that a pager has reason to take it.
    pub fn idle(&mut self, longest_ms: usize) {
        let pause = Duration::from_millis(self.random.below(longest_ms) as u64);
        thread::sleep(pause.min(self.team.end.saturating_duration_since(Instant::now())));
    }

    /// Returns whether this kind of sabotage is due now.
    pub fn spoils(&mut self, sabotage: Sabotage) -> bool {
        if self.team.sabotage != Some(sabotage) {
            return false;
        }
        self.writings += 1;
        self.writings.is_multiple_of(WRITINGS_TO_SABOTAGE)
    }

    /// Spoils pages that were just written, if that is requested and due.
    pub fn sabotage(&mut self, mapping: &OwnMapping, pages: Range<usize>) {
        let page = pages.start + self.random.below(pages.len());
        if self.spoils(Sabotage::Flip) {
            let word = mapping.word(page * PAGE + 8 * self.random.below(PAGE / 8));
            word.fetch_xor(0xff << (8 * self.random.below(8)), Relaxed);
        }
        if self.spoils(Sabotage::Zero) {
            mapping.words(page * PAGE, PAGE).iter().for_each(|word| word.store(0, Relaxed));
        }
    }
}
