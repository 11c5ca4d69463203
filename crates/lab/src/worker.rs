//! Code for all threads that touch memory, on every side of a comparison.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A thread of a task.
#[derive(Clone, Copy, Debug)]
pub struct Toucher {
    pub task: u32,
    pub thread: u32,
}

impl fmt::Display for Toucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.task, self.thread)
    }
}

/// The flags and counters that a thread uses between batches.
#[derive(Clone, Copy, Debug)]
pub struct WorkerFlags<'a> {
    /// Set when another thread has failed. The thread then stops its work.
    pub stop: &'a AtomicBool,
    /// Counts accesses, if there is a progress bar.
    pub progress: Option<&'a AtomicU64>,
}

/// A word that did not hold the written value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    pub offset: u64,
    pub expected: u64,
    pub found: u64,
}

/// Returns the time on the clock that all processes share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
