//! Packing: the choice for each page of a batch. A page becomes a word, or goes to the pool or to its area.
//!
//! A dirty page is put away under WRITEBACK. If it repeats a word, or the pool takes it, the writeback ends
//! at once. Otherwise, the page remains to be written. A clean page on its area has come back once, so a copy
//! is packed if this pays. For each batch, the pool decides how many pages of a space may try the pool.

use crate::frame::{FrameAllocator, PageIs};
use crate::lru::IsolatedFrame;
use crate::rmap::ReverseMap;
use crate::store::{Leaving, PutAway, Started};
use crate::swap::Swap;
use crate::swap::pool::{DeviceView, FaultPath, Pool, Turnover, Weights};
use crate::table::SpaceId;
use crate::units::{FrameId, StoredPage, SwapSlot};

/// How many pages of one space in a batch may try the pool.
struct Tries<'a> {
    weights: &'a Weights,
    left: u32,
}

impl Swap {
    /// Puts the dirty pages of a batch away, and packs copies of clean pages if this pays.
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
        let turnover = pool.turnover();
        let space_of =
            |(_, frame): &(StoredPage, IsolatedFrame)| former_space(frames, leaving.rmap, frame.frame());
        let faults = match leaving.translated {
            true => FaultPath::translated(frames.watermarks().kept_at_home()),
            false => FaultPath::BY_HANDLES,
        };
        pool.judge_share(leaving.now, faults, turnover);
        let has_room = !pool.is_crowded();
        for run in batch.chunk_by(|a, b| space_of(a) == space_of(b)) {
            let mut tries = Tries::of(pool, space_of(&run[0]), run.len(), (&device, turnover));
            for (page, frame) in run {
                let slot = SwapSlot::named(*page);
                each(self.put_away_or_pack(frames, slot, frame.frame(), &mut tries, has_room));
            }
        }
    }

    /// Returns how many of `pages` clean pages of a space should be packed. A crowded pool takes no clean
    /// page: it might have to write another page instead.
    pub(super) fn wants_packed(&self, leaving: &Leaving<'_>, space: SpaceId, pages: u32) -> u32 {
        let Some(pool) = self.pool().filter(|pool| !pool.is_crowded()) else { return 0 };
        let device = pool.device_view(leaving.ended_pages, leaving.writing_pages);
        pool.weigh(pool.weights(Some(space)), pages, &device, pool.turnover())
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
        // A crowded pool takes no clean page: it would have to write another page instead.
        if may_try && has_room && self.is_on_device(slot) {
            tries.left -= 1;
            return PutAway::Done { awaited: self.pack_clean(frames, slot, frame, tries.weights) };
        }
        PutAway::Done { awaited: false }
    }

    /// Starts the writeback of a dirty page. Ends it if the page repeats a word, or the pool takes it. The
    /// page may try the pool only with `weights`.
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

    /// Packs a page that is on its area and unchanged. If the pool does not take it, nothing changes. Returns
    /// whether a thread waits for the page.
    pub(super) fn pack_clean(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        weights: &Weights,
    ) -> bool {
        match self.start_writeback(frames, slot, frame, PageIs::Clean) {
            Started::Yes => {
                self.copy_into_pool(frames, slot, frame, weights);
                self.cache.end_writeback(frames, slot, frame, true)
            }
            refused => refused == Started::RefusedAndAwaited,
        }
    }
}

impl<'a> Tries<'a> {
    /// Decides how many of `pages` pages of one space may try the pool.
    fn of(
        pool: &'a Pool,
        space: Option<SpaceId>,
        pages: usize,
        (device, turnover): (&DeviceView, Turnover),
    ) -> Self {
        let weights = pool.weights(space);
        Self { weights, left: pool.weigh(weights, pages as u32, device, turnover) }
    }
}

/// The space of the page in a frame on its way out, if the page has one owner.
fn former_space(frames: &FrameAllocator, rmap: &ReverseMap, frame: FrameId) -> Option<SpaceId> {
    rmap.former_owner(frames, frame).map(|owner| owner.space)
}
