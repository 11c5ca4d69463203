//! A pin, as a value: the frame stays where it is until the holder gives the pin back.
//!
//! [`PinnedFrame`] cannot be copied. Its holder passes it on or ends it. [`PinnedFrame::unpin`] drops the
//! pin. [`PinnedFrame::into_frame`] leaves the pin counted for a holder that keeps only the frame's number. A
//! transfer does so for the frames in its chain. Dropping the value leaks the pin, and panics if debug
//! assertions are on.
//!
//! Cost: none. The value is the frame's number.

use crate::frame::FrameWords;
use crate::frame::holds::{Dropped, Holds};
use crate::units::FrameId;

/// A frame on which the holder has a pin.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a pin has to be given back"]
pub(crate) struct PinnedFrame(FrameId);

impl PinnedFrame {
    /// Pins a frame in any state, and returns its holds as they were. The caller then checks whether this is
    /// still the frame that it looked for.
    #[inline(always)]
    pub(crate) fn take(frame: FrameId, words: &FrameWords) -> (Self, Holds) {
        (Self(frame), words.holds.take_pin())
    }

    /// Takes over a pin that is already counted, and that no other thread drops.
    #[inline]
    pub(crate) fn counted(frame: FrameId) -> Self {
        Self(frame)
    }

    /// Returns the frame's number.
    #[inline]
    pub(crate) fn frame(&self) -> FrameId {
        self.0
    }

    /// Leaves the pin counted. A holder of the number drops the pin, through [`PinnedFrame::counted`].
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
        // In a thread that already panics, a second panic would end the process here and hide the first.
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
