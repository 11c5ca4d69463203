//! Shrinking the pool: the order in which pages leave, and the emptying of sparse blocks.
//!
//! Pages leave by span ([`victims`](super::victims)), so that a span's memory is free when its pages have
//! left. Pages stored one after the other lie in spans of about the same age and leave together. Sorted by
//! slot, they form runs.
//!
//! To empty a block, its spans change places with free spans of other blocks. Handles stay valid, because a
//! handle names a span and not a place. If too few spans are free, the sparsest spans of all blocks are
//! emptied: their objects move to holes in fuller spans of their class, and `retarget` changes the contents
//! that name the objects. (zsmalloc compacts its classes in this way.) So a block can go back even if it has
//! the only span of a class.

use super::blocks::spans_of;
use super::classes::{CLASSES, SPAN_BYTES, objects};
use super::spans::{Checksums, Placed};
use super::{Handle, Pool, checksum};
use crate::frame::FrameAllocator;
use crate::units::{Order, SwapSlot};

/// The most rounds of emptying or moving spans for one block.
const MOST_ROUNDS: u32 = 8;
/// The spans of half a block. If fewer spans stayed free, the next objects might need a new block at once.
pub(super) const SPARE_SPANS: u32 = spans_of(Order::MAX) / 2;

/// The memory that was freed by moving objects together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// A block, which went back to the frame allocator.
    Block,
    /// Spans, for objects of any class.
    Spans,
    Nothing,
}

impl Pool {
    /// Names the pages that were stored longest ago, `n` or a few more, sorted by slot. Each page is named
    /// once. The caller then calls [`Pool::free`] when the page's content says Device, or [`Pool::stays`] if
    /// the page could not be written.
    pub(crate) fn coldest(&self, frames: &FrameAllocator, n: usize, named: &mut Vec<(SwapSlot, Handle)>) {
        let mut victims = self.victims.lock();
        let enough = named.len() + n;
        while named.len() < enough {
            let Some(span) = victims.next(&self.spans) else { break };
            self.spans.start_draining(frames, span, |slot, handle| named.push((slot, handle)));
        }
        named.sort_unstable_by_key(|&(slot, _)| slot);
    }

    /// Notes that a page which [`Pool::coldest`] named stays. It may be named again.
    pub(crate) fn stays(&self, handle: Handle) {
        self.spans.stop_draining(handle.span());
    }

    /// Gives up to `n_blocks` blocks back to the frame allocator, the sparsest first, by moving their
    /// objects. Returns the number of blocks. `retarget` changes the content of a slot from one handle to
    /// another by compare-and-swap, and returns false if the content had changed.
    pub(crate) fn give_back(
        &self,
        frames: &FrameAllocator,
        n_blocks: usize,
        mut retarget: impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) -> usize {
        let _single = self.moving.lock();
        let gone = |_: &usize| self.empty_block(frames, 0, &mut retarget) == Emptied::Block;
        (0..n_blocks).take_while(gone).count()
    }

    /// Gives back a block that is smaller than a chunk, if its spans fit elsewhere. Such a block keeps the
    /// rest of its chunk from going back.
    pub(crate) fn give_small_back(&self, frames: &FrameAllocator) -> bool {
        let _single = self.moving.lock();
        let Some(block) = self.spans.blocks.close_small() else { return false };
        self.move_spans(frames, block);
        self.release(frames, self.spans.blocks.take_unused(block));
        let is_gone = self.spans.blocks.is_gone(block);
        self.spans.blocks.reopen(block);
        is_gone
    }

    /// Gives the sparsest block back, if the other blocks then have `spare_spans` free spans.
    pub(super) fn empty_one(
        &self,
        frames: &FrameAllocator,
        spare_spans: u32,
        mut retarget: impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) -> Emptied {
        let _single = self.moving.lock();
        self.empty_block(frames, spare_spans, &mut retarget)
    }

    fn empty_block(
        &self,
        frames: &FrameAllocator,
        spare_spans: u32,
        retarget: &mut impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) -> Emptied {
        let blocks = &self.spans.blocks;
        let Some(block) = blocks.close_sparsest() else { return Emptied::Nothing };
        let mut emptied = Emptied::Nothing;
        // Emptying takes several rounds, because other threads fill free spans meanwhile.
        for _ in 0..MOST_ROUNDS {
            if blocks.is_gone(block) {
                return Emptied::Block;
            }
            let missing_spans = blocks.missing_spans(block, spare_spans);
            if missing_spans > 0 {
                if !self.empty_spans(frames, &self.sparsest(missing_spans), retarget) {
                    break;
                }
                emptied = Emptied::Spans;
            } else {
                self.move_spans(frames, block);
                self.release(frames, blocks.take_unused(block));
            }
        }
        blocks.reopen(block);
        emptied
    }

    /// Exchanges spans of a closed block with free spans of other blocks, as long as such spans exist.
    fn move_spans(&self, frames: &FrameAllocator, block: usize) {
        for span in 0..self.spans.blocks.end() {
            if !self.spans.is_in(span, block) {
                continue;
            }
            let Some(free) = self.spans.blocks.take(self.spans.words()) else { return };
            self.spans.exchange_places(frames, span, free);
            let emptied = self.spans.blocks.put(self.spans.words(), free);
            self.release(frames, emptied);
        }
    }

    /// Names up to `n` spans whose objects fit into the holes of other spans, the sparsest first.
    fn sparsest(&self, n: u32) -> Vec<u32> {
        let mut holes = [0; CLASSES];
        let mut sparse = Vec::new();
        for span in 0..self.spans.blocks.end() {
            let words = self.spans.span(span);
            let Some(class) = words.class().filter(|_| words.is_settled()) else { continue };
            let (used, most) = (words.used(), objects(class));
            if used < most {
                holes[class] += most - used;
                sparse.push((used * SPAN_BYTES as u32 / most, class, span));
            }
        }
        sparse.sort_unstable();
        let fits = |&(_, class, _): &(u32, usize, u32)| {
            // The span's own holes vanish, and its objects fill other holes. Together these are as many holes
            // as a span has places for objects.
            let fits = holes[class] >= objects(class);
            holes[class] -= if fits { objects(class) } else { 0 };
            fits
        };
        sparse.into_iter().filter(fits).map(|(.., span)| span).take(n as usize).collect()
    }

    /// Moves the objects of `sparse` spans to holes in other spans. Returns whether any object was moved.
    fn empty_spans(
        &self,
        frames: &FrameAllocator,
        sparse: &[u32],
        retarget: &mut impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) -> bool {
        let mut named = Vec::new();
        // All sparse spans start to drain first. Otherwise objects would move from one sparse span to
        // another.
        for &span in sparse {
            self.spans.start_draining(frames, span, |slot, handle| named.push((slot, handle)));
        }
        let mut has_moved = false;
        for (slot, handle) in named {
            match self.move_object(frames, slot, handle) {
                Some(moved) if retarget(slot, handle, moved) => {
                    self.free(frames, handle);
                    has_moved = true;
                }
                Some(moved) => self.free(frames, moved),
                None => {}
            }
        }
        sparse.iter().for_each(|&span| self.spans.stop_draining(span));
        has_moved
    }

    /// Copies an object to a hole of its class, if the object still exists and its class has a hole.
    fn move_object(&self, frames: &FrameAllocator, slot: SwapSlot, handle: Handle) -> Option<Handle> {
        let age = self.spans.span(handle.span()).age();
        let placed = self.spans.look(frames, slot, handle, |packed, header| {
            // A damaged object stays, so that an access to its page gets the error.
            let is_whole =
                packed.len() == header.len && checksum(slot, header.area_crc, packed) == header.crc;
            let crcs = Checksums { packed: header.crc, area: header.area_crc };
            is_whole.then(|| self.spans.place(frames, slot, packed, crcs, age, false))
        });
        match placed.flatten() {
            Some(Placed::At(moved)) => Some(moved),
            Some(Placed::NoRoom) | None => None,
        }
    }
}
