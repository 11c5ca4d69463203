//! Brings away pages home, in batches.
//!
//! ```text
//!   Present, AWAY ─► Busy ─ was it written? ─► remove ─► Present, at home  the bytes are wanted
//!        ▲            │    (protect, harvest)    ├─────► Swapped           clean: its place has the bytes
//!        │            │                          └─────► Swapped, cached   the same; the store wants a copy
//!        └────────────┴── refused, or no frame at home: as it was
//! ```
//!
//! An away frame that was filled from a store keeps the page's place there until the page is written
//! (`frame/away.rs`). A page that is clean and keeps its place goes out without coming home. If the store
//! wants a copy, the page's bytes come into a frame of the store's cache, and are copied from there. A page
//! that the other side may write without a fault is first protected, and then harvested. So each write either
//! comes before the harvest, which reports it, or becomes a fault that waits for the entry. If the harvest
//! fails for a page, the page counts as written.
//!
//! While an entry is Busy, no other thread asks the translation about its page. Until the entry is published,
//! only the caller has the frame at home. An away frame has one owner, and is never in a store's cache.

use smallvec::SmallVec;

use crate::engine::batch::Batch;
use crate::engine::{Engine, Figure};
use crate::frame::{Block, PinnedFrame};
use crate::lru::IsolatedFrame;
use crate::rmap::Owner;
use crate::sizes::FEW_TRANSLATED;
use crate::store::Reference;
use crate::sync::{Ordering, fence};
use crate::table::entry::{Entry, EntryWord, State};
use crate::table::translation::{Answer, Home, Remove, Touch, Translation};
use crate::table::{Protection, SpaceId};
use crate::units::{FrameId, Order, PageNumber, StoredPage};

/// The reason why pages come home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Homecoming {
    /// A handle wants them.
    ToStay,
    /// They are evicted. Clean pages need not come home.
    ToGoOut,
    /// They are evicted if they are clean. Dirty pages stay away.
    IfClean,
}

/// The outcome for a page.
#[derive(Debug)]
#[must_use = "a frame at home is in hand"]
pub(crate) enum Came {
    /// The page's bytes are in this frame, which is on no list yet.
    Home(IsolatedFrame),
    /// The page's entry leads to its place in the store.
    Out,
    /// As `Out`, but the store wants a copy. Its cache has the page in this frame, which is on no list yet.
    Copy(StoredPage, IsolatedFrame),
    /// There is no frame at home.
    NoFrame,
    /// The page is dirty, and only a clean page was to go.
    Dirty,
    /// The entry has changed.
    Changed,
    /// The translation does not let the page go.
    Refused(Answer),
}

/// A page whose entry is busy.
struct Coming<'e> {
    page: PageNumber,
    away: FrameId,
    word: &'e EntryWord,
    before: Entry,
    busy: Entry,
    home: Option<Block>,
    /// The page goes out, and its place has its bytes.
    is_clean: bool,
}

impl Engine {
    /// Brings pages of one space home. `pages` are sorted, and at most
    /// [`TRANSLATED`](crate::sizes::TRANSLATED). `each` gets the outcome for each away frame, in any order.
    /// The caller must keep the away frames from being freed.
    pub(crate) fn bring_home(
        &self,
        space: SpaceId,
        translation: &dyn Translation,
        pages: impl Iterator<Item = (PageNumber, FrameId)>,
        why: Homecoming,
        mut each: impl FnMut(FrameId, Came),
    ) {
        let mut coming = SmallVec::<[Coming<'_>; FEW_TRANSLATED]>::new();
        for (page, away) in pages {
            match self.begin_coming(space, page, away) {
                Some(page) => coming.push(page),
                None => each(away, Came::Changed),
            }
        }
        if why != Homecoming::ToStay {
            self.look_for_stores(translation, &mut coming);
        }
        let mut copies = if why == Homecoming::ToGoOut { self.copies_wanted(space, &coming) } else { 0 };
        let (mut batch, mut leaving) = (Batch::new(), SmallVec::<[Coming<'_>; FEW_TRANSLATED]>::new());
        let mut is_room = true;
        for mut page in coming {
            page.is_clean = why != Homecoming::ToStay && self.is_kept(page.away);
            if !page.is_clean && why == Homecoming::IfClean {
                each(page.away, self.leave_away(page, Came::Dirty));
                continue;
            }
            let is_copied = page.is_clean && copies > 0 && self.may_copy(page.away);
            copies -= u32::from(is_copied);
            if is_copied {
                page.home = self.frames.alloc_if_at_hand(Order::ZERO);
            } else if !page.is_clean && is_room {
                // The second call searches all CPUs' lists. If it fails once, no later page tries again.
                let at_hand = self.frames.alloc_if_at_hand(Order::ZERO);
                page.home = at_hand.or_else(|| self.frames.alloc(Order::ZERO));
                is_room = page.home.is_some();
            }
            if !page.is_clean && page.home.is_none() {
                each(page.away, self.leave_away(page, Came::NoFrame));
                continue;
            }
            let to = page.home.as_ref().map(Block::frame);
            batch.add(page.page, 1, Remove { to, is_clean: page.is_clean });
            leaving.push(page);
        }
        // Release: the steps that made the frames ours come before their new bytes, for loads that still look
        // at an old entry.
        fence(Ordering::Release);
        let answers = batch.ask(|runs| translation.remove(Home::new(self.frames.bytes()), runs));
        for (page, answer) in leaving.into_iter().zip(answers) {
            let away = page.away;
            let came = match answer {
                Answer::Done => self.arrive(Owner { space, page: page.page }, page),
                Answer::Busy => {
                    // After a fork, shared memory cannot go without its bytes, and the other side may no
                    // longer watch the page. So the page counts as written, and takes its bytes along the
                    // next time.
                    self.frames.words(away).holds.mark_dirty();
                    self.give_place_up(away);
                    self.leave_away(page, Came::Refused(Answer::Busy))
                }
                refusal => self.leave_away(page, Came::Refused(refusal)),
            };
            each(away, came);
        }
    }

    fn begin_coming(&self, space: SpaceId, page: PageNumber, away: FrameId) -> Option<Coming<'_>> {
        let walk = self.table.walk(space, page);
        let (word, before) = (walk.word(), walk.entry());
        let busy = before.to_busy();
        let shows = before.state() == State::Present(away) && walk.level == 0 && walk.links_hold();
        (shows && word.change(before, busy).is_ok()).then_some(Coming {
            page,
            away,
            word,
            before,
            busy,
            home: None,
            is_clean: false,
        })
    }

    /// Finds out which pages were written, among those that count as clean and may be written without a
    /// fault.
    fn look_for_stores(&self, translation: &dyn Translation, coming: &mut [Coming<'_>]) {
        let is_open = |page: &Coming<'_>| page.before.protection().write && self.is_kept(page.away);
        let mut open: SmallVec<[&mut Coming<'_>; FEW_TRANSLATED]> =
            coming.iter_mut().filter(|page| is_open(page)).collect();
        let mark_written = |page: &Coming<'_>| self.frames.words(page.away).holds.mark_dirty();
        let mut protect = Batch::new();
        open.iter().for_each(|page| protect.add(page.page, 1, Protection::READ));
        let protected = protect.ask(|runs| translation.protect(runs));
        let mut harvest = Batch::new();
        let mut closed = SmallVec::<[usize; FEW_TRANSLATED]>::new();
        for (index, answer) in protected.into_iter().enumerate() {
            if answer == Answer::Done {
                open[index].before = open[index].before.with_protection(Protection::READ);
                harvest.add(open[index].page, 1, Touch::Written);
                closed.push(index);
            } else {
                mark_written(open[index]);
            }
        }
        let known = harvest.ask(|runs| {
            translation.harvest(runs, &mut |written| {
                if let Ok(index) = closed.binary_search_by_key(&written, |index| open[*index].page) {
                    mark_written(open[closed[index]]);
                }
            });
        });
        for (index, answer) in closed.iter().zip(known) {
            if answer != Answer::Done {
                mark_written(open[*index]);
            }
        }
    }

    /// Returns whether the page of an away frame is clean, and keeps its place in a store.
    pub(crate) fn is_kept(&self, away: FrameId) -> bool {
        !self.frames.words(away).holds.load().is_dirty() && self.frames.kept(away).page().is_some()
    }

    /// Returns how many of these pages the store wants copies of.
    fn copies_wanted(&self, space: SpaceId, coming: &[Coming<'_>]) -> u32 {
        let mut clean = coming.iter().filter(|page| self.is_kept(page.away) && self.may_copy(page.away));
        let Some(first) = clean.next().and_then(|page| self.frames.kept(page.away).page()) else { return 0 };
        let pages = 1 + clean.count() as u32;
        self.store(first).wants_copies(&self.leaving(), space, pages)
    }

    fn may_copy(&self, away: FrameId) -> bool {
        !self.frames.words(away).holds.load().is_no_compress()
            && self.frames.kept(away).page().is_some_and(|place| self.store(place).may_copy(place))
    }

    fn leave_away(&self, page: Coming<'_>, came: Came) -> Came {
        if let Some(home) = page.home {
            self.frames.give_back(home);
        }
        self.publish(page.word, page.busy.to_what_was(page.before));
        came
    }

    /// Publishes a page that the other side can no longer reach.
    fn arrive(&self, owner: Owner, page: Coming<'_>) -> Came {
        let Coming { away, word, busy, home, is_clean, .. } = page;
        let came = match home {
            home if is_clean => {
                let kept = self.frames.kept(away);
                let place = kept.page().expect("a clean page keeps its place");
                // The frame's reference becomes the entry's.
                kept.set(None);
                let copy = home.and_then(|home| self.cache_copy(place, home));
                if copy.is_none() {
                    self.store(place).leave(place, self.lru.shadow());
                }
                self.publish(word, self.store(place).entry(busy, place));
                self.space_use.add(owner.space, Figure::SwapOut, 1);
                copy.map_or(Came::Out, |frame| Came::Copy(place, frame))
            }
            Some(home) => {
                let is_no_compress = self.frames.words(away).holds.load().is_no_compress();
                let frame = self.adopt_off_lists(home, owner);
                let words = self.frames.words(frame);
                if is_no_compress {
                    words.holds.mark_no_compress();
                }
                let (pin, _) = PinnedFrame::take(frame, words);
                // The next access asks the region for the page's permissions.
                self.publish(word, busy.to_present(frame, Protection::NONE).without_accessed());
                Came::Home(IsolatedFrame::new(pin))
            }
            None => unreachable!("a page that goes without its bytes is clean"),
        };
        self.disown(away, owner);
        came
    }

    /// Puts a page whose bytes are in a frame at home into its store's cache, clean. The caller's reference
    /// keeps the place. Returns `None` if another frame has the page there already, after a fork.
    fn cache_copy(&self, place: StoredPage, home: Block) -> Option<IsolatedFrame> {
        let (pin, _) = self.begin_read_ahead(place, home)?;
        let words = self.frames.words(pin.frame());
        if words.holds.end_read(true) {
            self.wake_io(pin.frame());
        }
        Some(IsolatedFrame::new(pin))
    }

    /// Gives up an away page's place in its store. The page was written, or has no owner any more, so the
    /// place need not keep its bytes.
    pub(crate) fn give_place_up(&self, away: FrameId) {
        let kept = self.frames.kept(away);
        if let Some(place) = kept.page() {
            kept.set(None);
            self.drop_reference(Reference::counted(place));
        }
    }
}
