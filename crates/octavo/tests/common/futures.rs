//! Asynchronous faults for which no thread waits. The test polls them after they were woken, or drops them at
//! any time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use octavo::{Access, Result, Space};

use super::PAGE;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// An asynchronous fault that has begun and has not ended.
pub struct PendingFault<'s> {
    pub page: u64,
    pub access: Access,
    future: Pin<Box<dyn Future<Output = Result<()>> + Send + 's>>,
    woken: Arc<Flag>,
}

impl<'s> PendingFault<'s> {
    /// Makes a fault that is not polled yet.
    pub fn new(space: &'s Space, page: u64, access: Access) -> Self {
        let future = Box::pin(space.fault_async(page * PAGE, access));
        Self { page, access, future, woken: Arc::new(Flag(AtomicBool::new(true))) }
    }

    pub fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Acquire)
    }

    /// Polls the fault once, even if it was not woken.
    pub fn poll(&mut self) -> Poll<Result<()>> {
        self.woken.0.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&self.woken));
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}
