//! The use count of a frame: how many page-table entries show it, plus one while it is in the swap cache.
//!
//! Apart from pins: a use is a way to find the frame, a pin is someone at work on its bytes. The one who takes
//! the last use away releases the frame ([`super::HoldWord::release`]); while pins are left it lives on,
//! unreachable. A frame with no use left gets none again, so a reclaimer that met it just before its end is refused.

use crate::sync::{AtomicU32, Ordering};

/// The count.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(transparent)]
pub(crate) struct UseCount(AtomicU32);

impl UseCount {
    /// The first use of a fresh frame that nobody else can reach. One store.
    #[inline]
    pub(crate) fn set_first(&self) {
        debug_assert_eq!(self.0.load(Ordering::Relaxed), 0, "a fresh frame is not in use");
        // Relaxed: published by the entry, or the swap cache's lock.
        self.0.store(1, Ordering::Relaxed);
    }

    /// One more use, unless the last is gone already.
    pub(crate) fn try_add(&self) -> bool {
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |uses| (uses != 0).then(|| uses + 1)).is_ok()
    }

    /// One use less; says how many are left. Zero: the caller releases the frame.
    #[inline]
    #[must_use = "whoever takes the last use away releases the frame"]
    pub(crate) fn remove(&self) -> u32 {
        // AcqRel: each use's end happens before the release that follows the last.
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before != 0, "a use was removed twice");
        before - 1
    }

    /// Takes the only use away, if it is the only one. From then on nobody can add another.
    pub(crate) fn take_only(&self) -> bool {
        // AcqRel: as `remove`.
        self.0.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes [`UseCount::take_only`] back.
    pub(crate) fn restore_only(&self) {
        // Release: whoever adds a use finds what was done before.
        self.0.store(1, Ordering::Release);
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}
