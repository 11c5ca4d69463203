//! The io_uring engine: a ring for each CPU. Threads that need completions pull them.
//!
//! ```text
//!  submit ── queued in the ring of this CPU ── flush: one system call ── the device works ── completion lies in the ring
//!                                                                                               │
//!    poll: anybody, in passing ─────────────────────────────────────────────────────────────────┤
//!    wait: the first who waits for this ring sleeps in the kernel for it, for all who do ───────┤
//!    "octavo-io": a thread, only while others sleep who cannot ─────────────────────────────────┘
//! ```
//!
//! A thread that waits for any transfer also leaves all transfers to the I/O thread, so one thread completes
//! transfers for many.
//!
//! **No wake-up is lost.** `announced` counts the transfers of a ring, from before the ring's number
//! is noted in them until they are completed. If a thread finds the number noted, and another thread leads,
//! it sets `serving` and may sleep until it is woken: the I/O thread serves until no transfer is announced.
//! The I/O thread first clears `serving`, and then looks at the counts. Other threads first count, and then
//! look at `serving`. All of these accesses are sequentially consistent.
//!
//! Locking: the ring's own two locks, and `stop` of the I/O thread. No transfer is completed under them.

use std::fs::File;
use std::io;

use crossbeam_utils::CachePadded;
use octavo_platform::ForkCanary;
use octavo_platform::uring::{Full, Lead, Ring};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;

use super::device::{ANY_QUEUE, Device, MOST_PAGES, NO_QUEUE, Submitted, Waited};
use super::pending::{PendingTransfer, counted, join_if_other};
use super::transfer::{Transfer, Urgency};
use crate::sync::{
    AtomicBool, AtomicU64, Condvar, Cpus, Duration, Mutex, Ordering, Shared, fence, pause, thread,
};

/// The most rings: beyond that, CPUs share them.
const MOST_RINGS: usize = 16;
/// The most transfers in flight in a ring.
const ENTRIES: u32 = 128;
/// The queue of a transfer that the submitting thread does itself.
const IN_PLACE: u32 = u32::MAX - 1;
/// The queue of the first ring. The others follow. No frame has such a number, since the word that notes the
/// queue may also hold a frame number.
const FIRST_RING: u32 = 0xFFFF_0000;
/// How long a leader sleeps before it looks again, whatever happens.
const LEAD: Duration = Duration::from_millis(50);
/// How long a thread that waits for several rings sleeps.
const WATCH: Duration = Duration::from_millis(5);
/// How often the I/O thread looks whether it should end.
const SERVE: Duration = Duration::from_millis(100);

/// The rings, and the thread that serves sleepers.
pub(super) struct UringEngine {
    rings: Shared<Rings>,
    cpus: Cpus,
    thread: Option<thread::JoinHandle<()>>,
    canary: ForkCanary,
}

struct Rings {
    lanes: Box<[CachePadded<RingLane>]>,
    file: Shared<File>,
    /// Whether the I/O thread must complete the announced transfers.
    serving: AtomicBool,
    stop: Mutex<bool>,
    changed: Condvar,
}

struct RingLane {
    ring: Ring<PendingTransfer>,
    announced: AtomicU64,
}

impl UringEngine {
    /// # Errors
    /// The reason why there is no io_uring here.
    pub(super) fn start(file: &Shared<File>) -> io::Result<Self> {
        let cpus = Cpus::real();
        let lanes = (0..cpus.count().clamp(1, MOST_RINGS))
            .map(|_| {
                let ring = Ring::new(Shared::clone(file), ENTRIES)?;
                Ok(CachePadded::new(RingLane { ring, announced: AtomicU64::new(0) }))
            })
            .collect::<io::Result<_>>()?;
        let canary = ForkCanary::new()?;
        let rings = Shared::new(Rings {
            lanes,
            file: Shared::clone(file),
            serving: AtomicBool::new(false),
            stop: Mutex::new(false),
            changed: Condvar::default(),
        });
        let served = Shared::clone(&rings);
        let thread =
            thread::Builder::new().name("octavo-io".into()).spawn(move || served.serve_sleepers())?;
        Ok(Self { rings, cpus, thread: Some(thread), canary })
    }
}

impl Device for UringEngine {
    fn capacity_pages(&self) -> u32 {
        MOST_PAGES
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        let mut pending = PendingTransfer::new(transfer);
        if urgency == Urgency::Now {
            pending.transfer().note_queue(IN_PLACE);
            pending.in_place(&self.rings.file);
            return Submitted::Accepted;
        }
        let lanes = self.rings.lanes.len();
        let own = self.cpus.current() % lanes;
        // If this CPU's ring is full, another may have room.
        for index in (own..lanes).chain(0..own) {
            pending = match self.rings.queue(index, pending) {
                Ok(()) => return Submitted::Accepted,
                Err(pending) => pending,
            };
        }
        if !self.canary.is_original_process() {
            pending.fail(io::ErrorKind::Unsupported.into());
            return Submitted::Accepted;
        }
        pending.transfer().note_queue(NO_QUEUE);
        Submitted::Full(pending.into_transfer())
    }

    fn flush(&self) {
        // Transfers that the kernel cannot take now stay queued. They go with the next flush, or with a
        // thread that waits.
        self.rings.lanes.iter().for_each(|lane| drop(lane.ring.submit()));
    }

    fn poll(&self) {
        self.rings.reap();
    }

    fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        // The caller has read the number before this fence, and the counts are read after it.
        fence(Ordering::Acquire);
        if queue == IN_PLACE {
            return Waited::Sleep;
        }
        if queue == ANY_QUEUE {
            // The I/O thread completes transfers for all waiting threads.
            self.serve();
            return Waited::Sleep;
        }
        let ring = queue.wrapping_sub(FIRST_RING) as usize;
        let Some(lane) = self.rings.lanes.get(ring) else {
            self.rings.watch_all(still_waiting);
            return Waited::Progress;
        };
        let led = lane.ring.try_lead(still_waiting, LEAD, |pending, moved| {
            self.rings.hand_back(lane, pending, moved);
        });
        match led {
            Lead::Reaped(_) => Waited::Progress,
            Lead::Busy if lane.announced.load(Ordering::SeqCst) > 0 => {
                self.serve();
                Waited::Sleep
            }
            // The transfer is completed already, or on its way into the ring.
            Lead::Busy | Lead::Idle => {
                thread::yield_now();
                Waited::Progress
            }
        }
    }

    fn serve(&self) {
        if !self.rings.serving.load(Ordering::SeqCst) {
            let _stop = self.rings.stop.lock();
            self.rings.serving.store(true, Ordering::SeqCst);
            self.rings.changed.notify_one();
        }
    }

    fn describe(&self) -> String {
        format!("io_uring, {}", counted(self.rings.lanes.len(), "ring"))
    }
}

impl Rings {
    /// Queues a transfer in one ring. Returns the transfer if that ring is full.
    fn queue(&self, index: usize, pending: PendingTransfer) -> Result<(), PendingTransfer> {
        let lane = &*self.lanes[index];
        let queue =
            |pending: PendingTransfer| lane.ring.queue(pending.file_offset(), pending.direction(), pending);
        // Count the transfer before its number is noted: see the module doc.
        lane.announced.fetch_add(1, Ordering::SeqCst);
        pending.transfer().note_queue(FIRST_RING + index as u32);
        let queued = queue(pending).or_else(|Full(pending)| {
            // The ring is full. To submit what is queued, and to take out what has ended, may make room. If
            // there is an error, the second try reports it.
            let _ = lane.ring.submit();
            lane.ring.reap(|pending, moved| self.hand_back(lane, pending, moved));
            queue(pending)
        });
        queued.map_err(|Full(pending)| {
            lane.announced.fetch_sub(1, Ordering::SeqCst);
            pending
        })
    }

    /// Takes back a transfer: the kernel is done with it, or with a part of it.
    fn hand_back(&self, lane: &RingLane, pending: PendingTransfer, moved: io::Result<usize>) {
        if let Some(rest) = pending.advance(&self.file, moved) {
            // A rest is rare and soon done, so move it here instead of by the ring.
            rest.in_place(&self.file);
        }
        lane.announced.fetch_sub(1, Ordering::SeqCst);
    }

    /// Completes the transfers that have ended. Returns how many.
    fn reap(&self) -> usize {
        let reap_one = |lane: &CachePadded<RingLane>| {
            lane.ring.reap(|pending, moved| self.hand_back(lane, pending, moved))
        };
        self.lanes.iter().map(reap_one).sum()
    }

    fn is_anything_announced(&self) -> bool {
        self.lanes.iter().any(|lane| lane.announced.load(Ordering::SeqCst) > 0)
    }

    /// Waits for any transfer: completes those that have ended, or sleeps until one ends, but only for a
    /// moment.
    fn watch_all(&self, still_waiting: &dyn Fn() -> bool) {
        if !self.is_anything_announced() {
            // The transfer is on its way here, or done.
            return thread::yield_now();
        }
        if self.reap() > 0 || !still_waiting() {
            return;
        }
        self.lanes.iter().for_each(|lane| drop(lane.ring.submit()));
        let mut busy = self.lanes.iter().filter(|lane| lane.ring.in_flight() > 0);
        if let (Some(lane), None) = (busy.next(), busy.next()) {
            let led = lane.ring.try_lead(still_waiting, WATCH, |pending, moved| {
                self.hand_back(lane, pending, moved);
            });
            if led != Lead::Busy {
                return;
            }
        }
        self.sleep_until_readable(WATCH);
        self.reap();
    }

    fn sleep_until_readable(&self, most: Duration) {
        let mut rings: SmallVec<[PollFd<'_>; MOST_RINGS]> = self
            .lanes
            .iter()
            .map(|lane| PollFd::from_borrowed_fd(lane.ring.as_fd(), PollFlags::IN))
            .collect();
        let most = Timespec { tv_sec: 0, tv_nsec: most.subsec_nanos().into() };
        // A signal or a shortage may end the wait early. The caller looks again.
        let _ = poll(&mut rings, Some(&most));
    }

    /// The I/O thread.
    fn serve_sleepers(&self) {
        loop {
            {
                let mut stop = self.stop.lock();
                while !*stop && !self.serving.load(Ordering::SeqCst) {
                    stop = self.changed.wait_for(stop, Duration::from_secs(3600));
                }
                if *stop {
                    return;
                }
            }
            while !self.serve_until_quiet() {
                if *self.stop.lock() {
                    return;
                }
            }
        }
    }

    /// Completes the transfers that end next. Returns whether nothing is left, so that no thread has to be
    /// served any more.
    fn serve_until_quiet(&self) -> bool {
        self.reap();
        if !self.is_anything_announced() {
            self.serving.store(false, Ordering::SeqCst);
            if !self.is_anything_announced() {
                return true;
            }
            // Set the flag again: the thread that announced a transfer may have found it set, and may rely on
            // it.
            self.serving.store(true, Ordering::SeqCst);
        }
        self.lanes.iter().for_each(|lane| drop(lane.ring.submit()));
        self.sleep_until_readable(SERVE);
        if self.reap() == 0 {
            // A leader is about to take the completions.
            pause(Duration::from_micros(20));
        }
        false
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.canary.is_original_process() {
            // A forked child has no such thread, and the lock may be held forever.
            return std::mem::forget(thread);
        }
        *self.rings.stop.lock() = true;
        self.rings.changed.notify_one();
        join_if_other(thread);
    }
}
