//! Frames in a reclaimer's hand: off the lists, and pinned.
//!
//! [`IsolatedFrame`] cannot be copied. It ends by a putback, which lists the frame again, or leaves the LRU as a mere pin
//! ([`IsolatedFrame::into_pin`]) on its way to be freed. [`Isolated`] is a batch of them that knows how many pages it holds.

use smallvec::SmallVec;

use super::ISOLATED;
use crate::frame::{FrameAllocator, PinnedFrame};
use crate::units::FrameId;

/// A frame, or the head of a block, that its holder has taken off the lists.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an isolated frame has to be put back, or to go"]
pub(crate) struct IsolatedFrame(PinnedFrame);

impl IsolatedFrame {
    /// A pinned frame that the caller has taken off the lists, or that was never on one.
    pub(crate) fn new(pin: PinnedFrame) -> Self {
        Self(pin)
    }

    /// Takes a frame over of which a transfer kept only the number.
    pub(crate) fn counted(frame: FrameId) -> Self {
        Self(PinnedFrame::counted(frame))
    }

    /// The frame's number.
    pub(crate) fn frame(&self) -> FrameId {
        self.0.frame()
    }

    /// The frame leaves the LRU; its pin is left.
    pub(crate) fn into_pin(self) -> PinnedFrame {
        self.0
    }

    /// Base pages of the frame, or of the block that it heads. While it is in hand nobody else splits it.
    pub(crate) fn pages(&self, frames: &FrameAllocator) -> u64 {
        u64::from(frames.words(self.frame()).order().frames())
    }
}

/// Frames taken off the lists together.
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

    /// Base pages in hand: a block counts all of its own.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether as many frames are in hand as are moved together.
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
