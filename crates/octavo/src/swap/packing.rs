//! Where each page of a batch ends: in a word, in the pool, or on its area.
//!
//! A dirty page is put away under WRITEBACK. Where it repeats a word, or the pool takes it, the writeback ends at once; else
//! the page is left to be written. A clean page that is on its area came back once, so it is packed as well where that pays. How
//! many pages of a space may try the pool, the pool weighs for the batch.

use crate::frame::{FrameAllocator, PageIs};
use crate::lru::IsolatedFrame;
use crate::rmap::ReverseMap;
use crate::store::{Leaving, PutAway, Started};
use crate::swap::Swap;
use crate::swap::pool::{DeviceView, Pool, Weights};
use crate::table::SpaceId;
use crate::units::{FrameId, StoredPage, SwapSlot};

/// What the pages of one space in a batch may try.
struct Tries<'a> {
    weights: &'a Weights,
    left: u32,
}

impl Swap {
    /// Puts away what is dirty of a batch, and packs what is clean where that pays.
    pub(super) fn put_batch_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, IsolatedFrame)],
        each: &mut dyn FnMut(PutAway),
    ) {
        let frames = leaving.frames;
        let Some(pool) = self.pool() else {
            for (page, frame) in batch {
                let is_dirty = frames.words(frame.frame()).holds.load().is_dirty();
                each(if is_dirty {
                    self.put_away(frames, SwapSlot::named(*page), frame.frame(), None)
                } else {
                    PutAway::Done { awaited: false }
                });
            }
            return;
        };
        let device = pool.device_view(leaving.ended_pages, leaving.writing_pages);
        let has_room = !pool.is_crowded();
        let space_of =
            |(_, frame): &(StoredPage, IsolatedFrame)| former_space(frames, leaving.rmap, frame.frame());
        for run in batch.chunk_by(|a, b| space_of(a) == space_of(b)) {
            let mut tries = Tries::of(pool, space_of(&run[0]), run.len(), &device);
            for (page, frame) in run {
                let slot = SwapSlot::named(*page);
                each(self.put_away_or_pack(frames, slot, frame.frame(), &mut tries, has_room));
            }
        }
    }

    fn put_away_or_pack(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        tries: &mut Tries<'_>,
        has_room: bool,
    ) -> PutAway {
        let holds = frames.words(frame).holds.load();
        let may_try = tries.left > 0 && !holds.is_no_compress();
        if holds.is_dirty() {
            let put = self.put_away(frames, slot, frame, may_try.then_some(tries.weights));
            let was_tried = may_try && !matches!(put, PutAway::Refused { .. });
            tries.left -= u32::from(was_tried);
            return put;
        }
        // A crowded pool takes no clean page: it would write another in its stead.
        if may_try && has_room && self.is_on_device(slot) {
            tries.left -= 1;
            return PutAway::Done { awaited: self.pack_clean(frames, slot, frame, tries.weights) };
        }
        PutAway::Done { awaited: false }
    }

    /// Starts the writeback of a dirty page, and ends it where a word or, with the weights by which it may be tried, the pool
    /// takes it.
    pub(crate) fn put_away(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        weights: Option<&Weights>,
    ) -> PutAway {
        match self.start_writeback(frames, slot, frame, PageIs::Dirty) {
            Started::Yes => {}
            refused => return PutAway::Refused { awaited: refused == Started::RefusedAndAwaited },
        }
        if self.store_content(frames, slot, frame, weights) {
            return PutAway::ToBeWritten;
        }
        PutAway::Done { awaited: self.cache.end_writeback(frames, slot, frame, true) }
    }

    /// A page that is on its area, and not changed since, is packed as well. Where the pool does not take it, it is where it was.
    /// Says whether somebody waits for it.
    fn pack_clean(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId, weights: &Weights) -> bool {
        match self.start_writeback(frames, slot, frame, PageIs::Clean) {
            Started::Yes => {
                self.pack(frames, slot, frame, weights);
                self.cache.end_writeback(frames, slot, frame, true)
            }
            refused => refused == Started::RefusedAndAwaited,
        }
    }
}

impl<'a> Tries<'a> {
    /// For `pages` pages of one space.
    fn of(pool: &'a Pool, space: Option<SpaceId>, pages: usize, device: &DeviceView) -> Self {
        let weights = pool.weights(space);
        Self { weights, left: pool.weigh(weights, pages as u32, device) }
    }
}

/// The space whose page a frame on its way out is, if it is one's alone.
fn former_space(frames: &FrameAllocator, rmap: &ReverseMap, frame: FrameId) -> Option<SpaceId> {
    rmap.former_owner(frames, frame).map(|owner| owner.space)
}
