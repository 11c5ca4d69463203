//! Giving chunks back to the kernel until the charged bytes fit the budget.

use crate::engine::{Engine, Waiter};
use crate::error::Result;
use crate::reclaim::empty_chunk::{Elsewhere, MovableChunk, emptiest_chunks, empty_chunk};
use crate::reclaim::scan::{Reclaimer, reclaim, reclaim_and_wait};
use crate::reclaim::shrink_pool::fit_pool;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES};

/// Failures in a row before a thread gives up.
const ATTEMPTS: u32 = 8;
/// Rounds of reclaim before an access gives up.
const SHRINK_LOOKS: u32 = 16;
/// Gives chunks back until the charged bytes leave `room_bytes` under the limit. Moves pages together, or
/// out, as needed. Returns whether it succeeded.
pub(crate) fn shrink_to_budget(engine: &Engine, room_bytes: u64) -> bool {
    // One thread works at a time. Two would each isolate the chunks that the other needs to move pages to.
    let _single = engine.shrinking.lock();
    fit_pool(engine);
    let mut failures = 0;
    loop {
        let missing = missing_chunks(engine, room_bytes);
        if missing == 0 {
            return true;
        }
        if engine.frames.shrink(missing) > 0 || give_one_back(engine, Elsewhere::Made) {
            failures = 0;
            continue;
        }
        failures += if engine.swap.is_failing() { ATTEMPTS / 2 } else { 1 };
        if failures >= ATTEMPTS {
            return false;
        }
        let before = engine.budget.used_bytes();
        reclaim_and_wait(engine, u64::from(CHUNK_FRAMES), Reclaimer::Direct);
        if engine.budget.used_bytes() < before {
            // Pages that were away went out, and make room at once.
            failures = 0;
        }
    }
}

/// Does what [`shrink_to_budget`] does, as far as possible without waiting. Pages move to frames that are
/// free. If another thread shrinks just now, this one leaves the work to it.
pub(crate) fn try_shrink(engine: &Engine, room_bytes: u64) -> bool {
    let Some(_single) = engine.shrinking.try_lock() else { return false };
    // At most as many chunks as are missing now, and one more for room that other threads take. They may
    // bring chunks online all the time. The next call gives those back.
    let mut most = missing_chunks(engine, room_bytes) + 1;
    loop {
        let missing = missing_chunks(engine, room_bytes);
        if missing == 0 || most == 0 {
            return missing == 0;
        }
        let gone = engine.frames.shrink(missing.min(most));
        if gone == 0 && !give_one_back(engine, Elsewhere::Free) {
            return false;
        }
        most -= gone.max(1);
    }
}

/// Returns how many chunks have to go until `room_bytes` are left under the limit.
fn missing_chunks(engine: &Engine, room_bytes: u64) -> u32 {
    let missing_bytes = (room_bytes as i64 - engine.budget.room_bytes()).max(0);
    (missing_bytes as u64).div_ceil(CHUNK_BYTES as u64) as u32
}

fn give_one_back(engine: &Engine, elsewhere: Elsewhere) -> bool {
    // If too few frames are free for a chunk's pages, those that did move would move in vain, from chunk to
    // chunk.
    let free = engine.frames.free_frames();
    let is_suitable = |chunk: &MovableChunk| elsewhere == Elsewhere::Made || chunk.can_move_into(free);
    emptiest_chunks(engine, is_suitable).into_iter().any(|movable| {
        let gone = empty_chunk(engine, movable.chunk, elsewhere) && engine.frames.take_offline(movable.chunk);
        if !gone {
            engine.frames.putback(movable.chunk);
        }
        gone
    })
}

/// Gives chunks back until the charged bytes leave `room_bytes` under the limit, as far as possible. Pages
/// move to frames that reclaim makes free.
///
/// # Errors
/// `TimedOut` if the waiter's deadline has passed.
pub(super) async fn shrink_while_waiting(
    engine: &Engine,
    room_bytes: u64,
    waiter: &mut Waiter<'_>,
) -> Result<()> {
    for _ in 0..SHRINK_LOOKS {
        if try_shrink(engine, room_bytes) {
            break;
        }
        let done = reclaim(engine, u64::from(CHUNK_FRAMES), Reclaimer::Direct, waiter).await;
        if done.started > 0 {
            let ended = engine.transfers.ended_pages() + done.started;
            if !waiter.until_written(ended).await && waiter.has_given_up() {
                return Err(engine.swap.areas.timed_out());
            }
        }
        // Other threads may hold the pages that could go.
        if done.total() == 0 && !waiter.until_more_may_go().await && waiter.has_given_up() {
            return Err(engine.swap.areas.timed_out());
        }
    }
    Ok(())
}
