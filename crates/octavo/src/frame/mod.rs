//! Frames: who owns each 4 KiB of the arena, and how blocks of them are handed out.
//!
//! Start at [`FrameAllocator`]. One word says who owns a frame (`state`); another who uses its bytes (`holds`).
//!
//! | module | what |
//! |---|---|
//! | `allocator` | the way of an allocation and a free, and everything public |
//! | `config` | what an allocator is built from |
//! | `percpu` | a CPU's lists: how much they hold, refill, spill |
//! | `zone`, `chunk`, `buddy` | one lock; 2 MiB that come and go; free lists of each order |
//! | `watermark` | when memory counts as short |
//! | `words`, `state`, `holds`, `stored`, `uses` | what is kept for each frame |
//! | `pinned` | a pin in hand |
//! | `zero_page` | the huge zero page, counted in three ways |
//!
//! It never calls up: out of frames is an answer, and being short is a hook.

pub(crate) mod allocator;
pub(crate) mod buddy;
pub(crate) mod chunk;
pub(crate) mod config;
pub(crate) mod holds;
pub(crate) mod percpu;
pub(crate) mod pinned;
pub(crate) mod state;
pub(crate) mod stored;
pub(crate) mod uses;
pub(crate) mod watermark;
pub(crate) mod words;
pub(crate) mod zero_page;
pub(crate) mod zone;

pub use allocator::{Block, FrameAllocator};
pub(crate) use config::MOST_FRAMES;
pub use config::{FrameConfig, PercpuForm, ZoneConfig};
pub use watermark::Watermarks;
pub use zone::Backing;

pub use crate::units::{ChunkId, FrameId, Order};
pub(crate) use holds::{Dropped, PageIs};
pub(crate) use pinned::PinnedFrame;
pub(crate) use words::FrameWords;
