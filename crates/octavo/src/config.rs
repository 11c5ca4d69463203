//! The switches: each mechanism's base form, its patched form, and the best form known today (the default).

use crate::units::Order;

/// How huge zero pages are counted (seeds 000 and 002).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ZeroPage {
    /// Base: one reference for each huge zero leaf, taken at its fault and given back at its removal.
    PerUse,
    /// Patched: one reference for each space, taken at its first use and given back last when it is dropped.
    PerSpace,
    /// Best: allocated once when the manager is built, never counted.
    #[default]
    Persistent,
}

/// Which orders the per-CPU lists hold (seed 003).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PercpuOrders {
    /// Base: order 0 only; every other allocation and free takes the zone's lock.
    OrderZero,
    /// Patched: orders 0 to 3, and 9.
    Costly,
    /// Best: every order.
    #[default]
    All,
}

impl PercpuOrders {
    /// Whether blocks of this order may sit on a per-CPU list.
    #[inline]
    pub fn holds(self, order: Order) -> bool {
        match self {
            Self::OrderZero => order == Order::ZERO,
            Self::Costly => order.0 <= 3 || order == Order::MAX,
            Self::All => true,
        }
    }
}

/// How the swap cache finds the frame of a slot (seed 001).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapCache {
    /// Base: a tree with one lock and writeback tags; a page takes the lock four times on its way out.
    TaggedTree,
    /// Patched: the same tree without tags; the start and the end of a write take no lock.
    Tree,
    /// Best: a word for each slot, and a lock for each 512, which consecutive pages take together.
    #[default]
    Table,
}

/// How pages are pinned (seed 004).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PinPath {
    /// Base: under the space's region lock, held shared.
    Locked,
    /// Patched, and best: walk, take the count, re-read every link, undo on mismatch. No lock.
    #[default]
    LockFree,
}

/// When a write fault takes a 2 MiB block instead of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePolicy {
    /// Wherever the aligned 2 MiB lies in one region and is empty.
    Always,
    /// Only in regions mapped with [`crate::RegionOptions::huge`].
    #[default]
    Advised,
    /// Nowhere. Huge zero leaves are not installed either.
    Never,
}

/// What a write to a huge zero leaf does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugeZeroWrite {
    /// Splits the leaf into 512 small zero pages, and gives the written one a frame (Linux 6.12).
    #[default]
    Split,
    /// Allocates a 2 MiB block where the region's policy allows one, and splits otherwise (Linux 4.8).
    Allocate,
}

/// Which page goes when memory is short: see [`crate::policy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// By reuse distances: resists scans, keeps part of a loop that is larger than memory.
    #[default]
    Reuse,
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
    /// By LZ4: quick, a factor of about two on text.
    #[default]
    Lz4,
    /// By Zstandard, level 1: half as fast out, a third as fast back, a third smaller.
    Zstd,
}
