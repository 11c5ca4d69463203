//! The signals from a manager to its background thread: work, rest, end.
//!
//! A thread that has to know whether a frame is held asks the background thread to rest, since a resting
//! thread holds no frame.
//!
//! Locking: one lock, a leaf, held for a few stores.

use crate::sync::{Clock, Condvar, Duration, Instant, Mutex};

/// How long the thread sleeps if nobody wakes it.
const TICK: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
pub(super) struct Signal {
    state: Mutex<Requests>,
    /// Wakes the background thread.
    told: Condvar,
    /// Wakes the threads that wait for it to rest.
    rested: Condvar,
}

#[derive(Debug, Default)]
struct Requests {
    wanted: bool,
    stop: bool,
    /// How many threads need the background thread to rest.
    resters: u32,
    is_resting: bool,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Another thread woke this one.
    Work,
    /// A tick has passed.
    Tick,
    End,
}

impl Signal {
    /// Says that there is work.
    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.told.notify_one();
        }
    }

    /// Tells the thread to end.
    pub(super) fn stop(&self) {
        self.state.lock().stop = true;
        self.told.notify_one();
    }

    /// Sleeps until there is work, for at most a tick, and for as long as the thread must rest. Only the
    /// background thread calls it.
    pub(super) fn next_turn(&self) -> Turn {
        let mut state = self.state.lock();
        if !state.is_pressing() {
            state = self.told.wait_for(state, TICK);
        }
        while state.resters > 0 && !state.stop {
            state.is_resting = true;
            self.rested.notify_one();
            state = self.told.wait_for(state, TICK);
        }
        state.is_resting = false;
        match (state.stop, std::mem::take(&mut state.wanted)) {
            (true, _) => Turn::End,
            (false, true) => Turn::Work,
            (false, false) => Turn::Tick,
        }
    }

    /// Returns whether a request is waiting. If so, work that can be done at any time must stop.
    pub(super) fn is_pressing(&self) -> bool {
        self.state.lock().is_pressing()
    }

    /// Returns whether the thread should stop any work, to rest or to end.
    pub(super) fn interrupts(&self) -> bool {
        self.state.lock().interrupts()
    }

    /// Has the thread rest until the returned value is dropped. Returns `None` if the thread did not come to
    /// rest in time.
    pub(super) fn rest(&self, clock: &Clock, until: Instant) -> Option<Rest<'_>> {
        let rest = Rest(self);
        let mut state = self.state.lock();
        state.resters += 1;
        self.told.notify_one();
        while !state.is_resting {
            let left = clock.sleep_until(until);
            if left.is_zero() {
                drop(state);
                return None;
            }
            // Not every waiting thread is notified, so each looks again after a tick.
            state = self.rested.wait_for(state, left.min(TICK));
        }
        drop(state);
        Some(rest)
    }
}

impl Requests {
    fn is_pressing(&self) -> bool {
        self.wanted || self.interrupts()
    }

    fn interrupts(&self) -> bool {
        self.stop || self.resters > 0
    }
}

/// The background thread rests for as long as this value lives.
#[derive(Debug)]
pub(super) struct Rest<'a>(&'a Signal);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.state.lock().resters -= 1;
        self.0.told.notify_one();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{AtomicU32, Ordering, thread};

    #[test]
    fn a_thread_that_rests_does_nothing_until_all_are_done_who_asked() {
        let (signal, turns) = (Signal::default(), AtomicU32::new(0));
        let clock = Clock::default();
        let rest = || signal.rest(&clock, clock.now() + Duration::from_secs(60)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                while signal.next_turn() != Turn::End {
                    turns.fetch_add(1, Ordering::Relaxed);
                    signal.wake();
                }
            });
            for _ in 0..100 {
                let first = rest();
                let before = turns.load(Ordering::Relaxed);
                let second = rest();
                drop(first);
                signal.wake();
                thread::yield_now();
                assert_eq!(turns.load(Ordering::Relaxed), before);
                drop(second);
                while turns.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
            }
            let last = rest();
            signal.stop();
            drop(last);
        });
    }

    #[test]
    fn a_thread_that_does_not_come_to_rest_is_not_waited_for_for_ever() {
        let signal = Signal::default();
        let clock = Clock::default();
        assert!(signal.rest(&clock, clock.now()).is_none());
        assert!(!signal.interrupts(), "nobody asks any more");
        signal.wake();
        assert_eq!(signal.next_turn(), Turn::Work);
    }
}
