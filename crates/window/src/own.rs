//! This process as a target: its own threads are the faulting ones, and it moves its own pages.
//!
//! A page is moved to a staging range, copied from there, and discarded. The ranges are reservations that
//! only a window hands out, so nothing unmaps or drops them behind Octavo's back, and no events are needed.
//!
//! **A thread that serves faults must never fault itself.** The engine keeps its structures in memory of its
//! own, and the driver allocates from the program's allocator. The program's allocator may be a
//! `WindowAlloc`. It uses windows only for threads that ask for them, and only while these threads are
//! outside the engine.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use octavo::PAGE_BYTES;
use octavo_platform::accessed;
use octavo_platform::pagemap::{Categories, Pagemap, ScanFilter};
use octavo_platform::process_memory::read_process;
use octavo_platform::userfaultfd::{CallProgress, Event, Features, RegisterMode, Userfaultfd};
use octavo_platform::{Backing, Reservation};
use rustix::io::Errno;

use crate::reach::{Reach, TakeOutcome, Taking};
use crate::used::{AskedProcess, Used};

const PAGE: u64 = PAGE_BYTES as u64;
/// The most pages that are moved out at once.
const STAGED: usize = 64;

/// The memory of this process.
#[derive(Debug)]
pub(crate) struct Own {
    faults: Userfaultfd,
    staging: Mutex<Reservation>,
    /// Whether staging could not be discarded, so that nothing more may go there.
    is_stuck: AtomicBool,
    pagemap: Pagemap,
    process: OwnedFd,
    used: Mutex<Used>,
}

impl Own {
    /// Prepares this process to be reached.
    ///
    /// # Errors
    /// The kernel's error. It allows userfaultfd to root, to a process with CAP_SYS_PTRACE, to a user who may
    /// open `/dev/userfaultfd`, and to everyone if `vm.unprivileged_userfaultfd` is 1. `Unsupported` before
    /// Linux 6.8.
    pub(crate) fn new() -> io::Result<Self> {
        let faults = Userfaultfd::of_this_process(Features::WRITE_PROTECT | Features::MOVE)?;
        let staging = Reservation::new(STAGED * PAGE_BYTES, PAGE_BYTES)?;
        staging.advise_backing(0..staging.len(), Backing::BasePages);
        // SAFETY: the range is the reservation just made, which nobody else uses. A page that is missing
        // there reads as zeros, since the range is watched for stores only.
        unsafe {
            let mode = RegisterMode { missing: false, write_protect: true };
            faults.register(staging.base().as_ptr() as u64, staging.len() as u64, mode)?;
        }
        let (pagemap, process) = (Pagemap::of(std::process::id())?, accessed::open(std::process::id())?);
        Ok(Self {
            faults,
            staging: Mutex::new(staging),
            is_stuck: AtomicBool::new(false),
            pagemap,
            process,
            used: Mutex::default(),
        })
    }

    pub(crate) fn faults(&self) -> &Userfaultfd {
        &self.faults
    }

    /// Starts to watch a range.
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    /// The range is a reservation, and its users may be made to wait for its pages.
    pub(crate) unsafe fn watch(&self, start: u64, len: u64) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.faults.register(start, len, RegisterMode { missing: true, write_protect: true }) }
    }

    /// Takes up to [`STAGED`] pages out.
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`].
    unsafe fn take(&self, staging: &Reservation, address: u64, len: u64, to: *mut u8) -> CallProgress {
        let staged = staging.base().as_ptr();
        // SAFETY: the window's users wait for missing pages, and staging is ours, under its lock.
        let mut progress = unsafe { self.faults.move_pages(staged as u64, address, len) };
        // A page that is missing in the window reads as zeros, as does its place in staging.
        let moved = match progress.error {
            None => len,
            Some(_) => self.staged(staging, len).max(progress.done_bytes),
        };
        progress.done_bytes = moved;
        if !to.is_null() {
            let remote = [(staged as u64, moved)];
            // SAFETY: the caller vouches for the destination. The kernel makes the copy, since the engine may
            // still load from an old frame meanwhile. No thread waits for a page of staging.
            let read = unsafe { read_process(std::process::id(), &remote, &[(to, moved as usize)]) };
            if !read.is_ok_and(|read| read as u64 == moved) {
                // The process cannot go on without these pages.
                eprintln!("octavo: pages of a window were lost on their way out, so the process ends");
                std::process::abort();
            }
        }
        if staging.discard(0..len as usize).is_err() {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
        progress
    }

    /// Returns how many bytes are in staging, from its start.
    fn staged(&self, staging: &Reservation, len: u64) -> u64 {
        let start = staging.base().as_ptr() as u64;
        let mut end = start;
        let found = self.pagemap.scan(start, start + len, ScanFilter::any(Categories::PRESENT), |run| {
            end = end.max(run.end);
        });
        if found.is_ok() { end - start } else { 0 }
    }
}

impl Reach for Own {
    unsafe fn copy_in(&self, to: u64, from: *const u8, len: u64, protected: bool) -> CallProgress {
        // SAFETY: the caller vouches for the source.
        unsafe { self.faults.copy(to, from, len, protected, false) }
    }

    fn protect(&self, start: u64, len: u64, on: bool) -> io::Result<()> {
        self.faults.write_protect(start, len, on)
    }

    unsafe fn take_out(&self, runs: &[Taking], outcomes: &mut Vec<TakeOutcome>) {
        let staging = self.staging.lock().expect("nobody panics here");
        for run in runs {
            let (mut done, mut error) = (0, None);
            while done < run.len && error.is_none() && !self.is_stuck.load(Ordering::Relaxed) {
                let part = (run.len - done).min(staging.len() as u64);
                let to = if run.to.is_null() { run.to } else { run.to.wrapping_add(done as usize) };
                // SAFETY: the caller's promise, for this part of the run.
                let progress = unsafe { self.take(&staging, run.address + done, part, to) };
                done += progress.done_bytes;
                error = progress.error;
            }
            outcomes.push(match error {
                _ if done >= run.len => TakeOutcome::All,
                Some(Errno::INVAL) if done == 0 => TakeOutcome::Never,
                _ => TakeOutcome::Part(done),
            });
        }
    }

    fn look(&self, start: u64, len: u64, there: &mut dyn FnMut(u64)) -> io::Result<()> {
        self.pagemap.scan(start, start + len, ScanFilter::any(Categories::PRESENT), |run| {
            (run.start..run.end).step_by(PAGE as usize).for_each(&mut *there);
        })
    }

    fn harvest(&self, runs: &[(u64, u64)], used: &mut dyn FnMut(u64)) -> io::Result<()> {
        let (pid, descriptor) = (std::process::id(), self.process.as_fd());
        let asked = AskedProcess { pid, descriptor, pagemap: &self.pagemap };
        self.used.lock().expect("nobody panics here").harvest(asked, runs, used)
    }

    fn wake(&self, start: u64, len: u64) {
        // The range may be unmapped by now, and then no thread waits there.
        let _ = self.faults.wake(start, len);
    }

    fn read_events(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        self.faults.read(events)
    }

    fn is_gone(&self) -> bool {
        false
    }
}
