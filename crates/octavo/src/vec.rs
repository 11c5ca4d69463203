//! A vector of plain data in a space.
//!
//! The elements lie in *units*. A unit is the smallest number of pages in which elements waste less than a
//! sixteenth: for most types, one page. No element lies in two units. If units have no waste, elements follow
//! each other without a gap, up to the end of a piece of 2 MiB.
//!
//! ```text
//! extents:   2 MiB │ 4 MiB      │ 8 MiB                     │ ...   each a guarded region of its own
//! units:     u u u │ u u u u u u│ ...                               of 1 to 512 pages
//! elements:  eeee. eeee. eeee.                                      '.': what a unit has no use for
//! ```
//!
//! Each extent is twice as large as the one before. So growth moves nothing, and takes addresses for at most
//! twice the elements. Only pages that were written take memory. Finding an element costs a division by a
//! constant, a logarithm (one instruction) and a load from the list of extents.

mod runs;
mod sort;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;

use crate::access::{ExclusiveGuard, SharedGuard};
use crate::error::{Error, ErrorKind, Result};
use crate::region::RegionOptions;
use crate::space::{Advice, Space};
use crate::sync::Shared as Arc;
use crate::units::{CHUNK_BYTES, PAGE_BYTES};
pub use runs::{Cursor, Iter, Runs, RunsMut};

/// A vector of plain data, which may be larger than the budget.
///
/// The vector owns its elements: a change takes `&mut self`, and many threads can read with `&self`. Every
/// access may have to bring a page in. So it may fail with the errors of [`Space::load`], or with
/// `TooManyPins` like [`Space::exclusive`].
///
/// You can copy elements one by one ([`SpaceVec::get`], [`SpaceVec::set`], [`SpaceVec::push`]). Each copy
/// costs a look-up of the page, and a write also costs a guard. Or you can borrow elements as slices
/// ([`SpaceVec::runs`], [`SpaceVec::runs_mut`], [`SpaceVec::extend`]), which costs one guard for each page.
/// Iterating over runs is about as fast as iterating over a `Vec`.
///
/// ```
/// use std::sync::Arc;
/// use octavo::{Manager, SpaceVec};
///
/// let space = Arc::new(Manager::builder().budget_bytes(16 << 20).build()?.space()?);
/// let mut numbers = SpaceVec::<u64>::new(&space);
/// numbers.extend((0..1_000_000).map(|number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15)))?;
/// numbers.sort_unstable()?;
/// let mut sum = 0;
/// for run in numbers.runs(..)? {
///     sum += run?.iter().map(|number| number >> 32).sum::<u64>();
/// }
/// assert!(numbers.get(0)? <= numbers.get(1)? && sum > 0);
/// # Ok::<(), octavo::Error>(())
/// ```
pub struct SpaceVec<T: Pod> {
    space: Arc<Space>,
    /// The address of each extent. Extent `e` has 2 MiB * 2^e.
    extents: Vec<u64>,
    len: usize,
    /// Elements from this index on were never written, or their pages have been freed.
    reach: usize,
    elements: PhantomData<T>,
}

/// Units waste at most one part in this many.
const MOST_WASTE: usize = 16;

/// Returns the bytes of a unit of elements of this size, or 0 for a size of 0 or of more than 2 MiB.
const fn unit_bytes(size: usize) -> usize {
    if size == 0 || size > CHUNK_BYTES {
        return 0;
    }
    let mut bytes = PAGE_BYTES;
    while bytes < CHUNK_BYTES && (bytes < size || bytes % size * MOST_WASTE > bytes) {
        bytes *= 2;
    }
    bytes
}

impl<T: Pod> SpaceVec<T> {
    const UNIT_BYTES: usize = {
        let bytes = unit_bytes(size_of::<T>());
        assert!(bytes != 0 && align_of::<T>() <= PAGE_BYTES, "elements have between 1 byte and 2 MiB");
        bytes
    };
    const PER_UNIT: usize = Self::UNIT_BYTES / size_of::<T>();
    const PER_2_MIB: usize = CHUNK_BYTES / Self::UNIT_BYTES * Self::PER_UNIT;
    /// The number of elements that one guard may lend: the elements of a unit, or of 2 MiB if units have no
    /// waste.
    const PER_PIECE: usize =
        if Self::UNIT_BYTES.is_multiple_of(size_of::<T>()) { Self::PER_2_MIB } else { Self::PER_UNIT };

    /// Makes an empty vector in a space that is kept in an [`Arc`]. It takes no memory and no addresses
    /// yet. (Elements of size zero, or of more than 2 MiB, do not compile.)
    pub fn new(space: &Arc<Space>) -> Self {
        const { assert!(Self::PER_UNIT > 0) }
        Self { space: Arc::clone(space), extents: Vec::new(), len: 0, reach: 0, elements: PhantomData }
    }

    /// Returns the space that holds the elements.
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Returns the number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the vector has no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many elements fit before the vector needs more addresses.
    pub fn capacity(&self) -> usize {
        Self::extent_elements(self.extents.len()).start
    }

    /// Takes addresses for the next `more` elements now. The addresses take no memory yet.
    ///
    /// # Errors
    /// `InvalidRange` if the space has no such range of addresses. `OutOfMemory` if the list of regions
    /// has no room.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let len = self.len.checked_add(more).ok_or_else(too_long)?;
        while self.capacity() < len {
            let bytes = (CHUNK_BYTES as u64)
                .checked_shl(self.extents.len() as u32)
                .filter(|bytes| *bytes < 1 << 47)
                .ok_or_else(too_long)?;
            self.extents.push(self.space.map(bytes, RegionOptions::new().guarded(true).huge(true))?);
        }
        Ok(())
    }

    /// Returns the address of an element. Its extent must exist.
    #[inline]
    fn address(&self, index: usize) -> u64 {
        let byte = index / Self::PER_UNIT * Self::UNIT_BYTES + index % Self::PER_UNIT * size_of::<T>();
        let piece = byte / CHUNK_BYTES + 1;
        let extent = piece.ilog2();
        let within = (piece - (1 << extent)) * CHUNK_BYTES + byte % CHUNK_BYTES;
        self.extents[extent as usize] + within as u64
    }

    /// Returns the elements in the unit of this element, as if the vector were long enough.
    #[inline]
    fn unit_of(&self, index: usize) -> Range<usize> {
        let start = index / Self::PER_UNIT * Self::PER_UNIT;
        start..start + Self::PER_UNIT
    }

    /// Returns a copy of an element.
    ///
    /// # Errors
    /// `InvalidRange` if there is no such element. Also the errors of [`Space::load`].
    #[inline]
    pub fn get(&self, index: usize) -> Result<T> {
        if index >= self.len {
            return Err(beyond(index, self.len));
        }
        let mut value = T::zeroed();
        self.space.read_guarded(self.address(index), bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// Sets an element.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::get`], and `Busy` and `TooManyPins` like [`Space::exclusive`].
    #[inline]
    pub fn set(&mut self, index: usize, value: T) -> Result<()> {
        if index >= self.len {
            return Err(beyond(index, self.len));
        }
        self.lend_mut(index..index + 1)?[0] = value;
        Ok(())
    }

    /// Lends elements for reading, at most a whole piece (see [`SpaceVec::piece`]). Pages that do not lie
    /// together in memory are moved first.
    ///
    /// # Errors
    /// `InvalidRange` if the range is empty, runs past the end, or lies in several pieces. Also the errors of
    /// [`Space::shared`].
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<SharedGuard<'_, T>> {
        self.lend(self.check_piece(range)?)
    }

    /// Like [`SpaceVec::slice`], but lends the elements for writing.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::slice`].
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<ExclusiveGuard<'_, T>> {
        let range = self.check_piece(range)?;
        self.lend_mut(range)
    }

    /// Returns the range of elements around this element that [`SpaceVec::slice`] can lend at once. The range
    /// is empty if there is no such element.
    pub fn piece(&self, index: usize) -> Range<usize> {
        if index >= self.len {
            return self.len..self.len;
        }
        let start = index / Self::PER_PIECE * Self::PER_PIECE;
        start..self.len.min(start + Self::PER_PIECE)
    }

    #[inline]
    fn lend(&self, range: Range<usize>) -> Result<SharedGuard<'_, T>> {
        self.space.shared(self.address(range.start), range.len())
    }

    /// Lends elements for writing. The caller has borrowed the vector as `&mut`, so no other thread uses the
    /// elements.
    #[inline]
    fn lend_mut(&self, range: Range<usize>) -> Result<ExclusiveGuard<'_, T>> {
        self.space.exclusive(self.address(range.start), range.len())
    }

    /// Adds an element at the end.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::reserve`] and [`SpaceVec::set`].
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.len == self.capacity() {
            self.reserve(1)?;
        }
        self.lend_mut(self.len..self.len + 1)?[0] = value;
        self.len += 1;
        Ok(())
    }

    /// Removes the last element and returns it, if there is one. Its page is not freed (see
    /// [`SpaceVec::truncate`]).
    ///
    /// # Errors
    /// The errors of [`Space::load`].
    pub fn pop(&mut self) -> Result<Option<T>> {
        let Some(last) = self.len.checked_sub(1) else { return Ok(None) };
        let value = self.get(last)?;
        self.reach = self.reach.max(self.len);
        self.len = last;
        Ok(Some(value))
    }

    /// Adds the items of an iterator at the end, with one guard for each page.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::push`]. After an error, the vector has all items that were taken from the
    /// iterator, except the last one.
    pub fn extend(&mut self, values: impl IntoIterator<Item = T>) -> Result<()> {
        let mut values = values.into_iter();
        let mut next = values.next();
        while next.is_some() {
            if self.len == self.capacity() {
                self.reserve(values.size_hint().0.saturating_add(1))?;
            }
            let room = self.len..self.unit_of(self.len).end;
            let mut written = 0;
            let mut guard = self.lend_mut(room)?;
            while let Some(value) = next {
                guard[written] = value;
                written += 1;
                next = values.next();
                if written == guard.len() {
                    break;
                }
            }
            drop(guard);
            self.len += written;
        }
        Ok(())
    }

    /// Adds copies of the values of a slice at the end.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::push`]. The elements that were added before the error stay in the vector.
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<()> {
        self.reserve(values.len())?;
        let mut rest = values;
        while !rest.is_empty() {
            let room = self.unit_of(self.len).end - self.len;
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.lend_mut(self.len..self.len + now.len())?.copy_from_slice(now);
            self.len += now.len();
            rest = later;
        }
        Ok(())
    }

    /// Changes the length to `len`: removes elements from the end, or adds copies of `value`.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::push`] and [`SpaceVec::truncate`].
    pub fn resize(&mut self, len: usize, value: T) -> Result<()> {
        match len.checked_sub(self.len) {
            Some(more) => self.extend(std::iter::repeat_n(value, more)),
            None => self.truncate(len),
        }
    }

    /// Removes the elements from `len` on, and frees the memory and the swap of their pages. The addresses
    /// stay taken.
    ///
    /// # Errors
    /// The errors of [`Space::advise`]. After an error, the elements are removed, but their memory may not be
    /// free. The next call tries again.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        self.reach = self.reach.max(self.len);
        self.len = self.len.min(len);
        let gone = self.len..self.reach;
        let page = PAGE_BYTES as u64;
        for (extent, &start) in self.extents.iter().enumerate() {
            let all = Self::extent_elements(extent);
            let gone = gone.start.max(all.start)..gone.end.min(all.end);
            if gone.is_empty() {
                continue;
            }
            let end_of = |index: usize| (self.address(index) + size_of::<T>() as u64).next_multiple_of(page);
            // A page with an element that stays is not freed.
            let from = if gone.start == all.start { start } else { end_of(gone.start - 1) };
            let to = end_of(gone.end - 1);
            if from < to {
                self.space.advise(from, to - from, Advice::Free)?;
            }
        }
        self.reach = self.len;
        Ok(())
    }

    /// Returns the elements that an extent has room for.
    fn extent_elements(extent: usize) -> Range<usize> {
        let pieces = (1 << extent) - 1;
        pieces * Self::PER_2_MIB..(2 * pieces + 1) * Self::PER_2_MIB
    }

    /// Removes all elements, like `truncate(0)`.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::truncate`].
    pub fn clear(&mut self) -> Result<()> {
        self.truncate(0)
    }

    /// Copies elements, from `index` on, to a slice.
    ///
    /// # Errors
    /// `InvalidRange` if there are too few elements. Also the errors of [`Space::load`].
    pub fn copy_to(&self, index: usize, to: &mut [T]) -> Result<()> {
        let range = self.check(index..index.saturating_add(to.len()))?;
        let mut rest = to;
        for run in self.runs(range)? {
            let run = run?;
            let (now, later) = rest.split_at_mut(run.len());
            now.copy_from_slice(&run);
            rest = later;
        }
        Ok(())
    }

    /// Copies a slice over the elements from `index` on.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::copy_to`].
    pub fn copy_from(&mut self, index: usize, from: &[T]) -> Result<()> {
        let range = self.check(index..index.saturating_add(from.len()))?;
        let mut rest = from;
        for run in self.runs_mut(range)? {
            let mut run = run?;
            let (now, later) = rest.split_at(run.len());
            run.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    fn check(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start <= end && end <= self.len {
            return Ok(start..end);
        }
        let message = format!(
            "the range {start}..{end} is not inside of the vector's {} elements; check it against len()",
            self.len
        );
        Err(Error::new(ErrorKind::InvalidRange, message))
    }

    fn check_piece(&self, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
        let range = self.check(range)?;
        if !range.is_empty() && range.end <= self.piece(range.start).end {
            return Ok(range);
        }
        let message = format!(
            "the range {}..{} is empty, or does not lie in one piece; lend ranges inside of piece(index), or go by runs()",
            range.start, range.end
        );
        Err(Error::new(ErrorKind::InvalidRange, message))
    }
}

impl<T: Pod> Drop for SpaceVec<T> {
    fn drop(&mut self) {
        for (extent, &start) in self.extents.iter().enumerate() {
            // Extents are whole regions, so unmapping splits none and does not fail. In a forked child, it
            // fails, and there is nothing to unmap.
            let _ = self.space.unmap(start, (CHUNK_BYTES as u64) << extent);
        }
    }
}

impl<T: Pod> fmt::Debug for SpaceVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpaceVec").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cold]
fn beyond(index: usize, len: usize) -> Error {
    let message = format!("there is no element {index} in a vector of {len}; check it against len()");
    Error::new(ErrorKind::InvalidRange, message)
}

#[cold]
fn too_long() -> Error {
    Error::new(
        ErrorKind::InvalidRange,
        "a vector of more elements than a space has addresses; make it shorter",
    )
}
