//! Faults in regions that show a file.
//!
//! ```text
//!   entry Empty ── in the page cache? ── yes ─► pin the frame ──────────────┐
//!        ▲               │ no                                               ▼
//!        │         a fresh frame, under READING ─► transfer ─► READING? wait for the frame
//!        │                                                                  │ the bytes are there
//!        └───────── dropped meanwhile: look again ◄── Empty ─► Present(frame), under the page's lock
//!
//!   private, written:     Present(frame), copied on write ─► Present(a copy). From here on the page is anonymous.
//!   written whole, not in memory:        Empty ─► Present(a frame with the bytes). The old ones are not read.
//! ```
//!
//! The entry stays Empty while its page is read, and the frame is in the page cache. So this works as in
//! `swap_in.rs`: threads that want the page wait for the frame, each with a deadline of its own.
//!
//! An entry begins to show a frame under the page's lock. A truncation first makes the file shorter, and
//! then takes each page under this lock. So no entry shows a page behind the end.

use crate::counters::Counter;
use crate::engine::Hit;
use crate::fault::readahead::{read_ahead, read_with};
use crate::fault::swap_in::Reading;
use crate::fault::{Fault, Outcome, Step};
use crate::frame::PinnedFrame;
use crate::page_cache::Inode;
use crate::policy::Arrival;
use crate::reclaim;
use crate::region::{FilePart, Region};
use crate::store::Begun;
use crate::sync::{Ordering, Shared, fence};
use crate::table::entry::{Entry, State};
use crate::table::{Access, Walk};
use crate::units::{CHUNK_FRAMES, FrameId, Order, PAGE_BYTES, PageNumber, StoredPage};

/// The most pages that a fault shows beside the one it wants: 64 KiB, as Linux does.
const FAULT_AROUND: u64 = 15;

/// The page of a file that a fault wants.
struct Wanted<'i> {
    inode: &'i Shared<Inode>,
    /// Its place in the file.
    at: u64,
    page: StoredPage,
    is_private: bool,
}

impl<'a> Fault<'a> {
    /// Serves an entry in a region that shows a file. Returns `None` where it is served as anywhere.
    #[inline(never)]
    pub(super) fn step_in_file(&mut self, walk: &Walk<'a>, region: &Region, part: FilePart) -> Option<Step> {
        let entry = walk.entry();
        match entry.state() {
            State::Empty | State::Node(_) if walk.level > 0 => Some(self.grow(walk)),
            State::Empty => Some(self.counted().file_in(walk, region, part)),
            State::Present(frame) if entry.is_copy_on_write() => {
                if self.access == Access::Write {
                    return Some(self.counted().install_copy(walk, region, frame));
                }
                if entry.usable_at_home(Access::Read).is_some() {
                    return Some(Step::End(Outcome::Usable));
                }
                // A protect() that widens the permissions has not reached this entry yet.
                let _ = walk.word().change(entry, entry.with_protection(region.options.entry_protection()));
                Some(Step::Again)
            }
            _ => None,
        }
    }

    fn file_in(&mut self, walk: &Walk<'a>, region: &Region, part: FilePart) -> Step {
        let engine = self.engine;
        // Whoever maps a file keeps it open.
        let Some(inode) = engine.page_cache.file(part.file) else { return Step::Again };
        let at = part.page_at(self.page);
        if inode.is_closed() {
            // The region is gone.
            return Step::Again;
        }
        if at >= inode.pages() {
            return Step::End(Outcome::Failed(inode.beyond_end(at)));
        }
        let page = match engine.page_cache.number(&inode, at) {
            Ok(page) => page,
            Err(error) => return Step::End(Outcome::Failed(error)),
        };
        let wanted = Wanted { inode: &inode, at, page, is_private: part.is_private };
        if let Some(reading) = self.reading.take() {
            if reading.page == page {
                return self.end_file_wait(walk, region, &wanted, reading);
            }
            reading.give_up(engine);
        }
        if let Some(over) = self.check_quota(1) {
            return over;
        }
        if wanted.is_private && self.bytes.is_some() {
            // The page becomes the space's own, and nothing is left of the file's bytes.
            return self.install_frame(walk, region);
        }
        let ends = engine.ends();
        match engine.find_in_file(page) {
            Some(pin) => self.join_in_file(walk, region, &wanted, pin, ends),
            None if self.bytes.is_some() => self.write_new(walk, region, &wanted),
            None => self.read_file(walk, region, &wanted, ends),
        }
    }

    /// Serves a page that has a frame. Another fault may be reading it.
    fn join_in_file(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        wanted: &Wanted<'_>,
        pin: PinnedFrame,
        ends: u64,
    ) -> Step {
        let engine = self.engine;
        engine.counters.count(Counter::FileCacheHit);
        let words = engine.frames.words(pin.frame());
        let holds = words.holds.load();
        let mut reading = Reading::new(wanted.page, pin, ends);
        reading.together = true;
        // No entry has shown the page yet: a read ahead has brought it.
        let is_fresh = words.uses.get() == 1 && !holds.is_dirty();
        if let Some(window) = self.look_ahead(region, if is_fresh { Hit::ReadAhead } else { Hit::Cached }) {
            read_ahead(engine, self.space, window, region);
            self.start_collected();
        }
        if holds.is_reading() {
            self.reading = Some(reading);
            return Step::Again;
        }
        self.end_file_wait(walk, region, wanted, reading)
    }

    /// Reads a page that has no frame.
    fn read_file(&mut self, walk: &Walk<'a>, region: &Region, wanted: &Wanted<'_>, ends: u64) -> Step {
        let (engine, page) = (self.engine, wanted.page);
        let Some(block) = engine.frames.alloc(Order::ZERO) else { return Step::End(Outcome::NeedsFrame) };
        let (transfer, shadow) =
            match engine.page_cache.begin_read_of(&engine.frames, wanted.inode, page, block) {
                Begun::Reading(pin, shadow) => (pin, shadow),
                Begun::Cached(pin, block) => {
                    engine.frames.give_back(block);
                    return self.join_in_file(walk, region, wanted, pin, ends);
                }
                Begun::Gone(block) => {
                    engine.frames.give_back(block);
                    return Step::Again;
                }
            };
        let frame = transfer.frame();
        engine.admit(frame, Arrival::of(shadow, false));
        // `transfer` is the transfer's pin, and this one is the fault's.
        let (pin, _) = PinnedFrame::take(frame, engine.frames.words(frame));
        let mut reading = Reading::new(page, pin, ends);
        if wanted.at * PAGE_BYTES as u64 >= wanted.inode.backed_bytes() {
            // No device has bytes of it.
            engine.frames.bytes().zero(frame.home_offset(), PAGE_BYTES);
            engine.end_read_of(page, transfer, None);
            return self.end_file_wait(walk, region, wanted, reading);
        }
        engine.counters.count(Counter::MajorFault);
        reading.together = match self.look_ahead(region, Hit::None) {
            None => {
                engine.start_read(page, [transfer], self.urgency());
                false
            }
            Some(window) => {
                read_with(engine, self.space, (page, transfer), window, region);
                true
            }
        };
        if engine.frames.words(frame).holds.load().is_reading() {
            self.start_collected();
            self.reading = Some(reading);
            return Step::Again;
        }
        self.end_file_wait(walk, region, wanted, reading)
    }

    /// Makes the entry show the frame. The read has ended, or none was needed.
    fn end_file_wait(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        wanted: &Wanted<'_>,
        reading: Reading,
    ) -> Step {
        let (engine, entry, frame) = (self.engine, walk.entry(), reading.frame());
        if engine.frames.words(frame).holds.load().was_read_in_vain() {
            return self.fail(walk, reading);
        }
        let to = self.shown_as(entry, frame, region, wanted.is_private);
        let shown = engine.page_cache.while_cached(
            &engine.frames,
            (wanted.inode, wanted.at),
            (wanted.page, frame),
            || walk.word().load() == entry && self.show_at(walk, self.page, frame, to),
        );
        reading.give_up(engine);
        if shown == Some(true) && self.space.streams.is_in_order(self.page) {
            self.show_behind(region, wanted);
        }
        match shown {
            // A private page that is written is copied next.
            Some(true) if wanted.is_private && self.access == Access::Write => Step::Again,
            Some(true) => Step::End(Outcome::Usable),
            Some(false) | None => Step::Again,
        }
    }

    /// Shows pages behind the one that a reader in order wants, if they are in memory and the space does
    /// not show them yet. So such a reader takes one fault for several pages (Linux's `do_fault_around`).
    fn show_behind(&self, region: &Region, wanted: &Wanted<'_>) {
        let engine = self.engine;
        // The pages of one node, and of this region.
        let last = PageNumber(self.page.huge_start().0 + u64::from(CHUNK_FRAMES) - 1);
        let most = last.0.min(region.end.0 - 1).saturating_sub(self.page.0).min(FAULT_AROUND);
        if most == 0 || self.space.quota.pages().is_some() {
            return;
        }
        let (mut page, mut shown) = (self.page, 0);
        engine.page_cache.while_cached_behind(
            &engine.frames,
            (wanted.inode, wanted.at),
            wanted.page,
            most,
            |frame| {
                page = page.plus(1);
                let walk = engine.table.walk(self.space.id, page);
                let entry = walk.entry();
                if walk.level != 0
                    || !entry.is_empty()
                    || !self.still_shows(region, page)
                    || !walk.links_hold()
                {
                    return false;
                }
                // Under the page's lock, the cache keeps its use.
                let to = self.shown_as(entry, frame, region, wanted.is_private).without_accessed();
                let is_shown = self.show_at(&walk, page, frame, to);
                shown += u32::from(is_shown);
                is_shown
            },
        );
        self.space.streams.note_shown(self.page, shown);
    }

    /// Returns whether a page still belongs to a region, after its entry was read.
    fn still_shows(&self, region: &Region, page: PageNumber) -> bool {
        self.space.regions.find(page).is_some_and(|now| now.options == region.options)
    }

    /// The entry that shows a frame of the file.
    fn shown_as(&self, entry: Entry, frame: FrameId, region: &Region, is_private: bool) -> Entry {
        let protection = region.options.entry_protection();
        if is_private {
            entry.to_copy_on_write(frame, protection)
        } else {
            entry.to_present(frame, protection)
        }
    }

    /// Installs a frame with the bytes that overwrite all of a page that is not in memory.
    fn write_new(&mut self, walk: &Walk<'a>, region: &Region, wanted: &Wanted<'_>) -> Step {
        let engine = self.engine;
        if reclaim::must_throttle(engine) {
            return Step::End(Outcome::Throttled);
        }
        let frames = &engine.frames;
        let (Some(bytes), Some(block)) = (self.bytes, frames.alloc(Order::ZERO)) else {
            return Step::End(Outcome::NeedsFrame);
        };
        // Release: the steps that made the frame ours come before its new bytes, for loads that still look at
        // an old entry.
        fence(Ordering::Release);
        frames.bytes().copy_in(block.frame().home_offset(), bytes);
        reclaim::note_taken(engine, 1);
        let owner = self.owner(self.page);
        let frame = engine.adopt_off_lists(block, owner);
        let (pin, _) = PinnedFrame::take(frame, frames.words(frame));
        let entry = walk.entry();
        let to = entry.to_present(frame, region.options.entry_protection());
        let shown = engine.page_cache.insert(frames, (wanted.inode, wanted.at), (wanted.page, frame), || {
            walk.word().change(entry, to).is_ok()
        });
        engine.lru.add(frames, frame);
        if !shown {
            engine.disown(frame, owner);
        }
        engine.unpin(pin);
        if shown { Step::End(Outcome::Written) } else { Step::Again }
    }
}
