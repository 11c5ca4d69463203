//! A frame's bytes move to another frame; the pages that show it do not notice.
//!
//! Every entry that shows the frame is made busy; then, and only if nobody holds it, the bytes are copied and the
//! entries are published again with the new frame. A frame that is pinned, kept by a store, with others waiting
//! for it, part of a huge leaf, or installed at real addresses, stays where it is.

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::lru::{IsolatedFrame, Place};
use crate::rmap::Owners;
use crate::table::entry::{Entry, EntryWord, State};
use crate::units::{FrameId, Order, PAGE_BYTES};

/// What came of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Migrated {
    /// The frame is free; its page lives elsewhere.
    Moved,
    /// It stays: somebody uses it just now.
    Kept,
    /// There is no frame to move it to.
    NoFrame,
}

/// An entry made busy, and what it was.
type Busy<'t> = SmallVec<[(&'t EntryWord, Entry, Entry); 2]>;

/// Moves a frame's page to a fresh frame.
pub(crate) fn migrate(engine: &Engine, frame: IsolatedFrame) -> Migrated {
    let outcome = try_migrate(engine, frame.frame());
    let counter =
        if outcome == Migrated::Moved { Counter::FrameMigrated } else { Counter::FrameMigrateFailed };
    engine.counters.count(counter);
    engine.unpin(match outcome {
        Migrated::Moved => frame.into_pin(),
        _ => engine.lru.putback(&engine.frames, frame, Place::Hot),
    });
    outcome
}

fn try_migrate(engine: &Engine, frame: FrameId) -> Migrated {
    let words = engine.frames.words(frame);
    if let Some(page) = words.stored.page() {
        engine.store(page).detach(&engine.frames, frame);
        if words.stored.page().is_some() {
            return Migrated::Kept;
        }
    }
    let owners = engine.rmap.owners(words);
    if owners.is_empty() || words.order() != Order::ZERO {
        return Migrated::Kept;
    }
    let Some(fresh) = engine.frames.alloc(Order::ZERO) else { return Migrated::NoFrame };
    let Some(busy) = make_busy(engine, frame, &owners) else {
        engine.frames.give_back(fresh);
        return Migrated::Kept;
    };
    // All entries are busy, so "nobody" stays true until they are published.
    if words.holds.pinned_by_others(1) || words.uses.get() != owners.len() as u32 {
        restore(engine, busy);
        engine.frames.give_back(fresh);
        return Migrated::Kept;
    }
    let fresh = fresh.into_frame();
    engine.frames.bytes().copy_within(frame.home_offset(), fresh.home_offset(), PAGE_BYTES);
    let to = engine.frames.words(fresh);
    let holds = words.holds.load();
    to.holds.begin(holds.is_dirty());
    if holds.is_plain() {
        to.holds.mark_plain();
    }
    to.uses.set_first();
    for _ in 1..owners.len() {
        let added = to.uses.try_add();
        debug_assert!(added);
    }
    engine.rmap.move_all(words, to);
    engine.lru.add(&engine.frames, fresh);
    for (word, before, now) in busy {
        let present = now.to_present(fresh, before.protection());
        engine.publish(word, if before.is_accessed() { present } else { present.without_accessed() });
    }
    for left in (0..owners.len() as u32).rev() {
        if words.uses.remove() == 0 {
            debug_assert_eq!(left, 0);
            engine.release(frame);
        }
    }
    Migrated::Moved
}

fn make_busy<'e>(engine: &'e Engine, frame: FrameId, owners: &Owners) -> Option<Busy<'e>> {
    let mut busy = Busy::new();
    for owner in owners {
        let walk = engine.table.walk(owner.space, owner.page);
        let (word, seen) = (walk.word(), walk.entry());
        let movable = walk.level == 0
            && seen.state() == State::Present(frame)
            && walk.links_hold()
            && engine.translation(owner.space).is_none();
        if !movable || word.change(seen, seen.to_busy()).is_err() {
            restore(engine, busy);
            return None;
        }
        busy.push((word, seen, seen.to_busy()));
    }
    Some(busy)
}

fn restore(engine: &Engine, busy: Busy<'_>) {
    for (word, before, now) in busy {
        engine.publish(word, now.to_present_again(before));
    }
}
