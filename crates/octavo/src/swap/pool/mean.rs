//! A mean of measured times, in which newer times count more.

/// After this many events, older events count less and less.
pub(super) const MOST_EVENTS: f64 = 64.0;

/// A mean time, and the number of events that it rests on, up to [`MOST_EVENTS`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    pub(super) ns: f64,
    pub(super) events: f64,
}

impl Mean {
    pub(super) fn assumed(ns: f64) -> Self {
        Self { ns, events: 0.0 }
    }

    /// Adds the sum over a number of events. The first measurement replaces the assumed time, but counts as
    /// at most twice the assumed time: devices differ a thousandfold.
    pub(super) fn add(&mut self, (sum_ns, number): (f64, f64)) {
        if number > 0.0 {
            // No measurement more than doubles the time: a thread that waits may have been preempted.
            let ns = (sum_ns / number).min(2.0 * self.ns);
            self.ns += (ns - self.ns) * number / (number + self.events);
            self.events = (self.events + number).min(MOST_EVENTS);
        }
    }
}
