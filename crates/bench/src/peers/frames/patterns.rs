//! The orders in which blocks come and go.

use std::hint::black_box;

use clap::ValueEnum;
use octavo_measure::random;
use octavo_measure::workers::Work;

use super::{PageBlocks, PeerBlock};

/// Operations of a batch, unless the pattern sets their number. With this many operations, the cost of
/// reading the clock does not matter.
const BATCH: u64 = 1024;

/// The order in which blocks come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BlockPattern {
    /// One block, allocated and freed at once: the fast path alone.
    Ping,
    /// A pool of live blocks. Each step frees a random one and allocates its successor.
    Random,
    /// Many allocations, then their frees in random order, which exhaust the caches in front.
    Bulk,
}

impl BlockPattern {
    /// All patterns, in table order.
    pub const ALL: [BlockPattern; 3] = [Self::Ping, Self::Random, Self::Bulk];
}

/// The number of blocks that a worker holds.
#[derive(Clone, Copy, Debug)]
pub struct BlockCounts {
    /// Live blocks under [`BlockPattern::Random`].
    pub pool: usize,
    /// Allocations in a row under [`BlockPattern::Bulk`].
    pub bulk: usize,
}

/// The work of [`BlockPattern::Ping`].
pub(super) struct Ping<'a, P> {
    peer: &'a P,
    order: u32,
}

impl<'a, P: PageBlocks> Ping<'a, P> {
    pub(super) fn new(peer: &'a P, order: u32) -> Self {
        Self { peer, order }
    }
}

impl<P: PageBlocks> Work for Ping<'_, P> {
    fn batch(&mut self) -> Option<u64> {
        for _ in 0..BATCH {
            let block = black_box(self.peer.alloc(self.order)?);
            // SAFETY: the line above allocated it with this order.
            unsafe { self.peer.free(block, self.order) };
        }
        Some(BATCH)
    }
}

/// Live blocks of one worker, freed at the end.
struct HeldBlocks<'a, P: PageBlocks> {
    peer: &'a P,
    order: u32,
    blocks: Vec<PeerBlock>,
}

impl<P: PageBlocks> HeldBlocks<'_, P> {
    fn fill(&mut self, len: usize) -> Option<()> {
        while self.blocks.len() < len {
            self.blocks.push(self.peer.alloc(self.order)?);
        }
        Some(())
    }
}

impl<P: PageBlocks> Drop for HeldBlocks<'_, P> {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            // SAFETY: only blocks that `peer` allocated with `order` are ever in `blocks`.
            unsafe { self.peer.free(block, self.order) };
        }
    }
}

/// The work of [`BlockPattern::Random`].
pub(super) struct Random<'a, P: PageBlocks> {
    pool: HeldBlocks<'a, P>,
    len: usize,
    random: random::Random,
}

impl<'a, P: PageBlocks> Random<'a, P> {
    pub(super) fn new(peer: &'a P, order: u32, len: usize, worker: usize) -> Self {
        let mut pool = HeldBlocks { peer, order, blocks: Vec::with_capacity(len) };
        // If this fails, the first batch fails, too, and can report the failure.
        let _ = pool.fill(len);
        Self { pool, len, random: random::Random::new(worker as u64) }
    }
}

impl<P: PageBlocks> Work for Random<'_, P> {
    fn batch(&mut self) -> Option<u64> {
        let HeldBlocks { peer, order, blocks } = &mut self.pool;
        if blocks.len() < self.len {
            return None;
        }
        // The last block fills the gap, and the new block becomes the last. So the pool has no gap when the
        // peer runs out of blocks.
        for _ in 0..BATCH {
            let block = blocks.swap_remove(self.random.below(self.len));
            // SAFETY: only blocks that `peer` allocated with `order` are ever in `blocks`.
            unsafe { peer.free(block, *order) };
            blocks.push(peer.alloc(*order)?);
        }
        Some(BATCH)
    }
}

/// The work of [`BlockPattern::Bulk`].
pub(super) struct Bulk<'a, P: PageBlocks> {
    peer: &'a P,
    order: u32,
    blocks: Vec<Option<PeerBlock>>,
    frees: Vec<u32>,
}

impl<'a, P: PageBlocks> Bulk<'a, P> {
    pub(super) fn new(peer: &'a P, order: u32, len: usize, worker: usize) -> Self {
        let mut frees: Vec<u32> = (0..len as u32).collect();
        random::Random::new(worker as u64).shuffle(&mut frees);
        Self { peer, order, blocks: (0..len).map(|_| None).collect(), frees }
    }
}

impl<P: PageBlocks> Work for Bulk<'_, P> {
    fn batch(&mut self) -> Option<u64> {
        let mut short = false;
        for place in &mut self.blocks {
            *place = self.peer.alloc(self.order);
            short |= place.is_none();
            if short {
                break;
            }
        }
        for &place in &self.frees {
            if let Some(block) = self.blocks[place as usize].take() {
                // SAFETY: the loop above allocated the block with this order.
                unsafe { self.peer.free(block, self.order) };
            }
        }
        (!short).then_some(self.frees.len() as u64)
    }
}
