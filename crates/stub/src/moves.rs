//! Pages on their way out of a program.
//!
//! A page leaves in two moves of one batch: by descriptor A to staging range 1, then by B to staging range 2.
//! Descriptor A refuses moves while an event is unread, so a page that the program has just unmapped is not
//! taken. Range 2 belongs to descriptor B, which has no events. So discarding pages there raises no event.
//!
//! Even if a batch fails in part, some of its pages may have moved. The caller then looks at
//! [`Mover::staging_pages`] before it uses staging again.

use std::io;

use octavo_platform::pagemap::{Categories, PageRun, Pagemap, ScanFilter};
use octavo_platform::userfaultfd::{CallProgress, MoveRequest, wire};
use rustix::io::Errno;

use crate::error::MoverError;
use crate::layout::{OutgoingRun, PAGE};
use crate::mailbox::{CALLS, Call};
use crate::mover::Mover;

/// The outcome for an [`OutgoingRun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunMoved {
    /// The place of the run's first page in staging, in bytes from the start of staging.
    pub offset: u64,
    /// The kernel's progress, and its error. If only a part has moved, the error is `EAGAIN`, whatever the
    /// reason.
    pub progress: CallProgress,
}

/// The outcome of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// One outcome for each run, in order.
    pub runs: Vec<RunMoved>,
    /// The move from staging range 1 to range 2. Its byte count includes holes.
    pub staged: CallProgress,
    /// The kernel's error, if staging range 2 was to be discarded first, and could not be.
    pub discarded: Option<Errno>,
}

impl Moved {
    /// Returns whether every page of every run is in staging range 2.
    pub fn is_whole(&self) -> bool {
        self.discarded.is_none()
            && self.staged.is_whole()
            && self.runs.iter().all(|run| run.progress.is_whole())
    }
}

/// What a batch does with the pages that are in staging range 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// There are no pages, or they stay. The kernel refuses a new page in their place with `EEXIST`.
    Keep,
    /// The pages have been read, and are discarded before the moves.
    DiscardFirst,
}

impl Mover {
    /// Takes runs of pages out of the program, in one batch. They land in staging range 2, one after the
    /// other from its start; `process_vm_readv` reads them there.
    ///
    /// A missing page becomes a hole in staging, which reads as zeros. Each page must be registered with
    /// descriptor A before it leaves: otherwise the program would read zeros there afterwards. The runner
    /// must read no event of descriptor A while this runs.
    ///
    /// Fails with [`MoverError::TooLarge`] above 125 runs or above the staging size, and with
    /// [`MoverError::Ended`] if the mover has ended: pages may then be in either staging range. Does nothing
    /// if all runs are empty.
    pub fn move_out(&self, runs: &[OutgoingRun], staging: Staging) -> Result<Moved, MoverError> {
        let ([first, second], room) = self.staging();
        let mut requests = Vec::with_capacity(runs.len() + 1);
        let mut offset = 0u64;
        for run in runs {
            let to = first + offset;
            let mode = wire::MOVE_ALLOWS_HOLES;
            requests.push(MoveRequest { to, from: run.address, len: run.len, mode, moved: 0 });
            offset = offset.checked_add(run.len).filter(|&sum| sum <= room).ok_or(MoverError::TooLarge)?;
        }
        if offset == 0 {
            return Ok(Moved { runs: Vec::new(), staged: DONE, discarded: None });
        }
        let mode = wire::MOVE_ALLOWS_HOLES;
        requests.push(MoveRequest { to: second, from: first, len: offset, mode, moved: 0 });
        let mut calls = Vec::with_capacity(runs.len() + 2);
        if staging == Staging::DiscardFirst {
            calls.push(self.discard_call());
        }
        let before = calls.len();
        calls.extend((0..runs.len()).map(|index| self.move_call(0, index)));
        calls.push(self.move_call(1, runs.len()));
        if calls.len() > CALLS {
            return Err(MoverError::TooLarge);
        }
        self.call_with_requests(&mut calls, &mut requests)?;
        let progress = |index: usize| {
            CallProgress::of_answers(calls[before + index].result().err(), requests[index].moved)
        };
        Ok(Moved {
            runs: (0..runs.len())
                .map(|index| RunMoved { offset: requests[index].to - first, progress: progress(index) })
                .collect(),
            staged: progress(runs.len()),
            discarded: calls[..before].first().and_then(|call| call.result().err()),
        })
    }

    /// Moves the pages that a batch may have left in staging range 1 on to range 2.
    pub fn move_on(&self) -> Result<CallProgress, MoverError> {
        let ([first, second], len) = self.staging();
        let mode = wire::MOVE_ALLOWS_HOLES;
        let mut requests = [MoveRequest { to: second, from: first, len, mode, moved: 0 }];
        let mut calls = [self.move_call(1, 0)];
        self.call_with_requests(&mut calls, &mut requests)?;
        Ok(CallProgress::of_answers(calls[0].result().err(), requests[0].moved))
    }

    /// Makes pages that a fork has shared the program's own, as a store to each would. Stops at a page that
    /// is missing, protected or read-only. Returns how many bytes from the start are the program's own now.
    ///
    /// A futex operation ORs zero into each page. For this access alone, the kernel does not wait for a
    /// fault's answer. With any other access, the mover could wait for the thread that waits for the mover.
    /// Costs 0.2 µs per page, 2.5 µs if the page is copied, and two wake-ups per 127 pages.
    pub fn unshare(&self, run: OutgoingRun) -> Result<u64, MoverError> {
        let mut done = 0;
        while done < run.len {
            let pages = (done..run.len).step_by(PAGE as usize).take(CALLS);
            let mut calls: Vec<_> = pages.map(|offset| self.unshare_call(run.address + offset)).collect();
            self.call(&mut calls)?;
            let own = calls.iter().take_while(|call| call.result().is_ok()).count();
            done += own as u64 * PAGE;
            if own < calls.len() {
                break;
            }
        }
        Ok(done.min(run.len))
    }

    /// Returns the call that adds no bit to the word at `address`, and wakes no thread. No thread waits in
    /// the scratch memory. The call wakes waiters of the word only if the word has the lowest value that a
    /// call can name.
    fn unshare_call(&self, address: u64) -> Call {
        let (scratch, _) = self.request_address();
        let how = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as u64;
        let add_nothing = libc::FUTEX_OP(libc::FUTEX_OP_OR, 0, libc::FUTEX_OP_CMP_EQ, LOWEST) as u32;
        Call::new(libc::SYS_futex, [scratch, how, 0, 0, address, add_nothing.into()])
    }

    /// Gives the pages of staging range 2 back to the kernel.
    pub fn discard(&self) -> Result<(), MoverError> {
        let mut calls = [self.discard_call()];
        self.call(&mut calls)?;
        calls[0].result().map(drop).map_err(MoverError::System)
    }

    /// Returns the pages that are in staging range 1 and in staging range 2. `pagemap` is the program's.
    ///
    /// Fails with the kernel's error.
    pub fn staging_pages(&self, pagemap: &Pagemap) -> io::Result<[Vec<PageRun>; 2]> {
        let (starts, len) = self.staging();
        let mut found = [Vec::new(), Vec::new()];
        for (start, found) in starts.into_iter().zip(&mut found) {
            let wanted = ScanFilter::any(Categories::PRESENT | Categories::SWAPPED);
            pagemap.scan(start, start + len, wanted, |run| found.push(run))?;
        }
        Ok(found)
    }
}

/// The lowest value that a futex operation can compare with: 12 bits, of which the first is the sign.
const LOWEST: i32 = 0x800;
const DONE: CallProgress = CallProgress { done_bytes: 0, error: None };
