//! The one limit for the tree, and who uses how much of it.
//!
//! The manager counts the pages that it owns, at home and away. Everything else that the tree and the runner
//! use is *outside*: it is measured, and told to the manager, which makes room for it.
//!
//! ```text
//!   limit = outside (measured) + pages away + pages and tables at home
//! ```

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use octavo::Manager;

/// Bytes of the limit that are left free: staging, and what the kernel counts late.
const SLACK_BYTES: u64 = 4 << 20;

/// Tables and frame words take one byte in so many.
const TABLE_SHARE: u64 = 64;
const LEAST_TABLES: u64 = 1 << 20;
/// Room in which pages that are adopted can begin to go out.
const LEAST_ROOM: u64 = 8 << 20;
/// What managed pages have in any case. Where memory that nobody can page outgrows the limit, a program goes on, and with less none of its
/// pages could come in.
const LEAST_BUDGET: u64 = 4 << 20;

/// The limit, and its use.
#[derive(Debug)]
pub(crate) struct Ledger {
    limit_bytes: u64,
    peak_bytes: AtomicU64,
    /// Held while what is outside is measured and told.
    measuring: Mutex<()>,
}

impl Ledger {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, peak_bytes: AtomicU64::new(0), measuring: Mutex::new(()) }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Returns the budget for a manager.
    pub(crate) fn budget_bytes(&self) -> u64 {
        self.limit_bytes - SLACK_BYTES.min(self.limit_bytes / 64)
    }

    /// Returns the most that the tree and the runner have used together.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    /// Takes note that the tree and the runner use `total_bytes` now.
    pub(crate) fn note(&self, total_bytes: u64) {
        self.peak_bytes.fetch_max(total_bytes, Ordering::Relaxed);
    }

    /// Tells the manager what is outside, if the tree and the runner use `total_bytes`. Of that, `adopting_bytes` at most are going to
    /// be pages of the manager. It gets room for their table, without which they could not become pages that may go out. It makes
    /// `kept_bytes` of room for what comes outside, as far as three quarters of the limit suffice. Returns what is outside, of which it
    /// may have told less.
    pub(crate) fn tell(
        &self,
        manager: &Manager,
        total_bytes: u64,
        adopting_bytes: u64,
        kept_bytes: u64,
    ) -> u64 {
        let _measuring = self.measuring.lock().expect("nobody panics here");
        // An error says that this is a forked child, which measures nothing.
        let Ok(stats) = manager.stats() else { return 0 };
        let owned = stats.used_bytes - stats.outside_bytes;
        let adopting_bytes = adopting_bytes.min(total_bytes.saturating_sub(owned));
        let tables_bytes = if adopting_bytes > 0 { adopting_bytes / TABLE_SHARE + LEAST_TABLES } else { 0 };
        let outside_bytes = total_bytes.saturating_sub(owned + tables_bytes);
        // A tree that has outgrown its limit is adopted all the same, and then pages go out.
        let least_bytes = if adopting_bytes > 0 { owned + tables_bytes + LEAST_ROOM } else { LEAST_BUDGET };
        let most_kept_bytes = (self.limit_bytes / 4 * 3).saturating_sub(outside_bytes);
        let kept_bytes = if adopting_bytes > 0 { 0 } else { kept_bytes.min(most_kept_bytes) };
        let told_bytes = (outside_bytes + kept_bytes).min(stats.budget_bytes.saturating_sub(least_bytes));
        let _ = manager.set_outside_bytes(told_bytes);
        outside_bytes
    }

    /// Moves bytes from what is outside to what the manager is about to own. Returns how many were moved.
    pub(crate) fn take_over(&self, manager: &Manager, bytes: u64) -> u64 {
        let _measuring = self.measuring.lock().expect("nobody panics here");
        let Ok(stats) = manager.stats() else { return 0 };
        let moved = bytes.min(stats.outside_bytes);
        let _ = manager.set_outside_bytes(stats.outside_bytes - moved);
        moved
    }

    /// Moves bytes back that the manager does not own after all.
    pub(crate) fn leave(&self, manager: &Manager, bytes: u64) {
        let _measuring = self.measuring.lock().expect("nobody panics here");
        if let Ok(stats) = manager.stats() {
            let _ = manager.set_outside_bytes(stats.outside_bytes + bytes);
        }
    }
}
