//! Event counters: each CPU has a cell for each counter, and a reader sums the cells. A counter that is
//! also in /proc/vmstat has the same name there.
//!
//! An increment costs one add on a cache line that only this CPU writes. A block counts as `1 << order` in
//! every mode, so that modes can be compared.

use std::fmt;

use crate::sync::percpu::PerCpuCells;

macro_rules! counters {
    ($($variant:ident $name:literal $doc:literal;)*) => {
        /// An event that a manager counts. See [`Manager::counters`](crate::Manager::counters).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Counter { $(#[doc = $doc] $variant,)* }

        impl Counter {
            /// Every counter, in declaration order.
            pub const ALL: &[Counter] = &[$(Counter::$variant,)*];

            /// Returns the counter's name: that of /proc/vmstat if it has one.
            pub fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)* }
            }
        }
    };
}

counters! {
    PageFault "pgfault" "Faults taken.";
    MajorFault "pgmajfault" "Faults that waited for a device.";
    PagesAllocated "pgalloc_normal" "Base pages allocated (a block counts 1 << order).";
    PagesFreed "pgfree" "Base pages freed (a block counts 1 << order).";
    AllocationStall "allocstall_normal" "Allocations that reclaimed before they were served.";
    AllocationThrottle "allocthrottle" "Times that a thread made room because it had taken much memory, while single pages were read.";
    StallNanoseconds "allocstall_ns" "Time spent waiting for memory, throttles left out, in nanoseconds.";
    PercpuRefill "percpu_refill" "Base pages moved from a zone to a per-CPU list.";
    PercpuDrain "percpu_drain" "Base pages moved from a per-CPU list to a zone.";
    ZoneLock "zone_lock" "Acquisitions of a zone's lock.";
    ChunkOnline "chunk_online" "2 MiB chunks taken from the kernel.";
    ChunkOffline "chunk_offline" "2 MiB chunks given back to the kernel.";
    HugeFaultAllocated "thp_fault_alloc" "2 MiB blocks allocated by faults.";
    HugeFaultFallback "thp_fault_fallback" "Faults that wanted a 2 MiB block or zero page and got base pages.";
    HugeZeroAllocated "thp_zero_page_alloc" "Huge zero pages allocated.";
    HugeZeroFailed "thp_zero_page_alloc_failed" "Huge zero pages that could not be allocated.";
    HugeZeroGet "thp_zero_page_get" "References taken on the huge zero page.";
    HugeZeroPut "thp_zero_page_put" "References given back on the huge zero page.";
    HugeSplit "thp_split_pmd" "Huge leaves split into base pages.";
    PinFast "pin_fast" "Pins asked of the lock-free path (Linux 2.6.27 called it `fast_gup`).";
    PinSlow "pin_slow" "Pins that took the slow path (Linux 2.6.27 called it `fast_gup_slow`).";
    HugeSwapOut "thp_swpout" "2 MiB blocks that went out to a slot of order 9.";
    HugeSwapOutFallback "thp_swpout_fallback" "2 MiB blocks that were split because no slot of order 9 was free.";
    SwapIn "pswpin" "Pages read from swap.";
    SwapOut "pswpout" "Pages written to swap.";
    SwapCacheHit "swap_cache_hit" "Faults served by a page still in the swap cache.";
    ReadAhead "swap_ra" "Pages whose read began before a fault wanted them.";
    ReadAheadHit "swap_ra_hit" "Faults that found their page in the swap cache, where a read had brought it.";
    SwapWriteError "swap_write_error" "Pages whose write to swap failed; they stayed in memory.";
    SwapReadError "swap_read_error" "Pages whose read from swap failed.";
    SwapLockAdd "swap_lock_add" "Acquisitions of the swap cache's lock to add pages.";
    SwapLockStartWriteback "swap_lock_start_writeback" "Acquisitions of the swap cache's lock as a write starts.";
    SwapLockEndWriteback "swap_lock_end_writeback" "Acquisitions of the swap cache's lock as a write ends.";
    SwapLockRemove "swap_lock_remove" "Acquisitions of the swap cache's lock to remove a page.";
    SwapLockOther "swap_lock_other" "Acquisitions of the swap cache's lock by faults, and to forget the shadow of a freed slot.";
    ZeroSwapIn "swpin_zero" "Pages of one repeated word (zeros, mostly) brought back without a device.";
    ZeroSwapOut "swpout_zero" "Pages of one repeated word sent out without a device.";
    PoolSwapIn "zswpin" "Pages brought back from the compressed pool.";
    PoolSwapOut "zswpout" "Pages that went into the compressed pool.";
    PoolWriteback "zswpwb" "Pages written from the compressed pool to a swap area.";
    PoolCopyDropped "zswp_copy_dropped" "Pages dropped from the compressed pool because a swap area has them as well.";
    PoolRejectIncompressible "pool_reject_incompressible" "Pages that the pool refused because they do not shrink.";
    PoolRejectFull "pool_reject_full" "Pages that the pool had no room for.";
    PoolBypass "pool_bypass" "Pages that bypassed the pool and went straight to a swap area.";
    SwapCorrupt "swap_corrupt" "Pages whose bytes came back from swap other than they went out.";
    FileRead "file_read" "Pages read from files.";
    FileWrite "file_written" "Pages written to files.";
    FileCacheHit "file_cache_hit" "Faults served by a page of a file in memory.";
    FileSync "file_sync" "Syncs of files.";
    ScanBackground "pgscan_kswapd" "Pages looked at by background reclaim.";
    ScanDirect "pgscan_direct" "Pages looked at by direct reclaim.";
    StealBackground "pgsteal_kswapd" "Pages freed by background reclaim.";
    StealDirect "pgsteal_direct" "Pages freed by direct reclaim.";
    BackgroundRun "pageoutrun" "Times background reclaim was woken to work.";
    PageActivated "pgactivate" "Pages that the reclaim policy moved among those to stay.";
    PageDeactivated "pgdeactivate" "Pages that the reclaim policy moved among those that go first.";
    WorkingsetRefault "workingset_refault" "Refaults: pages that came back and had left a shadow.";
    WorkingsetActivate "workingset_activate" "Refaulted pages that the policy keeps from the start.";
    FrameMigrated "pgmigrate_success" "Frames moved to another place.";
    FrameMigrateFailed "pgmigrate_fail" "Frames that could not be moved.";
    CompactStall "compact_stall" "Allocations that compacted before they were served.";
    CompactSuccess "compact_success" "Compactions that made a free block.";
    CompactFail "compact_fail" "Compactions that made no free block.";
    FrameZeroed "frame_zeroed" "Frames zeroed on the way of a fault.";
    FrameZeroedAhead "frame_zeroed_ahead" "Frames taken already zeroed.";
    TableNode "table_node" "Table nodes taken.";
}

/// The counters of a manager.
#[derive(Debug)]
pub(crate) struct Counters {
    cells: PerCpuCells,
}

impl Counters {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { cells: PerCpuCells::new(Counter::ALL.len())? })
    }

    /// Adds one.
    #[inline]
    pub(crate) fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Adds `n`.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.cells.add(counter as usize, n);
    }

    /// Returns a counter's value.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.cells.sum(counter as usize)
    }

    pub(crate) fn snapshot(&self) -> CounterSnapshot {
        CounterSnapshot { values: (0..Counter::ALL.len()).map(|index| self.cells.sum(index)).collect() }
    }
}

/// All counters at about one moment, from [`Manager::counters`](crate::Manager::counters). For an
/// interval, take two and call [`CounterSnapshot::since`]. `{:?}` writes one line with the counters that are
/// not 0.
#[derive(Clone)]
pub struct CounterSnapshot {
    values: Vec<u64>,
}

impl CounterSnapshot {
    /// Returns one counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Returns counters and values, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }

    /// Returns the counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &CounterSnapshot) -> CounterSnapshot {
        let values = self.values.iter().zip(&earlier.values).map(|(now, then)| now.wrapping_sub(*then));
        CounterSnapshot { values: values.collect() }
    }
}

/// One line with the counters that are not 0, by their names in results.
impl fmt::Debug for CounterSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counted = self.iter().filter(|(_, value)| *value > 0);
        let counters: Vec<_> =
            counted.map(|(counter, value)| format!("{} {value}", counter.name())).collect();
        let counters = if counters.is_empty() { "all 0".to_string() } else { counters.join(", ") };
        write!(f, "CounterSnapshot({counters})")
    }
}

/// A map from the counters' names to their values.
#[cfg(feature = "serde")]
impl serde::Serialize for CounterSnapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(counter, value)| (counter.name(), value)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_not_0_are_written_on_one_line() {
        let counters = Counters::new().unwrap();
        assert_eq!(format!("{:?}", counters.snapshot()), "CounterSnapshot(all 0)");
        counters.add(Counter::PageFault, 12);
        counters.count(Counter::TableNode);
        let line = "CounterSnapshot(pgfault 12, table_node 1)";
        assert_eq!(format!("{:?}", counters.snapshot()), line);
        assert_eq!(format!("{:#?}", counters.snapshot()), line);
    }
}
