//! The share of memory that the pins of one space may keep.
//!
//! Memory that is pinned, or lent by guards, is memory that nobody else can have. So where there are several
//! spaces, the pins of one keep at most its quota, or three quarters of the budget if it has none. As long as
//! what is pinned is mapped as well, a quota needs no count: a space has no more than that in memory. A space
//! without one is *watched* from the time that it has three quarters of the budget in memory. And any space
//! is watched that has unmapped a page under a pin. Such a page is an *orphan*: no figure of the space counts
//! it, but its frame remembers whose it was (`rmap`).
//!
//! ```text
//!                has more than its share in memory,             a recount: it is alone, or has clearly less in memory,
//!                or an orphan                                   and no orphan
//!   0, not watched ─────────────────────────────► credit, watched ─────────────────────────────► 0
//!                                                   │ ▲
//!               each page pinned that was not since │ │ a recount, when nothing is left:
//!                                  the last recount ▼ │ the share without the pages that are pinned
//!                                                 no credit ───► TooManyPins, if that leaves nothing
//! ```
//!
//! Pins are not counted as they come and go. To count them in a cell of their CPU took a pin with its drop
//! from 16 to 32 ns, and one page with a hundred pins is one page that stays. A *recount* looks at all
//! frames, and counts the pages that are pinned and that the space has, or had. Until as many more are pinned
//! as its share leaves, no other is needed. A page is taken from that once between two recounts, however
//! often it is pinned: its hold word says that it was (ACCOUNTED). Near its share a space is let over it by a
//! 64th, so that a recount is rare there too.
//!
//! Cost of a pin: one load of a word that is only read, as long as its space is not watched. Of one that is:
//! a test of the hold word that it has in hand; and for a page's first pin since the recount, two
//! read-modify-writes. A recount takes a millisecond or two for a gigabyte of memory, and comes when pages
//! worth the credit were pinned anew, or when the pin before was refused. Cost of a fault: one in 64 sums the
//! figure of its space over the CPUs.
//!
//! An orphan of a frame that several pages share, as after a fork, counts for one of their spaces, and where
//! that has ended, for the one that has its number. A page that goes out in the moment in which it is pinned,
//! and is unmapped then, is not noted.
//!
//! Orderings: Relaxed. The word says when to look, and publishes nothing. Threads that pin at the same moment
//! may go over the share by a page, or a block, each.
//!
//! Locking: one recount at a time. It takes the locks of the reverse map. A thread that takes a recount is
//! inside the engine, so that no allocation under a lock faults in an engine that is the program's allocator.

use crate::engine::{Engine, Figure, SpaceState};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameWords;
use crate::frame::holds::Holds;
use crate::frame::state::Kind;
use crate::rmap::Owner;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, WordArray};
use crate::table::SpaceId;
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_SHIFT, bytes_for_people};

/// The lowest bit of the word of a space that is watched.
const WATCHED: u64 = 1;
/// Pages were unmapped under pins since the last recount, or that one has found some.
const ORPHANS: u64 = 2;
/// The credit stands above these bits, and may be negative.
const CREDIT_SHIFT: u32 = 2;
/// A space is looked at when one in so many frames comes in.
const LOOK_EVERY: u32 = 64;
/// The least that a recount gives, as a part of the share, and in pages.
const LEAST_CREDIT: u64 = 64;
const LEAST_CREDIT_PAGES: u64 = 64;
/// The pages that a space may pin after its first orphan before a recount is taken.
const FIRST_CREDIT_PAGES: u64 = 512;

/// What a recount has found.
#[derive(Clone, Copy, Debug, Default)]
struct Pinned {
    pages: u64,
    /// Those of them that no entry shows any more.
    orphans: u64,
}

/// The credits of all spaces.
#[derive(Debug)]
pub(crate) struct PinShares {
    words: WordArray<AtomicU64>,
    /// How many spaces there are.
    spaces: AtomicU32,
    /// How many have walked over all frames.
    recount: Mutex<u64>,
}

impl PinShares {
    pub(crate) fn new(max_spaces: usize) -> std::io::Result<Self> {
        Ok(Self { words: WordArray::new(max_spaces)?, spaces: AtomicU32::new(0), recount: Mutex::new(0) })
    }

    #[inline(always)]
    fn is_watched(&self, space: SpaceId) -> bool {
        self.word(space).load(Ordering::Relaxed) & WATCHED != 0
    }

    #[inline(always)]
    fn word(&self, space: SpaceId) -> &AtomicU64 {
        &self.words[space.0 as usize]
    }

    pub(super) fn add_space(&self) {
        self.spaces.fetch_add(1, Ordering::Relaxed);
    }

    /// A space has ended, and its number is about to be used anew.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.word(space).store(0, Ordering::Relaxed);
        self.spaces.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn recounts(&self) -> u64 {
        *self.recount.lock()
    }

    fn are_several(&self) -> bool {
        self.spaces.load(Ordering::Relaxed) > 1
    }

    /// Has the space watched, with so much credit, if it is not yet.
    fn watch(&self, space: SpaceId, credit: u64, orphans: u64) {
        let _ = self.word(space).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            let watched = if now & WATCHED == 0 { credit << CREDIT_SHIFT | WATCHED } else { now };
            Some(watched | orphans)
        });
    }

    #[inline(never)]
    fn account(&self, space: SpaceId, words: &FrameWords) {
        if words.holds.account() {
            let pages = u64::from(words.order().frames());
            // A word that another thread takes to 0 meanwhile, since the space is not watched any more,
            // becomes negative. Without WATCHED that says nothing.
            self.word(space).fetch_sub(pages << CREDIT_SHIFT, Ordering::Relaxed);
        }
    }

    /// Returns whether the space has credit, or is not watched.
    fn has_credit(&self, space: SpaceId) -> bool {
        let word = self.word(space).load(Ordering::Relaxed);
        word & WATCHED == 0 || (word as i64) >> CREDIT_SHIFT > 0
    }
}

impl Engine {
    /// Counts pages of a space that came in. The first of their frames is `frame`.
    #[inline]
    pub(crate) fn count_resident(&self, space: SpaceId, frame: FrameId, pages: u64) {
        self.space_use.add(space, Figure::Resident, pages);
        if frame.0.is_multiple_of(LOOK_EVERY) {
            self.watch_if_large(space);
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn watch_if_large(&self, space: SpaceId) {
        let shares = &self.pin_shares;
        if !shares.is_watched(space)
            && shares.are_several()
            && self.space_use.get(space, Figure::Resident) > self.pin_share()
        {
            // The first pin looks.
            shares.watch(space, 0, 0);
        }
    }

    /// The budget has changed.
    pub(crate) fn pin_shares_changed(&self) {
        let spaces: Vec<_> = self.spaces.lock().keys().copied().collect();
        spaces.into_iter().for_each(|space| self.pin_share_changed(space));
    }

    /// The share of a space has changed.
    pub(crate) fn pin_share_changed(&self, space: SpaceId) {
        // A recount under way gives a credit by the old share.
        let _recount = self.pin_shares.recount.lock();
        let word = self.pin_shares.word(space);
        // A credit for another share is none.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            (word & WATCHED != 0).then_some(word & ORPHANS | WATCHED)
        });
        self.watch_if_large(space);
    }

    /// The share of a space without a quota.
    fn pin_share(&self) -> u64 {
        self.budget.limit_pages() / 4 * 3
    }

    /// An entry of the space has let a frame go that has pins. The caller has not released it yet.
    #[cold]
    #[inline(never)]
    pub(super) fn note_orphan(&self, owner: Owner, frame: FrameId) {
        let words = self.frames.words(frame);
        if self.pins_of_users(words, words.holds.load()) > 0 {
            self.rmap.remember_last(words, owner);
            self.pin_shares.watch(owner.space, FIRST_CREDIT_PAGES, ORPHANS);
        }
    }

    /// Returns the pins of a frame that are those of pins and guards.
    fn pins_of_users(&self, words: &FrameWords, holds: Holds) -> u32 {
        // A write has a pin of its own, and so has a reclaimer that has the frame in hand. A dying frame is
        // in nobody's hand, and on no list.
        let in_hand = u32::from(
            !self.lru.knows(words) && !holds.is_parked() && !holds.is_dying() || holds.is_writeback(),
        );
        if holds.is_reading() { 0 } else { holds.pins().saturating_sub(in_hand) }
    }

    /// Asks for another pin. Returns the space if it is watched: the pin is to be
    /// [noted](Engine::note_pinned) then.
    ///
    /// # Errors
    /// `TooManyPins` where the pins of the space keep its share already; `ForkedChild` in a forked child, if
    /// a recount is due.
    #[inline(always)]
    pub(crate) fn check_pins(&self, space: &SpaceState) -> Result<Option<SpaceId>> {
        if !self.pin_shares.is_watched(space.id) {
            return Ok(None);
        }
        self.check_credit(space)?;
        // A recount may just have ended the watch.
        Ok(self.pin_shares.is_watched(space.id).then_some(space.id))
    }

    /// Takes a page, or a block, from the credit of a space that is watched. The caller has pinned it, and
    /// its holds were `before`.
    #[inline(always)]
    pub(crate) fn note_pinned(&self, watched: Option<SpaceId>, words: &FrameWords, before: Holds) {
        if let Some(space) = watched.filter(|_| !before.is_accounted()) {
            self.pin_shares.account(space, words);
        }
    }

    #[inline(never)]
    fn check_credit(&self, space: &SpaceState) -> Result<()> {
        if self.pin_shares.has_credit(space.id) {
            return Ok(());
        }
        let _inside = self.enter()?;
        self.take_recount(space)
    }

    /// Gives the space new credit, or says that so many pages are pinned that it gets none.
    fn take_recount(&self, space: &SpaceState) -> Result<()> {
        let mut walks = self.pin_shares.recount.lock();
        // Another thread may have counted meanwhile.
        if self.pin_shares.has_credit(space.id) {
            return Ok(());
        }
        let (quota, word) = (space.quota.pages(), self.pin_shares.word(space.id));
        let share = quota.unwrap_or(self.pin_share());
        let is_small = || self.space_use.get(space.id, Figure::Resident) < share - share / 8;
        let is_alone = !self.pin_shares.are_several();
        // Orphans that come from now on are left to the next recount.
        let had_orphans = word.fetch_and(!ORPHANS, Ordering::Relaxed) & ORPHANS != 0;
        // After an orphan, a credit is used up before the watch ends: there may be more of them.
        let is_watched = had_orphans || quota.is_none() && !is_alone && !is_small();
        let is_counted = is_watched && (quota.is_some() || !is_alone);
        *walks += u64::from(is_counted);
        let pinned = if is_counted {
            self.pinned_pages(space.id)
        } else {
            // Alone, it is counted when it is so no more.
            Pinned { pages: 0, orphans: u64::from(had_orphans) }
        };
        let is_over = pinned.pages >= share && (quota.is_none() || pinned.orphans > 0);
        let credit = if is_over {
            0
        } else {
            (share.saturating_sub(pinned.pages)).max(share / LEAST_CREDIT).max(LEAST_CREDIT_PAGES)
        };
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
            let orphans = if pinned.orphans > 0 { ORPHANS } else { now & ORPHANS };
            Some(if is_watched || orphans != 0 { credit << CREDIT_SHIFT | orphans | WATCHED } else { 0 })
        });
        if is_over { Err(too_many(space, pinned.pages, share)) } else { Ok(()) }
    }

    /// Counts the pages in memory that this space has or had, others perhaps as well, and that are pinned.
    /// Those that are not are accounted anew.
    fn pinned_pages(&self, space: SpaceId) -> Pinned {
        let is_pinned = |frame| {
            let words = self.frames.words(frame);
            let holds = words.holds.load();
            let is_pinned = self.pins_of_users(words, holds) > 0 && !holds.is_unowned();
            if !is_pinned && holds.is_accounted() {
                words.holds.account_anew();
            }
            is_pinned
        };
        let is_of_space =
            |frame| self.rmap.owners(&self.frames, frame).iter().any(|owner| owner.space == space);
        let was_of_space =
            |frame| self.rmap.former_owner(&self.frames, frame).is_some_and(|owner| owner.space == space);
        let mut pinned = Pinned::default();
        for chunk in self.frames.reached_chunks() {
            let mut index = 0;
            while index < CHUNK_FRAMES {
                let frame = chunk.first().plus(index);
                let state = self.frames.words(frame).state.load();
                let pages = state.order().frames();
                index += match state.kind() {
                    Kind::Offline => CHUNK_FRAMES,
                    // A block is changing hands.
                    Kind::Tail => 1,
                    Kind::Owned if is_pinned(frame) => {
                        let is_orphan = was_of_space(frame);
                        pinned.pages += u64::from(pages) * u64::from(is_orphan || is_of_space(frame));
                        pinned.orphans += u64::from(pages) * u64::from(is_orphan);
                        pages
                    }
                    _ => pages,
                };
            }
        }
        pinned
    }
}

#[cold]
fn too_many(space: &SpaceState, pinned: u64, share: u64) -> Error {
    let [kept, share] = [pinned, share].map(|pages| bytes_for_people(pages << PAGE_SHIFT));
    let why = if space.quota.pages().is_some() {
        format!("its quota is {share}; drop some, or raise the quota")
    } else {
        format!(
            "other spaces need the rest: their share is {share}, three quarters of the budget; drop some, raise the budget, or give the space \
             a quota, which is then its share"
        )
    };
    let message = format!(
        "pins and guards of this space keep {kept} in memory, of pages that are mapped or were, and {why}"
    );
    Error::new(ErrorKind::TooManyPins, message)
}
