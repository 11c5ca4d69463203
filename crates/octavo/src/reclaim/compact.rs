//! Making a block of 2 MiB if memory is full or fragmented.
//!
//! If memory is full, as many pages go out as a block has. If it is fragmented, compaction picks the chunk
//! with the fewest pages and moves them elsewhere. After a failure, further requests are turned away for some
//! time (`backoff.rs`).

use crate::backoff::Backoff;
use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Block;
use crate::reclaim::empty_chunk::{Elsewhere, MovableChunk, emptiest_chunks, empty_chunk};
use crate::reclaim::room::make_more_room;
use crate::reclaim::scan::{Reclaimer, reclaim};
use crate::reclaim::shrink_pool::give_pool_back;
use crate::sync::Duration;
use crate::units::{CHUNK_FRAMES, Order};

/// The outcome of [`compact`].
enum Compacted {
    Made(Block),
    Failed,
    /// Another thread empties chunks just now. This says nothing about the next try.
    LeftToOther,
}

/// Makes a block of order 9 for an access that found none. Returns `None` if no chunk can be emptied, or
/// another thread empties chunks. After each failure in a row, twice as many requests get `None` at once.
pub(crate) async fn block_for_fault(engine: &Engine, waiter: &mut Waiter<'_>) -> Option<Block> {
    if engine.blocks_for_faults.turns_away() {
        return None;
    }
    let compacted = match evict_for_block(engine, CHUNK_FRAMES, waiter).await {
        Some(block) => Compacted::Made(block),
        None => compact(engine),
    };
    compacted.noted_in(&engine.blocks_for_faults)
}

impl Compacted {
    fn noted_in(self, backoff: &Backoff) -> Option<Block> {
        let block = match self {
            Self::LeftToOther => return None,
            Self::Made(block) => Some(block),
            Self::Failed => None,
        };
        backoff.ended(block.is_some());
        block
    }
}

/// If memory is full, sends out pages until `frames` frames are free, at least as many as a block has. A cold
/// block may go and leave its chunk whole. Otherwise, single pages go, and their frames give compaction room.
async fn evict_for_block(engine: &Engine, frames: u32, waiter: &mut Waiter<'_>) -> Option<Block> {
    let missing = u64::from(frames).saturating_sub(engine.frames.free_frames());
    if missing == 0 || !engine.swap.is_available() {
        return None;
    }
    let ended = engine.transfers.ended_pages();
    let done = reclaim(engine, missing, Reclaimer::Direct, waiter).await;
    waiter.until_written(ended + done.started).await;
    engine.frames.alloc(Order::MAX)
}

/// How often a call looks for frames that lie together before it gives up. Other threads may take each block
/// that is made.
const MOST_LOOKS: u32 = 16;
/// How long such a look waits for another thread that empties chunks.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a call for fewer frames than a block has looks for free ones, before it has whole blocks made.
const LOOKS_FOR_LITTLE: u32 = 4;

/// Returns `frames` frames that lie together, each a block of its own, for pages that must lie together.
/// Makes room if there is none.
///
/// # Errors
/// As for [`make_more_room`]; `OutOfMemory` if pages that cannot be moved lie everywhere.
pub(crate) async fn frames_together(
    engine: &Engine,
    waiter: &mut Waiter<'_>,
    frames: u32,
) -> Result<Vec<Block>> {
    let order = Order(frames.next_power_of_two().trailing_zeros() as u8);
    let mut no_room = None;
    for look in 0..MOST_LOOKS {
        let mut block = engine.frames.alloc(order);
        let compacts = block.is_none() && (order == Order::MAX || look >= LOOKS_FOR_LITTLE);
        if compacts {
            // Each time, more pages go out, to give compaction more room.
            block = match evict_for_block(engine, (look + 1) * CHUNK_FRAMES, waiter).await {
                Some(block) => Some(block),
                None => match compact_after_others(engine, waiter).await {
                    Compacted::Made(block) => Some(block),
                    Compacted::Failed | Compacted::LeftToOther => None,
                },
            };
        }
        if let Some(block) = block {
            let mut all = engine.frames.split_block(block);
            let together = all.by_ref().take(frames as usize).collect();
            all.for_each(|block| engine.frames.give_back(block));
            return Ok(together);
        }
        no_room = make_more_room(engine, waiter).await.err();
        if compacts && look >= MOST_LOOKS / 2 {
            // Compaction does not move blocks of the pool.
            give_pool_back(engine, waiter).await;
        }
        if compacts && look + 1 < MOST_LOOKS && !until_nothing_is_in_the_way(engine, waiter).await {
            return Err(no_room.unwrap_or_else(|| engine.swap.areas.timed_out()));
        }
    }
    if let Some(error) = no_room {
        return Err(error);
    }
    let message = format!(
        "no {frames} frames lie together in a budget of {} bytes; borrow fewer pages at once, drop pins and guards, or raise the budget",
        engine.budget.limit_bytes()
    );
    Err(Error::new(ErrorKind::OutOfMemory, message))
}

/// Waits for the pages that are being written now, as long as their devices answer: they cannot move out of
/// the chunks that are to be emptied. Returns `false` if they did not end in time.
async fn until_nothing_is_in_the_way(engine: &Engine, waiter: &mut Waiter<'_>) -> bool {
    let last = engine.transfers.ended_pages() + u64::from(engine.transfers.writing_pages());
    while engine.transfers.ended_pages() < last && engine.coming_pages() > 0 {
        if !waiter.until_some_write_ends_above(0).await {
            return false;
        }
    }
    !waiter.has_given_up()
}

/// Makes a block by compaction. If another thread empties chunks, waits for it first, up to `PATIENCE`.
async fn compact_after_others(engine: &Engine, waiter: &mut Waiter<'_>) -> Compacted {
    let began = engine.machine.clock.now();
    loop {
        match compact(engine) {
            Compacted::LeftToOther if engine.machine.clock.since(began) < PATIENCE => waiter.give_way().await,
            compacted => return compacted,
        }
    }
}

/// Makes a block of order 9 for the compressed pool, only by moving pages. Returns `None` as
/// [`block_for_fault`] does. The two count their failures separately.
pub(crate) fn block_for_pool(engine: &Engine) -> Option<Block> {
    if engine.blocks_for_pool.turns_away() {
        return None;
    }
    compact(engine).noted_in(&engine.blocks_for_pool)
}

/// Makes a block of order 9 in fragmented memory.
fn compact(engine: &Engine) -> Compacted {
    // Two threads would both take the emptiest chunk, and the first to give up would clear the other's marks.
    let Some(_single) = engine.shrinking.try_lock() else { return Compacted::LeftToOther };
    engine.counters.count(Counter::CompactStall);
    engine.frames.drain();
    // Moving a chunk's pages takes as many frames elsewhere. Without those frames it would be eviction, which
    // is worse than base pages.
    let room = engine.frames.free_frames();
    // Emptying a full chunk would break one block to make another.
    let is_suitable = |movable: &MovableChunk| {
        movable.used_frames < CHUNK_FRAMES && u64::from(movable.used_frames) * 2 < room
    };
    let block = emptiest_chunks(engine, is_suitable).into_iter().find_map(|movable| {
        let block = empty_chunk(engine, movable.chunk, Elsewhere::Free)
            .then(|| engine.frames.claim_isolated(movable.chunk))
            .flatten();
        if block.is_none() {
            engine.frames.putback(movable.chunk);
        }
        block
    });
    engine.counters.count(if block.is_some() { Counter::CompactSuccess } else { Counter::CompactFail });
    block.map_or(Compacted::Failed, Compacted::Made)
}
