//! A block of 2 MiB out of a memory that is full, or in pieces.
//!
//! Where memory is full, as many pages go as a block has. Where it is in pieces, compaction picks the chunk with the fewest
//! pages and moves them elsewhere. After a failure, a request is turned away at once for some time (`engine/backoff.rs`).

use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::frame::Block;
use crate::reclaim::empty_chunk::{Elsewhere, candidates, empty_chunk};
use crate::reclaim::scan::{Reclaimer, reclaim};
use crate::units::{CHUNK_FRAMES, Order};

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
