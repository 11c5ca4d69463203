//! Guards: pages of a guarded region, lent as slices.
//!
//! A guard latches and pins its pages (`latched.rs`), and lends them as a slice. "Guards" in
//! `docs/soundness.md` argues why nobody else writes the bytes of a lent slice, or reads them if they are
//! lent for writing.
//!
//! Cost: that of taking the pages (`latched.rs`). The slice itself costs nothing: the guard keeps its start
//! and length.
#![expect(unsafe_code, reason = "a slice is lent of memory that the compiler knows nothing of")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;

use crate::access::bounds::check_range;
use crate::access::gather::take_run;
use crate::access::latched::{LentRun, Taker};
use crate::access::pin::{Borrowed, PinHolder};
use crate::engine::{Engine, SpaceState, in_place};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::latch::Hold;
use crate::units::{CHUNK_BYTES, PAGE_BYTES, PageNumber};

/// The pages of `len` values from `address` on.
fn pages_of<T>(engine: &Engine, address: u64, len: usize) -> Result<(PageNumber, u32)> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|bytes| (1..=CHUNK_BYTES).contains(bytes));
    let fits = bytes.filter(|bytes| {
        address.is_multiple_of(align_of::<T>() as u64)
            && align_of::<T>() <= PAGE_BYTES
            && address % CHUNK_BYTES as u64 + *bytes as u64 <= CHUNK_BYTES as u64
    });
    let Some(bytes) = fits else { return Err(unfit::<T>(engine, address, len)) };
    check_range(engine, address, bytes as u64)?;
    let first = PageNumber::containing(address);
    let last = PageNumber::containing(address + bytes as u64 - 1);
    Ok((first, (last.0 - first.0 + 1) as u32))
}

#[cold]
fn unfit<T>(engine: &Engine, address: u64, len: usize) -> Error {
    if let Err(error) = engine.check_process() {
        return error;
    }
    let message = format!(
        "a guard cannot lend {len} values of {} bytes at {address:#x}: it lends one value or more, aligned to {}, inside of one piece of \
         2 MiB that begins at a multiple of 2 MiB; choose another range, or take several guards",
        size_of::<T>(),
        align_of::<T>()
    );
    Error::new(ErrorKind::InvalidRange, message)
}

/// Borrowed values, before a guard is made of them.
pub(crate) struct Lent<'s, T> {
    engine: &'s Engine,
    run: LentRun,
    start: NonNull<T>,
    len: usize,
}

/// Borrows `len` values from `address` on, and blocks as long as it takes.
#[inline]
pub(crate) fn lend<'s, T: Pod>(
    engine: &'s Engine,
    space: &SpaceState,
    address: u64,
    len: usize,
    hold: Hold,
    taker: Taker,
) -> Result<Lent<'s, T>> {
    let (page, pages) = pages_of::<T>(engine, address, len)?;
    if let Some(run) = LentRun::at_hand(engine, space, page, pages, hold)? {
        return Ok(Lent::new(engine, run, address, len));
    }
    let _inside = engine.enter()?;
    let run = in_place(take_run(engine, space, page, pages, hold, taker))?;
    Ok(Lent::new(engine, run, address, len))
}

/// As [`lend`], but only if there is one page, or a block shows all pages, and nothing has to be waited for.
/// Otherwise, returns `None`.
pub(crate) fn lend_at_hand<'s, T: Pod>(
    engine: &'s Engine,
    space: &SpaceState,
    address: u64,
    len: usize,
    hold: Hold,
) -> Result<Option<Lent<'s, T>>> {
    let (page, pages) = pages_of::<T>(engine, address, len)?;
    let run = LentRun::at_hand(engine, space, page, pages, hold)?;
    Ok(run.map(|run| Lent::new(engine, run, address, len)))
}

/// As [`lend`], without blocking the thread that polls.
pub(crate) async fn lend_async<'s, T: Pod>(
    engine: &'s Engine,
    space: &SpaceState,
    address: u64,
    len: usize,
    hold: Hold,
) -> Result<Lent<'s, T>> {
    engine.check_process()?;
    let (page, pages) = pages_of::<T>(engine, address, len)?;
    let run = take_run(engine, space, page, pages, hold, Taker::Task).await?;
    Ok(Lent::new(engine, run, address, len))
}

impl<'s, T: Pod> Lent<'s, T> {
    #[inline(always)]
    fn new(engine: &'s Engine, run: LentRun, address: u64, len: usize) -> Self {
        let offset = run.frame.home_offset() + address as usize % PAGE_BYTES;
        let start = NonNull::new(engine.frames.bytes().pointer(offset)).expect("the arena is not at 0");
        debug_assert!(
            address as usize % PAGE_BYTES + len * size_of::<T>() <= run.pages as usize * PAGE_BYTES
        );
        Self { engine, run, start: start.cast(), len }
    }

    #[inline]
    pub(crate) fn shared(self) -> SharedGuard<'s, T> {
        let Self { engine, run, start, len } = self;
        SharedGuardOf { memory: Memory { holder: Borrowed::of(engine), run }, start, len }
    }

    #[inline]
    pub(crate) fn exclusive(self) -> ExclusiveGuard<'s, T> {
        let Self { engine, run, start, len } = self;
        ExclusiveGuardOf { memory: Memory { holder: Borrowed::of(engine), run }, start, len }
    }
}

/// The pages of a guard, and the holder of their memory. Dropping this lets the pages go.
struct Memory<H: PinHolder> {
    holder: H,
    run: LentRun,
}

impl<H: PinHolder> Drop for Memory<H> {
    #[inline]
    fn drop(&mut self) {
        self.run.let_go(self.holder.engine());
    }
}

/// A `&[T]` of a guarded region that borrows its space, from [`Space::shared`](crate::Space::shared); see
/// [`SharedGuardOf`].
pub type SharedGuard<'s, T> = SharedGuardOf<Borrowed<'s>, T>;
/// A `&mut [T]` of a guarded region that borrows its space, from
/// [`Space::exclusive`](crate::Space::exclusive); see [`ExclusiveGuardOf`].
pub type ExclusiveGuard<'s, T> = ExclusiveGuardOf<Borrowed<'s>, T>;

/// Lends values of a guarded region in place, as a `&[T]`. [`SharedGuard`] and
/// [`OwnedSharedGuard`](crate::OwnedSharedGuard) are its two forms. Other shared guards may have the same
/// pages. An exclusive guard waits until all of them are dropped.
///
/// While the guard lives, its pages stay in memory and count against the budget. Guards that are many, or
/// live long, leave less memory for everything else. A forked child does not inherit the memory, so it must
/// not use a guard of its parent.
pub struct SharedGuardOf<H: PinHolder, T> {
    memory: Memory<H>,
    start: NonNull<T>,
    len: usize,
}

/// Lends values of a guarded region in place, as a `&mut [T]`. [`ExclusiveGuard`] and
/// [`OwnedExclusiveGuard`](crate::OwnedExclusiveGuard) are its two forms. While it lives, no other guard has
/// its pages.
///
/// The pages stay in memory as those of a [`SharedGuardOf`] do.
pub struct ExclusiveGuardOf<H: PinHolder, T> {
    memory: Memory<H>,
    start: NonNull<T>,
    len: usize,
}

// SAFETY: a guard consists of the slice that it lends and of the holder of its memory. Latches and pins
// belong to no thread.
unsafe impl<H: PinHolder + Send, T: Sync> Send for SharedGuardOf<H, T> {}
// SAFETY: as above; a shared reference to the guard gives out `&[T]` only.
unsafe impl<H: PinHolder + Sync, T: Sync> Sync for SharedGuardOf<H, T> {}
// SAFETY: as above; an exclusive guard lends a `&mut [T]`.
unsafe impl<H: PinHolder + Send, T: Send> Send for ExclusiveGuardOf<H, T> {}
// SAFETY: as above.
unsafe impl<H: PinHolder + Sync, T: Sync> Sync for ExclusiveGuardOf<H, T> {}

impl<T> SharedGuard<'_, T> {
    /// Gives the memory to another holder, of the same engine.
    pub(crate) fn held_by<H: PinHolder>(mut self, holder: H) -> SharedGuardOf<H, T> {
        let run = self.memory.run.hand_on();
        SharedGuardOf { memory: Memory { holder, run }, start: self.start, len: self.len }
    }
}

impl<T> ExclusiveGuard<'_, T> {
    /// Gives the memory to another holder, of the same engine.
    pub(crate) fn held_by<H: PinHolder>(mut self, holder: H) -> ExclusiveGuardOf<H, T> {
        let run = self.memory.run.hand_on();
        ExclusiveGuardOf { memory: Memory { holder, run }, start: self.start, len: self.len }
    }
}

impl<H: PinHolder, T> ExclusiveGuardOf<H, T> {
    /// Makes this a guard for reading, so that other readers can have the pages too. No writer gets in
    /// between.
    pub fn downgrade(self) -> SharedGuardOf<H, T> {
        let Self { mut memory, start, len } = self;
        memory.run.downgrade(memory.holder.engine());
        SharedGuardOf { memory, start, len }
    }
}

impl<H: PinHolder, T: Pod> Deref for SharedGuardOf<H, T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the pages are pinned and latched, so the memory is mapped, remains theirs, and nobody
        // writes it while the guard lives (see "Guards" in docs/soundness.md). `start` and `len` lie inside
        // these pages, and are aligned (`pages_of`, `Lent::new`). Any bytes are a valid `T` (`Pod`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<H: PinHolder, T: Pod> Deref for ExclusiveGuardOf<H, T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: as for a shared guard. Only this guard writes, through a `&mut` to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<H: PinHolder, T: Pod> DerefMut for ExclusiveGuardOf<H, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for a shared guard, and no other guard has the pages. A `T` has no bytes that are not
        // initialised (`Pod`).
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<H: PinHolder, T: Pod + fmt::Debug> fmt::Debug for SharedGuardOf<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedGuard").field(&&**self).finish()
    }
}

impl<H: PinHolder, T: Pod + fmt::Debug> fmt::Debug for ExclusiveGuardOf<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExclusiveGuard").field(&&**self).finish()
    }
}
