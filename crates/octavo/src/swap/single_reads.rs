//! Whether single pages are asked for while pages go out: one word, and one rule for both.
//!
//! A read waits behind the writes that its device has in hand. So while single pages are asked for, writes
//! are short, and a reclaimer begins no other while more pages than one such write has are under way, for
//! each area. Measured on a virtual disk that writes 1.2 GB/s: with 8,192 pages under way, one read in a
//! hundred takes 40 ms, and with 32 less than one, at two thirds of the speed. Linux throttles writeback by
//! the same thought (`blk-wbt`), and finds its depth by the time that reads take. Here the reads are known
//! before they wait.
//!
//! The word is the number of runs of pages that go out gently from now on. A read of a single page adds to
//! it, and a run takes one off. So writes go at full speed where somebody reads now and then, as a program
//! does that reads in order and begins anew somewhere else.
//!
//! Orderings: Relaxed. It is a hint, and an addition that is lost between two threads is another read's.
//! Cost: a load and a store of one line where a transfer begins, which takes a thousand times as long.

use crate::sizes::FEW_PAGES;
use crate::sync::{AtomicU32, Ordering};

/// A read has so many runs go out gently.
const RUNS_OF_A_READ: u32 = 4;
/// At most so many runs go out gently when nobody reads any more.
const MOST_RUNS: u32 = 64;

/// Runs of pages that are to go out gently.
#[derive(Debug, Default)]
pub(super) struct SingleReads {
    gentle_runs: AtomicU32,
}

impl SingleReads {
    /// Notes a read of so many pages.
    pub(super) fn note(&self, pages: u32) {
        if pages <= FEW_PAGES {
            let runs = self.gentle_runs.load(Ordering::Relaxed);
            if runs < MOST_RUNS {
                self.gentle_runs.store((runs + RUNS_OF_A_READ).min(MOST_RUNS), Ordering::Relaxed);
            }
        }
    }

    /// Returns whether pages should go out gently.
    pub(super) fn want_short_writes(&self) -> bool {
        self.gentle_runs.load(Ordering::Relaxed) > 0
    }

    /// The same for a run that goes out now, and is counted.
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
