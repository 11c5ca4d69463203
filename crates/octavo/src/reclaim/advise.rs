//! What the users of a range say of its pages: that they are not wanted soon.

use crate::engine::Engine;
use crate::lru::{Isolated, List};
use crate::reclaim::compact::pin_page;
use crate::reclaim::evict_batch;
use crate::table::entry::{Entry, EntryWord, State};
use crate::table::{PageNumberRange, SpaceId};
use crate::units::FrameId;

/// Makes the pages of a range look as if nobody had used them lately, and puts them with those that go next.
pub(crate) fn cool(engine: &Engine, space: SpaceId, range: PageNumberRange) {
    for_each_present(engine, space, range, |word, entry, frame| {
        if entry.is_accessed() {
            // A lost race means that it is in use.
            let _ = word.change(entry, entry.without_accessed());
        }
        if pin_page(engine, frame) {
            engine.keep(frame, List::Inactive);
        }
    });
}

/// Sends the pages of a range out, as far as nobody holds them; the writes are only started.
pub(crate) fn page_out(engine: &Engine, space: SpaceId, range: PageNumberRange) {
    // Neighbours go out together, so that they come back together.
    engine.lru.drain_all(&engine.frames);
    let mut out = Isolated::new();
    for_each_present(engine, space, range, |word, entry, frame| {
        let _ = word.change(entry, entry.without_accessed());
        if pin_page(engine, frame) {
            out.push(frame);
        }
        if out.len() == out.inline_size() {
            evict_batch(engine, &std::mem::take(&mut out));
        }
    });
    evict_batch(engine, &out);
}

fn for_each_present(
    engine: &Engine,
    space: SpaceId,
    range: PageNumberRange,
    mut each: impl FnMut(&EntryWord, Entry, FrameId),
) {
    for walk in engine.table.walks(space, range) {
        if let State::Present(frame) = walk.entry().state()
            && walk.links_hold()
        {
            each(walk.word(), walk.entry(), frame);
        }
    }
}
