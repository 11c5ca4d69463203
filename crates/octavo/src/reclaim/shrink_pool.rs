//! The coldest pages of the compressed pool go on to the areas.
//!
//! Each is unpacked into a frame of the swap cache, as if it had been faulted in, and goes out again from there as any
//! dirty page does, past the pool. So a fault finds it at every moment, and no protocol is needed but the two there are.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::lru::List;
use crate::reclaim::evict::write_out;
use crate::swap::{Begun, Brought, Started, WRITE_BATCH};
use crate::units::{FrameId, Order, SwapSlot};

/// Sends about `pages` of the coldest pages on their way. Says how many it started with.
pub(crate) fn shrink_pool(engine: &Engine, pages: usize) -> u64 {
    let Some(pool) = engine.swap.pool() else { return 0 };
    // Lent by the engine, so that nothing is allocated; whoever comes second does without.
    let mut named = std::mem::take(&mut *engine.pool_victims.lock());
    named.clear();
    pool.coldest(&engine.frames, pages, &mut named);
    let mut going = SmallVec::<[(SwapSlot, FrameId); WRITE_BATCH]>::new();
    let mut started = 0;
    for &(slot, handle) in &named {
        match unpack(engine, slot) {
            Some(frame) => going.push((slot, frame)),
            // It is in memory, or gone; or there is no frame.
            None => pool.stays(handle),
        }
        if going.len() == going.inline_size() {
            started += write_out(engine, &going);
            going.clear();
        }
    }
    *engine.pool_victims.lock() = named;
    started += write_out(engine, &going);
    engine.swap.flush();
    started
}

/// A page of the pool in a frame under WRITEBACK, with a pin for the transfer.
fn unpack(engine: &Engine, slot: SwapSlot) -> Option<FrameId> {
    let frame = engine.frames.alloc(Order::ZERO)?.frame;
    if engine.swap.begin_read_ahead(&engine.frames, slot, frame) == Begun::Not {
        engine.frames.free(frame, Order::ZERO).expect("just allocated");
        return None;
    }
    let here = engine.swap.bring(&engine.frames, slot, frame) == Brought::Here;
    if !here {
        // Whoever asks for it is told why.
        engine.end_read_of(slot, frame, Some(engine.swap.corrupt(slot)));
        return None;
    }
    let holds = &engine.frames.words(frame).holds;
    holds.mark_dirty();
    if holds.end_read(true) {
        engine.wake_io(frame);
    }
    match engine.swap.start_writeback(&engine.frames, slot, frame) {
        Started::Yes => {
            engine.counters.count(Counter::PoolWriteback);
            let to_area = engine.swap.put_away(&engine.frames, slot, frame, false);
            debug_assert!(to_area, "a page that repeats a word is not in the pool");
            Some(frame)
        }
        refused => {
            if refused == Started::RefusedAndAwaited {
                engine.wake_io(frame);
            }
            // Somebody came for it just now.
            engine.keep(frame, List::Inactive);
            None
        }
    }
}
