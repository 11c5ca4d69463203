//! The priority of the monitor. On a busy machine a monitor that waits for its turn lets the tree outgrow its
//! limit, so it comes before all other threads, where the kernel allows that. A nice value would not do: the
//! kernel compares nice values within one session only, where sessions have equal parts of a CPU
//! (autogroups). What the monitor starts has the priority that the runner was given.
//!
//! It may not take a CPU away from the kernel's own threads. So it says before each piece of work how long
//! that may take. Where its [allowance](Governor) does not suffice, a nice value has to do, which leaves
//! others their parts.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use octavo_platform::threads::set_real_time;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use crate::system::governor::{self, Governor};

/// What the runner was given.
static PLAIN: OnceLock<i32> = OnceLock::new();
/// Nice values that the monitor is ahead, and where that is refused.
const AHEAD: [i32; 2] = [20, 15];
const LEAST_NICE: i32 = -20;

thread_local! {
    /// The monitor's, in its thread. `None`: this thread is another one.
    static FOREMOST: RefCell<Option<Foremost>> = const { RefCell::new(None) };
}

/// A thread that may come before all others.
#[derive(Debug)]
struct Foremost {
    governor: Governor,
    /// It has a nice value of less than the runner was given.
    is_ahead: bool,
    /// It comes before all others.
    is_foremost: bool,
}

impl Foremost {
    fn set(&mut self, is_foremost: bool) {
        if is_foremost != std::mem::replace(&mut self.is_foremost, is_foremost) {
            // Without the right to it, the monitor stays as it is.
            let _ = set_real_time(is_foremost);
        }
    }
}

/// This thread is the monitor's from now on.
pub(crate) fn begin() {
    let governor = Governor::new(Instant::now(), cpu_time());
    FOREMOST.set(Some(Foremost { governor, is_ahead: false, is_foremost: false }));
}

/// The monitor begins with a look that takes about `next` of CPU time. It comes before all others where its
/// allowance suffices.
pub(crate) fn begins(next: Duration) {
    with(|foremost| {
        if !std::mem::replace(&mut foremost.is_ahead, true) {
            get_ahead();
        }
        let is_allowed = foremost.governor.allows(Instant::now(), cpu_time(), next);
        foremost.set(is_allowed);
    });
}

/// The monitor goes on with a piece of work that takes about `next` of CPU time. Where its allowance does not
/// suffice, it does not come before all others until the end of its look. In another thread, nothing happens.
pub(crate) fn goes_on(next: Duration) {
    with(|foremost| {
        if foremost.is_foremost && !foremost.governor.allows(Instant::now(), cpu_time(), next) {
            foremost.set(false);
        }
    });
}

/// A kind of work of which nobody knows how long it takes, but by the last times.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    takes: Duration,
}

impl Piece {
    /// [Goes on](goes_on) with such a piece of work.
    pub(crate) fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        goes_on(self.takes);
        let began = cpu_time();
        let done = work();
        self.takes = (cpu_time() - began).max(self.takes / 8 * 7);
        done
    }
}

/// The monitor sleeps for a while, and takes about `next` of CPU time then.
pub(crate) fn sleeps(wait: Duration, next: Duration) {
    begins(next.saturating_sub(governor::earned(wait)));
}

/// The monitor starts something that is not to come before others, and runs as others do until the end of its
/// look.
pub(crate) fn starts_others() {
    goes_on(Duration::MAX);
    with(|foremost| {
        foremost.is_ahead = false;
        lower();
    });
}

/// Another thread has used so much for the monitor, with its priority.
pub(crate) fn charge(used: Duration) {
    with(|foremost| {
        if foremost.is_foremost {
            foremost.governor.charge(used);
        }
    });
}

fn with(act: impl FnMut(&mut Foremost)) {
    FOREMOST.with_borrow_mut(|foremost| foremost.iter_mut().for_each(act));
}

/// Returns the CPU time that this thread has used.
pub(crate) fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Returns the CPU time that all threads of this process have used.
pub(crate) fn cpu_time_of_all() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}

/// Puts this thread ahead of others of its session, as far as the kernel allows.
fn get_ahead() {
    // On Linux both calls are about the thread.
    if let Ok(found) = getpriority_process(None) {
        let plain = *PLAIN.get_or_init(|| found);
        let mut wanted = AHEAD.iter().map(|ahead| (plain - ahead).max(LEAST_NICE));
        let _ = wanted.any(|nice| setpriority_process(None, nice).is_ok());
    }
}

/// Gives this thread the priority that the runner was given.
pub(crate) fn lower() {
    let _ = set_real_time(false);
    if let Some(plain) = PLAIN.get() {
        let _ = setpriority_process(None, *plain);
    }
}

#[cfg(test)]
mod tests {
    use octavo_platform::threads::is_real_time;

    use super::*;

    #[test]
    fn the_monitor_is_ahead_comes_first_as_long_as_it_may_and_starts_others_as_they_are() {
        std::thread::spawn(|| {
            let nice = || getpriority_process(None).unwrap();
            let before = nice();
            begin();
            begins(Duration::ZERO);
            let ahead = nice();
            let wanted = AHEAD.map(|ahead| (before - ahead).max(LEAST_NICE));
            assert!(ahead == before || wanted.contains(&ahead), "{ahead}");
            let may_come_first = is_real_time();
            goes_on(Duration::from_secs(1));
            assert!(!is_real_time() && nice() == ahead, "that takes too long to come first");
            goes_on(Duration::ZERO);
            assert!(!is_real_time(), "until the next look");
            begins(Duration::ZERO);
            assert_eq!((is_real_time(), nice()), (may_come_first, ahead));
            starts_others();
            assert!(!is_real_time() && nice() == before);
        })
        .join()
        .unwrap();
    }
}
