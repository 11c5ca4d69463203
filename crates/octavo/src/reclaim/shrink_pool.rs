//! The coldest pages of the compressed pool go on to the areas.
//!
//! A page that is on its area as well is dropped. Any other page is unpacked into a frame of the swap cache,
//! as if a fault had asked for it. From there it goes out as any dirty page does, past the pool. So a fault
//! finds the page at every moment, and no protocol is needed beyond those of faults and of eviction.

use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::io::Urgency;
use crate::lru::IsolatedFrame;
use crate::reclaim::evict::{Away, after_put_away, write_out};
use crate::store::Going;
use crate::swap::{Brought, Pool, WRITE_BATCH, Wanted};
use crate::units::{CHUNK_BYTES, Order, SwapSlot};

/// How many pages leave an oversized pool in one round.
const FITTED: usize = 512;

/// The outcome of a round of shrinking.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shrunk {
    /// Pages on their way to an area.
    pub(crate) started: u64,
    /// Pages that have left, since their area has them.
    pub(crate) dropped: u64,
}

impl Shrunk {
    /// Returns whether no page leaves.
    pub(crate) fn is_nothing(self) -> bool {
        self.started + self.dropped == 0
    }
}

/// Sends about `pages` of the coldest pages on to the areas.
pub(crate) fn shrink_pool(engine: &Engine, pages: usize) -> Shrunk {
    let mut shrunk = Shrunk::default();
    let Some(pool) = engine.swap.pool() else { return shrunk };
    // The engine lends the list, so that this call allocates nothing. A second caller at the same time has to
    // allocate one.
    let mut named = std::mem::take(&mut *engine.pool_victims.lock());
    named.clear();
    pool.coldest(&engine.frames, pages, &mut named);
    let mut going = Going::new();
    for &(slot, handle) in &named {
        let is_out = engine.swap.cache.is_out(slot);
        if engine.swap.drop_copy(&engine.frames, slot) {
            shrunk.dropped += 1;
            // A page in memory has come back already, and only its copy goes.
            if is_out {
                pool.note_left();
            }
            continue;
        }
        match unpack(engine, slot) {
            Some(frame) => {
                pool.note_left();
                going.push((slot.stored(), frame));
            }
            // The page is in memory, or gone, or there is no frame for it.
            None => pool.stays(handle),
        }
        if going.len() == WRITE_BATCH {
            shrunk.started += write_out(engine, std::mem::take(&mut going));
        }
    }
    *engine.pool_victims.lock() = named;
    shrunk.started += write_out(engine, going);
    engine.flush_devices();
    shrunk
}

/// Brings the pool under its share of the budget, which may have been lowered. Gives back the blocks that
/// become empty.
pub(crate) fn fit_pool(engine: &Engine) {
    let Some(pool) = engine.swap.pool() else { return };
    pool.set_limit_bytes(Pool::share_of(engine.budget.limit_bytes()));
    // Other threads may fill the pool again meanwhile.
    let most_rounds = 8 + pool.stats().pages / FITTED as u64;
    let mut rounds = 0;
    loop {
        let stats = pool.stats();
        let excess = stats.used_bytes.saturating_sub(stats.limit_bytes);
        if excess == 0 {
            return;
        }
        let ended = engine.transfers.ended_pages();
        let shrunk = shrink_pool(engine, FITTED);
        if !engine.wait_until_ended(ended + shrunk.started) {
            return;
        }
        let blocks = excess.div_ceil(CHUNK_BYTES as u64) as usize;
        let given =
            pool.give_back(&engine.frames, blocks, |slot, from, to| engine.swap.retarget(slot, from, to));
        rounds += 1;
        if shrunk.is_nothing() && given == 0 || engine.swap.is_failing() || rounds == most_rounds {
            return;
        }
    }
}

/// Gives a block of the pool back, if its pages fit into the others. Otherwise sends the coldest pages on,
/// which takes a frame or more. Returns whether the pool has become smaller. It does not tell whether the
/// waiter's deadline has passed.
pub(super) async fn give_pool_back(engine: &Engine, waiter: &mut Waiter<'_>) -> bool {
    let Some(pool) = engine.swap.pool().filter(|_| !engine.swap.is_failing()) else { return false };
    let give_block_back =
        || pool.give_back(&engine.frames, 1, |slot, from, to| engine.swap.retarget(slot, from, to)) > 0;
    if give_block_back() {
        return true;
    }
    let ended = engine.transfers.ended_pages();
    let shrunk = shrink_pool(engine, FITTED);
    if shrunk.started > 0 {
        waiter.until_written(ended + shrunk.started).await;
    }
    give_block_back() || !shrunk.is_nothing()
}

/// Unpacks a page of the pool into a frame under WRITEBACK, with a pin for the transfer.
fn unpack(engine: &Engine, slot: SwapSlot) -> Option<IsolatedFrame> {
    let (pin, _) = engine.begin_read_ahead(slot.stored(), engine.frames.alloc(Order::ZERO)?)?;
    let frame = pin.frame();
    let failure = match engine.swap.bring(&engine.frames, slot, frame, Wanted::No) {
        Brought::Unpacked | Brought::Filled => None,
        Brought::Corrupt => Some(engine.swap.corrupt(slot)),
        Brought::OnDevice => {
            // The page was written meanwhile, and a thread may already wait for it. So it is read.
            engine.start_read(slot.stored(), [pin], Urgency::Queued);
            engine.flush_devices();
            return None;
        }
        // The page was unmapped meanwhile, so nobody asks for it.
        Brought::Gone => Some(engine.swap.freed(slot)),
    };
    if failure.is_some() {
        engine.end_read_of(slot.stored(), pin, failure);
        return None;
    }
    // The frame was on no list yet.
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
            // The page repeats one word by now.
            engine.evict_or_putback([(slot.stored(), frame)].into_iter().collect());
            None
        }
    }
}
