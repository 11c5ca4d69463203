//! Swap: the page store that takes pages when their frames are needed, and brings them back.
//!
//! The *swap cache* finds the frame of a page that goes out or comes in, by the page's slot. On the way out,
//! a page enters the cache before its entries become Swapped, and leaves it when its frame is free. On the
//! way in, it enters before the read begins. So a fault can bring a page back at any moment of its way out,
//! and no page is read twice at once. A page that was read and is unchanged keeps its slot: it goes out again
//! without a write.
//!
//! Eviction and transfers reach swap as a [page store](crate::store) (`store`). Faults read the slot in a
//! page's entry and ask the cache. Code that needs slots, areas or the pool uses them directly.
//!
//! | file | what |
//! |---|---|
//! | `store` | swap as eviction and transfers see it |
//! | `intake` | slots for pages that no page store keeps yet |
//! | `cache` | from slots to frames |
//! | `slots`, `clusters`, `unwritable` | which slots are free for pages |
//! | `areas`, `area`, `health` | the devices behind the slots, and whether they work |
//! | `area_stats` | what each area has done |
//! | `single_reads` | whether writes must be short because single pages are being read |
//! | `contents`, `content` | the content of a slot, and how its page comes back |
//! | `packing` | the choice for each page of a batch: a word, the pool, or its area |
//! | `pool` | the compressed pool |
//! | `seal`, `bounce` | encryption |

mod area;
mod area_stats;
mod areas;
pub(crate) mod bounce;
mod cache;
mod clusters;
pub(crate) mod content;
mod contents;
mod health;
mod intake;
mod packing;
pub(crate) mod pool;
pub(crate) mod seal;
mod single_reads;
mod slots;
mod store;
mod unwritable;

pub use cache::StandaloneSwapCache;
pub use clusters::StandaloneSlots;

use std::collections::HashMap;
use std::io;

use crate::budget::Budget;
use crate::config::{Compression, SwapCache};
use crate::counters::{Counter, Counters};
use crate::error::{Error, ErrorKind};
use crate::frame::{FrameAllocator, PageIs};
use crate::io::{Device, NO_QUEUE};
use crate::store::{ReadFailures, Started};
use crate::sync::{Arc, Duration, Machine, Ordering, Random, Shared, pause};
use crate::units::{FrameId, Order, SwapSlot};

pub use area_stats::{AreaState, AreaStats};
use areas::Areas;
pub(crate) use areas::HealthSnapshot;
use bounce::BounceFrames;
use cache::{Cache, FreeSlot};
pub(crate) use clusters::AreaShape;
use clusters::Clusters;
use content::Content;
use contents::SlotContents;
pub(crate) use contents::{Brought, Wanted};
use health::Condition;
pub(crate) use pool::{Handle, Pool, Weights};
use seal::{Method, Seal};
use slots::Slots;

pub(crate) use crate::sizes::WRITE_BATCH;

use crate::sizes::{CLUSTER_SLOTS, LOOKS};

/// The most pages of a short transfer.
const SHORT_WRITE: usize = if WRITE_BATCH < 8 { 1 } else { WRITE_BATCH / 8 };
/// The most pages on their way out: a few times the number that keeps a device busy.
const MOST_WRITING_PAGES: u64 = 8192;

/// The block of frames from which sealed pages are written: 1 MiB, the size of one transfer.
const SEALED_ORDER: Order = Order(8);

/// The swap of a manager.
pub(crate) struct Swap {
    pub(crate) areas: Areas,
    pub(crate) slots: Shared<Slots>,
    pub(crate) cache: Cache,
    contents: Shared<SlotContents>,
    read_failures: ReadFailures,
    counters: Arc<Counters>,
}

impl std::fmt::Debug for Swap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Swap on {}", self.areas.describe())
    }
}

/// Frees a slot and its content when nothing leads to the slot any more.
#[derive(Debug)]
struct GiveBack {
    slots: Shared<Slots>,
    contents: Shared<SlotContents>,
}

impl FreeSlot for GiveBack {
    fn slot_freed(&self, frames: &FrameAllocator, slot: SwapSlot, content: u64) {
        self.contents.let_go(frames, Content::from_word(content));
        self.slots.free(slot);
    }
}

/// The devices and options that a swap is made from.
pub(crate) struct SwapParts {
    /// The devices, each with the size and priority of its area.
    pub(crate) devices: Vec<(Box<dyn Device>, AreaShape)>,
    pub(crate) form: SwapCache,
    pub(crate) compression: Compression,
    pub(crate) encrypt: bool,
}

/// The slot of a frame that is in the swap cache.
#[inline]
pub(crate) fn slot_of(frames: &FrameAllocator, frame: FrameId) -> Option<SwapSlot> {
    cache::slot_of(frames.words(frame))
}

impl Swap {
    /// Returns the bytes of memory that swap keeps for each slot in use.
    pub(crate) fn bytes_per_slot(encrypt: bool) -> u64 {
        let sealed = if encrypt { Seal::BYTES_PER_SLOT } else { 0 };
        Cache::BYTES_PER_CLUSTER / CLUSTER_SLOTS as u64 + sealed
    }

    /// Makes the swap of a manager.
    ///
    /// # Errors
    /// The kernel's, if there is no address space, no memory or no random bytes.
    pub(crate) fn new(
        parts: SwapParts,
        machine: &Machine,
        frames: &FrameAllocator,
        budget: &Arc<Budget>,
        counters: &Arc<Counters>,
    ) -> io::Result<Self> {
        let areas = Areas::new(parts.devices);
        let shapes = areas.shapes();
        let clusters = Clusters::new(&shapes, Arc::clone(budget), Cache::BYTES_PER_CLUSTER, machine.cpus)?;
        let slots = Shared::new(Slots::new(clusters));
        let wants_pool = parts.compression != Compression::Off && !areas.is_empty();
        let limit_bytes = Pool::share_of(budget.limit_bytes());
        let pool = wants_pool
            .then(|| {
                let (budget, counters) = (Arc::clone(budget), Arc::clone(counters));
                Pool::new(frames, parts.compression, limit_bytes, budget, counters, machine)
            })
            .transpose()?;
        let seal = parts.encrypt.then(|| new_seal(&areas, frames, budget, &machine.random)).transpose()?;
        let contents = Shared::new(SlotContents::new(pool, seal, Arc::clone(counters)));
        let sink = GiveBack { slots: Shared::clone(&slots), contents: Shared::clone(&contents) };
        let (first, end) = (areas.first_slots(), areas.end_slot());
        let cache = Cache::new(parts.form, &first, end, Box::new(sink), budget, Arc::clone(counters))?;
        Ok(Self {
            cache,
            areas,
            slots,
            contents,
            read_failures: ReadFailures::default(),
            counters: Arc::clone(counters),
        })
    }

    /// Returns whether pages can go out: whether there is an area.
    pub(crate) fn is_available(&self) -> bool {
        !self.areas.is_empty()
    }

    // --- the cache ---

    /// Changes DIRTY to WRITEBACK. The frame must be in the cache at this slot, dirty (or clean, as `page`
    /// says), and held by the caller's pin alone. The frame keeps its slot until the writeback ends, even if
    /// all entries are unmapped. Afterwards, the caller calls `forget_orphan`.
    fn start_writeback(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        page: PageIs,
    ) -> Started {
        forget_queue(frames, frame);
        self.cache.start_writeback(frames, slot, frame, page)
    }

    /// Returns whether a page that came back should give up its slot, although the slot may save another
    /// write. The page should give up its slot if free slots are getting few, or if its bytes in the pool
    /// take room from pages that are out. If the pool has only a copy, this function drops the copy, and the
    /// page keeps its slot.
    pub(crate) fn should_give_up_slot(&self, frames: &FrameAllocator, slot: SwapSlot) -> bool {
        let takes_room = || match self.content(slot) {
            // If another thread drops the copy first, the area still has the page.
            Content::Pool { is_copy: true, .. } => {
                self.drop_copy(frames, slot);
                false
            }
            content => matches!(content, Content::Pool { .. }),
        };
        self.slots.is_crowded() || self.pool().is_some_and(Pool::is_short) && takes_room()
    }

    /// Returns how many slots are free for pages.
    pub(crate) fn free_slots(&self) -> u32 {
        self.slots.count_free()
    }

    // --- the state of the areas ---

    /// Returns the most pages that one transfer should write. After a failed write, the number is smaller: a
    /// short write may find room where a long write does not.
    pub(crate) fn longest_write(&self) -> usize {
        if self.areas.are_cautious() { SHORT_WRITE } else { WRITE_BATCH }
    }

    /// Returns the most pages that should be on their way out. More pages would take memory from programs and
    /// gain no speed, and [single reads](single_reads) would wait for their writes.
    pub(crate) fn device_write_limit(&self) -> u64 {
        let gently = (SHORT_WRITE * self.areas.count()) as u64;
        if self.goes_out_gently() { gently.min(MOST_WRITING_PAGES) } else { MOST_WRITING_PAGES }
    }

    /// Returns whether pages go out in short writes, because single pages are being read.
    pub(crate) fn goes_out_gently(&self) -> bool {
        self.areas.single_reads.want_short_writes()
    }

    /// Returns the figures of each area.
    pub(crate) fn area_stats(&self) -> Vec<AreaStats> {
        self.areas.stats(|area| self.slots.clusters().used_in_area(area))
    }

    /// Returns what to expect of the next write.
    fn state(&self) -> Condition {
        self.areas.state(self.has_room())
    }

    /// Returns a test of whether an area, given by its index, has free slots.
    fn has_room(&self) -> impl Fn(usize) -> bool {
        |area| !self.slots.is_area_full(area)
    }

    /// Returns whether no area with room is well. If so, reclaim counts only pages that have really left
    /// memory.
    pub(crate) fn is_failing(&self) -> bool {
        self.state() != Condition::Well
    }

    /// Returns whether all areas with room are silent, which means that they have not answered in time. Until
    /// one of them answers, nothing new goes out.
    pub(crate) fn is_silent(&self) -> bool {
        self.state() == Condition::Silent
    }

    /// Returns the reason why no page can go out, for an access that needs the room: the areas are silent, or
    /// have failed since `failures` were counted, or have no free slot. Returns `None` if no reason is known.
    pub(crate) fn obstacle(&self, failures: u64) -> Option<Error> {
        let state = self.state();
        let is_news = state == Condition::Silent || self.areas.failures() != failures;
        let failure = if is_news { self.areas.failure(state, self.has_room()) } else { None };
        failure.or_else(|| (self.is_available() && self.slots.is_full()).then(|| self.full()))
    }

    /// Returns the reason why there is no room for new pages: areas fail, or have too few free slots.
    #[cold]
    pub(crate) fn why_no_new_pages(&self) -> Error {
        self.areas.failure(self.state(), self.has_room()).unwrap_or_else(|| self.full())
    }

    #[cold]
    fn full(&self) -> Error {
        let full =
            self.areas.describe_full(|area| (self.slots.area_used(area), self.slots.area_withheld(area)));
        let message = format!("{full}; raise its limit, add an area, drop a space or unmap a range");
        Error::new(ErrorKind::SwapFull, message)
    }

    // --- what slots hold ---

    /// Finds a place for the page of a frame under WRITEBACK. The pool may take the page only with `weights`.
    /// Returns true if the page must still be written to its area.
    fn store_content(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        weights: Option<&Weights>,
    ) -> bool {
        // While slots are few, new pages leave some frames free for pages that come in. The pool must not
        // take these.
        let weights = weights.filter(|_| !self.slots.are_few());
        let content = self.contents.put_away(frames, slot, frame, weights);
        let before = Content::from_word(self.cache.set_content(slot, content.to_word()));
        self.contents.let_go(frames, before);
        matches!(content, Content::Device { .. })
    }

    /// Puts a copy of a clean page into the pool, from which it comes back without a device. The page is on
    /// its area, and its frame is under WRITEBACK. If the pool does not take the copy, nothing changes.
    fn copy_into_pool(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId, weights: &Weights) {
        let Content::Device { crc } = self.content(slot) else { return };
        if let Some(handle) = self.contents.pack(frames, slot, frame, weights, crc) {
            let copy = Content::Pool { handle, is_copy: true };
            let before = Content::from_word(self.cache.set_content(slot, copy.to_word()));
            self.contents.let_go(frames, before);
        }
    }

    /// Drops the pool's copy of a page that is on its area. Returns false if there is no copy.
    pub(crate) fn drop_copy(&self, frames: &FrameAllocator, slot: SwapSlot) -> bool {
        let copy = self.content(slot);
        let Content::Pool { handle, is_copy: true } = copy else { return false };
        let Some(crc) = self.pool().and_then(|pool| pool.area_crc(frames, slot, handle)) else {
            return false;
        };
        let is_dropped = self.cache.change_content(slot, copy.to_word(), Content::Device { crc }.to_word());
        if is_dropped {
            self.contents.let_go(frames, copy);
            self.counters.count(Counter::PoolCopyDropped);
        }
        is_dropped
    }

    /// Brings the page of a slot into a frame under READING, if that needs no device.
    pub(crate) fn bring(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        frame: FrameId,
        wanted: Wanted,
    ) -> Brought {
        self.contents.bring(frames, slot, frame, wanted, || self.content(slot))
    }

    /// Returns whether the slot's page is on its area. If the caller does not hold the slot, this is a hint.
    pub(crate) fn is_on_device(&self, slot: SwapSlot) -> bool {
        matches!(self.content(slot), Content::Device { .. })
    }

    fn content(&self, slot: SwapSlot) -> Content {
        Content::from_word(self.cache.content(slot))
    }

    /// The error for a page whose bytes are not the bytes that were written.
    #[cold]
    pub(crate) fn corrupt(&self, slot: SwapSlot) -> Error {
        let (area, place) = self.areas.area_of(slot);
        let device = &area.name;
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "the page at place {place} of {device} is not what was written there; its contents are lost (another access reads it again); check the device, and unmap or overwrite the page"
            ),
        )
    }

    /// The error for a page whose slot was freed during its swap-in. No access sees this error.
    #[cold]
    pub(crate) fn freed(&self, slot: SwapSlot) -> Error {
        Error::new(ErrorKind::SwapRead, format!("{slot:?} was freed; try the access again"))
    }

    /// The compressed pool, if there is one.
    pub(crate) fn pool(&self) -> Option<&Pool> {
        self.contents.pool()
    }

    /// Changes a slot's content to its page's new place in the pool. Returns false if the slot has other
    /// content by now.
    pub(crate) fn retarget(&self, slot: SwapSlot, from: Handle, to: Handle) -> bool {
        let seen = self.content(slot);
        match seen {
            Content::Pool { handle, is_copy } if handle == from => {
                let moved = Content::Pool { handle: to, is_copy };
                self.cache.change_content(slot, seen.to_word(), moved.to_word())
            }
            _ => false,
        }
    }

    /// Compares each slot's count of references with `swapped`, the number of entries that say Swapped to the
    /// slot. Returns the first mismatch.
    pub(crate) fn contradicted_by(&self, swapped: &HashMap<SwapSlot, u32>) -> Option<String> {
        self.cache.contradicted_by(self.slots.clusters().used_slots(), swapped)
    }

    /// Checks that the slots agree with the cache. Linear, and exact only while no page goes out or comes in.
    ///
    /// # Panics
    /// If they disagree.
    pub(crate) fn validate(&self, frames: &FrameAllocator) {
        for look in 1..=LOOKS {
            let used = self.cache.validate(frames, self.slots.clusters().touched());
            let taken =
                self.slots.clusters().used_slots().filter(|slot| self.cache.is_used(*slot)).count() as u32;
            let counted = self.slots.used();
            let wrong = self.slots.clusters().contradiction();
            if used == taken && taken == counted && wrong.is_none() {
                return;
            }
            assert!(
                look != LOOKS,
                "{counted} slots counted in use, {used} by the cache, {taken} by both; {wrong:?}"
            );
            // The background thread may be moving pages.
            pause(Duration::from_millis(5));
        }
    }
}

/// Clears the queue number in a frame's `prev` word, before any other thread can see the frame under I/O. An
/// earlier transfer or a list may have left another value in the word.
fn forget_queue(frames: &FrameAllocator, frame: FrameId) {
    frames.words(frame).prev.store(NO_QUEUE, Ordering::Relaxed);
}

fn new_seal(
    areas: &Areas,
    frames: &FrameAllocator,
    budget: &Arc<Budget>,
    random: &Random,
) -> io::Result<(Seal, BounceFrames)> {
    let seal = Seal::new(Method::probe(), areas.end_slot(), Arc::clone(budget), random)?;
    let bounce = BounceFrames::new(frames, SEALED_ORDER).ok_or(io::ErrorKind::OutOfMemory)?;
    Ok((seal, bounce))
}
