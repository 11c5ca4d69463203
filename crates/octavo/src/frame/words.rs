//! The words kept for each frame: 32 bytes, half a cache line, in one array for the whole arena.
//!
//! | bytes | word | owner of its protocol |
//! |---|---|---|
//! | 0..4 | `state` | the allocator: who owns the frame ([`super::state`]) |
//! | 4..8 | `holds` | its user: pins and dirt ([`super::holds`]); allocating and freeing never write it |
//! | 8..16 | `next`, `prev` | buddy free lists while free; the LRU's lists while owned |
//! | 16..24 | `owner` | reverse map |
//! | 24..28 | `slot` | swap slot |
//! | 28..32 | `uses` | entries, and the swap cache, that lead to it ([`super::uses`]) |

use crate::frame::holds::HoldWord;
use crate::frame::state::StateWord;
use crate::frame::uses::UseCount;
use crate::sync::{AtomicU32, AtomicU64};

/// The words of one frame.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C, align(32))]
pub(crate) struct FrameWords {
    pub(crate) state: StateWord,
    pub(crate) holds: HoldWord,
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
    pub(crate) owner: AtomicU64,
    pub(crate) slot: AtomicU32,
    pub(crate) uses: UseCount,
}

/// Bytes of frame words that come with each chunk.
pub(crate) const WORDS_BYTES_PER_CHUNK: u64 = 32 * crate::units::CHUNK_FRAMES as u64;

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameWords>() == 32);
