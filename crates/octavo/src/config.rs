//! The switches. Most choose the form of a mechanism: the base form, the patched form, or the best form known
//! today, which is the default.

use crate::units::Order;

/// For measurements; leave the default. How the users of the 2 MiB of zeros are counted that all untouched
/// memory shows.
///
/// The patched form follows *thp: reduce usage of huge zero page's atomic counter* (Linux 4.9, commit
/// 6fcb52a56ff6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroPage {
    /// Base: one reference for each huge zero leaf, taken at its fault and given back at its removal.
    PerUse,
    /// Patched: one reference for each space. The space takes it at its first use, and gives it back last
    /// when it is dropped.
    PerSpace,
    /// Best: allocated once, when the manager is built, and never counted. With [`HugePolicy::Never`] it is
    /// not allocated.
    #[default]
    Persistent,
}

/// For measurements; leave the default. Which sizes of free blocks each CPU keeps at hand, to allocate
/// without a lock.
///
/// The patched form follows *mm/page_alloc: allow high-order pages to be stored on the per-cpu lists* (Linux
/// 5.14, commit 44042b449872).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PercpuOrders {
    /// Base: order 0 only. Every allocation and free of another order takes the zone's lock.
    OrderZero,
    /// Patched: orders 0 to 3, and 9.
    Costly,
    /// Best: every order.
    #[default]
    All,
}

impl PercpuOrders {
    /// Returns whether blocks of this order may lie on a per-CPU list.
    #[inline]
    pub fn holds(self, order: Order) -> bool {
        match self {
            Self::OrderZero => order == Order::ZERO,
            Self::Costly => order.0 <= 3 || order == Order::MAX,
            Self::All => true,
        }
    }
}

/// For measurements; leave the default. How an access finds a page that has a place in swap and is still in
/// memory.
///
/// The patched form follows *mm: don't use radix tree writeback tags for pages in swap cache* (Linux 4.9,
/// commit 371a096edf43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapCache {
    /// Base: a tree with one lock and writeback tags. A page takes the lock four times on its way out.
    TaggedTree,
    /// Patched: the same tree without tags. The start and the end of a write take no lock.
    Tree,
    /// Best: a word for each slot, and a lock for each 512 slots, which consecutive pages take together.
    #[default]
    Table,
}

/// For measurements; leave the default. Whether a pin takes the lock of the space's regions.
///
/// The patched form follows *x86: lockless get_user_pages_fast()* (Linux 2.6.27, commit 8174c430e445).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinPath {
    /// Base: under the space's region lock, held shared.
    Locked,
    /// Patched, and best: without a lock. A pin walks, takes the count, re-reads every link, and undoes its
    /// work on a mismatch.
    #[default]
    LockFree,
}

/// Whether the first write to an untouched 2 MiB gives memory to all of it: one fault instead of 512, but the
/// first byte costs 2 MiB of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePolicy {
    /// Wherever the aligned 2 MiB lies in one region and is empty.
    Always,
    /// Only in regions mapped with [`crate::RegionOptions::huge`].
    #[default]
    Advised,
    /// Nowhere. What was only read shows zeros by single pages, too.
    Never,
}

/// For measurements; leave the default. What the first write does to 2 MiB that were only read so far, and
/// show zeros without memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeZeroWrite {
    /// Gives memory to the page that is written. The other 511 go on to show zeros without memory (Linux
    /// 6.12).
    #[default]
    Split,
    /// Gives memory to all 2 MiB where [`HugePolicy`] allows it, and does as `Split` otherwise (Linux 4.8).
    Allocate,
}

/// Which pages leave memory first when it is short. The default suits most programs; the others are for
/// comparison, or for a load that you have measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// By reuse distances. This policy resists scans, and keeps part of a loop that is larger than memory.
    #[default]
    Reuse,
    /// Keeps the pages that came back soonest after they had left. For pages whose use shows only in faults:
    /// those of windows, where the kernel does not tell which pages were accessed.
    Returns,
    /// The oldest of four age groups, like Linux's multi-generational LRU.
    Generations,
    /// Pages that are used once leave early, by a small queue before the main one (S3-FIFO, 2023).
    S3Fifo,
    /// The oldest page that was not used; used ones keep their place (SIEVE, 2024).
    Sieve,
    /// The oldest page that was not used; used ones go round again (second chance).
    Clock,
    /// The page that came first, used or not.
    Fifo,
}

/// How pages that were not used lately are packed in memory before they go to a swap area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: every page goes to a swap area as it is.
    Off,
    /// By LZ4, which is quick and shrinks text by a factor of about two.
    #[default]
    Lz4,
    /// By Zstandard, level -1. It packs half as fast as LZ4 and unpacks a third to half as fast, and its
    /// pages are a tenth to a half smaller. Better where a page that comes back costs much besides, as in
    /// another process.
    Zstd,
}
