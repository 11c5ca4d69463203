//! The compressed pool: pages packed inside frames of the budget, in front of the swap areas.
//!
//! ```text
//!            weigh ──► straight ─────────────────────────────► area
//!              │
//!   page ──► estimate ──► pack ──► class ──► object in a span ──► coldest ──► unpack ──► area
//!              │            │        │           ▲                             (the shrinker)
//!              └────────────┴────────┴► refused  └── spans of 32 KiB in blocks of 2 MiB of the frame allocator
//! ```
//!
//! Key types: [`Pool`], [`Handle`], [`Stored`], [`Weights`].
//!
//! Use: a slot's content says `Pool(handle)`, and the pool itself keeps no map. The thread that changes a
//! content from `Pool(handle)` to anything else, by compare-and-swap, frees the handle, once.
//!
//! | call | who | and then |
//! |---|---|---|
//! | [`Pool::turnover`] | reclaim, for each batch | [`Pool::weigh`] takes it |
//! | [`Pool::weigh`] | reclaim, for a space's pages in a batch | at most the returned number of pages try the pool |
//! | [`Pool::store`] | reclaim, page under writeback | if `Kept`: the content becomes Pool, and the writeback ends; otherwise the page goes to the area |
//! | [`Pool::load`] | fault, frame under reading | if `Gone`: read the content again; if it has not changed, the page is `Corrupt` |
//! | [`Pool::free`] | the thread that changed the content | at once, if the page came back and is dirty in memory |
//! | [`Pool::coldest`] | the shrinker | for each page: see below, then `free` or `stays` |
//! | [`Pool::give_back`] | the shrinker, compaction | blocks return to the frame allocator |
//!
//! While a cold page is written to its area, its slot must not be freed. Otherwise, between `coldest` and the
//! end of the write, the slot might be given to another page, which might then be written there. So the
//! shrinker goes through the swap cache. It begins a read into a fresh frame at the slot (`begin_read`),
//! unpacks the page into it ([`Pool::unpack`]), and ends the read. The frame then goes out like any dirty
//! frame. Under WRITEBACK, no other thread writes the slot. At the end of the writeback, the content changes
//! to `Device`, if it is still exactly `Pool(handle)`. `Gone` from `unpack` means that the page has already
//! left.
//!
//! Invariants:
//! - Blocks come from the frame allocator, which charges them. No block is added beyond the limit.
//! - An object's bytes have a checksum, which is checked before they are unpacked.
//! - A freed handle never leads to another page's object: slot and generation are in the object's header.
//!
//! Locking: a class's lock, then the lock of the blocks. Neither is held while a page is packed or unpacked,
//! or while frames are allocated or freed. `victims` and `moving` are taken before both. All of these locks
//! may be taken under locks of the swap cache. The pool calls `retarget` without any of them.
//!
//! Other modules choose the pages that go out, write to areas, and keep the contents of slots.

mod blocks;
mod classes;
mod codec;
mod estimate;
mod handle;
mod mean;
mod pace;
pub(crate) mod probe;
mod share;
mod shrink;
mod span;
mod spans;
#[cfg(all(test, not(loom)))]
pub(crate) mod tests;
mod victims;
mod weigh;

use crate::budget::Budget;
use crate::config::Compression;
use crate::counters::{Counter, Counters};
use crate::frame::{Block, FrameAllocator};
use crate::policy::Shadow;
use crate::sizes::WEIGHED_SPACES;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Clock, Machine, Mutex, Ordering};
use crate::table::SpaceId;
use crate::units::{CHUNK_BYTES, FrameId, Order, PAGE_BYTES, SwapSlot};
use blocks::spans_of;
use classes::SPAN_ORDER;
use codec::Codec;
pub(crate) use handle::Handle;
use pace::{WritePace, WriteSample};
use share::{PoolSize, Share};
use shrink::{Emptied, SPARE_SPANS};
use span::SpanWords;
use spans::{Checksums, Placed, Spans};
use victims::Victims;
use weigh::PoolPages;
pub(crate) use weigh::{DeviceView, Turnover, Weights};

/// After a store of a page found no block, this many stores ask for no block.
const STARVED_STORES: u64 = 32;
/// After a store of a page found no room, this many stores are refused without packing, unless an object is
/// freed.
const REFUSALS: u32 = 32;
/// The clock advances by this number in one step, after this many stores of a class.
const TICK_STORES: u32 = 16;
/// The holes that a pool may have: this many bytes, plus one byte for each [`HOLES_SHARE`] bytes of objects.
/// Such holes are normal, since size classes are coarse.
const MOST_HOLES_BYTES: u64 = CHUNK_BYTES as u64;
const HOLES_SHARE: u64 = 8;
/// One of this many slots is timed. The second number is for waits for a device, which take longer.
const TIMED_EVERY: u32 = 16;
const TIMED_WAIT_EVERY: u32 = 4;

/// If the pool has fewer pages, they are too few to tell how much pages shrink.
const FEW_PAGES: u64 = 512;
/// If each frame of the pool holds [`FULL_WORTH_PAGES`], the pool may take this part of the budget: 7/25.
const LIMIT_PARTS: (u64, u64) = (7, 25);
/// A frame of the pool takes the place of one unpacked page. Its worth is the number of pages that it holds
/// beyond one.
const FULL_WORTH_PAGES: f64 = 5.0;
/// The part of a full frame of the pool that pages fill.
const FULL_SHARE: f64 = 0.85;
/// The parts of the pool's limit in which its worth is counted.
const WHOLE: u32 = 16;
/// If pages return from devices although a larger pool would have held them, the pool grows to at most this
/// many times its own worth.
const MOST_GROWTH: u32 = 4;

/// The numbers that decide how much memory the pool should use. They differ between pages that handles reach
/// and pages that translations reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultPath {
    /// The time of a fault, without the time to fetch its page.
    fault_ns: f64,
    /// The number of frames that do not go to pages, of the frames that the pool gives up.
    kept_frames: u64,
    /// How many times its own worth the pool may grow to.
    growth: u32,
}

impl FaultPath {
    /// The numbers for pages that handles reach.
    pub(crate) const BY_HANDLES: Self = Self { fault_ns: 1_000.0, kept_frames: 0, growth: MOST_GROWTH };

    /// The numbers for pages behind translations, whose faults wake two threads. If the pool gives up frames,
    /// home keeps some of them, and away pages get the rest. The use of away pages is sampled only now and
    /// then, so the cost of the pages that a larger pool pushes out is less certain. So the pool grows only
    /// to its own worth.
    pub(crate) fn translated(kept_frames: u64) -> Self {
        Self { fault_ns: 25_000.0, kept_frames, growth: 1 }
    }
}

/// The outcome of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// The page is in the pool.
    Kept(Handle),
    /// The page does not shrink enough.
    Incompressible,
    /// There is no room: the limit is reached, the frame allocator has no block ready, or there is no scratch
    /// memory.
    Full,
}

/// The reason why a load failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadFailure {
    /// The slot no longer has this handle: its content has changed. Read the content again.
    Gone,
    /// The object's bytes are not the bytes that were stored.
    Corrupt,
}

/// The figures of the pool, at about one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolStats {
    /// The number of pages in the pool.
    pub(crate) pages: u64,
    /// The packed bytes of these pages, without headers.
    pub(crate) packed_bytes: u64,
    /// The bytes of the budget that the pool uses.
    pub(crate) used_bytes: u64,
    /// The most bytes that the pool may use, if its pages shrink well.
    pub(crate) limit_bytes: u64,
}

/// The compressed pool of a manager.
pub(crate) struct Pool {
    spans: Spans,
    time: Clock,
    codec: Codec,
    counters: Arc<Counters>,
    budget: Arc<Budget>,
    limit_bytes: AtomicU64,
    /// `worth`: the parts of the limit that pay, judged by how much pages shrink. `parts`: the parts
    /// that the pool may use, judged by the pages that return, or 0 until enough pages have returned.
    worth: AtomicU32,
    parts: AtomicU32,
    /// How many times its own worth the pool may grow to.
    growth: AtomicU32,
    used_bytes: AtomicU64,
    /// The approximate number of stores so far. It is the clock for ages.
    clock: AtomicU64,
    starved_until: AtomicU64,
    /// The bytes of holes that the last attempt could not close.
    kept_holes_bytes: AtomicU64,
    /// The number of stores that are still to be refused without packing, because a store found no room and
    /// no object has been freed since.
    refusals: AtomicU32,
    /// Whether most pages of the last batch tried the pool.
    packs: AtomicBool,
    /// The weights of each space. The last weights are for pages whose space is not known.
    weights: [Weights; WEIGHED_SPACES + 1],
    /// The number of pages that are in the pool, as all `weights` together assume.
    inside: PoolPages,
    /// Pages that have left for a device since the beginning.
    left_pages: AtomicU64,
    pace: WritePace,
    share: Share,
    victims: Mutex<Victims>,
    /// A thread that moves objects has locked this.
    moving: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool {:?}", self.stats())
    }
}

impl Pool {
    /// Makes a pool in frames of `frames`. It may use `limit_bytes`, and takes nothing before the first
    /// store.
    ///
    /// # Errors
    /// The kernel's, if the address space is exhausted.
    pub(crate) fn new(
        frames: &FrameAllocator,
        compression: Compression,
        limit_bytes: u64,
        budget: Arc<Budget>,
        counters: Arc<Counters>,
        machine: &Machine,
    ) -> std::io::Result<Self> {
        let most_spans = (frames.end_frame().index() >> SPAN_ORDER.0).min(Handle::SPANS);
        Ok(Self {
            spans: Spans::new(most_spans)?,
            time: machine.clock.clone(),
            codec: Codec::new(compression, Arc::clone(&budget), machine.cpus),
            counters,
            budget,
            limit_bytes: AtomicU64::new(limit_bytes),
            worth: AtomicU32::new(WHOLE),
            parts: AtomicU32::new(0),
            growth: AtomicU32::new(1),
            used_bytes: AtomicU64::new(0),
            clock: AtomicU64::new(0),
            starved_until: AtomicU64::new(0),
            kept_holes_bytes: AtomicU64::new(0),
            refusals: AtomicU32::new(0),
            packs: AtomicBool::new(false),
            weights: std::array::from_fn(|_| Weights::default()),
            inside: PoolPages::default(),
            left_pages: AtomicU64::new(0),
            pace: WritePace::default(),
            share: Share::new(machine.clock.clone()),
            victims: Mutex::new(Victims::default()),
            moving: Mutex::new(()),
        })
    }

    /// The most bytes of a budget that the pool may take.
    pub(crate) fn share_of(budget_bytes: u64) -> u64 {
        budget_bytes / LIMIT_PARTS.1 * LIMIT_PARTS.0
    }

    /// Changes the limit. A lowered limit does not shrink the pool: the caller must shrink it.
    pub(crate) fn set_limit_bytes(&self, bytes: u64) {
        self.refusals.store(0, Ordering::Relaxed);
        self.limit_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Judges how much of its limit the pool is worth: one part if each of its frames holds one page, and all
    /// parts if each holds [`FULL_WORTH_PAGES`]. If the pool has few pages and is not half full, its worth
    /// does not change.
    fn judge_worth(&self, pages: u64, packed_bytes: u64) {
        let (_, wanted_bytes) = self.used_and_wanted_bytes();
        if pages < FEW_PAGES && 2 * packed_bytes < wanted_bytes || packed_bytes == 0 {
            return;
        }
        let gained = (pages * PAGE_BYTES as u64) as f64 / packed_bytes as f64 - 1.0;
        let worth = (gained / (FULL_WORTH_PAGES - 1.0) * f64::from(WHOLE)).ceil() as u32;
        let worth = worth.clamp(1, WHOLE);
        // Hysteresis: the worth does not follow each page.
        let before = self.worth.load(Ordering::Relaxed);
        if worth > before || worth + 1 < before {
            self.worth.store(worth, Ordering::Relaxed);
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the number of pages in the pool and their bytes, and judges the pool's worth. Takes each
    /// class's lock in turn, so call it only once for a batch.
    pub(crate) fn turnover(&self) -> Turnover {
        let (pages, packed_bytes) = self.spans.contents();
        self.judge_worth(pages, packed_bytes);
        // Relaxed: a hint.
        Turnover {
            pages,
            packed_bytes,
            left: self.left_pages.load(Ordering::Relaxed),
            inside: self.inside.pages(),
        }
    }

    /// Returns how many of the `pages` of a batch should try the pool, by the notes in `weights`.
    pub(crate) fn weigh(
        &self,
        weights: &Weights,
        pages: u32,
        device: &DeviceView,
        turnover: Turnover,
    ) -> u32 {
        let tries = weights.decide(pages, device, turnover, &self.inside);
        self.counters.add(Counter::PoolBypass, u64::from(pages - tries));
        self.share.note_straight(u64::from(pages - tries));
        // Relaxed: a hint.
        self.packs.store(2 * tries > pages, Ordering::Relaxed);
        tries
    }

    /// The notes on pages that return.
    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    /// If a turn has ended, judges how much of its limit the pool should use. `now` is the shadow of pages
    /// evicted now.
    pub(crate) fn judge_share(&self, now: Shadow, faults: FaultPath, turnover: Turnover) {
        let FaultPath { fault_ns, kept_frames, growth } = faults;
        self.growth.store(growth, Ordering::Relaxed);
        let frame_bytes = PAGE_BYTES as u64;
        let packed_bytes = turnover.packed_bytes.max(1) as f64;
        let size = PoolSize {
            pages: turnover.pages,
            frames: self.used_bytes.load(Ordering::Relaxed) / frame_bytes,
            packs: FULL_SHARE * (turnover.pages * frame_bytes) as f64 / packed_bytes,
            block_frames: CHUNK_BYTES as u64 / frame_bytes,
            part_frames: self.part_bytes() / frame_bytes,
            parts: self.parts_in_use(),
            most: self.most_parts(),
            kept_frames,
        };
        if let Some(parts) = self.share.judge(now, fault_ns, size) {
            self.parts.store(parts, Ordering::Relaxed);
            self.refusals.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a page which [`Pool::coldest`] named leaves for a device, or is already on one.
    pub(crate) fn note_left(&self) {
        self.left_pages.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether most pages of the last batch tried the pool.
    pub(crate) fn packs(&self) -> bool {
        self.packs.load(Ordering::Relaxed)
    }

    /// The notes on the pages of a space, or for `None`, on pages with several owners or none.
    pub(crate) fn weights(&self, space: Option<SpaceId>) -> &Weights {
        &self.weights[space.map_or(WEIGHED_SPACES, |space| space.0 as usize % WEIGHED_SPACES)]
    }

    /// Forgets the notes of a space that has ended, since another space may get its number. Other spaces with
    /// the same notes lose them too.
    pub(crate) fn forget(&self, space: SpaceId) {
        self.weights(Some(space)).reset(&self.inside);
    }

    /// The state of the devices, with `ended_pages` written so far and `under_way_pages` in flight.
    pub(crate) fn device_view(&self, ended_pages: u64, under_way_pages: u32) -> DeviceView {
        self.pace.take(WriteSample { ended_pages, under_way_pages, at: self.time.now() });
        let assumed = DeviceView::UNMEASURED;
        DeviceView {
            in_flight_bytes: u64::from(under_way_pages) * PAGE_BYTES as u64,
            write_ns_per_page: self.pace.ns_per_page().unwrap_or(assumed.write_ns_per_page),
            ..assumed
        }
    }

    /// Packs a frame's page and keeps it. If a program writes to the frame meanwhile, the kept bytes are
    /// torn. But then the frame is dirty again, and the kept bytes are not used. `area_crc` is kept for
    /// [`Pool::area_crc`].
    pub(crate) fn store(
        &self,
        frames: &FrameAllocator,
        weights: &Weights,
        slot: SwapSlot,
        frame: FrameId,
        area_crc: u32,
    ) -> Stored {
        let began = Self::is_timed(slot).then(|| self.time.now());
        let stored = if self.refuses() { Stored::Full } else { self.pack(frames, slot, frame, area_crc) };
        let try_ns = began.map(|began| self.time.since(began).as_nanos() as u64);
        weights.note_store(stored, try_ns);
        if let Some(ns) = try_ns.filter(|_| stored != Stored::Full) {
            self.share.times().tries.note(ns);
        }
        if stored == Stored::Incompressible {
            self.share.note_straight(1);
        }
        self.counters.count(match stored {
            Stored::Kept(_) => Counter::PoolSwapOut,
            Stored::Incompressible => Counter::PoolRejectIncompressible,
            Stored::Full => Counter::PoolRejectFull,
        });
        stored
    }

    fn refuses(&self) -> bool {
        let left = self.refusals.load(Ordering::Relaxed);
        if left > 0 {
            // Approximate: two threads at the same time may count as one.
            self.refusals.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    fn pack(&self, frames: &FrameAllocator, slot: SwapSlot, frame: FrameId, area_crc: u32) -> Stored {
        frames.bytes().with_copy(frame.home_offset(), PAGE_BYTES, |page| {
            if estimate::is_hopeless(page) {
                return Stored::Incompressible;
            }
            let Some(mut scratch) = self.codec.take() else { return Stored::Full };
            let stored = match scratch.pack(page) {
                Some(packed) => {
                    let crcs = Checksums { packed: checksum(slot, area_crc, packed), area: area_crc };
                    let kept = self.keep(frames, slot, packed, crcs);
                    kept.map_or(Stored::Full, Stored::Kept)
                }
                None => Stored::Incompressible,
            };
            self.codec.give_back(scratch);
            stored
        })
    }

    fn keep(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        packed: &[u8],
        crcs: Checksums,
    ) -> Option<Handle> {
        let clock = self.clock.load(Ordering::Relaxed);
        // Another thread may use up a block that was just added.
        for _ in 0..4 {
            if let Placed::At(handle) = self.spans.place(frames, slot, packed, crcs, clock, true) {
                if handle.generation().is_multiple_of(TICK_STORES) {
                    self.clock.fetch_add(u64::from(TICK_STORES), Ordering::Relaxed);
                }
                return Some(handle);
            }
            if !self.grow(frames, clock) {
                break;
            }
        }
        self.clock.fetch_add(1, Ordering::Relaxed);
        self.refusals.store(REFUSALS, Ordering::Relaxed);
        None
    }

    /// Unpacks a slot's page into a frame. The object stays.
    ///
    /// # Errors
    /// See [`LoadFailure`]. The frame's bytes are then unspecified.
    pub(crate) fn load(
        &self,
        frames: &FrameAllocator,
        weights: &Weights,
        slot: SwapSlot,
        handle: Handle,
        to: FrameId,
    ) -> Result<(), LoadFailure> {
        let began = Self::is_timed(slot).then(|| self.time.now());
        let loaded = self.unpack(frames, slot, handle, to);
        if loaded.is_ok() {
            let unpack_ns = began.map(|began| self.time.since(began).as_nanos() as u64);
            weights.note_load(unpack_ns);
            if let Some(ns) = unpack_ns {
                self.share.times().unpacks.note(ns);
            }
            self.counters.count(Counter::PoolSwapIn);
        }
        loaded
    }

    /// Returns whether to time a slot. Timed slots are scattered. Otherwise they might be the first slots of
    /// a readahead more often than other slots.
    fn is_timed(slot: SwapSlot) -> bool {
        mixed(slot) < u32::MAX / TIMED_EVERY
    }

    /// Returns whether to time a fault's wait for a page that is not in the pool.
    pub(crate) fn times_wait(slot: SwapSlot) -> bool {
        mixed(slot) < u32::MAX / TIMED_WAIT_EVERY
    }

    /// Does what [`Pool::load`] does, for the shrinker: the page does not count as one that came back.
    pub(crate) fn unpack(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        handle: Handle,
        to: FrameId,
    ) -> Result<(), LoadFailure> {
        let unpacked = self.spans.look(frames, slot, handle, |packed, header| {
            if packed.len() != header.len || checksum(slot, header.area_crc, packed) != header.crc {
                return Err(LoadFailure::Corrupt);
            }
            let mut page = [0; PAGE_BYTES];
            if !self.codec.unpack(packed, &mut page) {
                return Err(LoadFailure::Corrupt);
            }
            Spans::fill(frames, to, &page);
            Ok(())
        });
        unpacked.unwrap_or(Err(LoadFailure::Gone))
    }

    /// The checksum of an object's page on its area, as given when the object was stored. Returns `None` if
    /// the object is gone.
    pub(crate) fn area_crc(&self, frames: &FrameAllocator, slot: SwapSlot, handle: Handle) -> Option<u32> {
        self.spans.area_crc(frames, slot, handle)
    }

    /// Frees an object. Called once, by the thread that changed the content from this handle to another
    /// value.
    pub(crate) fn free(&self, frames: &FrameAllocator, handle: Handle) {
        let emptied = self.spans.free(frames, handle);
        if self.refusals.load(Ordering::Relaxed) != 0 {
            self.refusals.store(0, Ordering::Relaxed);
        }
        self.release(frames, emptied);
    }

    fn release(&self, frames: &FrameAllocator, emptied: Option<(FrameId, Order)>) {
        if let Some((first, order)) = emptied {
            frames.free(first, order).expect("a block of the pool");
            self.used_bytes.fetch_sub(order.bytes() as u64, Ordering::Relaxed);
        }
    }

    /// Takes one more block from the frame allocator, the largest that is ready. Returns false if the limit
    /// is reached, or if no block is ready.
    #[cold]
    fn grow(&self, frames: &FrameAllocator, clock: u64) -> bool {
        if clock < self.starved_until.load(Ordering::Relaxed) {
            return false;
        }
        for order in Order::all().rev().filter(|&order| order >= SPAN_ORDER) {
            if self.add_block(order, || Some(frames.alloc_if_at_hand(order)?.into_frame())) {
                return true;
            }
        }
        self.starved_until.store(clock + STARVED_STORES, Ordering::Relaxed);
        false
    }

    /// Returns whether one of the last stores found no block ready, while the limit leaves room for a block
    /// of order 9. If so, another thread may make such a block.
    pub(crate) fn is_starved(&self) -> bool {
        let (used_bytes, wanted_bytes) = self.used_and_wanted_bytes();
        let may_grow = used_bytes + Order::MAX.bytes() as u64 <= wanted_bytes;
        may_grow && self.clock.load(Ordering::Relaxed) < self.starved_until.load(Ordering::Relaxed)
    }

    /// Gives the pool a block of order 9 that was allocated for it. Returns the block if the pool no longer
    /// needs it.
    pub(crate) fn feed(&self, block: Block) -> Option<Block> {
        let mut block = Some(block);
        self.starved_until.store(0, Ordering::Relaxed);
        if self.add_block(Order::MAX, || block.take().map(Block::into_frame)) {
            self.refusals.store(0, Ordering::Relaxed);
        }
        block
    }

    fn reserve(&self, bytes: u64) -> bool {
        let (_, limit) = self.used_and_wanted_bytes();
        let fits = |used: u64| used.checked_add(bytes).filter(|&used| used <= limit);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Adds a block, within the limit and the budget. Returns false if there is no room for the block, or no
    /// block.
    fn add_block(&self, order: Order, block: impl FnOnce() -> Option<FrameId>) -> bool {
        let bytes = order.bytes() as u64;
        if !self.reserve(bytes) {
            return false;
        }
        let added = self.add_reserved(order, block);
        if !added {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        added
    }

    fn add_reserved(&self, order: Order, block: impl FnOnce() -> Option<FrameId>) -> bool {
        let words_bytes = |spans: u64| spans * size_of::<SpanWords>() as u64;
        let most_words = words_bytes(u64::from(spans_of(order)));
        if !self.budget.charge(most_words) {
            return false;
        }
        let Some(first) = block() else {
            self.budget.uncharge(most_words);
            return false;
        };
        let fresh = self.spans.blocks.add(first, order);
        self.budget.uncharge(most_words - words_bytes(fresh.len() as u64));
        // If the kernel has no memory now, the first access to the words asks for memory again.
        let _ = self.spans.words().populate(fresh);
        true
    }

    /// The pool's figures.
    pub(crate) fn stats(&self) -> PoolStats {
        let (pages, packed_bytes) = self.spans.contents();
        let of = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        let (used_bytes, limit_bytes) = (of(&self.used_bytes), of(&self.limit_bytes));
        PoolStats { pages, packed_bytes, used_bytes, limit_bytes }
    }

    fn part_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed) / u64::from(WHOLE)
    }

    /// Returns the parts of the limit up to which the pool grows.
    fn parts_in_use(&self) -> u32 {
        match self.parts.load(Ordering::Relaxed) {
            0 => self.worth.load(Ordering::Relaxed),
            judged => judged.min(self.most_parts()),
        }
    }

    /// Returns the most parts of the limit to which returns may make the pool grow.
    fn most_parts(&self) -> u32 {
        (self.worth.load(Ordering::Relaxed) * self.growth.load(Ordering::Relaxed)).min(WHOLE)
    }

    /// Returns the bytes in use, and the bytes up to which the pool grows: the parts of the limit in use.
    fn used_and_wanted_bytes(&self) -> (u64, u64) {
        let wanted_bytes = self.part_bytes() * u64::from(self.parts_in_use());
        (self.used_bytes.load(Ordering::Relaxed), wanted_bytes)
    }

    /// Returns whether the pool should keep its room for pages that are out: more than half of its room is
    /// used, or no further block is available.
    pub(crate) fn is_short(&self) -> bool {
        let (used_bytes, wanted_bytes) = self.used_and_wanted_bytes();
        self.is_starved() || 2 * used_bytes > wanted_bytes
    }

    /// Gives a block back if much of the pool is holes. Pages that come back leave holes, and nothing fills
    /// them if no more pages enter the pool. After a failed attempt, the pool tries again when the holes have
    /// grown by a block. Returns whether a block was given back.
    pub(crate) fn close_holes(
        &self,
        frames: &FrameAllocator,
        retarget: impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) -> bool {
        let (used_bytes, wanted_bytes) = self.used_and_wanted_bytes();
        let packed_bytes = self.spans.contents().1;
        // If new pages shrink less than earlier pages, the pool is worth fewer blocks than it has.
        let is_too_large = used_bytes > wanted_bytes
            && self.spans.blocks.free_bytes() >= CHUNK_BYTES as u64 + wanted_bytes / 16;
        let holes_bytes = used_bytes.saturating_sub(packed_bytes + packed_bytes / HOLES_SHARE);
        // Relaxed: only one thread runs this, and a stale value costs one attempt.
        if !is_too_large && holes_bytes <= self.kept_holes_bytes.load(Ordering::Relaxed) + MOST_HOLES_BYTES {
            return false;
        }
        // A pool that is too large has no use for spare spans.
        let spare_spans = if is_too_large { 0 } else { SPARE_SPANS };
        let emptied = self.empty_one(frames, spare_spans, retarget);
        let kept_bytes = if emptied == Emptied::Nothing { holes_bytes } else { 0 };
        self.kept_holes_bytes.store(kept_bytes, Ordering::Relaxed);
        emptied == Emptied::Block
    }

    /// Returns whether less than a 16th of the bytes to which the pool may grow is left. If so, the shrinker
    /// should write some pages out.
    pub(crate) fn is_crowded(&self) -> bool {
        let (used_bytes, wanted_bytes) = self.used_and_wanted_bytes();
        used_bytes + wanted_bytes / 16 > wanted_bytes + self.spans.blocks.free_bytes()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The arena frees the pool's blocks.
        self.budget.uncharge(u64::from(self.spans.blocks.paid_names()) * size_of::<SpanWords>() as u64);
    }
}

fn mixed(slot: SwapSlot) -> u32 {
    slot.0.wrapping_mul(0x9e37_79b9)
}

/// The checksum of packed bytes, their slot, and the checksum of their page on its area.
fn checksum(slot: SwapSlot, area_crc: u32, packed: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(slot.0, &area_crc.to_le_bytes()), packed)
}
