//! Ranges whose pages the program has dropped.
//!
//! The kernel tells of `MADV_DONTNEED` and of `MADV_FREE` by the same event, before the call has done anything. After the one, the
//! pages go at some moment until the call returns. After the other they stay, and the program may store to them unnoticed.
//!
//! ```text
//!   told ─► asked about: which threads may be in such a call? ─► none is left: what is there now stays, and may be adopted
//! ```
//!
//! Until then a page that is found there is none of Octavo's.

use rangemap::RangeSet;

/// The most ranges that are kept apart.
const MOST: usize = 1024;

/// The ranges of one program.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    told: Vec<(u64, u64)>,
    asked: Vec<(u64, u64)>,
}

impl Dropped {
    /// Notes that the pages of a range are about to go, or may stay.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        match self.told.iter_mut().find(|(from, to)| *from <= end && start <= *to) {
            Some((from, to)) => (*from, *to) = ((*from).min(start), (*to).max(end)),
            None => self.told.push((start, end)),
        }
        if self.told.len() > MOST {
            // More pages than were dropped count as dropped, which keeps them outside for a while, if something is found there.
            let from = self.told.iter().map(|(from, _)| *from).min().unwrap_or(0);
            let to = self.told.iter().map(|(_, to)| *to).max().unwrap_or(0);
            self.told = vec![(from, to)];
        }
    }

    /// Returns whether a page that is found where none should be may be one that is about to go.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.told.iter().chain(&self.asked).any(|(from, to)| *from <= page && page < *to)
    }

    /// Begins to ask about all that was told. Returns whether that is anything.
    pub(crate) fn ask(&mut self) -> bool {
        self.asked.append(&mut self.told);
        !self.asked.is_empty()
    }

    /// Takes the ranges that were asked about: all threads that may have been dropping their pages have done so. What was dropped once
    /// more since is left to the next question.
    pub(crate) fn take(&mut self) -> Vec<(u64, u64)> {
        let asked: RangeSet<u64> = self.asked.drain(..).map(|(start, end)| start..end).collect();
        let told: RangeSet<u64> = self.told.iter().map(|(start, end)| *start..*end).collect();
        asked.iter().flat_map(|range| told.gaps(range)).map(|rest| (rest.start, rest.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_while_the_rest_is_asked_about_may_still_go() {
        let mut dropped = Dropped::default();
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
    fn many_ranges_become_one() {
        let mut dropped = Dropped::default();
        (0..=MOST as u64).for_each(|index| dropped.add(index * 3, index * 3 + 1));
        assert!(dropped.has(1) && dropped.has(MOST as u64 * 3) && !dropped.has(MOST as u64 * 3 + 1));
    }
}
