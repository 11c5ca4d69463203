//! The words of each frame: 32 bytes, half a cache line, in one array for the whole arena.
//!
//! | bytes | word | owner of its protocol |
//! |---|---|---|
//! | 0..4 | `state` | the allocator: who owns the frame ([`super::state`]) |
//! | 4..8 | `holds` | the user of the frame: pins, dirty, I/O ([`super::holds`]). Allocating and freeing never write this word |
//! | 8..16 | `next`, `prev` | buddy free lists while free; the LRU's lists while owned |
//! | 16..24 | `owner` | reverse map |
//! | 24..28 | `stored` | the page store that also keeps the page, and the page's index there ([`super::stored`]) |
//! | 28..32 | `uses` | the number of entries, and of page stores, that lead to the frame ([`super::uses`]) |

use std::ops::Index;

use crate::frame::holds::HoldWord;
use crate::frame::state::StateWord;
use crate::frame::stored::StoredWord;
use crate::frame::uses::UseCount;
use crate::sync::{AtomicU32, AtomicU64, WordArray};
use crate::units::{CHUNK_FRAMES, ChunkId, FrameId, Order};

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
    pub(crate) stored: StoredWord,
    pub(crate) uses: UseCount,
}

/// The words of all frames.
///
/// The heads of large blocks are powers of two apart, so their words would share a few sets of every cache.
/// Therefore frame `f` keeps its words at `f ^ (f >> 9)`. This is a bijection that maps chunks to chunks. By
/// it, the heads of consecutive chunks get different places in the 16 KiB of their chunk.
#[derive(Debug)]
pub(crate) struct FrameTable {
    words: WordArray<FrameWords>,
}

impl FrameTable {
    /// Makes words for frames below `end`.
    pub(crate) fn new(end: u32) -> std::io::Result<Self> {
        // The mapping is a bijection only on a power of two. Words that are never used cost only addresses.
        Ok(Self { words: WordArray::new(end.next_power_of_two() as usize)? })
    }

    /// Returns a frame's words, or `None` if the frame is outside the arena.
    #[inline]
    pub(crate) fn get(&self, frame: FrameId) -> Option<&FrameWords> {
        self.words.get(Self::place(frame))
    }

    /// Makes the words of one chunk present.
    pub(crate) fn populate(&self, chunk: ChunkId) -> std::io::Result<()> {
        let first = Self::place(chunk.first()) & !(CHUNK_FRAMES as usize - 1);
        self.words.populate(first..first + CHUNK_FRAMES as usize)
    }

    /// Returns the words of a chunk's frames, in the order of the frames.
    pub(crate) fn of_chunk(&self, chunk: ChunkId) -> impl Iterator<Item = &FrameWords> {
        (0..CHUNK_FRAMES).map(move |at| &self[chunk.first().plus(at)])
    }

    #[inline]
    fn place(frame: FrameId) -> usize {
        (frame.0 ^ (frame.0 >> Order::MAX.0)) as usize
    }
}

impl Index<FrameId> for FrameTable {
    type Output = FrameWords;

    #[inline]
    fn index(&self, frame: FrameId) -> &FrameWords {
        &self.words[Self::place(frame)]
    }
}

impl FrameWords {
    /// Returns the order of the allocated block that this frame heads. The caller makes sure that nobody
    /// frees the block meanwhile.
    #[inline]
    pub(crate) fn order(&self) -> Order {
        self.state.load().order()
    }
}

/// Bytes of frame words that come with each chunk.
pub(crate) const WORDS_BYTES_PER_CHUNK: u64 = 32 * CHUNK_FRAMES as u64;

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameWords>() == 32);
