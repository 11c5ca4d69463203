//! Blocking as a wrapper around polling: a thread is a waker that unparks it.

use std::task::{Poll, Wake, Waker};

use crate::sync::thread::{self, Thread};

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

fn new_waker() -> Waker {
    std::sync::Arc::new(ThreadWaker(thread::current())).into()
}

#[cfg(not(loom))]
thread_local! {
    // One for the thread's life: waiting for a page never allocates.
    static WAKER: Waker = new_waker();
}

/// Polls until ready, parking between polls. `poll` leaves the waker with whoever will make it ready.
pub(crate) fn block_until<T>(poll: impl FnMut(&Waker) -> Poll<T>) -> T {
    block_until_driven(poll, || false)
}

/// As [`block_until`]; instead of parking, the thread first tries to bring about what it waits for: `drive` says whether it
/// may have.
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
    // Lent, not cloned: a fault that does not wait touches no shared count.
    #[cfg(not(loom))]
    if let Ok(value) = WAKER.try_with(&mut run) {
        return value;
    }
    // While the thread's locals are being destroyed there is no waker left: make one.
    run(&new_waker())
}
