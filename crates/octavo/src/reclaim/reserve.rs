//! How much memory is kept free ahead of accesses: just enough that an access finds some.
//!
//! Free memory holds no page. If a program's working set just exceeds the budget, each page counts. An access
//! *stalls* if it has to wait for room. After some time with hardly any stalls, the watermarks are lowered by
//! a step. As soon as accesses stall, the watermarks are raised by a step. Linux also raises its watermarks
//! for a while (`watermark_boost_factor`), for another reason.

use crate::counters::Counter;
use crate::engine::Engine;
use crate::frame::MOST_LOWERED;
use crate::sync::{Duration, Instant};

/// The time over which stalls are added up.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Stalls take much of the time if they take more than one part in `MUCH`, and little if less than one in
/// `LITTLE`.
const MUCH: u32 = 32;
const LITTLE: u32 = 256;
/// Looks in a row that find few stalls, before the watermarks are lowered.
const QUIET_LOOKS: u32 = 5;

/// The stalls up to a moment.
#[derive(Debug)]
pub(super) struct Reserve {
    at: Instant,
    stalls_ns: u64,
    quiet: u32,
    /// Steps by which the watermarks are lowered.
    steps: u32,
}

impl Reserve {
    pub(super) fn new(engine: &Engine) -> Self {
        let stalls_ns = engine.counters.get(Counter::StallNanoseconds);
        Self { at: engine.machine.clock.now(), stalls_ns, quiet: 0, steps: 0 }
    }

    /// Follows the stalls since the last look. The background thread calls it when there is work.
    pub(super) fn follow_stalls(&mut self, engine: &Engine) {
        let now = engine.machine.clock.now();
        if now.saturating_duration_since(self.at) >= LOOK_EVERY {
            let before = self.steps;
            self.look(now, engine.counters.get(Counter::StallNanoseconds));
            if self.steps != before {
                engine.frames.lower_watermarks(self.steps);
            }
        }
    }

    fn look(&mut self, now: Instant, stalls_ns: u64) {
        let passed = now.saturating_duration_since(self.at);
        // Threads may have stalled at the same time, and each counts.
        let stalled = Duration::from_nanos(stalls_ns.saturating_sub(self.stalls_ns));
        (self.at, self.stalls_ns) = (now, stalls_ns);
        if stalled > passed / MUCH {
            self.steps = self.steps.saturating_sub(1);
        }
        self.quiet = if stalled < passed / LITTLE { self.quiet + 1 } else { 0 };
        if self.quiet >= QUIET_LOOKS {
            self.steps = (self.steps + 1).min(MOST_LOWERED);
            self.quiet = 0;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Clock;

    #[test]
    fn marks_fall_while_nobody_stalls_and_rise_when_somebody_does() {
        let mut at = Clock::default().now();
        let mut reserve = Reserve { at, stalls_ns: 0, quiet: 0, steps: 0 };
        let mut stalls_ns = 0;
        let mut look = |share: f64| {
            at += LOOK_EVERY;
            stalls_ns += (LOOK_EVERY.as_nanos() as f64 * share) as u64;
            reserve.look(at, stalls_ns);
            reserve.steps
        };
        let steps: Vec<_> = (0..5 * QUIET_LOOKS).map(|_| look(0.0)).collect();
        assert_eq!(steps[QUIET_LOOKS as usize - 2..][..2], [0, 1]);
        assert_eq!(steps.last(), Some(&MOST_LOWERED), "{steps:?}");
        assert_eq!([0.02, 0.1, 0.02, 2.0, 0.1, 0.1].map(&mut look), [3, 2, 2, 1, 0, 0]);
        let quiet = (1..QUIET_LOOKS).map(|_| look(0.0)).max();
        assert_eq!((quiet, look(0.02), look(0.0)), (Some(0), 0, 0), "the looks are counted anew");
    }
}
