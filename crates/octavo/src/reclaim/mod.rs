//! Making room: moving cold pages out, and moving warm ones together.
//!
//! | file | what |
//! |---|---|
//! | `mod` | who reclaims when: direct, in the access that needs a frame; background, on the low watermark |
//! | `evict` | a batch of cold frames, out through the swap cache |
//! | `migrate` | a frame's bytes to another frame, its owners none the wiser |
//! | `compact` | emptying a chunk, for a block of order 9 or to give it back |
//! | `advise` | ranges that their users say are not wanted soon |
//! | `shrink_pool` | the coldest compressed pages go on to the areas |
//! | `quota` | a space at its own limit makes room among its own pages |
//! | `background` | the thread that keeps ahead |
//! | `signal` | what that thread is told |
//!
//! Reclaim never faults, never waits for a busy entry, and needs no allocation to make progress: a batch is on its
//! stack, slots and their words may go over the budget by a page, and the device takes the frames themselves.

mod advise;
mod background;
mod compact;
mod evict;
mod migrate;
mod quota;
mod shrink_pool;
mod signal;

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Waiter, in_place};
use crate::error::{Error, Result};
use crate::lru::{ISOLATED, Isolated, Place};
use crate::sync::{Duration, Instant, Ordering};
use crate::table::node::NodePool;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES};

pub(crate) use advise::{cool, page_out};
pub(crate) use background::Running;
use compact::try_shrink;
pub(crate) use compact::{block_for_fault, block_for_pool, shrink_to_budget};
pub(crate) use evict::evict_batch;
use evict::{Evict, evict};
pub(crate) use migrate::{Migrated, migrate};
pub(crate) use quota::make_room_under_quota;
pub(crate) use shrink_pool::shrink_pool;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reclaimer {
    Direct,
    Background,
}

impl Reclaimer {
    /// Pages looked at, and pages that went.
    fn counters(self) -> (Counter, Counter) {
        match self {
            Self::Direct => (Counter::ScanDirect, Counter::StealDirect),
            Self::Background => (Counter::ScanBackground, Counter::StealBackground),
        }
    }
}

/// Frames that direct reclaim tries to free before the access goes on.
const DIRECT_TARGET: u64 = 32;
/// Hot pages looked at where the cold ones cannot go.
const DEMOTED: u64 = 32;
/// Of all listed pages, one in so many may be in hand at once, but at least as many as here.
const HAND_SHARE: u64 = 64;
const LEAST_IN_HAND: u64 = 32;
/// Transfers' worth of pages that are sent out together.
const TRANSFERS: usize = 4;
/// Batches that may fail to be written in a row: as many as try the places of a few clusters that never were written.
const FAILURES: u32 = 24;
/// Pages looked at for each that is wanted, before those are written that were found.
const LOOKS: u64 = 8;
/// Pages under way at the most: a few times what keeps a device busy.
const MOST_WRITING_PAGES: u64 = 8192;
/// Pages looked at in vain before giving up: several times round a small memory.
const LEAST_LOOKS: u64 = 8192;
/// Rounds of reclaim to bring what is charged under the budget.
const SHRINK_LOOKS: u32 = 16;
/// How long to wait for what others are freeing: longer than a device takes for a batch.
const PATIENCE: Duration = Duration::from_secs(2);

/// Frames that reclaim has seen to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaimed {
    /// Free now.
    pub(crate) freed: u64,
    /// On their way out: free when they are written, if nobody comes for them.
    pub(crate) started: u64,
}

impl Reclaimed {
    pub(crate) fn total(self) -> u64 {
        self.freed + self.started
    }
}

/// Counts a thread or task that reclaims, for as long as it lives.
struct Reclaiming<'e>(&'e Engine);

impl<'e> Reclaiming<'e> {
    fn begin(engine: &'e Engine) -> Self {
        engine.reclaimers.fetch_add(1, Ordering::AcqRel);
        Self(engine)
    }
}

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        self.0.reclaimers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Frees about `target` frames, or as many as can be, or starts to. What cannot be waited for is left.
pub(crate) async fn reclaim(
    engine: &Engine,
    target: u64,
    who: Reclaimer,
    waiter: &mut Waiter<'_>,
) -> Reclaimed {
    let _reclaiming = Reclaiming::begin(engine);
    // Frames may only wait for somebody to take note: of reads that were given up, nobody else may.
    engine.poll_transfers();
    let mut done = Reclaimed::default();
    if engine.huge_zero.shrinkable_frames() > 0 {
        done.freed += u64::from(engine.huge_zero.shrink(&engine.frames));
    }
    // Batches, and pages looked at, since the last one that went.
    let (mut fruitless, mut in_vain) = (0_u32, 0);
    let mut stuck = false;
    // Pages that the devices have room for, as far as is known.
    let mut room = u64::MAX;
    // Each page may be met twice (its accessed mark is cleared first), and each list may have to be gone through.
    while done.total() < target && in_vain < LEAST_LOOKS + 4 * listed_pages(engine) {
        if u64::from(engine.transfers.writing_pages()) > most_writing_pages(engine)
            && !waiter.until_some_write_ends().await
            && waiter.has_given_up()
        {
            // More would only be in flight for longer.
            break;
        }
        if stuck {
            demote(engine);
        }
        let (ended, freed) = (engine.transfers.ended_pages(), engine.transfers.freed_pages());
        let ends = engine.ends();
        // What has failed often enough to have been tried at other places need not be tried with each page; what is clean
        // goes without.
        let in_vain_lately = fruitless >= FAILURES && !fruitless.is_power_of_two();
        let what = if engine.swap.is_silent() || engine.swap.is_failing() && in_vain_lately {
            Evict::Clean
        } else {
            Evict::All
        };
        let Some((looked, mut outcome)) = evict_some(engine, room, what, who) else {
            // What is left may be on its way there, in some CPU's batch.
            engine.lru.drain_all(&engine.frames);
            if listed_pages(engine) == 0 {
                break;
            }
            in_vain += 32;
            continue;
        };
        if engine.swap.is_failing() {
            // Only what has got out counts.
            waiter.until_written(ended + outcome.started).await;
            outcome.freed += engine.transfers.freed_pages() - freed;
            outcome.started = 0;
        }
        let gone = outcome.freed + outcome.started;
        engine.counters.add(who.counters().1, gone);
        done.freed += outcome.freed;
        done.started += outcome.started;
        (fruitless, in_vain) = if gone > 0 { (0, 0) } else { (fruitless + 1, in_vain + looked) };
        room = if outcome.full { outcome.started.max(LEAST_IN_HAND) } else { room.saturating_mul(2) };
        if outcome.full && !waiter.until_room(ends).await {
            break;
        }
        // What cannot be written stays; behind it, and on the active list, may be what need not be.
        stuck = outcome.obstructed || engine.swap.is_failing();
        if stuck && done.total() == 0 && in_vain > 256 + listed_pages(engine) {
            break;
        }
    }
    done
}

/// Evicts a batch of candidates. Says at how many it has looked; `None`: there were none. Apart from [`reclaim`], so that no
/// batch is kept while somebody waits.
fn evict_some(engine: &Engine, room: u64, what: Evict, who: Reclaimer) -> Option<(u64, evict::Outcome)> {
    let (looked, batch) = next_batch(engine, room);
    if looked == 0 {
        return None;
    }
    engine.counters.add(who.counters().0, looked);
    Some((looked, evict(engine, batch, what)))
}

/// As [`reclaim`], and waits for what it started. Says how many frames were freed meanwhile.
pub(crate) fn reclaim_and_settle(engine: &Engine, target: u64, who: Reclaimer) -> u64 {
    let mut all = 0;
    while all < target {
        let (ended, freed) = (engine.transfers.ended_pages(), engine.transfers.freed_pages());
        let done = in_place(reclaim(engine, target - all, who, &mut Waiter::patient(engine)));
        engine.wait_until_ended(ended + done.started);
        let written = if done.started > 0 { engine.transfers.freed_pages() - freed } else { 0 };
        if done.freed + written == 0 {
            break;
        }
        all += done.freed + written;
    }
    all
}

fn listed_pages(engine: &Engine) -> u64 {
    let (active, inactive) = engine.lru.pages();
    active + inactive
}

/// More pages under way would take memory from those who use it, and gain no speed.
fn most_writing_pages(engine: &Engine) -> u64 {
    (engine.budget.limit_pages() / 8).min(MOST_WRITING_PAGES)
}

/// Looks at candidates until as many pages are to go as are written together, and as there is `room` for, but not at all of a
/// memory that is in use. A block counts all its pages. Says at how many pages it has looked.
fn next_batch(engine: &Engine, room: u64) -> (u64, Isolated) {
    // A small memory's cold pages are few: they must not all be in hand.
    // Several transfers' worth: sorted by owner, each task's pages then lie together, however they were mixed.
    let most = ((engine.swap.write_batch() * TRANSFERS).min(ISOLATED) as u64)
        .min(room)
        .min((listed_pages(engine) / HAND_SHARE).max(LEAST_IN_HAND));
    let (mut looked, mut going) = (0, Isolated::new());
    while going.pages() < most && looked < LOOKS * most {
        match look_at(engine, most - going.pages(), false, &mut going) {
            0 => break,
            some => looked += some,
        }
    }
    (looked, going)
}

/// Hot pages that are not used join the cold: what is there cannot go, but clean ones may.
fn demote(engine: &Engine) {
    let mut going = Isolated::new();
    look_at(engine, DEMOTED, true, &mut going);
    for frame in going {
        engine.putback(frame, Place::Cold);
    }
}

/// Takes candidates of about `most` pages, tests their marks, and has the policy decide. Says how many pages they have.
fn look_at(engine: &Engine, most: u64, stuck: bool, going: &mut Isolated) -> u64 {
    let free_last = |frame| engine.free_last(frame);
    let candidates = engine.lru.candidates(&engine.frames, most, stuck, free_last);
    let pages = candidates.iter().map(|candidate| candidate.frame.pages(&engine.frames)).sum();
    let looks: SmallVec<[_; 64]> = candidates
        .into_iter()
        .map(|candidate| {
            let look = evict::look(engine, candidate.frame.frame());
            (candidate, look)
        })
        .collect();
    let decided = engine.lru.decide(&engine.frames, looks, going, free_last);
    engine.counters.add(Counter::PageActivated, decided.activated);
    engine.counters.add(Counter::PageDeactivated, decided.deactivated);
    pages
}

/// Makes room for an access that found no frame.
///
/// # Errors
/// What stands in the way: the swap area is full or failing, or nothing is left that could go; `TimedOut` when the waiter's
/// deadline has passed.
pub(crate) async fn make_room(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<()> {
    engine.counters.count(Counter::AllocationStall);
    let start = engine.machine.clock.now();
    let result = try_make_room(engine, start, waiter).await;
    engine.counters.add(Counter::StallNanoseconds, engine.machine.clock.since(start).as_nanos() as u64);
    result
}

async fn try_make_room(engine: &Engine, start: Instant, waiter: &mut Waiter<'_>) -> Result<()> {
    // What failed before is no reason now, unless it fails again.
    engine.swap.forget_failure();
    if engine.budget.room_bytes() < 0 {
        // Tables and maps took more than their share: chunks make up for it, though nobody may be in the background.
        shrink(engine, 0, waiter).await?;
    }
    for look in 0.. {
        let ended = engine.transfers.freed_pages();
        let gone = reclaim(engine, DIRECT_TARGET, Reclaimer::Direct, waiter).await;
        // What has only been started is no room yet.
        while gone.freed == 0
            && engine.frames.free_frames() < DIRECT_TARGET
            && engine.transfers.freed_pages() == ended
            && engine.transfers.writing_pages() > 0
        {
            if !waiter.until_some_write_ends().await {
                let has_room = engine.frames.free_frames() > 0;
                return if has_room { Ok(()) } else { Err(engine.swap.timed_out()) };
            }
        }
        if gone.freed > 0
            || engine.frames.free_frames() >= DIRECT_TARGET
            || engine.transfers.freed_pages() != ended
            || (gone.total() > 0 && !engine.swap.is_failing())
        {
            return Ok(());
        }
        // Others may have everything in hand that could be freed: theirs will be room for us too. But they may be
        // waiting for the same.
        let alone = engine.reclaimers.load(Ordering::Acquire) == 0;
        let reading = engine.transfers.reading_pages() > 0;
        if look >= 2 && (alone && !reading || engine.machine.clock.since(start) > PATIENCE) {
            break;
        }
        // Pages that are read, and that nobody waits for any more, can go again.
        if !waiter.until_some_read_ends().await {
            return Err(engine.swap.timed_out());
        }
        waiter.give_way().await;
    }
    Err(obstacle(engine))
}

/// Makes room in the budget for table nodes, by giving a chunk back.
///
/// # Errors
/// As [`make_room`].
pub(crate) async fn make_room_for_node(engine: &Engine, waiter: &mut Waiter<'_>) -> Result<()> {
    let needed = NodePool::growth_bytes() as i64;
    if engine.budget.room_bytes() < needed {
        shrink(engine, CHUNK_BYTES as u64 / 2, waiter).await?;
    }
    if engine.budget.room_bytes() >= needed { Ok(()) } else { Err(obstacle(engine)) }
}

/// Gives chunks back until what is charged leaves `room_bytes` under the limit, as far as that goes: pages move to frames that
/// reclaim makes free.
///
/// # Errors
/// `TimedOut` when the waiter's deadline has passed.
async fn shrink(engine: &Engine, room_bytes: u64, waiter: &mut Waiter<'_>) -> Result<()> {
    for _ in 0..SHRINK_LOOKS {
        if try_shrink(engine, room_bytes) {
            break;
        }
        let done = reclaim(engine, u64::from(CHUNK_FRAMES), Reclaimer::Direct, waiter).await;
        if done.started > 0 {
            let ended = engine.transfers.ended_pages() + done.started;
            if !waiter.until_written(ended).await && waiter.has_given_up() {
                return Err(engine.swap.timed_out());
            }
        }
        if done.total() == 0 {
            // Others may have in hand what could go.
            waiter.give_way().await;
        }
    }
    Ok(())
}

fn obstacle(engine: &Engine) -> Error {
    engine.swap.obstacle().unwrap_or_else(|| engine.out_of_memory())
}
