//! The share of memory that the pins of one space may keep.
//!
//! Memory that is pinned, or lent by guards, cannot be used for anything else. So if there are several
//! spaces, the pins of one space keep at most that space's quota, or three quarters of the budget if it has
//! no quota. While all pinned pages are mapped, a quota needs no count: the space has no more than that in
//! memory. A space without a quota is *watched* as soon as it has three quarters of the budget in memory. A
//! space that has unmapped a page under a pin is watched too. Such a page is an *orphan*: no figure of the
//! space counts it, but its frame remembers whose it was (`rmap`).
//!
//! ```text
//!                has more than its share                        a recount: it is alone, or has
//!                in memory, or an orphan                        clearly less in memory, and no orphan
//!   0, not watched ─────────────────────────────► credit, watched ─────────────────────────────► 0
//!                                                   │ ▲
//!               each page pinned that was not since │ │ a recount, when nothing is left:
//!                                  the last recount ▼ │ the share without the pages that are pinned
//!                                                 no credit ───► TooManyPins, if that leaves nothing
//! ```
//!
//! Pins and their drops are not counted. A per-CPU count doubled the cost of a pin with its drop, from 16 to
//! 32 ns. It would also be the wrong figure: a hundred pins on one page keep only that page. A *recount*
//! looks at all frames, and counts the pinned pages that the space has, or had. The rest of the share is the
//! space's credit, and no recount is needed until it is used up. Between two recounts, a page uses credit
//! only once, however often it is pinned: its hold word says so (ACCOUNTED). Near its share, a space may
//! exceed it by 1/64, so that recounts are rare there too.
//!
//! Cost of a pin: one load of a read-mostly word while its space is not watched. In a watched space, a test
//! of the hold word that the pin has read anyway, and two read-modify-writes for a page's first pin since the
//! recount. A recount takes 1 to 2 ms per GiB of memory. It comes when the credit is used up, or if the last
//! pin was refused. Cost of a fault: one fault in 64 sums a figure of its space over the CPUs.
//!
//! If several pages share an orphan's frame, as after a fork, it counts for one of their spaces. If that
//! space has ended, the frame counts for the space that has its number now. A page that is pinned just as it
//! goes out, and is then unmapped, is not noted.
//!
//! Orderings: Relaxed. The word says when to recount, and publishes nothing. Threads that pin at the same
//! moment may each exceed the share by a page or a block.
//!
//! Locking: one recount at a time. It takes the locks of the reverse map. The thread that takes a recount is
//! inside the engine. So if an engine is the program's allocator, no allocation under a lock faults in it.

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
/// Pages were unmapped under pins since the last recount, or the recount has found some.
const ORPHANS: u64 = 2;
/// The credit, in pages, is above these bits, and may be negative.
const CREDIT_SHIFT: u32 = 2;
/// One frame in this many that come in has its space checked.
const LOOK_EVERY: u32 = 64;
/// If the space is not over its share, a recount gives at least the share divided by this, and at least
/// [`LEAST_CREDIT_PAGES`].
const LEAST_CREDIT: u64 = 64;
const LEAST_CREDIT_PAGES: u64 = 64;
/// The pages that a space may pin after its first orphan before a recount is taken.
const FIRST_CREDIT_PAGES: u64 = 512;

/// What a recount has found.
#[derive(Clone, Copy, Debug, Default)]
struct Pinned {
    pages: u64,
    /// Pages among them that no entry shows any more.
    orphans: u64,
}

/// The credits of all spaces.
#[derive(Debug)]
pub(crate) struct PinShares {
    words: WordArray<AtomicU64>,
    /// The number of spaces.
    spaces: AtomicU32,
    /// Held during a recount. The number of recounts that have walked over all frames.
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

    /// Clears the word of a space that has ended, before its number is reused.
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

    /// Starts to watch the space with this credit, if it is not watched yet.
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
            // If another thread has just set the word to 0, because the watch has ended, it becomes negative.
            // Without WATCHED, that means nothing.
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
    /// Counts pages of a space that came in. `frame` is the first of their frames.
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
            // With no credit, the first pin takes a recount.
            shares.watch(space, 0, 0);
        }
    }

    /// Called when the budget has changed.
    pub(crate) fn pin_shares_changed(&self) {
        let spaces: Vec<_> = self.spaces.lock().keys().copied().collect();
        spaces.into_iter().for_each(|space| self.pin_share_changed(space));
    }

    /// Called when the share of a space has changed.
    pub(crate) fn pin_share_changed(&self, space: SpaceId) {
        // Wait for a recount under way, which gives credit by the old share.
        let _recount = self.pin_shares.recount.lock();
        let word = self.pin_shares.word(space);
        // A credit from the old share is void.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            (word & WATCHED != 0).then_some(word & ORPHANS | WATCHED)
        });
        self.watch_if_large(space);
    }

    /// The share of a space without a quota.
    fn pin_share(&self) -> u64 {
        self.budget.limit_pages() / 4 * 3
    }

    /// Notes a frame with pins that an entry of the space has let go. The caller has not released it yet.
    #[cold]
    #[inline(never)]
    pub(super) fn note_orphan(&self, owner: Owner, frame: FrameId) {
        let words = self.frames.words(frame);
        if self.pins_of_users(words, words.holds.load()) > 0 {
            self.rmap.remember_last(words, owner);
            self.pin_shares.watch(owner.space, FIRST_CREDIT_PAGES, ORPHANS);
        }
    }

    /// Returns how many of a frame's pins belong to pins and guards of users.
    fn pins_of_users(&self, words: &FrameWords, holds: Holds) -> u32 {
        // A write has a pin of its own, and so has a reclaimer that holds the frame. No reclaimer holds a
        // dying frame, which is on no list.
        let in_hand = u32::from(
            !self.lru.knows(words) && !holds.is_parked() && !holds.is_dying() || holds.is_writeback(),
        );
        if holds.is_reading() { 0 } else { holds.pins().saturating_sub(in_hand) }
    }

    /// Checks whether the space may have another pin. Returns the space if it is watched. The caller must
    /// then [note](Engine::note_pinned) the pin.
    ///
    /// # Errors
    /// `TooManyPins` if the pins of the space keep its share already; `ForkedChild` in a forked child, if a
    /// recount is due.
    #[inline(always)]
    pub(crate) fn check_pins(&self, space: &SpaceState) -> Result<Option<SpaceId>> {
        if !self.pin_shares.is_watched(space.id) {
            return Ok(None);
        }
        self.check_credit(space)?;
        // A recount may just have ended the watch.
        Ok(self.pin_shares.is_watched(space.id).then_some(space.id))
    }

    /// Takes a page, or a block, from the credit of a watched space. The caller has pinned it, and its holds
    /// were `before`.
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

    /// Gives the space new credit, or returns `TooManyPins` if its pinned pages leave none.
    fn take_recount(&self, space: &SpaceState) -> Result<()> {
        let mut walks = self.pin_shares.recount.lock();
        // Another thread may have taken a recount meanwhile.
        if self.pin_shares.has_credit(space.id) {
            return Ok(());
        }
        let (quota, word) = (space.quota.pages(), self.pin_shares.word(space.id));
        let share = quota.unwrap_or(self.pin_share());
        let is_small = || self.space_use.get(space.id, Figure::Resident) < share - share / 8;
        let is_alone = !self.pin_shares.are_several();
        // Orphans that come from now on are left to the next recount.
        let had_orphans = word.fetch_and(!ORPHANS, Ordering::Relaxed) & ORPHANS != 0;
        // After an orphan, a credit is used up before the watch ends, because there may be more orphans.
        let is_watched = had_orphans || quota.is_none() && !is_alone && !is_small();
        let is_counted = is_watched && (quota.is_some() || !is_alone);
        *walks += u64::from(is_counted);
        let pinned = if is_counted {
            self.pinned_pages(space.id)
        } else {
            // A space that is alone is counted once there is another.
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

    /// Counts the pinned pages in memory that this space has or had, also if it shares them. Clears ACCOUNTED
    /// of pages that are not pinned.
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
