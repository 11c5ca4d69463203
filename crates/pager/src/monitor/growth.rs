//! How fast a tree grows, and how many bytes it may get before the monitor reacts.

use std::time::{Duration, Instant};

use super::SHORTEST;

/// The fastest expected growth of a tree, in bytes per second.
const GROWTH: u64 = 4 << 30;
/// The longest time from a look until a growing tree stands still, unless recent looks came later. Then their
/// delay counts, up to [`LONGEST_REACTION`].
const REACTION: Duration = Duration::from_millis(16);
const LONGEST_REACTION: Duration = Duration::from_millis(500);
/// Starting movers on a busy machine takes at most this many reaction times.
pub(super) const MOVER_REACTIONS: u64 = 16;

/// Returns how long a tree takes to fill `bytes` at the fastest expected growth.
pub(super) fn time_to_fill(bytes: u64) -> Duration {
    Duration::from_nanos(bytes.saturating_mul(1_000_000_000 / (GROWTH >> 20)) >> 20)
}

/// How fast the tree grows.
#[derive(Debug)]
pub(super) struct Growth {
    at: Instant,
    pub(super) total: u64,
    /// The longest recent time between two looks, but at least [`REACTION`].
    reaction: Duration,
    /// The bytes that the tree gets within that time, at its fastest recent growth.
    pub(super) in_reaction: u64,
}

impl Growth {
    pub(super) fn new(now: Instant) -> Self {
        Self { at: now, total: 0, reaction: REACTION, in_reaction: 0 }
    }

    /// Records a measurement, and returns the bytes that the tree may get before it stands still.
    pub(super) fn take_in(&mut self, now: Instant, total: u64) -> u64 {
        let passed = (now - self.at).max(SHORTEST / 4);
        let grown = total.saturating_sub(self.total);
        self.reaction = passed.clamp(REACTION.max(self.reaction / 8 * 7), LONGEST_REACTION);
        let at_this_rate = u128::from(grown) * self.reaction.as_nanos() / passed.as_nanos();
        // Estimates of shared memory are corrected in steps, which are not growth.
        let most = u128::from(GROWTH) * self.reaction.as_nanos() / Duration::from_secs(1).as_nanos();
        // A program that pauses for a moment may continue as fast as before.
        self.in_reaction = (at_this_rate.min(most) as u64).max(self.in_reaction / 8 * 7);
        (self.at, self.total) = (now, total);
        self.in_reaction
    }

    /// Returns the bytes that the tree may get while movers start.
    pub(super) fn while_movers_start(&self) -> u64 {
        MOVER_REACTIONS * self.in_reaction
    }

    /// Records that the monitor was at work, and the tree has `total` bytes now. The time of that work does
    /// not count as a late look.
    pub(super) fn go_on(&mut self, now: Instant, total: u64) {
        (self.at, self.total) = (now, total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tree_may_still_get_follows_from_its_growth_and_from_how_late_the_monitor_comes() {
        let start = Instant::now();
        let mut growth = Growth::new(start);
        assert_eq!(growth.take_in(start + 8 * SHORTEST, 8 << 20), 16 << 20, "within 16 ms");
        let late = growth.take_in(start + 8 * SHORTEST + Duration::from_millis(100), 108 << 20);
        assert_eq!(late, 100 << 20, "within the 100 ms that passed");
        let next = growth.take_in(start + 9 * SHORTEST + Duration::from_millis(100), 109 << 20);
        assert!(next > 80 << 20 && next < 100 << 20, "it is remembered for a while");
        let later = start + Duration::from_secs(9);
        growth.go_on(later, 109 << 20);
        assert!(growth.take_in(later + SHORTEST, 109 << 20) < next, "work of its own does not count");
    }
}
