//! Building an engine from its options.

use std::collections::BTreeMap;
use std::io;

use octavo_platform::ForkCanary;

use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::config::{HugePolicy, ReclaimPolicy, ZeroPage};
use crate::counters::Counters;
use crate::engine::immovable::Immovable;
use crate::engine::{Engine, PinShares, Policy, SpaceUse, TransferPins, Transfers};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::latch::Latches;
use crate::frame::zero_page::HugeZero;
use crate::frame::{FrameAllocator, FrameConfig};
use crate::latency::Latencies;
use crate::lru::Lru;
use crate::page_cache::PageCache;
use crate::rmap::ReverseMap;
use crate::swap::{Swap, SwapParts};
use crate::sync::timer::Timer;
use crate::sync::wait::WaitTable;
use crate::sync::{Arc, AtomicBool, AtomicU32, Machine, Mutex, Shared, WeakShared};
use crate::table::Table;
use crate::units::{FrameId, Order, PAGE_BYTES};

/// The most pages that leave the pool at once. The pool may name a span more than was asked for.
const POOL_VICTIMS: usize = 2048;
/// After this many failures in a row to make a block of 2 MiB, fewer and fewer requests try.
const MOST_FAILURES: u32 = 10;

/// The options of an [`Engine`].
pub(crate) struct EngineConfig {
    pub(crate) machine: Machine,
    pub(crate) policy: Policy,
    pub(crate) budget: Budget,
    pub(crate) frames: FrameConfig,
    pub(crate) zero_page: ZeroPage,
    /// The most table nodes.
    pub(crate) max_nodes: usize,
    /// The most spaces.
    pub(crate) max_spaces: usize,
    pub(crate) reclaim_policy: ReclaimPolicy,
    pub(crate) swap: SwapParts,
}

impl Engine {
    /// # Errors
    /// The errors of [`FrameAllocator::standalone`]. `System` if the kernel refuses addresses or memory.
    pub(crate) fn new(config: EngineConfig) -> Result<Shared<Self>> {
        let system = |what: &'static str| move |error: io::Error| Error::system(what, &error);
        let canary = ForkCanary::new().map_err(system("cannot tell a forked child from its parent"))?;
        let budget = Arc::new(config.budget);
        let counters = Arc::new(Counters::new().map_err(system("cannot reserve counters"))?);
        let frames = FrameAllocator::new(&config.frames, Arc::clone(&budget), Arc::clone(&counters))?;
        let cpus = config.machine.cpus;
        let (charged, counted) = (Arc::clone(&budget), Arc::clone(&counters));
        let table = Table::new(config.max_nodes, config.max_spaces, cpus, charged, counted)
            .map_err(system("cannot reserve page tables"))?;
        let rmap = ReverseMap::new(&frames, Arc::clone(&budget))
            .map_err(system("cannot reserve the reverse map"))?;
        let latches = Latches::new(frames.end_frame()).map_err(system("cannot reserve latches"))?;
        let small_zero = take_small_zero(&frames)?;
        let huge_zero = HugeZero::new(config.zero_page, Arc::clone(&counters));
        if config.policy.huge != HugePolicy::Never {
            huge_zero.prepare(&frames);
        }
        let lru = Lru::new(config.machine.cpus, config.frames.form, config.reclaim_policy)
            .map_err(system("cannot reserve LRU batches"))?;
        let swap = Swap::new(config.swap, &config.machine, &frames, &budget, &counters)
            .map_err(system("cannot make the swap's maps, pool or key"))?;
        let page_cache = Box::new(PageCache::new(&budget, &counters));
        let space_use =
            SpaceUse::new(config.max_spaces).map_err(system("cannot reserve counters of spaces"))?;
        let pin_shares =
            PinShares::new(config.max_spaces).map_err(system("cannot reserve the shares of spaces"))?;
        let latencies = Latencies::new(swap.areas.count()).map_err(system("cannot reserve histograms"))?;
        Ok(Shared::new_cyclic(|itself| Self {
            policy: config.policy,
            canary,
            budget,
            counters,
            latencies,
            frames,
            latches,
            small_zero,
            huge_zero,
            table,
            rmap,
            lru,
            swap,
            waits: WaitTable::new(),
            timer: Timer::new(config.machine.clock.clone()),
            immovable: Immovable::new(config.machine.clock.now()),
            machine: config.machine,
            spaces: Mutex::new(BTreeMap::new()),
            any_translation: AtomicBool::new(false),
            reclaimers: AtomicU32::new(0),
            shrinking: Mutex::new(()),
            blocks_for_faults: Backoff::new(MOST_FAILURES),
            blocks_for_pool: Backoff::new(MOST_FAILURES),
            transfers: Transfers::default(),
            transfer_pins: TransferPins::default(),
            open_files: AtomicU32::new(0),
            pool_victims: Mutex::new(Vec::with_capacity(POOL_VICTIMS)),
            space_use,
            pin_shares,
            page_cache,
            itself: WeakShared::clone(itself),
        }))
    }
}

fn take_small_zero(frames: &FrameAllocator) -> Result<FrameId> {
    let block = frames.alloc(Order::ZERO).ok_or_else(|| {
        Error::new(ErrorKind::System, "the kernel has no memory for the first chunk; lower the budget")
    })?;
    if !block.is_zeroed() {
        frames.bytes().zero(block.frame().home_offset(), PAGE_BYTES);
    }
    Ok(block.into_frame())
}
