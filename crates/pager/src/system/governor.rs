//! The time for which the monitor may run ahead of all other threads.
//!
//! A real-time thread takes its CPU from all other threads, even the kernel's: disk completions that need a
//! worker there have to wait. So the monitor has an allowance of CPU time, measured by its own thread's
//! clock. While the allowance lasts, the monitor runs ahead of all other threads, and each look comes in
//! time. After that, it runs without real-time priority until it has saved enough again.
//!
//! ```text
//!   at once ≤ 1.5 ms,  + 3 % of the time
//!     ⇒  within any 100 ms ≤ 4.5 ms, plus the excess of one piece of work over its estimate
//! ```

use std::time::{Duration, Instant};

/// The most time that can be saved.
const MOST: Duration = Duration::from_micros(1500);
/// The allowance grows by 1/[`SHARE`] of the elapsed time.
const SHARE: u32 = 33;
/// After the allowance was used up, it is used again only when it has grown to this. Otherwise, the changes
/// of priority would take too much time.
const ENOUGH: Duration = Duration::from_micros(500);

/// Returns the allowance that is earned within `time`.
pub(crate) fn earned(time: Duration) -> Duration {
    time / SHARE
}

fn ns(time: Duration) -> i64 {
    time.as_nanos().try_into().unwrap_or(i64::MAX)
}

/// The monitor's allowance.
#[derive(Debug)]
pub(crate) struct Governor {
    left_ns: i64,
    at: Instant,
    /// The CPU time that the thread had used by then.
    used: Duration,
    is_foremost: bool,
}

impl Governor {
    /// Begins with a full allowance. The thread has used `used` of CPU time so far.
    pub(crate) fn new(now: Instant, used: Duration) -> Self {
        Self { left_ns: ns(MOST), at: now, used, is_foremost: false }
    }

    /// Returns whether the thread may run ahead of all others for `next` more of CPU time. It has used `used`
    /// so far. Time that it used without real-time priority is free.
    pub(crate) fn allows(&mut self, now: Instant, used: Duration, next: Duration) -> bool {
        if self.is_foremost {
            self.charge(used.saturating_sub(self.used));
        }
        self.left_ns = (self.left_ns + ns(earned(now - self.at))).min(ns(MOST));
        (self.at, self.used) = (now, used);
        let least = if self.is_foremost { next } else { next.max(ENOUGH) };
        self.is_foremost = self.left_ns >= ns(least);
        self.is_foremost
    }

    /// Charges CPU time that another thread has used for the monitor.
    pub(crate) fn charge(&mut self, used: Duration) {
        // Work that took longer than planned leaves a debt.
        self.left_ns = self.left_ns.saturating_sub(ns(used));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(1);

    /// Makes looks that take `takes` of CPU time each. Returns the end of each, and the time used ahead of
    /// all others by then.
    fn looks(takes: impl Fn(u32) -> Duration) -> Vec<(Duration, Duration)> {
        let began = Instant::now();
        let (mut governor, mut now, mut used) = (Governor::new(began, Duration::ZERO), began, Duration::ZERO);
        let mut foremost = Duration::ZERO;
        let looks = (0..2000).map(|index| {
            let takes = takes(index);
            let is_foremost = governor.allows(now, used, takes);
            used += takes;
            now += takes;
            if is_foremost {
                foremost += takes;
            }
            governor.allows(now, used, Duration::ZERO);
            now += LOOK;
            (now - began, foremost)
        });
        looks.collect()
    }

    fn most_within(looks: &[(Duration, Duration)], within: Duration) -> Duration {
        let spans = looks.iter().enumerate().map(|(index, (from, before))| {
            let later = looks[index..].iter().take_while(|(at, _)| *at <= *from + within);
            later.last().map_or(Duration::ZERO, |(_, after)| *after - *before)
        });
        spans.max().unwrap()
    }

    #[test]
    fn whatever_looks_take_the_monitor_has_less_than_a_twentieth_of_any_tenth_of_a_second() {
        let within = Duration::from_millis(100);
        let micros = Duration::from_micros;
        let kinds: [fn(u32) -> u64; 5] = [
            |_| 50,
            |_| 900,
            |_| 20_000,
            |index| u64::from(index * 7919 % 3000),
            |index| if index % 50 == 0 { 1400 } else { 10 },
        ];
        for (kind, takes) in kinds.into_iter().enumerate() {
            let looks = looks(|index| micros(takes(index)));
            let most = most_within(&looks, within);
            assert!(most <= within / 20, "kind {kind}: {most:?}");
        }
    }

    #[test]
    fn cheap_looks_always_come_first_and_dear_ones_now_and_then() {
        let cheap = looks(|_| Duration::from_micros(25));
        assert_eq!(cheap.last().unwrap().1, Duration::from_micros(25) * 2000);
        let dear = looks(|_| Duration::from_micros(200));
        let (took, foremost) = *dear.last().unwrap();
        assert!(foremost >= took / 50, "{foremost:?} of {took:?}");
        let too_dear = looks(|_| Duration::from_millis(10));
        assert_eq!(too_dear.last().unwrap().1, Duration::ZERO);
    }

    #[test]
    fn what_is_used_as_others_do_costs_nothing() {
        let began = Instant::now();
        let mut governor = Governor::new(began, Duration::ZERO);
        let second = Duration::from_secs(1);
        assert!(governor.allows(began, Duration::ZERO, Duration::ZERO));
        assert!(!governor.allows(began, MOST + LOOK, LOOK), "all is used up");
        // The monitor works for a whole second without a pause.
        assert!(governor.allows(began + second, second, LOOK));
        governor.charge(MOST);
        assert!(!governor.allows(began + second, second, LOOK), "another thread has had it");
    }
}
