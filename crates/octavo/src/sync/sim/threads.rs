//! Threads of the simulation.

use std::task::Waker;

use octavo_sim::thread;

use crate::sync::Duration;

/// A simulated thread keeps no waker. Making one costs no simulated time.
pub(crate) fn with_kept_waker<T>(_lend: impl FnOnce(&Waker) -> T) -> Option<T> {
    None
}

/// A simulated thread has no words of its own.
pub(crate) fn with_own_words<T>(_change: impl FnOnce(&mut [u64; 3]) -> T) -> Option<T> {
    None
}

/// Sleeps until another thread unparks this one, or until `time` has passed.
pub(crate) fn park_for(time: Duration) {
    thread::park_timeout(time);
}

/// Lets time pass.
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// Runs foreign code. `Err` is the panic that ended the code.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> thread::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
}
