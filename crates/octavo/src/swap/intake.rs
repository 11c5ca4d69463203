//! Intake: pages that no page store keeps yet get slots and enter the swap cache.

use smallvec::SmallVec;

use crate::frame::FrameAllocator;
use crate::swap::Swap;
use crate::swap::clusters::{SlotRequest, SlotRun};
use crate::units::{CHUNK_FRAMES, FrameId, StoredPage, SwapSlot};

impl Swap {
    /// Gives consecutive slots to frames that the caller has pinned, and puts the frames into the cache.
    /// Takes only as many frames as the first free run of slots has room for, and returns their number. Calls
    /// `each` with the page's place, or with `None` if the frame is dying.
    pub(crate) fn take_in(
        &self,
        frames: &FrameAllocator,
        run: impl ExactSizeIterator<Item = FrameId>,
        each: impl FnMut(FrameId, Option<StoredPage>),
    ) -> usize {
        let shunned = self.areas.shunned(self.has_room());
        let Some(slots) = self.slots.allocate(run.len() as u32, self.ask(&shunned)) else { return 0 };
        self.cache.reserve(slots);
        let count = slots.count as usize;
        self.insert(frames, slots.first, run.take(count), each);
        count
    }

    /// Allocates a whole cluster, 512 consecutive places, for the frames of a block. Returns the first place,
    /// or `None` if no cluster is free. The caller passes each place to [`Swap::take_in_at`], or gives it
    /// back with [`Swap::give_back`].
    pub(crate) fn allocate_huge(&self) -> Option<StoredPage> {
        let shunned = self.areas.shunned(self.has_room());
        let first = self.slots.allocate_huge(self.ask(&shunned))?;
        self.cache.reserve(SlotRun { first, count: CHUNK_FRAMES });
        Some(first.stored())
    }

    fn ask<'a>(&self, shunned: &'a [bool]) -> SlotRequest<'a> {
        // A device that failed may have no room to grow.
        SlotRequest { may_grow: !self.areas.are_cautious(), shunned }
    }

    /// Puts a frame that the caller has pinned into the cache, at an allocated place. If the frame is dying,
    /// frees the place and returns false.
    pub(crate) fn take_in_at(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> bool {
        let mut taken = false;
        self.insert(frames, SwapSlot::named(page), [frame].into_iter(), |_, page| taken = page.is_some());
        taken
    }

    /// Gives back an allocated place that got no frame.
    pub(crate) fn give_back(&self, frames: &FrameAllocator, page: StoredPage) {
        self.cache.free_unused(frames, SwapSlot::named(page));
    }

    fn insert(
        &self,
        frames: &FrameAllocator,
        first: SwapSlot,
        run: impl Iterator<Item = FrameId>,
        mut each: impl FnMut(FrameId, Option<StoredPage>),
    ) {
        let mut unused = SmallVec::<[SwapSlot; 8]>::new();
        self.cache.insert_run(frames, first, run, |slot, frame, inserted| {
            if !inserted {
                unused.push(slot);
            }
            each(frame, inserted.then(|| slot.stored()));
        });
        unused.iter().for_each(|slot| self.cache.free_unused(frames, *slot));
    }
}
