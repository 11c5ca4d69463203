//! The priority of the monitor. On a busy machine, a monitor that waits for a CPU lets the tree exceed its
//! limit, so the monitor runs ahead of all other threads if the kernel allows that. A nice value would not
//! suffice: with autogroups, sessions get equal parts of a CPU, and nice values count only within a session.
//! Threads and processes that the monitor starts have the priority that the runner was given.
//!
//! The monitor must not take a CPU from the kernel's own threads for long. So before each piece of work, it
//! announces how long the work may take. If its [allowance](Governor) does not suffice, it runs with a lower
//! nice value only, which leaves other threads their share of the CPU.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use octavo_platform::threads::set_real_time;
use rustix::process::{getpriority_process, setpriority_process};
use rustix::time::{ClockId, clock_gettime};

use crate::system::governor::{self, Governor};

/// The nice value that the runner was given.
static PLAIN: OnceLock<i32> = OnceLock::new();
/// The amount by which the monitor lowers its nice value, and the amount if the first is refused.
const AHEAD: [i32; 2] = [20, 15];
const LEAST_NICE: i32 = -20;

thread_local! {
    /// `None` except in the monitor's thread.
    static FOREMOST: RefCell<Option<Foremost>> = const { RefCell::new(None) };
}

/// A thread that may run ahead of all others.
#[derive(Debug)]
struct Foremost {
    governor: Governor,
    /// Whether the thread has a lower nice value than the runner was given.
    is_ahead: bool,
    /// Whether the thread runs ahead of all others.
    is_foremost: bool,
}

impl Foremost {
    fn set(&mut self, is_foremost: bool) {
        if is_foremost != std::mem::replace(&mut self.is_foremost, is_foremost) {
            // Without the permission, the priority does not change.
            let _ = set_real_time(is_foremost);
        }
    }
}

/// Makes this thread the monitor's from now on.
pub(crate) fn begin() {
    let governor = Governor::new(Instant::now(), cpu_time());
    FOREMOST.set(Some(Foremost { governor, is_ahead: false, is_foremost: false }));
}

/// Begins a look of the monitor that takes about `next` of CPU time. It runs ahead of all others if the
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

/// Begins a piece of work of the monitor that takes about `next` of CPU time. If the allowance does not
/// suffice, the monitor runs with its nice value only until the end of its look. In other threads, this does
/// nothing.
pub(crate) fn goes_on(next: Duration) {
    with(|foremost| {
        if foremost.is_foremost && !foremost.governor.allows(Instant::now(), cpu_time(), next) {
            foremost.set(false);
        }
    });
}

/// A kind of work whose duration is estimated from the last times.
#[derive(Debug, Default)]
pub(crate) struct WorkEstimate {
    takes: Duration,
}

impl WorkEstimate {
    /// Does a piece of such work, after [saying](goes_on) how long it may take.
    pub(crate) fn take<T>(&mut self, work: impl FnOnce() -> T) -> T {
        goes_on(self.takes);
        let began = cpu_time();
        let done = work();
        self.takes = (cpu_time() - began).max(self.takes / 8 * 7);
        done
    }
}

/// Prepares the monitor to sleep for `wait`, and to take about `next` of CPU time after that.
pub(crate) fn sleeps(wait: Duration, next: Duration) {
    begins(next.saturating_sub(governor::earned(wait)));
}

/// Prepares the monitor to start threads or processes, which must not inherit its priority: it runs with the
/// runner's priority until the end of its look.
pub(crate) fn starts_others() {
    goes_on(Duration::MAX);
    with(|foremost| {
        foremost.is_ahead = false;
        lower();
    });
}

/// Charges CPU time that another thread has used for the monitor, at the monitor's priority.
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
    // On Linux, both calls affect this thread only.
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
