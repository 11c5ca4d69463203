//! Octavo's frame allocator, on its own: one zone, per-CPU lists of every order, the form of sections probed
//! at start.
//!
//! The bench measures it with everything on: the budget, the state word that catches a double free, and the
//! watermarks. Chunks are not populated when they come online, because no peer populates its memory. Chunks
//! that are online stay online, so the cost of bringing them online shows only in the slowest round.

use octavo::Order;
use octavo::frame::{Backing, FrameAllocator, FrameConfig, FrameId};

use super::{FrameBench, PAGE_SHIFT, PageBlocks, PeerBlock};
use crate::peers::compare::Side;
use crate::peers::versions;

pub(super) const NAME: &str = "Octavo";

pub(super) fn side(arena_bytes: usize) -> Side<dyn FrameBench> {
    let version = versions::of_crate("octavo-vm").map(|version| format!("octavo {version}"));
    super::side(NAME, version, OctavoFrames::new(arena_bytes as u64))
}

struct OctavoFrames(FrameAllocator);

impl OctavoFrames {
    fn new(arena_bytes: u64) -> Result<Self, String> {
        let config =
            FrameConfig { populate: false, ..FrameConfig::one_zone(arena_bytes, Backing::HugePages) };
        // The budget also covers the words kept for each frame: an eighth more is ample.
        let allocator = FrameAllocator::standalone(&config, arena_bytes + arena_bytes / 8);
        allocator.map(Self).map_err(|error| error.to_string())
    }
}

#[inline]
fn order_of(order: u32) -> Order {
    Order::new(order as u8).expect("an order of 0 to 9")
}

impl PageBlocks for OctavoFrames {
    const BYTES_PER_STEP: usize = 1 << PAGE_SHIFT;

    #[inline]
    fn alloc(&self, order: u32) -> Option<PeerBlock> {
        self.0.alloc(order_of(order)).map(|block| PeerBlock(block.into_frame().index()))
    }

    #[inline]
    unsafe fn free(&self, block: PeerBlock, order: u32) {
        self.0
            .free(FrameId(block.0 as u32), order_of(order))
            .expect("a block that was allocated can be freed");
    }
}
