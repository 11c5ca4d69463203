//! Makes new pages leave room for pages that come in.
//!
//! A page that comes in takes a frame first. Only then does it give up its slot, so that another page can go
//! out for the next frame. If no frame and no slot were left, no page could come in any more. So if slots are
//! few, new pages must leave some free frames or slots. A page that comes in takes a frame and frees a slot.
//! A page that goes out takes a slot and frees a frame. So the sum of free frames and slots stays the same.
//! Only new pages reduce it, and they are refused at its minimum. A page in memory that keeps its slot needs
//! no other slot to go out again.
//!
//! Threads that check at the same moment may each take one page more. The minimum has room for that.
//!
//! If a device fails, its free slots may be unusable. Then pages stay in memory, and pages that are out may
//! be unable to come in.
//!
//! Cost: while slots are not few, one load of a word that hardly ever changes.

use crate::engine::Engine;

impl Engine {
    /// Returns whether there is room for `pages` new pages.
    #[inline]
    pub(crate) fn may_grow(&self, pages: u64) -> bool {
        !self.swap.slots.are_guarded() || self.spare_pages() >= pages as i64
    }

    /// Returns how many new pages there is room for, if slots are few. A negative number says how many pages
    /// are missing from the room to be kept.
    #[cold]
    pub(crate) fn spare_pages(&self) -> i64 {
        let has_away = self.has_translations();
        let kept = self.swap.slots.kept(has_away);
        let room = u64::from(self.swap.free_slots()) + self.frames.allocatable_frames(has_away);
        room as i64 - i64::from(kept)
    }
}
