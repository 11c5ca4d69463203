//! Emptying a chunk: its pages move elsewhere, and leave 2 MiB in one piece.
//!
//! The chunk is isolated first, so that it only empties. Then every frame that shows a page is migrated, or
//! evicted if there is no frame to move it to. A frame that cannot go now ends the attempt. The caller then
//! gives the freed frames back to the lists.

use smallvec::SmallVec;

use crate::engine::Engine;
use crate::frame::ChunkId;
use crate::frame::holds::Holds;
use crate::frame::state::Kind;
use crate::lru::{Isolated, Place};
use crate::reclaim::evict::evict_batch;
use crate::reclaim::migrate::{Migrated, migrate};
use crate::reclaim::scan::{Reclaimer, reclaim_and_wait};
use crate::units::{CHUNK_FRAMES, FrameId, Order};

/// Chunks that are tried for one request, emptiest first.
const TRIED: usize = 8;
/// Rounds of migration for one chunk. A frame that is in use for a moment is tried again, unless no page may
/// be evicted for the chunk.
const ROUNDS: usize = 6;
/// Frames that are freed elsewhere at once, for pages of a chunk to move to.
const MAKE_WAY: u64 = 64;

/// A chunk that can be emptied, and what it holds. The numbers are a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MovableChunk {
    /// Frames that show pages.
    pub(super) used_frames: u32,
    pub(super) chunk: ChunkId,
    /// Frames whose pages would have to move: all used ones, except for pages that can simply be dropped.
    moving_frames: u32,
    free_frames: u32,
    /// Blocks do not move. Eviction splits them.
    has_blocks: bool,
}

impl MovableChunk {
    /// Returns whether all its pages can move if `free_frames` are free, including those of this chunk.
    pub(super) fn can_move_into(&self, free_frames: u64) -> bool {
        !self.has_blocks && u64::from(self.moving_frames + self.free_frames) <= free_frames
    }
}

/// Returns online chunks that hold only free frames and pages and that the caller finds suitable, emptiest
/// first.
pub(super) fn emptiest_chunks(
    engine: &Engine,
    is_suitable: impl Fn(&MovableChunk) -> bool,
) -> SmallVec<[MovableChunk; TRIED]> {
    let mut best = SmallVec::<[MovableChunk; TRIED]>::new();
    for chunk in engine.frames.reached_chunks() {
        let Some(chunk) = movable(engine, chunk).filter(&is_suitable) else { continue };
        if best.len() < TRIED {
            best.push(chunk);
        } else if chunk < best[TRIED - 1] {
            best[TRIED - 1] = chunk;
        }
        best.sort();
    }
    best
}

/// Looks at what an online chunk holds. Returns `None` if the chunk is offline, or holds a block that cannot
/// move, or a page that was found pinned.
fn movable(engine: &Engine, chunk: ChunkId) -> Option<MovableChunk> {
    let mut found =
        MovableChunk { used_frames: 0, chunk, moving_frames: 0, free_frames: 0, has_blocks: false };
    let mut index = 0;
    while index < CHUNK_FRAMES {
        let frame = chunk.first().plus(index);
        let words = engine.frames.words(frame);
        let state = words.state.load();
        let frames = state.order().frames();
        index += match state.kind() {
            Kind::Offline => return None,
            // A block is changing hands.
            Kind::Tail => 1,
            Kind::Free | Kind::Cached => {
                found.free_frames += frames;
                frames
            }
            Kind::Isolated => frames,
            Kind::Owned if is_live_and_not_parked(words.holds.load()) => {
                found.used_frames += frames;
                found.has_blocks |= frames > 1;
                found.moving_frames += if was_read_for_nobody(engine, frame) { 0 } else { frames };
                frames
            }
            Kind::Owned => return None,
        };
    }
    Some(found)
}

fn is_live_and_not_parked(holds: Holds) -> bool {
    holds.is_live() && !holds.is_parked()
}

/// The destination of a chunk's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// The pages move to frames that are free.
    Free,
    /// The pages move to frames that reclaim makes free if need be. If reclaim frees none, the page itself
    /// goes out to swap.
    Made,
}

/// Isolates a chunk and moves everything in it away. Returns whether every frame of it is free.
pub(super) fn empty_chunk(engine: &Engine, chunk: ChunkId, elsewhere: Elsewhere) -> bool {
    for _ in 0..ROUNDS {
        match engine.frames.isolate(chunk) {
            None => return false,
            Some(0) => return true,
            Some(_) => {}
        }
        let (mut out, mut started, mut full) = (Isolated::new(), 0, false);
        let (ends, ended) = (engine.ends(), engine.transfers.ended_pages());
        let mut send = |out: Isolated| {
            let outcome = evict_batch(engine, out);
            started += outcome.started;
            full |= outcome.full;
        };
        for index in 0..CHUNK_FRAMES {
            let frame = chunk.first().plus(index);
            let moved = move_page(engine, frame, elsewhere);
            if moved == Moved::Stuck {
                // Moving the others would be in vain.
                return false;
            }
            if moved == Moved::MustGoOut
                && let Some(frame) = engine.isolate(frame)
            {
                out.push(&engine.frames, frame);
                if engine.swap.is_failing() {
                    // This page can neither move nor go out, nor can those behind it.
                    evict_batch(engine, out);
                    return false;
                }
            }
            if out.is_full() {
                send(std::mem::take(&mut out));
            }
        }
        send(out);
        if !engine.wait_until_ended(ended + started) || full && !engine.wait_for_room(ends) {
            return false;
        }
        engine.frames.drain();
    }
    engine.frames.isolate(chunk) == Some(0)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// The page was moved, or the frame has no page, or is in use just now.
    Done,
    /// The page has no frame to move to, or it is a huge block, which eviction splits.
    MustGoOut,
    /// The page stays, and no page may be evicted for it.
    Stuck,
}

fn move_page(engine: &Engine, frame: FrameId, elsewhere: Elsewhere) -> Moved {
    if was_read_for_nobody(engine, frame) {
        engine.evict_clean(frame);
        return Moved::Done;
    }
    for _ in 0..2 {
        let Some(isolated) = engine.isolate(frame) else { return Moved::Done };
        if engine.frames.words(frame).order() != Order::ZERO {
            engine.unpin(engine.lru.putback(&engine.frames, isolated, Place::Cold));
            break;
        }
        match migrate(engine, isolated) {
            Migrated::Kept if elsewhere == Elsewhere::Free => return Moved::Stuck,
            Migrated::Moved | Migrated::Kept => return Moved::Done,
            Migrated::NoFrame => {}
        }
        // If the device fails for one page, each further page would be tried in vain too.
        if elsewhere == Elsewhere::Free
            || engine.swap.is_failing()
            || reclaim_and_wait(engine, MAKE_WAY, Reclaimer::Direct) == 0
        {
            break;
        }
    }
    if elsewhere == Elsewhere::Made { Moved::MustGoOut } else { Moved::Stuck }
}

/// Returns whether a frame has a page that was read ahead and is in no entry. It is a hint.
fn was_read_for_nobody(engine: &Engine, frame: FrameId) -> bool {
    let words = engine.frames.words(frame);
    let holds = words.holds.load();
    let is_idle = holds.is_live() && !holds.is_dirty() && !holds.is_writeback() && !holds.is_reading();
    // The one use is the store's.
    is_idle && words.stored.page().is_some() && words.uses.get() == 1
}
