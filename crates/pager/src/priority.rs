//! The priority of the monitor. On a busy machine a monitor that waits for its turn lets the tree outgrow its limit, so it
//! comes before all other threads, where the kernel allows that. A nice value would not do: the kernel compares nice values within one
//! session only, where sessions have equal parts of a CPU (autogroups). What the monitor starts has the priority that the runner was given.

use std::sync::OnceLock;

use octavo_platform::threads::set_real_time;
use rustix::process::{getpriority_process, setpriority_process};

/// What the runner was given.
static PLAIN: OnceLock<i32> = OnceLock::new();
/// Nice values that the monitor is ahead.
const AHEAD: i32 = 15;
const FOREMOST: i32 = -20;

/// Puts this thread before all others, or as far ahead as the kernel allows.
pub(crate) fn raise() {
    // On Linux both calls are about the thread.
    if let Ok(found) = getpriority_process(None) {
        let plain = *PLAIN.get_or_init(|| found);
        // Without the right to it, the monitor stays as it is.
        let _ = setpriority_process(None, (plain - AHEAD).max(FOREMOST));
    }
    let _ = set_real_time(true);
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
    use super::*;

    #[test]
    fn a_thread_that_was_raised_can_be_lowered_again() {
        std::thread::spawn(|| {
            let before = getpriority_process(None).unwrap();
            raise();
            let raised = getpriority_process(None).unwrap();
            assert!(raised == before || raised == (before - AHEAD).max(FOREMOST), "{raised}");
            lower();
            assert_eq!(getpriority_process(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
