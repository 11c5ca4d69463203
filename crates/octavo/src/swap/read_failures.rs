//! The reasons of the last failed reads. Threads that wait for such a page soon ask for the reason.
//!
//! Locking: one lock. No other lock is held when it is taken, and it is taken only if a read has failed.

use crate::store::Unread;
use crate::sync::Mutex;
use crate::units::SwapSlot;

/// The last failed reads, by slot.
#[derive(Debug, Default)]
pub(super) struct ReadFailures(Mutex<Last>);

#[derive(Debug, Default)]
struct Last {
    all: [Option<(SwapSlot, Unread)>; 16],
    next: usize,
}

impl ReadFailures {
    pub(super) fn note(&self, slot: SwapSlot, why: Unread) {
        let mut last = self.0.lock();
        let known = last.all.iter().position(|last| matches!(last, Some((failed, _)) if *failed == slot));
        let at = known.unwrap_or(last.next);
        last.all[at] = Some((slot, why));
        if known.is_none() {
            last.next = (at + 1) % last.all.len();
        }
    }

    /// Returns why the slot was not read, or `None` if too many other reads have failed since.
    pub(super) fn why(&self, slot: SwapSlot) -> Option<Unread> {
        let last = self.0.lock();
        last.all.iter().flatten().find(|(failed, _)| *failed == slot).map(|(_, why)| why.clone())
    }
}
