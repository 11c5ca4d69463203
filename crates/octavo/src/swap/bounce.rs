//! Bounce frames: a few frames set aside at the start, for pages that are sealed on their way to a device.
//! Taking one needs no allocation.

use crate::frame::FrameAllocator;
use crate::sync::Mutex;
use crate::units::{FrameId, Order};

/// The frames that are not in use.
#[derive(Debug)]
pub(crate) struct BounceFrames {
    first: FrameId,
    order: Order,
    idle: Mutex<Vec<FrameId>>,
}

impl BounceFrames {
    /// Takes one block of 2^order frames, and keeps it. The block is charged like any other. Returns `None`
    /// if no such block is free.
    pub(crate) fn new(frames: &FrameAllocator, order: Order) -> Option<Self> {
        let first = frames.alloc(order)?.into_frame();
        let idle = (0..order.frames()).rev().map(|at| first.plus(at)).collect();
        Some(Self { first, order, idle: Mutex::new(idle) })
    }

    /// Takes a frame. Returns `None` if all are in use. The caller then waits for a completion.
    pub(crate) fn take(&self) -> Option<FrameId> {
        self.idle.lock().pop()
    }

    /// Gives a frame back, from any thread.
    pub(crate) fn give_back(&self, frame: FrameId) {
        let mut idle = self.idle.lock();
        debug_assert!(self.is_one(frame) && !idle.contains(&frame), "{frame:?} was not taken");
        idle.push(frame);
    }

    /// Returns whether the frame is a bounce frame.
    pub(crate) fn is_one(&self, frame: FrameId) -> bool {
        frame.0.wrapping_sub(self.first.0) < self.order.frames()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::{Backing, FrameConfig};

    #[test]
    fn each_frame_is_in_one_hand() {
        let frames =
            FrameAllocator::standalone(&FrameConfig::one_zone(8 << 20, Backing::BasePages), 16 << 20)
                .unwrap();
        let bounce = BounceFrames::new(&frames, Order(4)).unwrap();
        let mut taken: Vec<_> = std::iter::from_fn(|| bounce.take()).collect();
        assert_eq!(taken.len(), 16);
        assert!(taken.iter().all(|&frame| bounce.is_one(frame)));
        let other = frames.alloc(Order::ZERO).unwrap().into_frame();
        assert!(!bounce.is_one(other));
        bounce.give_back(taken.pop().unwrap());
        taken.push(bounce.take().unwrap());
        taken.sort();
        taken.dedup();
        assert_eq!(taken.len(), 16);
    }
}
