//! The known mappings of a process: the ranges that the space maps, and the ranges whose pages have yet to be
//! adopted.
//!
//! ```text
//!   watched ─► doubtful ── still the expected mapping ─► adopting ─► nothing left to adopt
//!                 └─────── another mapping by now ─► stays watched
//! ```
//!
//! A range is recorded as soon as it is watched, so that every later event finds it here. The driver's thread
//! takes events in, and the monitor's thread takes mappings over. One lock keeps the lists consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use rangemap::RangeSet;

/// The ranges of one process.
#[derive(Debug, Default)]
pub(crate) struct ProcessRanges(Mutex<Ranges>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges {
    /// The ranges that the space maps.
    pub(crate) mapped: RangeSet<u64>,
    /// Watched ranges that have yet to be adopted.
    adopting: RangeSet<u64>,
    /// The bss that looks at the mappings have found. A fork's child has its parent's bss, but seldom the
    /// headers in memory.
    pub(crate) bss: RangeSet<u64>,
    /// The stack pointers of threads without a descriptor, as last seen.
    pub(crate) stacks: BTreeMap<u32, u64>,
    /// Ranges that may be adopted later: all ranges of a fork's child that has no mover yet, its ranges that
    /// changed while it got one, and new ranges until a second look has confirmed them.
    pub(crate) doubtful: RangeSet<u64>,
    /// The address where adoption continues.
    at: u64,
}

impl ProcessRanges {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.0.lock().expect("nobody panics here")
    }

    /// Makes the layout of a fork's child: it maps what its parent maps, and nothing is adopted yet.
    pub(crate) fn of_fork(&self) -> Self {
        let Ranges { mapped, bss, .. } = self.lock().clone();
        Self(Mutex::new(Ranges { doubtful: mapped.clone(), mapped, bss, ..Ranges::default() }))
    }
}

impl Ranges {
    /// Marks a range to be adopted.
    pub(crate) fn adopt(&mut self, range: Range<u64>) {
        self.doubtful.remove(range.clone());
        self.adopting.insert(range);
    }

    /// Marks the doubtful parts of a range to be adopted.
    pub(crate) fn confirm(&mut self, range: Range<u64>) {
        for part in parts(&self.doubtful, &range) {
            self.adopt(part);
        }
    }

    /// Returns the parts of a range that the space maps.
    pub(crate) fn mapped_in(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        parts(&self.mapped, range)
    }

    /// Marks those parts of a range to be adopted that are mapped and not doubtful.
    pub(crate) fn adopt_again(&mut self, range: Range<u64>) {
        for part in parts(&self.mapped, &range) {
            self.adopting.extend(self.doubtful.gaps(&part));
        }
    }

    /// Returns the doubtful ranges, divided at these addresses.
    pub(crate) fn doubtful_parts(&self, bounds: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
        let bounds: BTreeSet<u64> = bounds.collect();
        let mut divided = Vec::new();
        for range in self.doubtful.iter() {
            let mut start = range.start;
            for end in bounds.range(range.start + 1..range.end).chain([&range.end]) {
                divided.push(start..*end);
                start = *end;
            }
        }
        divided
    }

    /// Returns the bytes that have yet to be adopted.
    pub(crate) fn adopting_bytes(&self) -> u64 {
        self.adopting.iter().map(|range| range.end - range.start).sum()
    }

    pub(crate) fn is_adopting(&self) -> bool {
        !self.adopting.is_empty()
    }

    /// Takes the next piece to adopt, which does not cross a multiple of `align`. All pieces get their turns.
    pub(crate) fn next_piece(&mut self, align: u64) -> Option<Range<u64>> {
        let next = self.adopting.overlapping(&(self.at..u64::MAX)).next();
        let range = next.or_else(|| self.adopting.iter().next())?;
        let start = if range.contains(&self.at) { self.at } else { range.start };
        let piece = start..range.end.min((start / align + 1) * align);
        self.adopting.remove(piece.clone());
        self.at = piece.end;
        Some(piece)
    }

    /// Unmarks a range: its pages are not to be adopted any more.
    pub(crate) fn leave(&mut self, range: Range<u64>) {
        self.adopting.remove(range.clone());
        self.doubtful.remove(range);
    }

    /// Removes a range that is no longer mapped.
    pub(crate) fn unmap(&mut self, range: Range<u64>) {
        self.leave(range.clone());
        self.mapped.remove(range);
    }

    /// Moves the records of a range to the addresses from `to` on, and drops the records that were there.
    pub(crate) fn relocate(&mut self, from: Range<u64>, to: u64) {
        for ranges in [&mut self.mapped, &mut self.adopting, &mut self.doubtful] {
            let moved = parts(ranges, &from);
            ranges.remove(from.clone());
            ranges.remove(to..to + (from.end - from.start));
            let moved =
                moved.into_iter().map(|part| part.start - from.start + to..part.end - from.start + to);
            ranges.extend(moved);
        }
    }
}

/// Returns the parts of `ranges` that lie in `within`.
fn parts(ranges: &RangeSet<u64>, within: &Range<u64>) -> Vec<Range<u64>> {
    let cut = |range: &Range<u64>| range.start.max(within.start)..range.end.min(within.end);
    ranges.overlapping(within).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(ranges: &RangeSet<u64>) -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn all_pieces_are_taken_in_turn_and_one_that_is_put_off_comes_last() {
        let mut layout = Ranges::default();
        layout.adopt(0..10);
        layout.adopt(20..22);
        assert_eq!(layout.adopting_bytes(), 12);
        let mut taken = Vec::new();
        while let Some(piece) = layout.next_piece(4) {
            taken.push((piece.start, piece.end));
            if taken.len() == 1 {
                layout.adopt(piece);
            }
        }
        assert_eq!(taken, [(0, 4), (4, 8), (8, 10), (20, 22), (0, 4)]);
    }

    #[test]
    fn what_is_in_doubt_is_divided_at_the_bounds_of_mappings() {
        let mut layout = Ranges::default();
        layout.doubtful.extend([0..10, 20..30]);
        let divided = |bounds: &[u64]| layout.doubtful_parts(bounds.iter().copied());
        assert_eq!(divided(&[]), [0..10, 20..30]);
        assert_eq!(divided(&[0, 10, 15, 20, 30, 40]), [0..10, 20..30]);
        assert_eq!(divided(&[28, 4, 4, 25]), [0..4, 4..10, 20..25, 25..28, 28..30]);
    }

    #[test]
    fn what_was_dropped_is_not_confirmed() {
        let mut layout = Ranges::default();
        layout.doubtful.insert(0..10);
        layout.leave(2..4);
        layout.confirm(1..9);
        assert_eq!(ranges(&layout.adopting), [(1, 2), (4, 9)]);
        assert_eq!(ranges(&layout.doubtful), [(0, 1), (9, 10)]);
    }

    #[test]
    fn what_is_adopted_again_is_mapped_and_not_in_doubt() {
        let mut layout = Ranges::default();
        layout.mapped.extend([0..10, 20..30]);
        layout.doubtful.insert(4..6);
        layout.adopt_again(2..25);
        assert_eq!(ranges(&layout.adopting), [(2, 4), (6, 10), (20, 25)]);
    }

    #[test]
    fn ranges_move_and_drop_what_was_there() {
        let mut layout = Ranges::default();
        layout.mapped.extend([0..10, 50..60]);
        layout.relocate(4..8, 52);
        assert_eq!(ranges(&layout.mapped), [(0, 4), (8, 10), (50, 60)]);
        layout.unmap(52..54);
        assert_eq!(ranges(&layout.mapped), [(0, 4), (8, 10), (50, 52), (54, 60)]);
    }
}
