//! The switches. Most select one of the versions of a mechanism: the base version, the patched version, or
//! the best one known today, which is the default.

use crate::units::Order;

/// Selects how users of the huge zero page are counted: the 2 MiB of zeros that all untouched memory
/// shows. For measurements; leave the default.
///
/// The patched version follows *thp: reduce usage of huge zero page's atomic counter* (Linux 4.9, commit
/// 6fcb52a56ff6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroPage {
    /// Base: one reference for each huge zero leaf, taken at its fault and given back at its removal.
    PerUse,
    /// Patched: one reference for each space, taken at its first use. It is given back last, when the
    /// space is dropped.
    PerSpace,
    /// Best: allocated once, when the manager is built, and never counted. With [`HugePolicy::Never`] it is
    /// not allocated.
    #[default]
    Persistent,
}

/// Selects the sizes of free blocks that each CPU keeps on its own lists, to allocate them without a lock.
/// For measurements; leave the default.
///
/// The patched version follows *mm/page_alloc: allow high-order pages to be stored on the per-cpu lists*
/// (Linux 5.14, commit 44042b449872).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PercpuOrders {
    /// Base: order 0 only. An allocation or free of any other order takes the zone's lock.
    OrderZero,
    /// Patched: orders 0 to 3, and 9.
    Costly,
    /// Best: every order.
    #[default]
    All,
}

impl PercpuOrders {
    /// Returns whether a per-CPU list may hold blocks of this order.
    #[inline]
    pub fn holds(self, order: Order) -> bool {
        match self {
            Self::OrderZero => order == Order::ZERO,
            Self::Costly => order.0 <= 3 || order == Order::MAX,
            Self::All => true,
        }
    }
}

/// Selects how an access finds a page that has a slot in swap and is still in memory. For measurements;
/// leave the default.
///
/// The patched version follows *mm: don't use radix tree writeback tags for pages in swap cache* (Linux
/// 4.9, commit 371a096edf43).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapCache {
    /// Base: a tree with one lock and writeback tags. A page takes the lock four times on its way out.
    TaggedTree,
    /// Patched: the same tree without tags. The start and the end of a write take no lock.
    Tree,
    /// Best: a word for each slot, and a lock for each 512 slots. Consecutive pages share that lock.
    #[default]
    Table,
}

/// Selects how a sync finds the pages of a file that it has to write. For measurements; leave the default.
///
/// This is what the writeback tags are for that [`SwapCache`] does without: a search by tags takes time by
/// the pages to write, and not by the pages in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirtyPages {
    /// Base: looks at each page of the file that is in memory.
    Walk,
    /// Best: follows the tags down the file's tree.
    #[default]
    Tags,
}

/// Selects whether a pin takes the lock of the space's regions. For measurements; leave the default.
///
/// The patched version follows *x86: lockless get_user_pages_fast()* (Linux 2.6.27, commit 8174c430e445).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinPath {
    /// Base: under the space's region lock, held shared.
    Locked,
    /// Patched, and best: without a lock. A pin walks the table, adds to the frame's count, and reads every
    /// link again. If a link has changed, it undoes its work.
    #[default]
    LockFree,
}

/// Selects where the first write to untouched 2 MiB gives memory to all of the 2 MiB. The 2 MiB then take one
/// fault instead of 512, but the first byte costs 2 MiB of the budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePolicy {
    /// Wherever the aligned 2 MiB lies in one region and is empty.
    Always,
    /// Only in regions mapped with [`crate::RegionOptions::huge`].
    #[default]
    Advised,
    /// Nowhere. Memory that was only read is also mapped in single pages of zeros.
    Never,
}

/// Selects the effect of the first write to 2 MiB that were only read so far. Such memory shows zeros and
/// takes no memory. For measurements; leave the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeZeroWrite {
    /// Gives memory to the page that is written. The other 511 pages still show zeros, and take no memory
    /// (Linux 6.12).
    #[default]
    Split,
    /// Gives memory to all 2 MiB if [`HugePolicy`] allows it. Otherwise, acts as `Split` (Linux 4.8).
    Allocate,
}

/// Selects the pages that leave memory first when it is short. The default suits most programs. The others
/// are for comparison, or for a workload that you have measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// Evicts by reuse distance. Resists scans, and keeps part of a loop that is larger than memory.
    #[default]
    Reuse,
    /// Keeps the pages that came back soonest after they had left. For pages whose use shows only in faults.
    /// Such are the pages of windows, if the kernel does not report which of them were accessed.
    Returns,
    /// Evicts from the oldest of four age groups, like Linux's multi-generational LRU.
    Generations,
    /// Evicts pages that are used only once early, by a small queue before the main one (S3-FIFO, 2023).
    S3Fifo,
    /// Evicts the oldest unused page; used pages keep their place (SIEVE, 2024).
    Sieve,
    /// Evicts the oldest unused page; used pages go round again (second chance).
    Clock,
    /// Evicts the page that came first, used or not.
    Fifo,
}

/// Selects how pages that were not used lately are compressed in memory, before they go to a swap area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression: every page goes to a swap area as it is.
    Off,
    /// LZ4, which is quick and shrinks text by a factor of about two.
    #[default]
    Lz4,
    /// Zstandard, level -1. It compresses half as fast as LZ4 and decompresses a third to half as fast, but
    /// its pages are a tenth to a half smaller. It is better if each returning page has other costs as well,
    /// as for the pages of another process.
    Zstd,
}
