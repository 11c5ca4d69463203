//! Isolated frames: a reclaimer has taken them off the lists and pinned them.
//!
//! [`IsolatedFrame`] cannot be copied. A putback lists the frame again. [`IsolatedFrame::into_pin`] leaves
//! only the pin, and the frame stays off the LRU. [`Isolated`] is a batch of such frames that knows how many
//! pages it holds.

use smallvec::SmallVec;

use super::ISOLATED;
use crate::frame::{FrameAllocator, PinnedFrame};
use crate::units::FrameId;

/// A pinned frame, or head of a block, that its holder has taken off the lists.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an isolated frame has to be put back, or to go"]
pub(crate) struct IsolatedFrame(PinnedFrame);

impl IsolatedFrame {
    /// Makes an isolated frame from a pin. The caller has taken the frame off the lists, or it was never on
    /// one.
    pub(crate) fn new(pin: PinnedFrame) -> Self {
        Self(pin)
    }

    /// Takes over an isolated frame whose pin is already counted, if only its number was kept.
    pub(crate) fn counted(frame: FrameId) -> Self {
        Self(PinnedFrame::counted(frame))
    }

    /// Returns the frame's number.
    pub(crate) fn frame(&self) -> FrameId {
        self.0.frame()
    }

    /// Returns the frame's pin. The frame stays off the LRU.
    pub(crate) fn into_pin(self) -> PinnedFrame {
        self.0
    }

    /// Returns how many base pages the frame, or the block that it heads, has. While the block is isolated,
    /// no other thread splits it.
    pub(crate) fn pages(&self, frames: &FrameAllocator) -> u64 {
        u64::from(frames.words(self.frame()).order().frames())
    }
}

/// A batch of frames that were taken off the lists together.
#[derive(Debug, Default)]
pub(crate) struct Isolated {
    frames: SmallVec<[IsolatedFrame; ISOLATED]>,
    pages: u64,
}

impl Isolated {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn push(&mut self, frames: &FrameAllocator, frame: IsolatedFrame) {
        self.pages += frame.pages(frames);
        self.frames.push(frame);
    }

    /// Returns how many base pages the batch has. A block counts with all of its pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether the batch has as many frames as reclaim evicts together.
    pub(crate) fn is_full(&self) -> bool {
        self.frames.len() >= ISOLATED
    }
}

impl IntoIterator for Isolated {
    type Item = IsolatedFrame;
    type IntoIter = smallvec::IntoIter<[IsolatedFrame; ISOLATED]>;

    fn into_iter(self) -> Self::IntoIter {
        self.frames.into_iter()
    }
}
