//! Pins: counted holds on the memory behind a range (*x86: lockless get_user_pages_fast()*, Linux 2.6.27,
//! commit 8174c430e445).
//!
//! A pin keeps the frames from being evicted, moved or freed. It does not keep writers out. An unmap of a
//! pinned range, or a drop of its space, removes the entries, but the memory lives until the pin is dropped.
//!
//! The lock-free path walks, reads the entry once, takes the count, and reads every link again, from the
//! entry up to the root. On a mismatch it gives the count back. It stops at the first page that does not fit
//! (absent, not writable, busy), and keeps the pages that it has. The slow path continues there: it faults
//! the page in, and tries again. The base form pins under the space's layout lock, held shared, as Linux did
//! under mmap_sem.
//!
//! With [`Cover::Prefix`], the pin covers the pages before the first one that cannot be pinned. It fails only
//! if the first page cannot be pinned, so an error never holds a pin. With [`Cover::All`], all of the range
//! is pinned, or nothing is.
//!
//! A [`Pin`] borrows its space, and keeps a reference to the engine. An owned pin keeps an `Arc` of the
//! space. The [`PinHolder`] of the pin's type says which.
//!
//! A pin on a zero page takes no count. It shows the manager's small zero page, which is never written. A
//! zero page is pinned for reading only, because an entry that forbids writing never yields a pin for
//! writing.
//!
//! A lock-free pin and its drop cost two read-modify-writes on the frame's half line, and the walk twice.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;

use octavo_platform::{ArenaBytes, Word, cell_bytes};

use crate::access::bounds::{bytes_left_in_page, check_range, offset_in_arena, too_many_pins};
use crate::config::PinPath;
use crate::counters::Counter;
use crate::engine::{Engine, SpaceState, Waiter};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Via, prefetch, resolve, resolve_async};
use crate::frame::PinnedFrame;
use crate::frame::holds::MAX_PINS;
use crate::sync::{Ordering, fence};
use crate::table::{Access, Leaf, LeafOperation, PageNumberRange, SpaceId};
use crate::units::{CHUNK_BYTES, FrameId, PAGE_BYTES, PageNumber};

/// A run of pinned bytes that lie together in memory. It is two words long, so a pin passes through memory at
/// most once on its way to the caller.
#[derive(Clone, Copy, Debug)]
struct Piece {
    offset: usize,
    /// Number of the frame, or block, that carries the count. `NOT_HELD` for a zero page, which needs no
    /// count.
    held: u32,
    len: u32,
}

const NOT_HELD: u32 = u32::MAX;
const NOTHING: Piece = Piece { offset: 0, held: NOT_HELD, len: 0 };

/// How much of a range a pin has to cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cover {
    /// As many pages from the first on as can be pinned.
    Prefix,
    All,
}

/// Marks whether a pin or guard borrows its space ([`Borrowed`]) or keeps it in an [`Arc`](std::sync::Arc).
/// You meet it in signatures only: use [`Pin`], [`OwnedPin`](crate::OwnedPin), and the guards of both kinds.
pub trait PinHolder {
    #[doc(hidden)]
    fn engine(&self) -> &Engine;
}

/// The [`PinHolder`] of a [`Pin`], or of a guard such as [`SharedGuard`](crate::SharedGuard), that borrows
/// its space.
pub struct Borrowed<'s>(&'s Engine);

impl<'s> Borrowed<'s> {
    #[inline(always)]
    pub(super) fn of(engine: &'s Engine) -> Self {
        Self(engine)
    }
}

impl PinHolder for Borrowed<'_> {
    #[inline(always)]
    fn engine(&self) -> &Engine {
        self.0
    }
}

/// Keeps memory where it is, for a system call or a device, and borrows its space. From
/// [`Space::pin_exact`](crate::Space::pin_exact). [`PinOf`] has its methods. (It is not related to
/// [`std::pin::Pin`].)
pub type Pin<'s> = PinOf<Borrowed<'s>>;

/// Keeps memory in its place until the pin is dropped: for system calls, devices, and access without faults.
/// From [`Space::pin_exact`](crate::Space::pin_exact).
///
/// There are two forms: [`Pin`] borrows its space, and [`OwnedPin`](crate::OwnedPin) keeps it in an `Arc`.
/// You can send both to other threads.
///
/// Other threads that reach the same pages may write the bytes at any moment. So a pin does not lend them as
/// `&[u8]`. Copy them with [`Pin::copy_out`] and [`Pin::copy_in`], or hand [`Pin::pages`] to a device.
///
/// A pin for reading on a page that nobody has written yet takes no memory. It shows zeros, even after the
/// page is written. To see later writes, pin for writing.
pub struct PinOf<H: PinHolder> {
    holder: H,
    first: Piece,
    /// The pieces after the first. Most pins lie in one page, and have none.
    #[expect(clippy::box_collection, reason = "one word for what is nearly never there")]
    rest: Option<Box<Vec<Piece>>>,
    len: usize,
    access: Access,
}

impl<'s> Pin<'s> {
    #[inline(always)]
    fn new(engine: &'s Engine, first: Piece, access: Access) -> Self {
        Self { holder: Borrowed(engine), first, rest: None, len: first.len as usize, access }
    }

    /// Gives the memory to another holder, of the same engine.
    pub(crate) fn held_by<H: PinHolder>(mut self, holder: H) -> PinOf<H> {
        debug_assert!(std::ptr::eq(self.engine(), holder.engine()));
        let (first, rest) = (std::mem::replace(&mut self.first, NOTHING), self.rest.take());
        PinOf { holder, first, rest, len: self.len, access: self.access }
    }
}

impl<H: PinHolder> PinOf<H> {
    #[inline(always)]
    fn engine(&self) -> &Engine {
        self.holder.engine()
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        std::iter::once(&self.first).chain(self.rest.iter().flat_map(|rest| rest.iter()))
    }

    fn push(&mut self, piece: Piece) {
        if self.len == 0 {
            self.first = piece
        } else {
            self.rest.get_or_insert_default().push(piece)
        }
        self.len += piece.len as usize;
    }

    /// The pinned bytes. A pin from [`Space::pin_prefix`](crate::Space::pin_prefix) may be shorter than
    /// asked: it ends before the first page that could not be pinned.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the pin is empty, because no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The access that the pin allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Pointer and length in bytes of each contiguous part, in order. Never write through a pin for
    /// [`Access::Read`]: it may show the zero page that all spaces share. A part is a page or less, or
    /// several pages of one 2 MiB block. The pointers stay valid while the pin lives. Other threads may write
    /// the bytes behind them.
    ///
    /// A forked child does not inherit this memory. Other calls return the error `ForkedChild` there, but a
    /// child that dereferences a pointer is killed by SIGSEGV.
    pub fn pages(&self) -> PinnedPages<'_> {
        PinnedPages {
            engine: self.engine(),
            first: Some(&self.first),
            rest: self.rest.as_deref().map_or(&[][..], Vec::as_slice).iter(),
        }
    }

    /// The arena in which the pinned bytes lie.
    pub(crate) fn arena(&self) -> &ArenaBytes {
        self.engine().frames.bytes()
    }

    /// The ranges of the arena that are pinned, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        self.pieces().map(|piece| piece.offset..piece.offset + piece.len as usize)
    }

    /// Loads the word at `offset` bytes into the pin. The word must be aligned in memory, and is never torn.
    /// A load is cheaper than a copy: the word stays in a register, so the drop of the pin need not wait for
    /// it. A load acquires, as [`Space::load`](crate::Space::load) does.
    ///
    /// # Errors
    /// `InvalidRange` if the word is not all inside the pin, or not aligned; `ForkedChild` in a forked child.
    #[inline(always)]
    pub fn load<W: Word>(&self, offset: usize) -> Result<W> {
        let at = self.word_at::<W>(offset)?;
        let value = self.engine().frames.bytes().load(at);
        // As for a load through the space.
        fence(Ordering::Acquire);
        Ok(value)
    }

    /// Stores a word at `offset` bytes into the pin. The word must be aligned in memory. A store releases, as
    /// [`Space::store`](crate::Space::store) does.
    ///
    /// # Errors
    /// `Protected` if the pin is for reading. Otherwise, as for [`Pin::load`].
    #[inline]
    pub fn store<W: Word>(&self, offset: usize, value: W) -> Result<()> {
        if self.access != Access::Write {
            return Err(for_reading());
        }
        let at = self.word_at::<W>(offset)?;
        // As for a store through the space.
        fence(Ordering::Release);
        self.engine().frames.bytes().store(at, value);
        Ok(())
    }

    #[inline(always)]
    fn word_at<W>(&self, offset: usize) -> Result<usize> {
        self.check(offset, size_of::<W>())?;
        let mut found = self.in_first(offset, size_of::<W>());
        if found.is_none() {
            self.each_part(offset, size_of::<W>(), |at, len| found = (len == size_of::<W>()).then_some(at));
        }
        found
            .filter(|at| at.is_multiple_of(cell_bytes::<W>()))
            .ok_or_else(|| unaligned::<W>(self.first.offset, offset))
    }

    /// Copies bytes out, from `offset` bytes into the pin.
    ///
    /// # Errors
    /// `InvalidRange` if the bytes are not all inside the pin; `ForkedChild` in a forked child.
    #[inline]
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.check(offset, to.len())?;
        if let Some(at) = self.in_first(offset, to.len()) {
            self.engine().frames.bytes().copy_out(at, to);
            return Ok(());
        }
        self.copy_out_parts(offset, to);
        Ok(())
    }

    fn copy_out_parts(&self, offset: usize, to: &mut [u8]) {
        let mut rest = to;
        self.each_part(offset, rest.len(), |at, len| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(len);
            self.engine().frames.bytes().copy_out(at, now);
            rest = later;
        });
    }

    /// Copies bytes in, from `offset` bytes into the pin.
    ///
    /// # Errors
    /// `Protected` if the pin is for reading; `InvalidRange` if the bytes are not all inside the pin;
    /// `ForkedChild` in a forked child.
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> Result<()> {
        if self.access != Access::Write {
            return Err(for_reading());
        }
        self.check(offset, from.len())?;
        // As for a store.
        fence(Ordering::Release);
        if let Some(at) = self.in_first(offset, from.len()) {
            self.engine().frames.bytes().copy_in(at, from);
            return Ok(());
        }
        let mut rest = from;
        self.each_part(offset, rest.len(), |at, len| {
            let (now, later) = rest.split_at(len);
            self.engine().frames.bytes().copy_in(at, now);
            rest = later;
        });
        Ok(())
    }

    /// The offset of these bytes in the arena if they lie in the first piece, as in most pins.
    #[inline]
    fn in_first(&self, offset: usize, len: usize) -> Option<usize> {
        (offset + len <= self.first.len as usize).then_some(self.first.offset + offset)
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) -> Result<()> {
        self.engine().check_process()?;
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(outside(offset, len, self.len))
    }

    #[inline(always)]
    fn each_part(&self, mut skip: usize, mut len: usize, mut part: impl FnMut(usize, usize)) {
        for piece in self.pieces() {
            if len == 0 {
                return;
            }
            if skip >= piece.len as usize {
                skip -= piece.len as usize;
                continue;
            }
            let now = len.min(piece.len as usize - skip);
            part(piece.offset + skip, now);
            skip = 0;
            len -= now;
        }
    }
}

impl<H: PinHolder> Drop for PinOf<H> {
    #[inline]
    fn drop(&mut self) {
        // In a forked child the count goes down in the child's own copy, and `free_last` does nothing.
        drop_piece(self.engine(), self.first);
        if let Some(rest) = &self.rest {
            rest.iter().for_each(|piece| drop_piece(self.engine(), *piece));
        }
    }
}

#[cold]
fn outside(offset: usize, len: usize, pin_len: usize) -> Error {
    let message =
        format!("{len} bytes at offset {offset} are not inside a pin of {pin_len} bytes; check pin.len()");
    Error::new(ErrorKind::InvalidRange, message)
}

/// The error for a word that is not aligned. All pieces but the first begin on a page, so `start`, the offset
/// of the first, decides.
#[cold]
fn unaligned<W>(start: usize, offset: usize) -> Error {
    let (size, cell) = (size_of::<W>(), cell_bytes::<W>());
    let past = (start + offset) % cell;
    let message = format!(
        "a word of {size} bytes at offset {offset} of the pin is not aligned: its address is {past} past a multiple of \
         {cell}; choose another offset, or use copy_out() and copy_in()"
    );
    Error::new(ErrorKind::InvalidRange, message)
}

#[cold]
fn for_reading() -> Error {
    Error::new(ErrorKind::Protected, "the pin is for reading; pin with Access::Write to write")
}

#[inline(always)]
fn drop_piece(engine: &Engine, piece: Piece) {
    if piece.held != NOT_HELD {
        engine.unpin(PinnedFrame::counted(FrameId(piece.held)));
    }
}

impl<H: PinHolder> fmt::Debug for PinOf<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("len", &self.len).field("access", &self.access).finish_non_exhaustive()
    }
}

/// The contiguous parts of a pin, as `(*mut u8, usize)`: pointer and bytes. From [`PinOf::pages`].
#[derive(Debug)]
pub struct PinnedPages<'p> {
    engine: &'p Engine,
    first: Option<&'p Piece>,
    rest: std::slice::Iter<'p, Piece>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine")
    }
}

impl Iterator for PinnedPages<'_> {
    type Item = (*mut u8, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.first.take().or_else(|| self.rest.next())?;
        Some((self.engine.frames.bytes().pointer(piece.offset), piece.len as usize))
    }
}

/// Pins up to `len` bytes from `address` on.
#[inline(always)]
pub(crate) fn pin<'s>(
    engine: &'s Engine,
    space: &SpaceState,
    address: u64,
    len: usize,
    access: Access,
    cover: Cover,
) -> Result<Pin<'s>> {
    let watched = engine.check_pins(space)?;
    let mut first = NOTHING;
    if engine.policy.pin_path == PinPath::LockFree {
        engine.counters.count(Counter::PinFast);
        let full = Cell::new(false);
        let take = TakePin { engine, watched, address, len, access, full: &full };
        first = engine.table.at_leaf(space.id, PageNumber::containing(address), take).unwrap_or(NOTHING);
    }
    if first.len as usize == len && len > 0 {
        return Ok(Pin::new(engine, first, access));
    }
    // The box keeps the address of `pin` out of the other function, so that the pin stays in registers.
    pin_rest(engine, first, space, address, len, access, cover).map(|pin| *pin)
}

/// The rest of a pin that does not lie in one present page.
#[inline(never)]
fn pin_rest<'s>(
    engine: &'s Engine,
    first: Piece,
    space: &SpaceState,
    address: u64,
    len: usize,
    access: Access,
    cover: Cover,
) -> Result<Box<Pin<'s>>> {
    let mut pin = Box::new(Pin::new(engine, first, access));
    // Before any lock: in a forked child, a thread of the parent may hold the lock for ever.
    let _inside = engine.enter()?;
    check_range(engine, address, len as u64)?;
    let mut fit = pin_present(&mut pin, space, address, len);
    if pin.len < len {
        engine.counters.count(Counter::PinSlow);
    }
    while pin.len < len {
        let next = address + pin.len as u64;
        let usable = match fit {
            Fit::Refused(error) => Err(error),
            _ => resolve(engine, space, next, access),
        };
        match usable {
            Ok(()) => fit = pin_present(&mut pin, space, address, len),
            // The caller gets the pages that are pinned already.
            Err(_) if pin.len > 0 && cover == Cover::Prefix => break,
            Err(error) => return Err(error),
        }
    }
    Ok(pin)
}

/// Bytes of a pin that are awaited at once, and whose reads overlap. After that many, other tasks may run.
const AWAITED_BYTES: usize = 128 * PAGE_BYTES;

/// Pins all of a range, without blocking the thread that polls. Each page is pinned as soon as it is in
/// memory.
pub(crate) async fn pin_async<'s>(
    engine: &'s Engine,
    space: &SpaceState,
    address: u64,
    len: usize,
    access: Access,
) -> Result<Pin<'s>> {
    check_range(engine, address, len as u64)?;
    if engine.policy.pin_path == PinPath::LockFree {
        engine.counters.count(Counter::PinFast);
    }
    let mut pin = Pin::new(engine, NOTHING, access);
    let mut asked_for = PageNumber::containing(address);
    let mut is_slow = false;
    loop {
        let reach = (pin.len + AWAITED_BYTES).min(len);
        let fit = pin_present(&mut pin, space, address, reach);
        if pin.len == len {
            return Ok(pin);
        }
        if pin.len == reach {
            Waiter::task(engine).give_way().await;
            // The process may have forked meanwhile.
            engine.check_process()?;
            continue;
        }
        if let Fit::Refused(error) = fit {
            return Err(error);
        }
        if !std::mem::replace(&mut is_slow, true) {
            engine.counters.count(Counter::PinSlow);
        }
        let next = address + pin.len as u64;
        // Check first: pages that do not allow the access need not be read.
        space.region_for(engine, next, access)?;
        let page = PageNumber::containing(next);
        if page >= asked_for {
            asked_for = PageNumber((address + reach as u64).div_ceil(PAGE_BYTES as u64));
            prefetch(engine, space, PageNumberRange { start: page, end: asked_for });
        }
        resolve_async(Waiter::task(engine), engine, space, next, access, Via::Handle).await?;
    }
}

/// The reason why the pinning of present pages stopped.
enum Fit {
    All,
    /// A page is absent, or does not allow the access.
    Unfit,
    /// A frame carries its most pins, or the space's pins keep as much memory as they may.
    Refused(Error),
}

/// Pins pages from the end of `pin` on, as long as they are present and fit. Never faults. Only the base form
/// takes a lock, the layout lock.
fn pin_present(pin: &mut Pin<'_>, space: &SpaceState, address: u64, len: usize) -> Fit {
    let is_locked = pin.engine().policy.pin_path == PinPath::Locked;
    let _layout = is_locked.then(|| space.regions.read_lock());
    while pin.len < len {
        let (engine, access, address, len) =
            (pin.holder.0, pin.access, address + pin.len as u64, len - pin.len);
        let watched = match engine.check_pins(space) {
            Ok(watched) => watched,
            Err(error) => return Fit::Refused(error),
        };
        let full = Cell::new(false);
        let page = PageNumber::containing(address);
        let take = TakePin { engine, watched, address, len, access, full: &full };
        let zero = || engine.table.at_leaf(space.id, page, TakeZero { engine, address, len });
        let taken = engine.table.at_leaf(space.id, page, take);
        match taken.or_else(|| if access == Access::Read { zero() } else { None }) {
            Some(piece) => pin.push(piece),
            None if full.get() => return Fit::Refused(too_many_pins()),
            None => return Fit::Unfit,
        }
    }
    Fit::All
}

/// A pin, at its leaf.
#[derive(Clone, Copy)]
struct TakePin<'e> {
    engine: &'e Engine,
    watched: Option<SpaceId>,
    address: u64,
    len: usize,
    access: Access,
    /// Set if the frame carries its most pins.
    full: &'e Cell<bool>,
}

impl LeafOperation for TakePin<'_> {
    type Output = Piece;

    /// Takes the count, and reads the links to the frame again.
    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Piece> {
        let Self { engine, watched, address, len, access, full } = self;
        let frame = leaf.entry.usable_at_home(access)?;
        let words = engine.frames.words(frame);
        let (pin, before) = PinnedFrame::take(frame, words);
        if !leaf.still_holds() || before.pins() >= MAX_PINS {
            full.set(before.pins() >= MAX_PINS);
            engine.unpin(pin);
            return None;
        }
        if access == Access::Write && !before.is_dirty() {
            engine.mark_dirty(frame);
        }
        engine.note_pinned(watched, words, before);
        leaf.word.mark_accessed(leaf.entry);
        let left = if leaf.level == 0 {
            bytes_left_in_page(address)
        } else {
            CHUNK_BYTES - address as usize % CHUNK_BYTES
        };
        let offset = offset_in_arena(frame, leaf.level, address);
        Some(Piece { offset, held: pin.into_frame().0, len: len.min(left) as u32 })
    }
}

/// A pin for reading on a page of zeros, at its leaf. Takes no count.
#[derive(Clone, Copy)]
struct TakeZero<'e> {
    engine: &'e Engine,
    address: u64,
    len: usize,
}

impl LeafOperation for TakeZero<'_> {
    type Output = Piece;

    #[inline(always)]
    fn run(self, leaf: &Leaf<'_>) -> Option<Piece> {
        if !leaf.entry.is_zero() {
            return None;
        }
        // Acquire: as in a load, the entry was zero when the pin was taken.
        fence(Ordering::Acquire);
        leaf.still_holds().then(|| Piece {
            offset: self.engine.small_zero.home_offset() + self.address as usize % PAGE_BYTES,
            held: NOT_HELD,
            len: self.len.min(bytes_left_in_page(self.address)) as u32,
        })
    }
}
