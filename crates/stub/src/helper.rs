//! What a [`Mover`](crate::Mover) and a [`Mapper`](crate::Mapper) have in common: a process beside the
//! program's own threads, which makes system calls in the program's memory.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::error::MoverError;
use crate::layout::Layout;
use crate::mailbox::{Call, Mailbox, has_ended};

/// The process, and the runner's side of its mailbox.
///
/// Any thread may use it; batches run one after another. Dropping it [ends](Helper::end) the process.
#[derive(Debug)]
pub(crate) struct Helper {
    pub(crate) pid: u32,
    pub(crate) process: OwnedFd,
    pub(crate) layout: Layout,
    is_our_child: bool,
    mailbox: Mutex<Mailbox>,
}

impl Helper {
    pub(crate) fn new(
        (pid, process): (u32, OwnedFd),
        layout: Layout,
        mailbox: Mailbox,
        is_our_child: bool,
    ) -> Self {
        Self { pid, process, layout, is_our_child, mailbox: Mutex::new(mailbox) }
    }

    pub(crate) fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.layout.start..self.layout.start + self.layout.len
    }

    pub(crate) fn call(&self, calls: &mut [Call]) -> Result<(), MoverError> {
        self.call_locked(&mut self.lock(), calls)
    }

    pub(crate) fn call_locked(&self, mailbox: &mut Mailbox, calls: &mut [Call]) -> Result<(), MoverError> {
        let done = mailbox.call(self.process.as_fd(), calls);
        if done == Err(MoverError::Silent) {
            // The helper must not make the calls later, when nobody expects them any more.
            self.end();
        }
        done
    }

    pub(crate) fn has_ended(&self) -> bool {
        has_ended(self.process.as_fd()).unwrap_or(true)
    }

    pub(crate) fn end(&self) {
        // It may have ended already.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
        if self.is_our_child {
            // By the pidfd, which never refers to another process, even if this is called again.
            let any_kind = WaitIdOptions::from_bits_retain(libc::__WALL as u32) | WaitIdOptions::EXITED;
            while matches!(waitid(WaitId::PidFd(self.process()), any_kind), Err(Errno::INTR)) {}
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Mailbox> {
        // At worst, a panic leaves a batch unfinished; the next batch has a number of its own.
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}
