//! New pages leave room for pages that are out to come in.
//!
//! A page that comes in takes a frame first. Only then does it give its slot up, and another page can go out
//! for the next frame. With no frame and no slot left, nothing could come in any more. So where slots are
//! few, new pages leave some: free frames, free slots, or both. A page that comes in takes a frame and gives
//! a slot, and one that goes out takes a slot and gives a frame. So the sum of free frames and slots stays as
//! it is. Only new pages make it less, and they are refused at the least sum. A page that keeps its slot in
//! memory goes out again without another.
//!
//! Threads that look at the same moment may each take a page more. The least sum has room for that.
//!
//! A device that fails may have no room for slots that are free. Pages stay in memory then, and what is out
//! may not come in.
//!
//! Cost: a load of a word that hardly ever changes, while slots are not few.

use crate::engine::Engine;

impl Engine {
    /// Returns whether there is room for so many new pages.
    #[inline]
    pub(crate) fn may_grow(&self, pages: u64) -> bool {
        !self.swap.slots.are_guarded() || self.spare_pages() >= pages as i64
    }

    /// The new pages that there is room for, where slots are few. Less than 0: so many are missing of what is
    /// kept.
    #[cold]
    pub(crate) fn spare_pages(&self) -> i64 {
        let has_away = self.has_translations();
        let kept = self.swap.slots.kept(has_away);
        let room = u64::from(self.swap.free_slots()) + self.frames.allocatable_frames(has_away);
        room as i64 - i64::from(kept)
    }
}
