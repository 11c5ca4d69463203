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

mod areas;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod bounce;
#[allow(dead_code, reason = "`Swap` says of no page yet what its bytes are")]
mod cache;
#[allow(dead_code, reason = "blocks are split before they go out")]
mod clusters;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod content;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod pool;
#[allow(dead_code, reason = "`Swap` goes over to it")]
pub(crate) mod seal;
mod unwritable;

pub use clusters::StandaloneSlots;

use std::collections::HashMap;
use std::io;

use crate::budget::Budget;
use crate::config::SwapCache;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind};
use crate::frame::FrameAllocator;
use crate::io::{Device, Host, Job, Transfer, Urgency, Waited};
use crate::mapping;
use crate::policy::Shadow;
use crate::sync::{Arc, AtomicBool, Duration, Mutex, Ordering, Shared, pause};
use crate::units::{FrameId, SwapSlot};

use areas::Areas;
use cache::{Cache, FreeSlot};
pub(crate) use cache::{Evicted, Found, Orphan, Started};
use clusters::Clusters;
pub(crate) use clusters::{AreaShape, SlotRun};
use unwritable::Unwritable;

/// How often `validate` looks before a contradiction counts.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 200 };
/// Pages written in one transfer at the most: 1 MiB.
pub(crate) const WRITE_BATCH: usize = if cfg!(loom) { 4 } else { 256 };

/// What came of [`Swap::begin_read_ahead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The frame is in the cache, under READING. What the page left behind when it went.
    Reading(Option<Shadow>),
    /// The frame is the caller's still.
    Not,
}

/// What the cache kept of a page that was out, as the policy knows it.
fn left_behind(kept: Option<mapping::Shadow>) -> Option<Shadow> {
    kept.and_then(|kept| Shadow::from_bits(kept.bits()))
}

/// The swap of a manager.
pub(crate) struct Swap {
    areas: Areas,
    clusters: Shared<Clusters>,
    unwritable: Shared<Unwritable>,
    cache: Cache,
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
        write!(f, "Swap on {}", self.areas.describe())
    }
}

/// What becomes of a slot that nothing leads to any more.
#[derive(Debug)]
struct GiveBack {
    clusters: Shared<Clusters>,
    unwritable: Shared<Unwritable>,
}

impl FreeSlot for GiveBack {
    fn slot_freed(&self, slot: SwapSlot, _content: u64) {
        if !self.unwritable.withhold(slot) {
            self.clusters.free(slot);
        }
    }
}

/// The slot a frame of the swap cache belongs to.
#[inline]
pub(crate) fn slot_of(frames: &FrameAllocator, frame: FrameId) -> Option<SwapSlot> {
    cache::slot_of(frames.words(frame))
}

impl Swap {
    /// Devices with what is used of them; `cpus` there are, and a function that says which the thread is on.
    pub(crate) fn new(
        devices: Vec<(Box<dyn Device>, AreaShape)>,
        form: SwapCache,
        cpus: (usize, fn() -> u32),
        budget: &Arc<Budget>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let areas = Areas::new(devices);
        let shapes = areas.shapes();
        let clusters = Clusters::new(&shapes, Arc::clone(budget), Cache::BYTES_PER_CLUSTER, cpus)?;
        let clusters = Shared::new(clusters);
        let unwritable = Shared::<Unwritable>::default();
        let sink =
            Box::new(GiveBack { clusters: Shared::clone(&clusters), unwritable: Shared::clone(&unwritable) });
        Ok(Self {
            cache: Cache::new(form, &areas.first_slots(), areas.end_slot(), sink, budget, counters)?,
            areas,
            clusters,
            unwritable,
            write_failure: Mutex::new(None),
            cautious: AtomicBool::new(false),
            read_failures: Mutex::default(),
        })
    }

    /// Whether there is anywhere to go.
    pub(crate) fn is_available(&self) -> bool {
        !self.areas.is_empty()
    }

    /// Up to `count` consecutive slots, for frames about to be inserted. `None`: the area is full.
    pub(crate) fn allocate(&self, count: u32) -> Option<SlotRun> {
        // A device that failed may have no room to grow.
        let may_grow = !self.cautious.load(Ordering::Relaxed);
        let run = self.clusters.allocate(count, may_grow).or_else(|| {
            let withheld = self.unwritable.take_all();
            withheld.iter().for_each(|slot| self.clusters.free(*slot));
            (!withheld.is_empty()).then(|| self.clusters.allocate(count, may_grow)).flatten()
        })?;
        self.cache.reserve(run);
        Some(run)
    }

    /// Gives an allocated slot back that was not inserted.
    pub(crate) fn free_unused(&self, slot: SwapSlot) {
        self.cache.free_unused(slot);
    }

    /// Puts frames, pinned by the caller, into the cache at consecutive slots that were allocated. `each` is told, with a lock held,
    /// what came of it; false: the frame is dying, and its slot still unused.
    pub(crate) fn insert_run(
        &self,
        frames: &FrameAllocator,
        first: SwapSlot,
        run: impl IntoIterator<Item = FrameId>,
        each: impl FnMut(SwapSlot, FrameId, bool),
    ) {
        self.cache.insert_run(frames, first, run, each);
    }

    /// Counts one more entry that says Swapped to this slot, if the frame is still cached there.
    pub(crate) fn add_reference(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> bool {
        self.cache.add_reference(frames, slot, frame)
    }

    /// Counts one entry less. The frame that nothing leads to any more, if there is one, is the caller's to unpin.
    pub(crate) fn drop_reference(&self, frames: &FrameAllocator, slot: SwapSlot) -> Orphan {
        self.cache.drop_reference(frames, slot)
    }

    /// The cached frame of a slot, pinned for the caller. Takes no lock; a miss is a hint.
    #[inline]
    pub(crate) fn look_up(&self, frames: &FrameAllocator, slot: SwapSlot) -> Found {
        self.cache.look_up(frames, slot)
    }

    /// Puts a fresh frame into the cache for reading, pinned for the caller, who gets what the page left behind when it went; or
    /// finds that another frame is there already, which is then pinned and returned instead.
    pub(crate) fn begin_read(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        fresh: FrameId,
    ) -> Result<Option<Shadow>, FrameId> {
        self.cache.begin_read(frames, slot, fresh).map(left_behind)
    }

    /// As [`Swap::begin_read`], for a slot that the caller only saw in somebody's entry: nothing happens if it is anything but a
    /// page that is out. The pin is the transfer's.
    pub(crate) fn begin_read_ahead(&self, frames: &FrameAllocator, slot: SwapSlot, fresh: FrameId) -> Begun {
        match self.cache.begin_read_ahead(frames, slot, fresh) {
            Some(left) => Begun::Reading(left_behind(left)),
            None => Begun::Not,
        }
    }

    /// Whether reading the slot ahead would save a fault anything. A guess.
    pub(crate) fn is_worth_reading(&self, slot: SwapSlot) -> bool {
        self.cache.is_out(slot)
    }

    /// Whether `slot` may be moved together with the `count` slots from `first` on.
    pub(crate) fn follows(&self, first: SwapSlot, count: usize, slot: SwapSlot) -> bool {
        slot.0 as usize == first.0 as usize + count
    }

    /// A frame whose read failed leaves the cache. The caller has it pinned.
    pub(crate) fn forget_failed(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) {
        self.cache.forget_failed(frames, slot, frame)
    }

    /// DIRTY becomes WRITEBACK, if the frame is still in the cache at this slot, dirty, and held by the caller's pin alone. The
    /// slot is the frame's until the writeback ends, even if all entries are unmapped: call [`Swap::forget_orphan`] then.
    pub(crate) fn start_writeback(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId) -> Started {
        self.cache.start_writeback(frames, slot, frame)
    }

    /// A clean frame, which the caller alone has pinned and no entry shows, is forgotten; its slot keeps the bytes, and
    /// the shadow until the page comes back.
    pub(crate) fn try_evict(&self, frames: &FrameAllocator, frame: FrameId, shadow: Shadow) -> Evicted {
        self.cache.try_evict(frames, frame, Some(mapping::Shadow::new(shadow.bits())))
    }

    /// The last entry that showed the frame is gone: if no entry says Swapped to its slot, both go.
    pub(crate) fn forget_orphan(&self, frames: &FrameAllocator, frame: FrameId) -> Orphan {
        self.cache.forget_orphan(frames, frame)
    }

    /// Takes a mapped frame out of the cache, if no entry says Swapped to its slot, and frees the slot. The frame
    /// becomes dirty: its bytes are nowhere else now. The caller has it pinned, and looks at [`slot_of`] afterwards.
    pub(crate) fn detach(&self, frames: &FrameAllocator, frame: FrameId) {
        self.cache.detach(frames, frame)
    }

    /// More than half of the area is in use: slots kept for clean pages should be given up.
    pub(crate) fn is_crowded(&self) -> bool {
        self.clusters.is_crowded()
    }

    /// Hands a job over to the device of its slots.
    pub(crate) fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) {
        let (device, place) = self.areas.device_of(job.first);
        device.submit(Transfer::new(host, job, place), urgency);
    }

    /// Starts what was only collected so far.
    pub(crate) fn flush(&self) {
        self.areas.devices().for_each(Device::flush);
    }

    /// Completes what has ended.
    pub(crate) fn poll(&self) {
        self.areas.devices().for_each(Device::poll);
    }

    /// Completes transfers as long as `still_waiting`, or says that the caller may sleep. See [`Device::wait`].
    pub(crate) fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        let mut devices = self.areas.devices();
        match (devices.next(), devices.next()) {
            (Some(only), None) => only.wait(queue, still_waiting),
            // Which of several it is waited for is not known: all see to their completions themselves.
            _ => {
                self.serve();
                Waited::Sleep
            }
        }
    }

    /// Somebody who cannot pull completions waits for one.
    pub(crate) fn serve(&self) {
        self.areas.devices().for_each(Device::serve);
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
        if !written {
            self.unwritable.note(slot);
        }
        self.cache.end_writeback(frames, slot, frame, written)
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
        let is_full = self.is_available() && self.clusters.used() == self.clusters.capacity();
        is_full.then(|| {
            let full = self.areas.describe_full(|area| self.clusters.area_used(area));
            let message = format!("{full}; raise its limit, add an area, drop a space or unmap a range");
            Error::new(ErrorKind::SwapFull, message)
        })
    }

    #[cold]
    fn write_error(&self, error: &io::Error) -> Error {
        let (kind, advice) = match error.raw_os_error() {
            Some(ENOSPC) => (ErrorKind::SwapFull, "free room on its file system, or drop a space"),
            _ => (ErrorKind::SwapWrite, "the pages stay in memory; check the device, or drop a space"),
        };
        let device = self.areas.describe();
        Error::new(kind, format!("writing to {device} failed: {error}; {advice}"))
    }

    /// The error of an access whose page could not be read.
    #[cold]
    pub(crate) fn read_error(&self, why: &io::Error) -> Error {
        let device = self.areas.describe();
        Error::new(
            ErrorKind::SwapRead,
            format!("reading from {device} failed: {why}; the page is still there, try the access again"),
        )
    }

    /// Slots in use.
    pub(crate) fn used_slots(&self) -> u32 {
        self.clusters.used() - self.unwritable.withheld()
    }

    /// What is wrong, if as many entries say Swapped to each slot as `swapped` counts.
    pub(crate) fn contradicted_by(&self, swapped: &HashMap<SwapSlot, u32>) -> Option<String> {
        self.cache.contradicted_by(self.clusters.used_slots(), swapped)
    }

    /// Slots are consistent with the cache. Linear, and exact only while no page goes out or comes in.
    ///
    /// # Panics
    /// When they are not.
    pub(crate) fn validate(&self, frames: &FrameAllocator) {
        for look in 1..=LOOKS {
            let used = self.cache.validate(frames, self.clusters.touched());
            let taken = self.clusters.used_slots().filter(|slot| self.cache.is_used(*slot)).count() as u32;
            let counted = self.used_slots();
            let wrong = self.clusters.contradiction();
            if used == taken && taken == counted && wrong.is_none() {
                return;
            }
            assert!(
                look != LOOKS,
                "of {counted} slots in use {used} are said to be, {taken} of the same; {wrong:?}"
            );
            // The background thread may be at work.
            pause(Duration::from_millis(5));
        }
    }
}

/// The one failure of a write that has a kind of its own.
const ENOSPC: i32 = rustix::io::Errno::NOSPC.raw_os_error();
