//! The slow paths of the allocator: allocations and frees that a per-CPU list does not serve at once.
//!
//! All of these functions are out of line, so that the fast paths need not save registers. The head of
//! `allocator.rs` says which locks they may take.

use super::{Block, FrameAllocator, LowHook, invalid_free};
use crate::counters::Counter;
use crate::error::Result;
use crate::frame::chunk::Online;
use crate::frame::percpu::{Pressure, ZEROED_CLASS};
use crate::frame::state::TakeBack;
use crate::frame::words::FrameWords;
use crate::frame::zone::{Backing, Givers, Zone};
use crate::sync::Ordering;
use crate::sync::percpu::Push;
use crate::units::{FrameId, Order};

/// The zeroed frames that a CPU takes from the reserve together.
const RESERVE_BATCH: u32 = 32;

impl FrameAllocator {
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(&self, order: Order) -> Option<Block> {
        self.alloc_searching(order, || true)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn alloc_or_make_room_slow(&self, order: Order) -> Option<Block> {
        self.alloc_searching(order, || self.lists.looks_elsewhere())
    }

    /// Searches for a block. Drains all CPUs' lists only if `elsewhere` returns true.
    fn alloc_searching(&self, order: Order, elsewhere: impl FnOnce() -> bool) -> Option<Block> {
        if self.popped_orders == 0
            && let Some(block) = self.alloc_listed(order)
        {
            return Some(block);
        }
        let block = self.search(order).or_else(|| {
            if !elsewhere() {
                return None;
            }
            self.drain();
            self.search(order)
        });
        self.check_watermark();
        block
    }

    pub(super) fn search(&self, order: Order) -> Option<Block> {
        self.search_zones(order, |zone| zone.bring_online(&self.arena, order) != Online::Refused)
    }

    pub(super) fn search_online(&self, order: Order) -> Option<Block> {
        self.search_zones(order, |_| false)
    }

    /// Tries each zone in order of preference: first its lists, then the chunks that `grow` brings online.
    fn search_zones(&self, order: Order, grow: impl Fn(&Zone) -> bool) -> Option<Block> {
        let node = self.cpu_nodes[self.lists.stacks().cpu()];
        let wanted = if order == Order::MAX { Backing::HugePages } else { Backing::BasePages };
        for rank in 0..4u8 {
            for zone in self.zones.iter() {
                let other_node = u8::from(zone.node != node);
                let other_backing = u8::from(zone.backing != wanted);
                if 2 * other_node + other_backing != rank {
                    continue;
                }
                loop {
                    if let Some(block) = self.take_from(zone, order, other_node == 0) {
                        return Some(block);
                    }
                    if !grow(zone) {
                        break;
                    }
                }
            }
        }
        None
    }

    fn take_from(&self, zone: &Zone, order: Order, local: bool) -> Option<Block> {
        // While memory is full, each miss comes here. Do not take the lock then, since threads that free
        // frames need it.
        if zone.free_frames() == 0 {
            return None;
        }
        let held = (local && self.lists.holds(order)).then(|| self.lists.stacks().exclusive_here()).flatten();
        let block = match held {
            Some(held) => {
                let pressure = self.pressure();
                let mut locked = zone.lock(&self.arena).at(held.cpu());
                let (block, frames) = self.lists.refill(&held, order, pressure, || locked.take_frame(order));
                drop(locked);
                drop(held);
                self.arena.counters.add(Counter::PercpuRefill, u64::from(frames));
                block?
            }
            None => zone.lock(&self.arena).take_frame(order)?,
        };
        Some(self.hand_out_counted(block, order))
    }

    pub(super) fn hand_out_counted(&self, frame: FrameId, order: Order) -> Block {
        let state = self.words(frame).state.hand_out(order);
        self.arena.counters.add(Counter::PagesAllocated, u64::from(order.frames()));
        Block::new(frame, state)
    }

    /// Frees a block whose state word is not the word of an owned block without a mark.
    #[cold]
    #[inline(never)]
    pub(super) fn free_unusual(
        &self,
        words: &FrameWords,
        frame: FrameId,
        order: Order,
        found: u32,
    ) -> Result<()> {
        match words.state.take_back_unusual(order, found) {
            TakeBack::Done => self.free_slow(frame, order),
            TakeBack::Isolating => {
                self.free_to_zone(frame, order);
                Ok(())
            }
            TakeBack::Refused(found) => invalid_free(frame, order, Some(found)),
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn free_slow(&self, frame: FrameId, order: Order) -> Result<()> {
        let local = self.lists.holds(order) && (self.one_node || self.is_local(frame));
        if local && self.pushed_orders == 0 && self.lists.push(order.index(), frame) == Push::Done {
            return Ok(());
        }
        let Some(held) = local.then(|| self.lists.stacks().exclusive_here()).flatten() else {
            self.free_to_zone(frame, order);
            return Ok(());
        };
        let pressure = self.pressure();
        let mut givers = Givers::new(&self.zones, &self.arena, held.cpu());
        self.lists.push_or_spill(&held, order, frame, pressure, |frame, order| givers.give(frame, order));
        self.arena.counters.add(Counter::PercpuDrain, givers.frames());
        self.arena.counters.add(Counter::PagesFreed, u64::from(order.frames()));
        Ok(())
    }

    fn free_to_zone(&self, frame: FrameId, order: Order) {
        if self.away.contains(frame) {
            return self.away.give(&self.arena, frame, order);
        }
        self.zones.of(frame).lock(&self.arena).give(frame, order);
        self.arena.counters.add(Counter::PagesFreed, u64::from(order.frames()));
    }

    #[cold]
    pub(super) fn alloc_zeroed_slow(&self) -> Option<Block> {
        if self.zeroed_ahead.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // Only try the lock, because a thread that zeroes frames holds it for a while.
        let mut reserve = self.reserve.try_lock()?;
        let first = reserve.frames.pop()?;
        if let Some(held) = self.lists.stacks().exclusive_here() {
            let more = RESERVE_BATCH.min(reserve.frames.len() as u32);
            for _ in 0..self.lists.make_room(&held, ZEROED_CLASS, more) {
                let Some(frame) = reserve.frames.pop() else { break };
                assert!(held.insert(ZEROED_CLASS, frame.0), "room was made");
            }
        }
        self.note_zeroed_ahead(&reserve);
        drop(reserve);
        let block = self.hand_out_counted(first, Order::ZERO);
        assert!(block.is_zeroed(), "the reserve held {first:?}, which is not known to be zero");
        Some(block)
    }

    fn is_local(&self, frame: FrameId) -> bool {
        self.zones.of(frame).node == self.cpu_nodes[self.lists.stacks().cpu()]
    }

    fn pressure(&self) -> Pressure {
        self.retune();
        let (marks, available) = (self.watermarks(), self.available_frames());
        match available {
            _ if available < marks.low_frames => Pressure::BelowLow,
            _ if available < marks.high_frames => Pressure::BelowHigh,
            _ => Pressure::None,
        }
    }

    pub(super) fn check_watermark(&self) {
        let low_frames = self.watermarks().low_frames;
        if (self.available_frames() < low_frames || self.is_away_room_below(low_frames))
            && let Some(LowHook(hook)) = self.low_hook.get()
        {
            hook();
        }
    }
}
