//! The words of a slot: 16 bytes.
//!
//! ```text
//! frame word          references    the slot is
//! 0                   0             free
//! RESERVED            0             allocated, its frame not inserted yet
//! a frame             n             cached: the frame has its bytes (or will, once read)
//! 0, or a shadow      n > 0         out: `content` says where
//! ```
//!
//! In the tree forms, the tree holds frames and shadows, and this word is only 0 or RESERVED. `references`
//! counts the entries that say Swapped to the slot. `content` says where the page's bytes are, and how to
//! check them. This file does not interpret `content`.

use crate::frame::FrameWords;
use crate::mapping::PageWord;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::SwapSlot;

/// The words of one slot.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C)]
pub(crate) struct SlotWords {
    frame: AtomicU32,
    references: AtomicU32,
    content: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<SlotWords>() == 16);

impl SlotWords {
    /// Acquire: pairs with `set_frame`. A thread that finds a frame here also sees what was noted in the
    /// frame's words before.
    #[inline]
    pub(super) fn frame(&self) -> PageWord {
        PageWord::from_bits(self.frame.load(Ordering::Acquire))
    }

    /// Called under the slot's lock, or by the only thread that has the slot.
    #[inline]
    pub(super) fn set_frame(&self, word: PageWord) {
        self.frame.store(word.bits(), Ordering::Release);
    }

    // References change only under the slot's lock. So Relaxed is enough, without a read-modify-write.

    #[inline]
    pub(super) fn references(&self) -> u32 {
        self.references.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn set_references(&self, references: u32) {
        self.references.store(references, Ordering::Relaxed);
    }

    // The content is set under WRITEBACK, and a thread that brings the page in reads it: between the two lies
    // the cache's lock. The orderings are for threads that read or change the content without the lock.

    #[inline]
    pub(super) fn content(&self) -> u64 {
        self.content.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn swap_content(&self, content: u64) -> u64 {
        self.content.swap(content, Ordering::AcqRel)
    }

    /// Replaces the content if it is `from`. Returns false if it has changed.
    pub(super) fn change_content(&self, from: u64, to: u64) -> bool {
        // The orderings are explained in `swap_content`.
        self.content.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The slot of a frame of the cache. Exact under the slot's lock; otherwise only a hint.
#[inline]
pub(crate) fn slot_of(words: &FrameWords) -> Option<SwapSlot> {
    words.stored.page().and_then(SwapSlot::of)
}

/// Sets the slot in a frame's words. Called under the slot's lock.
#[inline]
pub(super) fn set_slot(words: &FrameWords, slot: Option<SwapSlot>) {
    words.stored.set(slot.map(SwapSlot::stored));
}
