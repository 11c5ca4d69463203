//! Loads, stores and copies: the hit path.
//!
//! | operation | a hit costs |
//! |---|---|
//! | load | the walk twice (read, then re-read: one load a link each), and the data. No store, no lock |
//! | store | the walk twice, one read-modify-write to take the frame and one to let it go, on its own half line |
//! | read | as a load, once a page; the copy between |
//! | write | as a store, once a page |
//!
//! A load is optimistic: it reads the entry, then the data, then the entry and every link again, and starts over if any
//! has changed. A store never is: bytes written to a frame that has just become somebody else's could not be taken back. It
//! takes a pin, re-reads, writes, marks the frame dirty, and drops the pin.
//!
//! On the first access since reclaim last looked, the entry is marked accessed: one compare-and-swap that may fail.

mod pin;

pub(crate) use pin::pin;
pub use pin::{Pin, PinnedPages};

use octavo_platform::Word;

use crate::engine::{Engine, SpaceState};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::resolve;
use crate::frame::holds::MAX_PINS;
use crate::sync::{Ordering, fence};
use crate::table::{Access, Walk};
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_BYTES, PageNumber};

/// Where in the arena the byte at `address` is, in a leaf at `level` that shows `frame` at home.
#[inline(always)]
fn offset_in_arena(frame: FrameId, level: usize, address: u64) -> usize {
    let within =
        if level == 0 { PAGE_BYTES as u64 - 1 } else { (PAGE_BYTES as u64) * u64::from(CHUNK_FRAMES) - 1 };
    frame.home_offset() + (address & within) as usize
}

/// Loads the word at `address`.
#[inline]
pub(crate) fn load<W: Word>(engine: &Engine, space: &SpaceState, address: u64) -> Result<W> {
    check_aligned::<W>(address)?;
    let page = PageNumber::containing(address);
    loop {
        let loaded = engine.table.walk_then(space.id, page, |walk| {
            let entry = walk.entry();
            let value = if let Some(frame) = entry.readable_at_home() {
                engine.frames.bytes().load(offset_in_arena(frame, walk.level, address))
            } else if entry.is_zero() {
                W::default()
            } else {
                return None;
            };
            // Acquire: the data was read before the words are read again. Whoever made the frame somebody else's
            // changed the entry first, and that one writes its bytes after a release fence (`zero`, `write_through`).
            fence(Ordering::Acquire);
            if !walk.still_holds() {
                return None;
            }
            walk.word().mark_accessed(entry);
            Some(value)
        });
        match loaded {
            Some(value) => return Ok(value),
            None => resolve(engine, space, page, Access::Read)?,
        }
    }
}

/// Stores a word at `address`.
#[inline]
pub(crate) fn store<W: Word>(engine: &Engine, space: &SpaceState, address: u64, value: W) -> Result<()> {
    check_aligned::<W>(address)?;
    let page = PageNumber::containing(address);
    loop {
        let stored = engine.table.walk_then(space.id, page, |walk| {
            write_through(engine, walk, |frame| {
                engine.frames.bytes().store(offset_in_arena(frame, walk.level, address), value);
            })
        });
        match stored {
            Some(result) => return result,
            None => resolve(engine, space, page, Access::Write)?,
        }
    }
}

/// Holds the frame of a writable leaf while `write` writes its bytes. `None`: not writable, or changed meanwhile.
#[inline(always)]
fn write_through(engine: &Engine, walk: &Walk<'_>, write: impl FnOnce(FrameId)) -> Option<Result<()>> {
    let entry = walk.entry();
    let frame = entry.usable_at_home(Access::Write)?;
    let holds = &engine.frames.words(frame).holds;
    let before = holds.take_pin();
    if !walk.still_holds() || before.pins() >= MAX_PINS {
        engine.drop_pin(frame);
        return (before.pins() >= MAX_PINS).then(|| Err(too_many_pins()));
    }
    // Release: what made the frame ours comes before its new bytes, for loads that still look at the old entry.
    fence(Ordering::Release);
    write(frame);
    // Nobody clears the mark while the frame is held, so one look is enough.
    if !before.is_dirty() {
        holds.mark_dirty();
    }
    walk.word().mark_accessed(entry);
    engine.drop_pin(frame);
    Some(Ok(()))
}

/// Copies bytes out, page by page: each page's part as it was at one moment between others' writes, or torn by them.
pub(crate) fn read(engine: &Engine, space: &SpaceState, address: u64, to: &mut [u8]) -> Result<()> {
    check_range(address, to.len() as u64)?;
    let mut at = address;
    let mut rest = to;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut(rest.len().min(bytes_left_in_page(at)));
        read_page_part(engine, space, at, now)?;
        at += now.len() as u64;
        rest = later;
    }
    Ok(())
}

fn read_page_part(engine: &Engine, space: &SpaceState, address: u64, to: &mut [u8]) -> Result<()> {
    let page = PageNumber::containing(address);
    loop {
        let walk = engine.table.walk(space.id, page);
        let entry = walk.entry();
        let found = if let Some(frame) = entry.readable_at_home() {
            engine.frames.bytes().copy_out(offset_in_arena(frame, walk.level, address), to);
            true
        } else if entry.is_zero() {
            to.fill(0);
            true
        } else {
            false
        };
        // As in `load`.
        fence(Ordering::Acquire);
        if found && walk.still_holds() {
            walk.word().mark_accessed(entry);
            return Ok(());
        }
        resolve(engine, space, page, Access::Read)?;
    }
}

/// Copies bytes in, page by page. A failure leaves the pages before it written.
pub(crate) fn write(engine: &Engine, space: &SpaceState, address: u64, from: &[u8]) -> Result<()> {
    check_range(address, from.len() as u64)?;
    let mut at = address;
    let mut rest = from;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(bytes_left_in_page(at)));
        let page = PageNumber::containing(at);
        loop {
            let walk = engine.table.walk(space.id, page);
            let written = write_through(engine, &walk, |frame| {
                engine.frames.bytes().copy_in(offset_in_arena(frame, walk.level, at), now);
            });
            match written {
                Some(result) => break result?,
                None => resolve(engine, space, page, Access::Write)?,
            }
        }
        at += now.len() as u64;
        rest = later;
    }
    Ok(())
}

fn bytes_left_in_page(address: u64) -> usize {
    PAGE_BYTES - address as usize % PAGE_BYTES
}

#[inline(always)]
fn check_aligned<W>(address: u64) -> Result<()> {
    if address.is_multiple_of(size_of::<W>() as u64) {
        Ok(())
    } else {
        Err(unaligned(address, size_of::<W>()))
    }
}

#[cold]
fn unaligned(address: u64, size: usize) -> Error {
    let message = format!(
        "a word of {size} bytes cannot be accessed at {address:#x}; align the address to {size}, or use read() and write()"
    );
    Error::new(ErrorKind::InvalidRange, message)
}

/// A byte range must not run past the end of the address space.
fn check_range(address: u64, len: u64) -> Result<()> {
    if address.checked_add(len).is_some() {
        return Ok(());
    }
    let message =
        format!("{len} bytes from {address:#x} run past the end of the address space; check the range");
    Err(Error::new(ErrorKind::InvalidRange, message))
}

#[cold]
fn too_many_pins() -> Error {
    Error::new(
        ErrorKind::TooManyPins,
        format!("a frame carries {MAX_PINS} pins; drop some before taking more"),
    )
}
