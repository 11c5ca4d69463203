//! Allocated blocks, as values that their owners hold.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::frame::state::FrameState;
use crate::units::{FrameId, Order};

/// Memory from [`FrameAllocator::alloc`](crate::frame::FrameAllocator::alloc). The owner gives it back once.
///
/// A block cannot be copied. Its owner frees it with
/// [`FrameAllocator::give_back`](crate::frame::FrameAllocator::give_back). Instead, the owner may keep only
/// the number of its first frame ([`Block::into_frame`]), and free the block by this number with
/// [`FrameAllocator::free`](crate::frame::FrameAllocator::free). Dropping a block leaks it, and panics if
/// debug assertions are on.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a block has to be given back, or its frame kept"]
pub struct Block {
    frame: FrameId,
    /// The frame's state on the list that it came from. The state is never zero. So an `Option<Block>` has
    /// the size of two words, and a function returns it in two registers.
    state: NonZeroU32,
}

impl Block {
    /// Makes a block from a frame that was on a list in this state.
    #[inline(always)]
    pub(super) fn new(frame: FrameId, state: FrameState) -> Self {
        Self { frame, state: state.of_a_list() }
    }

    #[inline]
    fn state(&self) -> FrameState {
        FrameState::from(self.state)
    }

    /// Returns the first frame. Its number is a multiple of the block's frames.
    #[inline]
    pub fn frame(&self) -> FrameId {
        self.frame
    }

    /// Returns the order: the block has 2^order frames.
    #[inline]
    pub fn order(&self) -> Order {
        self.state().order()
    }

    /// Returns whether every byte is known to be zero.
    #[inline]
    pub fn is_zeroed(&self) -> bool {
        self.state().zeroed()
    }

    /// Makes the block of order 0 again whose owner has kept only its number.
    #[cfg(test)]
    pub(crate) fn kept(frame: FrameId) -> Self {
        Self::new(frame, FrameState::cached(Order::ZERO, false))
    }

    /// Returns the number of the first frame. From now on, only the caller knows that the frame has to be
    /// freed.
    #[inline]
    pub fn into_frame(self) -> FrameId {
        let frame = self.frame;
        std::mem::forget(self);
        frame
    }
}

#[cfg(debug_assertions)]
impl Drop for Block {
    fn drop(&mut self) {
        // In a thread that already panics, a second panic would end the process here and hide the first.
        assert!(crate::sync::is_panicking(), "the block at {:?} was lost", self.frame);
    }
}

/// The frames of a split block that are left, in a row, as blocks of order 0. Whoever has it gives them all
/// back.
#[derive(Debug)]
pub(crate) struct SplitBlock {
    head: FrameId,
    state: FrameState,
    rest: Range<u32>,
}

impl SplitBlock {
    pub(super) fn new(head: FrameId, state: FrameState, order: Order) -> Self {
        Self { head, state, rest: 0..order.frames() }
    }
}

impl Iterator for SplitBlock {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        self.rest.next().map(|index| Block::new(self.head.plus(index), self.state))
    }
}
