//! Eviction: a batch of cold frames goes out to the stores of their pages.
//!
//! ```text
//! isolated, pinned
//!   │ pinned by others, or under I/O ────────────────────► back on a list
//!   │ away: it comes home first                                (reclaim/away.rs)
//!   │ huge: split; its frames go to a cluster of their own, or come by again
//!   ▼
//! kept by no store yet: swap takes it in      from here on a fault finds it there
//!   ▼
//! each entry: Present ──► what its store says  changed by others meanwhile: left alone
//!   ▼
//! dirty: WRITEBACK. The store puts it away     swap: done, if it repeats a word or is packed
//!   │        else on its way to the device; the completion does the rest   (engine/transfers.rs)
//!   ▼                                         failed: dirty again, its entry Present again, its place
//!   ▼                                         given up ─────────────► back on a list
//! one use (the store), one pin, clean: freed;  else ──────────────► back on a list
//! ```
//!
//! Nobody waits for the device here. A batch that is on its way counts as started.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::{Engine, Figure, split_leaf};
use crate::lru::{ISOLATED, Isolated, IsolatedFrame, Look, Place};
use crate::reclaim::away::{Copies, come_home};
use crate::rmap::Owner;
use crate::store::{Going, PutAway};
use crate::table::entry::State;
use crate::units::{CHUNK_FRAMES, FrameId, Order, StoredPage};

/// The outcome of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Frames that are free now.
    pub(crate) freed: u64,
    /// Frames on their way out. Each becomes free when its write ends, unless a fault takes its page back.
    pub(crate) started: u64,
    /// There was no slot, or something holds pages back.
    pub(crate) obstructed: bool,
    /// A device had no room for more transfers, and pages stayed. Try again when a write ends.
    pub(crate) full: bool,
}

impl Outcome {
    /// Returns the frames that are free, and those on their way out.
    pub(crate) fn gone(self) -> u64 {
        self.freed + self.started
    }
}

/// The pages that may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evict {
    All,
    /// Pages that need no write.
    Clean,
}

/// Frames of a batch, or of a part of it.
pub(crate) type Candidates = SmallVec<[IsolatedFrame; ISOLATED]>;

/// Moves a batch's pages out, as far as they can go.
pub(crate) fn evict_batch(engine: &Engine, batch: Isolated) -> Outcome {
    evict(engine, batch, if engine.swap.is_silent() { Evict::Clean } else { Evict::All })
}

/// Moves out the pages that `what` allows.
pub(crate) fn evict(engine: &Engine, batch: Isolated, what: Evict) -> Outcome {
    let mut outcome = Outcome::default();
    let (mut candidates, mut away) = (Candidates::new(), Candidates::new());
    for frame in batch {
        match judge(engine, frame.frame()) {
            Verdict::Keep => engine.putback(frame, Place::Cold),
            Verdict::Evict if engine.frames.is_away(frame.frame()) => away.push(frame),
            Verdict::Split if engine.frames.is_away(frame.frame()) => {
                // A later scan meets the block's pages again.
                split_block_of(engine, frame.frame());
                outcome.obstructed |= engine.frames.words(frame.frame()).order() != Order::ZERO;
                engine.putback(frame, Place::Cold);
            }
            _ if must_stay(engine, frame.frame(), what) => {
                outcome.obstructed = true;
                engine.putback(frame, Place::Cold);
            }
            Verdict::Evict => candidates.push(frame),
            Verdict::Split => evict_block(engine, frame, &mut outcome),
        }
    }
    if !away.is_empty() {
        let came = come_home(engine, away, what == Evict::Clean);
        candidates.extend(came.home);
        outcome.freed += came.freed + pack_copies(engine, came.copies);
        outcome.obstructed |= came.obstructed;
    }
    let going = take_in(engine, candidates, &mut outcome);
    send_out(engine, going, &mut outcome);
    outcome
}

/// Returns whether a page, or a block, has nowhere to go just now.
fn must_stay(engine: &Engine, frame: FrameId, what: Evict) -> bool {
    let words = engine.frames.words(frame);
    let has_place = words.stored.page().is_some() || engine.swap.is_available();
    !has_place || what == Evict::Clean && words.holds.load().is_dirty()
}

/// Sends out frames that their stores know. Their entries become what the stores say. Dirty pages go on to
/// their stores.
pub(crate) fn send_out(engine: &Engine, going: Going, outcome: &mut Outcome) {
    for (page, frame) in &going {
        unmap_owners(engine, *page, frame.frame());
    }
    let away = put_away_dirty(engine, going, outcome);
    outcome.freed += engine.evict_or_putback(away);
}

/// Sends a block of 2 MiB to a slot of order 9. That is a whole cluster, so the block's pages lie together on
/// the device, and come back together. Without such a slot, the block is only split, and a later scan meets
/// its pages again.
fn evict_block(engine: &Engine, block: IsolatedFrame, outcome: &mut Outcome) {
    let head = block.frame();
    let first = engine.swap.allocate_huge();
    if first.is_none() {
        engine.counters.count(Counter::HugeSwapOutFallback);
    }
    split_block_of(engine, head);
    let is_split = engine.frames.words(head).order() == Order::ZERO;
    engine.putback(block, Place::Cold);
    let Some(first) = first else { return };
    if is_split {
        engine.counters.count(Counter::HugeSwapOut);
    }
    let mut going = Going::new();
    for index in 0..CHUNK_FRAMES {
        let (page, frame) = (first.plus(index), head.plus(index));
        let words = engine.frames.words(frame);
        let isolated = is_split.then(|| engine.isolate(frame)).flatten();
        // The frame is isolated when its word is read, so no other thread gives its page a place now.
        let (goes, stays) = match isolated {
            Some(frame) if words.stored.page().is_none() && words.order() == Order::ZERO => {
                (Some(frame), None)
            }
            other => (None, other),
        };
        if let Some(frame) = stays {
            engine.putback(frame, Place::Cold);
        }
        match goes {
            None => engine.swap.give_back(&engine.frames, page),
            Some(frame) if engine.swap.take_in_at(&engine.frames, page, frame.frame()) => {
                going.push((page, frame));
            }
            Some(dying) => engine.unpin(dying.into_pin()),
        }
        if going.len() == going.inline_size() {
            send_out(engine, std::mem::take(&mut going), outcome);
        }
    }
    send_out(engine, going, outcome);
}

enum Verdict {
    Evict,
    Keep,
    Split,
}

fn judge(engine: &Engine, frame: FrameId) -> Verdict {
    if engine.frames.words(frame).holds.load().is_held_by_others(1) {
        return Verdict::Keep;
    }
    if engine.frames.words(frame).order() == Order::ZERO { Verdict::Evict } else { Verdict::Split }
}

/// Looks at a candidate, and clears its accessed mark.
pub(super) fn look(engine: &Engine, frame: FrameId) -> Look {
    if engine.frames.words(frame).holds.load().is_held_by_others(1) {
        return Look::Busy;
    }
    if test_and_clear_accessed(engine, frame) { Look::Accessed } else { Look::Unused }
}

/// Returns whether any owner's entry was accessed since the last look.
fn test_and_clear_accessed(engine: &Engine, frame: FrameId) -> bool {
    let mut accessed = false;
    for owner in engine.rmap.owners(&engine.frames, frame) {
        let walk = engine.table.walk(owner.space, owner.page);
        let seen = walk.entry();
        if seen.state() == State::Present(frame) && seen.is_accessed() {
            // A lost race means that the page is in use all the more.
            let _ = walk.word().change(seen, seen.without_accessed());
            accessed = true;
        }
    }
    accessed
}

fn split_block_of(engine: &Engine, frame: FrameId) {
    if let Some(&Owner { space, page }) = engine.rmap.owners(&engine.frames, frame).first() {
        let walk = engine.table.walk(space, page);
        if walk.level == 1 && walk.entry().state() == State::Present(frame) && walk.links_hold() {
            // Whatever the outcome, the frame is put back and looked at again.
            let _ = split_leaf(engine, space, page, &walk, 1);
        }
    }
}

/// Returns the place that a frame's page keeps. A dirty page gives its place up if its device does badly and
/// others do well.
fn place_of(engine: &Engine, frame: FrameId) -> Option<StoredPage> {
    let words = engine.frames.words(frame);
    let page = words.stored.page()?;
    let store = engine.store(page);
    if words.holds.load().is_dirty() && store.is_better_moved(page) {
        store.detach(&engine.frames, frame);
    }
    words.stored.page()
}

/// Has swap take in those candidates that no store keeps yet, in runs.
pub(crate) fn take_in(engine: &Engine, candidates: Candidates, outcome: &mut Outcome) -> Going {
    let mut going = Going::new();
    let mut fresh = SmallVec::<[(Option<Owner>, IsolatedFrame); ISOLATED]>::new();
    for frame in candidates {
        match place_of(engine, frame.frame()) {
            Some(page) => going.push((page, frame)),
            None => fresh.push((engine.rmap.owners(&engine.frames, frame.frame()).first().copied(), frame)),
        }
    }
    // Neighbours in a space become neighbours on the device. The owners were read a moment ago, and may
    // change meanwhile.
    fresh.sort_unstable_by_key(|(owner, _)| owner.map(|owner| (owner.space, owner.page)));
    let mut places = SmallVec::<[Option<StoredPage>; ISOLATED]>::new();
    while places.len() < fresh.len() {
        let rest = fresh[places.len()..].iter().map(|(_, frame)| frame.frame());
        if engine.swap.take_in(&engine.frames, rest, |_, page| places.push(page)) == 0 {
            outcome.obstructed = true;
            break;
        }
    }
    let mut fresh = fresh.into_iter().map(|(_, frame)| frame);
    // The places come first in the zip, because there may be fewer of them. Zip then takes no frame without a
    // place, and drops none.
    for (place, frame) in places.into_iter().zip(fresh.by_ref()) {
        match place {
            Some(page) => going.push((page, frame)),
            // Swap found the frame dying.
            None => engine.unpin(frame.into_pin()),
        }
    }
    fresh.for_each(|frame| engine.putback(frame, Place::Cold));
    going
}

/// Makes every entry that shows the frame lead to the page's place instead.
fn unmap_owners(engine: &Engine, page: StoredPage, frame: FrameId) {
    let (store, words) = (engine.store(page), engine.frames.words(frame));
    for owner in engine.rmap.owners(&engine.frames, frame) {
        let walk = engine.table.walk(owner.space, owner.page);
        if walk.entry().state() != State::Present(frame) || walk.level != 0 || !walk.links_hold() {
            continue;
        }
        // The reference is counted first, because the entry must never lead to a place that may go. A refusal
        // means that the store does not know the frame any more.
        let Some(reference) = store.add_reference(&engine.frames, page, frame) else { return };
        // Only the accessed mark can have changed. Then the page is in use, and stays.
        let seen = walk.entry();
        if walk.word().change(seen, store.entry(seen, page)).is_ok() {
            engine.rmap.remember(&engine.frames, frame, owner);
            engine.space_use.subtract(owner.space, Figure::Resident, 1);
            engine.space_use.add(owner.space, Figure::SwapOut, 1);
            reference.into_page();
            if words.uses.remove() == 0 {
                // Since the change, a fault has shown the page again, the store has given the page up, and an
                // unmap has removed the entry.
                engine.release(frame);
            }
        } else {
            engine.drop_reference(reference);
        }
    }
}

/// Sends dirty pages on, neighbours together. The stores put them away at once, or start to write them to a
/// device. Returns the frames whose pages are in their places now.
fn put_away_dirty(engine: &Engine, mut going: Going, outcome: &mut Outcome) -> Going {
    going.sort_unstable_by_key(|(page, _)| *page);
    let leaving = engine.leaving();
    let mut outcomes = SmallVec::<[PutAway; ISOLATED]>::new();
    for batch in going.chunk_by(|(a, _), (b, _)| a.store() == b.store()) {
        engine.store(batch[0].0).put_away(&leaving, batch, &mut |put| outcomes.push(put));
    }
    let (mut away, mut writing) = (Going::new(), Going::new());
    for ((page, frame), put) in going.into_iter().zip(outcomes) {
        match after_put_away(engine, frame, put) {
            Some(Away::InPlace(frame)) => away.push((page, frame)),
            Some(Away::ToBeWritten(frame)) => writing.push((page, frame)),
            None => {}
        }
    }
    let pages = writing.len() as u64;
    let started = write_out(engine, writing);
    outcome.started += started;
    outcome.full |= started < pages;
    engine.flush_devices();
    away
}

/// Has the stores take copies of clean pages whose bytes came home for that. Returns how many of their frames
/// are free.
fn pack_copies(engine: &Engine, copies: Copies) -> u64 {
    let mut going = Going::new();
    for (space, page, frame) in copies {
        if engine.store(page).copy(&engine.frames, page, frame.frame(), space) {
            engine.wake_io(frame.frame());
        }
        going.push((page, frame));
    }
    engine.evict_or_putback(going)
}

/// The whereabouts of a page that was put away.
#[derive(Debug)]
pub(super) enum Away {
    InPlace(IsolatedFrame),
    ToBeWritten(IsolatedFrame),
}

/// Wakes threads that saw the frame under writeback. Returns `None` if the page stays. Its frame is then put
/// back.
pub(super) fn after_put_away(engine: &Engine, frame: IsolatedFrame, put: PutAway) -> Option<Away> {
    if let PutAway::Done { awaited: true } | PutAway::Refused { awaited: true } = put {
        engine.wake_io(frame.frame());
    }
    match put {
        PutAway::Done { .. } => Some(Away::InPlace(frame)),
        PutAway::ToBeWritten => Some(Away::ToBeWritten(frame)),
        PutAway::Refused { .. } => {
            engine.putback(frame, Place::Cold);
            None
        }
    }
}

/// Starts to write frames under WRITEBACK whose pages belong on a device, sorted by page. Returns how many it
/// started. If not all were started, a device is full, and the other pages stay in memory.
pub(super) fn write_out(engine: &Engine, writing: Going) -> u64 {
    let mut runs = SmallVec::<[u16; ISOLATED]>::new();
    for run in writing.chunk_by(|(page, _), (next, _)| page.is_followed_by(*next)) {
        runs.extend(run.chunks(engine.store(run[0].0).write_batch()).map(|run| run.len() as u16));
    }
    let mut writing = writing.into_iter().peekable();
    let mut started = 0;
    for len in runs {
        let first = writing.peek().expect("runs are not empty").0;
        started += engine.start_write(first, writing.by_ref().take(usize::from(len)).map(|(_, frame)| frame));
    }
    started as u64
}
