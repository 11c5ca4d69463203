//! A running mover.

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use octavo_platform::userfaultfd::{MoveRequest, Userfaultfd, wire};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::error::{InjectError, InjectErrorKind, MoverError};
use crate::helper::Helper;
use crate::layout::{Layout, OutgoingRun, PAGE};
use crate::mailbox::{Call, Mailbox, SCRATCH_AT, SCRATCH_BYTES};
use crate::prepare::Parts;
use crate::reasons;

/// A process that shares a program's memory and makes system calls there. See the [crate](crate).
///
/// Any thread may use a mover. Batches run one after another. Dropping the value [ends](Mover::end) the
/// process.
#[derive(Debug)]
pub struct Mover {
    helper: Helper,
    numbers: [u64; 2],
    faults: Userfaultfd,
    quiet: Userfaultfd,
}

impl Mover {
    pub(crate) fn new(process: (u32, OwnedFd), parts: Parts, is_our_child: bool) -> Self {
        let Parts { layout, mailbox, numbers, faults, quiet } = parts;
        Self { helper: Helper::new(process, layout, mailbox, is_our_child), numbers, faults, quiet }
    }

    /// Tries the calls that a mover needs, now that the program's own filters apply to it.
    pub(crate) fn probe(&self) -> Result<(), InjectError> {
        let refused = |what: &dyn std::fmt::Display| {
            InjectError::new(InjectErrorKind::Seccomp, &reasons::FORBIDDEN, &[("why", what)])
        };
        let mut mailbox = self.helper.lock();
        let Layout { staging_1, staging_2, .. } = self.helper.layout;
        let request = MoveRequest { to: staging_2, from: staging_1, len: PAGE, mode: 0, moved: 0 };
        write_request(&mailbox, 0, &request);
        let mut calls = [self.discard_call(), self.move_call(1, 0)];
        mailbox.call(self.process(), &mut calls).map_err(|error| refused(&error))?;
        calls[0].result().map_err(|error| refused(&error))?;
        match calls[1].result() {
            // The expected answer: there is nothing to move.
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(refused(&error)),
            Ok(_) => Err(refused(&"it answered without effect")),
        }
    }

    /// Returns the mover's process number.
    pub fn pid(&self) -> u32 {
        self.helper.pid
    }

    /// Returns the pidfd of the mover, for example to wait for its end.
    pub fn process(&self) -> BorrowedFd<'_> {
        self.helper.process()
    }

    /// Returns descriptor A: the program's memory, with all events. Staging range 1 is registered here.
    pub fn faults(&self) -> &Userfaultfd {
        &self.faults
    }

    /// Returns descriptor B: the program's memory, without events. Staging range 2 is registered here.
    pub fn quiet(&self) -> &Userfaultfd {
        &self.quiet
    }

    /// Returns the mover's own numbers of descriptors A and B, for calls on them.
    pub fn numbers(&self) -> [u64; 2] {
        self.numbers
    }

    /// Returns the addresses of the two staging ranges in the program, and the length of each.
    pub fn staging(&self) -> ([u64; 2], u64) {
        ([self.helper.layout.staging_1, self.helper.layout.staging_2], self.helper.layout.staging_bytes)
    }

    /// Returns the mover's whole address range in the program. It is not the program's own, and must not be
    /// paged.
    pub fn range(&self) -> Range<u64> {
        self.helper.range()
    }

    /// Returns the address of the scratch memory in the program, and its length. The scratch memory holds a
    /// batch's requests.
    pub fn request_address(&self) -> (u64, usize) {
        (self.helper.layout.mailbox + SCRATCH_AT as u64, SCRATCH_BYTES)
    }

    /// Makes the calls in order, and fills in their answers. Costs two wake-ups.
    ///
    /// A mover may call only `futex`, `ioctl`, `madvise`, `mprotect` and `poll`; other calls fail with
    /// `EPERM`. A call must not wait for the runner, since the runner waits for the mover meanwhile.
    ///
    /// Fails with [`MoverError::Ended`] if the mover has ended, and never hangs.
    pub fn call(&self, calls: &mut [Call]) -> Result<(), MoverError> {
        self.helper.call(calls)
    }

    /// Like [`call`](Self::call), with move requests that calls name by their index. Fills in the requests'
    /// answers too.
    pub fn call_with_requests(
        &self,
        calls: &mut [Call],
        requests: &mut [MoveRequest],
    ) -> Result<(), MoverError> {
        if requests.len() > SCRATCH_BYTES / wire::MOVE_REQUEST_BYTES {
            return Err(MoverError::TooLarge);
        }
        let mut mailbox = self.helper.lock();
        for (index, request) in requests.iter().enumerate() {
            write_request(&mailbox, index, request);
        }
        self.helper.call_locked(&mut mailbox, calls)?;
        for (index, request) in requests.iter_mut().enumerate() {
            // Take only the answer back, since the program can write to the page.
            request.moved = mailbox.scratch(index * wire::MOVE_REQUEST_BYTES + 32) as i64;
        }
        Ok(())
    }

    /// Returns the call that moves by descriptor A (0) or B (1), with the request of this index.
    pub fn move_call(&self, descriptor: usize, request: usize) -> Call {
        let address = self.request_address().0 + (request * wire::MOVE_REQUEST_BYTES) as u64;
        Call::new(libc::SYS_ioctl, [self.numbers[descriptor], wire::MOVE, address])
    }

    /// Returns the call that gives the pages of staging range 2 back to the kernel.
    pub fn discard_call(&self) -> Call {
        let Layout { staging_2, staging_bytes, .. } = self.helper.layout;
        Call::new(libc::SYS_madvise, [staging_2, staging_bytes, libc::MADV_DONTNEED as u64])
    }

    /// Makes both staging ranges executable, or makes them not executable. The kernel moves pages only
    /// between two mappings of the same kind. Returns whether it succeeded.
    pub fn set_staging_kind(&self, is_executable: bool) -> Result<bool, MoverError> {
        let Layout { staging_1, staging_2, staging_bytes, .. } = self.helper.layout;
        let execute = if is_executable { ProtFlags::EXEC } else { ProtFlags::empty() };
        let len = staging_2 + staging_bytes - staging_1;
        let whole = (OutgoingRun { address: staging_1, len }, ProtFlags::READ | ProtFlags::WRITE | execute);
        Ok(self.protect(&[whole])? == [true])
    }

    /// Changes the protection of ranges of the program's memory, each in one mapping. This raises no event.
    /// Returns for each range whether it succeeded.
    pub fn protect(&self, ranges: &[(OutgoingRun, ProtFlags)]) -> Result<Vec<bool>, MoverError> {
        let call = |(OutgoingRun { address, len }, protection): &(OutgoingRun, ProtFlags)| {
            Call::new(libc::SYS_mprotect, [*address, *len, u64::from(protection.bits())])
        };
        let mut calls: Vec<_> = ranges.iter().map(call).collect();
        self.call(&mut calls)?;
        Ok(calls.iter().map(|call| call.result().is_ok()).collect())
    }

    /// Keeps the mover, and so the memory, for another second even if the program ends: the mover checks for
    /// that end only after a second without a request.
    pub fn stay(&self) -> Result<(), MoverError> {
        self.call(&mut [Call::new(libc::SYS_poll, [0, 0, 0])])
    }

    /// Returns whether the mover has ended.
    pub fn has_ended(&self) -> bool {
        self.helper.has_ended()
    }

    /// Ends the mover at once, and reaps it if it is a child of this process. The descriptors stay usable.
    /// Pages in staging stay until the program ends: [discard](Mover::discard) them first.
    pub fn end(&self) {
        self.helper.end();
    }
}

fn write_request(mailbox: &Mailbox, index: usize, request: &MoveRequest) {
    let MoveRequest { to, from, len, mode, moved } = *request;
    mailbox.write_scratch(index * wire::MOVE_REQUEST_BYTES, &[to, from, len, mode, moved as u64]);
}
