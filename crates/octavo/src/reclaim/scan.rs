//! A scan for cold pages: it looks at candidates, and sends them out in batches, until enough frames are free
//! or on their way.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Waiter, in_place};
use crate::lru::{ISOLATED, Isolated, Place};
use crate::reclaim::away;
use crate::reclaim::evict::{self, Evict, evict};
use crate::swap::Pool;
use crate::sync::Ordering;

/// Whether an access reclaims, or the background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reclaimer {
    Direct,
    Background,
}

impl Reclaimer {
    /// Returns the counters of pages looked at, and of pages that went.
    fn counters(self) -> (Counter, Counter) {
        match self {
            Self::Direct => (Counter::ScanDirect, Counter::StealDirect),
            Self::Background => (Counter::ScanBackground, Counter::StealBackground),
        }
    }
}

/// Hot pages that a scan looks at where the cold ones cannot go.
const DEMOTED: u64 = 32;
/// One in so many of all listed pages may be in hand at once, but always at least `LEAST_IN_HAND`.
const HAND_SHARE: u64 = 64;
const LEAST_IN_HAND: u64 = 32;
/// The most pages in hand while they are packed: so many take less than a millisecond.
const PACKED_TOGETHER: u64 = 64;
/// Pages go out together by so many transfers' worth.
const TRANSFERS: usize = 4;
/// Batches in a row whose write may fail. So many batches try the slots of a few clusters that were never
/// written.
const FAILURES: u32 = 24;
/// Pages looked at for each wanted page, before a scan writes those that it found.
const LOOKS: u64 = 8;
/// Pages that a scan looks at in vain before it gives up: several times round a small memory.
const LEAST_LOOKS: u64 = 8192;
/// A scan asks translations about the use of pages until it has looked at so many, and at one in so many of
/// all pages, in vain.
const ASKED_SHARE: u64 = 4;

/// Frames that reclaim freed, or began to free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaimed {
    /// Frames that are free now.
    pub(crate) freed: u64,
    /// Frames on their way out. Each is free when it is written, if nobody comes for its page.
    pub(crate) started: u64,
}

impl Reclaimed {
    pub(crate) fn total(self) -> u64 {
        self.freed + self.started
    }
}

/// A scan of a thread or task, which counts as one that reclaims for as long as this value lives.
struct Scan<'e> {
    engine: &'e Engine,
    who: Reclaimer,
    /// It asks translations about the use of pages.
    asks: bool,
}

impl<'e> Scan<'e> {
    fn begin(engine: &'e Engine, who: Reclaimer) -> Self {
        engine.reclaimers.fetch_add(1, Ordering::AcqRel);
        Self { engine, who, asks: true }
    }

    /// Evicts a batch of candidates. Returns how many pages it looked at, or `None` where there were no
    /// candidates. It is apart from [`reclaim`], so that no batch stays on the stack while a task waits.
    fn evict_some(&self, room: u64, what: Evict) -> Option<(u64, evict::Outcome)> {
        let (looked, batch) = self.next_batch(room);
        if looked == 0 {
            return None;
        }
        self.engine.counters.add(self.who.counters().0, looked);
        Some((looked, evict(self.engine, batch, what)))
    }

    /// Looks at candidates until as many pages are to go as are written together, and as there is `room` for.
    /// A block counts with all of its pages. Where memory is in use, it does not look at all of it. Returns
    /// at how many pages it looked.
    fn next_batch(&self, room: u64) -> (u64, Isolated) {
        let engine = self.engine;
        // A small memory has few cold pages, and they must not all be in hand. Several transfers' worth go
        // together. Sorted by owner, the pages of each task then lie together, however they were mixed.
        let most = ((engine.swap.write_batch() * TRANSFERS).min(ISOLATED) as u64)
            .min(room)
            .min(engine.swap.most_writing_pages())
            .min((listed_pages(engine) / HAND_SHARE).max(LEAST_IN_HAND))
            .min(if packs_away_pages(engine) { PACKED_TOGETHER } else { u64::MAX });
        let (mut looked, mut going) = (0, Isolated::new());
        while going.pages() < most && looked < LOOKS * most {
            match self.look_at(most - going.pages(), false, &mut going) {
                0 => break,
                some => looked += some,
            }
        }
        (looked, going)
    }

    /// Makes hot pages without use cold. The cold pages that are there cannot go, but clean ones among these
    /// may.
    fn demote(&self) {
        let mut going = Isolated::new();
        self.look_at(DEMOTED, true, &mut going);
        for frame in going {
            self.engine.putback(frame, Place::Cold);
        }
    }

    /// Takes candidates of about `most` pages, tests their marks, and has the policy decide. Returns how many
    /// pages they have.
    fn look_at(&self, most: u64, stuck: bool, going: &mut Isolated) -> u64 {
        let engine = self.engine;
        let unpin = |pin| engine.unpin(pin);
        let candidates = engine.lru.candidates(&engine.frames, most, stuck, unpin);
        let pages = candidates.iter().map(|candidate| candidate.frame.pages(&engine.frames)).sum();
        if self.asks {
            away::harvest(engine, &candidates);
        }
        let looks: SmallVec<[_; 64]> = candidates
            .into_iter()
            .map(|candidate| {
                let look = evict::look(engine, candidate.frame.frame());
                (candidate, look)
            })
            .collect();
        let decided = engine.lru.decide(&engine.frames, looks, going, unpin);
        engine.counters.add(Counter::PageActivated, decided.activated);
        engine.counters.add(Counter::PageDeactivated, decided.deactivated);
        pages
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        let before = self.engine.reclaimers.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a scan was counted once");
    }
}

/// Frees about `target` frames, or starts to, or as many as it can. It leaves the frames for which it cannot
/// wait.
pub(crate) async fn reclaim(
    engine: &Engine,
    target: u64,
    who: Reclaimer,
    waiter: &mut Waiter<'_>,
) -> Reclaimed {
    let mut scan = Scan::begin(engine, who);
    // Frames may only wait for a thread to take note of a completion. Where reads were given up, no other
    // thread may do so.
    engine.poll_transfers();
    engine.try_immovable(true);
    let mut done = Reclaimed::default();
    if engine.huge_zero.shrinkable_frames() > 0 {
        done.freed += u64::from(engine.huge_zero.shrink(&engine.frames));
    }
    // Batches, and pages looked at, since the last page that went.
    let (mut fruitless, mut in_vain) = (0_u32, 0);
    let mut stuck = false;
    // Pages that the devices have room for, as far as is known.
    let mut room = u64::MAX;
    // A scan may meet each page twice, because it first clears the accessed mark. It may have to go through
    // each list.
    while done.total() < target && in_vain < LEAST_LOOKS + 4 * listed_pages(engine) {
        let most = most_writing_pages(engine);
        // More pages under way would only be so for longer. Who cannot wait takes pages that need no write.
        let may_write = engine.coming_pages() <= most
            || waiter.until_some_write_ends_above(most).await
            || !waiter.has_given_up();
        // Use that translations tell of is a hint, and must not stand in the way where all pages seem to be
        // in use.
        scan.asks &= in_vain <= LEAST_LOOKS + listed_pages(engine) / ASKED_SHARE;
        if stuck {
            scan.demote();
        }
        let (ended, freed) = (engine.transfers.ended_pages(), engine.transfers.freed_pages());
        let ends = engine.ends();
        // After so many failures, other slots have been tried too. So dirty pages are only tried now and
        // then. Clean pages go at any time.
        let in_vain_lately = fruitless >= FAILURES && !fruitless.is_power_of_two();
        let what = if !may_write || engine.swap.is_silent() || engine.swap.is_failing() && in_vain_lately {
            Evict::Clean
        } else {
            Evict::All
        };
        let Some((looked, mut outcome)) = scan.evict_some(room, what) else {
            // The pages that are left may be on their way to a list, in some CPU's batch.
            engine.lru.drain_all(&engine.frames);
            if listed_pages(engine) == 0 && (done.total() > 0 || !engine.try_immovable(false)) {
                break;
            }
            in_vain += 32;
            continue;
        };
        if engine.swap.is_failing() {
            // Only pages that are written count.
            waiter.until_written(ended + outcome.started).await;
            outcome.freed += engine.transfers.freed_pages() - freed;
            outcome.started = 0;
        }
        let gone = outcome.freed + outcome.started;
        if !may_write && gone == 0 {
            break;
        }
        engine.counters.add(who.counters().1, gone);
        done.freed += outcome.freed;
        done.started += outcome.started;
        (fruitless, in_vain) = if gone > 0 { (0, 0) } else { (fruitless + 1, in_vain + looked) };
        room = if outcome.full { outcome.started.max(LEAST_IN_HAND) } else { room.saturating_mul(2) };
        if outcome.full && !waiter.until_room(ends).await {
            break;
        }
        // Pages that cannot be written stay. Behind them, and among the hot pages, may be pages that need no
        // write.
        stuck = may_write && outcome.obstructed || engine.swap.is_failing();
        // Other pages that need a slot would be looked at in vain.
        if outcome.obstructed && done.total() > 0 && engine.swap.slots.is_full() {
            break;
        }
        if stuck && done.total() == 0 && in_vain > 256 + listed_pages(engine) {
            break;
        }
        if !waiter.blocks() && done.total() < target {
            // The thread that polls has others to serve. Meanwhile nothing is in hand here, for which they
            // would wait.
            let asks = scan.asks;
            drop(scan);
            waiter.give_way().await;
            scan = Scan::begin(engine, who);
            scan.asks = asks;
        }
    }
    done
}

/// Reclaims as [`reclaim`] does, and waits for the writes that it started. Returns how many frames were freed
/// meanwhile.
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
    let (hot, cold) = engine.lru.pages();
    hot + cold
}

/// Returns the pages under way above which no more should begin.
pub(super) fn most_writing_pages(engine: &Engine) -> u64 {
    (engine.budget.limit_pages() / 8).min(engine.swap.most_writing_pages())
}

/// Returns whether pages that are away go into the pool. A fault for such a page waits while it is in hand,
/// and others of its batch are packed.
fn packs_away_pages(engine: &Engine) -> bool {
    engine.has_translations() && engine.swap.pool().is_some_and(Pool::packs)
}
