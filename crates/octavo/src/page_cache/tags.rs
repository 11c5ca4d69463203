//! Which pages of a file have to be written, and who writes them.
//!
//! ```text
//!   store ─► DIRTY ──── sync begins ───► DIRTY + TOWRITE ──┐
//!              ▲                                           │ a write begins: the frame's DIRTY flag is cleared
//!              │ the write failed, or others               ▼
//!              └── have the page pinned ──────────── WRITEBACK (+ TOWRITE) ── the write ends ──► no tag
//! ```
//!
//! A sync writes the pages that have TOWRITE: those that were dirty, or being written, when it began. Pages
//! that become dirty later have only DIRTY, so it ends however fast others store (Linux's
//! `tag_pages_for_writeback`). Reclaim or the flusher may begin to write such a page first, and not do it: a
//! gate holds it back, or the device is full. So TOWRITE stays until a write has ended well and left the page
//! clean. The sync meets the page, waits, and looks again.
//!
//! DIRTY may be set on a page that is clean, but never the other way round (see the head of `mod.rs`).
//!
//! The functions here change one page under its segment's lock. `writeback/` drives them.

use std::ops::Range;

use smallvec::SmallVec;

use crate::config::DirtyPages;
use crate::frame::{FrameAllocator, PageIs, PinnedFrame};
use crate::mapping::{Changes, Path, Tag};
use crate::page_cache::{Inode, PageCache, Part, page_of};
use crate::sync::Ordering;
use crate::units::{FrameId, PAGE_BYTES, StoredPage};

/// Pages that are tagged, or looked at, before the lock is let go once.
const TAG_BATCH: u32 = 4096;

/// Why a page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its bytes have to be on the device, whoever has it pinned.
    Sync,
    /// The file is closed. As for a sync, but nobody is waited for who may be the caller.
    Close,
    /// It is dirty for long, or many are. A page that is in use is left for later.
    Flush,
}

/// How the write of a page began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write that has begun must be ended"]
pub(crate) enum Begin {
    /// The frame is under WRITEBACK.
    Begun,
    /// The page is clean, has no frame, or is left for later.
    Nothing,
    /// A device reads or writes the frame. Wait, and try again.
    UnderIo,
    /// Others have pinned the frame. Take its latch, shared, and try again.
    Pinned,
}

impl PageCache {
    /// Tags a page as dirty, before its frame gets the flag. The caller has pinned the frame, and is about to
    /// mark it, or has just stored to it.
    #[cold]
    pub(crate) fn note_dirty(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) {
        let (segment, index) = self.segments.of(page);
        let Some(owner) = segment.owner() else { return };
        let mut changes = segment.mapping.lock();
        // If the page was dropped meanwhile, nobody will write it.
        if frames.words(frame).stored.page() == Some(page)
            && let Some(path) = changes.find(index)
        {
            self.tag_dirty(&mut changes, &path, &owner.inode);
        }
    }

    pub(super) fn tag_dirty(&self, changes: &mut Changes<'_>, path: &Path, inode: &Inode) {
        if !changes.has_tag(path, Tag::Dirty) {
            changes.set_tag(path, Tag::Dirty);
            inode.count_dirty(1);
            self.dirty_pages.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Forgets that a page has to be written, because it need not.
    pub(super) fn untag_dirty(&self, changes: &mut Changes<'_>, path: &Path, inode: &Inode) {
        changes.clear_tag(path, Tag::ToWrite);
        self.clear_dirty(changes, path, inode);
    }

    /// Turns DIRTY into WRITEBACK.
    fn tag_writeback(&self, changes: &mut Changes<'_>, path: &Path, inode: &Inode) {
        self.clear_dirty(changes, path, inode);
        changes.set_tag(path, Tag::Writeback);
    }

    fn clear_dirty(&self, changes: &mut Changes<'_>, path: &Path, inode: &Inode) {
        if changes.has_tag(path, Tag::Dirty) {
            changes.clear_tag(path, Tag::Dirty);
            inode.count_dirty(-1);
            self.dirty_pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives TOWRITE to the pages of a range of a file that are dirty, or being written. No page becomes the
    /// other of these unseen, because both are looked for under one lock.
    pub(crate) fn tag_to_write(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        pages: &Range<u64>,
        search: DirtyPages,
    ) {
        for Part { segment, first, mut from, .. } in self.parts(inode, pages) {
            loop {
                let (mut changes, mut looked) = (segment.mapping.lock(), 0);
                if !segment.is_of(inode) {
                    break;
                }
                while let Some((index, is_unwritten)) = next_to_look_at(&changes, frames, from, search)
                    && first + index < pages.end
                    && looked < TAG_BATCH
                {
                    if is_unwritten && let Some(path) = changes.find(index) {
                        changes.set_tag(&path, Tag::ToWrite);
                    }
                    (from, looked) = (index + 1, looked + 1);
                }
                if looked < TAG_BATCH {
                    break;
                }
            }
        }
    }

    /// Finds the first pages of a range of a file that have a tag, with their frames, pinned. Finds as many
    /// as `found` has room for without the heap, and of one segment only.
    pub(crate) fn tagged<A: smallvec::Array<Item = (u64, StoredPage, PinnedFrame)>>(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        pages: Range<u64>,
        tag: Tag,
        found: &mut SmallVec<A>,
    ) {
        for Part { segment, number, first, mut from } in self.parts(inode, &pages) {
            let changes = segment.mapping.lock();
            if !segment.is_of(inode) {
                continue;
            }
            while found.len() < found.inline_size()
                && let Some((index, word)) = changes.next_tagged(from, tag)
                && first + index < pages.end
            {
                let frame = word.as_frame().expect("only a page with a frame is tagged");
                let (pin, _) = PinnedFrame::take(frame, frames.words(frame));
                found.push((first + index, page_of(number, index), pin));
                from = index + 1;
            }
            if !found.is_empty() {
                return;
            }
        }
    }

    /// Begins to write a page whose frame the caller has pinned, once.
    ///
    /// If others have pins too, they may store to the page while it is written. It then goes out as it is,
    /// and stays dirty. An exclusive guard is not disturbed: its bytes are half changed. So the caller takes
    /// the page's latch until the frame is under WRITEBACK. Guards wait for the end of that by themselves.
    pub(crate) fn begin_write(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        (page, frame): (StoredPage, FrameId),
        why: Why,
        is_latched: bool,
    ) -> Begin {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        let words = frames.words(frame);
        let is_there = words.stored.page() == Some(page) && segment.is_of(inode);
        let Some(path) = changes.find(index).filter(|_| is_there) else {
            return Begin::Nothing;
        };
        let holds = words.holds.load();
        if holds.is_under_io() {
            return if why == Why::Flush { Begin::Nothing } else { Begin::UnderIo };
        }
        if !changes.has_tag(&path, Tag::Dirty) {
            // It has been written. Who stores to it just now has not tagged it yet, and is not waited for.
            changes.clear_tag(&path, Tag::ToWrite);
            return Begin::Nothing;
        }
        if !words.holds.start_writeback(PageIs::Dirty) {
            // Our pin is the only one, and the page is clean. Who stores to it takes this lock first.
            if holds.pins() == 1 && !holds.is_dirty() {
                self.untag_dirty(&mut changes, &path, inode);
                return Begin::Nothing;
            }
            if why == Why::Flush {
                return Begin::Nothing;
            }
            if !is_latched {
                return Begin::Pinned;
            }
            if !words.holds.start_writeback_of_pinned() {
                return Begin::UnderIo;
            }
            changes.set_tag(&path, Tag::Writeback);
            zero_behind_end(frames, inode, segment.place_of(index), frame);
            return Begin::Begun;
        }
        self.tag_writeback(&mut changes, &path, inode);
        zero_behind_end(frames, inode, segment.place_of(index), frame);
        Begin::Begun
    }

    /// Begins to write a page that reclaim sends out. Only reclaim has pinned its frame. Returns `false` if
    /// the page stays: it is in use again, or its file takes no pages now.
    pub(super) fn begin_eviction(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        (page, frame): (StoredPage, FrameId),
    ) -> bool {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        let words = frames.words(frame);
        let Some(path) = changes.find(index).filter(|_| words.stored.page() == Some(page)) else {
            return false;
        };
        let begun =
            !inode.is_failing() && words.uses.get() == 1 && words.holds.start_writeback(PageIs::Dirty);
        if begun {
            self.tag_writeback(&mut changes, &path, inode);
            zero_behind_end(frames, inode, segment.place_of(index), frame);
        }
        begun
    }

    /// Asks the file's gate whether a page under WRITEBACK may go to the device. No lock is held.
    pub(crate) fn may_go(&self, frames: &FrameAllocator, inode: &Inode, at: u64, frame: FrameId) -> bool {
        let Some(gate) = inode.gate() else { return true };
        let (offset, page) = (frame.home_offset(), at * PAGE_BYTES as u64);
        frames.bytes().with_copy(offset, PAGE_BYTES, |bytes| gate.may_write(page, bytes))
    }

    /// Has the file's gate make a page writable that it held back. No lock is held.
    pub(crate) fn open_gate(&self, frames: &FrameAllocator, inode: &Inode, at: u64, frame: FrameId) {
        let Some(gate) = inode.gate() else { return };
        let (offset, page) = (frame.home_offset(), at * PAGE_BYTES as u64);
        frames.bytes().with_copy(offset, PAGE_BYTES, |bytes| gate.make_writable(page, bytes));
    }

    /// Ends the write of a page. A page that was not written is dirty again. Returns whether a thread waits
    /// for the frame.
    pub(crate) fn end_write(
        &self,
        frames: &FrameAllocator,
        page: StoredPage,
        frame: FrameId,
        written: bool,
    ) -> bool {
        let (segment, index) = self.segments.of(page);
        let owner = segment.owner();
        let mut changes = segment.mapping.lock();
        let words = frames.words(frame);
        if let Some(path) = changes.find(index) {
            changes.clear_tag(&path, Tag::Writeback);
            if let (false, Some(owner)) = (written, &owner) {
                // First the tag, then the flag.
                self.tag_dirty(&mut changes, &path, &owner.inode);
            }
            if written && !changes.has_tag(&path, Tag::Dirty) {
                changes.clear_tag(&path, Tag::ToWrite);
            }
        }
        if written { words.holds.end_writeback(true) } else { words.holds.cancel_writeback() }
    }
}

/// Returns the next page, at or after `from`, that a search meets, and whether it is dirty, or being written.
/// A search by tags meets only such pages.
fn next_to_look_at(
    changes: &Changes<'_>,
    frames: &FrameAllocator,
    from: u64,
    search: DirtyPages,
) -> Option<(u64, bool)> {
    match search {
        DirtyPages::Tags => {
            let next = |tag| changes.next_tagged(from, tag).map(|(index, _)| index);
            [Tag::Dirty, Tag::Writeback].into_iter().filter_map(next).min().map(|index| (index, true))
        }
        DirtyPages::Walk => {
            let (index, word) = changes.next_word(from)?;
            // Both flags change under the lock, but for stores that have not ended yet.
            let holds = word.as_frame().map(|frame| frames.words(frame).holds.load());
            Some((index, holds.is_some_and(|holds| holds.is_dirty() || holds.is_writeback())))
        }
    }
}

/// Zeroes what a page has behind the end of its file. What programs store there is lost, and must not show
/// when the file becomes longer.
pub(super) fn zero_behind_end(frames: &FrameAllocator, inode: &Inode, at: Option<u64>, frame: FrameId) {
    let start = at.map(|at| at * PAGE_BYTES as u64);
    let inside = start.and_then(|start| inode.len_bytes().checked_sub(start));
    if let Some(inside) =
        inside.map(|inside| inside as usize).filter(|inside| (1..PAGE_BYTES).contains(inside))
    {
        frames.bytes().zero(frame.home_offset() + inside, PAGE_BYTES - inside);
    }
}
