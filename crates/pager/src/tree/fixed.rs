//! Memory that nobody pages: the tree's shared memory and page tables.
//!
//! The kernel does not let a pager have them, but they count under the limit. It tells both for each process,
//! and that costs more than a look at a process's memory. So a process is asked again after a while, or where
//! its files and shared memory have changed much. Small processes are not asked.
//!
//! Several processes may show the same shared memory. Then their shares of it (PSS) are asked for in turn,
//! and what a process shows more in between is added. A process that has not been asked yet counts whole. But
//! together the processes show no more than the machine has, which costs nothing to ask.

use std::time::{Duration, Instant};

use crate::system::proc::{self, Fixed, Memory, Status, Told};
use crate::tree::shares::{Group, Mark, Newcomer};

/// Processes with less memory of all kinds are not asked.
const LEAST_PROCESS: u64 = 8 << 20;
/// A process is asked again after so long, or where so much has changed.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The same of a process that does not change.
const ASK_CALM_EVERY: Duration = Duration::from_secs(5);
const LEAST_CHANGE: u64 = 1 << 20;

/// What is known of the fixed memory of one process.
#[derive(Debug)]
pub(crate) struct Asked {
    pid: u32,
    /// `None` until it is asked first, or where it cannot be.
    status: Option<Status>,
    told: Told,
    /// Its files and shared memory when it was asked.
    others: u64,
    at: Option<Instant>,
}

impl Asked {
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, status: None, told: Told::default(), others: 0, at: None }
    }

    /// Returns the process's fixed memory, and asks for it where that is due.
    pub(crate) fn fixed(&mut self, now: Instant, memory: Memory, is_calm: bool) -> Fixed {
        let every = if is_calm { ASK_CALM_EVERY } else { ASK_EVERY };
        let is_small = memory.anonymous + memory.others < LEAST_PROCESS;
        let is_known =
            self.at.is_some_and(|at| now - at < every) && memory.others.abs_diff(self.others) < LEAST_CHANGE;
        if !is_known && (!is_small || self.at.is_some()) {
            self.ask(now, memory);
        }
        self.told.fixed
    }

    /// Returns what the kernel said of the process when it was asked last.
    pub(crate) fn told(&self) -> Told {
        self.told
    }

    /// Asks for the process's fixed memory, and returns it.
    pub(crate) fn ask(&mut self, now: Instant, memory: Memory) -> Fixed {
        if self.at.is_none() {
            self.status = Status::of(self.pid).ok();
        }
        self.told = self.status.as_ref().map_or(Told::default(), Status::read);
        (self.at, self.others) = (Some(now), memory.others);
        self.told.fixed
    }
}

/// The shared memory of the tree.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Processes that show shared memory, and how much each showed.
    shown: Vec<(u32, u64)>,
    /// They have shares, where these are to be asked for.
    pub(crate) group: Option<Group>,
}

impl Shared {
    /// Begins a measurement.
    pub(crate) fn begin(&mut self) {
        self.shown.clear();
    }

    /// Takes note of what a process shows.
    pub(crate) fn add(&mut self, pid: u32, bytes: u64) {
        if bytes >= LEAST_CHANGE {
            self.shown.push((pid, bytes));
        }
    }

    /// Returns the most shared memory that the processes can show together. Where that `fits`, it is the
    /// answer, and nobody is asked for shares.
    pub(crate) fn most(&mut self, fits: impl FnOnce(u64) -> bool) -> u64 {
        let sum = self.shown.iter().map(|(_, bytes)| bytes).sum();
        if self.shown.len() < 2 {
            self.group = None;
            return sum;
        }
        let most = self.limit(sum);
        if fits(most) {
            self.group = None;
        } else {
            let group = self.group.get_or_insert_default();
            group.keep(&self.shown.iter().map(|(pid, _)| (*pid, Newcomer::default())).collect());
            self.shown
                .iter()
                .for_each(|(pid, bytes)| group.note(*pid, Mark { counted: *bytes, faults: None, taken: 0 }));
        }
        most
    }

    /// Estimates how much shared memory the processes show together, by their shares.
    pub(crate) fn estimate(&self) -> Option<u64> {
        self.group.as_ref().map(|group| self.limit(group.estimate()))
    }

    /// They show no more than the machine has, and no less than one of them does.
    fn limit(&self, bytes: u64) -> u64 {
        let largest = self.shown.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        bytes.min(proc::machine_shared()).max(largest)
    }
}
