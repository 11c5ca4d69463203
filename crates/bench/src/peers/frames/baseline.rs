//! Two rows that are not allocators: the measuring loop alone, and the loop with one bare atomic add.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use octavo_measure::workers;

use super::{FrameBench, PageBlocks, PeerBlock, side};
use crate::peers::compare::{Side, THREADS};

pub(super) const HARNESS: &str = "harness alone";
pub(super) const ATOMIC_ADD: &str = "bare atomic add";

pub(super) fn harness(_arena_bytes: usize) -> Side<dyn FrameBench> {
    side(HARNESS, None, Ok(Harness))
}

pub(super) fn atomic_add(_arena_bytes: usize) -> Side<dyn FrameBench> {
    side(ATOMIC_ADD, None, Ok(AtomicAdd::default()))
}

/// Always hands out the same number.
struct Harness;

impl PageBlocks for Harness {
    const BYTES_PER_STEP: usize = 1;
    const ALLOCATES: bool = false;

    #[inline]
    fn alloc(&self, _order: u32) -> Option<PeerBlock> {
        Some(PeerBlock(0))
    }

    #[inline]
    unsafe fn free(&self, _block: PeerBlock, _order: u32) {}
}

/// One atomic add for each allocation, and nothing for its free. Each worker has a cache line of its own.
#[derive(Default)]
struct AtomicAdd {
    words: [CachePadded<AtomicU64>; THREADS[THREADS.len() - 1]],
}

impl PageBlocks for AtomicAdd {
    const BYTES_PER_STEP: usize = 1;
    const ALLOCATES: bool = false;

    #[inline]
    fn alloc(&self, _order: u32) -> Option<PeerBlock> {
        Some(PeerBlock(self.words[workers::index() as usize].fetch_add(1, Ordering::AcqRel) as usize))
    }

    #[inline]
    unsafe fn free(&self, _block: PeerBlock, _order: u32) {}
}
