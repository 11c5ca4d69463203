//! Faults on anonymous pages that have no bytes yet, or that are written whole. Readers get zero pages, and
//! writers get frames and blocks.

use crate::counters::Counter;
use crate::fault::{Fault, Huge, Outcome, Step};
use crate::frame::Block;
use crate::reclaim;
use crate::region::Region;
use crate::rmap::Owner;
use crate::store::Reference;
use crate::sync::{Ordering, fence};
use crate::table::Walk;
use crate::table::entry::State;
use crate::units::{CHUNK_FRAMES, FrameId, Order, PAGE_BYTES, PageNumber};

impl Fault<'_> {
    /// Installs 2 MiB of zeros without a frame. It costs one compare-and-swap, and what the zero page's mode
    /// takes to count a use.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn install_huge_zero(&mut self, walk: &Walk<'_>) -> Step {
        if !self.engine.huge_zero.get(&self.space.used_huge_zero, &self.engine.frames) {
            self.engine.counters.count(Counter::HugeFaultFallback);
            self.huge = Huge::GivenUp;
            return Step::Again;
        }
        let entry = walk.entry();
        if walk.word().change(entry, entry.to_zero()).is_err() {
            self.engine.huge_zero.put(1);
            return Step::Again;
        }
        Step::End(Outcome::Usable)
    }

    pub(super) fn install_small_zero(&mut self, walk: &Walk<'_>) -> Step {
        let entry = walk.entry();
        match walk.word().change(entry, entry.to_zero()) {
            Ok(()) => Step::End(Outcome::Usable),
            Err(_) => Step::Again,
        }
    }

    /// Installs a frame of zeros, in place of nothing or of the small zero page. If `bytes` overwrite all of
    /// the page, installs a frame with them instead, also in place of a page that is out.
    pub(super) fn install_frame(&mut self, walk: &Walk<'_>, region: &Region) -> Step {
        // A page that is out and overwritten whole exchanges its slot for the frame.
        let new_pages = u64::from(!matches!(walk.entry().state(), State::Swapped(_)));
        if let Some(first) = self.comes_first(1, new_pages) {
            return first;
        }
        if self.bytes.is_none()
            && let Some(block) = self.engine.frames.alloc_zeroed()
        {
            self.engine.counters.count(Counter::FrameZeroedAhead);
            return self.install_ready(walk, region, block);
        }
        let frames = &self.engine.frames;
        let found = match self.looks_everywhere {
            true => frames.alloc(Order::ZERO),
            false => frames.alloc_or_make_room(Order::ZERO),
        };
        let Some(block) = found else { return Step::End(Outcome::NeedsFrame) };
        if let Some(bytes) = self.bytes {
            // Release: the steps that made the frame ours come before its new bytes, for loads that still
            // look at an old entry.
            fence(Ordering::Release);
            // The bytes are copied before the entry is changed, because reading them may take time.
            frames.bytes().copy_in(block.frame().home_offset(), bytes);
            return self.install_ready(walk, region, block);
        }
        if block.is_zeroed() {
            return self.install_ready(walk, region, block);
        }
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            frames.give_back(block);
            return Step::Again;
        }
        self.engine.counters.count(Counter::FrameZeroed);
        frames.bytes().zero(block.frame().home_offset(), PAGE_BYTES);
        let frame = self.take(block, self.page, region);
        self.engine.publish(word, busy.to_present(frame, region.options.entry_protection()));
        Step::End(Outcome::Usable)
    }

    /// Installs a copy of a frame that other entries show, or may find.
    pub(super) fn install_copy(&mut self, walk: &Walk<'_>, region: &Region, shared: FrameId) -> Step {
        if let Some(first) = self.comes_first(0, 1) {
            return first;
        }
        let frames = &self.engine.frames;
        let Some(block) = frames.alloc(Order::ZERO) else { return Step::End(Outcome::NeedsFrame) };
        let (word, entry) = (walk.word(), walk.entry());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            frames.give_back(block);
            return Step::Again;
        }
        frames.bytes().copy_within(shared.home_offset(), block.frame().home_offset(), PAGE_BYTES);
        let frame = self.take(block, self.page, region);
        self.engine.publish(word, busy.to_present(frame, region.options.entry_protection()));
        self.engine.disown(shared, self.owner(self.page));
        Step::End(Outcome::Usable)
    }

    /// Installs a frame that has its bytes already. So the entry need not be busy.
    fn install_ready(&mut self, walk: &Walk<'_>, region: &Region, block: Block) -> Step {
        let (entry, owner) = (walk.entry(), self.owner(self.page));
        let frame = self.take(block, self.page, region);
        if walk.word().change(entry, entry.to_present(frame, region.options.entry_protection())).is_err() {
            self.engine.disown(frame, owner);
            return Step::Again;
        }
        if let State::Swapped(slot) = entry.state() {
            // As in an unmap, dropping the last reference also lets go of the frame that the swap cache has
            // for the slot, even if that frame is still on its way there.
            self.engine.drop_reference(Reference::counted(slot.stored()));
        }
        Step::End(if self.bytes.is_some() { Outcome::Written } else { Outcome::Usable })
    }

    /// Installs a 2 MiB block, in place of nothing or of a huge zero leaf. If there is no block, the fault
    /// uses base pages.
    pub(super) fn install_block(&mut self, walk: &Walk<'_>, region: &Region) -> Step {
        if let Some(first) = self.comes_first(u64::from(CHUNK_FRAMES), u64::from(CHUNK_FRAMES)) {
            return first;
        }
        let block = match std::mem::replace(&mut self.huge, Huge::GivenUp) {
            Huge::Compacted(block) => block,
            untried => match self.engine.frames.alloc(Order::MAX) {
                Some(block) => Some(block),
                None => {
                    self.huge = untried;
                    return Step::End(Outcome::NeedsHuge);
                }
            },
        };
        let Some(block) = block else {
            self.engine.counters.count(Counter::HugeFaultFallback);
            return Step::Again;
        };
        let (word, entry, page) = (walk.word(), walk.entry(), self.page.huge_start());
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            // Another thread is changing the entry. If this fault still needs a block, it looks for one
            // again.
            self.huge = Huge::Untried;
            self.engine.frames.give_back(block);
            return Step::Again;
        }
        if !block.is_zeroed() {
            self.engine.counters.add(Counter::FrameZeroed, u64::from(CHUNK_FRAMES));
            self.engine.frames.bytes().zero(block.frame().home_offset(), Order::MAX.bytes());
        }
        let frame = self.take(block, page, region);
        self.engine.publish(word, busy.to_present(frame, region.options.entry_protection()));
        self.engine.counters.count(Counter::HugeFaultAllocated);
        if entry.is_zero() {
            self.engine.huge_zero.put(1);
        }
        Step::End(Outcome::Usable)
    }

    /// Returns what must happen before the space gets `pages` more at home, of which `new_pages` are new:
    /// room under its quota, the thread's throttle, or room beside what is kept for pages that come in.
    fn comes_first(&self, pages: u64, new_pages: u64) -> Option<Step> {
        let is_throttled = || reclaim::must_throttle(self.engine).then_some(Step::End(Outcome::Throttled));
        self.check_quota(pages).or_else(is_throttled).or_else(|| self.check_growth(new_pages))
    }

    /// As [`Fault::adopt`], for new bytes at home. They count toward the thread's throttle.
    fn take(&self, block: Block, page: PageNumber, region: &Region) -> FrameId {
        reclaim::note_taken(self.engine, block.order().frames());
        self.adopt(block, page, region)
    }

    /// Makes `page` the owner of the block. The caller publishes the frame, or disowns it.
    pub(super) fn adopt(&self, block: Block, page: PageNumber, region: &Region) -> FrameId {
        let frame = self.engine.adopt(block, self.owner(page));
        self.mark_by(region, frame);
        frame
    }

    /// Marks a frame if its region forbids compression.
    #[inline]
    pub(super) fn mark_by(&self, region: &Region, frame: FrameId) {
        if !region.options.compress {
            self.engine.frames.words(frame).holds.mark_no_compress();
        }
    }

    pub(super) fn owner(&self, page: PageNumber) -> Owner {
        Owner { space: self.space.id, page }
    }
}
