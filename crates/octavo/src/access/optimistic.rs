//! Reading pages of a guarded region without holding them: copies that a version validates.
//!
//! The reader takes the entry and the version of the frame's latch, copies, and reads both again, as
//! LeanStore and vmcache do. An equal entry says that the page had this frame all the time, and an equal
//! version that no writer had it. A copy in between may be torn. It is a copy, so it is bytes of plain data,
//! and the reader throws it away.
//!
//! Cost of a copy: the walk twice and two loads of the latch. No store, no lock.

use std::fmt;

use bytemuck::Pod;

use crate::access::bounds::{bytes_left_in_page, check_range, offset_in_arena};
use crate::access::latched::{Taker, fault, frame_of, wait_for_latch};
use crate::engine::{Engine, SpaceState, in_place};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::latch::{Hold, Version};
use crate::sync::wait::key_of;
use crate::sync::{Ordering, fence};
use crate::table::entry::Entry;
use crate::table::{Leaf, LeafOperation};
use crate::units::{FrameId, PAGE_BYTES, PageNumber};

/// How often a copy is thrown away before its reader takes the latch.
const MOST_COPIES: u32 = 8;

/// What an optimistic reader found at its leaf.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// The place of the entry's word: a node that is recycled has other words.
    word: usize,
    entry: Entry,
    level: usize,
    shown: FrameId,
    frame: FrameId,
    version: Version,
}

impl Begun {
    /// `Err`: a writer has the frame.
    #[inline(always)]
    fn at(engine: &Engine, page: PageNumber, leaf: &Leaf<'_>) -> Option<Result<Self, FrameId>> {
        let shown = leaf.entry.guarded_at_home()?;
        let frame = frame_of(shown, leaf.level, page);
        let Some(version) = engine.latches[frame].begin_read() else { return Some(Err(frame)) };
        let (word, entry, level) = (key_of(leaf.word), leaf.entry, leaf.level);
        Some(Ok(Self { word, entry, level, shown, frame, version }))
    }
}

/// Copies a part of a page out, at its leaf. Ends in `Err` where a writer has the frame.
struct CopyGuarded<'a> {
    engine: &'a Engine,
    address: u64,
    to: &'a mut [u8],
}

impl LeafOperation for CopyGuarded<'_> {
    type Output = Result<(), FrameId>;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Result<(), FrameId>> {
        let Self { engine, address, to } = self;
        let begun = match Begun::at(engine, PageNumber::containing(address), leaf)? {
            Ok(begun) => begun,
            Err(frame) => return Some(Err(frame)),
        };
        engine.frames.bytes().copy_out(offset_in_arena(begun.shown, leaf.level, address), to);
        // Acquire: the bytes were read before the words are read again.
        fence(Ordering::Acquire);
        if !leaf.still_holds() {
            return None;
        }
        if !engine.latches[begun.frame].is_still(begun.version) {
            return Some(Err(begun.frame));
        }
        leaf.word.mark_accessed(leaf.entry);
        Some(Ok(()))
    }
}

/// Copies bytes out of a guarded region, page by page. What comes from one page was there at one time.
#[inline]
pub(crate) fn read_guarded(engine: &Engine, space: &SpaceState, address: u64, to: &mut [u8]) -> Result<()> {
    check_range(engine, address, to.len() as u64)?;
    let mut address = address;
    let mut rest = to;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut(rest.len().min(bytes_left_in_page(address)));
        let copy = CopyGuarded { engine, address, to: &mut *now };
        if !matches!(engine.table.at_leaf(space.id, PageNumber::containing(address), copy), Some(Ok(()))) {
            read_again(engine, space, address, now)?;
        }
        address += now.len() as u64;
        rest = later;
    }
    Ok(())
}

#[cold]
fn read_again(engine: &Engine, space: &SpaceState, address: u64, to: &mut [u8]) -> Result<()> {
    let _inside = engine.enter()?;
    let page = PageNumber::containing(address);
    for _ in 0..MOST_COPIES {
        match engine.table.at_leaf(space.id, page, CopyGuarded { engine, address, to: &mut *to }) {
            Some(Ok(())) => return Ok(()),
            Some(Err(frame)) => {
                in_place(wait_for_latch(engine, space, page, frame, Hold::Shared, Taker::Thread))
            }
            None => in_place(fault(engine, space, page, Taker::Thread))?,
        }
    }
    // Writers come too often.
    let lent = super::guard::lend::<u8>(engine, space, address, to.len(), Hold::Shared, Taker::Thread)?;
    to.copy_from_slice(&lent.shared());
    Ok(())
}

/// Begins an optimistic read, at its leaf.
#[derive(Clone, Copy)]
struct BeginRead<'e> {
    engine: &'e Engine,
    page: PageNumber,
}

impl LeafOperation for BeginRead<'_> {
    type Output = Result<Begun, FrameId>;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Result<Begun, FrameId>> {
        let begun = Begun::at(self.engine, self.page, leaf);
        leaf.word.mark_accessed(leaf.entry);
        begun
    }
}

/// Looks whether a leaf is what it was.
#[derive(Clone, Copy)]
struct StillIs(Begun);

impl LeafOperation for StillIs {
    type Output = ();

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<()> {
        let Begun { word, entry, .. } = self.0;
        (key_of(leaf.word) == word && leaf.word.still_is(entry)).then_some(())
    }
}

/// For trees and tables that many threads read and few write: copies from a page of a guarded region without
/// holding it, and tells afterwards whether the copy is good. Others may write it and move it out meanwhile.
///
/// What is copied out may be torn, and may even be of another page, until [`OptimisticGuard::is_valid`] says
/// that nothing has happened since the guard was made. So copy, ask, and only then believe what was copied.
/// Several pages can be read so, and asked about at the end, as trees do that are walked without locks.
pub struct OptimisticGuard<'s> {
    engine: &'s Engine,
    space: &'s SpaceState,
    address: u64,
    begun: Begun,
}

/// Begins an optimistic read of the page at `address`.
#[inline]
pub(crate) fn optimistic<'s>(
    engine: &'s Engine,
    space: &'s SpaceState,
    address: u64,
) -> Result<OptimisticGuard<'s>> {
    let page = PageNumber::containing(address);
    if let Some(Ok(begun)) = engine.table.at_leaf(space.id, page, BeginRead { engine, page }) {
        return Ok(OptimisticGuard { engine, space, address, begun });
    }
    let _inside = engine.enter()?;
    loop {
        match engine.table.at_leaf(space.id, page, BeginRead { engine, page }) {
            Some(Ok(begun)) => return Ok(OptimisticGuard { engine, space, address, begun }),
            Some(Err(frame)) => {
                in_place(wait_for_latch(engine, space, page, frame, Hold::Shared, Taker::Thread))
            }
            None => in_place(fault(engine, space, page, Taker::Thread))?,
        }
    }
}

impl OptimisticGuard<'_> {
    /// Copies bytes out, from `offset` bytes behind the address that was asked for. They are worth nothing
    /// before [`OptimisticGuard::is_valid`] is true.
    ///
    /// # Errors
    /// `InvalidRange` where the bytes are not all inside of the page; `ForkedChild` in a forked child.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.engine.check_process()?;
        let from = self.address % PAGE_BYTES as u64;
        if offset.saturating_add(to.len()) as u64 > PAGE_BYTES as u64 - from {
            return Err(outside(offset, to.len(), self.address));
        }
        let at = self.address + offset as u64;
        self.engine.frames.bytes().copy_out(offset_in_arena(self.begun.shown, self.begun.level, at), to);
        Ok(())
    }

    /// Copies a value out, as [`OptimisticGuard::copy_out`] does.
    ///
    /// # Errors
    /// As [`OptimisticGuard::copy_out`].
    #[inline]
    pub fn load<T: Pod>(&self, offset: usize) -> Result<T> {
        let mut value = T::zeroed();
        self.copy_out(offset, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// Returns whether everything that was copied so far was there at one time: the page has had this frame,
    /// and no writer has had it, since the guard was made. A page that went out and came back counts as
    /// changed.
    #[inline]
    pub fn is_valid(&self) -> bool {
        // Acquire: the bytes were read before the words are read again.
        fence(Ordering::Acquire);
        let page = PageNumber::containing(self.address);
        self.engine.table.at_leaf(self.space.id, page, StillIs(self.begun)).is_some()
            && self.engine.latches[self.begun.frame].is_still(self.begun.version)
    }
}

#[cold]
fn outside(offset: usize, len: usize, address: u64) -> Error {
    let message = format!(
        "{len} bytes at offset {offset} from {address:#x} are not all in one page; take a guard for each page"
    );
    Error::new(ErrorKind::InvalidRange, message)
}

impl fmt::Debug for OptimisticGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptimisticGuard").field("address", &self.address).finish_non_exhaustive()
    }
}
