//! Why the last pages that could not be read could not: those who wait for one of them ask soon.
//!
//! Locking: one lock, taken with no other held, and only where a read has come to nothing.

use crate::store::Unread;
use crate::sync::Mutex;
use crate::units::SwapSlot;

/// The last of them, by slot.
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

    /// Why the slot was not read; `None` where too many others were not since.
    pub(super) fn why(&self, slot: SwapSlot) -> Option<Unread> {
        let last = self.0.lock();
        last.all.iter().flatten().find(|(failed, _)| *failed == slot).map(|(_, why)| why.clone())
    }
}
