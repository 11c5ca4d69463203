//! The work of each task, the same on all sides: its pages, their order, and its phases.
//!
//! A task writes all its pages once, word by word in each. If the command is about reading, the task then
//! waits for the others, and reads. Only one of the two phases is timed. With `--verify`, the written pages
//! are checked in an untimed phase of their own, and each page that is read is checked at the read.

use std::fmt;
use std::time::Duration;

use octavo_measure::random::mix;
use serde::{Deserialize, Serialize};

use super::data::{Data, PAGE_BYTES};

/// The four commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskPattern {
    WriteSequential,
    WriteRandom,
    ReadSequential,
    ReadRandom,
}

impl TaskPattern {
    /// Returns the command's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::WriteSequential => "swap-w-seq",
            Self::WriteRandom => "swap-w-rand",
            Self::ReadSequential => "swapin",
            Self::ReadRandom => "swap-r-rand",
        }
    }

    /// Returns whether the order of accesses is random. The kernel's readahead is off then.
    pub fn is_random(self) -> bool {
        matches!(self, Self::WriteRandom | Self::ReadRandom)
    }
}

/// A part of the work that all tasks begin together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Writes every page.
    Write,
    /// Reads every page, in order.
    ReadBack,
    /// Loads words of random pages.
    Loads,
}

/// The work of each task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPlan {
    pub pattern: TaskPattern,
    pub task_bytes: u64,
    pub data: Data,
    /// Seed of the random data and orders of a run.
    pub seed: u64,
    /// Whether to access Octavo's memory word by word.
    pub words: bool,
    pub verify: bool,
    pub huge: bool,
    /// Threads of a task that read at random.
    pub threads: u32,
    /// Random pages to request ahead.
    pub prefetch: u32,
    pub length: Length,
}

/// The length of random loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Length {
    /// This number by each thread.
    Loads(u64),
    Nanoseconds(u64),
}

impl TaskPlan {
    pub fn pages(&self) -> u64 {
        self.task_bytes / PAGE_BYTES as u64
    }

    /// Returns the phases in order, and whether each is timed.
    pub fn phases(&self) -> Vec<(Phase, bool)> {
        let timed = self.timed_phase();
        let mut phases = vec![Phase::Write];
        match timed {
            Phase::Write if self.verify => phases.push(Phase::ReadBack),
            Phase::Write => {}
            Phase::ReadBack | Phase::Loads => phases.push(timed),
        }
        phases.into_iter().map(|phase| (phase, phase == timed)).collect()
    }

    /// Returns the phase that the command is about.
    pub fn timed_phase(&self) -> Phase {
        match self.pattern {
            TaskPattern::WriteSequential | TaskPattern::WriteRandom => Phase::Write,
            TaskPattern::ReadSequential => Phase::ReadBack,
            TaskPattern::ReadRandom => Phase::Loads,
        }
    }

    /// Returns the least time of the phases.
    pub fn least_time(&self) -> Duration {
        match (self.pattern, self.length) {
            (TaskPattern::ReadRandom, Length::Nanoseconds(ns)) => Duration::from_nanos(ns),
            _ => Duration::ZERO,
        }
    }

    /// Returns the threads of a task in a phase.
    pub fn threads_in(&self, phase: Phase) -> u32 {
        match phase {
            Phase::Loads => self.threads,
            Phase::Write | Phase::ReadBack => 1,
        }
    }

    /// Returns the accesses of one thread in a phase, in pages or loads, or `None` if time bounds them.
    pub fn accesses_in(&self, phase: Phase) -> Option<u64> {
        match (phase, self.length) {
            (Phase::Loads, Length::Loads(loads)) => Some(loads),
            (Phase::Loads, Length::Nanoseconds(_)) => None,
            (Phase::Write | Phase::ReadBack, _) => Some(self.pages()),
        }
    }

    /// Returns the seed of a task. Each task has another seed, so that its data differs from the data of the
    /// others.
    pub fn seed_of(&self, task: u32) -> u64 {
        mix(self.seed ^ mix(u64::from(task) + 1))
    }

    /// Returns the `number`-th page that a task writes.
    #[inline]
    pub fn page_written(&self, shuffle: &Shuffle, number: u64) -> u64 {
        match self.pattern {
            TaskPattern::WriteRandom => shuffle.place_of(number),
            _ => number,
        }
    }
}

/// A random permutation of `0..count`, computed place by place: four rounds of a Feistel network over the
/// next power of four, repeated until the result is inside.
#[derive(Clone, Copy, Debug)]
pub struct Shuffle {
    count: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    #[inline]
    pub fn place_of(&self, number: u64) -> u64 {
        assert!(number < self.count, "a number of the order");
        let mut place = self.permuted(number);
        while place >= self.count {
            place = self.permuted(place);
        }
        place
    }

    #[inline]
    fn permuted(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for round in 0..4 {
            let mixed = mix(right ^ self.seed.rotate_left(round * 16)) & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loads(loads) => write!(f, "{loads} each thread"),
            Self::Nanoseconds(ns) => write!(f, "for {} s", *ns as f64 / 1e9),
        }
    }
}

#[cfg(test)]
pub(super) fn small(pattern: TaskPattern) -> TaskPlan {
    TaskPlan {
        pattern,
        task_bytes: 64 << 10,
        data: Data::Random,
        seed: 7,
        words: false,
        verify: true,
        huge: false,
        threads: 2,
        prefetch: 0,
        length: Length::Loads(100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_visits_every_place_once_out_of_order() {
        for count in [1, 2, 3, 16, 17, 1000, 4096] {
            let shuffle = Shuffle::new(count, 9);
            let places: Vec<u64> = (0..count).map(|number| shuffle.place_of(number)).collect();
            let mut sorted = places.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..count).collect::<Vec<_>>());
            if count >= 16 {
                let neighbours = places.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u64;
                assert!(neighbours < count / 4, "{neighbours} of {count} in order");
                // There must be no constant stride either, since readahead would detect it.
                let strides: std::collections::HashSet<i64> =
                    places.windows(2).map(|pair| pair[1] as i64 - pair[0] as i64).collect();
                assert!(strides.len() as u64 > count / 4, "{} strides", strides.len());
            }
        }
    }

    #[test]
    fn one_phase_is_timed() {
        for pattern in [
            TaskPattern::WriteSequential,
            TaskPattern::WriteRandom,
            TaskPattern::ReadSequential,
            TaskPattern::ReadRandom,
        ] {
            for verify in [false, true] {
                let plan = TaskPlan { verify, ..small(pattern) };
                assert_eq!(plan.phases().iter().filter(|(_, timed)| *timed).count(), 1, "{plan:?}");
            }
        }
    }
}
