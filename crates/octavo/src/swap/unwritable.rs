//! Slots that could not be written. They are withheld for a while, then tried again.
//!
//! On a full file system, a file takes pages at places that it already has, and fails at places for which it
//! must grow. Only a failed write shows which places these are. So a slot whose write failed is withheld from
//! the allocator as soon as it is free, until the allocator has no other slots left. If too many slots are
//! withheld, some are tried again before the file grows: only as many as one caller asks for. Otherwise, the
//! withheld slots would displace slots that have room in the file.
//!
//! Locking: one lock. It is taken only if a write has failed, and without any other lock.

use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::units::SwapSlot;

#[derive(Debug)]
pub(super) struct Unwritable {
    slots: Mutex<UnwritableSlots>,
    /// The number of noted slots. It is usually zero.
    noted: AtomicU32,
    /// The number of withheld slots of each area.
    withheld: Box<[AtomicU32]>,
}

#[derive(Debug, Default)]
struct UnwritableSlots {
    /// The slots that are still in use, sorted.
    noted: Vec<SwapSlot>,
    withheld: Vec<SwapSlot>,
}

impl Unwritable {
    pub(super) fn new(areas: usize) -> Self {
        let withheld = (0..areas).map(|_| AtomicU32::new(0)).collect();
        Self { slots: Mutex::default(), noted: AtomicU32::new(0), withheld }
    }

    /// Notes a slot whose write has just failed.
    #[cold]
    pub(super) fn note(&self, slot: SwapSlot) {
        let mut slots = self.slots.lock();
        if let Err(at) = slots.noted.binary_search(&slot) {
            slots.noted.insert(at, slot);
            // Relaxed: because of the frame's holds, a thread that frees the slot comes after the thread that
            // wrote to it.
            self.noted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Withholds a slot that became free, if its write failed. Otherwise, returns false, and the slot goes to
    /// the allocator. `area_of` returns the area of a slot.
    #[inline]
    pub(super) fn withhold(&self, slot: SwapSlot, area_of: impl Fn(SwapSlot) -> usize) -> bool {
        self.noted.load(Ordering::Relaxed) != 0 && self.withhold_noted(slot, area_of)
    }

    #[cold]
    fn withhold_noted(&self, slot: SwapSlot, area_of: impl Fn(SwapSlot) -> usize) -> bool {
        let mut slots = self.slots.lock();
        let Ok(at) = slots.noted.binary_search(&slot) else { return false };
        slots.noted.remove(at);
        slots.withheld.push(slot);
        self.noted.fetch_sub(1, Ordering::Relaxed);
        self.withheld[area_of(slot)].fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Gives up to `count` withheld slots of the chosen areas to the allocator, the oldest first, each by a
    /// call of `free`. Returns whether there were such slots.
    #[cold]
    pub(super) fn give_back(
        &self,
        count: usize,
        is_asked: impl Fn(usize) -> bool,
        free: impl Fn(SwapSlot),
        area_of: impl Fn(SwapSlot) -> usize,
    ) -> bool {
        if self.withheld() == 0 {
            return false;
        }
        let is_wanted = |slot: &mut SwapSlot| is_asked(area_of(*slot));
        let taken: Vec<_> = self.slots.lock().withheld.extract_if(.., is_wanted).take(count).collect();
        for slot in &taken {
            free(*slot);
            // The slot is counted last: until then, its area must not seem full.
            self.withheld[area_of(*slot)].fetch_sub(1, Ordering::Relaxed);
        }
        !taken.is_empty()
    }

    /// Returns how many slots are withheld.
    pub(super) fn withheld(&self) -> u32 {
        self.withheld.iter().map(|area| area.load(Ordering::Relaxed)).sum()
    }

    /// Returns how many slots of one area are withheld.
    pub(super) fn withheld_of(&self, area: usize) -> u32 {
        self.withheld[area].load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Returns the area of a slot. Each area has ten slots.
    fn area_of(slot: SwapSlot) -> usize {
        slot.0 as usize / 10
    }

    #[test]
    fn a_slot_that_could_not_be_written_is_withheld_once_it_is_free() {
        let unwritable = Unwritable::new(2);
        let withhold = |slot| unwritable.withhold(SwapSlot(slot), area_of);
        assert!(!withhold(13));
        [15, 13, 13, 4].into_iter().for_each(|slot| unwritable.note(SwapSlot(slot)));
        assert!(!withhold(14));
        assert!(withhold(13) && withhold(4));
        assert!(!withhold(13), "once");
        let counts = || (unwritable.withheld(), unwritable.withheld_of(0), unwritable.withheld_of(1));
        assert_eq!(counts(), (2, 1, 1));
        let given = std::cell::RefCell::new(Vec::new());
        let give_back_of = |count, areas: [bool; 2]| {
            unwritable.give_back(count, |area| areas[area], |slot| given.borrow_mut().push(slot), area_of)
        };
        let give_back = |count| give_back_of(count, [true, true]);
        assert!(!give_back_of(5, [false, false]) && give_back_of(5, [false, true]));
        assert_eq!((&**given.borrow(), counts()), (&[SwapSlot(13)][..], (1, 1, 0)));
        assert!(give_back(5));
        assert_eq!(*given.borrow(), [SwapSlot(13), SwapSlot(4)]);
        assert_eq!((counts(), give_back(5)), ((0, 0, 0), false));
        assert!(withhold(15), "it is still in use");
        assert_eq!(counts(), (1, 0, 1));
    }
}
