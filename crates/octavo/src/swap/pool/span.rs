//! The words of one span.
//!
//! A span belongs to one class, from the moment it gets memory until its last object is freed. The lock of
//! its class guards its words ([`spans`](super::spans)). Without this lock, the words are only hints.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::FrameId;

/// The number that names no span.
pub(super) const NO_SPAN: u32 = u32::MAX;
/// The number of words of a span's map of objects.
const MAP_WORDS: usize = 4;
/// The class of a span that has none.
pub(super) const NO_CLASS: u32 = 0;
pub(super) const LISTED: u32 = 1;
pub(super) const DRAINING: u32 = 2;

/// The words of a span: two cache lines. All accesses are relaxed, since the locks order them.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C, align(64))]
pub(super) struct SpanWords {
    /// The span's first frame.
    pub(super) place: AtomicU32,
    /// The index of the block in which the span lies.
    pub(super) block: AtomicU32,
    /// The class + 1.
    pub(super) class: AtomicU32,
    pub(super) used: AtomicU32,
    /// Neighbours in the class's list of spans with room. `next` links free names too.
    pub(super) next: AtomicU32,
    pub(super) prev: AtomicU32,
    pub(super) flags: AtomicU32,
    /// The mean time at which the span's objects were stored, by the clock of stores.
    pub(super) age: AtomicU64,
    pub(super) taken: [AtomicU64; MAP_WORDS],
}

pub(super) fn get(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

pub(super) fn set(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

impl SpanWords {
    pub(super) fn place(&self) -> FrameId {
        FrameId(get(&self.place))
    }

    pub(super) fn set_place(&self, frame: FrameId) {
        set(&self.place, frame.0);
    }

    /// The class that the span was in a moment ago.
    pub(super) fn class(&self) -> Option<usize> {
        get(&self.class).checked_sub(NO_CLASS + 1).map(|class| class as usize)
    }

    pub(super) fn used(&self) -> u32 {
        get(&self.used)
    }

    pub(super) fn age(&self) -> u64 {
        self.age.load(Ordering::Relaxed)
    }

    /// Returns whether the span was in a class, and was not being emptied, a moment ago.
    pub(super) fn is_settled(&self) -> bool {
        self.class().is_some() && !self.is(DRAINING)
    }

    pub(super) fn is(&self, flag: u32) -> bool {
        get(&self.flags) & flag != 0
    }

    pub(super) fn mark(&self, flag: u32, on: bool) {
        set(&self.flags, get(&self.flags) & !flag | if on { flag } else { 0 });
    }

    pub(super) fn is_taken(&self, object: u32) -> bool {
        self.taken[object as usize / 64].load(Ordering::Relaxed) >> (object % 64) & 1 != 0
    }

    pub(super) fn flip(&self, object: u32) {
        let word = &self.taken[object as usize / 64];
        word.store(word.load(Ordering::Relaxed) ^ 1 << (object % 64), Ordering::Relaxed);
    }

    pub(super) fn first_free(&self) -> Option<u32> {
        let words = self.taken.iter().map(|word| !word.load(Ordering::Relaxed));
        words.zip(0..).find(|&(free, _)| free != 0).map(|(free, at)| at * 64 + free.trailing_zeros())
    }
}
