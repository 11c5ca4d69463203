//! The coldest pages of the compressed pool go on to the areas.
//!
//! Each is unpacked into a frame of the swap cache, as if it had been faulted in, and goes out again from there as any
//! dirty page does, past the pool. So a fault finds it at every moment, and no protocol is needed but the two there are.

use crate::counters::Counter;
use crate::engine::Engine;
use crate::io::Urgency;
use crate::lru::IsolatedFrame;
use crate::reclaim::evict::{Away, after_put_away, write_out};
use crate::store::Going;
use crate::swap::{Brought, WRITE_BATCH, Wanted};
use crate::units::{CHUNK_BYTES, Order, SwapSlot};

/// Pages that leave a pool that is too large at once.
const FITTED: usize = 512;

/// Sends about `pages` of the coldest pages on their way. Says how many it started with.
pub(crate) fn shrink_pool(engine: &Engine, pages: usize) -> u64 {
    let Some(pool) = engine.swap.pool() else { return 0 };
    // Lent by the engine, so that nothing is allocated; whoever comes second has to.
    let mut named = std::mem::take(&mut *engine.pool_victims.lock());
    named.clear();
    pool.coldest(&engine.frames, pages, &mut named);
    let mut going = Going::new();
    let mut started = 0;
    for &(slot, handle) in &named {
        match unpack(engine, slot) {
            Some(frame) => going.push((slot.stored(), frame)),
            // It is in memory, or gone; or there is no frame.
            None => pool.stays(handle),
        }
        if going.len() == WRITE_BATCH {
            started += write_out(engine, std::mem::take(&mut going));
        }
    }
    *engine.pool_victims.lock() = named;
    started += write_out(engine, going);
    engine.swap.flush();
    started
}

/// Brings the pool under its share of the budget, which may have been lowered, and gives back the blocks that leaves.
pub(crate) fn fit_pool(engine: &Engine) {
    let Some(pool) = engine.swap.pool() else { return };
    engine.swap.limit_pool(engine.budget.limit_bytes());
    // Others may fill it again meanwhile.
    let most_rounds = 8 + pool.stats().pages / FITTED as u64;
    let mut rounds = 0;
    loop {
        let stats = pool.stats();
        let excess = stats.used_bytes.saturating_sub(stats.limit_bytes);
        if excess == 0 {
            return;
        }
        let ended = engine.transfers.ended_pages();
        let started = shrink_pool(engine, FITTED);
        if !engine.wait_until_ended(ended + started) {
            return;
        }
        let blocks = excess.div_ceil(CHUNK_BYTES as u64) as usize;
        let given =
            pool.give_back(&engine.frames, blocks, |slot, from, to| engine.swap.retarget(slot, from, to));
        rounds += 1;
        if started == 0 && given == 0 || engine.swap.is_failing() || rounds == most_rounds {
            return;
        }
    }
}

/// A page of the pool in a frame under WRITEBACK, with a pin for the transfer.
fn unpack(engine: &Engine, slot: SwapSlot) -> Option<IsolatedFrame> {
    let (pin, _) = engine.begin_read_ahead(slot.stored(), engine.frames.alloc(Order::ZERO)?)?;
    let frame = pin.frame();
    let failure = match engine.swap.bring(&engine.frames, slot, frame, Wanted::No) {
        Brought::Here => None,
        Brought::Corrupt => Some(engine.swap.corrupt(slot)),
        Brought::OnDevice => {
            // Written meanwhile: somebody may wait for it already, so it is read.
            engine.start_read(slot.stored(), [pin], Urgency::Queued);
            engine.swap.flush();
            return None;
        }
        // Unmapped meanwhile: nobody asks.
        Brought::Gone => Some(engine.swap.freed(slot)),
    };
    if failure.is_some() {
        engine.end_read_of(slot.stored(), pin, failure);
        return None;
    }
    // It was on no list yet.
    let isolated = IsolatedFrame::new(pin);
    let holds = &engine.frames.words(frame).holds;
    holds.mark_dirty();
    if holds.end_read(true) {
        engine.wake_io(frame);
    }
    let put = engine.swap.put_away(&engine.frames, slot, frame, None);
    let away = after_put_away(engine, isolated, put)?;
    engine.counters.count(Counter::PoolWriteback);
    match away {
        Away::ToBeWritten(frame) => Some(frame),
        Away::InPlace(frame) => {
            // It repeats a word by now.
            engine.evict_or_putback([(slot.stored(), frame)].into_iter().collect());
            None
        }
    }
}
