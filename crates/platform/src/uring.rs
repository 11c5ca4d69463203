//! One io_uring for one file. Threads queue transfers between the file and arenas, submit them together, and
//! pull their completions.
//!
//! A transfer is a [`Payload`]: a value of the caller that names an arena and segments of the arena. The ring
//! keeps the payload in a slab of fixed size until the kernel is done. Then it hands the payload back, with
//! the number of bytes that moved. Until then, the ring holds a clone of the arena. So the kernel writes into
//! mapped memory, even if the caller has dropped its own clone. The ring allocates nothing after
//! [`Ring::new`].
//!
//! **Who does what.** Any thread may queue, submit, reap and lead. One ring per CPU only reduces contention.
//! The ring notifies no thread of a completion. So some thread has to look. [`Ring::reap`] looks without
//! waiting. [`Ring::try_lead`] sleeps in the kernel for one completion, on behalf of all threads that wait.
//! [`Ring::as_fd`] is readable for `poll(2)` while completions wait in the queue.
//!
//! **Locks.** A thread holds `submission` while it fills an entry, and while it hands entries to the kernel.
//! The hand-over starts the device's work and does not wait for it. A thread holds `completion` to copy
//! completions out, and a leader holds it while it sleeps. Only a leader holds both: it may take `submission`
//! under `completion`. No lock is held while a completed payload is handed back.
//!
//! **Why a leader looks again under the lock.** After a completion was popped, and before its payload is
//! delivered, no thread can tell that the transfer is done. `delivering` counts such completions. A thread
//! that finds it above zero does not go to sleep: its own transfer may be among them.
//!
//! **Costs**, beside the kernel's. Queueing takes one uncontended lock, one atomic addition for the clone of
//! the arena, and an entry of 64 bytes. Submitting takes one lock and one system call for everything queued.
//! A completion takes two atomic additions and one compare-and-swap. Reaping with nothing in flight is one
//! load.
//!
//! **Kernel.** Linux 5.11 or later: the kernel consumes vectors when it takes entries (`SUBMIT_STABLE`), and
//! a wait can have a timeout (`EXT_ARG`). The ring does *not* leave completions for the submitting thread's
//! next system call (`COOP_TASKRUN`): other threads wait for them, and the submitter may compute for long.

use std::cell::UnsafeCell;
use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue, types};

use crate::arena_bytes::MergedRuns;
use crate::{ArenaBytes, Direction, ForkCanary, without_size_signal};

/// A transfer, as a ring sees it. The ring keeps the payload until the transfer is done.
pub trait Payload {
    /// The arena whose bytes move.
    fn arena(&self) -> &ArenaBytes;

    /// Ranges of the arena, in the order in which their bytes lie in the file. There is at least one.
    fn segments(&self) -> impl Iterator<Item = Range<usize>>;
}

/// The payload of a transfer that found no room. The caller reaps and tries again.
#[derive(Debug)]
pub struct Full<T>(pub T);

/// The outcome of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// The leader handed back this many transfers: none after a timeout, after a signal, or if the caller had
    /// nothing to wait for any more.
    Reaped(usize),
    /// Another thread leads, or is handing back completions.
    Busy,
    /// No transfer is in flight.
    Idle,
}

/// End of a list of slots.
const NO_SLOT: u32 = u32::MAX;
/// Room for the vectors of all transfers that are queued but not submitted.
const SCRATCH_VECTORS: usize = 1024;
/// The most vectors of one transfer. Bytes beyond them do not move.
const VECTORS: usize = 512;
/// The most bytes of one transfer: fewer than the kernel moves at once.
const BYTES: usize = 1 << 30;
/// The most completions that a thread copies out under one hold of the lock.
const BATCH: usize = 32;

/// A ring for transfers between one file and arenas.
pub struct Ring<T> {
    // `drop` does not drop these two in a forked child.
    uring: ManuallyDrop<IoUring>,
    slots: ManuallyDrop<Box<[PayloadSlot<T>]>>,
    submission: Mutex<Submission>,
    completion: Mutex<()>,
    /// A copy of `Submission::queued`, for threads that only ask.
    queued: AtomicU32,
    /// The slots that were given back: a list through `PayloadSlot::next`. Reapers push to it, and the
    /// queueing side takes it whole.
    freed: AtomicU32,
    /// Transfers that are queued, in the kernel, or completed and not popped.
    in_flight: AtomicU32,
    /// Transfers whose completions were popped, and whose payloads have not been handed back yet.
    delivering: AtomicU32,
    canary: ForkCanary,
    /// Whether the file is registered with the kernel. Otherwise entries name its descriptor.
    registered: bool,
    file: Arc<File>,
}

// SAFETY: a payload moves from the thread that queues it to the one that reaps it, and is never shared: hence
// `T: Send`. The queueing thread owns a slot (under `submission`) until it pushes the entry. Nobody owns the
// slot while the kernel works. The thread that popped its completion owns it until that thread pushes it to
// `freed`. The queues are only borrowed under their locks.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

struct PayloadSlot<T> {
    next: AtomicU32,
    held: UnsafeCell<Option<HeldPayload<T>>>,
}

struct HeldPayload<T> {
    payload: T,
    // The kernel's pointers lead into this arena, whatever the payload does with its own clone.
    _arena: ArenaBytes,
}

struct Submission {
    /// The slots to use next: a list through `PayloadSlot::next`.
    free: u32,
    /// Entries that the kernel has not taken yet.
    queued: u32,
    /// Whether one of the queued entries is a write.
    writes: bool,
    vectors: Vectors,
}

/// The vectors of queued entries. The kernel reads them when it takes the entries, and not afterwards.
struct Vectors {
    all: Box<[libc::iovec]>,
    used: usize,
}

// SAFETY: the pointers are addresses for the kernel. Nothing here follows them.
unsafe impl Send for Vectors {}

impl<T: Payload> Ring<T> {
    /// Makes a ring for at most `entries` transfers in flight, rounded up to a power of two.
    ///
    /// Fails with a sentence that says why io_uring does not work here.
    pub fn new(file: Arc<File>, entries: u32) -> io::Result<Self> {
        let uring = build(entries).map_err(|error| explain(&error))?;
        let lacking = |what: &str| {
            Err(io::Error::new(io::ErrorKind::Unsupported, format!("this kernel's io_uring has no {what}")))
        };
        if !uring.params().is_feature_submit_stable() {
            return lacking("SUBMIT_STABLE (Linux 5.5)");
        }
        if !uring.params().is_feature_ext_arg() {
            return lacking("EXT_ARG (Linux 5.11)");
        }
        let mut probe = Probe::new();
        uring.submitter().register_probe(&mut probe).map_err(|error| explain(&error))?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Readv::CODE, opcode::Writev::CODE];
        if !needed.iter().all(|&code| probe.is_supported(code)) {
            return lacking("READ, WRITE, READV and WRITEV");
        }
        // A registered file spares the kernel, for each transfer, a look-up and an update of a count that all
        // threads share.
        let registered = uring.submitter().register_files(&[file.as_raw_fd()]).is_ok();
        let entries = uring.params().sq_entries();
        // At most `entries` transfers are in flight, so there are never more completions than the queue
        // holds.
        assert!(uring.params().cq_entries() >= entries, "room for every completion");
        let slots: Box<[PayloadSlot<T>]> = (1..=entries)
            .map(|next| PayloadSlot {
                next: AtomicU32::new(if next == entries { NO_SLOT } else { next }),
                held: UnsafeCell::new(None),
            })
            .collect();
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let vectors = Vectors { all: vec![empty; SCRATCH_VECTORS].into(), used: 0 };
        Ok(Self {
            uring: ManuallyDrop::new(uring),
            slots: ManuallyDrop::new(slots),
            submission: Mutex::new(Submission { free: 0, queued: 0, writes: false, vectors }),
            completion: Mutex::new(()),
            queued: AtomicU32::new(0),
            freed: AtomicU32::new(NO_SLOT),
            in_flight: AtomicU32::new(0),
            delivering: AtomicU32::new(0),
            canary: ForkCanary::new()?,
            registered,
            file,
        })
    }

    /// Queues a transfer between the file at `file_offset` and the payload's segments. The transfer starts at
    /// the next [`Ring::submit`] of any thread, or before. A transfer moves at most 512 runs of segments and
    /// 1 GiB; bytes beyond them do not move.
    ///
    /// Fails with [`Full`] if no slot is free, if the kernel could not take the queued entries, and in a
    /// forked child.
    pub fn queue(&self, file_offset: u64, direction: Direction, payload: T) -> Result<(), Full<T>> {
        if !self.canary.is_original_process() {
            return Err(Full(payload));
        }
        let mut submission = unpoisoned(self.submission.lock());
        let submission = &mut *submission;
        let Some(slot) = self.take_slot(submission) else { return Err(Full(payload)) };
        // Ask the payload only once, so that the slot keeps the very arena to which the pointers lead.
        let arena = payload.arena().clone();
        let Some((first, count, bytes)) = self.gather(submission, &arena, &payload) else {
            self.slots[slot as usize].next.store(submission.free, Ordering::Relaxed);
            submission.free = slot;
            return Err(Full(payload));
        };
        // SAFETY: the slot came off the free list, so its last payload was taken out before (`push_freed`
        // releases, `take_slot` acquires). Nobody else has its number.
        unsafe { *self.slots[slot as usize].held.get() = Some(HeldPayload { payload, _arena: arena }) };
        if direction == Direction::Read {
            // A read fills frames anew: the module doc of `arena_bytes` explains the fence.
            fence(Ordering::Release);
        }
        let vectors = &submission.vectors.all[first..first + count];
        let entry = self.entry(file_offset, direction, vectors, bytes).user_data(u64::from(slot));
        // Relaxed: a thread that sees the new count late only looks again. The thread that queues sees its
        // own addition.
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        // SAFETY: this thread holds the submission lock, so this is the only borrow of the queue. The entry
        // names a file that the ring keeps open, and ranges of an arena that the slot keeps mapped until the
        // completion has been popped. Vectors in the scratch name several ranges; nobody touches them before
        // the kernel has taken the entry (`hand_over`). The kernel changes arena bytes as another thread
        // might, and every access to them allows for that.
        let pushed = unsafe { self.uring.submission_shared().push(&entry) };
        pushed.expect("as many entries as slots");
        submission.queued += 1;
        submission.writes |= direction == Direction::Write;
        self.queued.store(submission.queued, Ordering::Relaxed);
        // A single run needs no vector: the entry names it.
        submission.vectors.used = if count == 1 { first } else { first + count };
        Ok(())
    }

    fn entry(
        &self,
        file_offset: u64,
        direction: Direction,
        vectors: &[libc::iovec],
        bytes: usize,
    ) -> squeue::Entry {
        macro_rules! entry {
            ($file:expr) => {
                match (direction, vectors) {
                    (Direction::Read, [one]) => {
                        let at = one.iov_base.cast();
                        opcode::Read::new($file, at, bytes as u32).offset(file_offset).build()
                    }
                    (Direction::Write, [one]) => {
                        let at = one.iov_base.cast_const().cast();
                        opcode::Write::new($file, at, bytes as u32).offset(file_offset).build()
                    }
                    (Direction::Read, several) => {
                        let count = several.len() as u32;
                        opcode::Readv::new($file, several.as_ptr(), count).offset(file_offset).build()
                    }
                    (Direction::Write, several) => {
                        let count = several.len() as u32;
                        opcode::Writev::new($file, several.as_ptr(), count).offset(file_offset).build()
                    }
                }
            };
        }
        if self.registered { entry!(types::Fixed(0)) } else { entry!(types::Fd(self.file.as_raw_fd())) }
    }

    /// Writes the payload's vectors into the scratch. Returns the index of the first, their number, and their
    /// bytes, or `None` if there is no room and the kernel takes no entries.
    fn gather(
        &self,
        submission: &mut Submission,
        arena: &ArenaBytes,
        payload: &T,
    ) -> Option<(usize, usize, usize)> {
        let (mut first, mut count, mut bytes) = (submission.vectors.used, 0, 0);
        for run in MergedRuns::new(payload.segments()) {
            if count == VECTORS || bytes == BYTES {
                break;
            }
            if first + count == SCRATCH_VECTORS {
                // The kernel must first take the entries queued before. Then the beginning of the scratch is
                // free again.
                if self.hand_over(submission).is_err() || submission.queued > 0 {
                    return None;
                }
                submission.vectors.all.copy_within(first..first + count, 0);
                first = 0;
            }
            let len = (run.end - run.start).min(BYTES - bytes);
            let base = arena.at(run.start, len).cast();
            submission.vectors.all[first + count] = libc::iovec { iov_base: base, iov_len: len };
            count += 1;
            bytes += len;
        }
        assert!(count > 0, "a transfer is never empty");
        Some((first, count, bytes))
    }

    fn take_slot(&self, submission: &mut Submission) -> Option<u32> {
        if submission.free == NO_SLOT {
            // Acquire: reapers took the payloads out of the slots before they pushed them.
            submission.free = self.freed.swap(NO_SLOT, Ordering::Acquire);
        }
        let slot = submission.free;
        if slot == NO_SLOT {
            return None;
        }
        submission.free = self.slots[slot as usize].next.load(Ordering::Relaxed);
        Some(slot)
    }

    fn push_freed(&self, slot: u32) {
        let mut head = self.freed.load(Ordering::Relaxed);
        loop {
            self.slots[slot as usize].next.store(head, Ordering::Relaxed);
            // Release: publishes `next`, and that the slot is empty. Lists are only ever taken whole, so a
            // head that reappears is the same list.
            match self.freed.compare_exchange_weak(head, slot, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Hands everything queued to the kernel, in one system call. If nothing is queued, this costs one load.
    /// One load is enough, since a thread sees the entries that it queued itself.
    ///
    /// Fails with the kernel's error if the kernel is short of memory. The entries that the kernel did not
    /// take stay queued.
    pub fn submit(&self) -> io::Result<()> {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        if !self.canary.is_original_process() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut submission = unpoisoned(self.submission.lock());
        self.hand_over(&mut submission)
    }

    fn hand_over(&self, submission: &mut Submission) -> io::Result<()> {
        if !submission.writes {
            return self.hand_over_all(submission);
        }
        // The kernel begins the entries on this thread.
        without_size_signal(|| self.hand_over_all(submission))
    }

    fn hand_over_all(&self, submission: &mut Submission) -> io::Result<()> {
        while submission.queued > 0 {
            // SAFETY: the call hands over entries that were pushed, each of which keeps the promises of
            // `queue`.
            let taken =
                unsafe { self.uring.submitter().enter::<libc::sigset_t>(submission.queued, 0, 0, None) };
            match taken {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(taken) => {
                    submission.queued -= taken as u32;
                    self.queued.store(submission.queued, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        submission.vectors.used = 0;
        submission.writes = false;
        Ok(())
    }

    /// Hands back the transfers that are done, unless another thread is handing them back. Never sleeps.
    pub fn reap(&self, mut hand_back: impl FnMut(T, io::Result<usize>)) -> usize {
        let mut total = 0;
        while self.in_flight.load(Ordering::Relaxed) > 0 && self.canary.is_original_process() {
            let Some(reaping) = try_unpoisoned(self.completion.try_lock()) else { break };
            let popped = self.pop(&reaping);
            drop(reaping);
            let count = popped.count;
            self.deliver(popped, &mut hand_back);
            total += count;
            if count < BATCH {
                break;
            }
        }
        total
    }

    /// Sleeps until a transfer is done, and hands back all transfers that are done. Does not sleep if another
    /// thread leads, or if the caller is no longer `still_waiting`.
    pub fn try_lead(
        &self,
        still_waiting: impl Fn() -> bool,
        timeout: Duration,
        mut hand_back: impl FnMut(T, io::Result<usize>),
    ) -> Lead {
        if self.in_flight() == 0 || !self.canary.is_original_process() {
            return Lead::Idle;
        }
        let Some(leading) = try_unpoisoned(self.completion.try_lock()) else { return Lead::Busy };
        // The module doc says why this looks again. Acquire: pairs with the end of the delivery, so that
        // `still_waiting` sees its effects.
        if self.delivering.load(Ordering::Acquire) > 0 {
            return Lead::Busy;
        }
        if !still_waiting() {
            return Lead::Reaped(0);
        }
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            return Lead::Idle;
        }
        let mut popped = self.pop(&leading);
        if popped.count == 0 {
            // If the kernel takes nothing now, the timeout ends the wait and the caller tries again.
            let _ = self.submit();
            self.wait(timeout);
            popped = self.pop(&leading);
        }
        drop(leading);
        let count = popped.count;
        self.deliver(popped, &mut hand_back);
        Lead::Reaped(count)
    }

    /// Returns the number of transfers that are queued, in the kernel, or about to be handed back, at one
    /// moment or a later one.
    pub fn in_flight(&self) -> usize {
        // A completion counts as being delivered before it stops counting as in flight. The other order of
        // loads could miss it.
        let in_flight = self.in_flight.load(Ordering::Acquire);
        let delivering = self.delivering.load(Ordering::Acquire);
        if in_flight + delivering > 0 {
            return (in_flight + delivering) as usize;
        }
        // A delivery that ended in between may have queued the rest of its transfer.
        self.in_flight.load(Ordering::Acquire) as usize
    }

    /// Returns the ring's descriptor for `poll(2)`: readable while completions wait in the queue.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the ring lives.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    /// Returns the file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies completions out. From here on they count as being delivered.
    fn pop(&self, _completion: &MutexGuard<'_, ()>) -> Popped {
        let mut popped = Popped { all: [(0, 0); BATCH], count: 0 };
        // SAFETY: this thread holds the completion lock, so this is the only borrow of the queue.
        let completions = unsafe { self.uring.completion_shared() };
        // The room comes first in the zip: if there is no room, no completion is taken from the queue and
        // lost.
        for (room, completion) in popped.all.iter_mut().zip(completions) {
            *room = (completion.user_data() as u32, completion.result());
            popped.count += 1;
        }
        if popped.count > 0 {
            // `delivering` goes up before `in_flight` goes down, so that their sum is never too small.
            self.delivering.fetch_add(popped.count as u32, Ordering::Relaxed);
            // Release: a thread that sees `in_flight` gone down sees `delivering` gone up.
            self.in_flight.fetch_sub(popped.count as u32, Ordering::Release);
        }
        popped
    }

    fn deliver(&self, popped: Popped, hand_back: &mut impl FnMut(T, io::Result<usize>)) {
        if popped.count == 0 {
            return;
        }
        // The guard ends the delivery even if `hand_back` panics.
        let _delivering = Delivering { counter: &self.delivering, count: popped.count as u32 };
        for &(slot, result) in &popped.all[..popped.count] {
            // SAFETY: this thread popped the only completion of the only entry with this slot's number. So no
            // other thread has the slot until it is pushed to `freed`. The payload was written before the
            // entry was published to the kernel, and the completion was read after the kernel published it.
            let taken = unsafe { (*self.slots[slot as usize].held.get()).take() };
            self.push_freed(slot);
            let HeldPayload { payload, _arena } = taken.expect("a completion for each transfer");
            let result =
                if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
            hand_back(payload, result);
        }
    }
}

impl<T> Ring<T> {
    /// Sleeps until there is a completion, a timeout, a signal or a shortage.
    fn wait(&self, timeout: Duration) {
        let timeout = types::Timespec::from(timeout);
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: the call submits nothing, and the arguments live across it. The caller looks again, for
        // whatever reason the wait ended.
        let _ = unsafe { self.uring.submitter().enter(0, 1, flags.bits(), Some(&arguments)) };
    }
}

struct Popped {
    all: [(u32, i32); BATCH],
    count: usize,
}

struct Delivering<'a> {
    counter: &'a AtomicU32,
    count: u32,
}

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        // Release: a thread that finds the delivery ended sees its effects.
        self.counter.fetch_sub(self.count, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    /// Waits for every transfer that the kernel has. Payloads are dropped.
    fn drop(&mut self) {
        // A forked child shares the queues with its parent, and did not inherit their memory. So it leaves
        // the ring and the copied payloads alone.
        if !self.canary.is_original_process() {
            return;
        }
        let queued = unpoisoned(self.submission.lock()).queued;
        // The kernel knows nothing of entries that were never submitted. They are dropped with the ring.
        let mut in_kernel = self.in_flight.load(Ordering::Relaxed) - queued;
        while in_kernel > 0 {
            // SAFETY: `&mut self` rules out every other borrow.
            let completions = unsafe { self.uring.completion_shared() };
            let popped = completions.count() as u32;
            in_kernel -= popped;
            if popped == 0 {
                self.wait(Duration::from_secs(1));
            }
        }
        // Without this, the file would stay open until the kernel frees the ring at some later time.
        let _ = self.uring.submitter().unregister_files();
        // SAFETY: both are dropped here, once, after the kernel is done with the memory that the slots hold.
        unsafe {
            ManuallyDrop::drop(&mut self.uring);
            ManuallyDrop::drop(&mut self.slots);
        }
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("slots", &self.slots.len()).field("in_flight", &self.in_flight).finish()
    }
}

fn build(entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::<squeue::Entry>::builder();
    builder.dontfork();
    // With this flag (Linux 5.18) an entry that the kernel refuses does not hold up the others.
    let uring = match builder.clone().setup_submit_all().build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(entries)?,
        other => other?,
    };
    // A filter may allow one call and forbid the other, so one entry must make the round trip.
    // SAFETY: this thread alone knows the ring, and the entry names no memory.
    unsafe {
        let pushed = uring.submission_shared().push(&opcode::Nop::new().build());
        pushed.expect("an empty queue has room");
    }
    while uring.submit_and_wait(1).map_or_else(
        |error| if error.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(error) },
        |_| Ok(false),
    )? {}
    // SAFETY: as above.
    let answer = unsafe { uring.completion_shared() }.next().map(|answer| answer.result());
    match answer {
        Some(error) if error < 0 => Err(io::Error::from_raw_os_error(-error)),
        Some(_) => Ok(uring),
        None => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn explain(error: &io::Error) -> io::Error {
    let message = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!("io_uring is forbidden here ({})", name(error)),
        Some(libc::ENOSYS) => "this kernel has no io_uring (ENOSYS)".into(),
        Some(libc::ENOMEM) => {
            "there is not enough memory for io_uring, or the limit on locked memory is too low (ENOMEM)"
                .into()
        }
        _ => format!("io_uring does not work here ({error})"),
    };
    io::Error::new(error.kind(), message)
}

fn name(error: &io::Error) -> &'static str {
    if error.raw_os_error() == Some(libc::EPERM) { "EPERM" } else { "EACCES" }
}

/// Takes a lock even if a thread panicked under it. The guarded data is consistent at every point where a
/// panic is possible.
fn unpoisoned<G>(lock: Result<G, std::sync::PoisonError<G>>) -> G {
    lock.unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn try_unpoisoned<G>(lock: Result<G, TryLockError<G>>) -> Option<G> {
    match lock {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests;
