//! The share of memory that the pins of one space may keep.
//!
//! Memory that is pinned, or lent by guards, is memory that nobody else can have. So where there are several spaces, the pins of one keep at most
//! its quota, or three quarters of the budget if it has none. A quota needs no count: a space has no more than that in memory. A space without
//! one is *watched* from the time that it has three quarters of the budget in memory:
//!
//! ```text
//!                  has more than its share in memory            a census: it has clearly less in memory
//!   0, not watched ─────────────────────────────► credit, watched ─────────────────────────────► 0
//!                                                   │ ▲
//!               each page pinned that was not since │ │ a census, when nothing is left:
//!                                    the last census▼ │ the share without the pages that are pinned
//!                                                 no credit ───► TooManyPins, if that leaves nothing
//! ```
//!
//! Pins are not counted as they come and go. To count them in a cell of their CPU took a pin with its drop from 16 to 32 ns, and one page with a
//! hundred pins is one page that stays. A *census* looks at all frames, and counts the pages of the space that are pinned. Until as many more are
//! pinned as its share leaves, no other is needed. A page counts once between two censuses, however often it is pinned: its hold word says that
//! it was (ACCOUNTED). Near its share a space is let over it by a 64th, so that a census is rare there too.
//!
//! Cost of a pin: one load of a word that is only read, as long as its space is not watched. Of one that is: a test of the hold word that it has in
//! hand; and for a page's first pin since the census, two read-modify-writes. A census takes a millisecond or two for a gigabyte of memory, and comes when
//! pages worth the credit were pinned anew, or when a pin was refused before.
//!
//! Orderings: Relaxed. The word says when to look, and publishes nothing. Threads that pin at the same moment may go over the share by a page each.
//!
//! Locking: one census at a time, under a lock that is a leaf.

use crate::engine::{Engine, Figure, SpaceState};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::FrameWords;
use crate::frame::holds::Holds;
use crate::frame::state::Kind;
use crate::sync::{AtomicU64, Mutex, Ordering, WordArray};
use crate::table::SpaceId;
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_SHIFT, bytes_for_people};

/// The lowest bit of the word of a space that is watched. The credit stands above it, and may be negative.
const WATCHED: u64 = 1;
/// A space is looked at when one in so many frames comes in.
const LOOK_EVERY: u32 = 64;
/// The least that a census gives, as a part of the share.
const LEAST_CREDIT: u64 = 64;

/// The credits of all spaces.
#[derive(Debug)]
pub(crate) struct PinShares {
    words: WordArray<AtomicU64>,
    census: Mutex<()>,
}

impl PinShares {
    pub(crate) fn new(max_spaces: usize) -> std::io::Result<Self> {
        Ok(Self { words: WordArray::new(max_spaces)?, census: Mutex::new(()) })
    }

    #[inline(always)]
    fn is_watched(&self, space: SpaceId) -> bool {
        self.word(space).load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn word(&self, space: SpaceId) -> &AtomicU64 {
        &self.words[space.0 as usize]
    }

    /// Clears the word of a space number that is about to be used anew.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.word(space).store(0, Ordering::Relaxed);
    }

    fn watch(&self, space: SpaceId) {
        // Without credit. The first pin looks.
        let _ = self.word(space).compare_exchange(0, WATCHED, Ordering::Relaxed, Ordering::Relaxed);
    }

    #[inline(never)]
    fn account(&self, space: SpaceId, words: &FrameWords) {
        if words.holds.account() {
            let pages = u64::from(words.order().frames());
            // A word that another thread takes to 0 meanwhile, since the space is not watched any more, becomes negative. Then the next pin looks.
            self.word(space).fetch_sub(pages << 1, Ordering::Relaxed);
        }
    }

    /// Returns whether the space has credit, or is not watched.
    fn has_credit(&self, space: SpaceId) -> bool {
        let word = self.word(space).load(Ordering::Relaxed);
        word == 0 || (word as i64) >> 1 > 0
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
        if self.space_use.get(space, Figure::Resident) > self.pin_share() && self.spaces.lock().len() > 1 {
            self.pin_shares.watch(space);
        }
    }

    fn pin_share(&self) -> u64 {
        self.budget.limit_pages() / 4 * 3
    }

    /// Asks for another pin.
    ///
    /// # Errors
    /// `TooManyPins` where the pins of the space keep its share already; `ForkedChild` in a forked child, perhaps.
    #[inline(always)]
    pub(crate) fn check_pins(&self, space: &SpaceState) -> Result<()> {
        if self.pin_shares.is_watched(space.id) { self.check_credit(space) } else { Ok(()) }
    }

    /// Takes a page, or a block, from the credit of its space. The caller has pinned it, and its holds were `before`.
    #[inline(always)]
    pub(crate) fn note_pinned(&self, space: SpaceId, words: &FrameWords, before: Holds) {
        if self.pin_shares.is_watched(space) && !before.is_accounted() {
            self.pin_shares.account(space, words);
        }
    }

    #[inline(never)]
    fn check_credit(&self, space: &SpaceState) -> Result<()> {
        if self.pin_shares.has_credit(space.id) {
            return Ok(());
        }
        self.check_process()?;
        let _census = self.pin_shares.census.lock();
        // Another thread may have counted meanwhile.
        if self.pin_shares.has_credit(space.id) {
            return Ok(());
        }
        let (share, word) = (self.pin_share(), self.pin_shares.word(space.id));
        let resident = self.space_use.get(space.id, Figure::Resident);
        if resident < share - share / 8 || space.quota.pages().is_some() {
            word.store(0, Ordering::Relaxed);
            return Ok(());
        }
        let pinned = self.pinned_pages(space.id);
        if pinned >= share {
            word.store(WATCHED, Ordering::Relaxed);
            return Err(too_many(pinned, share));
        }
        let credit = (share - pinned).max(share / LEAST_CREDIT);
        word.store(credit << 1 | WATCHED, Ordering::Relaxed);
        Ok(())
    }

    /// Counts the pages in memory that only this space has, and that are pinned now. All of its pages are accounted anew.
    fn pinned_pages(&self, space: SpaceId) -> u64 {
        let is_of_space = |frame| {
            let owners = self.rmap.owners(&self.frames, frame);
            !owners.is_empty() && owners.iter().all(|owner| owner.space == space)
        };
        let is_pinned = |frame| {
            let words = self.frames.words(frame);
            if words.holds.load().is_accounted() {
                words.holds.account_anew();
            }
            // Looked at after that: a pin that is taken from now on is accounted. A transfer has a pin of its own.
            let holds = words.holds.load();
            holds.is_live() && holds.pins() > 0 && !holds.is_under_io()
        };
        let mut pages = 0;
        for chunk in self.frames.reached_chunks() {
            let mut index = 0;
            while index < CHUNK_FRAMES {
                let frame = chunk.first().plus(index);
                let state = self.frames.words(frame).state.load();
                index += match state.kind() {
                    Kind::Offline => CHUNK_FRAMES,
                    // A block is changing hands.
                    Kind::Tail => 1,
                    Kind::Owned if is_of_space(frame) && is_pinned(frame) => {
                        pages += u64::from(state.order().frames());
                        state.order().frames()
                    }
                    _ => state.order().frames(),
                };
            }
        }
        pages
    }
}

#[cold]
fn too_many(pinned: u64, share: u64) -> Error {
    let [kept, share] = [pinned, share].map(|pages| bytes_for_people(pages << PAGE_SHIFT));
    Error::new(
        ErrorKind::TooManyPins,
        format!(
            "pins and guards of this space keep {kept} in memory, and other spaces need the rest: their share is {share}, three quarters of \
             the budget; drop some, raise the budget, or give the space a quota, which is then its share"
        ),
    )
}
