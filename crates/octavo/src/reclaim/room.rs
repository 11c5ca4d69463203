//! Making room for an access that found no frame, no table node, or no room for a page that is away.

use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::error::{Error, Result};
use crate::frame::Block;
use crate::latency::Latency;
use crate::reclaim::scan::{Reclaimer, most_writing_pages, reclaim};
use crate::reclaim::shrink::{shrink_while_waiting, try_shrink};
use crate::reclaim::shrink_pool::give_pool_back;
use crate::sync::{Duration, Instant, Ordering};
use crate::table::node::NodePool;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, Order};

/// Frames that direct reclaim tries to free before the access goes on.
const DIRECT_TARGET: u64 = 32;
/// How often in a row an access looks for room in vain before it gives up, if no other thread is at work.
const MOST_FRUITLESS: u32 = 2;
/// How often an access takes memory from the compressed pool before it gives up.
const MOST_TRIES: u32 = 16;
/// How long an access waits for frames that others are freeing. It is longer than a device takes for a batch.
const PATIENCE: Duration = Duration::from_secs(2);

/// Makes room for an access that found no frame.
///
/// # Errors
/// The obstacle: the swap area is full or failing, or no page is left that could go. `TimedOut` when the
/// waiter's deadline has passed.
pub(crate) async fn make_room(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<()> {
    stalled(engine, async |start| {
        if is_made_by_others(engine, waiter).await {
            return Ok(());
        }
        try_make_room(engine, start, waiter).await
    })
    .await
}

/// As [`make_room`], for a caller that needs many frames: pages always go out for it.
///
/// # Errors
/// As for [`make_room`].
pub(super) async fn make_more_room(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<()> {
    stalled(engine, async |start| try_make_room(engine, start, waiter).await).await
}

/// If enough writes of other threads are under way, waits for one to end. The frames that it frees are enough
/// for an access.
async fn is_made_by_others(engine: &Engine, waiter: &mut Waiter<'_>) -> bool {
    let most = most_writing_pages(engine);
    if engine.coming_pages() <= most || engine.huge_zero.shrinkable_frames() > 0 {
        return false;
    }
    let freed = engine.transfers.freed_pages();
    waiter.until_some_write_ends_above(most).await && engine.transfers.freed_pages() != freed
}

/// Counts the time that an access spends on making room.
async fn stalled<T>(engine: &Engine, make: impl AsyncFnOnce(Instant) -> T) -> T {
    engine.counters.count(Counter::AllocationStall);
    let start = engine.machine.clock.now();
    let made = make(start).await;
    let took = engine.machine.clock.since(start);
    engine.counters.add(Counter::StallNanoseconds, took.as_nanos() as u64);
    engine.latencies.note(Latency::Stall, took);
    made
}

async fn try_make_room(engine: &Engine, start: Instant, waiter: &mut Waiter<'_>) -> Result<()> {
    // An earlier failure is no reason now, unless it happens again.
    let failures = engine.swap.areas.failures();
    if engine.budget.room_bytes() < 0 {
        // Tables and maps took more than their share. Chunks make up for it, since there may be no background
        // thread.
        shrink_while_waiting(engine, 0, waiter).await?;
    }
    let mut pool = LastResort::default();
    for look in 0.. {
        let ended = engine.transfers.freed_pages();
        let gone = reclaim(engine, DIRECT_TARGET, Reclaimer::Direct, waiter).await;
        // Pages whose writes were only started are no room yet. The thread waits for no more writes than are
        // under way now: if all fail, other threads may begin new ones forever. Free frames are counted last,
        // since that reads all CPUs' lists.
        let last = engine.transfers.ended_pages() + u64::from(engine.transfers.writing_pages());
        while gone.freed == 0
            && engine.transfers.freed_pages() == ended
            && engine.transfers.writing_pages() > 0
            && engine.transfers.ended_pages() < last
            && engine.frames.free_frames() < DIRECT_TARGET
        {
            if !waiter.until_some_write_ends().await {
                let has_room = engine.frames.free_frames() > 0;
                return if has_room { Ok(()) } else { Err(engine.swap.areas.timed_out()) };
            }
        }
        if gone.freed > 0
            || engine.transfers.freed_pages() != ended
            || (gone.total() > 0 && !engine.swap.is_failing())
        {
            return Ok(());
        }
        // The access may not have looked at other CPUs' lists.
        engine.frames.drain();
        if engine.frames.free_frames() >= DIRECT_TARGET {
            return Ok(());
        }
        // Other threads may hold all frames that could be freed. Those frames will be room for this access
        // too, but the threads may wait for room themselves.
        if look >= MOST_FRUITLESS && others_are_done(engine, start) && !pool.is_smaller(engine, waiter).await
        {
            break;
        }
        // Pages whose reads have ended, and that no thread waits for any more, can go again.
        if !waiter.until_some_read_ends().await {
            return Err(engine.swap.areas.timed_out());
        }
        waiter.give_way().await;
    }
    Err(obstacle(engine, failures))
}

/// Makes room for a new page when slots are few, besides the room that is kept for pages that come in.
///
/// # Errors
/// As for [`make_room`].
pub(crate) async fn make_room_to_grow(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<()> {
    stalled(engine, async |start| try_make_room_to_grow(engine, start, waiter).await).await
}

async fn try_make_room_to_grow(engine: &Engine, start: Instant, waiter: &mut Waiter<'_>) -> Result<()> {
    let (mut fruitless, mut most, mut pool) = (0, i64::MIN, LastResort::default());
    loop {
        // Pages that keep their slot go out without taking a slot, and so add room. The others turn a free
        // slot into a free frame.
        reclaim(engine, DIRECT_TARGET, Reclaimer::Direct, waiter).await;
        let last = engine.transfers.ended_pages() + u64::from(engine.transfers.writing_pages());
        while !engine.may_grow(1)
            && engine.transfers.writing_pages() > 0
            && engine.transfers.ended_pages() < last
        {
            if !waiter.until_some_write_ends().await {
                return Err(engine.swap.areas.timed_out());
            }
        }
        if engine.may_grow(1) {
            return Ok(());
        }
        let spare = engine.spare_pages();
        fruitless = if spare > most { 0 } else { fruitless + 1 };
        most = most.max(spare);
        if fruitless > MOST_FRUITLESS && others_are_done(engine, start) {
            if !pool.is_smaller(engine, waiter).await {
                return Err(engine.swap.why_no_new_pages());
            }
            fruitless = 0;
        }
        if !waiter.until_some_read_ends().await {
            return Err(engine.swap.areas.timed_out());
        }
        waiter.give_way().await;
    }
}

/// Makes room in the budget for a page that is away, and takes that room at once: otherwise, frames at home
/// would take it. A page that is away makes room as soon as it goes out. If only pages at home go out, one of
/// their chunks is given back.
///
/// # Errors
/// As for [`make_room`].
pub(crate) async fn make_room_away(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<Block> {
    stalled(engine, async |start| try_make_room_away(engine, start, waiter).await).await
}

async fn try_make_room_away(engine: &Engine, start: Instant, waiter: &mut Waiter<'_>) -> Result<Block> {
    let failures = engine.swap.areas.failures();
    let (mut fruitless, mut wanted_pages, mut pool) = (0, DIRECT_TARGET, LastResort::default());
    give_idle_back(engine, 0, 1);
    loop {
        if let Some(block) = engine.frames.alloc_away(Order::ZERO) {
            return Ok(block);
        }
        let gone = reclaim(engine, wanted_pages, Reclaimer::Direct, waiter).await;
        if let Some(block) = engine.frames.alloc_away(Order::ZERO) {
            return Ok(block);
        }
        let needed_bytes = engine.frames.away_cost_bytes(1);
        try_shrink(engine, engine.budget.headroom_bytes() + needed_bytes);
        if let Some(block) = engine.frames.alloc_away(Order::ZERO) {
            return Ok(block);
        }
        // The pages of a chunk need frames to move to.
        wanted_pages = u64::from(CHUNK_FRAMES);
        let ended = engine.transfers.freed_pages();
        if gone.freed == 0 && engine.transfers.writing_pages() > 0 {
            // Frames at home that are being written may be all that is missing.
            if !waiter.until_some_write_ends().await {
                return Err(engine.swap.areas.timed_out());
            }
            // A write that fails is no progress, and other threads may begin such writes without end.
            if !engine.swap.is_failing() {
                continue;
            }
        }
        if waiter.has_given_up() {
            return Err(engine.swap.areas.timed_out());
        }
        let has_freed = gone.freed > 0 || engine.transfers.freed_pages() != ended;
        let is_progress = has_freed || gone.total() > 0 && !engine.swap.is_failing();
        fruitless = if is_progress { 0 } else { fruitless + 1 };
        if fruitless > MOST_FRUITLESS && others_are_done(engine, start) {
            if !pool.is_smaller(engine, waiter).await {
                return Err(obstacle(engine, failures));
            }
            fruitless = 0;
        }
        waiter.give_way().await;
    }
}

/// Makes room in the budget for at least one page that is away. Makes room for up to `pages`, as far as other
/// pages can go out without delay.
///
/// # Errors
/// As for [`make_room`].
pub(crate) async fn make_room_for_away(engine: &Engine, pages: u64, waiter: &mut Waiter<'_>) -> Result<()> {
    let block = make_room_away(engine, waiter).await?;
    engine.frames.give_back(block);
    if engine.budget.headroom_bytes() < engine.frames.away_cost_bytes(pages) {
        reclaim(engine, pages, Reclaimer::Direct, waiter).await;
    }
    Ok(())
}

/// Gives back chunks that lie idle at home, so that `pages` more pages can be away without evicting any. Home
/// keeps `kept_frames` and the idle frames of the watermarks. The pool closes blocks that keep chunks from
/// being emptied.
pub(super) fn give_idle_back(engine: &Engine, kept_frames: u64, pages: u64) {
    let kept_frames = kept_frames + engine.frames.watermarks().idle_frames;
    while engine.frames.free_frames() > kept_frames
        && !try_shrink(engine, engine.budget.headroom_bytes() + engine.frames.away_cost_bytes(pages))
        && engine.frames.free_frames() > kept_frames + u64::from(CHUNK_FRAMES)
        && engine.swap.pool().is_some_and(|pool| pool.give_small_back(&engine.frames))
    {}
}

/// The compressed pool, which gives memory back if nothing else does.
#[derive(Default)]
struct LastResort {
    /// Limited, since pages that go out meanwhile may fill the pool again.
    tries: u32,
}

impl LastResort {
    async fn is_smaller(&mut self, engine: &Engine, waiter: &mut Waiter<'_>) -> bool {
        self.tries += 1;
        self.tries <= MOST_TRIES && give_pool_back(engine, waiter).await
    }
}

/// Returns whether to expect no room from other threads: none of them holds pages that could become room, or
/// this access has waited too long.
fn others_are_done(engine: &Engine, start: Instant) -> bool {
    let alone = engine.reclaimers.load(Ordering::Acquire) == 0;
    let reading = engine.transfers.reading_pages() > 0;
    alone && !reading || engine.machine.clock.since(start) > PATIENCE
}

/// Makes room in the budget for table nodes, by giving a chunk back.
///
/// # Errors
/// As for [`make_room`].
pub(crate) async fn make_room_for_node(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<()> {
    let needed = NodePool::growth_bytes() as i64;
    let failures = engine.swap.areas.failures();
    if engine.budget.room_bytes() < needed {
        shrink_while_waiting(engine, CHUNK_BYTES as u64 / 2, waiter).await?;
    }
    if engine.budget.room_bytes() >= needed { Ok(()) } else { Err(obstacle(engine, failures)) }
}

/// Returns the error for the obstacle: silent devices, writes that have failed since `failures` were counted,
/// or full areas; otherwise, too little memory.
fn obstacle(engine: &Engine, failures: u64) -> Error {
    engine.swap.obstacle(failures).unwrap_or_else(|| engine.out_of_memory())
}
