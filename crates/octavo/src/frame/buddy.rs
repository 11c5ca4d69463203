//! The buddy lists of a zone: free blocks of orders 0 to 9, each aligned to its size.
//!
//! Lists are doubly linked through the heads' `next` and `prev` words, so a block leaves the middle of its
//! list in constant time when its buddy merges with it. Everything here runs under the zone's lock.
//!
//! Invariants: a head on list `n` is in state Free of order `n`; no two buddies of one order are both free
//! (below order 9); `free_frames` is the sum over the lists. A split keeps ZEROED; a merge keeps it if both have it.

use crate::frame::state::Kind;
use crate::frame::words::FrameTable;
use crate::sync::Ordering;
use crate::units::{FrameId, Order};

const NONE: u32 = u32::MAX;

/// The heads of the free lists.
#[derive(Debug)]
pub(crate) struct Buddy {
    heads: [u32; Order::COUNT],
    blocks: [u32; Order::COUNT],
    free_frames: u32,
}

/// A block, and whether it is known to be all zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeBlock {
    pub(crate) frame: FrameId,
    pub(crate) zeroed: bool,
}

impl Buddy {
    pub(crate) fn new() -> Self {
        Self { heads: [NONE; Order::COUNT], blocks: [0; Order::COUNT], free_frames: 0 }
    }

    /// Frames on all lists.
    pub(crate) fn free_frames(&self) -> u32 {
        self.free_frames
    }

    /// Blocks on one list.
    pub(crate) fn blocks(&self, order: Order) -> u32 {
        self.blocks[order.index()]
    }

    /// Adds a block that is the caller's alone, merged with its free buddies.
    pub(crate) fn insert(&mut self, words: &FrameTable, frame: FrameId, order: Order, zeroed: bool) {
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
        self.link(words, frame, order, zeroed);
    }

    /// Takes a block, splitting a larger one where needed. It leaves in state Cached.
    pub(crate) fn take(&mut self, words: &FrameTable, order: Order) -> Option<FreeBlock> {
        let from = (order.0..=Order::MAX.0).map(Order).find(|from| self.heads[from.index()] != NONE)?;
        let frame = FrameId(self.heads[from.index()]);
        let zeroed = words[frame].state.load().zeroed();
        self.unlink(words, frame, from);
        for half in (order.0..from.0).rev().map(Order) {
            self.link(words, frame.plus(half.frames()), half, zeroed);
        }
        words[frame].state.set(Kind::Cached, order, zeroed);
        Some(FreeBlock { frame, zeroed })
    }

    /// Takes a certain block off its list. Its state is the caller's to set.
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

    /// Checks every list. O(free blocks).
    ///
    /// # Panics
    /// When an invariant at the head of this file does not hold.
    pub(crate) fn validate(&self, words: &FrameTable) {
        let mut frames = 0;
        for order in Order::all() {
            let (mut at, mut prev, mut blocks) = (self.heads[order.index()], NONE, 0);
            while at != NONE {
                let head = &words[FrameId(at)];
                assert!(at.is_multiple_of(order.frames()), "blocks are aligned to their size");
                assert!(head.state.load().is(Kind::Free, order), "heads on a list are free");
                assert_eq!(head.prev.load(Ordering::Relaxed), prev, "links go both ways");
                let mut tails = (1..order.frames()).map(|tail| &words[FrameId(at + tail)]);
                assert!(tails.all(|tail| tail.state.load().kind() == Kind::Tail), "a block has one head");
                if order < Order::MAX {
                    let other = words[FrameId(at ^ order.frames())].state.load();
                    assert!(!other.is(Kind::Free, order), "buddies that are both free are one block");
                }
                (prev, at) = (at, head.next.load(Ordering::Relaxed));
                blocks += 1;
            }
            assert_eq!(blocks, self.blocks[order.index()], "the count of blocks is true");
            frames += blocks * order.frames();
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
            buddy.insert(&words, FrameId(chunk * CHUNK_FRAMES), Order::MAX, true);
        }
        (words, buddy)
    }

    /// The reference: which frames are free, frame by frame.
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
                    buddy.insert(&words, frame, order, false);
                    model.mark(frame, order, true);
                } else {
                    let order = Order(order);
                    let block = buddy.take(&words, order);
                    // Eager merging: an aligned run of free frames is a block of at least that order.
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
                buddy.insert(&words, frame, order, false);
            }
            buddy.validate(&words);
            prop_assert_eq!(buddy.blocks(Order::MAX), CHUNKS);
        }
    }

    #[test]
    fn zeroed_survives_splits_and_only_merges_of_two_zeroed_halves() {
        let (words, mut buddy) = full();
        let [first, second] = [(); 2].map(|()| buddy.take(&words, Order(8)).unwrap());
        assert!(first.zeroed && second.zeroed, "a split keeps it");
        buddy.insert(&words, first.frame, Order(8), true);
        buddy.insert(&words, second.frame, Order(8), false);
        let merged: Vec<_> = (0..CHUNKS).map(|_| buddy.take(&words, Order::MAX).unwrap()).collect();
        let dirty: Vec<_> = merged.iter().filter(|block| !block.zeroed).collect();
        assert_eq!(dirty.len(), 1, "a merge loses it where one half has lost it");
        assert_eq!(dirty[0].frame, first.frame.min(second.frame));
    }
}
