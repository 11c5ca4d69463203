//! The switches. Most choose the form of a mechanism: the base form, the patched form, or the best form known
//! today, which is the default.

use crate::units::Order;

/// One of the switches that compare mechanisms with Linux's, which a program leaves alone: how huge zero pages are counted.
/// The patched form follows *thp: reduce usage of huge zero page's atomic counter* (Linux 4.9, commit 6fcb52a56ff6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroPage {
    /// Base: one reference for each huge zero leaf, taken at its fault and given back at its removal.
    PerUse,
    /// Patched: one reference for each space. The space takes it at its first use, and gives it back last
    /// when it is dropped.
    PerSpace,
    /// Best: allocated once, when the manager is built, and never counted. With [`HugePolicy::Never`] it is not allocated.
    #[default]
    Persistent,
}

/// One of the switches that compare mechanisms with Linux's, which a program leaves alone: the orders that the per-CPU lists hold.
/// The patched form follows *mm/page_alloc: allow high-order pages to be stored on the per-cpu lists* (Linux 5.14, commit 44042b449872).
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

/// One of the switches that compare mechanisms with Linux's, which a program leaves alone: how the swap cache finds the frame of a slot.
/// The patched form follows *mm: don't use radix tree writeback tags for pages in swap cache* (Linux 4.9, commit 371a096edf43).
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

/// One of the switches that compare mechanisms with Linux's, which a program leaves alone: how pages are pinned.
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

/// When a write fault takes 2 MiB at once: one fault instead of 512, but 2 MiB of the budget for the first byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePolicy {
    /// Wherever the aligned 2 MiB lies in one region and is empty.
    Always,
    /// Only in regions mapped with [`crate::RegionOptions::huge`].
    #[default]
    Advised,
    /// Nowhere. Read faults install no huge zero leaves either.
    Never,
}

/// The effect of a write to a huge zero leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeZeroWrite {
    /// Splits the leaf into 512 small zero pages, and gives the written one a frame (Linux 6.12).
    #[default]
    Split,
    /// Allocates a 2 MiB block where the region's policy allows one, and splits otherwise (Linux 4.8).
    Allocate,
}

/// The policy that chooses which page goes when memory is short: see [`crate::policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// By reuse distances. This policy resists scans, and keeps part of a loop that is larger than memory.
    #[default]
    Reuse,
    /// By how soon pages come back. For pages whose use shows only in faults: those at the other sides of translations
    /// that know no accessed marks.
    Returns,
    /// Four generations, like Linux's multi-generational LRU.
    Generations,
    /// A small queue for newcomers, and a main clock.
    S3Fifo,
    /// A clock whose survivors keep their place.
    Sieve,
    /// Second chance.
    Clock,
    /// First in, first out.
    Fifo,
}

/// How pages are packed on their way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: every page goes to a swap area as it is.
    Off,
    /// By LZ4, which is quick and shrinks text by a factor of about two.
    #[default]
    Lz4,
    /// By Zstandard, level -1. It packs half as fast as LZ4 and unpacks a third to half as fast, and its pages are a tenth to a half
    /// smaller. Better where a page that comes back costs much besides, as in another process.
    Zstd,
}
