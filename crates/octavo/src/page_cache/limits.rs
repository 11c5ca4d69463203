//! How many pages of files may be dirty, and how long a thread that dirties more has to wait.
//!
//! ```text
//!  speed that is left:   2 ────────┐
//!  (times the device's)            ╲
//!                        1 ─ ─ ─ ─ ─╲─ ─ ─ ─ ─ ─
//!                                    ╲___
//!                        0 ──┬──────┬────┬───╲──► dirty pages
//!                     background  free setpoint limit
//! ```
//!
//! Above *background*, the flusher writes. Up to *free run*, nobody waits. Between free run and the limit,
//! a thread that dirties pages gets a part of the device's speed, by a cubic curve: twice the speed at
//! first, once at the setpoint, none at the limit. So many threads slow down smoothly, and none stops
//! suddenly. The curve and the shares of memory are those of Linux (`mm/page-writeback.c`,
//! `pos_ratio_polynom`).
//!
//! The same holds for each file, by its share of the limit: a file on a slow device must not take all dirty
//! pages. A file gets the part of the limit that its device's speed is of all devices', and at least an
//! eighth.

use crate::sync::Duration;

/// The least share of the limit that a file gets.
const LEAST_SHARE: f64 = 0.125;
/// The longest pause at once.
const MOST_PAUSE: Duration = Duration::from_millis(200);
/// A device that has written nothing yet counts as one that writes so many pages a second: 100 MiB.
const UNKNOWN_SPEED: f64 = 25_600.0;

/// Counts of dirty pages at which something changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirtyLimits {
    /// Above it, the flusher writes.
    pub(crate) background: u64,
    /// Above it, threads that dirty pages wait.
    pub(crate) free_run: u64,
    setpoint: u64,
    limit: u64,
}

impl DirtyLimits {
    /// The limits for a budget of so many pages: a tenth for the flusher, and a fifth at most.
    pub(crate) fn of(budget_pages: u64) -> Self {
        let (background, limit) = (budget_pages / 10, budget_pages / 5);
        let free_run = (background + limit) / 2;
        Self { background, free_run, setpoint: (free_run + limit) / 2, limit }
    }

    /// The limits of a file that gets a part of them.
    fn part(self, share: f64) -> Self {
        let share = share.clamp(LEAST_SHARE, 1.0);
        let of = |pages: u64| (pages as f64 * share) as u64;
        Self {
            background: of(self.background),
            free_run: of(self.free_run),
            setpoint: of(self.setpoint),
            limit: of(self.limit),
        }
    }

    /// Returns the part of the device's speed that is left for those who dirty pages, from 2 to 0.
    fn speed_left(self, dirty_pages: u64) -> f64 {
        let half = (self.limit - self.setpoint).max(1) as f64;
        let below = (self.setpoint as f64 - dirty_pages as f64) / half;
        (1.0 + below.powi(3)).clamp(0.0, 2.0)
    }

    /// Returns how long a thread pauses that has dirtied so many pages. `dirty` has the dirty pages of all
    /// files and of its file. `speed` has the pages a second that all devices and the file's device write.
    pub(crate) fn pause(self, pages: u64, dirty: (u64, u64), speed: (f64, f64)) -> Duration {
        if dirty.0 <= self.free_run {
            return Duration::ZERO;
        }
        let known = |speed: f64| if speed > 0.0 { speed } else { UNKNOWN_SPEED };
        let (all, own) = (known(speed.0.max(speed.1)), known(speed.1));
        let left = self.speed_left(dirty.0) * self.part(own / all).speed_left(dirty.1).min(1.0);
        // At the limit, the longest pause.
        let seconds = pages as f64 / (own * left).max(1e-6);
        MOST_PAUSE.min(Duration::from_secs_f64(seconds.min(1.0)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LIMITS: fn() -> DirtyLimits = || DirtyLimits::of(100_000);

    #[test]
    fn the_curve_goes_through_its_three_points() {
        let limits = LIMITS();
        assert_eq!((limits.background, limits.free_run, limits.limit), (10_000, 15_000, 20_000));
        assert_eq!(limits.speed_left(limits.free_run), 2.0);
        assert_eq!(limits.speed_left(limits.setpoint), 1.0);
        assert_eq!(limits.speed_left(limits.limit), 0.0);
        assert_eq!(limits.speed_left(50_000), 0.0);
    }

    #[test]
    fn pauses_grow_with_what_is_dirty_and_nobody_waits_below_free_run() {
        let limits = LIMITS();
        let pause = |dirty| limits.pause(32, (dirty, dirty), (10_000.0, 10_000.0));
        assert_eq!(pause(15_000), Duration::ZERO);
        let pauses: Vec<_> = (15_001..20_000).step_by(100).map(pause).collect();
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
        assert!(pauses[0] >= Duration::from_micros(1600), "32 pages at twice the speed: {:?}", pauses[0]);
        assert_eq!(pause(20_000), MOST_PAUSE);
    }

    #[test]
    fn a_slow_file_waits_before_it_has_all_dirty_pages() {
        let limits = LIMITS();
        // The slow device has a tenth of all speed, so an eighth of the limit.
        let slow = limits.pause(1, (16_000, 2_600), (11_000.0, 1_000.0));
        let fast = limits.pause(1, (16_000, 13_400), (11_000.0, 10_000.0));
        assert!(slow > 100 * fast, "{slow:?} {fast:?}");
    }
}
