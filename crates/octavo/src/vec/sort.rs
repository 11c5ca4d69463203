//! In-place sort of a vector: a quicksort that works on two runs at a time.
//!
//! One run is lent from the start of a range, and one from its end. Each run is partitioned alone, without
//! branches. Then the two runs exchange the elements that belong to the other side. A run that has only
//! elements of its own side is released, and the next run is lent. So each partition goes through its range
//! once from each end, and pages come and go in order. A run is one unit, or 32 units if these lie in one
//! block, since processors read ahead in a block.
//!
//! A range within one block is sorted in place by the standard library. A range that fits into the buffer is
//! copied to the buffer, sorted, and copied back.
//!
//! The pivot is the median of elements at random places. If no element of a range is less than the pivot, the
//! range is partitioned into the elements that equal the pivot, which are then in place, and the other
//! elements.
//!
//! After an error, or after a panic of the caller's comparison, the vector still has all elements, in some
//! order.
//!
//! Cost, if all pages are in memory and in blocks: 64 MiB of words take 1.1 times as long as in a `Vec`
//! (`docs/benchmarks.md`, "Guards beside mapped files"). The extra time is for a guard for every run of every
//! partition, and for copies of the last small ranges that lie in two pieces.

use std::cmp::Ordering;
use std::ops::Range;

use bytemuck::Pod;

use crate::access::ExclusiveGuard;
use crate::error::Result;
use crate::vec::SpaceVec;

/// Bytes of the buffer, which lies on the heap.
const BUFFER_BYTES: usize = 128 << 10;
/// The number of elements that are read to choose a pivot, the number read at each place, and the most bytes
/// that all of them may have.
const SAMPLES: usize = 27;
const NEIGHBOURS: usize = 3;
const SAMPLE_BYTES: usize = 64 << 10;
/// The number of units of a run, if the units lie in a block.
const RUN_UNITS: usize = 32;
/// If elements have more bytes than this, a branch decides whether an element is moved.
const MOST_BYTES_WITHOUT_BRANCH: usize = 64;

impl<T: Pod> SpaceVec<T> {
    /// The number of elements of a run, if the run lies in a block. A piece has a whole number of runs.
    const PER_RUN: usize = {
        let most = RUN_UNITS * Self::PER_UNIT;
        if most < Self::PER_PIECE { most } else { Self::PER_PIECE }
    };

    /// Sorts the elements. Equal elements may end in any order. Takes 128 KiB of the heap, or the size of one
    /// element if that is more.
    ///
    /// # Errors
    /// The errors of [`Space::exclusive`](crate::Space::exclusive). After an error, the vector still has all
    /// elements, in some order.
    pub fn sort_unstable(&mut self) -> Result<()>
    where
        T: Ord,
    {
        self.sort_unstable_by(T::cmp)
    }

    /// Like [`SpaceVec::sort_unstable`], but sorts by a key.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::sort_unstable`].
    pub fn sort_unstable_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) -> Result<()> {
        self.sort_unstable_by(|one, other| key(one).cmp(&key(other)))
    }

    /// Like [`SpaceVec::sort_unstable`], but sorts by a comparison, which must be a total order.
    ///
    /// # Errors
    /// The errors of [`SpaceVec::sort_unstable`].
    pub fn sort_unstable_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) -> Result<()> {
        let most = (BUFFER_BYTES / size_of::<T>()).max(1);
        let mut buffer = vec![T::zeroed(); most.min(self.len)];
        let mut random = 0x2545_F491_4F6C_DD1D_u64;
        let mut ranges = Vec::new();
        ranges.push(0..self.len);
        while let Some(range) = ranges.pop() {
            if range.len() < 2 {
                continue;
            }
            if let Some(mut run) = self.lend_at_hand(&range)? {
                run.sort_unstable_by(&mut compare);
                continue;
            }
            if range.len() <= buffer.len() {
                self.sort_in_buffer(range, &mut buffer, &mut compare)?;
                continue;
            }
            let pivot = self.pivot(&range, &mut random, &mut compare)?;
            let less = |value: &T| compare(value, &pivot) == Ordering::Less;
            let mut middle = self.partition(range.clone(), less)?;
            if middle == range.start {
                let at_most = |value: &T| compare(value, &pivot) != Ordering::Greater;
                middle = self.partition(range.clone(), at_most)?;
            } else {
                ranges.push(range.start..middle);
            }
            if middle == range.start || middle == range.end && ranges.last() == Some(&range) {
                // The comparison contradicts itself, since the pivot is in neither part. Every order is then
                // acceptable.
                ranges.pop_if(|last| *last == range);
                continue;
            }
            // The upper part is sorted next: both sides have met at its start, so its first pages are in
            // memory.
            ranges.push(middle..range.end);
        }
        Ok(())
    }

    /// Lends a range for writing, if it lies in one page, or in a piece that lies in a block.
    fn lend_at_hand(&self, range: &Range<usize>) -> Result<Option<ExclusiveGuard<'_, T>>> {
        if range.end > self.piece(range.start).end {
            return Ok(None);
        }
        self.space.exclusive_at_hand(self.address(range.start), range.len())
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
            // Xorshift makes the places random, so that no simple pattern of the elements gives bad pivots.
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

    /// Copies a range to the buffer, sorts it there, and copies it back. The whole range is lent first, so
    /// an error comes before any change.
    fn sort_in_buffer(
        &mut self,
        range: Range<usize>,
        buffer: &mut [T],
        compare: &mut impl FnMut(&T, &T) -> Ordering,
    ) -> Result<()> {
        let part = &mut buffer[..range.len()];
        let mut runs = self.runs_mut(range)?.collect::<Result<Vec<_>>>()?;
        let mut rest = &mut *part;
        for run in &runs {
            let (now, later) = rest.split_at_mut(run.len());
            now.copy_from_slice(run);
            rest = later;
        }
        part.sort_unstable_by(compare);
        let mut rest = &*part;
        for run in &mut runs {
            let (now, later) = rest.split_at(run.len());
            run.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Lends a run: several units if these lie in a block, otherwise one unit. `range` returns the run for a
    /// number of elements.
    fn lend_run(&self, range: impl Fn(usize) -> Range<usize>) -> Result<ExclusiveGuard<'_, T>> {
        match self.lend_at_hand(&range(Self::PER_RUN))? {
            Some(run) => Ok(run),
            None => self.lend_mut(range(Self::PER_UNIT)),
        }
    }

    /// Moves the elements for which `goes_first` is true before the others. Returns the index of the first
    /// element of the others.
    fn partition(&mut self, range: Range<usize>, mut goes_first: impl FnMut(&T) -> bool) -> Result<usize> {
        let this = &*self;
        let (mut low, mut high): (Option<PartitionSide<'_, T>>, Option<PartitionSide<'_, T>>) = (None, None);
        // The part of the range that neither side has reached.
        let mut rest = range;
        loop {
            if low.is_none() && !rest.is_empty() {
                let start = rest.start;
                let run =
                    this.lend_run(|units| start..(start / units + 1).saturating_mul(units).min(rest.end))?;
                rest.start += run.len();
                low = Some(PartitionSide::new(start, run, &mut goes_first));
            }
            if high.is_none() && !rest.is_empty() {
                let end = rest.end;
                let run = this.lend_run(|units| ((end - 1) / units * units).max(rest.start)..end)?;
                rest.end -= run.len();
                high = Some(PartitionSide::new(rest.end, run, &mut goes_first));
            }
            let (Some(one), Some(other)) = (&mut low, &mut high) else { break };
            one.exchange(other);
            low.take_if(|low| low.first == low.run.len());
            high.take_if(|high| high.first == 0);
        }
        // The run that is left is already partitioned.
        Ok(low.or(high).map_or(rest.start, |side| side.start + side.first))
    }
}

/// One side of a partition: a lent run, which is already partitioned.
struct PartitionSide<'v, T: Pod> {
    /// The index of the run's first element in the vector.
    start: usize,
    run: ExclusiveGuard<'v, T>,
    /// The number of elements that go first. They lie at the start of the run.
    first: usize,
}

impl<'v, T: Pod> PartitionSide<'v, T> {
    #[inline]
    fn new(start: usize, mut run: ExclusiveGuard<'v, T>, goes_first: &mut impl FnMut(&T) -> bool) -> Self {
        let first = part(&mut run, goes_first);
        Self { start, run, first }
    }

    /// Exchanges elements that belong to the other side, until one of the two runs has no more such elements.
    #[inline]
    fn exchange(&mut self, high: &mut Self) {
        let count = high.first.min(self.run.len() - self.first);
        let later = self.first..self.first + count;
        let first = high.first - count..high.first;
        self.run[later].swap_with_slice(&mut high.run[first]);
        self.first += count;
        high.first -= count;
    }
}

/// Moves the elements that go first before the others. Returns their number.
#[inline]
fn part<T: Pod>(run: &mut [T], goes_first: &mut impl FnMut(&T) -> bool) -> usize {
    let mut first = 0;
    for place in 0..run.len() {
        if size_of::<T>() <= MOST_BYTES_WITHOUT_BRANCH {
            // The element is swapped in any case, but counted only if it goes first.
            let value = run[place];
            run.swap(place, first);
            first += usize::from(goes_first(&value));
        } else if goes_first(&run[place]) {
            run.swap(first, place);
            first += 1;
        }
    }
    first
}
