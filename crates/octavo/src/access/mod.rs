//! Loads, stores and copies: the hit path.
//!
//! | operation | a hit costs |
//! |---|---|
//! | load | the walk twice (read, then re-read: one load per link each), and the data. No store, no lock |
//! | store | the walk twice, and two read-modify-writes on the frame's half line: take it, let it go |
//! | read | as a load, once per page, with the copy in between |
//! | swap, `fetch_add` and so on | as a store, and one read-modify-write for the word |
//! | write | as a store, once per page. A page that is overwritten whole is neither zeroed nor read first |
//!
//! A load is optimistic. It reads the entry, then the data, then the entry and every link again. If one of
//! them has changed, it starts over. A store is never optimistic: it could not take back bytes written to a
//! frame that has just got another owner. It takes a pin, reads again, writes, marks the frame dirty, and
//! drops the pin.
//!
//! **Orderings.** A load reads the word, then makes an acquire fence. A store makes a release fence, then
//! writes the word. So a thread that loads another thread's value also sees everything that the other thread
//! did before the store, at any address, even if the page has moved or was out in between. Atomic changes of
//! words (swap, `fetch_add`) are sequentially consistent with each other. The model `hits` passes a message
//! through two pages, and changes words whose pages move.
//!
//! After reclaim has looked at an entry, the next access marks the entry accessed, by one compare-and-swap
//! that may fail.

mod bounds;
mod gather;
mod guard;
mod latched;
mod optimistic;
mod pin;

pub use guard::{ExclusiveGuard, ExclusiveGuardOf, SharedGuard, SharedGuardOf};
pub(crate) use guard::{Lent, lend, lend_async, lend_at_hand};
pub(crate) use latched::{Taker, populate_guarded};
pub use optimistic::OptimisticGuard;
pub(crate) use optimistic::{optimistic, read_guarded};
pub use pin::{Borrowed, Pin, PinHolder, PinOf, PinnedPages};
pub(crate) use pin::{Cover, pin, pin_async};

use std::marker::PhantomData;

use octavo_platform::{ArenaBytes, Word, cell_bytes};

use crate::access::bounds::{bytes_left_in_page, check_range, offset_in_arena, too_many_pins};
use crate::engine::{Engine, SpaceState};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{resolve, resolve_written};
use crate::frame::PinnedFrame;
use crate::frame::holds::MAX_PINS;
use crate::sync::{Ordering, fence};
use crate::table::{Access, Leaf, LeafOperation};
use crate::units::{FrameId, PAGE_BYTES, PageNumber};
use crate::writeback::{balance, balance_after};

/// A load, at its leaf.
#[derive(Clone, Copy)]
struct Load<'e, W> {
    engine: &'e Engine,
    address: u64,
    word: PhantomData<W>,
}

impl<W: Word> LeafOperation for Load<'_, W> {
    type Output = W;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<W> {
        let value = if let Some(frame) = leaf.entry.readable_at_home() {
            self.engine.frames.bytes().load(offset_in_arena(frame, leaf.level, self.address))
        } else if leaf.entry.is_zero() {
            W::zeroed()
        } else {
            return None;
        };
        still_read(leaf).then_some(value)
    }
}

/// Ends an optimistic read. Returns whether the leaf stayed the same while its bytes were read.
#[inline(always)]
fn still_read(leaf: &Leaf<'_>) -> bool {
    // Acquire: the bytes were read before the words are read again. A thread that gives the frame another
    // owner changes the entry first, and writes the new bytes after a release fence.
    fence(Ordering::Acquire);
    if !leaf.still_holds() {
        return false;
    }
    leaf.word.mark_accessed(leaf.entry);
    true
}

/// Loads the word at `address`.
#[inline(always)]
pub(crate) fn load<W: Word>(engine: &Engine, space: &SpaceState, address: u64) -> Result<W> {
    check_aligned::<W>(engine, address)?;
    let page = PageNumber::containing(address);
    loop {
        match engine.table.at_leaf(space.id, page, Load { engine, address, word: PhantomData }) {
            Some(value) => return Ok(value),
            None => resolve(engine, space, address, Access::Read)?,
        }
    }
}

/// An operation on a word whose frame is held, at its leaf. `run` gets the arena, and the word's offset in
/// it.
#[derive(Clone, Copy)]
struct OnWord<'e, F> {
    engine: &'e Engine,
    address: u64,
    run: F,
}

impl<R, F: Fn(&ArenaBytes, usize) -> R> LeafOperation for OnWord<'_, F> {
    type Output = Result<R>;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Result<R>> {
        write_through(self.engine, leaf, |frame| {
            (self.run)(self.engine.frames.bytes(), offset_in_arena(frame, leaf.level, self.address))
        })
    }
}

/// Calls `run` on the word at `address`, once. Stores and atomic changes of a word use it.
#[inline(always)]
pub(crate) fn on_word<W: Word, R>(
    engine: &Engine,
    space: &SpaceState,
    address: u64,
    run: impl Fn(&ArenaBytes, usize) -> R + Copy,
) -> Result<R> {
    check_aligned::<W>(engine, address)?;
    let page = PageNumber::containing(address);
    loop {
        match engine.table.at_leaf(space.id, page, OnWord { engine, address, run }) {
            Some(result) => return result,
            None => resolve(engine, space, address, Access::Write)?,
        }
    }
}

/// Stores a word at `address`.
#[inline(always)]
pub(crate) fn store<W: Word>(engine: &Engine, space: &SpaceState, address: u64, value: W) -> Result<()> {
    on_word::<W, _>(engine, space, address, |bytes, at| bytes.store(at, value))
}

/// Holds the frame of a writable leaf while `write` writes its bytes. Returns `None` if the leaf is not
/// writable, or has changed.
#[inline(always)]
fn write_through<R>(engine: &Engine, leaf: &Leaf<'_>, write: impl FnOnce(FrameId) -> R) -> Option<Result<R>> {
    let frame = leaf.entry.usable_at_home(Access::Write)?;
    let words = engine.frames.words(frame);
    let (pin, before) = PinnedFrame::take(frame, words);
    if !leaf.still_holds() || before.pins() >= MAX_PINS {
        engine.unpin(pin);
        return (before.pins() >= MAX_PINS).then(|| Err(too_many_pins()));
    }
    // Release: the change that made the frame ours comes before its new bytes, for loads that still look at
    // the old entry.
    fence(Ordering::Release);
    let written = write(frame);
    leaf.word.mark_accessed(leaf.entry);
    // No thread clears the mark while the frame is held, so one look is enough.
    if before.is_dirty() {
        engine.unpin(pin);
    } else {
        mark_dirty_and_unpin(engine, pin);
    }
    Some(Ok(written))
}

/// Marks a clean frame as dirty, and lets it go. If too many pages of files are dirty then, the thread waits.
#[cold]
#[inline(never)]
fn mark_dirty_and_unpin(engine: &Engine, pin: PinnedFrame) {
    engine.mark_dirty(pin.frame());
    let page = engine.frames.words(pin.frame()).stored.page();
    engine.unpin(pin);
    if page.is_some() {
        balance_after(engine, page);
    }
}

/// Copies a part of a page out, at its leaf.
struct CopyOut<'a> {
    engine: &'a Engine,
    address: u64,
    to: &'a mut [u8],
}

impl LeafOperation for CopyOut<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<()> {
        if let Some(frame) = leaf.entry.readable_at_home() {
            self.engine.frames.bytes().copy_out(offset_in_arena(frame, leaf.level, self.address), self.to);
        } else if leaf.entry.is_zero() {
            self.to.fill(0);
        } else {
            return None;
        }
        still_read(leaf).then_some(())
    }
}

/// Copies bytes out, page by page. Concurrent writes may tear the part of each page.
pub(crate) fn read(engine: &Engine, space: &SpaceState, address: u64, to: &mut [u8]) -> Result<()> {
    check_range(engine, address, to.len() as u64)?;
    let mut address = address;
    let mut rest = to;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut(rest.len().min(bytes_left_in_page(address)));
        let page = PageNumber::containing(address);
        while engine.table.at_leaf(space.id, page, CopyOut { engine, address, to: now }).is_none() {
            resolve(engine, space, address, Access::Read)?;
        }
        address += now.len() as u64;
        rest = later;
    }
    Ok(())
}

/// Copies a part of a page in, at its leaf.
struct CopyIn<'a> {
    engine: &'a Engine,
    address: u64,
    from: &'a [u8],
}

impl LeafOperation for CopyIn<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Result<()>> {
        write_through(self.engine, leaf, |frame| {
            self.engine.frames.bytes().copy_in(offset_in_arena(frame, leaf.level, self.address), self.from);
        })
    }
}

/// Copies bytes in, page by page. After a failure, the pages before the failed one stay written.
pub(crate) fn write(engine: &Engine, space: &SpaceState, address: u64, from: &[u8]) -> Result<()> {
    check_range(engine, address, from.len() as u64)?;
    let mut address = address;
    let mut rest = from;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(bytes_left_in_page(address)));
        let page = PageNumber::containing(address);
        loop {
            match engine.table.at_leaf(space.id, page, CopyIn { engine, address, from: now }) {
                Some(result) => break result?,
                None if now.len() == PAGE_BYTES => {
                    if resolve_written(engine, space, address, now)? {
                        balance_region(engine, space, page);
                        break;
                    }
                }
                None => resolve(engine, space, address, Access::Write)?,
            }
        }
        address += now.len() as u64;
        rest = later;
    }
    Ok(())
}

/// Makes the thread wait if too many pages of files are dirty, and it has just written a page of one.
fn balance_region(engine: &Engine, space: &SpaceState, page: PageNumber) {
    if engine.page_cache.dirty_pages() == 0 {
        return;
    }
    let part = space.regions.find(page).and_then(|region| region.options.file);
    if let Some(inode) = part.and_then(|part| engine.page_cache.file(part.file)) {
        balance(engine, &inode);
    }
}

#[inline(always)]
fn check_aligned<W>(engine: &Engine, address: u64) -> Result<()> {
    if address.is_multiple_of(cell_bytes::<W>() as u64) {
        return Ok(());
    }
    Err(unaligned::<W>(engine, address))
}

#[cold]
fn unaligned<W>(engine: &Engine, address: u64) -> Error {
    if let Err(error) = engine.check_process() {
        return error;
    }
    let (size, cell) = (size_of::<W>(), cell_bytes::<W>());
    let message = format!(
        "a word of {size} bytes cannot be accessed at {address:#x}; align the address to {cell}, or use read() and write()"
    );
    Error::new(ErrorKind::InvalidRange, message)
}

#[cfg(all(test, loom))]
mod loom;
