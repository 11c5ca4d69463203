//! Chunks: pieces of a zone of 2 MiB, each brought online and given back to the kernel as a whole.
//!
//! ```text
//!            charge, populate                     isolate
//!   Offline ──► Moving ──► Online ◄──────────────────────────► Isolated { free_frames }
//!      ▲                     │            putback, claim           │
//!      │                     │ shrink: one free block of order 9   │ take_offline: 512 free frames
//!      └────── Moving ◄──────┴─────────────────────────────────────┘
//! ```
//!
//! The budget is charged before the kernel is asked for memory, and uncharged after the kernel has the memory
//! back. A chunk's frame words (16 KiB) are charged when it first comes online, and stay charged: a late
//! walker may read the words of a frame at any time.
//!
//! The free frames of an isolated chunk are on no list, and frames that are freed into it stay aside. So the
//! chunk can only become emptier. The owned blocks of the chunk are marked, and the mark sends their frees
//! past the per-CPU lists. A frame that is between a list and an owner at that moment is missed. A second
//! call of `isolate` catches it.

use crate::counters::Counter;
use crate::frame::buddy::{FreeBlock, Shelf};
use crate::frame::state::Kind;
use crate::frame::words::{FrameWords, WORDS_BYTES_PER_CHUNK};
use crate::frame::zone::{Arena, ChunkState, Zone, ZoneInner};
use crate::sync::Ordering;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, ChunkId, FrameId, Order};

/// The outcome of [`Zone::bring_online`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Online {
    /// The zone may have a block now.
    Tried,
    /// Every chunk is online, the budget is used up, or the kernel has no memory.
    Refused,
}

impl Zone {
    fn chunk_first(&self, index: u32) -> FrameId {
        self.first.plus(index * CHUNK_FRAMES)
    }

    /// Turns a chunk into one block in state Cached. No other thread touches the chunk.
    fn join(&self, arena: &Arena, index: u32, zeroed: bool) {
        let first = self.chunk_first(index);
        arena.words.of_chunk(ChunkId::of(first)).for_each(|frame| frame.state.set_tail());
        arena.words[first].state.set(Kind::Cached, Order::MAX, zeroed);
    }

    /// Returns all chunks that were ever online, and perhaps a few others. The lowest offline chunk is used
    /// first.
    pub(crate) fn reached_chunks(&self) -> impl Iterator<Item = ChunkId> + use<> {
        let first = ChunkId::of(self.first).0;
        (first..first + self.reached.load(Ordering::Relaxed)).map(ChunkId)
    }

    fn index_of_chunk(&self, chunk: ChunkId) -> u32 {
        let index = chunk.0 - self.first.0 / CHUNK_FRAMES;
        assert!(index < self.chunks, "{chunk:?} is not of this zone");
        index
    }

    /// Brings one chunk online, unless the zone has a block of `order` by now.
    pub(crate) fn bring_online(&self, arena: &Arena, order: Order) -> Online {
        if self.offline_chunks() == 0 && self.coming.try_lock().is_some() {
            return Online::Refused;
        }
        let _single = self.coming.lock();
        let (index, fresh_words) = {
            let mut locked = self.lock(arena);
            if locked.has(order) {
                return Online::Tried;
            }
            let inner = &mut *locked.inner;
            let Some(&index) = inner.offline.last() else { return Online::Refused };
            let fresh_words = !inner.words_charged[index as usize];
            if !arena.budget.charge_chunk(online_cost_bytes(fresh_words)) {
                return Online::Refused;
            }
            inner.offline.pop();
            inner.chunks[index as usize] = ChunkState::Moving;
            self.reached.fetch_max(index + 1, Ordering::Relaxed);
            (index, fresh_words)
        };
        let present = self.populate(arena, index);
        let mut locked = self.lock(arena);
        if !present {
            arena.budget.uncharge_pages(online_cost_bytes(fresh_words));
            locked.inner.chunks[index as usize] = ChunkState::Offline;
            locked.inner.offline.push(index);
            return Online::Refused;
        }
        self.join(arena, index, true);
        locked.inner.words_charged[index as usize] = true;
        locked.inner.chunks[index as usize] = ChunkState::Online;
        locked.give(self.chunk_first(index), Order::MAX);
        drop(locked);
        arena.counters.count(Counter::ChunkOnline);
        Online::Tried
    }

    /// Asks the kernel for the chunk's pages and frame words. If the kernel fails, the pages that it gave so
    /// far go back.
    fn populate(&self, arena: &Arena, index: u32) -> bool {
        let first = self.chunk_first(index);
        if !arena.populate {
            return true;
        }
        let bytes = first.home_offset()..first.home_offset() + CHUNK_BYTES;
        let present = arena.bytes.bring_online(bytes.clone(), self.backing).is_ok()
            && arena.words.populate(ChunkId::of(first)).is_ok();
        if !present {
            // A refusal to discard these pages does not matter: they read as zeros either way.
            let _ = arena.bytes.take_offline(bytes);
        }
        present
    }

    /// Takes up to `n` wholly free chunks offline, and returns how many.
    pub(crate) fn shrink(&self, arena: &Arena, n: u32) -> u32 {
        let mut gone = 0;
        while gone < n {
            let block = {
                let mut locked = self.lock(arena);
                let Some(block) = locked.take(Order::MAX) else { break };
                let index = self.index_of_chunk(ChunkId::of(block.frame));
                locked.inner.chunks[index as usize] = ChunkState::Moving;
                block
            };
            if !self.give_to_kernel(arena, self.index_of_chunk(ChunkId::of(block.frame))) {
                break;
            }
            gone += 1;
        }
        gone
    }

    /// Makes a Moving chunk Offline. If the kernel refuses, the chunk is Online again, as one free block.
    fn give_to_kernel(&self, arena: &Arena, index: u32) -> bool {
        let first = self.chunk_first(index);
        let bytes = first.home_offset()..first.home_offset() + CHUNK_BYTES;
        if arena.bytes.take_offline(bytes).is_err() {
            self.join(arena, index, false);
            let mut locked = self.lock(arena);
            locked.inner.chunks[index as usize] = ChunkState::Online;
            locked.give(first, Order::MAX);
            return false;
        }
        let words = arena.words.of_chunk(ChunkId::of(first));
        words.for_each(|frame| frame.state.set(Kind::Offline, Order::ZERO, false));
        let mut locked = self.lock(arena);
        locked.inner.chunks[index as usize] = ChunkState::Offline;
        locked.inner.offline.push(index);
        drop(locked);
        arena.budget.uncharge_pages(CHUNK_BYTES as u64);
        arena.counters.count(Counter::ChunkOffline);
        true
    }

    /// Sets the chunk's free frames aside and marks its owned ones. Returns how many frames are not yet
    /// aside, or `None` if the chunk is not online. A second call catches frames that were between lists and
    /// owners.
    pub(crate) fn isolate(&self, arena: &Arena, chunk: ChunkId) -> Option<u32> {
        let index = self.index_of_chunk(chunk);
        let mut locked = self.lock(arena);
        let ZoneInner { buddy, chunks, .. } = &mut *locked.inner;
        let mut aside = match chunks[index as usize] {
            ChunkState::Online => 0,
            ChunkState::Isolated { free_frames } => free_frames,
            ChunkState::Offline | ChunkState::Moving => return None,
        };
        let first = self.chunk_first(index);
        for_each_head(arena, first, |frame, words| {
            let state = words.state.load();
            match state.kind() {
                Kind::Free => {
                    buddy.unlink(&arena.words, frame, state.order());
                    words.state.set(Kind::Isolated, state.order(), state.zeroed());
                    aside += state.order().frames() as u16;
                }
                // The block is on a shelf, or on its way between a list and an owner.
                Kind::Cached if state.order() == Order::MAX && buddy.take_off_shelf(frame) => {
                    words.state.set(Kind::Isolated, Order::MAX, state.zeroed());
                    aside += CHUNK_FRAMES as u16;
                }
                Kind::Owned => {
                    words.state.mark_isolating();
                }
                _ => {}
            }
        });
        chunks[index as usize] = ChunkState::Isolated { free_frames: aside };
        Some(CHUNK_FRAMES - u32::from(aside))
    }

    /// Ends an isolation: the frames that were aside are free again. Does nothing to a chunk that is not
    /// isolated.
    pub(crate) fn putback(&self, arena: &Arena, chunk: ChunkId) {
        let index = self.index_of_chunk(chunk);
        let mut locked = self.lock(arena);
        let ZoneInner { buddy, chunks, .. } = &mut *locked.inner;
        if !matches!(chunks[index as usize], ChunkState::Isolated { .. }) {
            return;
        }
        chunks[index as usize] = ChunkState::Online;
        let first = self.chunk_first(index);
        for_each_head(arena, first, |frame, words| {
            let state = words.state.load();
            match state.kind() {
                Kind::Isolated => {
                    buddy.insert(&arena.words, frame, state.order(), state.zeroed(), Shelf::default());
                }
                Kind::Owned => words.state.clear_isolating(),
                _ => {}
            }
        });
    }

    /// Takes an isolated chunk offline. Returns false if some of its frames are not free, or the kernel
    /// refuses.
    pub(crate) fn take_offline(&self, arena: &Arena, chunk: ChunkId) -> bool {
        let index = self.index_of_chunk(chunk);
        {
            let mut locked = self.lock(arena);
            let state = &mut locked.inner.chunks[index as usize];
            if *state != (ChunkState::Isolated { free_frames: CHUNK_FRAMES as u16 }) {
                return false;
            }
            *state = ChunkState::Moving;
        }
        self.give_to_kernel(arena, index)
    }

    /// Takes an isolated chunk whose frames are all free, as one block in state Cached.
    pub(crate) fn claim(&self, arena: &Arena, chunk: ChunkId) -> Option<FreeBlock> {
        let index = self.index_of_chunk(chunk);
        let mut locked = self.lock(arena);
        let state = &mut locked.inner.chunks[index as usize];
        if *state != (ChunkState::Isolated { free_frames: CHUNK_FRAMES as u16 }) {
            return None;
        }
        *state = ChunkState::Online;
        let mut zeroed = true;
        for_each_head(arena, chunk.first(), |_, head| zeroed &= head.state.load().zeroed());
        self.join(arena, index, zeroed);
        Some(FreeBlock { frame: self.chunk_first(index), zeroed })
    }
}

/// Returns the bytes to charge for a chunk that comes online.
pub(crate) fn online_cost_bytes(fresh_words: bool) -> u64 {
    CHUNK_BYTES as u64 + if fresh_words { WORDS_BYTES_PER_CHUNK } else { 0 }
}

/// Visits the heads of a chunk's blocks. If a block changes hands meanwhile, its tails may be visited too.
fn for_each_head(arena: &Arena, first: FrameId, mut visit: impl FnMut(FrameId, &FrameWords)) {
    let mut at = 0;
    while at < CHUNK_FRAMES {
        let head = &arena.words[first.plus(at)];
        let state = head.state.load();
        // Read the size before the visit, since the visit may merge the block.
        let frames = if state.kind() == Kind::Tail { 1 } else { state.order().frames() };
        visit(first.plus(at), head);
        at += frames;
    }
}
