//! Threads of loom. Time does not pass in a model.

use std::task::Waker;

use crate::sync::Duration;

pub(crate) use loom::thread;

/// A thread of a model keeps no waker, since the waker would outlive the model.
pub(crate) fn with_kept_waker<T>(_lend: impl FnOnce(&Waker) -> T) -> Option<T> {
    None
}

/// A thread of a model has no words of its own.
pub(crate) fn with_own_words<T>(_change: impl FnOnce(&mut [u64; 3]) -> T) -> Option<T> {
    None
}

/// Time is no part of a model. Lets another thread run.
pub(crate) fn park_for(_time: Duration) {
    loom::thread::yield_now();
}

/// Time is no part of a model. Lets another thread run.
pub(crate) fn pause(_time: Duration) {
    loom::thread::yield_now();
}

/// Hint that this thread spins. Lets another thread run.
pub(crate) fn spin_hint() {
    loom::thread::yield_now();
}

/// The panics of assertions must end a model, so this function catches no panic.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    Ok(work())
}
