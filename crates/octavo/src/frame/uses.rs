//! The use count of a frame: one for each page-table entry that shows it, and one more while a store keeps
//! its page.
//!
//! Uses and pins are separate: a use is a way to find the frame, while a pin means that a thread or device
//! works on the frame's bytes. The thread that removes the last use releases the frame
//! ([`super::HoldWord::release`]). While pins are left, the frame stays allocated, but nobody can find it. A
//! frame whose last use was removed never gets a use again. So a reclaimer that meets such a frame cannot
//! take it.

use crate::sync::{AtomicU32, Ordering};

/// The use count.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct UseCount(AtomicU32);

impl UseCount {
    /// Sets the first use of a fresh frame, which no other thread can reach. Costs one store.
    #[inline]
    pub(crate) fn set_first(&self) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), 0, "a fresh frame is not in use");
        // Relaxed: the entry, or the swap cache's lock, publishes the count.
        self.0.store(1, Ordering::Relaxed);
    }

    /// Adds a use, unless the last one is gone.
    pub(crate) fn try_add(&self) -> bool {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |uses| (uses != 0).then(|| uses + 1)).is_ok()
    }

    /// Removes a use, and returns how many are left. At zero, the caller releases the frame.
    #[inline]
    #[must_use = "the caller that takes the last use away releases the frame"]
    pub(crate) fn remove(&self) -> u32 {
        // AcqRel: the end of each use happens before the release that follows the last.
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before != 0, "a use was removed twice");
        before - 1
    }

    /// Removes the only use, if there is exactly one. From then on no thread can add another.
    pub(crate) fn take_only(&self) -> bool {
        // AcqRel: as in `remove`.
        self.0.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Undoes [`UseCount::take_only`].
    pub(crate) fn restore_only(&self) {
        // Release: a thread that then adds a use sees the work that was done before.
        self.0.store(1, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
