//! The frame allocator: blocks of 2^order frames, from per-CPU lists, zones, and chunks brought online.
//!
//! ```text
//!   alloc ──► per-CPU list ──empty──► zone's lists ──empty──► chunk online ──refused──► other zone
//!     hit: one section, one store        refill a batch          (budget)                   │
//!                                                                                           ▼
//!   None ◄──nothing── retry ◄── every CPU's lists and the zeroed reserve drained ◄───── nothing
//! ```
//!
//! Key types: [`FrameAllocator`], [`Block`], [`FrameConfig`].
//!
//! Invariants: a frame is in one place. It is on a buddy list, on a shelf of whole chunks, on a per-CPU list,
//! in the zeroed reserve, with its owner, or aside in an isolated chunk. Each change of place checks the
//! frame's state word. `alloc` returns `None` only after it has searched every place. A fault can make room
//! instead. So it searches the lists of other CPUs only now and then (`alloc_or_make_room`).
//!
//! Locking, in this order: one CPU's lists, or the zeroed reserve; then one zone. A thread that brings a
//! chunk online takes `coming` while it holds none of these locks, and then takes the zone's lock. Hooks are
//! called with no lock held.
//!
//! The allocator does not reclaim, and does not call up. A caller that gets `None` decides what to do.

use crate::budget::Budget;
use crate::counters::{Counter, CounterSnapshot, Counters};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::away::AwayFrames;
use crate::frame::block::{Block, SplitBlock};
use crate::frame::config::{FrameConfig, MOST_FRAMES};
use crate::frame::percpu::{PerCpuLists, Tuning, ZEROED_CLASS};
use crate::frame::state::{FrameState, Kind};
use crate::frame::watermark::{MOST_LOWERED, Watermarks};
use crate::frame::words::{FrameTable, FrameWords};
use crate::frame::zone::{Arena, Givers, Zone, ZoneList};
use crate::sync::percpu::{Pop, Push};
use crate::sync::{Arc, AtomicU32, AtomicU64, Mutex, OnceLock, Ordering, reach_bytes};
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, ChunkId, FrameId, Order, PAGE_BYTES};

use crossbeam_utils::CachePadded;
use octavo_platform::ArenaBytes;

/// The frames that are zeroed ahead, in state Cached and ZEROED.
#[derive(Debug)]
struct ZeroedReserve {
    frames: Vec<FrameId>,
    most: usize,
}

/// Hands out blocks of 4 KiB to 2 MiB under a budget, for a program that wants memory in pages, without
/// spaces and swap. Most programs only call `alloc`, `give_back`, `free` and `shrink`. The other methods are
/// for upkeep. A manager calls them for its allocator.
///
/// Units: a frame is 4 KiB. A block is 2^order frames, order 0 to 9, aligned to its size. Memory comes from
/// the kernel and goes back to it in chunks of 2 MiB. Each chunk is charged to a budget, with 16 KiB for its
/// frame words.
///
/// Any thread may call any method. While the per-CPU list serves them, `alloc` and `free` together cost one
/// compare-and-swap (in `free`) on the frame's own line, two restartable sections on lines that only this CPU
/// writes, and no lock. With the `TryLock` form, the two calls cost three read-modify-writes. If the list is
/// empty, one zone lock is taken for a batch of blocks.
#[derive(Debug)]
pub struct FrameAllocator {
    lists: PerCpuLists,
    arena: Arena,
    zones: ZoneList,
    away: AwayFrames,
    cpu_nodes: Box<[u8]>,
    /// Whether all zones and CPUs are on one node.
    one_node: bool,
    /// The orders, as bits, that a section pops. Then the orders that a section may push without looking up
    /// the frame's node.
    popped_orders: u16,
    pushed_orders: u16,
    reserve: Mutex<ZeroedReserve>,
    /// About how many frames the reserve has now. Most callers find 0 here, and so do not touch the cache
    /// line of the lock.
    zeroed_ahead: CachePadded<AtomicU32>,
    /// Locked by the thread that drains all CPUs. Other threads that want to drain CPUs wait for this thread.
    draining: Mutex<()>,
    /// The bytes of all zones, and the bytes for which the lists and watermarks are tuned. The second number
    /// is smaller if the budget is smaller than the zones.
    most_bytes: u64,
    tuned_for_bytes: AtomicU64,
    /// The steps by which watermarks are lowered.
    lowered: AtomicU32,
    metadata_bytes: u64,
    low_hook: OnceLock<LowHook>,
    counted: Mutex<FastPathCounts>,
}

/// The hook that is called when memory falls below the low watermark.
struct LowHook(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for LowHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LowHook")
    }
}

/// The allocations and frees on the fast path, by class, that the counters already include.
#[derive(Debug, Default)]
struct FastPathCounts {
    pops: [u64; Order::COUNT + 1],
    pushes: [u64; Order::COUNT + 1],
}

/// Frames zeroed while the reserve's lock is held once.
const ZERO_BATCH: usize = 8;

impl FrameAllocator {
    /// Makes an allocator with a budget of its own.
    ///
    /// # Errors
    /// `InvalidBudget` if there is no zone, a zone is empty, the zones span 8 TiB or more, or the budget
    /// cannot hold the allocator's own data. `System` if the kernel refuses addresses.
    pub fn standalone(config: &FrameConfig, budget_bytes: u64) -> Result<Self> {
        let counters = Counters::new().map_err(|error| Error::system("cannot reserve counters", &error))?;
        Self::new(config, Arc::new(Budget::new(budget_bytes)), Arc::new(counters))
    }

    /// Makes an allocator that charges `budget` and counts in `counters`.
    ///
    /// # Errors
    /// The errors of [`FrameAllocator::standalone`].
    pub(crate) fn new(config: &FrameConfig, budget: Arc<Budget>, counters: Arc<Counters>) -> Result<Self> {
        if config.zones.is_empty() || config.zones.iter().any(|zone| zone.bytes == 0) {
            return Err(Error::new(
                ErrorKind::InvalidBudget,
                "give the allocator at least one zone, none empty",
            ));
        }
        let away_frames = config.away_chunks().saturating_mul(u64::from(CHUNK_FRAMES));
        if FrameConfig::span_frames(&config.zones).saturating_add(away_frames) > MOST_FRAMES {
            return Err(Error::new(
                ErrorKind::InvalidBudget,
                "give the allocator zones that span less than 8 TiB; each begins at a multiple of a power of two",
            ));
        }
        let sizes: Vec<_> = config
            .zones
            .iter()
            .map(|zone| (zone.bytes.div_ceil(CHUNK_BYTES as u64) as u32, zone.backing, zone.node))
            .collect();
        let zones = ZoneList::new(&sizes);
        let system =
            |error: std::io::Error| Error::system("cannot reserve address space for the arena", &error);
        let cpus = config.cpus.count();
        let most_bytes: u64 = sizes.iter().map(|&(chunks, ..)| u64::from(chunks) * CHUNK_BYTES as u64).sum();
        let now_bytes = most_bytes.min(budget.limit_bytes());
        let lists = PerCpuLists::new(
            config.cpus,
            config.percpu_orders,
            config.form,
            tuning(most_bytes, cpus),
            tuning(now_bytes, cpus),
        )
        .map_err(system)?;
        let most_reserved = (now_bytes / PAGE_BYTES as u64 / 64).clamp(8, 4096) as usize;
        let metadata_bytes = lists.bytes() as u64 + 4 * most_reserved as u64;
        if !budget.charge(metadata_bytes) {
            let message =
                format!("the frame allocator's own data need {metadata_bytes} bytes; raise the budget");
            return Err(Error::new(ErrorKind::InvalidBudget, message));
        }
        let frames = zones.end() as usize;
        let (arena, away) = (|| {
            let away = AwayFrames::new(FrameId(zones.end()), config.away_chunks() as u32)?;
            let arena = Arena {
                words: FrameTable::new(away.end())?,
                bytes: ArenaBytes::new(frames * PAGE_BYTES)?,
                budget: budget.clone(),
                counters,
                populate: config.populate,
            };
            Ok((arena, away))
        })()
        .map_err(|error| {
            budget.uncharge(metadata_bytes);
            system(error)
        })?;
        let cpu_nodes: Box<[u8]> =
            (0..cpus).map(|cpu| config.cpu_nodes.get(cpu).copied().unwrap_or(0)).collect();
        let first_node = cpu_nodes[0];
        let one_node = cpu_nodes.iter().all(|&node| node == first_node)
            && config.zones.iter().all(|zone| zone.node == first_node);
        let listed = Order::all().filter(|&order| config.percpu_orders.holds(order));
        let sections = lists.stacks().are_sections();
        let popped_orders = listed.filter(|_| sections).fold(0, |bits, order| bits | 1 << order.0);
        Ok(Self {
            lists,
            arena,
            zones,
            away,
            cpu_nodes,
            one_node,
            popped_orders,
            pushed_orders: if one_node { popped_orders } else { 0 },
            zeroed_ahead: CachePadded::new(AtomicU32::new(0)),
            reserve: Mutex::new(ZeroedReserve {
                frames: Vec::with_capacity(most_reserved),
                most: most_reserved,
            }),
            draining: Mutex::new(()),
            most_bytes,
            tuned_for_bytes: AtomicU64::new(now_bytes),
            lowered: AtomicU32::new(0),
            metadata_bytes,
            low_hook: OnceLock::new(),
            counted: Mutex::new(FastPathCounts::default()),
        })
    }

    /// Allocates a block of 2^order frames. Returns `None` if there is none in any place and the budget
    /// allows no more.
    #[inline]
    pub fn alloc(&self, order: Order) -> Option<Block> {
        if self.popped_orders >> order.0 & 1 != 0
            && let Pop::Value(frame) = self.lists.stacks().pop_in_section(order.index())
        {
            return Some(self.hand_out(FrameId(frame), order));
        }
        self.alloc_slow(order)
    }

    /// Does what [`FrameAllocator::alloc`] does, for a caller that makes room if it gets `None`. When room
    /// has to be made, other CPUs have few frames on their lists, and need these frames themselves. So this
    /// searches their lists only now and then. If making room does not help, the caller calls
    /// [`FrameAllocator::alloc`].
    #[inline]
    pub(crate) fn alloc_or_make_room(&self, order: Order) -> Option<Block> {
        if self.popped_orders >> order.0 & 1 != 0
            && let Pop::Value(frame) = self.lists.stacks().pop_in_section(order.index())
        {
            return Some(self.hand_out(FrameId(frame), order));
        }
        self.alloc_or_make_room_slow(order)
    }

    #[inline(always)]
    fn hand_out(&self, frame: FrameId, order: Order) -> Block {
        Block::new(frame, self.words(frame).state.hand_out(order))
    }

    /// Allocates from this CPU's list only, in either form of the lists.
    fn alloc_listed(&self, order: Order) -> Option<Block> {
        match self.lists.pop(order.index()) {
            Pop::Value(frame) => Some(self.hand_out(FrameId(frame), order)),
            Pop::Empty | Pop::Busy => None,
        }
    }

    /// Does what [`FrameAllocator::alloc`] does, but does not search other CPUs' lists. For callers that do
    /// not need a block: `None` is cheap, and does not prove that there is none.
    pub fn alloc_if_at_hand(&self, order: Order) -> Option<Block> {
        if let Some(block) = self.alloc_listed(order) {
            return Some(block);
        }
        let block = self.search(order);
        self.check_watermark();
        block
    }

    /// Does what [`FrameAllocator::alloc`] does, but brings no chunk online. For pages that leave a chunk so
    /// that it can go offline: if another chunk came online for them, they would move back and forth forever.
    pub(crate) fn alloc_online(&self, order: Order) -> Option<Block> {
        let block = self.alloc_listed(order).or_else(|| self.search_online(order)).or_else(|| {
            self.drain();
            self.search_online(order)
        });
        self.check_watermark();
        block
    }

    /// Frees a block that [`FrameAllocator::alloc`] returned, or an order-0 frame of one that was split.
    ///
    /// # Errors
    /// `InvalidFree` if the frame heads no allocated block of this order: it was freed twice, or with another
    /// order, or never allocated, or lies inside a block. Nothing changes then.
    #[inline]
    pub fn free(&self, frame: FrameId, order: Order) -> Result<()> {
        // Each unusual case is a tail call. So the fast path keeps no value across a call, and saves no
        // registers.
        let Some(words) = self.arena.words.get(frame) else {
            return invalid_free(frame, order, None);
        };
        if let Err(found) = words.state.take_back_plain(order) {
            return self.free_unusual(words, frame, order, found);
        }
        if self.pushed_orders >> order.0 & 1 != 0
            && self.lists.stacks().push_in_section(order.index(), frame.0) == Push::Done
        {
            return Ok(());
        }
        self.free_slow(frame, order)
    }

    /// Frees a block.
    #[inline]
    pub fn give_back(&self, block: Block) {
        let order = block.order();
        self.free(block.into_frame(), order).expect("a block in hand is freed once");
    }

    /// Allocates up to `n` blocks, and passes each to `take`. Returns how many there were. Costs as much as
    /// single allocations: the per-CPU lists refill in batches that double anyway.
    pub fn alloc_bulk(&self, order: Order, n: usize, mut take: impl FnMut(Block)) -> usize {
        for got in 0..n {
            match self.alloc(order) {
                Some(block) => take(block),
                None => return got,
            }
        }
        n
    }

    /// Frees several blocks of any orders. Costs as much as single frees: blocks beyond the limit of the
    /// per-CPU lists go to the zones in batches anyway.
    ///
    /// # Errors
    /// `InvalidFree` as in [`FrameAllocator::free`], for the first invalid block. All valid blocks are freed.
    pub fn free_bulk(&self, blocks: impl IntoIterator<Item = (FrameId, Order)>) -> Result<()> {
        let mut first_error = Ok(());
        for (frame, order) in blocks {
            let freed = self.free(frame, order);
            if first_error.is_ok() {
                first_error = freed;
            }
        }
        first_error
    }

    /// Allocates an order-0 frame that was zeroed ahead. If it returns `None`, the caller allocates a frame
    /// and zeroes it.
    #[inline]
    pub fn alloc_zeroed(&self) -> Option<Block> {
        let frame = match self.lists.pop(ZEROED_CLASS) {
            Pop::Value(frame) => FrameId(frame),
            Pop::Empty | Pop::Busy => return self.alloc_zeroed_slow(),
        };
        let block = self.hand_out(frame, Order::ZERO);
        assert!(block.is_zeroed(), "the zeroed list held {frame:?}, which is not known to be zero");
        Some(block)
    }

    /// Splits a block into blocks of order 0.
    pub(crate) fn split_block(&self, block: Block) -> SplitBlock {
        let (order, zeroed) = (block.order(), block.is_zeroed());
        let head = block.into_frame();
        self.split(head, order).expect("a block in hand is whole");
        let state = FrameState::cached(Order::ZERO, zeroed);
        SplitBlock::new(head, state, order)
    }

    /// Splits an allocated block into allocated frames of order 0, each to be freed on its own.
    ///
    /// # Errors
    /// `InvalidFree` if `frame` heads no allocated block of this order.
    pub fn split(&self, frame: FrameId, order: Order) -> Result<()> {
        let Some(head) = self.arena.words.get(frame) else {
            return invalid_free(frame, order, None);
        };
        let state = head.state.load();
        if !state.is(Kind::Owned, order) {
            return invalid_free(frame, order, Some(state));
        }
        // The head changes last, so that the block looks whole to other threads until then.
        for tail in (0..order.frames()).rev() {
            self.words(frame.plus(tail)).state.split_to(Order::ZERO, state.isolating());
        }
        Ok(())
    }

    /// Returns a frame's words.
    #[inline]
    pub(crate) fn words(&self, frame: FrameId) -> &FrameWords {
        &self.arena.words[frame]
    }

    /// Returns a frame's words, or `None` if there is no frame with this number.
    #[inline]
    pub(crate) fn words_if_any(&self, frame: FrameId) -> Option<&FrameWords> {
        self.arena.words.get(frame)
    }

    /// Returns the arena's bytes. A frame `f` with memory here begins at `f.0 * 4096`.
    #[inline]
    pub fn bytes(&self) -> &ArenaBytes {
        reach_bytes();
        &self.arena.bytes
    }

    /// Returns the first frame number after the frames that have memory in the arena.
    pub fn end_frame(&self) -> FrameId {
        FrameId(self.zones.end())
    }

    /// Returns all chunks that were ever online, and perhaps a few others.
    pub(crate) fn reached_chunks(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.zones.iter().flat_map(|zone| zone.reached_chunks())
    }

    /// Returns how many frames are free now: on lists of zones and CPUs, and in the zeroed reserve. The
    /// number is approximate while other threads work.
    pub fn free_frames(&self) -> u64 {
        let zeroed_ahead = u64::from(self.zeroed_ahead.load(Ordering::Relaxed));
        self.zone_free_frames() + self.lists.frames() + zeroed_ahead
    }

    /// Returns how many frames are free in the zones or can still come online under the budget. Watermarks
    /// are compared with this number. It leaves out the per-CPU lists and the zeroed reserve.
    pub fn available_frames(&self) -> u64 {
        self.zone_free_frames() + self.offline_frames()
    }

    /// Returns how many frames are free, or could still be charged to the budget: as chunks or, with
    /// `has_away`, as single away pages.
    pub(crate) fn allocatable_frames(&self, has_away: bool) -> u64 {
        let room_bytes = self.arena.budget.room_for_chunks_bytes();
        self.free_frames() + if has_away { room_bytes / PAGE_BYTES as u64 } else { self.offline_frames() }
    }

    /// Returns how many frames can still come online under the budget.
    fn offline_frames(&self) -> u64 {
        let room = self.arena.budget.room_for_chunks_bytes() / crate::frame::chunk::online_cost_bytes(true);
        let offline: u64 = self.zones.iter().map(|zone| u64::from(zone.offline_chunks())).sum();
        room.min(offline) * u64::from(CHUNK_FRAMES)
    }

    /// Returns the watermarks for the present budget and the present load.
    pub fn watermarks(&self) -> Watermarks {
        let (bytes, steps) = (&self.tuned_for_bytes, &self.lowered);
        Watermarks::lowered(bytes.load(Ordering::Relaxed), steps.load(Ordering::Relaxed))
    }

    /// Lowers the watermarks by `steps`, [`MOST_LOWERED`] at the most.
    pub(crate) fn lower_watermarks(&self, steps: u32) {
        // Relaxed: a thread that reads an old value only makes room a little early or late.
        self.lowered.store(steps.min(MOST_LOWERED), Ordering::Relaxed);
    }

    /// Installs a hook. The slow path calls it, with no lock held, whenever less memory is left than the low
    /// watermark. The hook should do little work, such as waking a thread.
    ///
    /// # Panics
    /// If it is called a second time.
    pub fn set_low_hook(&self, hook: impl Fn() + Send + Sync + 'static) {
        assert!(self.low_hook.set(LowHook(Box::new(hook))).is_ok(), "the hook is installed once");
    }

    /// Gives up to `n_chunks` wholly free chunks back to the kernel, and returns their number. If the zones
    /// have too few free chunks, this first drains the per-CPU lists.
    pub fn shrink(&self, n_chunks: u32) -> u32 {
        let from_zones =
            |n: u32| self.zones.iter().rev().fold(0, |gone, zone| gone + zone.shrink(&self.arena, n - gone));
        let gone = from_zones(n_chunks);
        if gone == n_chunks {
            return gone;
        }
        self.drain();
        gone + from_zones(n_chunks - gone)
    }

    /// Starts to empty a chunk, or continues. The chunk's free frames leave every list, and frames that are
    /// freed into it stay aside. Returns how many of its frames are not yet aside, or `None` if the chunk is
    /// not online.
    pub fn isolate(&self, chunk: ChunkId) -> Option<u32> {
        let zone = self.zone_of_chunk(chunk)?;
        match zone.isolate(&self.arena, chunk)? {
            0 => Some(0),
            _ => {
                // Frames from per-CPU lists go aside now. Frames that were handed out meanwhile get the mark
                // in the second call below.
                self.drain();
                zone.isolate(&self.arena, chunk)
            }
        }
    }

    /// Ends an isolation. The chunk's free frames can be allocated again.
    pub fn putback(&self, chunk: ChunkId) {
        if let Some(zone) = self.zone_of_chunk(chunk) {
            zone.putback(&self.arena, chunk);
        }
    }

    /// Gives an isolated chunk back to the kernel. Returns false if some of its frames are not free yet, or
    /// if the kernel refuses.
    pub fn take_offline(&self, chunk: ChunkId) -> bool {
        self.zone_of_chunk(chunk).is_some_and(|zone| zone.take_offline(&self.arena, chunk))
    }

    /// Takes an isolated chunk whose frames are all free, as one allocated block of order 9.
    pub fn claim_isolated(&self, chunk: ChunkId) -> Option<Block> {
        let block = self.zone_of_chunk(chunk)?.claim(&self.arena, chunk)?;
        Some(self.hand_out_counted(block.frame, Order::MAX))
    }

    /// Moves every block on per-CPU lists and in the zeroed reserve to its zone, where it can merge. One
    /// thread drains at a time. A second caller waits for the first, and then finds most lists drained.
    pub fn drain(&self) {
        let _single = self.draining.lock();
        self.give_zeroed_back();
        for cpu in 0..self.lists.stacks().cpus() {
            // Skip a drained CPU: stopping it takes a system call.
            if self.lists.is_drained(cpu) {
                continue;
            }
            let Some(held) = self.lists.stacks().exclusive(cpu) else { continue };
            let mut givers = Givers::new(&self.zones, &self.arena, cpu);
            self.lists.drain(&held, |frame, order| givers.give(frame, order));
            self.arena.counters.add(Counter::PercpuDrain, givers.frames());
        }
    }

    /// Moves the frames that were zeroed ahead to their zones. When memory runs short, these frames are taken
    /// first, since no page needs them.
    pub fn give_zeroed_back(&self) {
        let mut reserve = self.reserve.lock();
        let mut givers = Givers::new(&self.zones, &self.arena, 0);
        while let Some(frame) = reserve.frames.pop() {
            givers.give(frame, Order::ZERO);
        }
        self.note_zeroed_ahead(&reserve);
    }

    /// Updates `zeroed_ahead`. Called after each change, with the reserve's lock held.
    fn note_zeroed_ahead(&self, reserve: &ZeroedReserve) {
        let frames = reserve.frames.len() as u32;
        // Relaxed: the number is a hint. Without a change there is no store, so the line stays in its
        // readers' caches.
        if self.zeroed_ahead.load(Ordering::Relaxed) != frames {
            self.zeroed_ahead.store(frames, Ordering::Relaxed);
        }
    }

    /// Shrinks the per-CPU lists that are larger than their use. The background thread calls it at each tick.
    pub fn decay(&self) {
        self.retune();
        for cpu in 0..self.lists.stacks().cpus() {
            let Some(held) = self.lists.stacks().exclusive(cpu) else { continue };
            let mut givers = Givers::new(&self.zones, &self.arena, cpu);
            self.lists.decay(&held, |frame, order| givers.give(frame, order));
            self.arena.counters.add(Counter::PercpuDrain, givers.frames());
        }
    }

    /// Zeroes up to `n` free frames ahead and puts them in the reserve. Returns their number. Brings no
    /// memory online. Stops at the high watermark, since memory below it is needed for pages in use.
    pub fn zero_some(&self, n: usize) -> usize {
        let keep = self.watermarks().high_frames;
        let mut done = 0;
        while done < n {
            // The lock is held while frames are zeroed, so that a drain finds them.
            let mut reserve = self.reserve.lock();
            let room = reserve.most - reserve.frames.len();
            let batch = room.min(n - done).min(ZERO_BATCH);
            let free = self.zone_free_frames();
            if batch == 0 || free == 0 || self.available_frames() <= keep {
                break;
            }
            let mut got = 0;
            for zone in self.zones.iter() {
                while got < batch {
                    let Some(block) = zone.lock(&self.arena).take(Order::ZERO) else { break };
                    if !block.zeroed {
                        self.arena.bytes.zero(block.frame.home_offset(), PAGE_BYTES);
                        self.words(block.frame).state.set(Kind::Cached, Order::ZERO, true);
                    }
                    reserve.frames.push(block.frame);
                    got += 1;
                }
            }
            self.note_zeroed_ahead(&reserve);
            done += got;
            if got == 0 {
                break;
            }
        }
        done
    }

    /// Adapts the lists and watermarks to a changed budget. The slow path calls this too.
    pub fn retune(&self) {
        let bytes = self.most_bytes.min(self.arena.budget.limit_bytes());
        if self.tuned_for_bytes.load(Ordering::Relaxed) != bytes {
            self.tuned_for_bytes.store(bytes, Ordering::Relaxed);
            self.lists.retune(tuning(bytes, self.lists.stacks().cpus()));
        }
    }

    /// Adds to the counters the allocations and frees that the fast paths served since the last call. Call it
    /// before you read the counters.
    pub fn flush_counters(&self) {
        let mut counted = self.counted.lock();
        let (mut allocated, mut freed) = (0, 0);
        for class in 0..=Order::COUNT {
            let Some((pops, pushes)) = self.lists.stacks().pops_and_pushes(class) else { continue };
            let shift = if class == ZEROED_CLASS { 0 } else { class };
            // The numbers are not exact while other threads work. A later call finds the events that one call
            // misses.
            allocated += pops.saturating_sub(counted.pops[class]) << shift;
            freed += pushes.saturating_sub(counted.pushes[class]) << shift;
            counted.pops[class] = pops.max(counted.pops[class]);
            counted.pushes[class] = pushes.max(counted.pushes[class]);
        }
        self.arena.counters.add(Counter::PagesAllocated, allocated);
        self.arena.counters.add(Counter::PagesFreed, freed);
    }

    /// Returns the counters, with the events of the fast paths.
    pub fn counters(&self) -> CounterSnapshot {
        self.flush_counters();
        self.arena.counters.snapshot()
    }

    /// Checks every list against the state words. Linear in the frames. It stops the per-CPU lists one by
    /// one.
    ///
    /// # Panics
    /// If they contradict each other. The check is exact while no thread allocates or frees.
    pub fn validate(&self) {
        let reserve = self.reserve.lock();
        for &frame in &reserve.frames {
            let state = self.words(frame).state.load();
            assert!(state.is(Kind::Cached, Order::ZERO) && state.zeroed(), "the reserve holds {state:?}");
        }
        drop(reserve);
        for cpu in 0..self.lists.stacks().cpus() {
            let Some(held) = self.lists.stacks().exclusive(cpu) else { continue };
            self.lists.validate(&held, |frame, order, zeroed| {
                let state = self.words(frame).state.load();
                assert!(state.is(Kind::Cached, order), "CPU {cpu}'s list of {order:?} holds {state:?}");
                assert!(!zeroed || state.zeroed(), "the zeroed list holds {state:?}");
            });
        }
        for zone in self.zones.iter() {
            zone.lock(&self.arena).validate();
        }
        self.away.validate(&self.arena);
    }

    fn zone_of_chunk(&self, chunk: ChunkId) -> Option<&Zone> {
        let zone = self.zones.get(self.zones.index_of(chunk.first()))?;
        (chunk.first().0 - zone.first.0 < zone.chunks * CHUNK_FRAMES).then_some(zone)
    }

    fn zone_free_frames(&self) -> u64 {
        self.zones.iter().map(|zone| u64::from(zone.free_frames())).sum()
    }
}

impl Drop for FrameAllocator {
    fn drop(&mut self) {
        // When the arena is dropped, its memory is freed: the chunks that are still online, and all frame
        // words.
        self.arena.budget.uncharge(self.metadata_bytes + self.away.words_bytes());
        let mut bytes = self.away.charged_bytes();
        for zone in self.zones.iter() {
            bytes += zone.lock(&self.arena).charged_bytes();
        }
        self.arena.budget.uncharge_pages(bytes);
    }
}

fn tuning(bytes: u64, cpus: usize) -> Tuning {
    // This is Linux's low watermark. Octavo's watermark lies higher, but that does not change how much a CPU
    // should hold.
    let min_frames = Watermarks::for_bytes(bytes).min_frames;
    Tuning::new(bytes / PAGE_BYTES as u64, min_frames + min_frames / 4, cpus)
}

#[cold]
#[inline(never)]
fn invalid_free<T>(frame: FrameId, order: Order, found: Option<FrameState>) -> Result<T> {
    let found = found.map_or("is outside the arena".into(), |state| format!("is {state:?}"));
    let message = format!("{frame:?} was freed as an allocated block of {order:?}, but it {found}");
    Err(Error::new(ErrorKind::InvalidFree, message))
}

mod away;
mod slow;

#[cfg(all(test, not(loom)))]
mod tests;
