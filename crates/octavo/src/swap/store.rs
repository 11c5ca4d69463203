//! Swap as a store of pages: the index is a slot, and the entries of an evicted page become Swapped.

use std::io;

use crate::counters::Counter;
use crate::error::{Error, ErrorKind};
use crate::frame::{Block, FrameAllocator};
use crate::io::{Host, Job, Urgency, Waited};
use crate::lru::IsolatedFrame;
use crate::policy::Shadow;
use crate::store::{
    Begun, Completing, Evicted, Frames, Leaving, Orphan, PageStore, PutAway, Reference, Unread,
};
use crate::swap::content::Content;
use crate::swap::{SHORT_WRITE, Swap, forget_queue};
use crate::sync::Shared;
use crate::table::SpaceId;
use crate::table::entry::{Entry, State};
use crate::units::{FrameId, StoredPage, SwapSlot};

impl PageStore for Swap {
    fn entry(&self, seen: Entry, page: StoredPage) -> Entry {
        seen.to_swapped(SwapSlot::named(page))
    }

    fn is_led_to(&self, page: StoredPage, seen: Entry) -> bool {
        seen.state() == State::Swapped(SwapSlot::named(page))
    }

    fn add_reference(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Option<Reference> {
        let is_counted = self.cache.add_reference(frames, SwapSlot::named(page), frame);
        is_counted.then(|| Reference::counted(page))
    }

    fn drop_reference(&self, frames: &FrameAllocator, reference: Reference) -> Orphan {
        self.cache.drop_reference(frames, SwapSlot::named(reference.into_page()))
    }

    fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        self.cache.forget_orphan(frames, frame)
    }

    fn detach(&self, frames: &FrameAllocator, frame: FrameId) {
        self.cache.detach(frames, frame);
    }

    fn is_better_moved(&self, page: StoredPage) -> bool {
        self.areas.are_better_than_that_of(SwapSlot::named(page), self.has_room())
    }

    fn put_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, IsolatedFrame)],
        each: &mut dyn FnMut(PutAway),
    ) {
        self.put_batch_away(leaving, batch, each);
    }

    fn write_batch(&self) -> usize {
        let most = self.longest_write();
        if self.areas.single_reads.take_short_write() { most.min(SHORT_WRITE) } else { most }
    }

    fn stand_ins(&self, frames: &FrameAllocator, first: StoredPage, run: &[FrameId]) -> Option<Frames> {
        let slots = (SwapSlot::named(first).0..).map(SwapSlot);
        let seal = |(slot, frame): (SwapSlot, &FrameId)| self.contents.seal(frames, slot, *frame);
        self.contents.seals().then(|| slots.zip(run).map_while(seal).collect())
    }

    fn give_stand_in_back(&self, frame: FrameId) {
        self.contents.unseal(frame);
    }

    fn note_written(&self, first: StoredPage, count: u32, written: bool) {
        let counter = if written { Counter::SwapOut } else { Counter::SwapWriteError };
        self.counters.add(counter, u64::from(count));
        if !written {
            let first = SwapSlot::named(first).0;
            (first..first + count).for_each(|slot| self.slots.note_unwritable(SwapSlot(slot)));
        }
    }

    fn end_writeback(
        &self,
        frames: &FrameAllocator,
        page: StoredPage,
        frame: FrameId,
        written: bool,
    ) -> bool {
        self.cache.end_writeback(frames, SwapSlot::named(page), frame, written)
    }

    fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: &[(StoredPage, IsolatedFrame)],
        shadow: Shadow,
        each: &mut dyn FnMut(Evicted),
    ) {
        let slots = run.iter().map(|(page, frame)| (SwapSlot::named(*page), frame.frame()));
        self.cache.evict_run(frames, slots, Some(shadow), |_, evicted| each(evicted));
    }

    fn leave(&self, page: StoredPage, shadow: Shadow) {
        self.cache.leave(SwapSlot::named(page), shadow);
    }

    fn wants_copies(&self, leaving: &Leaving<'_>, space: SpaceId, pages: u32) -> u32 {
        self.wants_packed(leaving, space, pages)
    }

    fn may_copy(&self, page: StoredPage) -> bool {
        self.is_on_device(SwapSlot::named(page))
    }

    fn copy(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId, space: SpaceId) -> bool {
        let slot = SwapSlot::named(page);
        self.pool().is_some_and(|pool| self.pack_clean(frames, slot, frame, pool.weights(Some(space))))
    }

    fn begin_read(&self, frames: &FrameAllocator, page: StoredPage, fresh: Block) -> Begun<Shadow> {
        forget_queue(frames, fresh.frame());
        self.cache.begin_read(frames, SwapSlot::named(page), fresh)
    }

    fn note_read(&self, first: StoredPage, count: u32, result: io::Result<()>) -> Result<(), Error> {
        let counter = if result.is_ok() { Counter::SwapIn } else { Counter::SwapReadError };
        self.counters.add(counter, u64::from(count));
        let (area, _) = self.areas.area_of(SwapSlot::named(first));
        result.map_err(|error| area.read_error(&error.to_string()))
    }

    fn check_read(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Result<(), Error> {
        let slot = SwapSlot::named(page);
        let is_right = match self.content(slot) {
            Content::Device { crc } => self.contents.check(frames, slot, frame, crc).is_ok(),
            _ => false,
        };
        // Checked last: if the slot was freed meanwhile, and may have another page, no thread wants the frame
        // any more.
        let is_wanted = || frames.words(frame).stored.page() == Some(page);
        if is_right || !is_wanted() { Ok(()) } else { Err(self.corrupt(slot)) }
    }

    fn note_unread(&self, page: StoredPage, why: Unread) {
        if matches!(&why, Unread::Failed(error) if error.kind() == ErrorKind::Corrupt) {
            self.counters.count(Counter::SwapCorrupt);
        }
        self.read_failures.note(page, why);
    }

    fn why_unread(&self, page: StoredPage) -> Unread {
        self.read_failures.why(page).unwrap_or_else(|| {
            let (area, _) = self.areas.area_of(SwapSlot::named(page));
            Unread::Failed(area.read_error("another access met the failure"))
        })
    }

    fn timed_out(&self, page: StoredPage) -> Error {
        self.areas.timed_out_at(SwapSlot::named(page))
    }

    fn forget_failed(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) {
        self.cache.forget_failed(frames, SwapSlot::named(page), frame);
    }

    fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool {
        self.areas.submit(host, job, urgency)
    }

    fn completing(&self) -> Option<Completing<'_>> {
        Some(self.areas.completing())
    }

    fn note_end(&self, job: &Job, result: &io::Result<()>) {
        let (area, _) = self.areas.area_of(SwapSlot::named(job.first));
        area.note_end(job, result);
    }

    fn has_devices(&self) -> bool {
        !self.areas.is_empty()
    }

    fn flush(&self) {
        self.areas.flush();
    }

    fn poll(&self) {
        self.areas.poll();
    }

    fn serve(&self) {
        self.areas.serve();
    }

    fn wait_for_any(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.areas.wait_for_any(still_waiting)
    }

    fn wait(&self, page: StoredPage, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.areas.area_of(SwapSlot::named(page)).0.wait(queue, still_waiting)
    }
}
