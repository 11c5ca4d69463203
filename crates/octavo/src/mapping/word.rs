//! The word of an index: the page's frame, or the shadow that the page left behind.
//!
//! ```text
//!  31   30 ... 24   23 ... 0
//! +----+---------------------+
//! | 0  |     frame + 1       |   the page has a frame
//! +----+----------+----------+
//! | 1  |    0     |  shadow  |   the page was evicted; the policy's shadow says when
//! +----+----------+----------+
//! | all ones                 |   reserved: the index is in use, but has no page now
//! +--------------------------+
//!   0: nothing
//! ```

use crate::policy::Shadow;
use crate::units::FrameId;

/// The word is a shadow. No shadow has all of the other bits set, so `RESERVED` is not a shadow.
const SHADOW: u32 = 1 << 31;

/// The word of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageWord(u32);

/// The meaning of a [`PageWord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    Nothing,
    Reserved,
    Frame(FrameId),
    Shadow(Shadow),
}

impl PageWord {
    pub(crate) const NOTHING: Self = Self(0);
    pub(crate) const RESERVED: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn frame(frame: FrameId) -> Self {
        debug_assert!(frame.0 < SHADOW - 1, "frame numbers have 31 bits");
        Self(frame.0 + 1)
    }

    /// Makes the word that an evicted page leaves: a shadow, or nothing.
    pub(crate) fn left(shadow: Option<Shadow>) -> Self {
        shadow.map_or(Self::NOTHING, |shadow| Self(SHADOW | shadow.bits()))
    }

    #[inline]
    pub(crate) fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    #[inline]
    pub(crate) fn meaning(self) -> Meaning {
        match self {
            Self::NOTHING => Meaning::Nothing,
            Self::RESERVED => Meaning::Reserved,
            Self(bits) if bits & SHADOW == 0 => Meaning::Frame(FrameId(bits - 1)),
            Self(bits) => {
                Meaning::Shadow(Shadow::from_bits(bits & !SHADOW).expect("the word was made of a shadow"))
            }
        }
    }

    /// Returns the frame, if the word names one.
    #[inline]
    pub(crate) fn as_frame(self) -> Option<FrameId> {
        match self.meaning() {
            Meaning::Frame(frame) => Some(frame),
            _ => None,
        }
    }

    /// Returns the shadow, if the word is one.
    pub(crate) fn as_shadow(self) -> Option<Shadow> {
        match self.meaning() {
            Meaning::Shadow(shadow) => Some(shadow),
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_meaning_comes_back_as_it_was_put_in() {
        for frame in [FrameId(0), FrameId(7), FrameId((1 << 31) - 3)] {
            assert_eq!(PageWord::frame(frame).meaning(), Meaning::Frame(frame));
        }
        for bits in [1, 77, (1 << Shadow::BITS) - 1] {
            let shadow = Shadow::from_bits(bits).unwrap();
            assert_eq!(PageWord::left(Some(shadow)).meaning(), Meaning::Shadow(shadow));
        }
        assert_eq!(PageWord::left(None).meaning(), Meaning::Nothing);
        assert_eq!(PageWord::RESERVED.meaning(), Meaning::Reserved);
    }
}
