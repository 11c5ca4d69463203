//! Going through a vector by runs: the elements of one unit, lent as a slice.

use std::ops::{Range, RangeBounds};

use bytemuck::Pod;

use crate::access::{ExclusiveGuard, SharedGuard};
use crate::error::Result;
use crate::vec::SpaceVec;

/// Runs of elements, lent for reading. See [`SpaceVec::runs`].
#[derive(Debug)]
pub struct Runs<'v, T: Pod> {
    vec: &'v SpaceVec<T>,
    rest: Range<usize>,
}

/// Runs of elements, lent for writing. See [`SpaceVec::runs_mut`].
#[derive(Debug)]
pub struct RunsMut<'v, T: Pod> {
    vec: &'v SpaceVec<T>,
    rest: Range<usize>,
}

/// Copies of the elements, in order. See [`SpaceVec::iter`].
#[derive(Debug)]
pub struct Iter<'v, T: Pod> {
    runs: Runs<'v, T>,
    run: Option<SharedGuard<'v, T>>,
    at: usize,
}

impl<T: Pod> SpaceVec<T> {
    /// Goes through a range by runs: slices of elements that lie in one page, or in a few for large elements. A run is held until its guard is dropped.
    ///
    /// # Errors
    /// `InvalidRange` where the range runs past the end. Each run may fail as [`Space::load`](crate::Space::load) does.
    pub fn runs(&self, range: impl RangeBounds<usize>) -> Result<Runs<'_, T>> {
        Ok(Runs { vec: self, rest: self.check(range)? })
    }

    /// As [`SpaceVec::runs`], for writing.
    ///
    /// # Errors
    /// As [`SpaceVec::runs`].
    pub fn runs_mut(&mut self, range: impl RangeBounds<usize>) -> Result<RunsMut<'_, T>> {
        Ok(RunsMut { rest: self.check(range)?, vec: self })
    }

    /// Copies of all elements, in order. Each may fail as [`Space::load`](crate::Space::load) does. After a failure the next element is tried.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { runs: Runs { vec: self, rest: 0..self.len }, run: None, at: 0 }
    }

    /// Takes the first run off a range.
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
        // The run before is let go first: a page more would be held, for nothing.
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
        // A run that fails is one item.
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
