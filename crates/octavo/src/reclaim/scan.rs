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

/// The kind of reclaimer: an access, or the background thread.
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

/// Hot pages that a scan looks at if the cold ones cannot go.
const DEMOTED: u64 = 32;
/// A scan holds at most one in this many of all listed pages at once, but may always hold `LEAST_IN_HAND`.
const HAND_SHARE: u64 = 64;
const LEAST_IN_HAND: u64 = 32;
/// The most pages that a scan holds while they are packed. Packing this many takes less than a millisecond.
const PACKED_TOGETHER: u64 = 64;
/// The size of a batch, in transfers.
const TRANSFERS: usize = 4;
/// The number of batches in a row whose write may fail. This many batches try the slots of a few clusters
/// that were never written.
const FAILURES: u32 = 24;
/// Pages looked at for each wanted page, before a scan writes those that it found.
const LOOKS: u64 = 8;
/// Pages that a scan looks at in vain before it gives up: several times round a small memory.
const LEAST_LOOKS: u64 = 8192;
/// A scan asks translations which pages were used. It stops asking after it has looked in vain at more than
/// `LEAST_LOOKS` pages plus one in this many of all listed pages.
const ASKED_SHARE: u64 = 4;

/// Frames that reclaim freed, or began to free.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reclaimed {
    /// Frames that are free now.
    pub(crate) freed: u64,
    /// Frames on their way out. Each becomes free when its write ends, unless a fault takes its page back.
    pub(crate) started: u64,
}

impl Reclaimed {
    pub(crate) fn total(self) -> u64 {
        self.freed + self.started
    }
}

/// A scan by a thread or task, which counts as a reclaimer for as long as this value lives.
struct Scan<'e> {
    engine: &'e Engine,
    who: Reclaimer,
    /// Whether it asks translations which pages were used.
    asks: bool,
}

impl<'e> Scan<'e> {
    fn begin(engine: &'e Engine, who: Reclaimer) -> Self {
        engine.reclaimers.fetch_add(1, Ordering::AcqRel);
        Self { engine, who, asks: true }
    }

    /// Evicts a batch of candidates. Returns how many pages it looked at, or `None` if there were no
    /// candidates. It is a function apart from [`reclaim`], so that no batch stays on the stack while a task
    /// waits.
    fn evict_some(&self, room: u64, what: Evict) -> Option<(u64, evict::Outcome)> {
        let (looked, batch) = self.next_batch(room);
        if looked == 0 {
            return None;
        }
        self.engine.counters.add(self.who.counters().0, looked);
        Some((looked, evict(self.engine, batch, what)))
    }

    /// Looks at candidates until it has found enough pages for one batch, or as many as there is `room` for
    /// if that is less. A block counts with all of its pages. If most pages are in use, it does not look at
    /// all of them. Returns how many pages it looked at.
    fn next_batch(&self, room: u64) -> (u64, Isolated) {
        let engine = self.engine;
        // A small memory has few cold pages, and one scan must not hold them all. Several transfers' worth go
        // together. Sorting by owner then puts the pages of each task together, however they were mixed.
        let most = ((engine.swap.longest_write() * TRANSFERS).min(ISOLATED) as u64)
            .min(room)
            .min(engine.swap.device_write_limit())
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

    /// Makes unused hot pages cold. The present cold pages cannot go, but clean pages among the new ones may.
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

    /// Lets the polling thread serve other tasks. Meanwhile, this scan holds nothing that they could wait
    /// for.
    async fn give_way(self, waiter: &mut Waiter<'_>) -> Self {
        let (engine, who, asks) = (self.engine, self.who, self.asks);
        drop(self);
        waiter.give_way().await;
        let mut scan = Self::begin(engine, who);
        scan.asks = asks;
        scan
    }
}

impl Drop for Scan<'_> {
    fn drop(&mut self) {
        let before = self.engine.reclaimers.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "a scan was counted once");
    }
}

/// The progress of a reclaim.
struct Course {
    done: Reclaimed,
    /// Batches, and pages looked at, since the last page that went.
    fruitless: u32,
    in_vain: u64,
    /// Pages that cannot be written are in the way. Pages that need no write may stand behind them, and among
    /// the hot ones.
    is_stuck: bool,
    /// Pages that the devices have room for, as far as is known.
    room: u64,
}

impl Course {
    fn begin(freed: u64) -> Self {
        let done = Reclaimed { freed, started: 0 };
        Self { done, fruitless: 0, in_vain: 0, is_stuck: false, room: u64::MAX }
    }

    /// Returns whether more pages must go, and may be found. A scan may meet each page twice, because it
    /// first clears the accessed mark. It may have to go through each list.
    fn goes_on(&self, engine: &Engine, target: u64) -> bool {
        self.done.total() < target && self.in_vain < LEAST_LOOKS + 4 * listed_pages(engine)
    }

    /// Returns whether to go on asking translations. Their answers are hints, and must not stop reclaim if
    /// all pages seem to be in use.
    fn asks(&self, engine: &Engine) -> bool {
        self.in_vain <= LEAST_LOOKS + listed_pages(engine) / ASKED_SHARE
    }

    /// Returns the pages that may go in the next batch.
    fn which_may_go(&self, engine: &Engine, may_write: bool) -> Evict {
        // After so many failures, other slots have been tried too. So dirty pages are only tried now and
        // then. Clean pages go at any time.
        let in_vain_lately = self.fruitless >= FAILURES && !self.fruitless.is_power_of_two();
        if !may_write || engine.swap.is_silent() || engine.swap.is_failing() && in_vain_lately {
            Evict::Clean
        } else {
            Evict::All
        }
    }

    /// Called when there were no candidates. Moves the pages in the CPUs' batches to the lists. Returns
    /// whether to look again.
    fn looks_further(&mut self, engine: &Engine) -> bool {
        engine.lru.drain_all(&engine.frames);
        if listed_pages(engine) == 0 && (self.done.total() > 0 || !engine.try_immovable(false)) {
            return false;
        }
        self.in_vain += 32;
        true
    }

    /// Notes the outcome of a batch, for which `looked` pages were looked at.
    fn note(&mut self, looked: u64, outcome: evict::Outcome) {
        self.done.freed += outcome.freed;
        self.done.started += outcome.started;
        (self.fruitless, self.in_vain) =
            if outcome.gone() > 0 { (0, 0) } else { (self.fruitless + 1, self.in_vain + looked) };
        self.room =
            if outcome.full { outcome.started.max(LEAST_IN_HAND) } else { self.room.saturating_mul(2) };
    }

    /// Returns whether to stop after a batch, since no more pages can be expected to go.
    fn is_over(&self, engine: &Engine, outcome: evict::Outcome) -> bool {
        // Further pages that need a slot would be looked at in vain.
        let is_out_of_slots = outcome.obstructed && self.done.total() > 0 && engine.swap.slots.is_full();
        is_out_of_slots
            || self.is_stuck && self.done.total() == 0 && self.in_vain > 256 + listed_pages(engine)
    }
}

/// Counts of what had ended when a batch began.
struct Begun {
    ended_pages: u64,
    freed_pages: u64,
    ends: u64,
}

impl Begun {
    fn now(engine: &Engine) -> Self {
        let (ended_pages, freed_pages) = (engine.transfers.ended_pages(), engine.transfers.freed_pages());
        Self { ended_pages, freed_pages, ends: engine.ends() }
    }

    /// If writes fail, waits for the batch's writes: only written pages count then.
    async fn until_counted(
        &self,
        engine: &Engine,
        mut outcome: evict::Outcome,
        waiter: &mut Waiter<'_>,
    ) -> evict::Outcome {
        if engine.swap.is_failing() {
            waiter.until_written(self.ended_pages + outcome.started).await;
            outcome.freed += engine.transfers.freed_pages() - self.freed_pages;
            outcome.started = 0;
        }
        outcome
    }
}

/// Frees about `target` frames, or as many as it can, or starts to. Leaves out frames for which the caller
/// cannot wait.
pub(crate) async fn reclaim(
    engine: &Engine,
    target: u64,
    who: Reclaimer,
    waiter: &mut Waiter<'_>,
) -> Reclaimed {
    let mut scan = Scan::begin(engine, who);
    let mut course = Course::begin(free_at_hand(engine));
    while course.goes_on(engine, target) {
        let may_write = until_it_may_write(engine, waiter).await;
        scan.asks &= course.asks(engine);
        if course.is_stuck {
            scan.demote();
        }
        let begun = Begun::now(engine);
        let Some((looked, outcome)) = scan.evict_some(course.room, course.which_may_go(engine, may_write))
        else {
            if course.looks_further(engine) {
                continue;
            }
            break;
        };
        let outcome = begun.until_counted(engine, outcome, waiter).await;
        if !may_write && outcome.gone() == 0 {
            break;
        }
        engine.counters.add(who.counters().1, outcome.gone());
        course.note(looked, outcome);
        if outcome.full && !waiter.until_room(begun.ends).await {
            break;
        }
        course.is_stuck = may_write && outcome.obstructed || engine.swap.is_failing();
        if course.is_over(engine, outcome) {
            break;
        }
        if !waiter.blocks() && course.done.total() < target {
            scan = scan.give_way(waiter).await;
        }
    }
    course.done
}

/// Frees the frames that need no scan. Returns how many.
fn free_at_hand(engine: &Engine) -> u64 {
    // Some frames may be free as soon as a thread takes a completion. If reads were given up, perhaps no
    // other thread takes it.
    engine.poll_transfers();
    engine.try_immovable(true);
    let may_shrink = engine.huge_zero.shrinkable_frames() > 0;
    if may_shrink { u64::from(engine.huge_zero.shrink(&engine.frames)) } else { 0 }
}

/// Waits until no more pages are under way than allowed. Further writes would not end sooner if they began
/// now. Returns whether pages may be written. A caller that cannot wait takes pages that need no write.
async fn until_it_may_write(engine: &Engine, waiter: &mut Waiter<'_>) -> bool {
    let most = most_writing_pages(engine);
    engine.coming_pages() <= most || waiter.until_some_write_ends_above(most).await || !waiter.has_given_up()
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

/// Returns the most pages that may be under way when another write begins.
pub(super) fn most_writing_pages(engine: &Engine) -> u64 {
    (engine.budget.limit_pages() / 8).min(engine.swap.device_write_limit())
}

/// Returns whether pages that are away go into the pool. A fault for such a page waits while the other pages
/// of its batch are packed.
fn packs_away_pages(engine: &Engine) -> bool {
    engine.has_translations() && engine.swap.pool().is_some_and(Pool::packs)
}
