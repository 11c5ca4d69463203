//! The free blocks of a zone: blocks of orders 0 to 8 on buddy lists, whole chunks (order 9) on shelves.
//!
//! Lists are doubly linked through the heads' `next` and `prev` words. So when a block merges with its buddy,
//! it leaves the middle of its list in constant time. A whole chunk has no buddy, so it needs no links. A
//! shelf is an array of frame numbers. So no frame words are written when a chunk is put on a shelf or taken
//! off it. There are several shelves, so that a CPU gets back the chunks that it freed, whose words are still
//! in its cache. All calls hold the zone's lock.
//!
//! Invariants: a head on list `n` is in state Free of order `n`. A head on a shelf is in state Cached of
//! order 9. No two buddies of one order below 9 are both free. `free_frames` is the sum over lists and
//! shelves. Both halves of a split block keep ZEROED. A merged block has ZEROED if both halves have it.

use crate::frame::state::Kind;
use crate::frame::words::FrameTable;
use crate::sync::Ordering;
use crate::units::{FrameId, Order};

const NONE: u32 = u32::MAX;
/// The orders that have lists: all but the largest.
const LISTS: usize = Order::COUNT - 1;
const SHELVES: usize = 8;

/// The shelf to try first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shelf(usize);

impl Shelf {
    /// Returns the shelf that a CPU shares with few others.
    pub(crate) fn of_cpu(cpu: usize) -> Self {
        Self(cpu % SHELVES)
    }
}

/// The heads of the free lists, and the shelves.
#[derive(Debug)]
pub(crate) struct Buddy {
    heads: [u32; LISTS],
    blocks: [u32; LISTS],
    shelves: [Vec<FrameId>; SHELVES],
    free_frames: u32,
}

/// A free block, and whether all of its bytes are known to be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeBlock {
    pub(crate) frame: FrameId,
    pub(crate) zeroed: bool,
}

impl Buddy {
    pub(crate) fn new() -> Self {
        Self { heads: [NONE; LISTS], blocks: [0; LISTS], shelves: Default::default(), free_frames: 0 }
    }

    /// Returns the free frames.
    pub(crate) fn free_frames(&self) -> u32 {
        self.free_frames
    }

    /// Returns the free blocks of one order.
    pub(crate) fn blocks(&self, order: Order) -> u32 {
        if order == Order::MAX {
            self.shelves.iter().map(|shelf| shelf.len() as u32).sum()
        } else {
            self.blocks[order.index()]
        }
    }

    /// Adds a block that only the caller owns, and merges it with its free buddies.
    pub(crate) fn insert(
        &mut self,
        words: &FrameTable,
        frame: FrameId,
        order: Order,
        zeroed: bool,
        shelf: Shelf,
    ) {
        let (mut frame, mut order, mut zeroed) = (frame, order, zeroed);
        while order < Order::MAX {
            let other = FrameId(frame.0 ^ order.frames());
            let state = words[other].state.load();
            if !state.is(Kind::Free, order) {
                break;
            }
            self.unlink(words, other, order);
            let (low, high) = if frame < other { (frame, other) } else { (other, frame) };
            words[high].state.set_tail();
            (frame, order, zeroed) = (low, Order(order.0 + 1), zeroed && state.zeroed());
        }
        if order < Order::MAX {
            return self.link(words, frame, order, zeroed);
        }
        let state = words[frame].state.load();
        if !(state.is(Kind::Cached, Order::MAX) && state.zeroed() == zeroed) {
            words[frame].state.set(Kind::Cached, Order::MAX, zeroed);
        }
        self.shelves[shelf.0].push(frame);
        self.free_frames += Order::MAX.frames();
    }

    /// Takes a block, and splits a larger one if needed. The block leaves in state Cached.
    pub(crate) fn take(&mut self, words: &FrameTable, order: Order, shelf: Shelf) -> Option<FreeBlock> {
        let listed = (order.index()..LISTS).find(|&from| self.heads[from] != NONE);
        let Some(from) = listed.map(|from| Order(from as u8)) else {
            return self.take_chunk(words, order, shelf);
        };
        let frame = FrameId(self.heads[from.index()]);
        let zeroed = words[frame].state.load().zeroed();
        self.unlink(words, frame, from);
        Some(self.split(words, FreeBlock { frame, zeroed }, from, order))
    }

    /// Takes a chunk off a shelf, and splits a block off it.
    fn take_chunk(&mut self, words: &FrameTable, order: Order, shelf: Shelf) -> Option<FreeBlock> {
        let frame = self.take_whole(shelf)?;
        let state = words[frame].state.load();
        assert!(state.is(Kind::Cached, Order::MAX), "a shelf held {frame:?} in state {state:?}");
        let chunk = FreeBlock { frame, zeroed: state.zeroed() };
        if order == Order::MAX {
            return Some(chunk);
        }
        Some(self.split(words, chunk, Order::MAX, order))
    }

    /// Takes a chunk off the caller's shelf, or off the next one that has a chunk. The caller checks that it
    /// is in state Cached.
    pub(crate) fn take_whole(&mut self, shelf: Shelf) -> Option<FrameId> {
        let frame = (0..SHELVES).find_map(|turn| self.shelves[(shelf.0 + turn) % SHELVES].pop())?;
        self.free_frames -= Order::MAX.frames();
        Some(frame)
    }

    fn split(&mut self, words: &FrameTable, block: FreeBlock, from: Order, order: Order) -> FreeBlock {
        for half in (order.0..from.0).rev().map(Order) {
            self.link(words, block.frame.plus(half.frames()), half, block.zeroed);
        }
        words[block.frame].state.set(Kind::Cached, order, block.zeroed);
        block
    }

    /// Takes this chunk off its shelf. Returns false if it is on no shelf. Linear in the chunks.
    pub(crate) fn take_off_shelf(&mut self, frame: FrameId) -> bool {
        for shelf in &mut self.shelves {
            if let Some(at) = shelf.iter().position(|&chunk| chunk == frame) {
                shelf.swap_remove(at);
                self.free_frames -= Order::MAX.frames();
                return true;
            }
        }
        false
    }

    /// Returns the first frames of the whole free chunks.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = FrameId> + '_ {
        self.shelves.iter().flatten().copied()
    }

    /// Takes this block off its list. The caller sets the block's state.
    pub(crate) fn unlink(&mut self, words: &FrameTable, frame: FrameId, order: Order) {
        let head = &words[frame];
        assert!(head.state.load().is(Kind::Free, order), "a free list held a frame that is not free");
        let (next, prev) = (head.next.load(Ordering::Relaxed), head.prev.load(Ordering::Relaxed));
        match prev {
            NONE => self.heads[order.index()] = next,
            prev => words[FrameId(prev)].next.store(next, Ordering::Relaxed),
        }
        if next != NONE {
            words[FrameId(next)].prev.store(prev, Ordering::Relaxed);
        }
        self.blocks[order.index()] -= 1;
        self.free_frames -= order.frames();
    }

    fn link(&mut self, words: &FrameTable, frame: FrameId, order: Order, zeroed: bool) {
        let head = &words[frame];
        let next = self.heads[order.index()];
        head.state.set(Kind::Free, order, zeroed);
        head.next.store(next, Ordering::Relaxed);
        head.prev.store(NONE, Ordering::Relaxed);
        if next != NONE {
            words[FrameId(next)].prev.store(frame.0, Ordering::Relaxed);
        }
        self.heads[order.index()] = frame.0;
        self.blocks[order.index()] += 1;
        self.free_frames += order.frames();
    }

    /// Checks every list and shelf. Linear in the free frames.
    ///
    /// # Panics
    /// If an invariant at the head of this file does not hold.
    pub(crate) fn validate(&self, words: &FrameTable) {
        let mut frames = 0;
        for order in Order::all().filter(|&order| order < Order::MAX) {
            let (mut at, mut prev, mut blocks) = (self.heads[order.index()], NONE, 0);
            while at != NONE {
                let head = &words[FrameId(at)];
                assert!(at.is_multiple_of(order.frames()), "blocks are aligned to their size");
                assert!(head.state.load().is(Kind::Free, order), "heads on a list are free");
                assert_eq!(head.prev.load(Ordering::Relaxed), prev, "links go both ways");
                let mut tails = (1..order.frames()).map(|tail| &words[FrameId(at + tail)]);
                assert!(tails.all(|tail| tail.state.load().kind() == Kind::Tail), "a block has one head");
                let other = words[FrameId(at ^ order.frames())].state.load();
                assert!(!other.is(Kind::Free, order), "buddies that are both free are one block");
                (prev, at) = (at, head.next.load(Ordering::Relaxed));
                blocks += 1;
            }
            assert_eq!(blocks, self.blocks[order.index()], "the count of blocks is true");
            frames += blocks * order.frames();
        }
        for chunk in self.chunks() {
            assert!(words[chunk].state.load().is(Kind::Cached, Order::MAX), "heads on a shelf are cached");
            let mut tails = (1..Order::MAX.frames()).map(|tail| &words[chunk.plus(tail)]);
            assert!(tails.all(|tail| tail.state.load().kind() == Kind::Tail), "a block has one head");
            frames += Order::MAX.frames();
        }
        assert_eq!(frames, self.free_frames, "the count of frames is true");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::CHUNK_FRAMES;
    use proptest::prelude::*;

    const CHUNKS: u32 = 3;

    fn full() -> (FrameTable, Buddy) {
        let words = FrameTable::new(CHUNKS * CHUNK_FRAMES).unwrap();
        let mut buddy = Buddy::new();
        for chunk in 0..CHUNKS {
            (0..CHUNK_FRAMES).for_each(|at| words[FrameId(chunk * CHUNK_FRAMES + at)].state.set_tail());
            buddy.insert(
                &words,
                FrameId(chunk * CHUNK_FRAMES),
                Order::MAX,
                true,
                Shelf::of_cpu(chunk as usize),
            );
        }
        (words, buddy)
    }

    /// The reference model: for each frame, whether it is free.
    #[derive(Clone)]
    struct Model(Vec<bool>);

    impl Model {
        fn has_aligned_run(&self, order: Order) -> bool {
            self.0.chunks(order.frames() as usize).any(|run| run.iter().all(|&free| free))
        }

        fn mark(&mut self, frame: FrameId, order: Order, free: bool) {
            for at in &mut self.0[frame.index()..frame.plus(order.frames()).index()] {
                assert_ne!(*at, free, "{frame:?} overlaps");
                *at = free;
            }
        }
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_merge_back(
            steps in prop::collection::vec((0u8..10, any::<prop::sample::Index>(), any::<bool>()), 1..400),
        ) {
            let (words, mut buddy) = full();
            let mut model = Model(vec![true; (CHUNKS * CHUNK_FRAMES) as usize]);
            let mut taken: Vec<(FrameId, Order)> = Vec::new();
            for (order, which, free) in steps {
                if free && !taken.is_empty() {
                    let (frame, order) = taken.swap_remove(which.index(taken.len()));
                    buddy.insert(&words, frame, order, false, Shelf::default());
                    model.mark(frame, order, true);
                } else {
                    let order = Order(order);
                    let block = buddy.take(&words, order, Shelf::default());
                    // Merging is eager: an aligned run of free frames is a block of at least that order.
                    prop_assert_eq!(block.is_some(), model.has_aligned_run(order));
                    if let Some(block) = block {
                        prop_assert!(block.frame.0.is_multiple_of(order.frames()));
                        model.mark(block.frame, order, false);
                        taken.push((block.frame, order));
                    }
                }
                buddy.validate(&words);
                let free = model.0.iter().filter(|&&free| free).count();
                prop_assert_eq!(buddy.free_frames() as usize, free);
            }
            for (frame, order) in taken {
                buddy.insert(&words, frame, order, false, Shelf::default());
            }
            buddy.validate(&words);
            prop_assert_eq!(buddy.blocks(Order::MAX), CHUNKS);
        }
    }

    #[test]
    fn zeroed_survives_splits_and_only_merges_of_two_zeroed_halves() {
        let (words, mut buddy) = full();
        let [first, second] = [(); 2].map(|()| buddy.take(&words, Order(8), Shelf::default()).unwrap());
        assert!(first.zeroed && second.zeroed, "a split keeps it");
        buddy.insert(&words, first.frame, Order(8), true, Shelf::default());
        buddy.insert(&words, second.frame, Order(8), false, Shelf::default());
        let merged: Vec<_> =
            (0..CHUNKS).map(|_| buddy.take(&words, Order::MAX, Shelf::default()).unwrap()).collect();
        let dirty: Vec<_> = merged.iter().filter(|block| !block.zeroed).collect();
        assert_eq!(dirty.len(), 1, "a merge loses it where one half has lost it");
        assert_eq!(dirty[0].frame, first.frame.min(second.frame));
    }
}
