//! Work with more data than fits into memory. Pages that were not used lately are compressed, then moved
//! to disk, and come back when you use them.
//!
//! A [`Manager`] ([`Manager::builder`]) owns memory under one budget. A [`Space`] maps ranges of addresses. A
//! page gets a frame when it is first written. When the budget is used up, pages go out to swap. The next
//! access to a page brings it back.
//!
//! | you have | take | region |
//! |---|---|---|
//! | numbers that many threads change | [`Space::load`], [`Space::store`], [`Space::fetch_add`]: one value in one step | plain |
//! | bytes to copy | [`Space::read`], [`Space::write`]; [`SpaceCursor`] if code wants a stream | plain |
//! | a buffer for a device or a system call | a *pin*, [`Space::pin_exact`]: a pointer that stays valid, and no slice | plain |
//! | a file, read into a space or written from one | [`file::File`]: the device moves the pages themselves | plain |
//! | structures of your own, to be used in place | a *guard*: [`Space::shared`] is a `&[T]`, [`Space::exclusive`] a `&mut [T]` | guarded |
//! | a long array to fill, sort and search | [`SpaceVec`], which lends slices, too; begin here if unsure | its own |
//! | code that wants ordinary pointers (`Vec`, C) | a *window* of `octavo-window`, which needs the right to use userfaultfd | its own |
//!
//! A region is *plain*, or *guarded* if you map it with [`RegionOptions::guarded`]. The wrong call for a
//! region fails with `Protected`. Guards and vectors hold plain data ([`bytemuck::Pod`]). Calls that end
//! in `_async` are for executors. [`frame`], [`policy`] and [`translation`] serve special purposes.
//!
//! A *page* is 4 KiB of addresses, and a *frame* 4 KiB of memory. A page that was only read shows zeros
//! and takes no frame.
//!
//! ```
//! use octavo::{Access, Manager, RegionOptions};
//!
//! let manager = Manager::builder().budget_bytes(64 << 20).build()?;
//! let space = manager.space()?;
//! let at = space.map(1 << 30, RegionOptions::default())?; // 1 GiB of addresses, no memory yet
//!
//! space.store(at + 4096, 42_u64)?;
//! assert_eq!(space.load::<u64>(at + 4096)?, 42);
//! assert_eq!(space.load::<u64>(at + (512 << 20))?, 0); // the zero page: still no memory
//!
//! let pin = space.pin_exact(at, 8192, Access::Write)?;
//! pin.copy_in(4090, b"across pages")?;
//! drop(pin);
//! let mut bytes = [0; 12];
//! space.read(at + 4090, &mut bytes)?;
//! assert_eq!(&bytes, b"across pages");
//! # Ok::<(), octavo::Error>(())
//! ```
//!
//! Bytes lent in place: a guard, and a vector that may be larger than the budget.
//!
//! ```
//! use std::sync::Arc;
//! use octavo::{Manager, RegionOptions, SpaceVec};
//!
//! let space = Arc::new(Manager::builder().budget_bytes(16 << 20).build()?.space()?);
//! let at = space.map(1 << 30, RegionOptions::new().guarded(true))?;
//! let mut counts = space.exclusive::<u32>(at, 1024)?; // a &mut [u32], in place
//! counts[7] += 1;
//! drop(counts); // or the next guard of this page would wait for ever
//! assert_eq!(space.shared::<u32>(at, 1024)?[7], 1);
//!
//! let mut words = SpaceVec::<u64>::new(&space);
//! words.extend((0..100_000).rev())?;
//! words.sort_unstable()?;
//! let mut sum = 0;
//! for run in words.runs(..)? {
//!     sum += run?.iter().sum::<u64>(); // each run is a &[u64] of the pages themselves
//! }
//! assert_eq!(sum, 99_999 * 50_000);
//! # Ok::<(), octavo::Error>(())
//! ```
//!
//! With the feature `serde`, statistics and counters can be serialized.
//!
//! `ARCHITECTURE.md` is the map of the source.
#![deny(unsafe_code)]
#![cfg_attr(
    loom,
    allow(clippy::modulo_one, clippy::absurd_extreme_comparisons, reason = "a model has one of many things")
)]

/// Lets the test device, shared with the integration tests, name this crate `octavo`.
#[cfg(all(test, not(loom)))]
extern crate self as octavo;

mod access;
mod backoff;
mod budget;
mod config;
mod counters;
mod engine;
mod error;
mod fault;
pub mod file;
pub mod frame;
pub mod io;
mod latency;
mod lru;
mod manager;
mod mapping;
mod page_cache;
pub mod policy;
mod reclaim;
mod region;
mod rmap;
mod sizes;
mod space;
mod store;
mod swap;
pub(crate) mod sync;
mod table;
mod units;
pub mod vec;
mod writeback;

/// The crate that defines plain data (`Pod`), in the version that Octavo uses.
pub use bytemuck;
/// The crate that provides the histograms of [`LatencySnapshot`], in the version that Octavo uses.
pub use hdrhistogram;

pub use access::{
    Borrowed, ExclusiveGuard, ExclusiveGuardOf, OptimisticGuard, Pin, PinHolder, PinOf, PinnedPages,
    SharedGuard, SharedGuardOf,
};
pub use config::{
    Compression, DirtyPages, HugePolicy, HugeZeroWrite, PercpuOrders, PinPath, ReclaimPolicy, SwapCache,
    ZeroPage,
};
pub use counters::{Counter, CounterSnapshot};
pub use error::{Error, ErrorKind, Result};
#[doc(inline)]
pub use io::{IoEngine, SwapArea, SwapFile};
pub use latency::{Latency, LatencySnapshot, Quantiles};
pub use lru::RefaultSnapshot;
pub use manager::{MIN_BUDGET_BYTES, Manager, ManagerBuilder, ManagerStats, ShutdownRefused};
pub use octavo_platform::{Integer, Word};
pub use region::{AccessPattern, RegionOptions};
pub use space::{
    Advice, OwnedExclusiveGuard, OwnedPin, OwnedSharedGuard, RangeStats, RegionStats, Space, SpaceCursor,
    SpaceStats,
};
#[doc(hidden)]
pub use swap::pool::probe::PoolProbe;
pub use swap::{AreaState, AreaStats};
#[doc(hidden)]
pub use swap::{StandaloneSlots, StandaloneSwapCache};
pub use sync::machine::{Cpus, Machine};
pub use table::{Access, Protection};
pub use units::{
    CHUNK_BYTES, CHUNK_FRAMES, FrameId, Order, PAGE_BYTES, PAGE_SHIFT, PageNumber, bytes_for_people,
};
#[doc(inline)]
pub use vec::SpaceVec;

/// Shows the pages of a space at other addresses, as `octavo-window` does. Most programs need nothing
/// here.
pub mod translation {
    #[doc(inline)]
    pub use crate::fault::InPlace;
    #[doc(inline)]
    pub use crate::space::TranslatedSpace;
    #[doc(inline)]
    pub use crate::table::translation::{Answer, Bytes, Home, Install, Remove, Run, Touch, Translation};
}

/// Tests the examples in the README, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
