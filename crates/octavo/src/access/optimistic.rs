//! Reading pages of a guarded region without holding them: copies that a version validates.
//!
//! The reader reads the entry and the version of the frame's latch, copies, and reads both again, as
//! LeanStore and vmcache do. If the entry is the same, the page had this frame all the time. If the version
//! is the same, no writer had the frame. Otherwise, the copy may be torn, and the reader discards it. A torn
//! copy is harmless: it is plain data.
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

/// How often a reader discards its copy before it takes the latch.
const MOST_COPIES: u32 = 8;

/// What an optimistic reader finds at its leaf.
#[derive(Clone, Copy, Debug)]
struct Begun {
    /// Identifies the entry's word. A walk that ends in another node finds another word.
    word: usize,
    entry: Entry,
    level: usize,
    shown: FrameId,
    frame: FrameId,
    version: Version,
}

impl Begun {
    /// Returns `Err` if a writer has the frame.
    #[inline(always)]
    fn at(engine: &Engine, page: PageNumber, leaf: &Leaf<'_>) -> Option<Result<Self, FrameId>> {
        let shown = leaf.entry.guarded_at_home()?;
        let frame = frame_of(shown, leaf.level, page);
        let Some(version) = engine.latches[frame].begin_read() else { return Some(Err(frame)) };
        let (word, entry, level) = (key_of(leaf.word), leaf.entry, leaf.level);
        Some(Ok(Self { word, entry, level, shown, frame, version }))
    }
}

/// Copies a part of a page out, at its leaf. Returns `Err` if a writer has the frame.
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

/// Copies bytes out of a guarded region, page by page. The bytes from one page are consistent: they were
/// there at the same time.
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
    // Writers come too often: take the latch.
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

/// Checks whether a leaf is unchanged.
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

/// Copies from a page of a guarded region without holding it, and tells afterwards whether the copy is good.
/// For trees and tables that many threads read and few write. Other threads may write the page, and reclaim
/// may move it out, meanwhile.
///
/// A copy may be torn, and may even be of another page. Trust it only if [`OptimisticGuard::is_valid`] then
/// returns `true`: nothing has changed since the guard was made. You can copy from several pages and check
/// all guards at the end, as in a lock-free walk of a tree.
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
    /// Copies bytes out, from `offset` bytes behind the guard's address. Do not use them before
    /// [`OptimisticGuard::is_valid`] returns `true`.
    ///
    /// # Errors
    /// `InvalidRange` if the bytes are not all inside the page; `ForkedChild` in a forked child.
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

    /// Returns whether all bytes copied so far were there at the same time: since the guard was made, the
    /// page has kept its frame, and no writer has had it. A page that went out and came back counts as
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
