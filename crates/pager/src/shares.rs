//! What processes have together of pages that several of them show.
//!
//! The kernel counts such a page in each process. It tells proportional shares (PSS) too, which add up to what there is, but to ask
//! for them takes some 14 ms a GiB. So they are asked for now and then. In between, what the kernel counts more is added, and what it
//! counts less is taken off.

use std::time::{Duration, Instant};

/// Shares are asked for so often at most, and for at most one part in so many of the time.
const ASK_EVERY: Duration = Duration::from_millis(30);
const ASK_SHARE: u32 = 10;

/// The shares of some processes, when they were last asked for.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// Their sum, and the sum of what the kernel counted for each.
    shares: u64,
    counted: u64,
    asked_at: Option<Instant>,
    took: Duration,
}

impl Shares {
    /// Returns whether it is time to ask.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.asked_at.is_none_or(|at| now - at >= ASK_EVERY.max(self.took * ASK_SHARE))
    }

    /// Asks for the shares of processes for which the kernel counts `counted`.
    pub(crate) fn ask(&mut self, now: Instant, counted: u64, shares: impl FnOnce() -> u64) {
        (self.shares, self.counted, self.asked_at) = (shares(), counted, Some(now));
        self.took = now.elapsed();
    }

    /// Estimates what the processes have together. The kernel counts `now`, and `largest` for one of them. They have met faults that
    /// may have got them `faulted` bytes since they were asked.
    ///
    /// Pages that come are one process's own, and so are those that Octavo takes out. Other pages that go may be left to another
    /// process, as at a process's end. But together they have at least what one has.
    pub(crate) fn estimate(&self, now: u64, largest: u64, faulted: u64) -> u64 {
        // A page that comes is a fault too.
        let unseen = faulted.saturating_sub(now.saturating_sub(self.counted));
        (self.shares + now + unseen).saturating_sub(self.counted).clamp(largest, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two processes share 80 pages, and each has 20.
    fn asked() -> (Shares, u64) {
        let (mut shares, counted) = (Shares::default(), 200);
        assert!(shares.is_due(Instant::now()));
        shares.ask(Instant::now(), counted, || 120);
        (shares, counted)
    }

    #[test]
    fn pages_that_come_and_go_count_whole_and_one_process_counts_at_least() {
        let (shares, then) = asked();
        assert_eq!(shares.estimate(then, 100, 0), 120);
        assert_eq!(shares.estimate(then + 30, 130, 30), 150, "one of them grows");
        assert_eq!(shares.estimate(then - 10, 100, 0), 110, "pages of its own go out");
        assert_eq!(shares.estimate(100, 100, 0), 100, "one of them ends");
        assert_eq!(shares.estimate(0, 0, 0), 0);
    }

    #[test]
    fn stores_to_shared_pages_show_as_faults_and_get_no_more_than_a_copy_for_each() {
        let (shares, then) = asked();
        assert_eq!(shares.estimate(then, 100, 25), 145);
        assert_eq!(shares.estimate(then + 30, 130, 55), 175, "some faults got new pages");
        assert_eq!(shares.estimate(then, 100, 500), 200);
    }
}
