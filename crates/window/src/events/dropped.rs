//! Ranges whose pages the program has dropped.
//!
//! The kernel reports `MADV_DONTNEED` and `MADV_FREE` by the same event, before the call has done anything.
//! With the first, the pages go at some moment before the call returns. With the second they stay, and the
//! program may store to them unnoticed.
//!
//! ```text
//!   told ─► asked about: which threads may be in such a call?
//!             └─► none is left: present pages stay, and may be adopted
//! ```
//!
//! As long as a thread may be in such a call, a page that is found there is not Octavo's.

use std::ops::Range;

use rangemap::RangeSet;

/// The most separate ranges that are kept.
const MOST: usize = 1024;

/// The ranges of one program.
#[derive(Debug, Default)]
pub(crate) struct DroppedRanges {
    told: RangeSet<u64>,
    asked: RangeSet<u64>,
}

impl DroppedRanges {
    /// Notes that the pages of a range are about to go, or may stay.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        self.told.insert(start..end);
        join_nearest(&mut self.told);
    }

    /// Notes that a range has moved to `to`, with the pages that have stayed. The old range stays noted too,
    /// since other pages may have been dropped there in the meantime.
    pub(crate) fn relocate(&mut self, from: Range<u64>, to: u64) {
        for ranges in [&mut self.told, &mut self.asked] {
            let cut = |range: &Range<u64>| range.start.max(from.start)..range.end.min(from.end);
            let moved: Vec<_> = ranges.overlapping(&from).map(cut).collect();
            let there = |part: Range<u64>| part.start - from.start + to..part.end - from.start + to;
            ranges.extend(moved.into_iter().map(there));
            join_nearest(ranges);
        }
    }

    /// Returns whether a page that is unexpectedly present may be a dropped one that is about to go.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.told.contains(&page) || self.asked.contains(&page)
    }

    /// Begins to ask about all ranges so far. Returns whether there are any.
    pub(crate) fn ask(&mut self) -> bool {
        self.asked.extend(std::mem::take(&mut self.told));
        join_nearest(&mut self.asked);
        !self.asked.is_empty()
    }

    /// Takes the ranges that were asked about. The caller knows that no thread is dropping pages there any
    /// more. Ranges that were dropped again since are left to the next question.
    pub(crate) fn take(&mut self) -> Vec<(u64, u64)> {
        let asked = std::mem::take(&mut self.asked);
        asked.iter().flat_map(|range| self.told.gaps(range)).map(|rest| (rest.start, rest.end)).collect()
    }
}

/// If there are too many ranges, joins the nearest ones, until three quarters of the maximum are left. The
/// gaps then count as dropped, so pages that are found there stay outside for a while.
fn join_nearest(ranges: &mut RangeSet<u64>) {
    if ranges.len() <= MOST {
        return;
    }
    let neighbours = ranges.iter().zip(ranges.iter().skip(1));
    let mut between: Vec<_> = neighbours.map(|(one, next)| one.end..next.start).collect();
    between.sort_unstable_by_key(|gap| gap.end - gap.start);
    let surplus = ranges.len() - MOST / 4 * 3;
    ranges.extend(between.into_iter().take(surplus));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_while_the_rest_is_asked_about_may_still_go() {
        let mut dropped = DroppedRanges::default();
        assert!(!dropped.ask());
        dropped.add(10, 20);
        dropped.add(20, 30);
        assert!(dropped.ask());
        assert!(dropped.has(10) && dropped.has(29) && !dropped.has(30));
        dropped.add(15, 25);
        assert_eq!(dropped.take(), [(10, 15), (25, 30)]);
        assert!(dropped.has(15) && !dropped.has(10) && !dropped.has(25));
        assert!(dropped.ask());
        assert_eq!(dropped.take(), [(15, 25)]);
        assert!(!dropped.has(15));
    }

    #[test]
    fn of_many_ranges_the_nearest_are_joined() {
        let mut dropped = DroppedRanges::default();
        const PAIRS: u64 = MOST as u64 * 5 / 8;
        let range = |index: u64| (index * 100, index * 100 + 10);
        // Pairs lie close together.
        for (start, _) in (0..PAIRS).map(range) {
            dropped.add(start, start + 10);
            dropped.add(start + 12, start + 20);
        }
        assert!(dropped.told.len() <= MOST);
        for (start, end) in (0..PAIRS).map(range) {
            assert!(dropped.has(start) && dropped.has(end - 1) && dropped.has(start + 12));
            assert!(
                !dropped.has(start + 20) && !dropped.has(start + 99),
                "what lies far between stays apart"
            );
        }
    }

    #[test]
    fn ranges_that_come_many_at_once_are_joined_until_few_are_left() {
        let mut dropped = DroppedRanges::default();
        for question in 0..3 {
            for start in (0..MOST as u64).map(|index| index * 100 + question * 30) {
                dropped.add(start, start + 10);
            }
            dropped.ask();
            assert!(dropped.asked.len() <= MOST, "{}", dropped.asked.len());
        }
    }

    #[test]
    fn what_stays_and_moves_is_asked_about_where_it_is_then() {
        let mut dropped = DroppedRanges::default();
        dropped.add(10, 20);
        assert!(dropped.ask());
        dropped.add(30, 40);
        dropped.relocate(15..35, 115);
        assert!(dropped.has(115) && dropped.has(134) && !dropped.has(120) && dropped.has(15));
        assert_eq!(dropped.take(), [(10, 20), (115, 120)]);
        assert!(dropped.ask());
        assert_eq!(dropped.take(), [(30, 40), (130, 135)]);
    }
}
