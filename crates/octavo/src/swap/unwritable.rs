//! Slots that could not be written, and are not given out again while there are others.
//!
//! A file on a full file system takes pages where it has room already, and fails wherever it had to grow. Which places
//! those are only the failure tells. So a slot whose write failed, and that nothing leads to any more, is kept from
//! the allocator until that has none left, or too many are kept.
//!
//! Locking: one lock, taken with no other held, and only where a write has failed.

use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::units::SwapSlot;

#[derive(Debug, Default)]
pub(super) struct Unwritable {
    slots: Mutex<Slots>,
    /// Those that are noted, for the many times that there are none.
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
    /// The slot could not be written just now.
    #[cold]
    pub(super) fn note(&self, slot: SwapSlot) {
        let mut slots = self.slots.lock();
        if let Err(at) = slots.noted.binary_search(&slot) {
            slots.noted.insert(at, slot);
            // Relaxed: whoever frees the slot comes after its writer, by the frame's holds.
            self.noted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Keeps a slot that became free, if it could not be written. False: it is the allocator's.
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

    /// All that is withheld, for the allocator.
    #[cold]
    pub(super) fn take_all(&self) -> Vec<SwapSlot> {
        if self.withheld() == 0 {
            return Vec::new();
        }
        let taken = std::mem::take(&mut self.slots.lock().withheld);
        self.withheld.fetch_sub(taken.len() as u32, Ordering::Relaxed);
        taken
    }

    /// How many slots are withheld.
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
