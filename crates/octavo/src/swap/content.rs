//! The content of a swap slot: one word.
//!
//! ```text
//!  63 ................. 32 31 ...... 3 2 . 0
//! +-----------------------+-----------+-----+
//! |                     0             |  0  |  None: nothing was written yet
//! |      CRC-32C          |     0     |  1  |  Device: the page is on its area
//! +-----------------------+-----------+-----+
//! |            handle, 61 bits        |  2  |  Pool: the page is in the compressed pool
//! |                                   |  6  |  the same, and on its area as well
//! +-----------------------------------+-----+
//! |       word, sign in bit 63        |  3  |  Same, small: the page repeats a word that 61 bits tell
//! |          word >> 3                |  4  |  Same, round: its low three bits are 0 (most floating point)
//! +-----------------------+-----------+-----+
//! |        half           |     0     |  5  |  Same, twice: both halves are equal (bytes, 32-bit words)
//! +-----------------------+-----------+-----+
//! ```
//!
//! A repeated word has exactly one encoding: the first that fits. The few words that no encoding fits cannot
//! be Same. The swap cache keeps the content of each slot, and says which thread may change it when. This
//! file owns the bits of a content.

use crate::frame::FrameAllocator;
use crate::swap::pool::Handle;
use crate::units::{FrameId, PAGE_BYTES};

const KIND: u64 = 7;
const NONE: u64 = 0;
const DEVICE: u64 = 1;
const POOL: u64 = 2;
const SAME_SMALL: u64 = 3;
const SAME_ROUND: u64 = 4;
const SAME_TWICE: u64 = 5;
const POOL_COPY: u64 = 6;

/// The content of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Content {
    /// Nothing yet.
    #[default]
    None,
    /// The page is on its area. If the page is sealed, the checksum is 0, and the tag of the page is checked
    /// instead.
    Device {
        /// CRC-32C of the page.
        crc: u32,
    },
    /// The page repeats a word that [`Content::same`] accepts. Nothing else is kept.
    Same {
        /// The word.
        word: u64,
    },
    /// The page is in the compressed pool.
    Pool {
        /// The page's object in the pool.
        handle: Handle,
        /// The object is a copy: the page is on its area as well.
        is_copy: bool,
    },
}

impl Content {
    /// The content of a page that repeats `word`, or `None` for the few words that do not fit. Their pages
    /// are written like any other page.
    #[inline]
    pub(crate) fn same(word: u64) -> Option<Self> {
        encode_same(word).map(|_| Self::Same { word })
    }

    /// Encodes the content.
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        match self {
            Self::None => NONE,
            Self::Device { crc } => u64::from(crc) << 32 | DEVICE,
            Self::Same { word } => encode_same(word).expect("a word that Content::same took"),
            Self::Pool { handle, is_copy } => handle.bits() << 3 | if is_copy { POOL_COPY } else { POOL },
        }
    }

    /// Decodes a content.
    ///
    /// # Panics
    /// For a word that [`Content::to_word`] never made.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        match word & KIND {
            NONE if word == 0 => Self::None,
            DEVICE => Self::Device { crc: (word >> 32) as u32 },
            kind @ (POOL | POOL_COPY) => {
                Self::Pool { handle: Handle::from_bits(word >> 3), is_copy: kind == POOL_COPY }
            }
            SAME_SMALL => Self::Same { word: (word as i64 >> 3) as u64 },
            SAME_ROUND => Self::Same { word: word & !KIND },
            SAME_TWICE => Self::Same { word: word >> 32 << 32 | word >> 32 },
            _ => panic!("{word:#x} is no content of a slot"),
        }
    }
}

#[inline]
fn encode_same(word: u64) -> Option<u64> {
    if (((word << 3) as i64) >> 3) as u64 == word {
        return Some(word << 3 | SAME_SMALL);
    }
    if word & KIND == 0 {
        return Some(word | SAME_ROUND);
    }
    (word >> 32 == word & 0xffff_ffff).then_some(word >> 32 << 32 | SAME_TWICE)
}

/// The bytes of a page are not the bytes that were kept. The access gets an error of kind `Corrupt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// Returns the word that a frame repeats, if there is one. For an ordinary page, this takes a few
/// nanoseconds.
#[inline]
pub(crate) fn same_filled(frames: &FrameAllocator, frame: FrameId) -> Option<u64> {
    frames.bytes().repeated_word(frame.home_offset(), PAGE_BYTES)
}

/// Fills a frame with the word that a [`Content::Same`] names.
pub(crate) fn fill(frames: &FrameAllocator, frame: FrameId, word: u64) {
    frames.bytes().fill(frame.home_offset(), PAGE_BYTES, word);
}

/// CRC-32C of a frame's bytes, read in place if possible.
pub(crate) fn page_crc(frames: &FrameAllocator, frame: FrameId) -> u32 {
    let in_place = frames.bytes().page_crc32c(frame.home_offset());
    in_place.unwrap_or_else(|| frames.bytes().with_copy(frame.home_offset(), PAGE_BYTES, crc32c::crc32c))
}

/// Checks that a frame's bytes have this checksum.
pub(crate) fn check(frames: &FrameAllocator, frame: FrameId, crc: u32) -> Result<(), Corrupt> {
    if page_crc(frames, frame) == crc { Ok(()) } else { Err(Corrupt) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_that_pages_are_made_of_are_told() {
        let floats = [1.0_f64, -1.0, 0.5, 1e6, -256.0].map(f64::to_bits);
        let others =
            [0, 1, u64::MAX, u64::MAX - 1, 0xcccc_cccc_cccc_cccc, 0x3f80_0000_3f80_0000, 1 << 60, 1 << 63];
        for word in floats.into_iter().chain(others) {
            let content = Content::same(word).expect("the word fits");
            assert_eq!(Content::from_word(content.to_word()), content);
            assert_ne!(content.to_word(), 0, "not to be taken for None");
        }
        assert_eq!(Content::same(0xbfb9_9999_9999_999a), None);
    }

    #[test]
    fn a_checksum_is_the_same_in_place_and_in_a_copy() {
        let config = crate::frame::FrameConfig::one_zone(4 << 20, crate::frame::Backing::BasePages);
        let frames = FrameAllocator::standalone(&config, 8 << 20).unwrap();
        let frame = frames.alloc(crate::units::Order::ZERO).unwrap().into_frame();
        let bytes: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
        frames.bytes().copy_in(frame.home_offset(), &bytes);
        assert_eq!(page_crc(&frames, frame), crc32c::crc32c(&bytes));
        assert_eq!(check(&frames, frame, crc32c::crc32c(&bytes)), Ok(()));
        frames.bytes().store(frame.home_offset() + 4095, 0_u8);
        assert_eq!(check(&frames, frame, crc32c::crc32c(&bytes)), Err(Corrupt));
    }

    proptest! {
        #[test]
        fn what_is_told_comes_back(word: u64, bits in 0..1u64 << 61, crc: u32, shift in 0..64u32) {
            for word in [word, word >> shift, word << shift, !(word >> shift), u64::from(crc) << 32 | u64::from(crc)] {
                if let Some(content) = Content::same(word) {
                    prop_assert_eq!(content, Content::Same { word });
                    prop_assert_eq!(Content::from_word(content.to_word()), content);
                }
            }
            let handle = Handle::from_bits(bits);
            let pool = [false, true].map(|is_copy| Content::Pool { handle, is_copy });
            for content in [Content::None, Content::Device { crc }].into_iter().chain(pool) {
                prop_assert_eq!(Content::from_word(content.to_word()), content);
            }
        }
    }
}
