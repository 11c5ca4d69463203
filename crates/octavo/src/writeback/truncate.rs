//! Changes of a file's length, and holes.
//!
//! A file that becomes shorter first gets its new length, so that no fault shows a page behind the end any
//! more. Then each page behind it loses its entries, and is dropped when no device has it. Memory that a pin
//! or a guard lends lives on until that ends, as for an unmap.
//!
//! The bytes of the last page behind the end are zeros: in memory from here on, and on the device because the
//! file ends there.

use std::io;
use std::ops::Range;

use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::page_cache::{Droppable, Dropping, Inode, Why};
use crate::sync::{MutexGuard, Shared, thread};
use crate::table::entry::State;
use crate::units::{FrameId, PAGE_BYTES};
use crate::writeback::write_back;

const PAGE: u64 = PAGE_BYTES as u64;
/// How often a page that others have pinned for a moment is tried. Then it stays.
const MOST_TRIES: u32 = 1000;

/// Changes the length of a file. New bytes are zero.
///
/// # Errors
/// `FileWrite` if the backing refuses. The length is as before then.
pub(crate) fn set_len(engine: &Engine, inode: &Shared<Inode>, bytes: u64) -> Result<()> {
    let _resizing = inode.resizing.lock();
    inode.check_len(bytes)?;
    let before = inode.len_bytes();
    let refused = |error| refused_len(inode, &error);
    inode.backing.set_len_bytes(bytes).map_err(refused)?;
    inode.set_backing_len(if bytes < before { u64::MAX } else { bytes });
    // No write of the page in which the file ends is under way when the end moves, and later ones write zeros
    // behind it.
    move_end(engine, inode, bytes);
    if bytes < before {
        drop_pages(engine, inode, bytes.div_ceil(PAGE)..u64::MAX, Droppable::All);
        // An earlier write may have made the backing longer again, by bytes that are gone.
        cut_backing(inode, bytes).map_err(refused)?;
    }
    Ok(())
}

/// Makes the file at least so long, without asking the backing: the next sync does.
///
/// # Errors
/// `InvalidRange` if the file cannot have this length.
pub(crate) fn extend(engine: &Engine, inode: &Shared<Inode>, bytes: u64) -> Result<()> {
    let _resizing = inode.resizing.lock();
    inode.check_len(bytes)?;
    if bytes > inode.len_bytes() {
        move_end(engine, inode, bytes);
    }
    Ok(())
}

/// Makes the backing as long as the file.
pub(super) fn match_backing(inode: &Inode) -> io::Result<()> {
    let _resizing = inode.resizing.lock();
    cut_backing(inode, inode.len_bytes())
}

/// Makes the backing so long, unless it is. The caller holds `resizing`.
///
/// A write that ends meanwhile may make it longer again. It notes that before or after the mark is lowered,
/// and the length before that. So the next call knows.
pub(super) fn cut_backing(inode: &Inode, bytes: u64) -> io::Result<()> {
    if inode.backing_len() != bytes {
        inode.set_backing_len(u64::MAX);
        inode.cut_backed(bytes);
        inode.backing.set_len_bytes(bytes)?;
        inode.set_backing_len(bytes);
    }
    Ok(())
}

/// Makes the whole pages of a range of bytes zero, and frees their room on the device. The page in which
/// the file ends counts as whole up to there. Returns the parts of other pages that the caller has to make
/// zero.
///
/// # Errors
/// `FileWrite` if the backing refuses. The pages are as before then.
pub(crate) fn punch(engine: &Engine, inode: &Shared<Inode>, bytes: Range<u64>) -> Result<[Range<u64>; 2]> {
    let _resizing = inode.resizing.lock();
    let file_end = inode.len_bytes();
    let (start, end) = (bytes.start, bytes.end.min(file_end));
    if start >= end {
        return Ok([0..0, 0..0]);
    }
    let first = start.div_ceil(PAGE);
    let last = if end == file_end { end.div_ceil(PAGE) } else { end / PAGE };
    let in_first = start..end.min(first * PAGE);
    let edges = [in_first.clone(), (last * PAGE).max(in_first.end)..end];
    let (pages, bytes) = (first..last, first * PAGE..end.min(last * PAGE));
    if pages.is_empty() {
        return Ok(edges);
    }
    let punch_backing = || {
        let end = bytes.end.min(inode.backed_bytes());
        if bytes.start >= end {
            return Ok(());
        }
        let refused = |error: io::Error| inode.failed(ErrorKind::FileWrite, "make a hole in", &error);
        inode.backing.punch(bytes.start, end - bytes.start).map_err(refused)
    };
    write_back(engine, inode, pages.clone(), Why::Sync);
    // A backing that refuses does so before a page is dropped.
    punch_backing()?;
    drop_pages(engine, inode, pages.clone(), Droppable::All);
    // Writes that were under way have filled the hole again, and pages were read in between.
    punch_backing()?;
    drop_pages(engine, inode, pages, Droppable::All);
    Ok(edges)
}

/// Makes the device have all bytes of a range that are in memory, before it moves them by itself.
pub(crate) fn before_direct(engine: &Engine, inode: &Shared<Inode>, bytes: &Range<u64>) -> Result<()> {
    if !engine.page_cache.has_pages(inode) && inode.len_bytes() == inode.backing_len() {
        return Ok(());
    }
    write_back(engine, inode, bytes.start / PAGE..bytes.end.div_ceil(PAGE), Why::Sync);
    match_backing(inode).map_err(|error| refused_len(inode, &error))
}

/// Notes that a device has got bytes by itself, up to `reached`, and perhaps more of the range. Clean pages
/// in memory are out of date, and go. The end may move only if the caller has held `resizing` all the while.
pub(crate) fn after_direct_write(
    engine: &Engine,
    inode: &Shared<Inode>,
    bytes: Range<u64>,
    reached: u64,
    resizing: Option<MutexGuard<'_, ()>>,
) {
    if bytes.is_empty() {
        return;
    }
    let may_grow = resizing.is_some();
    let _resizing = resizing.unwrap_or_else(|| inode.resizing.lock());
    let reached = inode.whole_if_lent(reached);
    if may_grow && reached > inode.len_bytes() {
        move_end(engine, inode, reached);
    }
    inode.note_backed(inode.len_bytes().min(bytes.end));
    if bytes.end > inode.len_bytes() {
        // The device may have more of the range than the file has. What cannot be cut off now is at the next
        // sync.
        inode.set_backing_len(u64::MAX);
        let _ = cut_backing(inode, inode.len_bytes());
    }
    if engine.page_cache.has_pages(inode) {
        drop_pages(engine, inode, bytes.start / PAGE..bytes.end.div_ceil(PAGE), Droppable::Clean);
    }
}

#[cold]
fn refused_len(inode: &Inode, error: &io::Error) -> Error {
    inode.failed(ErrorKind::FileWrite, "change the length of", error)
}

/// Changes the length that programs see.
fn move_end(engine: &Engine, inode: &Shared<Inode>, bytes: u64) {
    while let Some(pin) = engine.page_cache.move_end(&engine.frames, inode, bytes) {
        engine.wait_for_frame(pin.frame());
        engine.unpin(pin);
    }
}

/// Drops pages of a range from memory.
pub(crate) fn drop_pages(engine: &Engine, inode: &Shared<Inode>, pages: Range<u64>, what: Droppable) {
    let (mut from, mut tries) = (pages.start, 0);
    while let Some((at, page, pin)) = engine.page_cache.next_cached(&engine.frames, inode, from..pages.end) {
        let frame = pin.frame();
        let goes = what == Droppable::All || !engine.frames.words(frame).holds.load().is_dirty();
        if goes {
            clear_entries(engine, frame);
        }
        let dropping = engine.page_cache.drop_page(&engine.frames, inode, (page, frame), what);
        tries = if dropping == Dropping::Pinned { tries + 1 } else { 0 };
        let stays = dropping == Dropping::Gone
            || dropping == Dropping::Shown && !goes
            || dropping == Dropping::Pinned && tries >= MOST_TRIES;
        match dropping {
            Dropping::Dropped => {
                if engine.frames.words(frame).uses.remove() == 0 {
                    engine.release(frame);
                }
            }
            Dropping::Gone => {}
            Dropping::UnderIo => engine.wait_for_frame(frame),
            Dropping::Pinned | Dropping::Shown if goes => thread::yield_now(),
            Dropping::Pinned | Dropping::Shown => {}
        }
        engine.unpin(pin);
        (from, tries) = if stays { (at + 1, 0) } else { (at, tries) };
    }
}

/// Makes the entries that show a frame empty.
fn clear_entries(engine: &Engine, frame: FrameId) {
    for owner in engine.rmap.owners(&engine.frames, frame) {
        let walk = engine.table.walk(owner.space, owner.page);
        let seen = walk.entry();
        if seen.state() == State::Present(frame)
            && walk.level == 0
            && walk.links_hold()
            && walk.word().change(seen, seen.to_empty()).is_ok()
        {
            engine.disown(frame, owner);
        }
    }
}
