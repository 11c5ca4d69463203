//! Memory that nobody pages: the tree's shared memory and page tables.
//!
//! The kernel does not let a pager have them, but they count under the limit. It tells both for each process, and that costs more
//! than a look at a process's memory. So a process is asked again after a while, or where its files and shared memory have changed
//! much. Small processes are not asked.
//!
//! Several processes may show the same shared memory. Then their shares of it (PSS) are asked for now and then, and what they show
//! is scaled by that in between.

use std::time::{Duration, Instant};

use crate::proc::{self, Fixed, Memory, Status};
use crate::shares::Shares;

/// Processes with less memory of all kinds are not asked.
const LEAST_PROCESS: u64 = 8 << 20;
/// A process is asked again after so long, or where so much has changed.
const ASK_EVERY: Duration = Duration::from_millis(100);
const LEAST_CHANGE: u64 = 1 << 20;

/// What is known of the fixed memory of one process.
#[derive(Debug)]
pub(crate) struct Asked {
    pid: u32,
    /// `None` until it is asked first, or where it cannot be.
    status: Option<Status>,
    fixed: Fixed,
    /// Its files and shared memory when it was asked.
    others: u64,
    at: Option<Instant>,
}

impl Asked {
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, status: None, fixed: Fixed::default(), others: 0, at: None }
    }

    /// Returns the process's fixed memory, and asks for it where that is due.
    pub(crate) fn fixed(&mut self, now: Instant, memory: Memory) -> Fixed {
        let is_small = memory.anonymous + memory.others < LEAST_PROCESS;
        let is_known = self.at.is_some_and(|at| now - at < ASK_EVERY)
            && memory.others.abs_diff(self.others) < LEAST_CHANGE;
        if !is_known && (!is_small || self.at.is_some()) {
            if self.at.is_none() {
                self.status = Status::of(self.pid).ok();
            }
            self.fixed = self.status.as_ref().map_or(Fixed::default(), Status::read);
            (self.at, self.others) = (Some(now), memory.others);
        }
        self.fixed
    }
}

/// The shared memory of the tree.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Processes that show shared memory, and how much each showed.
    shown: Vec<(u32, u64)>,
    shares: Shares,
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

    /// Returns how much shared memory the processes show together. Where all of it `fits`, even if nobody shared any, that is the
    /// answer, and nobody is asked.
    pub(crate) fn total(&mut self, now: Instant, fits: impl FnOnce(u64) -> bool) -> u64 {
        let sum = self.shown.iter().map(|(_, bytes)| bytes).sum();
        if self.shown.len() < 2 || fits(sum) {
            self.shares = Shares::default();
            return sum;
        }
        let largest = self.shown.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        if self.shares.is_due(now) {
            let shown = &self.shown;
            self.shares.ask(now, sum, || shown.iter().map(|(pid, _)| proc::shared_share(*pid)).sum());
        }
        self.shares.estimate(sum, largest, 0)
    }
}
