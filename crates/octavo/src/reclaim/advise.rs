//! Advice that the pages of a range are not needed soon.

use crate::engine::Engine;
use crate::lru::{Isolated, IsolatedFrame, Place};
use crate::reclaim::evict::evict_batch;
use crate::table::entry::{Entry, EntryWord, State};
use crate::table::{PageNumberRange, SpaceId, Walk};
use crate::units::FrameId;

/// Clears the accessed marks of a range's pages, and puts the pages among those that are evicted next.
pub(crate) fn cool(engine: &Engine, space: SpaceId, range: PageNumberRange) {
    for_each_present(engine, space, range, |word, entry, frame| {
        if entry.is_accessed() {
            // A lost race means that the page is in use.
            let _ = word.change(entry, entry.without_accessed());
        }
        if let Some(frame) = engine.isolate(frame) {
            engine.putback(frame, Place::Cold);
        }
    });
}

/// Sends the pages of a range out, except for those that are held. It only starts the writes.
pub(crate) fn page_out(engine: &Engine, space: SpaceId, range: PageNumberRange) {
    // Neighbours go out together, so that they come back together.
    engine.lru.drain_all(&engine.frames);
    let mut out = Isolated::new();
    let mut walks = engine.table.walks(space, range);
    let mut first = walks.page();
    loop {
        let page = walks.page();
        let walk = walks.next();
        if let Some((walk, frame)) = walk.as_ref().and_then(|walk| Some((walk, shown(walk)?))) {
            let _ = walk.word().change(walk.entry(), walk.entry().without_accessed());
            if let Some(isolated) = engine.isolate(frame) {
                if walk.level > 0 && engine.frames.is_away(frame) {
                    split_away(engine, isolated);
                    if engine.table.walk(space, page).level < walk.level {
                        walks.go_on_from(page);
                        continue;
                    }
                } else {
                    out.push(&engine.frames, isolated);
                }
            }
        }
        if walk.is_some() && !out.is_full() {
            continue;
        }
        let ends = engine.ends();
        let outcome = evict_batch(engine, std::mem::take(&mut out));
        if outcome.full && engine.wait_for_room(ends) {
            // Some of these pages stayed. Try them again.
            walks.go_on_from(first);
            continue;
        }
        if walk.is_none() {
            return;
        }
        first = walks.page();
    }
}

/// Splits a block that is away: evicting such a block only splits it. The caller then meets its pages one by
/// one.
fn split_away(engine: &Engine, block: IsolatedFrame) {
    let mut batch = Isolated::new();
    batch.push(&engine.frames, block);
    let _ = evict_batch(engine, batch);
}

/// Returns the frame that an entry shows.
fn shown(walk: &Walk<'_>) -> Option<FrameId> {
    match walk.entry().state() {
        State::Present(frame) if walk.links_hold() => Some(frame),
        _ => None,
    }
}

fn for_each_present(
    engine: &Engine,
    space: SpaceId,
    range: PageNumberRange,
    mut each: impl FnMut(&EntryWord, Entry, FrameId),
) {
    for walk in engine.table.walks(space, range) {
        if let Some(frame) = shown(&walk) {
            each(walk.word(), walk.entry(), frame);
        }
    }
}
