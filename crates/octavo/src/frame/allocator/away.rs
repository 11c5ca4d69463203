//! The allocator's methods for away frames.

use super::{Block, FrameAllocator};
use crate::frame::chunk::online_cost_bytes;
use crate::frame::stored::StoredWord;
use crate::units::{ChunkId, FrameId, Order, PAGE_BYTES};

/// Away pages need free frames at home on their way out: a 64th of the budget, within the bounds below. An
/// access that finds fewer free frames makes room at home first.
const HOME_SHARE: u64 = 64;
const LEAST_AT_HOME: u64 = 8;
const MOST_AT_HOME: u64 = 1024;

impl FrameAllocator {
    /// Allocates a block that has numbers and words, but no bytes in the arena. It is charged to the budget
    /// by the page, and freed like any block. Returns `None` if the budget has no room or no numbers are
    /// left. If few frames are free at home, it leaves room for one chunk there, because away pages need
    /// frames at home on their way out.
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

    /// Returns whether some pages are away, and the budget has room for fewer than `pages` more.
    pub(crate) fn is_away_room_below(&self, pages: u64) -> bool {
        self.away.used_frames() > 0 && self.arena.budget.room_for_chunks_bytes() < pages * PAGE_BYTES as u64
    }

    /// Returns how many more pages can be away and still leave room for half of `min_frames`, which is for
    /// reclaim itself.
    pub(crate) fn spare_away_pages(&self) -> u64 {
        let room_pages = self.arena.budget.room_for_chunks_bytes() / PAGE_BYTES as u64;
        room_pages.saturating_sub(self.watermarks().min_frames / 2)
    }

    /// Returns how much of the room for chunks `pages` more away pages need now.
    pub(crate) fn away_cost_bytes(&self, pages: u64) -> u64 {
        pages * PAGE_BYTES as u64 + self.spare_bytes()
    }

    fn spare_bytes(&self) -> u64 {
        let least = (self.arena.budget.limit_pages() / HOME_SHARE).clamp(LEAST_AT_HOME, MOST_AT_HOME);
        // With lowered watermarks, fewer free frames are kept at home, so fewer are required.
        let least = least.min(self.watermarks().idle_frames);
        let is_home_roomy = self.zone_free_frames() >= least || self.free_frames() >= least;
        if is_home_roomy { 0 } else { online_cost_bytes(true) }
    }

    /// Returns whether a frame is away, so that its bytes are not in the arena.
    #[inline]
    pub(crate) fn is_away(&self, frame: FrameId) -> bool {
        self.away.contains(frame)
    }

    /// Returns the word that names the place of an away frame's clean page in a page store.
    pub(crate) fn kept(&self, frame: FrameId) -> &StoredWord {
        self.away.kept(frame)
    }

    /// Returns the bytes of pages that are away.
    pub(crate) fn away_bytes(&self) -> u64 {
        u64::from(self.away.used_frames()) * PAGE_BYTES as u64
    }

    /// Returns the most bytes that may be away: as many as there are numbers for.
    pub(crate) fn most_away_bytes(&self) -> u64 {
        self.away.most_bytes()
    }

    /// Does what [`FrameAllocator::reached_chunks`] does, for away frames.
    pub(crate) fn reached_away_chunks(&self) -> impl Iterator<Item = ChunkId> + use<> {
        self.away.reached_chunks()
    }
}
