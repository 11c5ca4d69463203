//! Makes all entries that show one frame, or one block, busy at once. The calling thread may then move the
//! frame, or split the block.

use smallvec::SmallVec;

use crate::engine::Engine;
use crate::rmap::{Owner, Owners};
use crate::table::entry::{Entry, EntryWord, State};
use crate::units::FrameId;

/// Entries made busy: each with its owner, its word, the entry before, and the busy entry.
#[must_use = "busy entries are to be published"]
pub(crate) struct AllBusy<'e> {
    engine: &'e Engine,
    entries: SmallVec<[(Owner, &'e EntryWord, Entry, Entry); 2]>,
}

impl<'e> AllBusy<'e> {
    /// Makes busy every entry at `level` through which `owners` show the frame. Returns `None` if one of them
    /// does not show it, or another thread is changing one. All entries are then unchanged.
    pub(crate) fn make(engine: &'e Engine, frame: FrameId, level: usize, owners: &Owners) -> Option<Self> {
        let mut busy = Self { engine, entries: SmallVec::new() };
        for owner in owners {
            let walk = engine.table.walk(owner.space, owner.page);
            let (word, seen) = (walk.word(), walk.entry());
            let shows = walk.level == level && seen.state() == State::Present(frame) && walk.links_hold();
            if !shows || word.change(seen, seen.to_busy()).is_err() {
                busy.restore();
                return None;
            }
            busy.entries.push((*owner, word, seen, seen.to_busy()));
        }
        Some(busy)
    }

    /// Returns `true` if these entries are all uses of the frame, and nobody but the caller, with its `own`
    /// pins, holds it. The answer stays true until the entries are published, except that a frame that is
    /// just being listed again may get a pin for a moment.
    pub(crate) fn have_it_alone(&self, frame: FrameId, own: u32) -> bool {
        let words = self.engine.frames.words(frame);
        !words.holds.pinned_by_others(own) && words.uses.get() == self.owners()
    }

    /// Returns how many entries are busy.
    pub(crate) fn owners(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Restores the entries.
    pub(crate) fn restore(self) {
        self.publish(|_, before, busy| busy.to_what_was(before));
    }

    /// Publishes for each entry what `to` returns, given its owner, the entry before, and the busy entry.
    pub(crate) fn publish(self, mut to: impl FnMut(Owner, Entry, Entry) -> Entry) {
        for (owner, word, before, busy) in self.entries {
            self.engine.publish(word, to(owner, before, busy));
        }
    }
}
