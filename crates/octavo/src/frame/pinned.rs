//! A pin in hand: a frame that stays where it is until its holder gives it back.
//!
//! [`PinnedFrame`] cannot be copied. Whoever has one hands it on, or ends it: [`PinnedFrame::unpin`] drops the pin, and
//! [`PinnedFrame::into_frame`] leaves the pin counted for someone who keeps only the frame's number, as a transfer does in the
//! chain of its frames. One that is dropped instead is a leak, and a panic where assertions are on.
//!
//! Cost: none; it is the frame's number.

use crate::frame::FrameWords;
use crate::frame::holds::{Dropped, Holds};
use crate::units::FrameId;

/// A frame on which the holder has a pin.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a pin has to be given back"]
pub(crate) struct PinnedFrame(FrameId);

impl PinnedFrame {
    /// Pins a frame, whatever it is, and says what it was. The caller then asks whether it still is what was looked for.
    #[inline(always)]
    pub(crate) fn take(frame: FrameId, words: &FrameWords) -> (Self, Holds) {
        (Self(frame), words.holds.take_pin())
    }

    /// Takes a pin over that was counted before, and that nobody else drops.
    #[inline]
    pub(crate) fn counted(frame: FrameId) -> Self {
        Self(frame)
    }

    /// The frame's number.
    #[inline]
    pub(crate) fn frame(&self) -> FrameId {
        self.0
    }

    /// Leaves the pin counted: whoever gets the number drops it, by [`PinnedFrame::counted`].
    #[inline]
    pub(crate) fn into_frame(self) -> FrameId {
        let frame = self.0;
        std::mem::forget(self);
        frame
    }

    /// Drops the pin.
    #[inline(always)]
    pub(crate) fn unpin(self, words: &FrameWords) -> Dropped {
        self.into_frame();
        words.holds.drop_pin()
    }
}

#[cfg(debug_assertions)]
impl Drop for PinnedFrame {
    fn drop(&mut self) {
        // A thread that panics already would end the process here, and hide why.
        assert!(crate::sync::is_panicking(), "the pin on {:?} was lost", self.0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_given_back_once() {
        let words = FrameWords::default();
        words.holds.begin(true);
        let (pin, _) = PinnedFrame::take(FrameId(7), &words);
        let again = PinnedFrame::counted(pin.into_frame());
        assert_eq!((again.frame(), words.holds.load().pins()), (FrameId(7), 1));
        assert_eq!(again.unpin(&words), Dropped::Kept);
        assert_eq!(words.holds.load().pins(), 0);
    }

    #[test]
    #[should_panic(expected = "was lost")]
    fn a_pin_that_is_lost_is_noticed() {
        drop(PinnedFrame::counted(FrameId(7)));
    }
}
