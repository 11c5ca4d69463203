//! Blocking as a wrapper around polling: the waker of a thread unparks the thread.

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

/// Polls until ready, and parks between polls. `poll` registers the waker with the event for which the thread
/// waits.
pub(crate) fn block_until<T>(poll: impl FnMut(&Waker) -> Poll<T>) -> T {
    block_until_driven(poll, || false)
}

/// Like [`block_until`], but before the thread parks, it calls `drive`, which does some of the work for which
/// the thread waits. `drive` returns whether the wait may be over.
#[inline]
pub(crate) fn block_until_driven<T>(
    mut poll: impl FnMut(&Waker) -> Poll<T>,
    mut drive: impl FnMut() -> bool,
) -> T {
    let mut run = |waker: &Waker| loop {
        match poll(waker) {
            Poll::Ready(value) => return value,
            Poll::Pending if drive() => {}
            // After a spurious return, the thread only polls again.
            Poll::Pending => thread::park(),
        }
    };
    match face::with_kept_waker(&mut run) {
        Some(value) => value,
        None => run(&new_waker()),
    }
}
