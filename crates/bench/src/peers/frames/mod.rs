//! Page blocks: nanoseconds for one allocation and one free of 4 KiB to 2 MiB, aligned to their size.
//!
//! Key types: [`PageBlocks`], the operations of a peer; [`BlockPattern`], the order in which blocks come and
//! go; [`FrameBench`], a peer under a pattern.
//!
//! The thread that allocated a block also frees it. The measurement does not touch the blocks' memory. Some
//! peers touch it themselves, for headers or links, and their files say so. Nobody zeroes blocks here.
//!
//! Two rows are not allocators. `harness alone` is the cost of the measuring loop, which is part of every
//! other row. `bare atomic add` is that loop with one uncontended atomic add: the price of a single
//! read-modify-write on this machine.

mod baseline;
mod buddy_alloc;
mod buddy_system;
mod global_alloc;
mod jemalloc;
mod llfree;
mod mimalloc;
mod octavo;
mod patterns;
mod snmalloc;
mod tcmalloc;

use octavo_measure::workers::{self, Plan};

use crate::peers::compare::Side;
use crate::peers::mapping::{ALIGN, BenchMapping, HugePages};
use crate::peers::options::Options;

pub use patterns::{BlockCounts, BlockPattern};

/// log2 of the bytes of a block of order 0.
pub const PAGE_SHIFT: u32 = 12;

/// A block that someone holds: an address or a frame number, as the peer chooses. It cannot be copied, so it
/// is freed once.
#[derive(Debug, PartialEq, Eq)]
pub struct PeerBlock(usize);

/// An allocator of blocks of `4096 << order` bytes, aligned to their size.
pub trait PageBlocks: Sync {
    /// Bytes for each step of a block's number: 1 for addresses, 4096 for frame numbers.
    const BYTES_PER_STEP: usize;
    /// Whether the side allocates at all, or only shows the cost of measuring.
    const ALLOCATES: bool = true;

    /// Gives the caller a block of its own, or `None` if there are no more blocks.
    fn alloc(&self, order: u32) -> Option<PeerBlock>;

    /// Takes back a block.
    ///
    /// # Safety
    ///
    /// `block` came from this peer's `alloc(order)` with the same `order`.
    unsafe fn free(&self, block: PeerBlock, order: u32);
}

/// A peer under any pattern.
pub trait FrameBench {
    /// Returns the mean nanoseconds for an allocation and a free, by `threads` threads, or `None` if the peer
    /// ran out of blocks.
    fn measure(
        &self,
        pattern: BlockPattern,
        order: u32,
        sizes: BlockCounts,
        threads: usize,
        plan: Plan,
    ) -> Option<f64>;

    /// Reports an error in the blocks that the peer hands out, if there is one.
    fn check(&self, order: u32) -> Result<(), String>;
}

impl<P: PageBlocks> FrameBench for P {
    fn measure(
        &self,
        pattern: BlockPattern,
        order: u32,
        sizes: BlockCounts,
        threads: usize,
        plan: Plan,
    ) -> Option<f64> {
        match pattern {
            BlockPattern::Ping => workers::batches(threads, plan, |_| patterns::Ping::new(self, order)),
            BlockPattern::Random => {
                workers::batches(threads, plan, |w| patterns::Random::new(self, order, sizes.pool, w))
            }
            BlockPattern::Bulk => {
                workers::batches(threads, plan, |w| patterns::Bulk::new(self, order, sizes.bulk, w))
            }
        }
    }

    fn check(&self, order: u32) -> Result<(), String> {
        if !P::ALLOCATES {
            return Ok(());
        }
        let bytes = 1usize << (PAGE_SHIFT + order);
        let blocks: Vec<PeerBlock> = (0..64).map_while(|_| self.alloc(order)).collect();
        let mut starts: Vec<usize> = blocks.iter().map(|block| block.0 * P::BYTES_PER_STEP).collect();
        starts.sort_unstable();
        for block in blocks {
            // SAFETY: the block was allocated a few lines above, with this order.
            unsafe { self.free(block, order) };
        }
        if starts.len() < 64 {
            return Err(format!("only {} blocks of order {order}", starts.len()));
        }
        if let Some(start) = starts.iter().find(|&start| start % bytes != 0) {
            return Err(format!("block of order {order} at {start:#x}, which is not aligned to its size"));
        }
        match starts.windows(2).find(|pair| pair[1] - pair[0] < bytes) {
            Some(pair) => {
                Err(format!("blocks of order {order} at {:#x} and {:#x} overlap", pair[0], pair[1]))
            }
            None => Ok(()),
        }
    }
}

/// Makes every side that `options` asks for, in table order. Each side that has an arena has one of
/// `arena_bytes`. A side whose blocks of one of `orders` are wrong is reported instead of measured.
pub fn sides(options: &Options, arena_bytes: usize, orders: &[u32]) -> Vec<Side<dyn FrameBench>> {
    let makers: [(&'static str, Maker); 11] = [
        (octavo::NAME, octavo::side),
        (baseline::HARNESS, baseline::harness),
        (baseline::ATOMIC_ADD, baseline::atomic_add),
        (llfree::NAME, llfree::side),
        (tcmalloc::NAME, tcmalloc::side),
        (snmalloc::NAME, snmalloc::side),
        (jemalloc::NAME, jemalloc::side),
        (mimalloc::NAME, mimalloc::side),
        (buddy_system::HEAP, buddy_system::heap),
        (buddy_system::FRAMES, buddy_system::frames),
        (buddy_alloc::NAME, buddy_alloc::side),
    ];
    let makers = makers.into_iter().filter(|(name, _)| options.wants(name));
    let mut sides: Vec<Side<dyn FrameBench>> = makers.map(|(_, make)| make(arena_bytes)).collect();
    for side in &mut sides {
        side.against = (side.name != baseline::HARNESS).then_some(octavo::NAME);
        let Ok(bench) = &side.subject else { continue };
        if let Err(wrong) = orders.iter().try_for_each(|&order| bench.check(order)) {
            side.subject = Err(wrong);
        }
    }
    sides
}

type Maker = fn(usize) -> Side<dyn FrameBench>;

fn side<P: PageBlocks + 'static>(
    name: &'static str,
    version: Option<String>,
    peer: Result<P, String>,
) -> Side<dyn FrameBench> {
    let subject = peer.map(|peer| Box::new(peer) as Box<dyn FrameBench>);
    Side { name, version, against: None, subject }
}

/// Makes an arena for a peer that manages memory it is given. The peer may write links into free blocks, and
/// 4 KiB pages keep that cheap.
fn arena(bytes: usize) -> Result<BenchMapping, String> {
    assert!(bytes.is_multiple_of(ALIGN), "an arena is a whole number of 2 MiB");
    BenchMapping::new(bytes, HugePages::Refused)
        .map_err(|error| format!("no arena of {bytes} bytes: {error}"))
}

#[cfg(test)]
mod tests;
