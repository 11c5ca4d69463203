//! A zone: a range of frames with one lock, one backing and one memory node.
//!
//! Each zone starts at a multiple of a power of two, so a shift finds the zone of a frame number
//! ([`ZoneList`]). The lock covers the buddy lists and the chunk states ([`super::chunk`]). Two counts are
//! mirrored in atomics for readers without the lock.
//!
//! Locking: a thread may hold one CPU's per-CPU lists and then one zone's lock, and never two zones' locks.

use octavo_platform::ArenaBytes;
use smallvec::SmallVec;

use crate::budget::Budget;
use crate::counters::{Counter, Counters};
use crate::frame::buddy::{Buddy, FreeBlock, Shelf};
use crate::frame::state::Kind;
use crate::frame::words::{FrameTable, WORDS_BYTES_PER_CHUNK};
use crate::sync::{Arc, AtomicU32, Mutex, MutexGuard, Ordering};
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, ChunkId, FrameId, Order};

pub use octavo_platform::Backing;

/// The parts that all zones share: the frames' words and bytes, the budget and the counters.
#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) words: FrameTable,
    pub(crate) bytes: ArenaBytes,
    pub(crate) budget: Arc<Budget>,
    pub(crate) counters: Arc<Counters>,
    /// Whether a chunk's pages are made present when it comes online. Otherwise, each becomes present at its
    /// first access.
    pub(crate) populate: bool,
}

/// A range of frames under one lock.
#[derive(Debug)]
pub(crate) struct Zone {
    pub(crate) first: FrameId,
    pub(crate) chunks: u32,
    pub(crate) backing: Backing,
    pub(crate) node: u8,
    /// Locked while a chunk comes online, so that other threads that need frames wait for the chunk.
    pub(super) coming: Mutex<()>,
    inner: Mutex<ZoneInner>,
    free_frames: AtomicU32,
    offline_chunks: AtomicU32,
    /// All chunks that were ever online are below this index.
    pub(super) reached: AtomicU32,
}

/// The state of a chunk. [`super::chunk`] draws the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkState {
    /// The chunk has no memory.
    Offline,
    /// The chunk goes online or offline, outside the lock.
    Moving,
    /// The chunk's free frames are on the lists.
    Online,
    /// The chunk is being emptied. `free_frames` of its frames are free and held aside.
    Isolated { free_frames: u16 },
}

/// The data that the zone's lock covers.
#[derive(Debug)]
pub(super) struct ZoneInner {
    pub(super) buddy: Buddy,
    pub(super) chunks: Vec<ChunkState>,
    /// Whether the frame words of each chunk have been charged. The words stay charged.
    pub(super) words_charged: Vec<bool>,
    /// Offline chunks, by index in the zone. The next one to come online is the last.
    pub(super) offline: Vec<u32>,
}

impl Zone {
    pub(crate) fn new(first: FrameId, chunks: u32, backing: Backing, node: u8) -> Self {
        let inner = ZoneInner {
            buddy: Buddy::new(),
            chunks: vec![ChunkState::Offline; chunks as usize],
            words_charged: vec![false; chunks as usize],
            offline: (0..chunks).rev().collect(),
        };
        Self {
            first,
            chunks,
            backing,
            node,
            coming: Mutex::new(()),
            inner: Mutex::new(inner),
            free_frames: AtomicU32::new(0),
            offline_chunks: AtomicU32::new(chunks),
            reached: AtomicU32::new(0),
        }
    }

    /// Takes the zone's lock.
    pub(crate) fn lock<'a>(&'a self, arena: &'a Arena) -> ZoneGuard<'a> {
        arena.counters.count(Counter::ZoneLock);
        ZoneGuard { zone: self, arena, shelf: Shelf::default(), inner: self.inner.lock() }
    }

    /// Returns about how many frames are on the lists and shelves now.
    pub(crate) fn free_frames(&self) -> u32 {
        self.free_frames.load(Ordering::Relaxed)
    }

    /// Returns about how many chunks are offline now.
    pub(crate) fn offline_chunks(&self) -> u32 {
        self.offline_chunks.load(Ordering::Relaxed)
    }
}

/// A zone, locked.
#[derive(Debug)]
pub(crate) struct ZoneGuard<'a> {
    pub(super) zone: &'a Zone,
    pub(super) arena: &'a Arena,
    shelf: Shelf,
    pub(super) inner: MutexGuard<'a, ZoneInner>,
}

impl ZoneGuard<'_> {
    /// Names the CPU that the lock is for. Whole chunks go to this CPU's shelf, and come from it first.
    pub(crate) fn at(mut self, cpu: usize) -> Self {
        self.shelf = Shelf::of_cpu(cpu);
        self
    }

    /// Takes a free block. The block leaves in state Cached.
    pub(crate) fn take(&mut self, order: Order) -> Option<FreeBlock> {
        self.inner.buddy.take(&self.arena.words, order, self.shelf)
    }

    /// Does what [`ZoneGuard::take`] does, for a caller that reads the state word later. If the block is a
    /// whole chunk, this does not read the word at all. So a batch of chunks costs the lock's holder no cache
    /// misses.
    pub(crate) fn take_frame(&mut self, order: Order) -> Option<FrameId> {
        if order == Order::MAX {
            return self.inner.buddy.take_whole(self.shelf);
        }
        Some(self.take(order)?.frame)
    }

    /// Takes back a block in state Cached. If its chunk is isolated, the block stays aside.
    ///
    /// # Panics
    /// If the block is in another state, or its chunk is offline: the block would have two owners.
    pub(crate) fn give(&mut self, frame: FrameId, order: Order) {
        let state = &self.arena.words[frame].state;
        let found = state.load();
        assert!(found.is(Kind::Cached, order), "{frame:?} came back to its zone in state {found:?}");
        let chunk = ((frame.0 - self.zone.first.0) / CHUNK_FRAMES) as usize;
        let ZoneInner { buddy, chunks, .. } = &mut *self.inner;
        match &mut chunks[chunk] {
            ChunkState::Online => {
                buddy.insert(&self.arena.words, frame, order, found.zeroed(), self.shelf);
            }
            ChunkState::Isolated { free_frames } => {
                *free_frames += order.frames() as u16;
                state.set(Kind::Isolated, order, found.zeroed());
            }
            other => panic!("{frame:?} came back to a chunk that is {other:?}"),
        }
    }

    /// Returns whether the zone can supply a block of this order without bringing a chunk online.
    pub(crate) fn has(&self, order: Order) -> bool {
        (order.0..=Order::MAX.0).any(|from| self.inner.buddy.blocks(Order(from)) > 0)
    }

    /// Returns how many frames are on the lists.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn free_frames(&self) -> u32 {
        self.inner.buddy.free_frames()
    }

    /// Returns how many blocks are on one list.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn free_blocks(&self, order: Order) -> u32 {
        self.inner.buddy.blocks(order)
    }

    /// Returns the bytes that this zone has charged and not given back.
    pub(crate) fn charged_bytes(&self) -> u64 {
        let online = self.inner.chunks.iter().filter(|&&chunk| chunk != ChunkState::Offline).count() as u64;
        let words = self.inner.words_charged.iter().filter(|&&charged| charged).count() as u64;
        online * CHUNK_BYTES as u64 + words * WORDS_BYTES_PER_CHUNK
    }

    /// Checks lists, chunk states and counts. Linear in the frames.
    ///
    /// # Panics
    /// If they contradict each other.
    pub(crate) fn validate(&self) {
        self.inner.buddy.validate(&self.arena.words);
        let mut listed = vec![false; self.inner.chunks.len()];
        for &index in &self.inner.offline {
            assert!(!std::mem::replace(&mut listed[index as usize], true), "a chunk is listed once");
        }
        let mut free = 0;
        for (index, chunk) in self.inner.chunks.iter().enumerate() {
            let id = ChunkId::of(self.zone.first.plus(index as u32 * CHUNK_FRAMES));
            let states = || self.arena.words.of_chunk(id).map(|words| words.state.load());
            let frames_of = |kind: Kind| -> u32 {
                states().filter(|state| state.kind() == kind).map(|state| state.order().frames()).sum()
            };
            match *chunk {
                ChunkState::Offline => {
                    assert!(listed[index], "offline chunks are listed");
                    if self.inner.words_charged[index] {
                        assert!(states().all(|state| state.kind() == Kind::Offline));
                    }
                }
                ChunkState::Moving => {}
                ChunkState::Online => free += frames_of(Kind::Free),
                ChunkState::Isolated { free_frames } => {
                    assert_eq!(
                        frames_of(Kind::Isolated),
                        u32::from(free_frames),
                        "isolated frames are counted"
                    );
                    assert_eq!(frames_of(Kind::Free), 0, "an isolated chunk has nothing on the lists");
                }
            }
        }
        for chunk in self.inner.buddy.chunks() {
            let index = (chunk.0 - self.zone.first.0) / CHUNK_FRAMES;
            assert_eq!(self.inner.chunks[index as usize], ChunkState::Online, "chunks on a shelf are online");
            free += CHUNK_FRAMES;
        }
        assert_eq!(free, self.inner.buddy.free_frames(), "the lists hold every free block");
    }
}

impl Drop for ZoneGuard<'_> {
    fn drop(&mut self) {
        self.zone.free_frames.store(self.inner.buddy.free_frames(), Ordering::Relaxed);
        self.zone.offline_chunks.store(self.inner.offline.len() as u32, Ordering::Relaxed);
    }
}

/// All zones. A shift finds the zone of a frame.
#[derive(Debug)]
pub(crate) struct ZoneList {
    zones: Box<[Zone]>,
    shift: u32,
}

impl ZoneList {
    /// Makes zones of these sizes (in chunks), backings and nodes, in this order.
    pub(crate) fn new(sizes: &[(u32, Backing, u8)]) -> Self {
        let largest =
            sizes.iter().map(|&(chunks, ..)| chunks * CHUNK_FRAMES).max().expect("at least one zone");
        let shift = largest.next_power_of_two().trailing_zeros();
        let zone = |(index, &(chunks, backing, node)): (usize, &(u32, Backing, u8))| {
            Zone::new(FrameId((index as u32) << shift), chunks, backing, node)
        };
        Self { zones: sizes.iter().enumerate().map(zone).collect(), shift }
    }

    /// Returns one more than the largest frame number.
    pub(crate) fn end(&self) -> u32 {
        self.zones.last().map_or(0, |zone| zone.first.0 + zone.chunks * CHUNK_FRAMES)
    }

    /// Returns the index of a frame's zone.
    #[inline]
    pub(crate) fn index_of(&self, frame: FrameId) -> usize {
        (frame.0 >> self.shift) as usize
    }

    /// Returns a frame's zone.
    #[inline]
    pub(crate) fn of(&self, frame: FrameId) -> &Zone {
        &self.zones[self.index_of(frame)]
    }
}

impl std::ops::Deref for ZoneList {
    type Target = [Zone];

    fn deref(&self) -> &[Zone] {
        &self.zones
    }
}

/// Blocks on their way back to their zones. A full batch is given back at once, and the rest when this value
/// is dropped. Each run of blocks of one zone takes the zone's lock once. The lock is held only while blocks
/// are put on lists.
#[derive(Debug)]
pub(crate) struct Givers<'a> {
    zones: &'a ZoneList,
    arena: &'a Arena,
    cpu: usize,
    waiting: SmallVec<[(FrameId, Order); GIVE_BATCH]>,
    frames: u64,
}

/// The most blocks that are collected before they are given back.
const GIVE_BATCH: usize = 128;

impl<'a> Givers<'a> {
    /// Makes an empty batch, for blocks that were on a CPU's lists.
    pub(crate) fn new(zones: &'a ZoneList, arena: &'a Arena, cpu: usize) -> Self {
        Self { zones, arena, cpu, waiting: SmallVec::new(), frames: 0 }
    }

    /// Gives a block in state Cached to its zone.
    pub(crate) fn give(&mut self, frame: FrameId, order: Order) {
        if self.waiting.len() == GIVE_BATCH {
            self.flush();
        }
        self.waiting.push((frame, order));
        self.frames += u64::from(order.frames());
    }

    /// Returns how many frames were given so far.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    fn flush(&mut self) {
        let mut held: Option<ZoneGuard<'_>> = None;
        for (frame, order) in self.waiting.drain(..) {
            let zone = self.zones.of(frame);
            if !held.as_ref().is_some_and(|held| std::ptr::eq(held.zone, zone)) {
                // Drop the old lock before taking the new one: a thread never holds two zones' locks.
                drop(held.take());
                held = Some(zone.lock(self.arena).at(self.cpu));
            }
            held.as_mut().expect("just taken").give(frame, order);
        }
    }
}

impl Drop for Givers<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
