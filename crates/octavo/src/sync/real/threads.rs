//! Threads of the system.

use std::cell::Cell;
use std::task::Waker;

use crate::sync::Duration;
use crate::sync::park::new_waker;

pub(crate) use std::thread;

thread_local! {
    // Each thread has one waker for its whole life, so that a wait for a page never allocates.
    static WAKER: Waker = new_waker();
    static OWN_WORDS: Cell<[u64; 3]> = const { Cell::new([0; 3]) };
}

/// Lends the waker that this thread keeps. So a fault that does not wait changes no reference count that
/// other threads use. Returns `None` during the destruction of the thread's locals.
pub(crate) fn with_kept_waker<T>(lend: impl FnOnce(&Waker) -> T) -> Option<T> {
    WAKER.try_with(lend).ok()
}

/// Changes the words that this thread has for itself, which are 0 at first. Returns `None` if the thread has
/// no such words.
#[inline]
pub(crate) fn with_own_words<T>(change: impl FnOnce(&mut [u64; 3]) -> T) -> Option<T> {
    OWN_WORDS
        .try_with(|own| {
            let mut words = own.get();
            let changed = change(&mut words);
            own.set(words);
            changed
        })
        .ok()
}

/// Sleeps until another thread unparks this one, or until `time` has passed.
pub(crate) fn park_for(time: Duration) {
    thread::park_timeout(time);
}

/// Lets time pass.
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

/// Hint that this thread spins.
#[inline]
pub(crate) fn spin_hint() {
    std::hint::spin_loop();
}

/// Runs foreign code. `Err` is the panic that ended the code.
#[inline]
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> thread::Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
}
