//! A target over userfaultfd: a process whose memory a mover takes out from inside.
//!
//! ```text
//!   window ──MOVE, by the descriptor with events──► staging 1 ──MOVE, by the one without──► staging 2
//!                                                                   read from here, then discarded
//! ```
//!
//! The kernel refuses to move pages from another process. So Octavo leaves these calls to a mover, a process
//! that shares the program's memory (`octavo-stub`). A move unmaps the page in the same step, and refuses a
//! page that is under direct I/O. The first descriptor refuses moves while a mapping changes. A discard of
//! the second staging range raises no event.
//!
//! A frame that was moved out is discarded and never reused: a pipe or a socket may still refer to it.
//!
//! | file | what it does |
//! |---|---|
//! | `take_out` | takes runs out, batch by batch |
//! | `refused` | takes out pages that the kernel refuses to move as they are |
//! | `batch` | moves one batch, and reads it |
//! | `robust` | knows the mutexes that the kernel marks when a thread ends: their pages stay |
//!
//! **A call that fails may have moved pages.** So after a failure the target scans staging: the pages that it
//! finds there are the ones that were moved.
//!
//! A fork leaves pages shared. Once a page was shared, the kernel refuses to move it until it is written
//! again. So the mover makes the kernel treat such a page as if it were written. The page becomes the
//! program's own, by a copy if it is still shared. The copy takes memory, so the page moves out within the
//! same batch.
//!
//! Executable memory, and memory that is not writable, move in special ways (`refused`).
//!
//! Costs: a batch takes one round trip to the mover, and one system call to read it. With pages that a fork
//! has shared, it takes one more round trip. Each stretch of such pages also takes a scan, a change of
//! protection, and a round trip per 127 pages.

mod batch;
mod refused;
pub(crate) mod robust;
mod take_out;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use octavo_platform::pagemap::{Categories, Pagemap, ScanFilter};
use octavo_platform::smaps::flagged;
use octavo_platform::userfaultfd::{CallProgress, Event, RegisterMode, Userfaultfd};
use octavo_stub::Mover;
use rustix::io::Errno;

use crate::reach::{Reach, TakeOutcome, Taking};
use crate::target::robust::RobustMutexes;
use crate::used::{AskedProcess, Used};

const PAGE: u64 = octavo::PAGE_BYTES as u64;

/// The ranges whose bytes a fork's child does not get (`MADV_WIPEONFORK`), once the kernel has answered. An
/// error means that they are unknown.
pub type Wiped = Arc<OnceLock<io::Result<Vec<Range<u64>>>>>;

/// A process whose memory is reached by userfaultfd and a mover.
#[derive(Debug)]
pub struct Target {
    /// The descriptor that carries the events.
    events: Userfaultfd,
    /// The process and its mover. Empty at first for a fork's child: the driver serves it before its process
    /// is known.
    process: OnceLock<TargetProcess>,
    /// Locked while pages are moved.
    moving: Mutex<Moving>,
    /// Whether pages have left since the last search for pages with held mutexes.
    has_moved: AtomicBool,
    /// Pages with mutexes that could not be made usable.
    unusable: Mutex<Vec<u64>>,
    used: Mutex<Used>,
    /// One value for each fork event that was read, in order.
    wiped: Mutex<VecDeque<Wiped>>,
    /// See [`unfaulted_pages`](Self::unfaulted_pages).
    unfaulted_pages: AtomicU64,
    taken_pages: AtomicU64,
    is_gone: AtomicBool,
    failure: OnceLock<&'static str>,
}

#[derive(Debug)]
struct TargetProcess {
    pid: u32,
    mover: Mover,
    pagemap: Pagemap,
}

#[derive(Debug)]
struct Moving {
    /// Whether the second staging range has pages that have been read.
    is_staged: bool,
    /// Whether the staging ranges are executable.
    is_executable: bool,
    /// Until this time, no attempt is made to stop the program.
    left_alone_until: Option<Instant>,
    /// `None` if the process is not known yet.
    mutexes: Option<RobustMutexes>,
}

impl Moving {
    /// Returns how many bytes of each run may go, or `None` if all may go.
    fn may_go(&mut self, runs: &[Taking]) -> Option<Vec<u64>> {
        let mutexes = self.mutexes.as_mut()?;
        // A page that was not written since it came has not been locked since.
        if runs.iter().any(Taking::may_be_opened) {
            mutexes.look();
        }
        mutexes.has_any().then(|| runs.iter().map(|run| mutexes.may_go(run.address, run.len)).collect())
    }
}

/// The mover and staging, held by one thread.
#[derive(Debug)]
struct Equipment<'a> {
    mover: &'a Mover,
    moving: MutexGuard<'a, Moving>,
}

impl Target {
    /// Makes a target of the process whose events the descriptor carries. Its faults can be served, but no
    /// page can be taken out until the target is [equipped](Self::equip) with a mover.
    pub fn new(events: Userfaultfd) -> Self {
        let moving = Mutex::new(Moving {
            is_staged: true,
            is_executable: false,
            left_alone_until: None,
            mutexes: None,
        });
        Self {
            events,
            process: OnceLock::new(),
            moving,
            has_moved: AtomicBool::new(false),
            unusable: Mutex::default(),
            used: Mutex::default(),
            wiped: Mutex::default(),
            unfaulted_pages: AtomicU64::new(0),
            taken_pages: AtomicU64::new(0),
            is_gone: AtomicBool::new(false),
            failure: OnceLock::new(),
        }
    }

    /// Equips the target with the mover of its process.
    ///
    /// # Errors
    /// The kernel's error if the process has ended or may not be inspected.
    pub fn equip(&self, pid: u32, mover: Mover) -> io::Result<()> {
        let process = TargetProcess { pid, mover, pagemap: Pagemap::of(pid)? };
        self.moving.lock().expect("nobody panics here").mutexes = Some(RobustMutexes::of(pid)?);
        self.process.set(process).map_err(|_| io::Error::other("the target has a mover already"))
    }

    /// Returns whether the target has a mover.
    pub fn is_equipped(&self) -> bool {
        self.process.get().is_some()
    }

    /// Returns the process, once it is equipped.
    pub fn pid(&self) -> Option<u32> {
        self.process.get().map(|process| process.pid)
    }

    /// Returns the mover's process.
    pub fn mover_pid(&self) -> Option<u32> {
        self.process.get().map(|process| process.mover.pid())
    }

    /// Returns the process's page map.
    pub fn pagemap(&self) -> Option<&Pagemap> {
        self.process.get().map(|process| &process.pagemap)
    }

    /// Returns the mover's address range in the program, which must not be paged.
    pub fn own_range(&self) -> Range<u64> {
        self.process.get().map_or(0..0, |process| process.mover.range())
    }

    /// Returns the descriptor that carries the events.
    pub fn events(&self) -> &Userfaultfd {
        &self.events
    }

    /// Starts to watch a range: accesses to its missing pages, and stores to its protected pages, become
    /// faults.
    ///
    /// # Errors
    /// The kernel's error if another descriptor has the range, or if it is not anonymous memory.
    pub fn watch(&self, start: u64, len: u64) -> io::Result<()> {
        // SAFETY: the range is another process's.
        unsafe { self.events.register(start, len, RegisterMode { missing: true, write_protect: true }) }
    }

    /// Returns the ranges whose bytes a fork's child did not get, as they were when the fork's event was
    /// read. Each call answers for the next fork, in the order of the events. The value may not be set yet:
    /// the thread that read the event may still be asking the kernel.
    pub fn take_wiped(&self) -> Wiped {
        let next = self.wiped.lock().expect("nobody panics here").pop_front();
        next.expect("each fork is asked about once, by whoever reads of it")
    }

    /// Asks the kernel which ranges a fork's child does not get. No event reports `MADV_WIPEONFORK`, so
    /// Octavo asks at each fork. The mover keeps the parent's memory even if the program has since ended or
    /// run `exec`.
    fn ask_wiped(&self) -> io::Result<Vec<Range<u64>>> {
        let Some(TargetProcess { mover, .. }) = self.process.get() else { return Ok(Vec::new()) };
        // Keeps the memory during the question, even if the program ends right after its fork.
        mover.stay().map_err(io::Error::other)?;
        let wiped = flagged(mover.pid(), "wf")?.collect::<io::Result<_>>()?;
        // If the memory went away while the list was read, the list may be incomplete.
        if self.events.is_alive() { Ok(wiped) } else { Err(Errno::SRCH.into()) }
    }

    /// Discards the pages that the last batch has left in staging.
    pub fn tidy(&self) {
        // A batch in progress discards them itself.
        if let Some(process) = self.process.get()
            && let Ok(mut moving) = self.moving.try_lock()
            && std::mem::take(&mut moving.is_staged)
            && process.mover.discard().is_err()
        {
            self.fail("its mover does not answer");
        }
    }

    /// Returns whether the driver should check which pages that have left must come back. Costs a load.
    pub fn has_moved(&self) -> bool {
        self.has_moved.load(Ordering::Relaxed)
    }

    /// Returns why a target that still lives can no longer be served, or `None` if it can. Such a target must
    /// not continue: some of its pages may be lost.
    pub fn failure(&self) -> Option<&'static str> {
        self.failure.get().copied()
    }

    /// Notes that pages could not be moved. The program has ended, or it must not continue.
    fn fail(&self, why: &'static str) {
        if self.events.is_alive() {
            let _ = self.failure.set(why);
        } else {
            self.lose();
        }
    }

    /// Returns how many pages the process has got so far without a fault that the kernel counts: pages that
    /// came along with another, and shared pages that were made its own on their way out. Some of the shared
    /// pages needed no copy, since no other process had the page any more.
    pub fn unfaulted_pages(&self) -> u64 {
        // Relaxed: a statistic.
        self.unfaulted_pages.load(Ordering::Relaxed)
    }

    /// Returns how many pages that were the process's own have been taken out up to now.
    pub fn taken_pages(&self) -> u64 {
        self.taken_pages.load(Ordering::Relaxed)
    }

    /// Ends the service of the target, and ends its mover. That frees the memory.
    pub fn end(&self) {
        self.lose();
        if let Some(equipment) = self.equipment() {
            equipment.mover.end();
        }
    }

    /// Ends the service of the target. Its mover keeps the memory: a thread may still be asking for the
    /// ranges of a fork whose event was read.
    pub fn lose(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Waits for the batch in progress, and returns the mover and staging. Returns `None` if there is no
    /// mover.
    fn equipment(&self) -> Option<Equipment<'_>> {
        let mover = &self.process.get()?.mover;
        Some(Equipment { mover, moving: self.moving.lock().expect("nobody panics here") })
    }
}

impl Reach for Target {
    unsafe fn copy_in(&self, to: u64, from: *const u8, len: u64, protected: bool) -> CallProgress {
        // SAFETY: the caller vouches for the source.
        let copied = unsafe { self.events.copy(to, from, len, protected, false) };
        self.unfaulted_pages.fetch_add((copied.done_bytes / PAGE).saturating_sub(1), Ordering::Relaxed);
        copied
    }

    fn protect(&self, start: u64, len: u64, on: bool) -> io::Result<()> {
        self.events.write_protect(start, len, on)
    }

    unsafe fn take_out(&self, runs: &[Taking], outcomes: &mut Vec<TakeOutcome>) {
        let Some(mut equipment) = self.equipment().filter(|_| self.failure().is_none()) else {
            return outcomes.resize(outcomes.len() + runs.len(), TakeOutcome::Part(0));
        };
        // SAFETY: the caller's promise.
        unsafe { self.take_unheld(&mut equipment, runs, outcomes) }
    }

    fn add_wanted(&self, pages: &mut Vec<u64>) {
        if !self.has_moved() {
            return;
        }
        // If a batch is in progress, its own thread looks.
        if let Ok(mut moving) = self.moving.try_lock()
            && let Some(mutexes) = &mut moving.mutexes
        {
            let unusable = std::mem::take(&mut *self.unusable.lock().expect("nobody panics here"));
            unusable.into_iter().for_each(|page| mutexes.is_not_usable(page));
            if mutexes.look() {
                self.has_moved.store(false, Ordering::Relaxed);
            }
            mutexes.take_found(pages);
        }
    }

    fn still_wanted(&self, page: u64) {
        self.unusable.lock().expect("nobody panics here").push(page);
        // Makes the driver look again.
        self.has_moved.store(true, Ordering::Relaxed);
    }

    fn look(&self, start: u64, len: u64, there: &mut dyn FnMut(u64)) -> io::Result<()> {
        let wanted = ScanFilter::any(Categories::PRESENT | Categories::SWAPPED);
        let pagemap = self.pagemap().ok_or(io::ErrorKind::NotFound)?;
        pagemap.scan(start, start + len, wanted, |run| {
            (run.start..run.end).step_by(PAGE as usize).for_each(&mut *there);
        })?;
        Ok(())
    }

    fn harvest(&self, runs: &[(u64, u64)], used: &mut dyn FnMut(u64)) -> io::Result<()> {
        let process = self.process.get().ok_or(io::ErrorKind::NotFound)?;
        // The mover keeps the program's memory for as long as the harvest needs it.
        let (pid, descriptor) = (process.mover.pid(), process.mover.process());
        let asked = AskedProcess { pid, descriptor, pagemap: &process.pagemap };
        self.used.lock().expect("nobody panics here").harvest(asked, runs, used)
    }

    fn wake(&self, start: u64, len: u64) {
        // An error means that the target has ended.
        let _ = self.events.wake(start, len);
    }

    fn read_events(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        self.events.read(events)
    }

    fn has_forked(&self, forks: usize) -> impl FnOnce() {
        let wiped = Wiped::default();
        let answers = std::iter::repeat_n(Arc::clone(&wiped), forks);
        self.wiped.lock().expect("nobody panics here").extend(answers);
        move || wiped.set(self.ask_wiped()).expect("the question is asked once")
    }

    fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    fn look_whether_gone(&self) -> bool {
        if !self.is_gone() && !self.events.is_alive() {
            self.lose();
        }
        self.is_gone()
    }
}
