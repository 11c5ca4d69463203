//! [`FrameAllocator`]: memory in pieces of 4 KiB to 2 MiB, for programs that use no spaces. Other programs
//! need nothing here.
//!
//! Every manager is built on a frame allocator. A *frame* is 4 KiB of memory, and has an owner.
//!
//! The allocator never calls up. It returns `None` when it is out of frames, and calls a hook when memory
//! runs short.
//!
//! # In the source
//!
//! One word of a frame says who owns it (`state`). Another says who uses its
//! bytes (`holds`).
//!
//! | module | what it has |
//! |---|---|
//! | `allocator`, `block` | the public methods, by which blocks are allocated and freed; a block in use |
//! | `config` | the options of an allocator |
//! | `percpu` | a CPU's lists: how much they hold, refill, spill |
//! | `zone`, `chunk`, `buddy` | frames under one lock; units of 2 MiB; free lists of each order |
//! | `away` | frames without memory in the arena |
//! | `watermark` | when memory counts as short |
//! | `words`, `state`, `holds`, `stored`, `uses` | the words of each frame |
//! | `pinned` | a pin that its holder has to give back |
//! | `latch` | who may borrow the bytes of a page of a guarded region |
//! | `zero_page` | the huge zero page, counted in three ways |

pub(crate) mod allocator;
pub(crate) mod away;
mod block;
pub(crate) mod buddy;
pub(crate) mod chunk;
pub(crate) mod config;
pub(crate) mod holds;
pub(crate) mod latch;
pub(crate) mod percpu;
pub(crate) mod pinned;
pub(crate) mod state;
pub(crate) mod stored;
pub(crate) mod uses;
pub(crate) mod watermark;
pub(crate) mod words;
pub(crate) mod zero_page;
pub(crate) mod zone;

pub use allocator::FrameAllocator;
pub use block::Block;
pub(crate) use block::SplitBlock;
pub(crate) use config::MOST_FRAMES;
pub use config::{FrameConfig, PercpuForm, ZoneConfig};
pub(crate) use watermark::MOST_LOWERED;
pub use watermark::Watermarks;
pub use zone::Backing;

pub use crate::units::{ChunkId, FrameId, Order};
pub(crate) use holds::{Dropped, PageIs};
pub(crate) use pinned::PinnedFrame;
pub(crate) use words::FrameWords;
