//! The longest waits of this process: for one page, and for one call that changes mappings.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Reads and writes of one page.
pub static PAGES: Longest = Longest(AtomicU64::new(0));
/// `madvise`, `mmap`, `mremap` and `munmap`.
pub static CALLS: Longest = Longest(AtomicU64::new(0));

/// The longest of many waits.
#[derive(Debug)]
pub struct Longest(AtomicU64);

impl Longest {
    /// Calls `act`, and records how long the call took.
    pub fn of<T>(&self, act: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = act();
        self.0.fetch_max(began.elapsed().as_nanos() as u64, Relaxed);
        result
    }

    pub fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}
