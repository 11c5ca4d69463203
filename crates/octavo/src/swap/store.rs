//! Swap as a store of pages: the index is a slot, and the entries of an evicted page become Swapped.

use crate::frame::FrameAllocator;
use crate::mapping;
use crate::policy::Shadow;
use crate::store::{Evicted, Leaving, Orphan, PageStore, PutAway};
use crate::swap::Swap;
use crate::table::entry::Entry;
use crate::units::{FrameId, StoredPage, SwapSlot};

impl PageStore for Swap {
    fn entry(&self, seen: Entry, page: StoredPage) -> Entry {
        seen.to_swapped(SwapSlot::named(page))
    }

    fn add_reference(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> bool {
        self.cache.add_reference(frames, SwapSlot::named(page), frame)
    }

    fn drop_reference(&self, frames: &FrameAllocator, page: StoredPage) -> Orphan {
        self.cache.drop_reference(frames, SwapSlot::named(page))
    }

    fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        self.cache.forget_orphan(frames, frame)
    }

    fn detach(&self, frames: &FrameAllocator, frame: FrameId) {
        self.cache.detach(frames, frame);
    }

    fn put_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, FrameId)],
        each: &mut dyn FnMut(StoredPage, FrameId, PutAway),
    ) {
        self.put_batch_away(leaving, batch, each);
    }

    fn write_batch(&self) -> usize {
        Swap::write_batch(self)
    }

    fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: &[(StoredPage, FrameId)],
        shadow: Shadow,
        each: &mut dyn FnMut(FrameId, Evicted),
    ) {
        let shadow = Some(mapping::Shadow::new(shadow.bits()));
        let slots = run.iter().map(|&(page, frame)| (SwapSlot::named(page), frame));
        self.cache.evict_run(frames, slots, shadow, each);
    }
}
