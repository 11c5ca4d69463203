//! Iteration over a vector by runs: the elements of one unit, lent as a slice.

use std::ops::{Range, RangeBounds};

use bytemuck::Pod;

use crate::access::{ExclusiveGuard, SharedGuard};
use crate::error::Result;
use crate::vec::SpaceVec;

/// Iterates over elements as slices of about a page, for reading. Made by [`SpaceVec::runs`].
#[derive(Debug)]
pub struct Runs<'v, T: Pod> {
    vec: &'v SpaceVec<T>,
    rest: Range<usize>,
}

/// Iterates over elements as slices of about a page, for writing. Made by [`SpaceVec::runs_mut`].
#[derive(Debug)]
pub struct RunsMut<'v, T: Pod> {
    vec: &'v SpaceVec<T>,
    rest: Range<usize>,
}

/// Iterates over copies of the elements, in order. See [`SpaceVec::iter`].
#[derive(Debug)]
pub struct Iter<'v, T: Pod> {
    runs: Runs<'v, T>,
    run: Option<SharedGuard<'v, T>>,
    at: usize,
}

/// A reader for scattered look-ups, such as a binary search. It keeps the page of the last look-up lent. Made
/// by [`SpaceVec::cursor`]. (For a stream of bytes there is [`SpaceCursor`](crate::SpaceCursor).)
#[derive(Debug)]
pub struct Cursor<'v, T: Pod> {
    vec: &'v SpaceVec<T>,
    /// The index of the run's first element, and the run.
    run: Option<(usize, SharedGuard<'v, T>)>,
}

impl<T: Pod> Cursor<'_, T> {
    /// Returns the elements of a range that lie in the same run as the first one. Costs almost nothing if
    /// this is the run of the last call.
    ///
    /// # Errors
    /// `InvalidRange` if the range ends after the vector. Also the errors of
    /// [`Space::load`](crate::Space::load).
    #[inline]
    pub fn at(&mut self, range: Range<usize>) -> Result<&[T]> {
        let range = self.vec.check(range)?;
        let lies_in = |start: usize, run: &[T]| (start..start + run.len()).contains(&range.start);
        if !self.run.as_ref().is_some_and(|(start, run)| lies_in(*start, run)) {
            self.go_to(range.start)?;
        }
        let Some((start, run)) = &self.run else { return Ok(&[]) };
        Ok(&run[range.start - start..(range.end - start).min(run.len())])
    }

    fn go_to(&mut self, index: usize) -> Result<()> {
        // The previous run is dropped first. Otherwise, one page more than necessary would be held.
        self.run = None;
        if index < self.vec.len {
            let unit = self.vec.unit_of(index);
            self.run = Some((unit.start, self.vec.lend(unit.start..unit.end.min(self.vec.len))?));
        }
        Ok(())
    }
}

impl<T: Pod> SpaceVec<T> {
    /// Iterates over a range by runs: slices of elements that lie in one page, or in a few pages for large
    /// elements. A run is held until its guard is dropped.
    ///
    /// # Errors
    /// `InvalidRange` if the range ends after the vector. Each run may fail with the errors of
    /// [`Space::load`](crate::Space::load).
    pub fn runs(&self, range: impl RangeBounds<usize>) -> Result<Runs<'_, T>> {
        Ok(Runs { vec: self, rest: self.check(range)? })
    }

    /// Like [`SpaceVec::runs`], but lends the elements for writing.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::runs`].
    pub fn runs_mut(&mut self, range: impl RangeBounds<usize>) -> Result<RunsMut<'_, T>> {
        Ok(RunsMut { rest: self.check(range)?, vec: self })
    }

    /// Iterates over all elements by pieces, lent for reading. A piece is 2 MiB for most types (see
    /// [`SpaceVec::piece`]). If you keep all guards at once, the whole vector stays in memory. Each piece may
    /// fail with the errors of [`Space::shared`](crate::Space::shared).
    pub fn pieces(&self) -> impl Iterator<Item = Result<SharedGuard<'_, T>>> {
        self.piece_ranges().map(|piece| self.lend(piece))
    }

    /// Like [`SpaceVec::pieces`], but lends the elements for writing.
    pub fn pieces_mut(&mut self) -> impl Iterator<Item = Result<ExclusiveGuard<'_, T>>> {
        let this = &*self;
        this.piece_ranges().map(|piece| this.lend_mut(piece))
    }

    fn piece_ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let piece = self.piece(next);
            next = piece.end;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Makes a reader for scattered look-ups, such as a binary search. The page that was read last stays
    /// lent, and so stays in memory. The next look-up in this page costs almost nothing.
    pub fn cursor(&self) -> Cursor<'_, T> {
        Cursor { vec: self, run: None }
    }

    /// Iterates over copies of all elements, in order. Each item may be an error of
    /// [`Space::load`](crate::Space::load). After an error, the iterator continues with the next run.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { runs: Runs { vec: self, rest: 0..self.len }, run: None, at: 0 }
    }

    /// Removes the first run from a range, and lends it.
    fn next_run(&self, rest: &mut Range<usize>) -> Option<Range<usize>> {
        if rest.start >= rest.end {
            return None;
        }
        let run = rest.start..self.unit_of(rest.start).end.min(rest.end);
        rest.start = run.end;
        Some(run)
    }
}

impl<'v, T: Pod> Iterator for Runs<'v, T> {
    type Item = Result<SharedGuard<'v, T>>;

    fn next(&mut self) -> Option<Self::Item> {
        let vec = self.vec;
        vec.next_run(&mut self.rest).map(|run| vec.lend(run))
    }
}

impl<'v, T: Pod> Iterator for RunsMut<'v, T> {
    type Item = Result<ExclusiveGuard<'v, T>>;

    fn next(&mut self) -> Option<Self::Item> {
        let vec = self.vec;
        vec.next_run(&mut self.rest).map(|run| vec.lend_mut(run))
    }
}

impl<T: Pod> Iterator for Iter<'_, T> {
    type Item = Result<T>;

    #[inline]
    fn next(&mut self) -> Option<Result<T>> {
        if let Some(run) = &self.run
            && let Some(value) = run.get(self.at)
        {
            self.at += 1;
            return Some(Ok(*value));
        }
        // The previous run is dropped first. Otherwise, one page more than necessary would be held.
        self.run = None;
        match self.runs.next()? {
            Ok(run) => {
                let value = run[0];
                (self.run, self.at) = (Some(run), 1);
                Some(Ok(value))
            }
            Err(error) => Some(Err(error)),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.run.as_ref().map_or(0, |run| run.len() - self.at) + self.runs.rest.len();
        // A run that fails counts as one item.
        (left.min(1), Some(left))
    }
}

impl<'v, T: Pod> IntoIterator for &'v SpaceVec<T> {
    type Item = Result<T>;
    type IntoIter = Iter<'v, T>;

    fn into_iter(self) -> Iter<'v, T> {
        self.iter()
    }
}
