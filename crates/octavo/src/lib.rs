//! Octavo: a virtual memory manager in user space.
#![deny(unsafe_code)]

mod budget;
mod config;
mod counters;
mod error;
pub mod frame;
pub(crate) mod sync;
mod units;

pub use config::{HugePolicy, HugeZeroWrite, PercpuOrders, PinPath, ZeroPage};
pub use counters::{Counter, CounterSnapshot};
pub use error::{Error, ErrorKind, Result};
pub use units::{FrameId, Order, PageNumber, SwapSlot, CHUNK_BYTES, CHUNK_FRAMES, PAGE_BYTES, PAGE_SHIFT};
