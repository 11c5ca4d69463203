//! Memory that cannot be paged: the tree's shared memory and page tables.
//!
//! The kernel does not let a pager manage this memory, but the memory counts toward the limit. The kernel
//! reports both for each process, at a higher cost than a look at the process's memory. So a process is asked
//! again only after a while, or if its files and shared memory have changed much. Small processes are not
//! asked.
//!
//! Several processes may map the same shared memory. If so, they are asked one after another for their shares
//! of the memory (PSS), and memory that a process maps between two answers is added. A process that has not
//! been asked yet counts whole. But the sum is at most the machine's shared memory, which is cheap to ask
//! for.

use std::time::{Duration, Instant};

use crate::system::proc::{self, Fixed, MemoryInUse, StatusFigures, StatusFile};
use crate::tree::shares::{FaultMark, Newcomer, SharingGroup};

/// A process is not asked until its memory of all kinds reaches this size.
const LEAST_PROCESS: u64 = 8 << 20;
/// A process is asked again after this long, or if at least [`LEAST_CHANGE`] has changed.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// Like [`ASK_EVERY`], for a process that does not change.
const ASK_CALM_EVERY: Duration = Duration::from_secs(5);
const LEAST_CHANGE: u64 = 1 << 20;

/// The known figures of the fixed memory of one process.
#[derive(Debug)]
pub(crate) struct FixedMemory {
    pid: u32,
    /// `None` until it is first asked, or if it cannot be asked.
    status: Option<StatusFile>,
    told: StatusFigures,
    /// The process's files and shared memory at the time of the last answer.
    others: u64,
    at: Option<Instant>,
}

impl FixedMemory {
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, status: None, told: StatusFigures::default(), others: 0, at: None }
    }

    /// Returns the process's fixed memory. Asks the kernel if a new answer is due.
    pub(crate) fn fixed(&mut self, now: Instant, memory: MemoryInUse, is_calm: bool) -> Fixed {
        let every = if is_calm { ASK_CALM_EVERY } else { ASK_EVERY };
        let is_small = memory.anonymous + memory.others < LEAST_PROCESS;
        let is_known =
            self.at.is_some_and(|at| now - at < every) && memory.others.abs_diff(self.others) < LEAST_CHANGE;
        if !is_known && (!is_small || self.at.is_some()) {
            self.ask(now, memory);
        }
        self.told.fixed
    }

    /// Returns the kernel's last answer about the process.
    pub(crate) fn told(&self) -> StatusFigures {
        self.told
    }

    /// Asks for the process's fixed memory, and returns it.
    pub(crate) fn ask(&mut self, now: Instant, memory: MemoryInUse) -> Fixed {
        if self.at.is_none() {
            self.status = StatusFile::of(self.pid).ok();
        }
        self.told = self.status.as_ref().map_or(StatusFigures::default(), StatusFile::read);
        (self.at, self.others) = (Some(now), memory.others);
        self.told.fixed
    }
}

/// The shared memory of the tree.
#[derive(Debug, Default)]
pub(crate) struct SharedMemory {
    /// Processes that map shared memory, and how much each mapped.
    shown: Vec<(u32, u64)>,
    /// The group that is asked for shares, if that is needed.
    pub(crate) group: Option<SharingGroup>,
}

impl SharedMemory {
    /// Begins a measurement.
    pub(crate) fn begin(&mut self) {
        self.shown.clear();
    }

    /// Records how much shared memory a process maps.
    pub(crate) fn add(&mut self, pid: u32, bytes: u64) {
        if bytes >= LEAST_CHANGE {
            self.shown.push((pid, bytes));
        }
    }

    /// Returns the most shared memory that the processes can map together. If that `fits`, it is the answer,
    /// and no process is asked for its share.
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
            self.shown.iter().for_each(|(pid, bytes)| {
                group.note(*pid, FaultMark { counted: *bytes, faults: None, taken: 0 })
            });
        }
        most
    }

    /// Estimates how much shared memory the processes map together, by their shares.
    pub(crate) fn estimate(&self) -> Option<u64> {
        self.group.as_ref().map(|group| self.limit(group.estimate()))
    }

    /// Limits `bytes`: to at most the machine's shared memory, and to at least the shared memory that one
    /// process maps.
    fn limit(&self, bytes: u64) -> u64 {
        let largest = self.shown.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
        bytes.min(proc::machine_shared()).max(largest)
    }
}
