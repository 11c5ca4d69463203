//! Emptying a chunk: its frames move elsewhere, and what is left is 2 MiB in one piece.
//!
//! The chunk is isolated first, so that it only empties. Then every frame that shows a page is migrated, or, where
//! there is nowhere to move it, evicted. A frame that cannot go now ends the attempt; what was freed is given back
//! to the lists.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::frame::state::Kind;
use crate::frame::{Block, ChunkId, PinnedFrame};
use crate::lru::{Isolated, IsolatedFrame, Place};
use crate::reclaim::shrink_pool::fit_pool;
use crate::reclaim::{Migrated, Reclaimer, evict_batch, migrate, reclaim, reclaim_and_settle};
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, FrameId, Order};

/// Chunks tried for one request, emptiest first.
const CANDIDATES: usize = 8;
/// Rounds of migration for one chunk: a frame that is in use for a moment is met again.
const ROUNDS: usize = 6;
/// Frames freed elsewhere at once, for pages of a chunk to move to.
const MAKE_WAY: u64 = 64;
/// Failures to shrink in a row before giving up.
const ATTEMPTS: u32 = 8;

/// A chunk worth emptying, and how many frames that would move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    used_frames: u32,
    chunk: ChunkId,
}

/// A block of order 9 for an access that found none. `None` where no chunk can be emptied, or where that was tried in vain
/// just before: after each failure twice as many requests are turned away at once.
pub(crate) async fn block_for_fault(engine: &Engine, waiter: &mut Waiter<'_>) -> Option<Block> {
    if engine.blocks_for_faults.turns_away() {
        return None;
    }
    let block = evict_for_block(engine, waiter).await.or_else(|| compact(engine));
    engine.blocks_for_faults.ended(block.is_some());
    block
}

/// Where memory is full, as many pages go as the block has: a cold block, whose chunk is this one's then, or pages whose frames
/// give compaction room.
async fn evict_for_block(engine: &Engine, waiter: &mut Waiter<'_>) -> Option<Block> {
    let missing = u64::from(CHUNK_FRAMES).saturating_sub(engine.frames.free_frames());
    if missing == 0 || !engine.swap.is_available() {
        return None;
    }
    let ended = engine.transfers.ended_pages();
    let done = reclaim(engine, missing, Reclaimer::Direct, waiter).await;
    waiter.until_written(ended + done.started).await;
    engine.frames.alloc(Order::MAX)
}

/// A block of order 9 for the compressed pool, by moving pages only. `None` as for [`block_for_fault`]; failures of the one do
/// not count for the other.
pub(crate) fn block_for_pool(engine: &Engine) -> Option<Block> {
    if engine.blocks_for_pool.turns_away() {
        return None;
    }
    let block = compact(engine);
    engine.blocks_for_pool.ended(block.is_some());
    block
}

/// Makes a block of order 9 out of a fragmented memory.
fn compact(engine: &Engine) -> Option<Block> {
    engine.counters.count(Counter::CompactStall);
    engine.frames.drain();
    // Moving a chunk's frames takes as many elsewhere; without them it would be eviction, and worse than base pages.
    let room = engine.frames.free_frames();
    let block = candidates(engine)
        .into_iter()
        // A full chunk would be a block broken to make one.
        .filter(|candidate| {
            candidate.used_frames < CHUNK_FRAMES && u64::from(candidate.used_frames) * 2 < room
        })
        .find_map(|candidate| {
            let block = empty_chunk(engine, candidate.chunk, Elsewhere::Free)
                .then(|| engine.frames.claim_isolated(candidate.chunk))
                .flatten();
            if block.is_none() {
                engine.frames.putback(candidate.chunk);
            }
            block
        });
    engine.counters.count(if block.is_some() { Counter::CompactSuccess } else { Counter::CompactFail });
    block
}

/// Gives chunks back to the kernel until what is charged leaves `room_bytes` under the limit. Moves pages together,
/// or out, as needed. Says whether it got there.
pub(crate) fn shrink_to_budget(engine: &Engine, room_bytes: u64) -> bool {
    // One at a time: two would each isolate what the other needs to move pages to.
    let _single = engine.shrinking.lock();
    fit_pool(engine);
    let mut failures = 0;
    loop {
        let missing = room_bytes as i64 - engine.budget.room_bytes();
        if missing <= 0 {
            return true;
        }
        if engine.frames.shrink((missing as u64).div_ceil(CHUNK_BYTES as u64) as u32) > 0
            || give_one_back(engine, Elsewhere::Made)
        {
            failures = 0;
            continue;
        }
        failures += if engine.swap.is_failing() { ATTEMPTS / 2 } else { 1 };
        if failures >= ATTEMPTS {
            return false;
        }
        reclaim_and_settle(engine, u64::from(CHUNK_FRAMES), Reclaimer::Direct);
    }
}

/// As [`shrink_to_budget`], as far as it goes without waiting: pages move to frames that are free, and what others shrink just
/// now is theirs.
pub(super) fn try_shrink(engine: &Engine, room_bytes: u64) -> bool {
    let Some(_single) = engine.shrinking.try_lock() else { return false };
    loop {
        let missing = room_bytes as i64 - engine.budget.room_bytes();
        if missing <= 0 {
            return true;
        }
        if engine.frames.shrink((missing as u64).div_ceil(CHUNK_BYTES as u64) as u32) == 0
            && !give_one_back(engine, Elsewhere::Free)
        {
            return false;
        }
    }
}

fn give_one_back(engine: &Engine, elsewhere: Elsewhere) -> bool {
    candidates(engine).into_iter().any(|candidate| {
        let gone =
            empty_chunk(engine, candidate.chunk, elsewhere) && engine.frames.take_offline(candidate.chunk);
        if !gone {
            engine.frames.putback(candidate.chunk);
        }
        gone
    })
}

/// Online chunks with nothing in them but free frames and pages, emptiest first.
fn candidates(engine: &Engine) -> SmallVec<[Candidate; CANDIDATES]> {
    let mut best = SmallVec::<[Candidate; CANDIDATES]>::new();
    for chunk in engine.frames.reached_chunks() {
        let Some(used_frames) = movable_frames(engine, chunk) else { continue };
        let candidate = Candidate { used_frames, chunk };
        if best.len() < CANDIDATES {
            best.push(candidate);
        } else if candidate < best[CANDIDATES - 1] {
            best[CANDIDATES - 1] = candidate;
        }
        best.sort();
    }
    best
}

/// Frames of an online chunk that show pages; `None` where it is offline, or holds a block that nothing can move.
fn movable_frames(engine: &Engine, chunk: ChunkId) -> Option<u32> {
    let (mut index, mut used) = (0, 0);
    while index < CHUNK_FRAMES {
        let words = engine.frames.words(chunk.first().plus(index));
        let state = words.state.load();
        index += match state.kind() {
            Kind::Offline => return None,
            // A block changes hands just now.
            Kind::Tail => 1,
            Kind::Free | Kind::Cached | Kind::Isolated => state.order().frames(),
            Kind::Owned if words.holds.load().is_live() => {
                used += state.order().frames();
                state.order().frames()
            }
            Kind::Owned => return None,
        };
    }
    Some(used)
}

/// Where the pages of a chunk go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elsewhere {
    /// To frames that are free.
    Free,
    /// To frames that are made free if need be; the last of them out to swap themselves.
    Made,
}

/// Isolates a chunk and moves everything in it away. True: every frame of it is free.
fn empty_chunk(engine: &Engine, chunk: ChunkId, elsewhere: Elsewhere) -> bool {
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
            if move_page(engine, frame, elsewhere) == Moved::MustGoOut
                && let Some(frame) = isolate(engine, frame)
            {
                out.push(&engine.frames, frame);
                if engine.swap.is_failing() {
                    // Neither way is open, nor will it be for the pages behind this one.
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
    /// Moved, not a page, or in use just now.
    Settled,
    /// There is nowhere to move it to, or it is a huge block, which eviction splits.
    MustGoOut,
}

fn move_page(engine: &Engine, frame: FrameId, elsewhere: Elsewhere) -> Moved {
    for _ in 0..2 {
        let Some(isolated) = isolate(engine, frame) else { return Moved::Settled };
        if engine.frames.words(frame).order() != Order::ZERO {
            engine.unpin(engine.lru.putback(&engine.frames, isolated, Place::Cold));
            break;
        }
        if migrate(engine, isolated) != Migrated::NoFrame {
            return Moved::Settled;
        }
        // A device that fails for one page would be asked in vain for each.
        if elsewhere == Elsewhere::Free
            || engine.swap.is_failing()
            || reclaim_and_settle(engine, MAKE_WAY, Reclaimer::Direct) == 0
        {
            break;
        }
    }
    if elsewhere == Elsewhere::Made { Moved::MustGoOut } else { Moved::Settled }
}

/// Takes a frame that shows a page off the LRU. Not one that is not on it: that is just being made, or in another reclaimer's
/// hands.
pub(super) fn isolate(engine: &Engine, frame: FrameId) -> Option<IsolatedFrame> {
    let words = engine.frames.words(frame);
    if !words.holds.load().is_live() {
        return None;
    }
    let (pin, before) = PinnedFrame::take(frame, words);
    if before.is_live() && engine.lru.take(&engine.frames, frame) {
        return Some(IsolatedFrame::new(pin));
    }
    engine.unpin(pin);
    None
}
