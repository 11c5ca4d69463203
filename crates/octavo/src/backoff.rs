//! Backing off: a request that has just failed is not tried again at once. After each failure in a row, twice
//! as many requests are turned away.

use crate::sync::{AtomicU32, Ordering};

/// The recent failures of one kind of request.
#[derive(Debug)]
pub(crate) struct Backoff {
    /// After this many failures in a row, the number of refused requests does not grow any more.
    most_failures: u32,
    /// The number of requests that are still to be turned away.
    turn_away: AtomicU32,
    failures: AtomicU32,
}

impl Backoff {
    /// After `most_failures` or more failures in a row, 2^`most_failures` - 1 requests are turned away.
    pub(crate) fn new(most_failures: u32) -> Self {
        Self { most_failures, turn_away: AtomicU32::new(0), failures: AtomicU32::new(0) }
    }

    /// Returns whether to turn this request away, and counts it if so.
    pub(crate) fn turns_away(&self) -> bool {
        // Relaxed here and below: the words are a hint, and a few requests more or less do not matter.
        self.turn_away.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Notes the outcome of a request that did try.
    pub(crate) fn ended(&self, success: bool) {
        let failures =
            if success { 0 } else { (self.failures.load(Ordering::Relaxed) + 1).min(self.most_failures) };
        self.failures.store(failures, Ordering::Relaxed);
        self.turn_away.store((1 << failures) - 1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn turns_away_twice_as_many_after_each_failure_and_none_after_a_success() {
        let backoff = Backoff::new(3);
        for expected in [0, 1, 3, 7, 7] {
            assert_eq!((0..).take_while(|_| backoff.turns_away()).count(), expected);
            backoff.ended(false);
        }
        backoff.ended(true);
        assert!(!backoff.turns_away());
    }
}
