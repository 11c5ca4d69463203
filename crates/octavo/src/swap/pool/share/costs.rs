//! The times of returns over all spaces. The pool's share is judged by these times.
//!
//! A weigher has times too. But these are the times of its own spaces, and its waits include faults on pages
//! that were read ahead. Such faults hardly wait, and do not count as returns. So the share has its own
//! times.
//!
//! Cost: two relaxed atomic additions for each event that is timed.

use crate::swap::pool::mean::Mean;
use crate::swap::pool::weigh::{ASSUMED_TRY_NS, ASSUMED_UNPACK_NS, ASSUMED_WAIT_NS};
use crate::sync::{AtomicU64, Ordering};

/// The times that a return takes, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ReturnCosts {
    /// The time of a fault, without the time to fetch its page.
    pub(super) fault_ns: f64,
    /// The time to pack the page that is evicted for the page that returns.
    pub(super) try_ns: f64,
    pub(super) unpack_ns: f64,
    /// The wait for a page from a device.
    pub(super) wait_ns: f64,
}

impl ReturnCosts {
    /// The time of a return from the pool, and the time of a return from a device.
    pub(super) fn whole(self) -> (f64, f64) {
        let common = self.fault_ns + self.try_ns;
        (common + self.unpack_ns, common + self.wait_ns)
    }
}

/// Events of one kind since the last turn. With a large budget, a turn has more events than the weigher's
/// words can count.
#[derive(Debug, Default)]
pub(crate) struct Timed {
    sum_ns: AtomicU64,
    number: AtomicU64,
}

impl Timed {
    pub(crate) fn note(&self, ns: u64) {
        // Relaxed: both are only figures. If a turn ends between the two additions, it misses half of one
        // event among many.
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many events were noted.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    fn take(&self) -> (f64, f64) {
        let [sum_ns, number] =
            [&self.sum_ns, &self.number].map(|word| word.swap(0, Ordering::Relaxed) as f64);
        (sum_ns, number)
    }
}

/// Events that are timed, by any thread.
#[derive(Debug, Default)]
pub(crate) struct Times {
    /// Pages that tried the pool, and pages that were unpacked for a fault.
    pub(crate) tries: Timed,
    pub(crate) unpacks: Timed,
    /// Faults that read their page from a device, and waited.
    pub(crate) waits: Timed,
}

/// The times known so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Means {
    tries: Mean,
    unpacks: Mean,
    waits: Mean,
}

impl Default for Means {
    fn default() -> Self {
        Self {
            tries: Mean::assumed(ASSUMED_TRY_NS),
            unpacks: Mean::assumed(ASSUMED_UNPACK_NS),
            waits: Mean::assumed(ASSUMED_WAIT_NS),
        }
    }
}

impl Means {
    /// Adds what was timed since the last turn.
    pub(super) fn add(&mut self, times: &Times) {
        self.tries.add(times.tries.take());
        self.unpacks.add(times.unpacks.take());
        self.waits.add(times.waits.take());
    }

    /// Returns the costs, if a fault takes `fault_ns` without the time to fetch its page.
    pub(super) fn costs(&self, fault_ns: f64) -> ReturnCosts {
        ReturnCosts { fault_ns, try_ns: self.tries.ns, unpack_ns: self.unpacks.ns, wait_ns: self.waits.ns }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_time_follows_what_is_measured_but_no_turn_more_than_doubles_it() {
        let (times, mut means) = (Times::default(), Means::default());
        means.add(&times);
        assert_eq!(means.costs(1.0).wait_ns, ASSUMED_WAIT_NS, "nothing was measured");
        let mut turn = |ns: u64, number: u32| {
            (0..number).for_each(|_| times.waits.note(ns));
            means.add(&times);
            means.costs(1.0).wait_ns
        };
        assert_eq!(turn(60_000, 1), 60_000.0, "the first takes the place of the assumption");
        assert_eq!(turn(1_000_000_000, 1), 90_000.0, "half of twice as much");
        turn(30_000, 10_000);
        assert!((30_000.0..31_000.0).contains(&turn(30_000, 100)), "many new ones");
        assert!(turn(60_000, 1) < 31_000.0, "one new one");
    }
}
