//! Away frames, for the allocator's callers.

use super::{Block, FrameAllocator};
use crate::frame::chunk::online_cost_bytes;
use crate::frame::stored::StoredWord;
use crate::units::{ChunkId, FrameId, Order, PAGE_BYTES};

/// Free frames at home with which pages can still come home on their way out: one in so many of the budget's,
/// within bounds. An access that finds fewer makes room there first.
const HOME_SHARE: u64 = 64;
const LEAST_AT_HOME: u64 = 8;
const MOST_AT_HOME: u64 = 1024;

impl FrameAllocator {
    /// Allocates a block that has numbers and words, but no bytes in the arena. It counts against the budget
    /// by the page, and is freed as any block. `None` means that the budget has no room for it. Where few
    /// frames are free at home, it leaves room for one chunk there. Away pages need frames at home on their
    /// way out.
    pub(crate) fn alloc_away(&self, order: Order) -> Option<Block> {
        let frame = self.away.take(&self.arena, order, self.spare_bytes());
        self.check_watermark();
        let frame = frame?;
        let state = &self.words(frame).state;
        let before = state.hand_out(order);
        // The mark sends the block's free to the away zone, past the per-CPU lists.
        let is_marked = state.mark_isolating();
        debug_assert!(is_marked, "it has just been handed out");
        Some(Block::new(frame, before))
    }

    /// Returns whether the budget has room for fewer than `pages` more away pages, where there are any.
    pub(crate) fn is_away_room_below(&self, pages: u64) -> bool {
        self.away.used_frames() > 0 && self.arena.budget.room_for_chunks_bytes() < pages * PAGE_BYTES as u64
    }

    /// Returns how many more pages can be away and leave some room: half of what only reclaim itself should
    /// use.
    pub(crate) fn spare_away_pages(&self) -> u64 {
        let room_pages = self.arena.budget.room_for_chunks_bytes() / PAGE_BYTES as u64;
        room_pages.saturating_sub(self.watermarks().min_frames / 2)
    }

    /// Returns the room for chunks that `pages` away pages take now.
    pub(crate) fn away_cost_bytes(&self, pages: u64) -> u64 {
        pages * PAGE_BYTES as u64 + self.spare_bytes()
    }

    fn spare_bytes(&self) -> u64 {
        let least = (self.arena.budget.limit_pages() / HOME_SHARE).clamp(LEAST_AT_HOME, MOST_AT_HOME);
        // Where little is kept there, little is asked for.
        let least = least.min(self.watermarks().idle_frames);
        let is_home_roomy = self.zone_free_frames() >= least || self.free_frames() >= least;
        if is_home_roomy { 0 } else { online_cost_bytes(true) }
    }

    /// Returns whether a frame is away, so that its bytes are not in the arena.
    #[inline]
    pub(crate) fn is_away(&self, frame: FrameId) -> bool {
        self.away.contains(frame)
    }

    /// Returns the place in a store that the clean page of an away frame keeps.
    pub(crate) fn kept(&self, frame: FrameId) -> &StoredWord {
        self.away.kept(frame)
    }

    /// Returns the bytes of pages that are away.
    pub(crate) fn away_bytes(&self) -> u64 {
        u64::from(self.away.used_frames()) * PAGE_BYTES as u64
    }

    /// Returns the most that may be away: there are numbers for so much.
    pub(crate) fn most_away_bytes(&self) -> u64 {
        self.away.most_bytes()
    }

    /// Does what [`FrameAllocator::reached_chunks`] does, for away frames.
    pub(crate) fn reached_away_chunks(&self) -> impl Iterator<Item = ChunkId> + use<> {
        self.away.reached_chunks()
    }
}
