//! Swap: where pages go when their frames are needed, and come back from.
//!
//! A page on its way is found in the *swap cache*, by its slot: from before its entries are made Swapped until its
//! frame is freed, and from before a read begins until the frame is freed again. So a page can be faulted back
//! at any moment of its way out, and is never read twice at once. A page that was read, and not changed since,
//! keeps its slot: it goes out again without being written.
//!
//! What the rest of the engine may ask is all in [`Swap`]; what stands behind it (the cache, the slots, the
//! device) can be replaced.
//!
//! | call | who | when |
//! |---|---|---|
//! | `allocate`, `insert` | reclaim | before the entries of a page are made Swapped |
//! | `add_reference` | reclaim | before each entry is |
//! | `start_writeback`, `submit` | reclaim | after all entries are |
//! | `end_writeback`, `try_evict` | completion, reclaim | the page is clean: forget the frame, keep the slot |
//! | `look_up`, `begin_read`, `submit` | fault | an entry says Swapped |
//! | `drop_reference` | fault, unmap | an entry no longer says Swapped |
//! | `forget_orphan` | unmap, reclaim | only the cache still knows the frame |
//! | `detach` | fault, migration | the frame leaves the cache, dirty again |

#[allow(dead_code, reason = "`Swap` goes over to it")]
mod areas;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod bounce;
#[allow(dead_code, reason = "`Swap` goes over to it")]
mod cache;
#[allow(dead_code, reason = "`Swap` goes over to it")]
mod clusters;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod content;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod pool;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod seal;
mod slots;

pub use clusters::StandaloneSlots;

use std::collections::HashMap;
use std::io;

use crate::budget::Budget;
use crate::error::{Error, ErrorKind};
use crate::frame::FrameAllocator;
use crate::io::{Device, Host, Job, Transfer, Urgency, Waited};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Shared};
use crate::units::{FrameId, PAGE_BYTES, SwapSlot, bytes_for_people};

pub(crate) use slots::{Evicted, Orphan};
use slots::{NO_SLOT, Slots};

/// Pages written in one transfer at the most: 1 MiB.
pub(crate) const WRITE_BATCH: usize = if cfg!(loom) { 4 } else { 256 };

/// A run of consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRun {
    pub(crate) first: SwapSlot,
    pub(crate) count: u32,
}

/// What came of [`Swap::begin_read_ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The frame is in the cache, under READING.
    Reading,
    /// The frame is the caller's still.
    Not,
}

/// The swap of a manager.
pub(crate) struct Swap {
    device: Option<Box<dyn Device>>,
    slots: Slots,
    /// What the device last said when it failed to write, for the access that needs the room.
    write_failure: Mutex<Option<Error>>,
    /// The last write failed.
    cautious: AtomicBool,
    read_failures: Mutex<ReadFailures>,
}

/// How the last reads failed that did: those who wait for one of them ask soon.
#[derive(Debug, Default)]
struct ReadFailures {
    last: [Option<(SwapSlot, Error)>; 16],
    next: usize,
}

impl std::fmt::Debug for Swap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Swap on {}", self.device.as_ref().map_or("nothing".into(), |device| device.describe()))
    }
}

/// The slot a frame of the swap cache belongs to.
#[inline]
pub(crate) fn slot_of(frames: &FrameAllocator, frame: FrameId) -> Option<SwapSlot> {
    slots::slot_of(frames.words(frame))
}

impl Swap {
    pub(crate) fn new(device: Option<Box<dyn Device>>, budget: Arc<Budget>) -> io::Result<Self> {
        let capacity = device.as_ref().map_or(0, |device| device.capacity_pages());
        Ok(Self {
            device,
            slots: Slots::new(capacity, budget)?,
            write_failure: Mutex::new(None),
            cautious: AtomicBool::new(false),
            read_failures: Mutex::default(),
        })
    }

    /// Whether there is anywhere to go.
    pub(crate) fn is_available(&self) -> bool {
        self.device.is_some()
    }

    /// Up to `count` consecutive slots, for frames about to be inserted. `None`: the area is full.
    pub(crate) fn allocate(&self, count: u32) -> Option<SlotRun> {
        // A device that failed may have no room to grow.
        let may_grow = !self.cautious.load(Ordering::Relaxed);
        self.slots.allocate(count, may_grow)
    }

    /// Gives an allocated slot back that was not inserted.
    pub(crate) fn free_unused(&self, slot: SwapSlot) {
        self.slots.free_unused(slot);
    }

    /// Puts a frame, pinned by the caller, into the cache at an allocated slot. False: the frame is dying.
    pub(crate) fn insert(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        self.slots.insert(frames, slot, frame)
    }

    /// Counts one more entry that says Swapped to this slot, if the frame is still cached there.
    pub(crate) fn add_reference(&self, slot: SwapSlot, frame: FrameId) -> bool {
        self.slots.add_reference(slot, frame)
    }

    /// Counts one entry less. The frame that nothing leads to any more, if there is one, is the caller's to release.
    pub(crate) fn drop_reference(&self, frames: &FrameAllocator, slot: SwapSlot) -> Orphan {
        self.slots.drop_reference(frames, slot)
    }

    /// The cached frame of a slot, pinned for the caller.
    pub(crate) fn look_up(&self, frames: &FrameAllocator, slot: SwapSlot) -> Option<FrameId> {
        self.slots.look_up(frames, slot)
    }

    /// Puts a fresh frame into the cache for reading, pinned for the caller; or finds that another is there
    /// already, which is then pinned and returned instead.
    pub(crate) fn begin_read(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        fresh: FrameId,
    ) -> Result<(), FrameId> {
        self.slots.begin_read(frames, slot, fresh)
    }

    /// As [`Swap::begin_read`], for a slot that the caller only saw in somebody's entry: nothing happens if it is anything but a
    /// page that is out. The pin is the transfer's.
    pub(crate) fn begin_read_ahead(&self, frames: &FrameAllocator, slot: SwapSlot, fresh: FrameId) -> Begun {
        if self.slots.begin_read_ahead(frames, slot, fresh) { Begun::Reading } else { Begun::Not }
    }

    /// Whether reading the slot ahead would save a fault anything. A guess.
    pub(crate) fn is_worth_reading(&self, slot: SwapSlot) -> bool {
        self.slots.is_out(slot)
    }

    /// Whether `slot` may be moved together with the `count` slots from `first` on.
    pub(crate) fn follows(&self, first: SwapSlot, count: usize, slot: SwapSlot) -> bool {
        slot.0 as usize == first.0 as usize + count
    }

    /// A frame whose read failed leaves the cache. Release it if so told.
    pub(crate) fn forget_failed(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> Orphan {
        self.slots.forget_failed(frames, slot, frame)
    }

    /// DIRTY becomes WRITEBACK, if the frame is still in the cache at this slot, dirty, and held by the caller's pin alone. The
    /// slot is the frame's until the writeback ends, even if all entries are unmapped: call [`Swap::forget_orphan`] then.
    pub(crate) fn start_writeback(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        self.slots.start_writeback(frames, slot, frame)
    }

    /// A clean frame, which the caller alone has pinned and no entry shows, is forgotten; its slot keeps the bytes.
    pub(crate) fn try_evict(&self, frames: &FrameAllocator, frame: FrameId) -> Evicted {
        self.slots.try_evict(frames, frame)
    }

    /// The last entry that showed the frame is gone: if no entry says Swapped to its slot, both go.
    pub(crate) fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        self.slots.forget_orphan(frames, frame)
    }

    /// Takes a mapped frame out of the cache, if no entry says Swapped to its slot, and frees the slot. The frame
    /// becomes dirty: its bytes are nowhere else now. The caller has it pinned, and looks at [`slot_of`] afterwards.
    pub(crate) fn detach(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        self.slots.detach(frames, frame)
    }

    /// More than half of the area is in use: slots kept for clean pages should be given up.
    pub(crate) fn is_crowded(&self) -> bool {
        self.slots.used() > self.slots.capacity() / 2
    }

    /// Hands a job over to the device of its slots.
    pub(crate) fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) {
        self.device().submit(Transfer::new(host, job, job.first.0), urgency);
    }

    /// Starts what was only collected so far.
    pub(crate) fn flush(&self) {
        self.device.iter().for_each(|device| device.flush());
    }

    /// Completes what has ended.
    pub(crate) fn poll(&self) {
        self.device.iter().for_each(|device| device.poll());
    }

    /// Completes transfers as long as `still_waiting`, or says that the caller may sleep. See [`Device::wait`].
    pub(crate) fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.device.as_ref().map_or(Waited::Sleep, |device| device.wait(queue, still_waiting))
    }

    /// Somebody who cannot pull completions waits for one.
    pub(crate) fn serve(&self) {
        self.device.iter().for_each(|device| device.serve());
    }

    /// What came of a write, for the access that needs the room.
    pub(crate) fn note_write(&self, result: io::Result<()>) {
        self.cautious.store(result.is_err(), Ordering::Relaxed);
        *self.write_failure.lock() = result.err().map(|error| self.write_error(&error));
    }

    /// Pages that a transfer should write at the most: after a failure fewer, as part of them may still fit.
    pub(crate) fn write_batch(&self) -> usize {
        if self.cautious.load(Ordering::Relaxed) { WRITE_BATCH / 8 } else { WRITE_BATCH }
    }

    /// Whether the device failed to write, and nothing went well since.
    pub(crate) fn is_failing(&self) -> bool {
        self.write_failure.lock().is_some()
    }

    /// Ends the writeback of a frame; a failed one leaves it dirty. Says whether somebody waits for it.
    pub(crate) fn end_writeback(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        written: bool,
    ) -> bool {
        let _ = slot;
        frames.words(frame).holds.end_writeback(written)
    }

    /// Whether what was read into a frame is what was written from one.
    pub(crate) fn check_read(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
    ) -> Result<(), Error> {
        let _ = (frames, slot, frame);
        Ok(())
    }

    fn device(&self) -> &dyn Device {
        self.device.as_deref().expect("slots come only from a device")
    }

    /// Keeps why a slot could not be read, for those who wait for it.
    pub(crate) fn note_read_failure(&self, slot: SwapSlot, error: Error) {
        let mut failures = self.read_failures.lock();
        let at = failures.next;
        failures.last[at] = Some((slot, error));
        failures.next = (at + 1) % failures.last.len();
    }

    /// Why a slot could not be read.
    #[cold]
    pub(crate) fn read_failure(&self, slot: SwapSlot) -> Error {
        let failures = self.read_failures.lock();
        let known = failures.last.iter().flatten().find(|(failed, _)| *failed == slot);
        known.map_or_else(
            || self.read_error(&io::Error::other("another access met the failure")),
            |(_, error)| error.clone(),
        )
    }

    /// Forgets how the device last failed.
    pub(crate) fn forget_failure(&self) {
        *self.write_failure.lock() = None;
    }

    /// Why no page can go out, if that is so: for the access that needs the room.
    pub(crate) fn obstacle(&self) -> Option<Error> {
        if let Some(error) = self.write_failure.lock().clone() {
            return Some(error);
        }
        let device = self.device.as_ref()?;
        (self.slots.used() == self.slots.capacity()).then(|| {
            Error::new(
                ErrorKind::SwapFull,
                format!(
                    "{} is full ({} in use); raise its limit, drop a space or unmap a range",
                    device.describe(),
                    bytes_for_people(u64::from(self.slots.used()) * PAGE_BYTES as u64)
                ),
            )
        })
    }

    #[cold]
    fn write_error(&self, error: &io::Error) -> Error {
        let (kind, advice) = match error.raw_os_error() {
            Some(ENOSPC) => (ErrorKind::SwapFull, "free room on its file system, or drop a space"),
            _ => (ErrorKind::SwapWrite, "the pages stay in memory; check the device, or drop a space"),
        };
        let device = self.device().describe();
        Error::new(kind, format!("writing to {device} failed: {error}; {advice}"))
    }

    /// The error of an access whose page could not be read.
    #[cold]
    pub(crate) fn read_error(&self, why: &io::Error) -> Error {
        let device = self.device().describe();
        Error::new(
            ErrorKind::SwapRead,
            format!("reading from {device} failed: {why}; the page is still there, try the access again"),
        )
    }

    /// Slots in use.
    pub(crate) fn used_slots(&self) -> u32 {
        self.slots.used()
    }

    /// What is wrong, if as many entries say Swapped to each slot as `swapped` counts.
    pub(crate) fn contradicted_by(&self, swapped: &HashMap<SwapSlot, u32>) -> Option<String> {
        self.slots.contradicted_by(swapped)
    }

    /// Slots are consistent with the cache. Linear.
    pub(crate) fn validate(&self, frames: &FrameAllocator) {
        self.slots.validate(frames);
    }
}

/// The one failure of a write that has a kind of its own.
const ENOSPC: i32 = rustix::io::Errno::NOSPC.raw_os_error();

const _: () = assert!(NO_SLOT == 0);
