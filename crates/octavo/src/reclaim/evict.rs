//! A batch of cold frames goes out through the swap cache.
//!
//! ```text
//! isolated, pinned
//!   │ accessed lately, or pinned by others ──────────────► back on a list
//!   │ huge: split, its frames come by again ─────────────► back on a list
//!   ▼
//! slot allocated, in the swap cache           from here on a fault finds it there
//!   ▼
//! each entry: Present ──► Swapped(slot)       changed by others meanwhile: left alone
//!   ▼
//! dirty: WRITEBACK, written, ended            failed: dirty again, its entries Present again, its slot
//!   ▼                                         given up ─────────────► back on a list
//! one use (the cache), one pin (ours), clean: freed;  else ──────► back on a list
//! ```

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, split_leaf};
use crate::lru::{Isolated, List};
use crate::rmap::Owner;
use crate::swap::{self, Evicted, WRITE_BATCH};
use crate::table::entry::{Entry, State};
use crate::table::translation::{Installed, Run};
use crate::units::{FrameId, Order, SwapSlot};

/// What came of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) freed: u64,
    /// No slot, or the device failed.
    pub(crate) obstructed: bool,
}

type Going = SmallVec<[(SwapSlot, FrameId); WRITE_BATCH]>;

/// An entry that a batch made Swapped, and what it was: to be put back where the device fails.
#[derive(Clone, Copy, Debug)]
struct Unmapped {
    slot: SwapSlot,
    frame: FrameId,
    owner: Owner,
    before: Entry,
    now: Entry,
}

/// As many as fit: the entries of frames with more owners than that stay Swapped, which is right, if slower.
type AllUnmapped = SmallVec<[Unmapped; 2 * WRITE_BATCH]>;

/// Moves out what can go of a batch that the caller isolated and pinned. Takes over the pins.
pub(crate) fn evict_batch(engine: &Engine, batch: &Isolated) -> Outcome {
    let mut outcome = Outcome::default();
    let mut candidates = Isolated::new();
    for &frame in batch {
        match judge(engine, frame) {
            Verdict::Evict if engine.swap.is_available() => candidates.push(frame),
            Verdict::Evict | Verdict::Split if !engine.swap.is_available() => {
                outcome.obstructed = true;
                keep(engine, frame, List::Inactive);
            }
            Verdict::Keep(list) => keep(engine, frame, list),
            Verdict::Evict => unreachable!("guarded above"),
            Verdict::Split => {
                split_block_of(engine, frame);
                keep(engine, frame, List::Inactive);
            }
        }
    }
    let mut going = enter_cache(engine, &candidates, &mut outcome);
    let mut unmapped = AllUnmapped::new();
    for &(slot, frame) in &going {
        unmap_owners(engine, slot, frame, &mut unmapped);
    }
    write_dirty(engine, &mut going, &unmapped, &mut outcome);
    for (_, frame) in going {
        match engine.swap.try_evict(&engine.frames, frame) {
            Evicted::Freed => {
                outcome.freed += 1;
                engine.free_last(frame);
            }
            Evicted::Kept => {
                keep(engine, frame, List::Inactive);
            }
        }
    }
    outcome
}

enum Verdict {
    Evict,
    Keep(List),
    Split,
}

fn judge(engine: &Engine, frame: FrameId) -> Verdict {
    let holds = engine.frames.words(frame).holds.load();
    if holds.pins() > 1 || holds.is_writeback() || holds.is_reading() {
        return Verdict::Keep(List::Inactive);
    }
    if test_and_clear_accessed(engine, frame) {
        engine.counters.count(Counter::PageActivated);
        return Verdict::Keep(List::Active);
    }
    if engine.frames.words(frame).order() == Order::ZERO { Verdict::Evict } else { Verdict::Split }
}

/// Puts a frame back that does not go after all.
fn keep(engine: &Engine, frame: FrameId, list: List) {
    // What was unmapped while it was on its way is left to us.
    let orphan = engine.swap.forget_orphan(&engine.frames, frame);
    engine.release_orphan(orphan);
    engine.lru.put_back(&engine.frames, frame, list);
    engine.drop_pin(frame);
}

/// Whether any owner's entry was accessed since the last look.
pub(super) fn test_and_clear_accessed(engine: &Engine, frame: FrameId) -> bool {
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
    let mut fresh = SmallVec::<[(Option<Owner>, FrameId); WRITE_BATCH]>::new();
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
            rest.iter().for_each(|(_, frame)| keep(engine, *frame, List::Inactive));
            break;
        };
        let (now, later) = rest.split_at(run.count as usize);
        for (index, &(_, frame)) in now.iter().enumerate() {
            let slot = SwapSlot(run.first.0 + index as u32);
            if engine.swap.insert(&engine.frames, slot, frame) {
                going.push((slot, frame));
            } else {
                engine.swap.free_unused(slot);
                engine.drop_pin(frame);
            }
        }
        rest = later;
    }
    going
}

/// Makes every entry that shows the frame lead to its slot instead.
fn unmap_owners(engine: &Engine, slot: SwapSlot, frame: FrameId, unmapped: &mut AllUnmapped) {
    for owner in engine.rmap.owners(engine.frames.words(frame)) {
        let walk = engine.table.walk(owner.space, owner.page);
        if walk.entry().state() != State::Present(frame) || walk.level != 0 || !walk.links_hold() {
            continue;
        }
        // Counted first: the entry must never lead to a slot that may go. Refused: the frame left the cache.
        if !engine.swap.add_reference(slot, frame) {
            return;
        }
        if let Some(now) = change_to_swapped(engine, &walk, owner, slot, frame) {
            if unmapped.len() < unmapped.inline_size() {
                unmapped.push(Unmapped { slot, frame, owner, before: walk.entry(), now });
            }
            engine.rmap.remove(engine.frames.words(frame), owner);
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
) -> Option<Entry> {
    let (word, seen) = (walk.word(), walk.entry());
    let Some(translation) = engine.translation(owner.space) else {
        // Only the accessed mark may have changed: then the page is in use, and stays.
        let now = seen.to_swapped(slot);
        return word.change(seen, now).ok().map(|()| now);
    };
    let busy = seen.to_busy();
    word.change(seen, busy).ok()?;
    let done = translation.remove(Run { page: owner.page, frame, count: 1 }) == Installed::Done;
    let now = if done { busy.to_swapped(slot) } else { busy.to_present_again(seen) };
    engine.publish(word, now);
    done.then_some(now)
}

/// Shows a frame again that could not be written, as if it had never been on its way, and gives its slot up: another
/// place on the device may do, and this one may never have been there.
fn put_back_unwritten(engine: &Engine, frame: FrameId, unmapped: &AllUnmapped) {
    let words = engine.frames.words(frame);
    for gone in unmapped.iter().filter(|gone| gone.frame == frame) {
        let walk = engine.table.walk(gone.owner.space, gone.owner.page);
        // Exactly the word that was put there: nothing has happened to the page since, its permissions included. A
        // window would have to be told; its pages are faulted in again instead.
        if walk.entry() != gone.now || !walk.links_hold() || engine.translation(gone.owner.space).is_some() {
            continue;
        }
        let added = words.uses.try_add();
        assert!(added, "a cached frame is in use");
        engine.rmap.add(words, gone.owner);
        if walk.word().change(gone.now, gone.now.to_present_again(gone.before)).is_ok() {
            let orphan = engine.swap.drop_reference(&engine.frames, gone.slot);
            engine.release_orphan(orphan);
        } else {
            engine.disown(frame, gone.owner);
        }
    }
    let orphan = engine.swap.detach(&engine.frames, frame);
    engine.release_orphan(orphan);
}

/// Writes what is dirty, neighbours together. Frames that cannot be written leave `going`.
fn write_dirty(engine: &Engine, going: &mut Going, unmapped: &AllUnmapped, outcome: &mut Outcome) {
    going.sort_by_key(|(slot, _)| *slot);
    let mut writing = Going::new();
    going.retain(|&mut (slot, frame)| {
        if !engine.frames.words(frame).holds.load().is_dirty() {
            return true;
        }
        let started = engine.swap.start_writeback(&engine.frames, slot, frame);
        if started {
            writing.push((slot, frame));
        } else {
            // Somebody pinned it just now, or it was faulted back and left the cache.
            keep(engine, frame, List::Inactive);
        }
        started
    });
    let mut rest = writing.as_slice();
    while let Some(&(first, _)) = rest.first() {
        let run = rest
            .iter()
            .enumerate()
            .take_while(|(index, (slot, _))| slot.0 == first.0 + *index as u32)
            .count();
        let frames: Isolated = rest[..run].iter().map(|(_, frame)| *frame).collect();
        let written = engine.swap.write(&engine.frames, first, &frames).is_ok();
        engine.counters.add(if written { Counter::SwapOut } else { Counter::SwapWriteError }, run as u64);
        outcome.obstructed |= !written;
        for frame in frames {
            if engine.frames.words(frame).holds.end_writeback(written) {
                engine.wake_io(frame);
            }
            if !written {
                put_back_unwritten(engine, frame, unmapped);
            }
        }
        rest = &rest[run..];
    }
}
