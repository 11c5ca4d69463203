//! Reading pages before anybody faults on them.
//!
//! The frames of these pages go into the swap cache under READING, and neighbours on the device go in one
//! transfer. The entries stay as they are. So an unwanted page is simply evicted: nothing has to be undone.
//! Pages read ahead of a fault use free frames only. If there are none left, the rest of the window is
//! skipped.
//!
//! **Frames in a row.** A transfer to frames that lie in a row is one segment for the device; to frames from
//! anywhere, it is one segment a page, and takes a virtual disk three times as long. So frames are taken as
//! blocks, as long as the pages to come, and split. If there is no such block, a quarter of it is tried.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Figure, ReadaheadWindow, SpaceState, Waiter, in_place};
use crate::frame::{Block, PinnedFrame, SplitBlock};
use crate::io::Urgency;
use crate::page_cache::Inode;
use crate::policy::Arrival;
use crate::reclaim::{Reclaimer, reclaim};
use crate::region::{FilePart, Region};
use crate::swap::{Brought, WRITE_BATCH, Wanted};
use crate::sync::Shared;
use crate::table::entry::State;
use crate::table::{PageNumberRange, Walk};
use crate::units::{Order, PAGE_BYTES, PageNumber, StoredPage, SwapSlot};

/// The order of the longest row of frames: that of the longest transfer.
const LONGEST_ROW: u8 = {
    let order = WRITE_BATCH.ilog2() as u8;
    if order < Order::MAX.0 { order } else { Order::MAX.0 }
};
/// One call of `prefetch` reads at most one in this many pages of the budget.
const PREFETCH_SHARE: u64 = 4;
/// Frames that `prefetch` makes room for at once.
const MAKE_WAY: u64 = 64;

/// Reads that are collected while their slots follow each other.
struct ReadAheadRun<'e> {
    engine: &'e Engine,
    first: StoredPage,
    frames: SmallVec<[PinnedFrame; WRITE_BATCH]>,
    /// Pages to be read ahead that were collected so far.
    started: u64,
    /// One of the frames is for a page that a fault wants.
    has_wanted: bool,
    /// The device was full, so more reads are useless.
    is_refused: bool,
    /// Pages to be read ahead for which the device had no room.
    refused: u64,
    /// The pages are for the other side of a translation, and come along with a wanted page.
    along: bool,
    /// The file that the last page was of.
    inode: Option<Shared<Inode>>,
    /// Free frames in a row, for the next pages.
    row: Option<SplitBlock>,
    /// At most this many pages are still to be read.
    to_come: u32,
    /// The largest order of a block for a row. It becomes less if there is no such block.
    most_order: u8,
}

impl<'e> ReadAheadRun<'e> {
    fn new(engine: &'e Engine, space: &SpaceState) -> Self {
        Self {
            engine,
            first: SwapSlot(0).stored(),
            frames: SmallVec::new(),
            started: 0,
            has_wanted: false,
            is_refused: false,
            refused: 0,
            along: space.translation.is_some(),
            inode: None,
            row: None,
            to_come: 0,
            most_order: LONGEST_ROW,
        }
    }

    /// Begins with the page that a fault wants.
    fn with_wanted(engine: &'e Engine, space: &SpaceState, page: StoredPage, pin: PinnedFrame) -> Self {
        let mut run = Self::new(engine, space);
        run.first = page;
        run.frames.push(pin);
        run.has_wanted = true;
        run
    }

    /// Adds a frame under READING, with the pin that is the transfer's.
    fn push(&mut self, page: StoredPage, pin: PinnedFrame) {
        self.started += 1;
        let is_short = !self.frames.is_empty() && self.frames.len() < WRITE_BATCH;
        if is_short && page.is_followed_by(self.first) {
            self.first = page;
            return self.frames.insert(0, pin);
        }
        if !is_short || !self.first.plus(self.frames.len() as u32 - 1).is_followed_by(page) {
            self.submit();
            self.first = page;
        }
        self.frames.push(pin);
    }

    /// Submits the collected frames to the device. Pages for which it has no room are skipped.
    fn submit(&mut self) {
        if !self.frames.is_empty() {
            let pages = self.frames.len() as u64 - u64::from(std::mem::take(&mut self.has_wanted));
            let frames = std::mem::take(&mut self.frames);
            if !self.engine.start_read(self.first, frames, Urgency::Queued) {
                self.started -= pages;
                self.is_refused = true;
                self.refused += pages;
            }
        }
    }
}

/// Whether `add` makes room for pages read ahead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Pages take free frames only.
    Free,
    /// Clean pages are evicted for them, and writes of dirty pages are started.
    Made,
}

/// Queues reads of the page that a fault wants, and of the pages of a window. The caller starts them.
pub(super) fn read_with(
    engine: &Engine,
    space: &SpaceState,
    (page, pin): (StoredPage, PinnedFrame),
    window: ReadaheadWindow,
    region: &Region,
) {
    ReadAheadRun::with_wanted(engine, space, page, pin).read(space, window, region);
}

/// Queues reads of the pages of a window. The caller starts them.
pub(super) fn read_ahead(engine: &Engine, space: &SpaceState, window: ReadaheadWindow, region: &Region) {
    ReadAheadRun::new(engine, space).read(space, window, region);
}

impl ReadAheadRun<'_> {
    /// Queues reads of what was collected, and of the window's pages that are out, while there are free
    /// frames. Tells the space's streams how many reads the devices took.
    fn read(mut self, space: &SpaceState, window: ReadaheadWindow, region: &Region) {
        let table = &self.engine.table;
        let mut reached = 0;
        for page in window.pages() {
            self.to_come = window.count - reached;
            if self.is_refused
                || !region.contains(page)
                || !add(&mut self, &table.walk(space.id, page), (page, region), Room::Free)
            {
                break;
            }
            reached += 1;
        }
        self.submit();
        let reached = reached - self.refused as u32;
        space.streams.note_read(window, reached, self.started as u32);
    }
}

/// Starts to read the pages of a range that are out, and returns how many. At most a part of the budget, and
/// of the space's quota, is used, so that these pages do not push each other out.
pub(crate) fn prefetch(engine: &Engine, space: &SpaceState, range: PageNumberRange) -> u64 {
    engine.poll_transfers();
    let resident = engine.space_use.get(space.id, Figure::Resident);
    let under_quota = space.quota.pages().map_or(u64::MAX, |quota| quota.saturating_sub(resident));
    let most = (engine.budget.limit_pages() / PREFETCH_SHARE).min(under_quota);
    let mut run = ReadAheadRun::new(engine, space);
    run.to_come = (range.end.0 - range.start.0).min(most) as u32;
    for walk in engine.table.walks(space.id, range) {
        if run.is_refused || run.started >= most || !add_swapped(&mut run, &walk, Room::Made) {
            break;
        }
    }
    let mut page = range.start;
    while page < range.end
        && let Some(region) = space.regions.find_at_or_after(page)
    {
        let end = region.end.min(range.end);
        if let Some(part) = region.options.file {
            let mut pages = (page.max(region.start).0..end.0).map(PageNumber);
            let goes_on = pages.all(|page| {
                !run.is_refused && run.started < most && add_of_file(&mut run, part, page, Room::Made)
            });
            if !goes_on {
                break;
            }
        }
        page = end.max(page.plus(1));
    }
    run.submit();
    engine.flush_devices();
    run.started
}

/// Adds a page of a region, if it is out. `walk` leads to it. Returns `false` if there is no frame for it.
fn add(
    run: &mut ReadAheadRun<'_>,
    walk: &Walk<'_>,
    (page, region): (PageNumber, &Region),
    room: Room,
) -> bool {
    match region.options.file {
        Some(part) if walk.entry().is_empty() => add_of_file(run, part, page, room),
        _ => add_swapped(run, walk, room),
    }
}

/// Adds the page of a file, if it has no frame. Returns `false` if there is no frame for it, or it is
/// behind the end.
fn add_of_file(run: &mut ReadAheadRun<'_>, part: FilePart, page: PageNumber, room: Room) -> bool {
    let (engine, at) = (run.engine, part.page_at(page));
    if run.inode.as_ref().is_none_or(|inode| inode.id != part.file) {
        run.inode = engine.page_cache.file(part.file);
    }
    let Some(inode) = run.inode.clone() else { return false };
    if at >= inode.pages() {
        return false;
    }
    let Ok(stored) = engine.page_cache.number(&inode, at) else { return false };
    if let Some(pin) = engine.find_in_file(stored) {
        engine.unpin(pin);
        return true;
    }
    let Some(block) = frame_for(run, room) else { return false };
    let begun = engine.page_cache.begin_read_of(&engine.frames, &inode, stored, block);
    let Some((pin, shadow)) = engine.keep_reading(begun) else { return true };
    engine.counters.count(Counter::ReadAhead);
    engine.admit(pin.frame(), Arrival::of(shadow, false));
    if at * PAGE_BYTES as u64 >= inode.backed_bytes() {
        engine.frames.bytes().zero(pin.frame().home_offset(), PAGE_BYTES);
        engine.end_read_of(stored, pin, None);
    } else {
        run.push(stored, pin);
    }
    true
}

impl ReadAheadRun<'_> {
    /// Returns a free frame: the next of the row, or the first of another row, as long as the pages to come.
    fn free_frame(&mut self) -> Option<Block> {
        let to_come = self.to_come.max(1);
        self.to_come = to_come - 1;
        if let Some(block) = self.row.as_mut().and_then(SplitBlock::next) {
            return Some(block);
        }
        let frames = &self.engine.frames;
        let mut order = self.most_order.min(to_come.ilog2() as u8);
        while order > 0 {
            // A longer search would empty the lists of other CPUs.
            if let Some(block) = frames.alloc_if_at_hand(Order(order)) {
                let mut row = frames.split_block(block);
                let first = row.next();
                self.row = Some(row);
                return first;
            }
            order = order.saturating_sub(2);
            self.most_order = order;
        }
        frames.alloc(Order::ZERO)
    }
}

impl Drop for ReadAheadRun<'_> {
    fn drop(&mut self) {
        self.row.take().into_iter().flatten().for_each(|block| self.engine.frames.give_back(block));
    }
}

/// Returns a frame for a page that is read ahead.
fn frame_for(run: &mut ReadAheadRun<'_>, room: Room) -> Option<Block> {
    let engine = run.engine;
    let mut block = run.free_frame();
    if block.is_none() && room == Room::Made {
        // Other threads may wait for the collected pages, so these are submitted before room is made.
        run.submit();
        engine.flush_devices();
        in_place(reclaim(engine, MAKE_WAY, Reclaimer::Direct, &mut Waiter::never(engine)));
        engine.poll_transfers();
        block = engine.frames.alloc(Order::ZERO);
    }
    block
}

/// Adds the page of an entry that says Swapped, if it is out. Returns `false` if there is no frame for it.
fn add_swapped(run: &mut ReadAheadRun<'_>, walk: &Walk<'_>, room: Room) -> bool {
    let engine = run.engine;
    let State::Swapped(slot) = walk.entry().state() else { return true };
    if !engine.swap.cache.is_out(slot) || !engine.swap.is_on_device(slot) {
        return true;
    }
    let Some(block) = frame_for(run, room) else { return false };
    // The entry may change at any time, so the slot may have another page by now, or none.
    let Some((pin, shadow)) = engine.begin_read_ahead(slot.stored(), block) else { return true };
    let frame = pin.frame();
    engine.counters.count(Counter::ReadAhead);
    engine.admit(frame, Arrival::of(shadow, run.along));
    // Ask again where the bytes are, because the first answer was a guess. While the frame is in the cache,
    // the slot cannot get other bytes, but a copy in the pool may be dropped.
    match engine.swap.bring(&engine.frames, slot, frame, Wanted::No) {
        Brought::OnDevice => run.push(slot.stored(), pin),
        Brought::Unpacked | Brought::Filled => engine.end_read_of(slot.stored(), pin, None),
        Brought::Corrupt => engine.end_read_of(slot.stored(), pin, Some(engine.swap.corrupt(slot))),
        Brought::Gone => engine.end_read_of(slot.stored(), pin, Some(engine.swap.freed(slot))),
    }
    true
}
