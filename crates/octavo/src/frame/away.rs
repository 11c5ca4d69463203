//! Away frames: numbers, words and owners for pages whose bytes lie outside the arena.
//!
//! A page of a space with a translation may have its bytes on the translation's side, for instance in another
//! process. An away frame then stands for the page. Its number lies after the arena's last frame. An away
//! frame has words like any frame, so the reverse map, the LRU, pins and uses work as usual. It has no bytes
//! in the arena.
//!
//! ```text
//!   0 ............ end of the zones        the away zone
//!  +----------------------------------+---------------------------+
//!  |  frames with memory, by chunks   |  numbers, words, no bytes |   charged to the budget page by page
//!  +----------------------------------+---------------------------+
//! ```
//!
//! An allocated away block carries the mark ISOLATING, which sends its free past the per-CPU lists to this
//! zone. So away frames do not make the free of an ordinary frame slower.
//!
//! A page that came from a page store may keep its place in the store while it is clean. [`AwayFrames::kept`]
//! names the place, and the frame holds a reference to it. Two threads may read and change this word: the
//! thread that holds the page's entry busy and, after the last hold, the thread that frees the frame.
//!
//! Locking: one lock over the free lists, a leaf. An allocation or a free costs the lock, and one
//! read-modify-write of the budget.

use crate::frame::buddy::{Buddy, Shelf};
use crate::frame::state::Kind;
use crate::frame::stored::StoredWord;
use crate::frame::words::WORDS_BYTES_PER_CHUNK;
use crate::frame::zone::Arena;
use crate::sync::{AtomicU32, Mutex, Ordering, WordArray};
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, ChunkId, FrameId, Order};

/// Bytes of the words of one chunk of away frames.
const CHUNK_WORDS_BYTES: u64 = WORDS_BYTES_PER_CHUNK + 4 * CHUNK_FRAMES as u64;

/// The away zone.
#[derive(Debug)]
pub(crate) struct AwayFrames {
    first: FrameId,
    chunks: u32,
    /// For each frame: the place in a page store that its clean page keeps.
    kept: WordArray<StoredWord>,
    free: Mutex<Free>,
    used_frames: AtomicU32,
}

#[derive(Debug)]
struct Free {
    buddy: Buddy,
    /// Chunks whose words are charged.
    reached: u32,
}

impl AwayFrames {
    /// Makes a zone of `chunks` chunks, whose numbers begin at `first`.
    ///
    /// # Errors
    /// The kernel's error, if the address space is exhausted.
    pub(crate) fn new(first: FrameId, chunks: u32) -> std::io::Result<Self> {
        Ok(Self {
            first,
            chunks,
            kept: WordArray::new((chunks * CHUNK_FRAMES) as usize)?,
            free: Mutex::new(Free { buddy: Buddy::new(), reached: 0 }),
            used_frames: AtomicU32::new(0),
        })
    }

    /// Returns how many bytes can be away: there is one number for each page.
    pub(crate) fn most_bytes(&self) -> u64 {
        u64::from(self.chunks) * CHUNK_BYTES as u64
    }

    /// Returns the first number after the away frames.
    pub(crate) fn end(&self) -> u32 {
        self.first.0 + self.chunks * CHUNK_FRAMES
    }

    #[inline]
    pub(crate) fn contains(&self, frame: FrameId) -> bool {
        frame.0 >= self.first.0
    }

    pub(crate) fn used_frames(&self) -> u32 {
        self.used_frames.load(Ordering::Relaxed)
    }

    /// Returns the word that names the place of the frame's clean page in a page store.
    pub(crate) fn kept(&self, frame: FrameId) -> &StoredWord {
        &self.kept[(frame.0 - self.first.0) as usize]
    }

    /// Returns all chunks that ever had a frame in use.
    pub(crate) fn reached_chunks(&self) -> impl Iterator<Item = ChunkId> + use<> {
        let first = ChunkId::of(self.first).0;
        (first..first + self.free.lock().reached).map(ChunkId)
    }

    /// Returns the bytes charged for pages in use.
    pub(crate) fn charged_bytes(&self) -> u64 {
        u64::from(self.used_frames()) * Order::ZERO.bytes() as u64
    }

    /// Returns the bytes charged for words.
    pub(crate) fn words_bytes(&self) -> u64 {
        u64::from(self.free.lock().reached) * CHUNK_WORDS_BYTES
    }

    /// Takes a block off the free lists, in state Cached, and charges its pages. The charge leaves
    /// `spare_bytes` of the room for chunks. Returns `None` if the budget has no room, or no numbers are
    /// left.
    pub(crate) fn take(&self, arena: &Arena, order: Order, spare_bytes: u64) -> Option<FrameId> {
        if !arena.budget.charge_leaving(order.bytes() as u64, spare_bytes) {
            return None;
        }
        let mut free = self.free.lock();
        let block = free.buddy.take(&arena.words, order, Shelf::default()).or_else(|| {
            self.reach(arena, &mut free)
                .then(|| free.buddy.take(&arena.words, order, Shelf::default()))
                .flatten()
        });
        drop(free);
        match &block {
            Some(_) => drop(self.used_frames.fetch_add(order.frames(), Ordering::Relaxed)),
            None => arena.budget.uncharge_pages(order.bytes() as u64),
        }
        block.map(|block| block.frame)
    }

    /// Puts one more chunk on the free lists.
    fn reach(&self, arena: &Arena, free: &mut Free) -> bool {
        if free.reached == self.chunks || !arena.budget.charge(CHUNK_WORDS_BYTES) {
            return false;
        }
        let chunk = ChunkId::of(self.first.plus(free.reached * CHUNK_FRAMES));
        if arena.populate && arena.words.populate(chunk).is_err() {
            arena.budget.uncharge(CHUNK_WORDS_BYTES);
            return false;
        }
        free.reached += 1;
        arena.words.of_chunk(chunk).for_each(|words| words.state.set_tail());
        arena.words[chunk.first()].state.set(Kind::Cached, Order::MAX, false);
        free.buddy.insert(&arena.words, chunk.first(), Order::MAX, false, Shelf::default());
        true
    }

    /// Puts a block in state Cached back on the free lists, and ends the charge of its pages.
    pub(crate) fn give(&self, arena: &Arena, frame: FrameId, order: Order) {
        debug_assert!(self.kept(frame).page().is_none(), "{frame:?} is freed and keeps a place");
        self.free.lock().buddy.insert(&arena.words, frame, order, false, Shelf::default());
        self.used_frames.fetch_sub(order.frames(), Ordering::Relaxed);
        arena.budget.uncharge_pages(order.bytes() as u64);
    }

    /// Checks the free lists against the frames' words, and both against the count. Linear.
    pub(crate) fn validate(&self, arena: &Arena) {
        let free = self.free.lock();
        free.buddy.validate(&arena.words);
        let of_chunks = free.reached * CHUNK_FRAMES - free.buddy.free_frames();
        assert_eq!(self.used_frames(), of_chunks, "each away frame is free or in use");
    }
}
