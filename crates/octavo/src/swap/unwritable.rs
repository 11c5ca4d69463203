//! Slots that could not be written. Pages get them only when there are no others.
//!
//! On a full file system, a file takes pages where it has room already, and fails wherever it has to grow. Only the
//! failure shows which places those are. So a slot whose write failed is withheld from the allocator as soon as it
//! is free. It stays withheld until the allocator has none left, or until too many are withheld.
//!
//! Locking: one lock. No other lock is held when it is taken, and it is taken only where a write has failed.

use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::units::SwapSlot;

#[derive(Debug, Default)]
pub(super) struct Unwritable {
    slots: Mutex<Slots>,
    /// How many slots are noted. It is zero most of the time.
    noted: AtomicU32,
    withheld: AtomicU32,
}

#[derive(Debug, Default)]
struct Slots {
    /// Still in use, sorted.
    noted: Vec<SwapSlot>,
    withheld: Vec<SwapSlot>,
}

impl Unwritable {
    /// Notes a slot whose write has just failed.
    #[cold]
    pub(super) fn note(&self, slot: SwapSlot) {
        let mut slots = self.slots.lock();
        if let Err(at) = slots.noted.binary_search(&slot) {
            slots.noted.insert(at, slot);
            // Relaxed: a thread that frees the slot comes after its writer, by the frame's holds.
            self.noted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Withholds a slot that became free, if its write failed. False: the slot is the allocator's.
    #[inline]
    pub(super) fn withhold(&self, slot: SwapSlot) -> bool {
        self.noted.load(Ordering::Relaxed) != 0 && self.withhold_noted(slot)
    }

    #[cold]
    fn withhold_noted(&self, slot: SwapSlot) -> bool {
        let mut slots = self.slots.lock();
        let Ok(at) = slots.noted.binary_search(&slot) else { return false };
        slots.noted.remove(at);
        slots.withheld.push(slot);
        self.noted.fetch_sub(1, Ordering::Relaxed);
        self.withheld.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Takes all withheld slots, for the allocator.
    #[cold]
    pub(super) fn take_all(&self) -> Vec<SwapSlot> {
        if self.withheld() == 0 {
            return Vec::new();
        }
        let taken = std::mem::take(&mut self.slots.lock().withheld);
        self.withheld.fetch_sub(taken.len() as u32, Ordering::Relaxed);
        taken
    }

    /// Returns how many slots are withheld.
    pub(super) fn withheld(&self) -> u32 {
        self.withheld.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_could_not_be_written_is_withheld_once_it_is_free() {
        let unwritable = Unwritable::default();
        assert!(!unwritable.withhold(SwapSlot(3)));
        [5, 3, 3].into_iter().for_each(|slot| unwritable.note(SwapSlot(slot)));
        assert!(!unwritable.withhold(SwapSlot(4)));
        assert!(unwritable.withhold(SwapSlot(3)));
        assert!(!unwritable.withhold(SwapSlot(3)), "once");
        assert_eq!(unwritable.withheld(), 1);
        assert_eq!(unwritable.take_all(), [SwapSlot(3)]);
        assert_eq!((unwritable.withheld(), unwritable.take_all()), (0, Vec::new()));
        assert!(unwritable.withhold(SwapSlot(5)), "it is still in use");
    }
}
