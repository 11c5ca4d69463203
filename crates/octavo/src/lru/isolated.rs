//! Frames in a reclaimer's hand: they are off the lists, and pinned.
//!
//! [`IsolatedFrame`] cannot be copied. A putback lists the frame again. [`IsolatedFrame::into_pin`] takes the
//! frame off the LRU for good, and leaves a mere pin on its way to be freed. [`Isolated`] is a batch of such
//! frames that knows how many pages it holds.

use smallvec::SmallVec;

use super::ISOLATED;
use crate::frame::{FrameAllocator, PinnedFrame};
use crate::units::FrameId;

/// A frame, or the head of a block, that its holder has taken off the lists.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an isolated frame has to be put back, or to go"]
pub(crate) struct IsolatedFrame(PinnedFrame);

impl IsolatedFrame {
    /// Makes an isolated frame of a pin. The caller has taken the frame off the lists, or the frame was never
    /// on one.
    pub(crate) fn new(pin: PinnedFrame) -> Self {
        Self(pin)
    }

    /// Takes over a frame of which a transfer kept only the number.
    pub(crate) fn counted(frame: FrameId) -> Self {
        Self(PinnedFrame::counted(frame))
    }

    /// Returns the frame's number.
    pub(crate) fn frame(&self) -> FrameId {
        self.0.frame()
    }

    /// Takes the frame off the LRU for good, and returns its pin.
    pub(crate) fn into_pin(self) -> PinnedFrame {
        self.0
    }

    /// Returns the base pages of the frame, or of the block that it heads. While the block is in hand, no
    /// other thread splits it.
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

    /// Returns the base pages in hand. A block counts with all of its pages.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns whether the batch has as many frames as reclaim moves together.
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
