//! Alarms: wakers that are called at a given moment, for futures whose wait has a time limit.
//!
//! A thread that blocks keeps its own deadline: it parks at most until then. A future has no thread, so
//! [`Timer`] has a thread for all futures of a manager. This thread starts with the first alarm and ends with
//! the timer.
//!
//! Locking: one lock, under which no other lock is taken. Wakers are called without it, since a waker may do
//! anything. An alarm that is set and cancelled costs two acquisitions, and an insertion and a removal in a
//! tree. Only a future that waits for a device with a timeout pays.

use std::collections::BTreeMap;
use std::io;
use std::task::Waker;

use crate::sync::{Arc, Clock, Condvar, Duration, Instant, Mutex, thread};

/// The time for which the thread sleeps if no alarm is set.
const LONG: Duration = Duration::from_secs(3600);

/// Names an alarm that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Alarm {
    at: Instant,
    number: u64,
}

/// The alarms of a manager.
pub(crate) struct Timer {
    shared: Arc<TimerState>,
}

struct TimerState {
    clock: Clock,
    state: Mutex<Alarms>,
    changed: Condvar,
}

#[derive(Default)]
struct Alarms {
    alarms: BTreeMap<Alarm, Waker>,
    numbers: u64,
    thread: Option<thread::JoinHandle<()>>,
    ending: bool,
}

impl Timer {
    /// Makes a timer on this clock.
    pub(crate) fn new(clock: Clock) -> Self {
        Self { shared: Arc::new(TimerState { clock, state: Mutex::default(), changed: Condvar::default() }) }
    }

    /// Sets an alarm that calls `waker` at the moment `at`, unless the alarm is cancelled earlier.
    ///
    /// # Errors
    /// The kernel's error, if it cannot start a thread.
    pub(crate) fn set(&self, at: Instant, waker: &Waker) -> io::Result<Alarm> {
        let mut state = self.shared.state.lock();
        if state.thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let thread = thread::Builder::new().name("octavo-timer".into()).spawn(move || shared.run())?;
            state.thread = Some(thread);
        }
        let alarm = Alarm { at, number: state.numbers };
        state.numbers += 1;
        state.alarms.insert(alarm, waker.clone());
        let is_next = state.alarms.first_key_value().is_some_and(|(first, _)| *first == alarm);
        drop(state);
        if is_next {
            self.shared.changed.notify_one();
        }
        Ok(alarm)
    }

    /// Replaces the alarm's waker. Does nothing if the alarm has already called its waker.
    pub(crate) fn renew(&self, alarm: Alarm, waker: &Waker) {
        if let Some(known) = self.shared.state.lock().alarms.get_mut(&alarm) {
            known.clone_from(waker);
        }
    }

    /// Cancels the alarm.
    pub(crate) fn cancel(&self, alarm: Alarm) {
        let waker = self.shared.state.lock().alarms.remove(&alarm);
        // The waker is dropped without the lock: it may own values whose drop does anything.
        drop(waker);
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        let thread = {
            let mut state = self.shared.state.lock();
            state.ending = true;
            state.thread.take()
        };
        self.shared.changed.notify_one();
        let Some(thread) = thread else { return };
        // A waker may hold the last handle of the manager. If so, the timer's own thread drops the timer.
        if thread.thread().id() != thread::current().id() {
            // If a waker panicked, this ended the thread. No caller is left to get the panic.
            let _ = thread.join();
        }
    }
}

impl TimerState {
    fn run(&self) {
        let mut state = self.state.lock();
        while !state.ending {
            let Some(first) = state.alarms.first_entry() else {
                state = self.changed.wait_for(state, LONG);
                continue;
            };
            let at = first.key().at;
            let left = self.clock.sleep_until(at);
            if !left.is_zero() {
                state = self.changed.wait_for(state, left);
                continue;
            }
            let waker = first.remove();
            drop(state);
            waker.wake();
            state = self.state.lock();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex as StdMutex;
    use std::task::Wake;

    use super::*;

    /// A waker that notes its name when it is called.
    struct WakeNote(u32, Arc<StdMutex<Vec<u32>>>);

    impl Wake for WakeNote {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }

    #[test]
    fn alarms_go_off_in_their_order_and_cancelled_ones_do_not() {
        let clock = Clock::default();
        let timer = Timer::new(clock.clone());
        let heard = Arc::new(StdMutex::new(Vec::new()));
        let note = |name| Waker::from(Arc::new(WakeNote(name, Arc::clone(&heard))));
        let now = clock.now();
        let last = timer.set(now + Duration::from_millis(60), &note(1)).unwrap();
        timer.set(now + Duration::from_millis(40), &note(2)).unwrap();
        let never = timer.set(now + Duration::from_millis(20), &note(3)).unwrap();
        timer.cancel(never);
        timer.renew(last, &note(4));
        let patience = now + Duration::from_secs(60);
        while heard.lock().unwrap().len() < 2 {
            assert!(clock.now() < patience, "an alarm did not go off");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*heard.lock().unwrap(), [2, 4]);
        timer.cancel(last);
    }

    #[test]
    fn a_timer_ends_with_alarms_still_set() {
        let clock = Clock::default();
        let timer = Timer::new(clock.clone());
        timer.set(clock.now() + LONG, Waker::noop()).unwrap();
        drop(timer);
    }
}
