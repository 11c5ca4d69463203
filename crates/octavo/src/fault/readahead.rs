//! Reading pages before anybody faults on them.
//!
//! Their frames go into the swap cache under READING, neighbours on the device in one transfer; the entries stay as they
//! are, so a page that is never wanted is evicted without anything having to be undone. Nothing is reclaimed for pages
//! read ahead of a fault: without a free frame the rest is left out.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Window};
use crate::io::Urgency;
use crate::reclaim::{Reclaimer, reclaim};
use crate::region::Region;
use crate::swap::{Begun, WRITE_BATCH};
use crate::table::SpaceId;
use crate::table::entry::State;
use crate::units::{FrameId, Order, PageNumber, SwapSlot};

/// Frames that `prefetch` makes room for at once.
const MAKE_WAY: u64 = 64;

/// Reads that are collected while their slots follow each other.
pub(super) struct Run<'e> {
    engine: &'e Engine,
    first: SwapSlot,
    frames: SmallVec<[FrameId; WRITE_BATCH]>,
}

impl<'e> Run<'e> {
    pub(super) fn new(engine: &'e Engine) -> Self {
        Self { engine, first: SwapSlot(0), frames: SmallVec::new() }
    }

    /// Adds a frame under READING, and a pin on it, which is the transfer's.
    pub(super) fn push(&mut self, slot: SwapSlot, frame: FrameId) {
        let follows = self.engine.swap.follows(self.first, self.frames.len(), slot);
        if self.frames.is_empty() || !follows || self.frames.len() == WRITE_BATCH {
            self.submit(Urgency::Queued);
            self.first = slot;
        }
        self.frames.push(frame);
    }

    /// Hands over what was collected. The last of it, with `urgency`.
    pub(super) fn submit(&mut self, urgency: Urgency) {
        if !self.frames.is_empty() {
            self.engine.start_read(self.first, &self.frames, urgency);
            self.frames.clear();
        }
    }
}

/// Whether room is made for pages read ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Free frames only.
    Free,
    /// Clean pages may go for them, and others are sent on their way.
    Made,
}

/// Adds the pages of a window that are out to `run`, as far as there are free frames.
pub(super) fn add_window(run: &mut Run<'_>, space: SpaceId, window: Window, region: &Region) {
    for page in window.pages() {
        if !region.contains(page) || !add(run, space, page, Room::Free) {
            break;
        }
    }
}

/// Starts to read those pages of a range that are out, and returns. Says how many it started to read.
pub(crate) fn prefetch(engine: &Engine, space: SpaceId, pages: std::ops::Range<u64>) -> u64 {
    engine.poll_transfers();
    let mut run = Run::new(engine);
    let before = engine.transfers.reading_pages();
    for page in pages {
        if !add(&mut run, space, PageNumber(page), Room::Made) {
            break;
        }
    }
    run.submit(Urgency::Queued);
    engine.swap.flush();
    u64::from(engine.transfers.reading_pages().saturating_sub(before))
}

/// Adds a page, if it is out. False: there is no frame for it.
fn add(run: &mut Run<'_>, space: SpaceId, page: PageNumber, room: Room) -> bool {
    let engine = run.engine;
    let walk = engine.table.walk(space, page);
    if walk.level != 0 {
        return true;
    }
    let State::Swapped(slot) = walk.entry().state() else { return true };
    if !engine.swap.is_worth_reading(slot) || !engine.swap.is_on_device(slot) {
        return true;
    }
    let mut block = engine.frames.alloc(Order::ZERO);
    if block.is_none() && room == Room::Made {
        reclaim(engine, MAKE_WAY, Reclaimer::Direct);
        engine.poll_transfers();
        block = engine.frames.alloc(Order::ZERO);
    }
    let Some(block) = block else { return false };
    // The entry is not ours: the slot may be another page's by now, or nobody's.
    match engine.swap.begin_read_ahead(&engine.frames, slot, block.frame) {
        Begun::Reading(shadow) => {
            engine.counters.count(Counter::ReadAhead);
            engine.admit(block.frame, shadow);
            run.push(slot, block.frame);
        }
        Begun::Not => engine.frames.free(block.frame, Order::ZERO).expect("just allocated"),
    }
    true
}
