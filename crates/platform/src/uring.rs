//! One io_uring for one file: transfers between it and arenas, queued, sent together, and pulled when they are done.
//!
//! A transfer is a [`Payload`]: the caller's own value, which names an arena and segments of it. The ring keeps it, in
//! a slab of fixed size, until the kernel is done, and then hands it back with how many bytes were moved. While it is
//! kept the ring holds a share of the arena's memory, so whatever becomes of the caller, the kernel writes into memory
//! that is there. Nothing is allocated after [`Ring::new`].
//!
//! **Who does what.** Any thread may queue, submit, reap and lead; a ring for each CPU only keeps them out of each
//! other's way. Nobody is told of a completion: somebody looks. [`Ring::reap`] looks in passing; [`Ring::try_lead`]
//! sleeps in the kernel for one completion on behalf of all who wait; [`Ring::as_fd`] is readable for `poll(2)` while
//! completions lie there.
//!
//! **Locks.** `submission` is held to fill an entry, and while entries are handed to the kernel (which starts the
//! device's work, and does not wait for it). `completion` is held to copy completions out, and by a leader while it
//! sleeps. Nobody holds both, and what is done with a completed payload is done under neither.
//!
//! **Why a leader looks again under the lock.** Between the popping of a completion and the delivery of its payload
//! nobody can tell that it is done. `delivering` counts such completions, and whoever finds it above zero does not go
//! to sleep: the one it waits for may be among them.
//!
//! **Costs**, beside the kernel's: queueing takes one uncontended lock, a share of the arena (one atomic addition) and
//! 64 bytes of entry; submitting one lock and one system call for everything queued; a completion two atomic additions and one
//! compare-and-swap. Reaping where nothing is in flight is one load.
//!
//! **Kernel.** Linux 5.11 or later: vectors are consumed when entries are submitted (`SUBMIT_STABLE`), and a wait can
//! have a timeout (`EXT_ARG`). Completions are *not* left for the submitting thread's next system call
//! (`COOP_TASKRUN`): other threads wait for them, and the submitter may be computing for as long as it likes.

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

use crate::arena_bytes::Runs;
use crate::{ArenaBytes, Direction, ForkCanary};

/// What a transfer is to a ring, which keeps it until it is done.
pub trait Payload {
    /// The arena whose bytes are moved.
    fn arena(&self) -> &ArenaBytes;

    /// Ranges of the arena, in the order in which their bytes lie in the file. Not empty.
    fn segments(&self) -> impl Iterator<Item = Range<usize>>;
}

/// The payload of a transfer that found no room: reap, and try again.
#[derive(Debug)]
pub struct Full<T>(pub T);

/// What became of an attempt to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// So many transfers were handed back; none after a timeout, a signal, or where nobody needed to wait any more.
    Reaped(usize),
    /// Another thread leads, or is handing back what it found.
    Busy,
    /// Nothing is in flight.
    Idle,
}

/// End of a list of slots.
const NO_SLOT: u32 = u32::MAX;
/// Vectors of all transfers that are queued and not yet submitted.
const SCRATCH_VECTORS: usize = 1024;
/// Most vectors of one transfer; what lies beyond is not moved.
const VECTORS: usize = 512;
/// Most bytes of one transfer, below what the kernel moves at once.
const BYTES: usize = 1 << 30;
/// Completions copied out under one hold of the lock.
const BATCH: usize = 32;

/// A ring for transfers between one file and arenas.
pub struct Ring<T> {
    // Both are left alone where dropping them would be wrong: see `drop`.
    uring: ManuallyDrop<IoUring>,
    slots: ManuallyDrop<Box<[Slot<T>]>>,
    submission: Mutex<Submission>,
    completion: Mutex<()>,
    /// As `Submission::queued`, for those who only ask.
    queued: AtomicU32,
    /// Slots given back, a list through `Slot::next`. Reapers push, the queueing side takes all.
    freed: AtomicU32,
    /// Queued, or in the kernel, or completed and not popped.
    in_flight: AtomicU32,
    /// Popped and not yet handed back.
    delivering: AtomicU32,
    canary: ForkCanary,
    /// How the kernel knows the file: its number there, or by descriptor where registering was refused.
    registered: bool,
    file: Arc<File>,
}

// SAFETY: payloads move from the thread that queues them to the one that reaps them, never shared, hence `T: Send`. A slot is
// owned by the queueing thread (under `submission`) until its entry is published, by nobody while the kernel works, and by the
// thread that popped its completion until it is pushed to `freed`. The queues are only borrowed under their locks.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

struct Slot<T> {
    next: AtomicU32,
    held: UnsafeCell<Option<Held<T>>>,
}

struct Held<T> {
    payload: T,
    // Whatever `payload` does with its own: this is where the kernel's pointers lead.
    _arena: ArenaBytes,
}

struct Submission {
    /// Slots to be used next, a list through `Slot::next`.
    free: u32,
    /// Entries that the kernel has not taken.
    queued: u32,
    vectors: Vectors,
}

/// The vectors of queued entries. The kernel reads them when it takes the entries, and not after.
struct Vectors {
    all: Box<[libc::iovec]>,
    used: usize,
}

// SAFETY: the pointers are addresses for the kernel, never followed here.
unsafe impl Send for Vectors {}

impl<T: Payload> Ring<T> {
    /// A ring for at most `entries` transfers in flight (rounded up to a power of two).
    ///
    /// # Errors
    /// A sentence that says why there is no io_uring here.
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
        // Spares the kernel a look-up for each transfer, with a count that all threads share.
        let registered = uring.submitter().register_files(&[file.as_raw_fd()]).is_ok();
        let entries = uring.params().sq_entries();
        // In flight are at most `entries`, and so never more completions than the queue holds.
        assert!(uring.params().cq_entries() >= entries, "room for every completion");
        let slots: Box<[Slot<T>]> = (1..=entries)
            .map(|next| Slot {
                next: AtomicU32::new(if next == entries { NO_SLOT } else { next }),
                held: UnsafeCell::new(None),
            })
            .collect();
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let vectors = Vectors { all: vec![empty; SCRATCH_VECTORS].into(), used: 0 };
        Ok(Self {
            uring: ManuallyDrop::new(uring),
            slots: ManuallyDrop::new(slots),
            submission: Mutex::new(Submission { free: 0, queued: 0, vectors }),
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

    /// Queues a transfer between the file at `file_offset` and the payload's segments. It starts at the next
    /// [`Ring::submit`] of any thread, or before. Of more than 512 runs of segments, or of more than 1 GiB, only the first are
    /// moved.
    ///
    /// # Errors
    /// [`Full`] when as many are in flight as there can be, when the kernel could not take what is queued, and in a
    /// forked child.
    pub fn queue(&self, file_offset: u64, direction: Direction, payload: T) -> Result<(), Full<T>> {
        if !self.canary.is_original_process() {
            return Err(Full(payload));
        }
        let mut submission = held(self.submission.lock());
        let submission = &mut *submission;
        let Some(slot) = self.take_slot(submission) else { return Err(Full(payload)) };
        // Asked for once: what the pointers lead to is what is kept.
        let arena = payload.arena().clone();
        let Some((first, count, bytes)) = self.gather(submission, &arena, &payload) else {
            self.slots[slot as usize].next.store(submission.free, Ordering::Relaxed);
            submission.free = slot;
            return Err(Full(payload));
        };
        // SAFETY: the slot came off the free list, so its last payload was taken out before (`push_freed` releases,
        // `take_slot` acquires), and nobody has its number.
        unsafe { *self.slots[slot as usize].held.get() = Some(Held { payload, _arena: arena }) };
        if direction == Direction::Read {
            // As for everything that fills a frame anew: see `arena_bytes`.
            fence(Ordering::Release);
        }
        let vectors = &submission.vectors.all[first..first + count];
        let entry = self.entry(file_offset, direction, vectors, bytes).user_data(u64::from(slot));
        // A count that is seen late only makes others look again; who queued sees its own.
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the submission lock is held, so this is the only borrow of the queue. The entry names a file that the ring
        // keeps open and ranges of an arena that the slot keeps mapped until the completion was popped; several ranges are
        // named by vectors in the scratch, which is not touched before the kernel has taken the entry (`hand_over`). What
        // the kernel does to arena bytes is another party's doing, which every access to them allows for.
        let pushed = unsafe { self.uring.submission_shared().push(&entry) };
        pushed.expect("as many entries as slots");
        submission.queued += 1;
        self.queued.store(submission.queued, Ordering::Relaxed);
        // One run is named by the entry itself.
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

    /// Writes the payload's vectors into the scratch: where they begin, how many, of how many bytes. `None` where there is
    /// no room and the kernel does not make any.
    fn gather(
        &self,
        submission: &mut Submission,
        arena: &ArenaBytes,
        payload: &T,
    ) -> Option<(usize, usize, usize)> {
        let (mut first, mut count, mut bytes) = (submission.vectors.used, 0, 0);
        for run in Runs::new(payload.segments()) {
            if count == VECTORS || bytes == BYTES {
                break;
            }
            if first + count == SCRATCH_VECTORS {
                // What others queued has to go first. Then the beginning is free again.
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
            // Acquire: what was in the slots was taken out before they were pushed.
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
            // Release: publishes `next`, and that the slot is empty. Lists are only ever taken whole, so a head that
            // comes again is the same list.
            match self.freed.compare_exchange_weak(head, slot, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Hands everything queued to the kernel, in one system call. One load where nothing is: a thread sees what it queued
    /// itself.
    ///
    /// # Errors
    /// The kernel's, when it takes nothing (it is short of memory): what is queued stays queued.
    pub fn submit(&self) -> io::Result<()> {
        if self.queued.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        if !self.canary.is_original_process() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut submission = held(self.submission.lock());
        self.hand_over(&mut submission)
    }

    fn hand_over(&self, submission: &mut Submission) -> io::Result<()> {
        while submission.queued > 0 {
            // SAFETY: hands over entries that were pushed; each holds what `queue` promises.
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
        Ok(())
    }

    /// Hands back what is done, if nobody else is at it. Never sleeps.
    pub fn reap(&self, mut hand_back: impl FnMut(T, io::Result<usize>)) -> usize {
        let mut total = 0;
        while self.in_flight.load(Ordering::Relaxed) > 0 && self.canary.is_original_process() {
            let Some(reaping) = try_held(self.completion.try_lock()) else { break };
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

    /// Sleeps until a transfer is done, if nobody else does and the caller is `still_waiting`, and hands back what is.
    pub fn try_lead(
        &self,
        still_waiting: impl Fn() -> bool,
        timeout: Duration,
        mut hand_back: impl FnMut(T, io::Result<usize>),
    ) -> Lead {
        if self.in_flight() == 0 || !self.canary.is_original_process() {
            return Lead::Idle;
        }
        let Some(leading) = try_held(self.completion.try_lock()) else { return Lead::Busy };
        // See the module doc. Acquire: pairs with the end of the delivery, so that `still_waiting` sees what it did.
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

    /// Transfers queued, in the kernel, or about to be handed back: at one moment or a later one.
    pub fn in_flight(&self) -> usize {
        // A completion counts as being delivered before it no longer counts as in flight, so the other order could miss it.
        let in_flight = self.in_flight.load(Ordering::Acquire);
        let delivering = self.delivering.load(Ordering::Acquire);
        if in_flight + delivering > 0 {
            return (in_flight + delivering) as usize;
        }
        // A delivery that ended in between may have queued the rest of its transfer.
        self.in_flight.load(Ordering::Acquire) as usize
    }

    /// The ring, for `poll(2)`: readable while completions lie there.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the ring lives.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }

    /// The file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies completions out. They count as being delivered from here on.
    fn pop(&self, _completion: &MutexGuard<'_, ()>) -> Popped {
        let mut popped = Popped { all: [(0, 0); BATCH], count: 0 };
        // SAFETY: the completion lock is held, so this is the only borrow of the queue.
        let completions = unsafe { self.uring.completion_shared() };
        // The room first: what was taken from the queue has to be kept.
        for (room, completion) in popped.all.iter_mut().zip(completions) {
            *room = (completion.user_data() as u32, completion.result());
            popped.count += 1;
        }
        if popped.count > 0 {
            // Up before down, so that their sum is never too small.
            self.delivering.fetch_add(popped.count as u32, Ordering::Relaxed);
            // Release: who sees it gone down sees the other gone up.
            self.in_flight.fetch_sub(popped.count as u32, Ordering::Release);
        }
        popped
    }

    fn deliver(&self, popped: Popped, hand_back: &mut impl FnMut(T, io::Result<usize>)) {
        if popped.count == 0 {
            return;
        }
        // Ends the delivery even if `hand_back` panics.
        let _delivering = Delivering { ring: &self.delivering, count: popped.count as u32 };
        for &(slot, result) in &popped.all[..popped.count] {
            // SAFETY: this thread popped the one completion of the one entry that had this slot's number, so nobody else has it
            // until it is pushed. The payload was written before the entry was published to the kernel, and the completion was
            // read after the kernel published it.
            let taken = unsafe { (*self.slots[slot as usize].held.get()).take() };
            self.push_freed(slot);
            let Held { payload, _arena } = taken.expect("a completion for each transfer");
            let result =
                if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
            hand_back(payload, result);
        }
    }
}

impl<T> Ring<T> {
    /// Sleeps until there is a completion, or something else happens.
    fn wait(&self, timeout: Duration) {
        let timeout = types::Timespec::from(timeout);
        let arguments = types::SubmitArgs::new().timespec(&timeout);
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: submits nothing; the arguments live across the call.
        // A timeout, a signal or a shortage: the caller looks again in each case.
        let _ = unsafe { self.uring.submitter().enter(0, 1, flags.bits(), Some(&arguments)) };
    }
}

struct Popped {
    all: [(u32, i32); BATCH],
    count: usize,
}

struct Delivering<'a> {
    ring: &'a AtomicU32,
    count: u32,
}

impl Drop for Delivering<'_> {
    fn drop(&mut self) {
        // Release: what the delivery did is seen by who finds it ended.
        self.ring.fetch_sub(self.count, Ordering::Release);
    }
}

impl<T> Drop for Ring<T> {
    /// Waits for everything that the kernel has; payloads are dropped.
    fn drop(&mut self) {
        // A forked child shares the queues with its parent, and did not inherit their memory: it leaves all alone, and what
        // it holds copies of.
        if !self.canary.is_original_process() {
            return;
        }
        let queued = held(self.submission.lock()).queued;
        // What was queued and never submitted is unknown to the kernel, and goes with the ring.
        let mut in_kernel = self.in_flight.load(Ordering::Relaxed) - queued;
        while in_kernel > 0 {
            // SAFETY: `&mut self`: there is no other borrow.
            let completions = unsafe { self.uring.completion_shared() };
            let popped = completions.count() as u32;
            in_kernel -= popped;
            if popped == 0 {
                self.wait(Duration::from_secs(1));
            }
        }
        // Or the file would be open until the kernel has taken the ring apart, in its own time.
        let _ = self.uring.submitter().unregister_files();
        // SAFETY: dropped once, here, after the kernel was done with the memory that the slots hold.
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
    // One entry that the kernel refuses does not hold up the others; Linux 5.18.
    let uring = match builder.clone().setup_submit_all().build(entries) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.build(entries)?,
        other => other?,
    };
    // A filter may allow the one call and not the other: see that entries go round.
    // SAFETY: this thread alone knows the ring; the entry names no memory.
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

/// A lock whatever happened under it before: what it guards is whole at every point where something could panic.
fn held<G>(lock: Result<G, std::sync::PoisonError<G>>) -> G {
    lock.unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn try_held<G>(lock: Result<G, TryLockError<G>>) -> Option<G> {
    match lock {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests;
