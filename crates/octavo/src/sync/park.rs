//! Blocking as a wrapper around polling: a thread is a waker that unparks it.

use std::task::{Poll, Wake, Waker};

use super::face;
use super::thread::{self, Thread};

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// Makes a waker that unparks this thread.
pub(super) fn new_waker() -> Waker {
    std::sync::Arc::new(ThreadWaker(thread::current())).into()
}

/// Polls until ready, and parks between polls. `poll` leaves the waker with whatever is going to be
/// ready.
pub(crate) fn block_until<T>(poll: impl FnMut(&Waker) -> Poll<T>) -> T {
    block_until_driven(poll, || false)
}

/// As [`block_until`], but before it parks, the thread calls `drive`, which does work that it waits for.
/// `drive` returns whether the wait may be over.
#[inline]
pub(crate) fn block_until_driven<T>(
    mut poll: impl FnMut(&Waker) -> Poll<T>,
    mut drive: impl FnMut() -> bool,
) -> T {
    let mut run = |waker: &Waker| loop {
        match poll(waker) {
            Poll::Ready(value) => return value,
            Poll::Pending if drive() => {}
            // A spurious return only polls again.
            Poll::Pending => thread::park(),
        }
    };
    match face::with_kept_waker(&mut run) {
        Some(value) => value,
        None => run(&new_waker()),
    }
}
