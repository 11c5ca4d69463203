//! Faults in spaces with a translation: pages go away to its side, and come home to handles.
//!
//! ```text
//!                     for the translation                              for a handle
//!   Empty, Zero       write: zeros with memory of their own there      as in other spaces
//!   Zero              read: zero pages there as well                   as in other spaces
//!   Zero, AWAY        usable to read                                   write: zero pages there go first
//!   Swapped           as in other spaces, then as Present              as in other spaces
//!   Present           its bytes go there; the frame is free            as in other spaces; a copy first
//!                                                                      if a fork shares it
//!   Present, AWAY     usable, or is allowed more                       its bytes come home
//!   Empty             adopted: the page is there already
//! ```
//!
//! Each step makes the entry Busy, asks the translation, and publishes the outcome. A translation that
//! answers Busy holds the page's memory for a while. The fault is then pending and polls again, so that other
//! tasks of its executor can run.
//!
//! A clean page keeps its place in the store. If the translation supports that, the page is installed for
//! reading only, so that the first write to it faults. A fault costs two changes of the entry, one call of
//! the translation, and the away zone's lock.

use std::task::Waker;

use crate::config::HugeZeroWrite;
use crate::engine::{Batch, Came, Homecoming, Nodes, Split, ask_for, split_leaf};
use crate::error::{Error, ErrorKind};
use crate::fault::departure::{Contents, Departing, install};
use crate::fault::{Fault, Huge, Outcome, Step};
use crate::frame::Block;
use crate::lru::Place;
use crate::region::Region;
use crate::swap;
use crate::sync::wait::Waiting;
use crate::sync::{Duration, thread};
use crate::table::entry::{Entry, NodeId, State};
use crate::table::translation::{Answer, Bytes, Home, Install, Remove, Touch, Translation};
use crate::table::{Access, Protection, Walk, span};
use crate::units::{FrameId, Order, PageNumber};

/// How long a fault keeps asking for memory that is held elsewhere. Reclaim and compaction hold a page for a
/// moment, and pins hold it longer.
const PATIENCE: Duration = Duration::from_millis(500);

/// The most time between two tries that counts as patience. A longer time was spent on other waits, or
/// another thread had the CPU.
const LONGEST_LOOK: Duration = Duration::from_millis(10);

/// Who is going to use the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Via {
    /// The methods of a space.
    Handle,
    /// The methods of a space that take guards.
    Guard,
    /// The other side of its translation. `is_missing` says that it found nothing at the page.
    Translation { is_missing: bool },
    /// The other side, which has the page already.
    InPlace(InPlace),
}

/// For [`TranslatedSpace::adopt`](crate::translation::TranslatedSpace::adopt): the kind of memory that is
/// already there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// Zero pages, without memory of their own. A write to one must fault.
    Zeros,
    /// Pages with memory of their own, which allow these accesses without a fault.
    Pages(Protection),
    /// As `Pages`, but each 2 MiB that begins at a multiple of 2 MiB is one huge page. A shorter rest is
    /// small pages. If there is no block for a huge page, or its region is too small, it is taken page by
    /// page, and the translation is not told of a split.
    Blocks(Protection),
}

impl<'a> Fault<'a> {
    /// Takes a step that concerns the translation. Returns `None` if the entry is treated as in other spaces.
    pub(super) fn step_away(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        translation: &dyn Translation,
        waker: &Waker,
    ) -> Option<Step> {
        let entry = walk.entry();
        if let State::Busy | State::Node(_) | State::Swapped(_) = entry.state() {
            return self.refuse_in_place(entry);
        }
        match self.via {
            Via::Handle if !entry.is_away() => self.unshare(walk, region),
            // No space with a translation has guarded regions.
            Via::Handle | Via::Guard => self.step_for_handle(walk, translation, waker),
            Via::Translation { is_missing } => {
                self.step_for_translation(walk, region, translation, is_missing, waker)
            }
            Via::InPlace(what) if entry.is_empty() => Some(self.take_over(walk, region, what)),
            Via::InPlace(_) => self.refuse_in_place(entry),
        }
    }

    // --- for handles ---

    /// Gives a page at home a frame of its own if it shares one after a fork. Then stores by handles, and
    /// pins, reach this page alone. Returns `None` if there is nothing to do.
    fn unshare(&mut self, walk: &Walk<'a>, region: &Region) -> Option<Step> {
        let entry = walk.entry();
        let State::Present(shared) = entry.state() else { return None };
        if entry.protection() != Protection::NONE
            || !self.engine.swap.cache.is_shared(&self.engine.frames, shared)
        {
            return None;
        }
        Some(self.install_copy(walk, region, shared))
    }

    fn step_for_handle(
        &mut self,
        walk: &Walk<'a>,
        translation: &dyn Translation,
        waker: &Waker,
    ) -> Option<Step> {
        match walk.entry().state() {
            State::Zero if self.access == Access::Read => None,
            State::Zero => Some(self.withdraw_zeros(walk, translation, waker)),
            State::Present(_) if walk.level > 0 => Some(self.split(walk, waker)),
            State::Present(away) => Some(self.come_home(away, translation, waker)),
            _ => None,
        }
    }

    /// Removes zero pages from the other side, so that they are at home only.
    fn withdraw_zeros(&mut self, walk: &Walk<'a>, translation: &dyn Translation, waker: &Waker) -> Step {
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            return Step::Again;
        }
        let (first, pages) = (self.leaf_start(walk), span(walk.level) as u32);
        let answer = ask_for(first, pages, Remove::DROP, |runs| translation.remove(self.home(), runs));
        let is_gone = answer == Answer::Done;
        self.engine.publish(word, if is_gone { busy.to_zero() } else { busy.to_what_was(entry) });
        if is_gone { Step::Again } else { self.refuse(answer, waker) }
    }

    fn come_home(&mut self, away: FrameId, translation: &dyn Translation, waker: &Waker) -> Step {
        let engine = self.engine;
        let mut step = Step::Again;
        let page = std::iter::once((self.page, away));
        engine.bring_home(self.space.id, translation, page, Homecoming::ToStay, |_, came| {
            step = match came {
                Came::Home(frame) => {
                    engine.putback(frame, Place::Cold);
                    Step::Again
                }
                Came::NoFrame => Step::End(Outcome::NeedsFrame),
                Came::Refused(answer) => self.refuse(answer, waker),
                Came::Copy(..) => unreachable!("the page was to stay"),
                Came::Out | Came::Dirty | Came::Changed => Step::Again,
            };
        });
        step
    }

    fn split(&mut self, walk: &Walk<'a>, waker: &Waker) -> Step {
        match split_leaf(self.engine, self.space.id, self.page, walk, 0) {
            Split::Done | Split::Changed => Step::Again,
            Split::NoNode => Step::End(Outcome::NeedsNode),
            Split::Pinned => self.refuse(Answer::Busy, waker),
        }
    }

    // --- for the translation ---

    fn step_for_translation(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        translation: &dyn Translation,
        is_missing: bool,
        waker: &Waker,
    ) -> Option<Step> {
        let entry = walk.entry();
        let wants_memory = self.access == Access::Write || self.wants_memory;
        match entry.state() {
            State::Empty | State::Zero
                if walk.level == 1 && wants_memory && self.wants_away_block(walk, region) =>
            {
                Some(self.install_block_away(walk, region, translation))
            }
            State::Empty | State::Zero if walk.level == 0 && wants_memory => {
                Some(self.install_page(walk, region, translation, waker))
            }
            State::Zero if wants_memory => Some(self.split(walk, waker)),
            // Zeros that are there already are shown again, because a part of them may have been withdrawn.
            State::Zero => Some(self.show_zeros(walk, translation, waker)),
            State::Present(away) if entry.is_away() && is_missing => {
                Some(self.look_there(walk, away, translation))
            }
            State::Present(_) if entry.is_away() && entry.protection().allows(self.access) => {
                Some(Step::End(Outcome::Usable))
            }
            State::Present(away) if entry.is_away() => {
                Some(self.allow_more(walk, region, away, translation, waker))
            }
            State::Present(_) if walk.level > 0 => Some(self.split(walk, waker)),
            State::Present(frame) => Some(self.send_away(walk, region, frame, translation, waker)),
            _ => None,
        }
    }

    fn wants_away_block(&self, walk: &Walk<'a>, region: &Region) -> bool {
        let instead_of_zeros = self.engine.policy.huge_zero_write == HugeZeroWrite::Allocate;
        (walk.entry().is_empty() || instead_of_zeros) && self.wants_block(region)
    }

    /// Shows zeros at the other side, without memory of their own.
    fn show_zeros(&mut self, walk: &Walk<'a>, translation: &dyn Translation, waker: &Waker) -> Step {
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            return Step::Again;
        }
        let ask = Install { bytes: Bytes::ZeroPages, protection: Protection::READ };
        let pages = span(walk.level) as u32;
        match install(self.engine, translation, self.leaf_start(walk), pages, ask) {
            Answer::Done => {
                self.engine.publish(word, busy.to_zero_away());
                Step::End(Outcome::Usable)
            }
            refusal => {
                // The part that is shown stays. It is shown again with the rest.
                let is_shown = entry.is_away() || matches!(refusal, Answer::Partly(_));
                self.engine.publish(word, if is_shown { busy.to_zero_away() } else { busy.to_zero() });
                if refusal == Answer::Unsupported {
                    self.wants_memory = true;
                    return Step::Again;
                }
                self.refuse(refusal, waker)
            }
        }
    }

    /// Installs a small page of zeros with memory of its own, in place of nothing or of zeros without memory.
    fn install_page(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        translation: &dyn Translation,
        waker: &Waker,
    ) -> Step {
        if let Some(lack) = self.check_quota(1).or_else(|| self.check_growth(1)) {
            return lack;
        }
        let Some(block) = self.alloc_away(Order::ZERO) else {
            return self.lacks_away(Order::ZERO);
        };
        match self.begin_departure(walk, region, Contents::Zeros(block)) {
            Ok(departing) => self.depart(departing, translation, waker),
            Err(Contents::Zeros(block)) => {
                self.engine.frames.give_back(block);
                Step::Again
            }
            Err(_) => unreachable!("the contents come back as they were"),
        }
    }

    /// Installs a block of zeros with memory of its own, in place of nothing or of zeros without memory.
    fn install_block_away(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        translation: &dyn Translation,
    ) -> Step {
        let pages = u64::from(Order::MAX.frames());
        if let Some(lack) = self.check_quota(pages).or_else(|| self.check_growth(pages)) {
            return lack;
        }
        let Some(block) = self.alloc_away(Order::MAX) else {
            return self.lacks_away(Order::MAX);
        };
        // The node is for the case that the translation takes only a part of the block.
        let Some(mut nodes) = Nodes::take(self.engine, 1, 0) else {
            self.engine.frames.give_back(block);
            return Step::End(Outcome::NeedsNode);
        };
        let (word, entry) = (walk.word(), walk.entry());
        let (first, busy) = (self.leaf_start(walk), entry.to_busy());
        if word.change(entry, busy).is_err() {
            self.engine.frames.give_back(block);
            return Step::Again;
        }
        let ask = Install { bytes: Bytes::Zeros, protection: region.options.protection };
        match install(self.engine, translation, first, Order::MAX.frames(), ask) {
            Answer::Partly(installed) => {
                self.keep_part(walk, region, busy, block, nodes.pop(), installed);
                Step::Again
            }
            Answer::Done => {
                let away = self.adopt(block, first, region);
                self.engine.publish(word, busy.to_away(away, region.options.protection));
                self.end_huge_zero(walk);
                Step::End(Outcome::Usable)
            }
            Answer::Busy | Answer::Unsupported => {
                self.engine.publish(word, busy.to_what_was(entry));
                self.engine.frames.give_back(block);
                // A single page may still find room, or memory that nobody holds.
                self.huge = Huge::GivenUp;
                Step::Again
            }
        }
    }

    /// Makes the entry Busy. Returns the contents if the entry has changed.
    fn begin_departure(
        &self,
        walk: &Walk<'a>,
        region: &Region,
        contents: Contents,
    ) -> std::result::Result<Departing<'a>, Contents> {
        let (word, before) = (walk.word(), walk.entry());
        let busy = before.to_busy();
        if word.change(before, busy).is_err() {
            return Err(contents);
        }
        Ok(Departing { page: self.page, word, before, busy, options: region.options, contents })
    }

    /// Keeps the first `installed` pages of a block, as small leaves under a node. The translation has taken
    /// these pages, and the other side may have stored to them. The rest of the range is as it was.
    fn keep_part(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        busy: Entry,
        block: Block,
        node: NodeId,
        installed: u32,
    ) {
        let (engine, entry, first) = (self.engine, walk.entry(), self.leaf_start(walk));
        let pages = engine.frames.split_block(block).zip(engine.table.nodes.entries(node));
        for (index, (page, leaf)) in (0..).zip(pages) {
            if index < installed {
                let away = self.adopt(page, first.plus(u64::from(index)), region);
                leaf.set_unshared(leaf.load().to_away(away, region.options.protection));
            } else {
                engine.frames.give_back(page);
                if entry.is_zero() {
                    leaf.set_unshared(zero_like(entry, leaf.load()));
                }
            }
        }
        engine.publish(walk.word(), busy.to_node(node));
        self.end_huge_zero(walk);
    }

    /// Sends a page at home to the other side.
    fn send_away(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        frame: FrameId,
        translation: &dyn Translation,
        waker: &Waker,
    ) -> Step {
        let engine = self.engine;
        let words = engine.frames.words(frame);
        if words.holds.load().is_writeback() {
            return self.wait_for_writeback(frame, waker);
        }
        let Some(block) = self.alloc_away(Order::ZERO) else {
            return self.lacks_away(Order::ZERO);
        };
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            engine.frames.give_back(block);
            return Step::Again;
        }
        // After a fork, other pages may share the frame. They keep it: this page goes as a copy.
        let place = words.stored.page();
        if words.holds.pinned_by_others(0) {
            engine.publish(word, busy.to_what_was(entry));
            engine.frames.give_back(block);
            return self.refuse(Answer::Busy, waker);
        }
        let is_clean = self.access == Access::Read && !words.holds.load().is_dirty();
        // This reference lets the place outlive the frame.
        let kept = place
            .filter(|_| is_clean)
            .and_then(|place| engine.store(place).add_reference(&engine.frames, place, frame));
        let contents = Contents::Bytes { home: frame, away: block, kept };
        let departing =
            Departing { page: self.page, word, before: entry, busy, options: region.options, contents };
        self.depart(departing, translation, waker)
    }

    /// Checks a page that the other side did not find. Either it has come meanwhile, or the other side has
    /// dropped it. A dropped page reads as zeros from now on.
    fn look_there(&mut self, walk: &Walk<'a>, away: FrameId, translation: &dyn Translation) -> Step {
        self.via = Via::Translation { is_missing: false };
        if walk.level > 0 {
            // The translation is asked about the pages of a block one by one.
            return self.split_to_look(walk);
        }
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            return Step::Again;
        }
        let mut is_there = false;
        let answer = ask_for(self.page, 1, Touch::There, |runs| {
            translation.harvest(runs, &mut |_| is_there = true);
        });
        if is_there || answer != Answer::Done {
            self.engine.publish(word, busy.to_what_was(entry));
        } else {
            self.engine.publish(word, busy.to_empty());
            self.engine.disown(away, self.owner(self.page));
        }
        Step::Again
    }

    fn split_to_look(&mut self, walk: &Walk<'a>) -> Step {
        match split_leaf(self.engine, self.space.id, self.page, walk, 0) {
            Split::NoNode => Step::End(Outcome::NeedsNode),
            Split::Pinned => Step::Again,
            Split::Done | Split::Changed => {
                self.via = Via::Translation { is_missing: true };
                Step::Again
            }
        }
    }

    /// Gives a page at the other side all permissions of its region.
    fn allow_more(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        away: FrameId,
        translation: &dyn Translation,
        waker: &Waker,
    ) -> Step {
        let writes = self.access == Access::Write;
        if walk.level == 0 {
            // A page that is clean now stays so while its entry is Busy.
            let is_clean = !writes && self.engine.is_kept(away);
            return match self.begin_departure(walk, region, Contents::More { away, is_clean }) {
                Ok(departing) => self.depart(departing, translation, waker),
                Err(_) => Step::Again,
            };
        }
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            return Step::Again;
        }
        let (first, pages) = (self.leaf_start(walk), span(walk.level) as u32);
        let protection = region.options.protection;
        let answer = ask_for(first, pages, protection, |runs| translation.protect(runs));
        if writes {
            // If no store to the page follows, this costs one needless write.
            self.engine.frames.words(away).holds.mark_dirty();
            self.engine.give_place_up(away);
        }
        if answer == Answer::Done {
            self.engine.publish(word, busy.to_what_was(entry).with_protection(protection));
            return Step::End(Outcome::Usable);
        }
        if let Answer::Partly(done) = answer {
            // The other side must not allow more than the entry says. It has just changed these pages, so it
            // can change them back, in time.
            let mut back = Batch::new();
            back.add(first, done, entry.protection());
            back.insist(|runs| translation.protect(runs));
        }
        self.engine.publish(word, busy.to_what_was(entry));
        self.refuse(answer, waker)
    }

    // --- what is in place ---

    /// Gives an empty entry the memory that the other side has there already, as a page of the space.
    fn take_over(&mut self, walk: &Walk<'a>, region: &Region, what: InPlace) -> Step {
        let (protection, order) = match what {
            InPlace::Blocks(protection)
                if walk.level == 1 && self.huge != Huge::GivenUp && region.contains_huge(self.page) =>
            {
                (protection, Order::MAX)
            }
            _ if walk.level > 0 => return self.grow(walk),
            InPlace::Blocks(protection) | InPlace::Pages(protection) => (protection, Order::ZERO),
            InPlace::Zeros => {
                let (word, entry) = (walk.word(), walk.entry());
                let taken = word.change(entry, entry.to_zero_away()).is_ok();
                return if taken { Step::End(Outcome::Adopted(1)) } else { Step::Again };
            }
        };
        if protection.both(region.options.protection) != protection {
            return Step::End(Outcome::Failed(self.allows_less()));
        }
        // The memory is in use already, so the room for pages that come in does not matter.
        if let Some(over) = self.check_quota(u64::from(order.frames())) {
            return over;
        }
        let Some(block) = self.alloc_away(order) else {
            return self.lacks_away(order);
        };
        let (word, entry, first) = (walk.word(), walk.entry(), self.leaf_start(walk));
        let away = self.adopt(block, first, region);
        if word.change(entry, entry.to_away(away, protection)).is_err() {
            self.engine.disown(away, self.owner(first));
            return Step::Again;
        }
        Step::End(Outcome::Adopted(u64::from(order.frames())))
    }

    #[cold]
    fn allows_less(&self) -> Error {
        let message = format!(
            "the region at {:#x} allows less than is allowed there already; take that away first, or change it with protect()",
            self.page.address()
        );
        Error::new(ErrorKind::Protected, message)
    }

    /// Refuses to adopt memory if the entry is not empty.
    fn refuse_in_place(&self, entry: Entry) -> Option<Step> {
        if !matches!(self.via, Via::InPlace(_)) || matches!(entry.state(), State::Node(_) | State::Busy) {
            return None;
        }
        let message = format!(
            "the page at {:#x} has something already; adopt pages before the space is used there",
            self.page.address()
        );
        Some(Step::End(Outcome::Failed(Error::new(ErrorKind::AlreadyMapped, message))))
    }

    // --- common parts ---

    fn home(&self) -> Home<'a> {
        Home::new(self.engine.frames.bytes())
    }

    fn leaf_start(&self, walk: &Walk<'a>) -> PageNumber {
        if walk.level == 0 { self.page } else { self.page.huge_start() }
    }

    /// Ends the use of the huge zero page if the replaced leaf was one.
    fn end_huge_zero(&self, walk: &Walk<'a>) {
        if walk.level == 1 && walk.entry().is_zero() {
            self.engine.huge_zero.put(1);
        }
    }

    fn alloc_away(&mut self, order: Order) -> Option<Block> {
        if order == Order::ZERO && self.away.is_some() {
            return self.away.take();
        }
        self.engine.frames.alloc_away(order)
    }

    fn lacks_away(&mut self, order: Order) -> Step {
        if order == Order::MAX {
            // Pages that are away have no bytes here, so a block is not worth a search for room.
            self.huge = Huge::GivenUp;
            return Step::Again;
        }
        Step::End(Outcome::NeedsAway)
    }

    /// Waits until the page has been written, so that nobody holds its frame.
    fn wait_for_writeback(&mut self, frame: FrameId, waker: &Waker) -> Step {
        let engine = self.engine;
        engine.flush_devices();
        engine.poll_transfers();
        if !engine.frames.words(frame).holds.load().is_writeback() {
            return Step::Again;
        }
        if self.waiter.is_too_late() {
            self.waiter.note_silence();
            let areas = &engine.swap.areas;
            let slot = swap::slot_of(&engine.frames, frame);
            let error = slot.map_or_else(|| areas.timed_out(), |slot| areas.timed_out_at(slot));
            return Step::End(Outcome::Failed(error));
        }
        match engine.wait_for_io(frame, waker) {
            Waiting::Registered => {
                // This fault does not drive a transfer that it did not begin.
                engine.serve_devices();
                Step::Wait
            }
            Waiting::Retry => Step::Again,
        }
    }

    /// Ends a step that the translation refused, for now or for ever.
    pub(super) fn refuse(&mut self, refusal: Answer, waker: &Waker) -> Step {
        assert!(self.reading.is_none(), "a fault does not wait for its own pin");
        let page = self.page.address();
        if refusal == Answer::Unsupported {
            let message = format!("the page at {page:#x} cannot be shown, or kept back, at its address");
            return Step::End(Outcome::Failed(Error::new(ErrorKind::Unsupported, message)));
        }
        if !self.waiter.waits_for_holders() {
            return Step::End(Outcome::NotNow);
        }
        let now = self.engine.machine.clock.now();
        // Between two refusals, the fault may have waited for a device or for room.
        let passed =
            self.refused_at.replace(now).map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.refused_for += passed.min(LONGEST_LOOK);
        if self.refused_for < PATIENCE {
            // Let others run before this fault tries again: threads that may wait for this CPU, and the
            // executor's other tasks. A thread that drives many faults decides itself when to sleep.
            if !self.waiter.is_driven() {
                thread::yield_now();
            }
            if self.waiter.blocks() {
                return Step::Again;
            }
            waker.wake_by_ref();
            return Step::Wait;
        }
        let message = format!("the page at {page:#x} stays busy; drop what holds its memory, and try again");
        Step::End(Outcome::Failed(Error::new(ErrorKind::Busy, message)))
    }
}

/// Makes the entry zero, at home or away like the huge zero leaf.
fn zero_like(huge: Entry, leaf: Entry) -> Entry {
    if huge.is_away() { leaf.to_zero_away() } else { leaf.to_zero() }
}
