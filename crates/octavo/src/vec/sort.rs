//! Sorting a vector in place: a quicksort that has two runs in hand.
//!
//! A range that is larger than the buffer is partitioned: a cursor goes up from its start and another down from its end, each with one run lent for writing. Both
//! collect the places of elements that belong to the other side, a block at a time and without branches, and exchange them (*Edelkamp, Weiß: BlockQuicksort*,
//! 2016). When the cursors meet, what is between them is partitioned in the buffer. A range that fits the buffer is copied there, sorted by
//! the standard library, and copied back.
//!
//! Every level goes through its range once from each end, so pages come and go in order. The pivot is the median of elements at random places; a range in which
//! none is less than the pivot is partitioned into those that equal it, which are done, and the others.
//!
//! An error, or a panic of the caller's comparison, leaves all elements in the vector, in some order.

use std::cmp::Ordering;
use std::ops::Range;

use bytemuck::Pod;

use crate::access::ExclusiveGuard;
use crate::error::Result;
use crate::vec::SpaceVec;

/// Bytes of the buffer, which lies on the heap.
const BUFFER_BYTES: usize = 1 << 20;
/// Elements that are looked at for a pivot, neighbours at each place among them, and the most bytes of them all.
const SAMPLES: usize = 27;
const NEIGHBOURS: usize = 3;
const SAMPLE_BYTES: usize = 64 << 10;
/// Elements of a block. A place in it is a byte.
const BLOCK: usize = 128;

impl<T: Pod> SpaceVec<T> {
    /// Sorts the elements. Equal ones end in any order. Takes 1 MiB of the heap, or a little more for large elements.
    ///
    /// # Errors
    /// As [`Space::load`](crate::Space::load). All elements are in the vector then, in some order.
    pub fn sort_unstable(&mut self) -> Result<()>
    where
        T: Ord,
    {
        self.sort_unstable_by(T::cmp)
    }

    /// As [`SpaceVec::sort_unstable`], by a key.
    ///
    /// # Errors
    /// As [`SpaceVec::sort_unstable`].
    pub fn sort_unstable_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) -> Result<()> {
        self.sort_unstable_by(|one, other| key(one).cmp(&key(other)))
    }

    /// As [`SpaceVec::sort_unstable`], by a comparison, which has to be a total order.
    ///
    /// # Errors
    /// As [`SpaceVec::sort_unstable`].
    pub fn sort_unstable_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) -> Result<()> {
        let most = (BUFFER_BYTES / size_of::<T>()).max(2 * Self::PER_UNIT);
        let mut buffer = vec![T::zeroed(); most.min(self.len)];
        let mut random = 0x2545_F491_4F6C_DD1D_u64;
        let mut ranges = Vec::new();
        ranges.push(0..self.len);
        while let Some(range) = ranges.pop() {
            if range.len() <= buffer.len() {
                self.through_buffer(range, &mut buffer, |part| part.sort_unstable_by(&mut compare))?;
                continue;
            }
            let pivot = self.pivot(&range, &mut random, &mut compare)?;
            let less = |value: &T| compare(value, &pivot) == Ordering::Less;
            let mut middle = self.partition(range.clone(), &mut buffer, less)?;
            if middle == range.start {
                let at_most = |value: &T| compare(value, &pivot) != Ordering::Greater;
                middle = self.partition(range.clone(), &mut buffer, at_most)?;
            } else {
                ranges.push(range.start..middle);
            }
            if middle == range.start || middle == range.end && ranges.last() == Some(&range) {
                // The comparison contradicts itself: the pivot is in neither part. Any order will do.
                ranges.pop_if(|last| *last == range);
                continue;
            }
            // The cursors have met here: these pages are in memory.
            ranges.push(middle..range.end);
        }
        Ok(())
    }

    fn pivot(
        &self,
        range: &Range<usize>,
        random: &mut u64,
        compare: &mut impl FnMut(&T, &T) -> Ordering,
    ) -> Result<T> {
        let most = (SAMPLE_BYTES / size_of::<T>()).clamp(3, SAMPLES);
        let mut samples = Vec::with_capacity(most);
        while samples.len() < most {
            // Xorshift: the places are not to be foreseen by a simple pattern of the elements.
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            let place = range.start + *random as usize % range.len();
            for index in place..range.end.min(place + NEIGHBOURS) {
                samples.push(self.get(index)?);
            }
        }
        samples.sort_unstable_by(compare);
        Ok(samples[samples.len() / 2])
    }

    /// Copies a range to the buffer, changes it there, and copies it back. All of it is lent before: an error comes before any change.
    fn through_buffer(
        &mut self,
        range: Range<usize>,
        buffer: &mut [T],
        change: impl FnOnce(&mut [T]),
    ) -> Result<()> {
        let part = &mut buffer[..range.len()];
        let mut runs = self.runs_mut(range)?.collect::<Result<Vec<_>>>()?;
        let mut rest = &mut *part;
        for run in &runs {
            let (now, later) = rest.split_at_mut(run.len());
            now.copy_from_slice(run);
            rest = later;
        }
        change(part);
        let mut rest = &*part;
        for run in &mut runs {
            let (now, later) = rest.split_at(run.len());
            run.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Moves elements for which `goes_first` holds before the others, and returns the place of the first of these.
    fn partition(
        &mut self,
        range: Range<usize>,
        buffer: &mut [T],
        mut goes_first: impl FnMut(&T) -> bool,
    ) -> Result<usize> {
        let this = &*self;
        let (mut low, mut high) = (Cursor::new(), Cursor::new());
        // What no cursor has got to.
        let mut rest = range;
        loop {
            // Both runs are in hand, or what is left is short.
            if low.is_done() {
                let run = rest.start..this.unit_of(rest.start).end.min(rest.end);
                if run.end == rest.end {
                    break;
                }
                low.go_to(run.start, this.lend_mut(run.clone())?);
                rest.start = run.end;
            }
            if high.is_done() {
                let run = this.unit_of(rest.end - 1).start.max(rest.start)..rest.end;
                if run.start == rest.start {
                    break;
                }
                high.go_to(run.start, this.lend_mut(run.clone())?);
                rest.end = run.start;
            }
            while !low.is_done() && !high.is_done() {
                low.collect_up(&mut goes_first);
                high.collect_down(&mut goes_first);
                low.exchange(&mut high);
            }
        }
        // Up to two runs are left, and what a cursor has not finished.
        let left = low.first_unknown().unwrap_or(rest.start)..high.end_of_unknown().unwrap_or(rest.end);
        drop((low, high));
        let (start, mut middle) = (left.start, 0);
        self.through_buffer(left, buffer, |part| {
            for index in 0..part.len() {
                if goes_first(&part[index]) {
                    part.swap(middle, index);
                    middle += 1;
                }
            }
        })?;
        Ok(start + middle)
    }
}

/// One side of a partition: a run in hand, and the places of elements in it that belong to the other side.
struct Cursor<'v, T: Pod> {
    run: Option<ExclusiveGuard<'v, T>>,
    /// The index of the run's first element in the vector.
    start: usize,
    /// The part of the run that has not been looked at.
    rest: Range<usize>,
    /// Where the block begins, or ends.
    block: usize,
    places: [u8; BLOCK],
    /// The places that are still to be exchanged.
    left: Range<usize>,
}

impl<'v, T: Pod> Cursor<'v, T> {
    fn new() -> Self {
        Self { run: None, start: 0, rest: 0..0, block: 0, places: [0; BLOCK], left: 0..0 }
    }

    fn go_to(&mut self, start: usize, run: ExclusiveGuard<'v, T>) {
        (self.start, self.rest, self.left) = (start, 0..run.len(), 0..0);
        self.run = Some(run);
    }

    /// Every element of the run is where it belongs.
    fn is_done(&self) -> bool {
        self.rest.is_empty() && self.left.is_empty()
    }

    /// Looks at the next block upwards, for elements that do not go first.
    #[inline]
    fn collect_up(&mut self, goes_first: &mut impl FnMut(&T) -> bool) {
        let Some(run) = &self.run else { return };
        while self.left.is_empty() && !self.rest.is_empty() {
            let block = self.rest.start..self.rest.end.min(self.rest.start + BLOCK);
            let found = collect(&mut self.places, run[block.clone()].iter(), |value| !goes_first(value));
            (self.block, self.left, self.rest.start) = (block.start, 0..found, block.end);
        }
    }

    /// Looks at the next block downwards, for elements that go first.
    #[inline]
    fn collect_down(&mut self, goes_first: &mut impl FnMut(&T) -> bool) {
        let Some(run) = &self.run else { return };
        while self.left.is_empty() && !self.rest.is_empty() {
            let block = self.rest.end.saturating_sub(BLOCK).max(self.rest.start)..self.rest.end;
            let found = collect(&mut self.places, run[block.clone()].iter().rev(), &mut *goes_first);
            (self.block, self.left, self.rest.end) = (block.end - 1, 0..found, block.start);
        }
    }

    /// Exchanges as many elements as both sides have.
    #[inline]
    fn exchange(&mut self, high: &mut Self) {
        let count = self.left.len().min(high.left.len());
        let (Some(low_run), Some(high_run)) = (&mut self.run, &mut high.run) else { return };
        let (low_run, high_run) = (&mut low_run[..], &mut high_run[..]);
        let ups = &self.places[self.left.start..self.left.start + count];
        let downs = &high.places[high.left.start..high.left.start + count];
        let places =
            |index: usize| (self.block + usize::from(ups[index]), high.block - usize::from(downs[index]));
        if count > 0 {
            // One circle through all places: two moves for an exchange, where a swap takes three.
            let (up, mut hole) = places(0);
            let first = std::mem::replace(&mut low_run[up], high_run[hole]);
            for index in 1..count {
                let (up, down) = places(index);
                high_run[hole] = low_run[up];
                low_run[up] = high_run[down];
                hole = down;
            }
            high_run[hole] = first;
        }
        self.left.start += count;
        high.left.start += count;
    }

    /// Of the lower cursor: everything before this index goes first.
    fn first_unknown(&self) -> Option<usize> {
        let place = match self.left.is_empty() {
            false => self.block + usize::from(self.places[self.left.start]),
            true if self.rest.is_empty() => return None,
            true => self.rest.start,
        };
        Some(self.start + place)
    }

    /// Of the upper cursor: nothing from this index on goes first.
    fn end_of_unknown(&self) -> Option<usize> {
        let end = match self.left.is_empty() {
            false => self.block - usize::from(self.places[self.left.start]) + 1,
            true if self.rest.is_empty() => return None,
            true => self.rest.end,
        };
        Some(self.start + end)
    }
}

/// Collects the places of values that are wanted, and returns how many they are.
#[inline(always)]
fn collect<'a, T: 'a>(
    places: &mut [u8; BLOCK],
    mut values: impl ExactSizeIterator<Item = &'a T>,
    mut is_wanted: impl FnMut(&T) -> bool,
) -> usize {
    let (mut found, mut place) = (0, 0_u8);
    // Without a branch: a place is written anyway, and counts if it is wanted.
    let mut look = |value: &T| {
        places[found % BLOCK] = place;
        found += usize::from(is_wanted(value));
        place = place.wrapping_add(1);
    };
    while values.len() >= 8 {
        for value in values.by_ref().take(8) {
            look(value);
        }
    }
    values.for_each(look);
    found
}
