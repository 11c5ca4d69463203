//! The limit of the tree, and the part of the limit that each kind of memory uses.
//!
//! The manager counts the pages that it owns, in the runner (*at home*) and in the processes (*away*). All
//! other memory of the tree and the runner is *outside*. The monitor measures this memory and passes the
//! amount to the manager. The manager then makes room for it.
//!
//! ```text
//!   limit = outside (measured) + pages away + pages and tables at home - what forks share (measured)
//! ```
//!
//! A page that processes share after a fork is away in each of their spaces, and charged in each. The budget
//! grows by the bytes that are charged more than once. A store to such a page makes a copy without an event,
//! so room for some copies is kept free.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use octavo::Manager;

/// Bytes of the limit that are left free for staging, and for memory that the kernel counts late.
const SLACK_BYTES: u64 = 4 << 20;

/// Tables and frame words take 1/[`TABLE_SHARE`] of the memory that they describe, plus [`LEAST_TABLES`].
const TABLE_SHARE: u64 = 64;
const LEAST_TABLES: u64 = 1 << 20;
/// Room that adopted pages need to begin to go out.
const LEAST_ROOM: u64 = 8 << 20;
/// The least room for managed pages. A program continues even if memory that cannot be paged exceeds the
/// limit. With less room than this, none of its pages could come in.
const LEAST_BUDGET: u64 = 4 << 20;

/// What the tree and the runner use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) total_bytes: u64,
    /// The bytes by which the kernel's counts exceed what the processes have together.
    pub(crate) shared_bytes: u64,
    /// An upper bound for the bytes that have yet to be adopted.
    pub(crate) adopting_bytes: u64,
}

/// The limit, and its use.
#[derive(Debug)]
pub(crate) struct Ledger {
    limit_bytes: u64,
    peak_bytes: AtomicU64,
    ended_faults: AtomicU64,
    /// Locked while memory outside is measured, and until the manager has the result.
    measuring: Mutex<()>,
}

impl Ledger {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            peak_bytes: AtomicU64::new(0),
            ended_faults: AtomicU64::new(0),
            measuring: Mutex::new(()),
        }
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

    /// Records that the tree and the runner use `total_bytes` now.
    pub(crate) fn note(&self, total_bytes: u64) {
        self.peak_bytes.fetch_max(total_bytes, Ordering::Relaxed);
    }

    /// Returns how many faults of all processes have ended with their page, except the latest.
    pub(crate) fn ended_faults(&self) -> u64 {
        // Relaxed: a statistic.
        self.ended_faults.load(Ordering::Relaxed)
    }

    /// Records that `more` faults have ended with their page.
    pub(crate) fn note_ended_faults(&self, more: u64) {
        self.ended_faults.fetch_add(more, Ordering::Relaxed);
    }

    /// Passes two numbers to the manager: the bytes outside, and the bytes that are charged more than once. A
    /// store to a shared page makes a copy before the monitor knows, so up to `spare_bytes` are kept free for
    /// copies. While pages have yet to be adopted, room is kept for their page table nodes: without these,
    /// they could not be adopted. At other times, the manager also makes `kept_bytes` of room for growth
    /// outside, as far as that growth and the memory outside fit in three quarters of the limit. Returns the
    /// bytes outside, with shared pages counted as often as the kernel counts them. The number that the
    /// manager gets may be smaller.
    pub(crate) fn tell(
        &self,
        manager: &Manager,
        Use { total_bytes, shared_bytes, adopting_bytes }: Use,
        spare_bytes: u64,
        kept_bytes: u64,
    ) -> u64 {
        let _measuring = self.measuring.lock().expect("nobody panics here");
        let _ = manager.set_shared_bytes(shared_bytes.saturating_sub(spare_bytes));
        // An error means that this is a forked child, which measures nothing.
        let Ok(stats) = manager.stats() else { return 0 };
        // The manager may accept fewer shared bytes than there are.
        let shared_bytes = shared_bytes.min(stats.shared_bytes + spare_bytes);
        let total_bytes = total_bytes + shared_bytes;
        let owned = stats.used_bytes - stats.outside_bytes;
        let adopting_bytes = adopting_bytes.min(total_bytes.saturating_sub(owned));
        let tables_bytes = if adopting_bytes > 0 { adopting_bytes / TABLE_SHARE + LEAST_TABLES } else { 0 };
        let outside_bytes = total_bytes.saturating_sub(owned + tables_bytes);
        // A tree that exceeds its limit is adopted all the same, and then its pages go out.
        let least_bytes = if adopting_bytes > 0 { owned + tables_bytes + LEAST_ROOM } else { LEAST_BUDGET };
        let most_kept_bytes = (self.limit_bytes / 4 * 3 + shared_bytes).saturating_sub(outside_bytes);
        let kept_bytes = if adopting_bytes > 0 { 0 } else { kept_bytes.min(most_kept_bytes) };
        let most_bytes = (stats.budget_bytes + stats.shared_bytes).saturating_sub(least_bytes);
        let told_bytes = (outside_bytes + kept_bytes).min(most_bytes);
        let _ = manager.set_outside_bytes(told_bytes);
        outside_bytes
    }

    /// Moves bytes from outside to the manager, which is about to own them. Returns how many were moved.
    pub(crate) fn take_over(&self, manager: &Manager, bytes: u64) -> u64 {
        let _measuring = self.measuring.lock().expect("nobody panics here");
        let Ok(stats) = manager.stats() else { return 0 };
        let moved = bytes.min(stats.outside_bytes);
        let _ = manager.set_outside_bytes(stats.outside_bytes - moved);
        moved
    }

    /// Moves bytes back to outside, since the manager does not own them after all.
    pub(crate) fn leave(&self, manager: &Manager, bytes: u64) {
        let _measuring = self.measuring.lock().expect("nobody panics here");
        if let Ok(stats) = manager.stats() {
            let _ = manager.set_outside_bytes(stats.outside_bytes + bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_forks_share_takes_room_once_and_some_is_left_for_copies() {
        let ledger = Ledger::new(64 * MIB);
        let manager = Manager::builder().budget_bytes(ledger.budget_bytes()).build().unwrap();
        let own = manager.stats().unwrap().used_bytes;
        let tell = |shared_bytes, spare_bytes| {
            let used = Use { total_bytes: own + 40 * MIB, shared_bytes, adopting_bytes: 0 };
            let outside = ledger.tell(&manager, used, spare_bytes, 0);
            let stats = manager.stats().unwrap();
            let room = stats.budget_bytes + stats.shared_bytes - stats.used_bytes;
            (outside / MIB, stats.shared_bytes / MIB, (ledger.budget_bytes() - own - room) / MIB)
        };
        assert_eq!(tell(0, 8 * MIB), (40, 0, 40));
        assert_eq!(tell(30 * MIB, 8 * MIB), (70, 22, 48), "what takes room, and eight for copies");
        assert_eq!(tell(5 * MIB, 8 * MIB), (45, 0, 45), "no more copies can come");
    }
}
