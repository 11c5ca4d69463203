//! How long a process waits for room before the tree is ended.
//!
//! ```text
//!   no room, or a failed device ─► tried again ─► no room for 20 s, and nothing happens ─► the tree ends
//!                                      ▲                       │
//!                                      └─ a fault ends, or pages go out: 20 s more
//! ```
//!
//! The patience is long because a device may be slow, and because in a tree with forks, pages become movable
//! only batch by batch, or when children end. Each try of a fault may bring a page in and send it out again,
//! so pages that go out count only if more of them are out than ever before in this time.

use std::time::{Duration, Instant};

use octavo::{Counter, Manager};

use crate::ledger::Ledger;

const PATIENCE: Duration = Duration::from_secs(20);

/// What a tree has achieved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Faults that have ended with their page.
    pub(crate) ended_faults: u64,
    /// Pages that have gone out, without those that have come in.
    pub(crate) out_pages: i64,
}

impl Progress {
    pub(crate) fn of(manager: &Manager, ledger: &Ledger) -> Self {
        let counters = manager.counters();
        let sum = |of: &[Counter]| of.iter().map(|counter| counters.get(*counter)).sum::<u64>() as i64;
        let out = sum(&[Counter::StealDirect, Counter::StealBackground]);
        let came = sum(&[Counter::SwapIn, Counter::PoolSwapIn, Counter::ZeroSwapIn]);
        Self { ended_faults: ledger.ended_faults(), out_pages: out - came }
    }
}

/// The patience of one process.
#[derive(Debug, Default)]
pub(crate) struct Patience(Option<Lack>);

/// A time during which faults or adoption find no room.
#[derive(Clone, Copy, Debug)]
struct Lack {
    /// When it began, or when the tree last made progress.
    since: Instant,
    last: Instant,
    /// The most progress until `last`.
    most: Progress,
}

impl Patience {
    /// Records that there is no room. Returns whether to try again.
    pub(crate) fn lasts(&mut self, now: Instant, progress: Progress) -> bool {
        let before = self.0.filter(|lack| {
            progress.ended_faults <= lack.most.ended_faults && progress.out_pages <= lack.most.out_pages
        });
        // A device may take long to fail, and time without failures must not use up the patience. So each
        // failure uses up at most a quarter of it.
        let since = |lack: Lack| lack.since + (now - lack.last).saturating_sub(PATIENCE / 4);
        let since = before.map_or(now, since);
        self.0 = Some(Lack { since, last: now, most: before.map_or(progress, |lack| lack.most) });
        now - since < PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns after how many tries the patience ends, one try each second.
    fn tries(progress: impl Fn(u64) -> Progress) -> Option<u64> {
        let (start, mut patience) = (Instant::now(), Patience::default());
        (0..100).find(|second| !patience.lasts(start + Duration::from_secs(*second), progress(*second)))
    }

    #[test]
    fn patience_ends_if_nothing_happens_in_the_tree() {
        assert_eq!(tries(|_| Progress::default()), Some(20));
        let ends_until_30 = |second: u64| Progress { ended_faults: second.min(30), out_pages: 0 };
        assert_eq!(tries(ends_until_30), Some(50));
        let goes_out = |second: u64| Progress { ended_faults: 0, out_pages: second as i64 };
        assert_eq!(tries(goes_out), None);
        let comes_and_goes = |second: u64| Progress { ended_faults: 0, out_pages: (second % 2) as i64 };
        assert_eq!(tries(comes_and_goes), Some(21));
    }

    #[test]
    fn time_without_a_failure_uses_up_a_part_of_the_patience_only() {
        let (start, mut patience) = (Instant::now(), Patience::default());
        let mut lasts = |seconds| patience.lasts(start + Duration::from_secs(seconds), Progress::default());
        assert!((0..4).all(|minute| lasts(minute * 60)));
        assert!(!lasts(240));
    }
}
