//! The priority of the monitor. On a busy machine a monitor that waits for its turn lets the tree outgrow its limit, so it
//! comes before other threads, where the kernel allows that. What it starts has the priority that the runner was given.

use std::sync::OnceLock;

use rustix::process::{getpriority_process, setpriority_process};

/// What the runner was given.
static PLAIN: OnceLock<i32> = OnceLock::new();
/// Nice values that the monitor is ahead.
const AHEAD: i32 = 15;
const FOREMOST: i32 = -20;

/// Puts this thread ahead of others. Threads and processes that it starts inherit that.
pub(crate) fn raise() {
    // On Linux both calls are about the thread.
    if let Ok(found) = getpriority_process(None) {
        let plain = *PLAIN.get_or_init(|| found);
        // Without the right to it, the monitor stays as it is.
        let _ = setpriority_process(None, (plain - AHEAD).max(FOREMOST));
    }
}

/// Gives this thread the priority that the runner was given.
pub(crate) fn lower() {
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
