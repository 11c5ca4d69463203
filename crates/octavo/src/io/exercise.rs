//! Transfers without a manager, to test and to measure devices.

use std::fmt;
use std::io;
use std::ops::Range;
use std::task::{Poll, Waker};

use octavo_platform::{ArenaBytes, Backing};

use super::area::{Opened, SwapArea};
use super::device::{ANY_QUEUE, Device, NO_QUEUE, Submitted, Waited};
use super::engine::IoEngine;
use super::transfer::{Direction, Host, Job, Transfer, Urgency};
use crate::error::{Error, Result};
use crate::sync::park::{block_until, block_until_driven};
use crate::sync::wait::{WaitTable, Waiting, key_of};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Shared};
use crate::units::{FrameId, PAGE_BYTES, StoreId, StoredPage};

const IDLE: u32 = 0;
const IN_FLIGHT: u32 = 1;
const AWAITED: u32 = 2;
const MOVED: u32 = 3;
const FAILED: u32 = 4;

/// Frames in memory, numbered from 0, and a device to which and from which they are moved. A transfer is
/// named by its first frame. For benches of devices.
#[doc(hidden)]
pub struct Exercise {
    host: Shared<ExerciseFrames>,
    device: Box<dyn Device>,
    capacity_pages: u32,
    engine: Option<String>,
}

struct ExerciseFrames {
    arena: ArenaBytes,
    words: Box<[ExerciseWords]>,
    waits: WaitTable,
    /// Transfers that have ended, so far.
    ended: AtomicU64,
    /// Whether a thread waits for the next end.
    awaited: AtomicBool,
    errors: Mutex<Vec<(u32, io::Error)>>,
}

struct ExerciseWords {
    next: AtomicU32,
    queue: AtomicU32,
    state: AtomicU32,
}

impl Exercise {
    /// Opens `area`, with `frames` frames to move.
    ///
    /// # Errors
    /// The reason why the area cannot be used, or that there is no address space.
    pub fn new(area: SwapArea, engine: IoEngine, frames: u32) -> Result<Self> {
        let Opened { device, capacity_pages, engine, priority: _ } = area.open(engine)?;
        let arena = ArenaBytes::new(frames as usize * PAGE_BYTES)
            .map_err(|error| Error::system("cannot reserve memory for frames", &error))?;
        // The frames are present and lie together, like the frames of a manager.
        arena
            .bring_online(0..arena.len(), Backing::HugePages)
            .map_err(|error| Error::system("no memory for frames", &error))?;
        let new_words = |_| ExerciseWords {
            next: AtomicU32::new(0),
            queue: AtomicU32::new(NO_QUEUE),
            state: AtomicU32::new(IDLE),
        };
        let words = (0..frames).map(new_words).collect();
        let host = ExerciseFrames {
            arena,
            words,
            waits: WaitTable::new(),
            ended: AtomicU64::new(0),
            awaited: AtomicBool::new(false),
            errors: Mutex::default(),
        };
        Ok(Self { host: Shared::new(host), device, capacity_pages, engine })
    }

    /// The frames' memory: frame `n` from byte `n * 4096` on.
    pub fn arena(&self) -> &ArenaBytes {
        &self.host.arena
    }

    /// The places that may be used.
    pub fn capacity_pages(&self) -> u32 {
        self.capacity_pages
    }

    /// The engine that reads and writes the device, if there was a choice.
    pub fn describe_engine(&self) -> Option<&str> {
        self.engine.as_deref()
    }

    /// Starts to move consecutive frames. Waits for room if the device is full.
    pub fn start(&self, direction: Direction, place: u32, frames: Range<u32>, urgency: Urgency) {
        self.start_scattered(direction, place, frames, urgency);
    }

    /// Starts to move frames in the order given. None of them may be in flight. Waits for room if the
    /// device is full.
    pub fn start_scattered(
        &self,
        direction: Direction,
        place: u32,
        frames: impl IntoIterator<Item = u32>,
        urgency: Urgency,
    ) {
        let mut transfer = self.begin(direction, place, frames);
        loop {
            let ended = self.host.ended.load(Ordering::SeqCst);
            match self.device.submit(transfer, urgency) {
                Submitted::Accepted => return,
                Submitted::Full(back) => transfer = back,
            }
            self.wait_for_more_than(ended);
        }
    }

    fn begin(&self, direction: Direction, place: u32, frames: impl IntoIterator<Item = u32>) -> Transfer {
        let mut frames = frames.into_iter();
        let head = frames.next().expect("a transfer is never empty");
        let (mut last, mut count) = (head, 1);
        for frame in frames {
            self.host.words(last).next.store(frame, Ordering::Relaxed);
            (last, count) = (frame, count + 1);
        }
        assert!(place <= self.capacity_pages && count <= self.capacity_pages - place, "inside the device");
        let words = self.host.words(head);
        words.queue.store(NO_QUEUE, Ordering::Relaxed);
        let before = words.state.swap(IN_FLIGHT, Ordering::AcqRel);
        assert!(before != IN_FLIGHT && before != AWAITED, "frame {head} is in flight already");
        let head = FrameId(head);
        // No page store has these pages, and nobody asks for one.
        let first = StoredPage::new(StoreId::Swap, 0);
        let job = Job { direction, first, count, head, bytes: head };
        Transfer::new(Shared::clone(&self.host) as Shared<dyn Host>, job, place)
    }

    /// Waits until more than `ended` transfers have ended.
    fn wait_for_more_than(&self, ended: u64) {
        let none_ended = || self.host.ended.load(Ordering::SeqCst) == ended;
        self.device.flush();
        block_until_driven(
            |waker| self.host.look_for_more_than(ended, waker),
            || self.device.wait(ANY_QUEUE, &none_ended) == Waited::Progress,
        );
    }

    /// Behaves like [`Device::flush`].
    pub fn flush(&self) {
        self.device.flush();
    }

    /// Behaves like [`Device::poll`].
    pub fn poll(&self) {
        self.device.poll();
    }

    /// Returns whether the transfer that begins with `frame` is in flight.
    pub fn is_in_flight(&self, frame: u32) -> bool {
        matches!(self.host.words(frame).state.load(Ordering::Acquire), IN_FLIGHT | AWAITED)
    }

    /// Waits for the transfer that begins with `frame`, as a fault would: completes other transfers on the
    /// way.
    ///
    /// # Errors
    /// The error of the transfer.
    pub fn wait(&self, frame: u32) -> io::Result<()> {
        let words = self.host.words(frame);
        block_until_driven(
            |waker| self.host.look(frame, waker),
            || {
                let queue = words.queue.load(Ordering::Relaxed);
                self.device.wait(queue, &|| self.is_in_flight(frame)) == Waited::Progress
            },
        )
    }

    /// Waits until some transfer is completed. Returns at the latest when the transfer that begins with
    /// `frame` is completed.
    pub fn pull(&self, frame: u32) {
        let queue = self.host.words(frame).queue.load(Ordering::Relaxed);
        if self.device.wait(queue, &|| self.is_in_flight(frame)) == Waited::Sleep {
            block_until(|waker| self.host.look_only(frame, waker));
        }
    }

    /// Waits for the transfer that begins with `frame`. Sleeps until another thread completes the transfer.
    ///
    /// # Errors
    /// The error of the transfer.
    pub fn sleep(&self, frame: u32) -> io::Result<()> {
        block_until(|waker| {
            let seen = self.host.look(frame, waker);
            if seen.is_pending() {
                self.device.serve();
            }
            seen
        })
    }
}

impl ExerciseFrames {
    fn words(&self, frame: u32) -> &ExerciseWords {
        &self.words[frame as usize]
    }

    fn look_for_more_than(&self, ended: u64, waker: &Waker) -> Poll<()> {
        let none_ended = || self.ended.load(Ordering::SeqCst) == ended;
        let announce = || {
            // SeqCst orders this with the end of a transfer, which first counts and then reads `awaited`.
            self.awaited.swap(true, Ordering::SeqCst);
            none_ended()
        };
        if none_ended() && self.waits.register(key_of(&self.ended), waker, announce) == Waiting::Registered {
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    fn look(&self, frame: u32, waker: &Waker) -> Poll<io::Result<()>> {
        self.look_only(frame, waker).map(|()| {
            if self.words(frame).state.load(Ordering::Acquire) != FAILED {
                return Ok(());
            }
            let mut errors = self.errors.lock();
            let at = errors.iter().position(|(failed, _)| *failed == frame);
            Err(at.map_or_else(|| io::Error::other("told already"), |at| errors.swap_remove(at).1))
        })
    }

    /// Ready when the transfer has ended, successfully or not.
    fn look_only(&self, frame: u32, waker: &Waker) -> Poll<()> {
        let state = &self.words(frame).state;
        let announce = || {
            let announced = state.compare_exchange(IN_FLIGHT, AWAITED, Ordering::AcqRel, Ordering::Acquire);
            matches!(announced, Ok(_) | Err(AWAITED))
        };
        while matches!(state.load(Ordering::Acquire), IN_FLIGHT | AWAITED) {
            if self.waits.register(key_of(state), waker, announce) == Waiting::Registered {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl Host for ExerciseFrames {
    fn arena(&self) -> &ArenaBytes {
        &self.arena
    }

    fn chained(&self, frame: FrameId) -> FrameId {
        FrameId(self.words(frame.0).next.load(Ordering::Relaxed))
    }

    fn note_queue(&self, frame: FrameId, queue: u32) {
        self.words(frame.0).queue.store(queue, Ordering::Relaxed);
    }

    fn ended(&self, job: Job, result: io::Result<()>) {
        let ended = if result.is_ok() { MOVED } else { FAILED };
        if let Err(error) = result {
            self.errors.lock().push((job.head.0, error));
        }
        let state = &self.words(job.head.0).state;
        let before = state.swap(ended, Ordering::AcqRel);
        assert!(before == IN_FLIGHT || before == AWAITED, "a transfer ends once");
        if before == AWAITED {
            self.waits.wake(key_of(state));
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        if self.awaited.swap(false, Ordering::SeqCst) {
            self.waits.wake(key_of(&self.ended));
        }
    }
}

impl fmt::Debug for Exercise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exercise of {} ({})", self.device.describe(), self.engine.as_deref().unwrap_or("inline"))
    }
}
