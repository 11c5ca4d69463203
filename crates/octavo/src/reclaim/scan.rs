//! One scan for cold pages: candidates are looked at, and go out in batches, until enough are free or on their way.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Waiter, in_place};
use crate::lru::{ISOLATED, Isolated, Place};
use crate::reclaim::evict::{self, Evict, evict};
use crate::sync::Ordering;

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
pub(crate) fn reclaim_and_wait(engine: &Engine, target: u64, who: Reclaimer) -> u64 {
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
pub(super) fn most_writing_pages(engine: &Engine) -> u64 {
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
