//! Migration: a page's bytes move to another frame. Programs that use the page notice nothing.
//!
//! The thread makes every entry that shows the frame busy. If nobody holds the frame then, it copies the
//! bytes and publishes the entries again with the new frame. Some frames stay where they are: those that are
//! pinned, kept by swap, waited for, part of a huge leaf, or installed at real addresses.

use crate::counters::Counter;
use crate::engine::{AllBusy, Engine};
use crate::frame::{Block, PinnedFrame};
use crate::lru::{IsolatedFrame, Place};
use crate::units::{FrameId, Order, PAGE_BYTES, StoreId, StoredPage};

/// The outcome of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Migrated {
    /// The old frame is free. Its page has another.
    Moved,
    /// The page stays, because somebody uses it just now.
    Kept,
    /// No online frame is free to move the page to.
    NoFrame,
}

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
    if words.order() != Order::ZERO {
        return Migrated::Kept;
    }
    // The frame is allocated before the page loses its place in a store. Otherwise, a clean page that has to
    // stay would be written again in vain.
    let Some(fresh) = engine.frames.alloc_online(Order::ZERO) else { return Migrated::NoFrame };
    match move_pinned(engine, frame, fresh, |_| {}) {
        Ok(()) => Migrated::Moved,
        Err(fresh) => {
            engine.frames.give_back(fresh);
            Migrated::Kept
        }
    }
}

/// Moves the page of a frame on which the caller has a pin to a frame of the caller's choice. `prepare`
/// prepares that frame before another thread can find it. Returns the frame if the page stays.
pub(crate) fn move_pinned(
    engine: &Engine,
    frame: FrameId,
    fresh: Block,
    prepare: impl FnOnce(FrameId),
) -> Result<(), Block> {
    if let Some(page) = file_page_of(engine, frame) {
        return move_file_page(engine, (page, frame), fresh, prepare);
    }
    let Some(busy) = make_busy_alone(engine, frame) else { return Err(fresh) };
    let fresh = fresh.into_frame();
    prepare(fresh);
    fill(engine, frame, fresh, busy.owners());
    engine.lru.add(&engine.frames, fresh);
    finish(engine, frame, busy, fresh, 0);
    Ok(())
}

/// Returns the page of a file that a frame has.
fn file_page_of(engine: &Engine, frame: FrameId) -> Option<StoredPage> {
    engine.frames.words(frame).stored.page().filter(|page| page.store() == StoreId::File)
}

/// Moves the page of a file. The cache keeps the page, with the other frame: it looks whether anybody else
/// has the old one, and names the other, under one lock.
fn move_file_page(
    engine: &Engine,
    (page, frame): (StoredPage, FrameId),
    fresh: Block,
    prepare: impl FnOnce(FrameId),
) -> Result<(), Block> {
    let owners = engine.rmap.owners(&engine.frames, frame);
    let Some(busy) = AllBusy::make(engine, frame, 0, &owners) else { return Err(fresh) };
    let (to, words) = (fresh.frame(), engine.frames.words(frame));
    // One use is the cache's.
    let is_alone = || !words.holds.pinned_by_others(1) && words.uses.get() == busy.owners() + 1;
    // As soon as the cache names the other frame, a truncation may drop the page. The pin keeps the frame.
    let mut pin = None;
    let moved = engine.page_cache.move_page(&engine.frames, (page, frame), to, is_alone, || {
        prepare(to);
        fill(engine, frame, to, busy.owners() + 1);
        pin = Some(PinnedFrame::take(to, engine.frames.words(to)).0);
    });
    let Some(pin) = pin.filter(|_| moved) else {
        busy.restore();
        return Err(fresh);
    };
    let fresh = fresh.into_frame();
    engine.lru.add(&engine.frames, fresh);
    finish(engine, frame, busy, fresh, 1);
    engine.unpin(pin);
    Ok(())
}

/// Makes a fresh frame what another frame is: its bytes, its holds, its owners, and so many uses.
fn fill(engine: &Engine, frame: FrameId, fresh: FrameId, uses: u32) {
    let words = engine.frames.words(frame);
    engine.frames.bytes().copy_within(frame.home_offset(), fresh.home_offset(), PAGE_BYTES);
    let to = engine.frames.words(fresh);
    let holds = words.holds.load();
    to.holds.begin(holds.is_dirty());
    if holds.is_no_compress() {
        to.holds.mark_no_compress();
    }
    to.uses.set_first();
    for _ in 1..uses {
        let added = to.uses.try_add();
        debug_assert!(added);
    }
    engine.rmap.move_all(&engine.frames, frame, fresh);
}

/// Makes the busy entries of a page show its fresh frame, and ends their uses of the old one. A store had
/// `kept` more uses, which end too.
fn finish(engine: &Engine, frame: FrameId, busy: AllBusy<'_>, fresh: FrameId, kept: u32) {
    let words = engine.frames.words(frame);
    let uses = busy.owners() + kept;
    busy.publish(|_, before, busy| busy.to_present_as(before, fresh));
    for left in (0..uses).rev() {
        if words.uses.remove() == 0 {
            debug_assert_eq!(left, 0);
            engine.release(frame);
        }
    }
}

/// Takes the page out of its store, and makes every entry that shows the frame busy. Returns `None` if
/// somebody else uses the page.
fn make_busy_alone(engine: &Engine, frame: FrameId) -> Option<AllBusy<'_>> {
    let words = engine.frames.words(frame);
    if let Some(page) = words.stored.page() {
        engine.store(page).detach(&engine.frames, frame);
        if words.stored.page().is_some() {
            return None;
        }
    }
    let owners = engine.rmap.owners(&engine.frames, frame);
    if owners.is_empty() {
        return None;
    }
    let busy = AllBusy::make(engine, frame, 0, &owners)?;
    if !busy.have_it_alone(frame, 1) {
        busy.restore();
        return None;
    }
    Some(busy)
}
