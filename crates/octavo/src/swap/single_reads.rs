//! One word that keeps writes short while single pages are being read.
//!
//! A read waits behind the writes that its device has in flight. So while single pages are read, writes are
//! short, and a reclaimer begins no further write while more pages than one short write per area are under
//! way. Measured on a virtual disk that writes 1.2 GB/s: with 8,192 pages under way, one read in a hundred
//! takes 40 ms. With 32 pages under way, it takes less than 1 ms, and writes have two thirds of the speed.
//! Linux throttles writeback for the same reason (`blk-wbt`), and sets its depth by the latency of reads.
//! Octavo knows of each read before the read waits.
//!
//! The word is the number of runs of pages that still go out in short writes. A read of a single page adds to
//! the number, and a run subtracts one. So writes keep full speed if single reads are rare, as in a program
//! that reads in order and now and then starts at another place.
//!
//! Orderings: Relaxed. The word is a hint: if two threads lose an addition, the next read adds again. Cost: a
//! load and a store of one cache line at the beginning of a transfer. The transfer itself takes a thousand
//! times as long.

use crate::sizes::FEW_PAGES;
use crate::sync::{AtomicU32, Ordering};

/// The number of runs that go out in short writes for each read.
const RUNS_OF_A_READ: u32 = 4;
/// The most runs that go out in short writes after the last read.
const MOST_RUNS: u32 = 64;

/// The number of runs of pages that still go out in short writes.
#[derive(Debug, Default)]
pub(super) struct SingleReads {
    gentle_runs: AtomicU32,
}

impl SingleReads {
    /// Notes a read of `pages` pages.
    pub(super) fn note(&self, pages: u32) {
        if pages <= FEW_PAGES {
            let runs = self.gentle_runs.load(Ordering::Relaxed);
            if runs < MOST_RUNS {
                self.gentle_runs.store((runs + RUNS_OF_A_READ).min(MOST_RUNS), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether pages should go out in short writes.
    pub(super) fn want_short_writes(&self) -> bool {
        self.gentle_runs.load(Ordering::Relaxed) > 0
    }

    /// Returns whether a run that goes out now should be a short write, and counts the run.
    pub(super) fn take_short_write(&self) -> bool {
        let runs = self.gentle_runs.load(Ordering::Relaxed);
        if runs > 0 {
            self.gentle_runs.store(runs - 1, Ordering::Relaxed);
        }
        runs > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn runs_are_gentle_while_single_pages_are_read_and_not_for_long_after() {
        let reads = SingleReads::default();
        let gentle_runs = || (0..).take_while(|_| reads.take_short_write()).count() as u32;
        reads.note(FEW_PAGES + 1);
        assert!(!reads.want_short_writes(), "a long read is by somebody who reads in order");
        reads.note(1);
        assert!(reads.want_short_writes());
        assert_eq!(gentle_runs(), RUNS_OF_A_READ);
        (0..1000).for_each(|_| reads.note(FEW_PAGES));
        assert_eq!(gentle_runs(), MOST_RUNS);
        assert!(!reads.want_short_writes());
    }
}
