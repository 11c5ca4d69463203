//! A batch of cold frames goes out through the swap cache.
//!
//! ```text
//! isolated, pinned
//!   │ pinned by others, or under I/O ────────────────────► back on a list
//!   │ huge: split; its frames go to a cluster of their own, or come by again
//!   ▼
//! slot allocated, in the swap cache           from here on a fault finds it there
//!   ▼
//! each entry: Present ──► Swapped(slot)       changed by others meanwhile: left alone
//!   ▼
//! dirty: WRITEBACK. A repeated word, or packed: that was all
//!   │        else on its way to the device; the rest is the completion's   (engine/transfers.rs)
//!   ▼                                         failed: dirty again, its entry Present again, its slot
//!   ▼                                         given up ─────────────► back on a list
//! one use (the cache), one pin, clean: freed;  else ──────────────► back on a list
//! ```
//!
//! Nobody waits for the device here: a batch that is on its way is counted as started.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Figure, split_leaf};
use crate::frame::{PageIs, PinnedFrame};
use crate::lru::{ISOLATED, Isolated, List, Look};
use crate::reclaim::compact::pin_page;
use crate::rmap::Owner;
use crate::swap::{self, DeviceView, Pool, Started, Weights};
use crate::table::SpaceId;
use crate::table::entry::State;
use crate::table::translation::{Installed, Run};
use crate::units::{CHUNK_FRAMES, FrameId, Order, SwapSlot};

/// What came of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Frames that are free now.
    pub(crate) freed: u64,
    /// Frames on their way out: free when they are written, if nobody comes for them.
    pub(crate) started: u64,
    /// There was no slot.
    pub(crate) obstructed: bool,
    /// A device had no room for more transfers, and pages stayed. The end of a write is the time to try again.
    pub(crate) full: bool,
}

/// Which pages may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evict {
    All,
    /// Those that need not be written.
    Clean,
}

type Going = SmallVec<[(SwapSlot, FrameId); ISOLATED]>;

/// Moves out what can go of a batch that the caller isolated and pinned. Takes over the pins.
pub(crate) fn evict_batch(engine: &Engine, batch: &Isolated) -> Outcome {
    evict(engine, batch, Evict::All)
}

/// As [`evict_batch`].
pub(crate) fn evict(engine: &Engine, batch: &Isolated, what: Evict) -> Outcome {
    let mut outcome = Outcome::default();
    let mut candidates = Isolated::new();
    for &frame in batch {
        match judge(engine, frame) {
            Verdict::Keep(list) => engine.keep(frame, list),
            _ if must_stay(engine, frame, what) => {
                outcome.obstructed = true;
                engine.keep(frame, List::Inactive);
            }
            Verdict::Evict => candidates.push(frame),
            Verdict::Split => evict_block(engine, frame, &mut outcome),
        }
    }
    let going = enter_cache(engine, &candidates, &mut outcome);
    send_out(engine, going, &mut outcome);
    outcome
}

/// Whether a page, or a block, has nowhere to go just now.
fn must_stay(engine: &Engine, frame: FrameId, what: Evict) -> bool {
    let is_dirty = || engine.frames.words(frame).holds.load().is_dirty();
    !engine.swap.is_available() || what == Evict::Clean && is_dirty()
}

/// Frames in the swap cache, pinned: their entries become Swapped, and what is dirty is sent on.
fn send_out(engine: &Engine, mut going: Going, outcome: &mut Outcome) {
    for &(slot, frame) in &going {
        unmap_owners(engine, slot, frame);
    }
    put_away_dirty(engine, &mut going, outcome);
    outcome.freed += engine.evict_or_keep(&going);
}

/// A block of 2 MiB goes to a slot of order 9: a whole cluster, so that its pages lie together on the device, and come back
/// together. Without one it is only split, and its pages come by again.
fn evict_block(engine: &Engine, head: FrameId, outcome: &mut Outcome) {
    let first = engine.swap.allocate_huge();
    if first.is_none() {
        engine.counters.count(Counter::HugeSwapOutFallback);
    }
    split_block_of(engine, head);
    let is_split = engine.frames.words(head).order() == Order::ZERO;
    engine.keep(head, List::Inactive);
    let Some(first) = first else { return };
    if is_split {
        engine.counters.count(Counter::HugeSwapOut);
    }
    let mut going = Going::new();
    for index in 0..CHUNK_FRAMES {
        let (slot, frame) = (SwapSlot(first.0 + index), head.plus(index));
        let held = is_split && pin_page(engine, frame);
        // Asked of a frame in hand: nobody else gives it a slot now.
        let goes = held
            && swap::slot_of(&engine.frames, frame).is_none()
            && engine.frames.words(frame).order() == Order::ZERO;
        if held && !goes {
            engine.keep(frame, List::Inactive);
        }
        if goes {
            enter_run(engine, slot, [frame], &mut going);
        } else {
            engine.swap.free_unused(&engine.frames, slot);
        }
        if going.len() == going.inline_size() {
            send_out(engine, std::mem::take(&mut going), outcome);
        }
    }
    send_out(engine, going, outcome);
}

enum Verdict {
    Evict,
    Keep(List),
    Split,
}

fn judge(engine: &Engine, frame: FrameId) -> Verdict {
    if engine.frames.words(frame).holds.load().is_held_by_others(1) {
        return Verdict::Keep(List::Inactive);
    }
    if engine.frames.words(frame).order() == Order::ZERO { Verdict::Evict } else { Verdict::Split }
}

/// What is to be seen of a candidate. Clears its mark.
pub(super) fn look(engine: &Engine, frame: FrameId) -> Look {
    if engine.frames.words(frame).holds.load().is_held_by_others(1) {
        return Look::Busy;
    }
    if test_and_clear_accessed(engine, frame) { Look::Accessed } else { Look::Unused }
}

/// Whether any owner's entry was accessed since the last look.
fn test_and_clear_accessed(engine: &Engine, frame: FrameId) -> bool {
    let mut accessed = false;
    for owner in engine.rmap.owners(engine.frames.words(frame)) {
        let walk = engine.table.walk(owner.space, owner.page);
        let seen = walk.entry();
        if seen.state() == State::Present(frame) && seen.is_accessed() {
            // A lost race means that it is in use all the more.
            let _ = walk.word().change(seen, seen.without_accessed());
            accessed = true;
        }
    }
    accessed
}

fn split_block_of(engine: &Engine, frame: FrameId) {
    if let Some(&Owner { space, page }) = engine.rmap.owners(engine.frames.words(frame)).first() {
        let walk = engine.table.walk(space, page);
        if walk.level == 1 && walk.entry().state() == State::Present(frame) && walk.links_hold() {
            // Whatever comes of it, the frame is put back, and looked at again.
            let _ = split_leaf(engine, space, page, &walk, 1);
        }
    }
}

/// Gives each candidate a slot, in runs, and puts it into the swap cache.
fn enter_cache(engine: &Engine, candidates: &[FrameId], outcome: &mut Outcome) -> Going {
    let mut going = Going::new();
    let mut fresh = SmallVec::<[(Option<Owner>, FrameId); ISOLATED]>::new();
    for &frame in candidates {
        match swap::slot_of(&engine.frames, frame) {
            Some(slot) => going.push((slot, frame)),
            None => {
                let owner = engine.rmap.owners(engine.frames.words(frame)).first().copied();
                fresh.push((owner, frame));
            }
        }
    }
    // Neighbours in a space become neighbours on the device. By owners as they were: they may change meanwhile.
    fresh.sort_unstable_by_key(|(owner, _)| owner.map(|owner| (owner.space, owner.page)));
    let mut rest = fresh.as_slice();
    while !rest.is_empty() {
        let Some(run) = engine.swap.allocate(rest.len() as u32) else {
            outcome.obstructed = true;
            rest.iter().for_each(|(_, frame)| engine.keep(*frame, List::Inactive));
            break;
        };
        let (now, later) = rest.split_at(run.count as usize);
        enter_run(engine, run.first, now.iter().map(|(_, frame)| *frame), &mut going);
        rest = later;
    }
    going
}

/// Puts frames into the cache at consecutive slots of their own. Those found dying are let go.
fn enter_run(engine: &Engine, first: SwapSlot, run: impl IntoIterator<Item = FrameId>, going: &mut Going) {
    let mut dying = SmallVec::<[(SwapSlot, FrameId); 8]>::new();
    engine.swap.insert_run(&engine.frames, first, run, |slot, frame, inserted| {
        if inserted { going.push((slot, frame)) } else { dying.push((slot, frame)) }
    });
    for (slot, frame) in dying {
        engine.swap.free_unused(&engine.frames, slot);
        engine.unpin(PinnedFrame::counted(frame));
    }
}

/// Makes every entry that shows the frame lead to its slot instead.
fn unmap_owners(engine: &Engine, slot: SwapSlot, frame: FrameId) {
    for owner in engine.rmap.owners(engine.frames.words(frame)) {
        let walk = engine.table.walk(owner.space, owner.page);
        if walk.entry().state() != State::Present(frame) || walk.level != 0 || !walk.links_hold() {
            continue;
        }
        // Counted first: the entry must never lead to a slot that may go. Refused: the frame left the cache.
        if !engine.swap.add_reference(&engine.frames, slot, frame) {
            return;
        }
        if change_to_swapped(engine, &walk, owner, slot, frame) {
            engine.rmap.remember(engine.frames.words(frame), owner);
            engine.space_use.subtract(owner.space, Figure::Resident, 1);
            engine.space_use.add(owner.space, Figure::SwapOut, 1);
            let left = engine.frames.words(frame).uses.remove();
            debug_assert!(left > 0, "the cache is a use");
        } else {
            let orphan = engine.swap.drop_reference(&engine.frames, slot);
            engine.release_orphan(orphan);
        }
    }
}

fn change_to_swapped(
    engine: &Engine,
    walk: &crate::table::Walk<'_>,
    owner: Owner,
    slot: SwapSlot,
    frame: FrameId,
) -> bool {
    let (word, seen) = (walk.word(), walk.entry());
    let Some(translation) = engine.translation(owner.space) else {
        // Only the accessed mark may have changed: then the page is in use, and stays.
        return word.change(seen, seen.to_swapped(slot)).is_ok();
    };
    let busy = seen.to_busy();
    if word.change(seen, busy).is_err() {
        return false;
    }
    let done = translation.remove(Run { page: owner.page, frame, count: 1 }) == Installed::Done;
    engine.publish(word, if done { busy.to_swapped(slot) } else { busy.to_present_again(seen) });
    done
}

/// Sends on what is dirty: into a word or the pool at once, or on its way to the device, neighbours together. Frames that are
/// under way, or that cannot go, leave `going`.
fn put_away_dirty(engine: &Engine, going: &mut Going, outcome: &mut Outcome) {
    going.sort_by_key(|(slot, _)| *slot);
    let (mut away, mut writing) = (Going::new(), Going::new());
    let packing = engine.swap.pool().map(|pool| Packing::new(engine, pool));
    let has_room = packing.as_ref().is_some_and(|packing| !packing.pool.is_crowded());
    let together = |(_, a): &(SwapSlot, FrameId), (_, b): &(SwapSlot, FrameId)| {
        packing.is_none() || former_space(engine, *a) == former_space(engine, *b)
    };
    for run in going.chunk_by(together) {
        let mut tries = packing.as_ref().map(|packing| packing.weigh(engine, run));
        for &(slot, frame) in run {
            let holds = engine.frames.words(frame).holds.load();
            let tries = tries.as_mut().filter(|tries| tries.left > 0 && !holds.is_plain());
            if !holds.is_dirty() {
                if let Some(tries) = tries.filter(|_| has_room && engine.swap.is_on_device(slot)) {
                    pack_clean(engine, slot, frame, tries.weights);
                    tries.left -= 1;
                }
                away.push((slot, frame));
                continue;
            }
            let put = put_away(engine, slot, frame, tries.as_ref().map(|tries| tries.weights));
            if let Some(tries) = tries.filter(|_| put != PutAway::Refused) {
                tries.left -= 1;
            }
            match put {
                PutAway::Done => away.push((slot, frame)),
                PutAway::ToBeWritten => writing.push((slot, frame)),
                PutAway::Refused => {}
            }
        }
    }
    *going = away;
    let started = write_out(engine, &writing);
    outcome.started += started;
    outcome.full |= started < writing.len() as u64;
    engine.swap.flush();
}

/// A page that is on its area, and not changed since, is packed as well where that pays: it came back once. Where the pool does
/// not take it, it is where it was. Not by a crowded pool: for it another would be written that was not.
fn pack_clean(engine: &Engine, slot: SwapSlot, frame: FrameId, weights: &Weights) {
    let started = engine.swap.start_writeback(&engine.frames, slot, frame, PageIs::Clean);
    if started == Started::Yes {
        engine.swap.pack(&engine.frames, slot, frame, weights);
    }
    let is_awaited = match started {
        Started::Yes => engine.swap.end_writeback(&engine.frames, slot, frame, true),
        other => other == Started::RefusedAndAwaited,
    };
    if is_awaited {
        engine.wake_io(frame);
    }
}

/// The space whose page a frame on its way out is, if it is one's alone.
fn former_space(engine: &Engine, frame: FrameId) -> Option<SpaceId> {
    engine.rmap.former_owner(engine.frames.words(frame)).map(|owner| owner.space)
}

/// The pool, and how the devices do, to a batch.
struct Packing<'a> {
    pool: &'a Pool,
    device: DeviceView,
}

/// What the pages of one space in a batch may try.
struct Tries<'a> {
    weights: &'a Weights,
    left: u32,
}

impl<'a> Packing<'a> {
    fn new(engine: &Engine, pool: &'a Pool) -> Self {
        let ended_pages = engine.transfers.ended_pages();
        Self { pool, device: pool.device_view(ended_pages, engine.transfers.writing_pages()) }
    }

    /// For pages of one space.
    fn weigh(&self, engine: &Engine, run: &[(SwapSlot, FrameId)]) -> Tries<'a> {
        let weights = self.pool.weights(former_space(engine, run[0].1));
        Tries { weights, left: self.pool.weigh(weights, run.len() as u32, &self.device) }
    }
}

/// What came of a dirty page of the swap cache that was to be put away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutAway {
    /// Into a word, or the pool: its frame is clean.
    Done,
    /// It belongs on its area, and its frame is under WRITEBACK.
    ToBeWritten,
    /// Somebody pinned it just now, or it was faulted back and left the cache: it was kept.
    Refused,
}

/// Starts the writeback of a dirty page, and ends it where a word or, with the weights by which it may be tried, the pool takes
/// it.
pub(super) fn put_away(
    engine: &Engine,
    slot: SwapSlot,
    frame: FrameId,
    weights: Option<&Weights>,
) -> PutAway {
    let started = engine.swap.start_writeback(&engine.frames, slot, frame, PageIs::Dirty);
    if started != Started::Yes {
        if started == Started::RefusedAndAwaited {
            engine.wake_io(frame);
        }
        engine.keep(frame, List::Inactive);
        return PutAway::Refused;
    }
    if engine.swap.put_away(&engine.frames, slot, frame, weights) {
        return PutAway::ToBeWritten;
    }
    if engine.swap.end_writeback(&engine.frames, slot, frame, true) {
        engine.wake_io(frame);
    }
    PutAway::Done
}

/// Starts to write frames under WRITEBACK whose pages belong on their area, sorted by slot; says how many. Takes over their
/// pins. Fewer: a device is full, and the others stay in memory.
pub(super) fn write_out(engine: &Engine, writing: &[(SwapSlot, FrameId)]) -> u64 {
    let neighbours = writing.chunk_by(|(slot, _), (next, _)| next.0 == slot.0 + 1);
    let mut started = 0;
    for run in neighbours.flat_map(|run| run.chunks(engine.swap.write_batch())) {
        let frames: Isolated = run.iter().map(|(_, frame)| *frame).collect();
        started += engine.start_write(run[0].0, &frames);
    }
    started as u64
}
