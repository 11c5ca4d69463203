//! Making the pool smaller: the pages that leave first, and the emptying of sparse blocks.
//!
//! Pages leave by span ([`victims`](super::victims)), so that a span's memory is free when its pages have left.
//! Pages stored one after the other lie in spans of about one age and leave together. Sorted by slot they make
//! runs.
//!
//! A block is emptied in two ways. First, its spans change places with free spans of other blocks. Nobody notices,
//! because a handle names a span and not a place. If there are no free spans, its objects move to holes in other
//! spans of their class, and `retarget` changes the contents that name them.

use super::spans::{Checksums, Placed};
use super::{Handle, LoadFailure, Pool, checksum};
use crate::frame::FrameAllocator;
use crate::units::SwapSlot;

impl Pool {
    /// Names the pages that were stored first, `n` or a few more, in the order of their slots. Each page is named
    /// once. Call [`Pool::free`] when its content says Device, or [`Pool::stays`] if it could not be written.
    pub(crate) fn coldest(&self, frames: &FrameAllocator, n: usize, named: &mut Vec<(SwapSlot, Handle)>) {
        let mut victims = self.victims.lock();
        let enough = named.len() + n;
        while named.len() < enough {
            let Some(span) = victims.next(&self.spans) else { break };
            self.spans.start_draining(frames, span, |slot, handle| named.push((slot, handle)));
        }
        named.sort_unstable_by_key(|&(slot, _)| slot);
    }

    /// A page that [`Pool::coldest`] named stays, and may be named again.
    pub(crate) fn stays(&self, handle: Handle) {
        self.spans.stop_draining(handle.span());
    }

    /// Gives up to `n_blocks` blocks back to the frame allocator, the sparsest first, by moving their objects.
    /// Returns how many. `retarget` changes the content of a slot from one handle to the other by compare-and-swap.
    /// False: the content was another by then.
    pub(crate) fn give_back(
        &self,
        frames: &FrameAllocator,
        n_blocks: usize,
        mut retarget: impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) -> usize {
        let _single = self.moving.lock();
        let mut given = 0;
        while given < n_blocks {
            let Some(block) = self.spans.blocks.close_sparsest() else { break };
            self.move_spans(frames, block);
            if !self.spans.blocks.is_gone(block) {
                self.move_objects(frames, block, &mut retarget);
            }
            if !self.spans.blocks.is_gone(block) {
                self.spans.blocks.reopen(block);
                break;
            }
            given += 1;
        }
        given
    }

    /// Spans of a closed block change places with free ones elsewhere, as far as there are any.
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

    /// Objects of a closed block move to holes in other spans, as far as there are any.
    fn move_objects(
        &self,
        frames: &FrameAllocator,
        block: usize,
        retarget: &mut impl FnMut(SwapSlot, Handle, Handle) -> bool,
    ) {
        let spans: Vec<u32> =
            (0..self.spans.blocks.end()).filter(|&span| self.spans.is_in(span, block)).collect();
        let mut named = Vec::new();
        // All of them first: otherwise their objects would move to each other.
        for &span in &spans {
            self.spans.start_draining(frames, span, |slot, handle| named.push((slot, handle)));
        }
        for (slot, handle) in named {
            match self.move_object(frames, slot, handle) {
                Ok(moved) if retarget(slot, handle, moved) => self.free(frames, handle),
                Ok(moved) => self.free(frames, moved),
                Err(MoveFailure::NotThere) => {}
                Err(MoveFailure::NoRoom) => break,
            }
        }
        spans.into_iter().for_each(|span| self.spans.stop_draining(span));
    }

    fn move_object(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        handle: Handle,
    ) -> Result<Handle, MoveFailure> {
        let age = self.spans.span(handle.span()).age();
        let copied = self.spans.look(frames, slot, handle, |packed, header| {
            if packed.len() != header.len || checksum(slot, header.area_crc, packed) != header.crc {
                return Err(LoadFailure::Corrupt);
            }
            let crcs = Checksums { packed: header.crc, area: header.area_crc };
            Ok(self.spans.place(frames, slot, packed, crcs, age, false))
        });
        match copied {
            // A damaged object stays where it is, for the access that will ask for it.
            None | Some(Err(_)) => Err(MoveFailure::NotThere),
            Some(Ok(Placed::NoRoom)) => Err(MoveFailure::NoRoom),
            Some(Ok(Placed::At(moved))) => Ok(moved),
        }
    }
}

enum MoveFailure {
    NotThere,
    NoRoom,
}
