//! Clearing a range of a table, and changing what may be done with one.
//!
//! The caller holds the space's layout lock, has changed the regions first, and has then split the blocks over the
//! range's edges (`edges.rs`); the rules that make clearing safe
//! against faults under way and late walkers stand at the head of `table/mod.rs`.

use crate::engine::{Engine, SpaceState};
use crate::rmap::Owner;
use crate::sync::thread;
use crate::table::entry::{Entry, EntryWord, NodeId, State};
use crate::table::translation::{Installed, Run, Translation};
use crate::table::{PageNumberRange, Protection, span};
use crate::units::{FrameId, PageNumber};

/// One clearing of one range.
struct Clearing<'a> {
    engine: &'a Engine,
    space: &'a SpaceState,
    range: PageNumberRange,
    /// Nobody can fault in this space any more: it is being dropped.
    last: bool,
}

/// Removes everything that the table has in the range, and recycles the nodes that it covers.
pub(crate) fn unmap_range(engine: &Engine, space: &SpaceState, range: PageNumberRange) {
    Clearing { engine, space, range, last: false }.clear_root();
}

/// Removes everything that a dropped space had, its root included.
pub(crate) fn clear_space(engine: &Engine, space: &SpaceState) {
    let range = PageNumberRange::from(PageNumber(0));
    Clearing { engine, space, range, last: true }.clear_root();
}

/// The root and its node, as faults under way will find them, or find that the regions have changed. `None`: there is no node.
fn root_when_not_busy(engine: &Engine, space: &SpaceState) -> Option<(Entry, NodeId)> {
    let root = engine.table.root(space.id);
    loop {
        let seen = root.load();
        match seen.state() {
            // A fault that makes the root taller either did so before, or looks at the regions when it goes on.
            State::Node(_) if !root.confirm(seen) => {}
            State::Node(node) => return Some((seen, node)),
            // A fault may be about to put a node here; after the bump it looks at the regions again.
            _ if root.change(seen, seen.to_same()).is_ok() => return None,
            _ => {}
        }
    }
}

impl Clearing<'_> {
    fn clear_root(&self) {
        while let Some((seen, node)) = root_when_not_busy(self.engine, self.space) {
            self.clear_node(node, seen.root_level(), PageNumber(0));
            if !self.last {
                return;
            }
            let root = self.engine.table.root(self.space.id);
            if root.change(seen, seen.to_empty()).is_ok() {
                self.engine.table.nodes.give_back(node);
                return;
            }
        }
    }

    fn clear_node(&self, node: NodeId, level: usize, first: PageNumber) {
        for (page, word) in self.engine.table.entries(node, level, first, self.range) {
            self.clear_entry(word, level, page);
        }
    }

    fn clear_entry(&self, word: &EntryWord, level: usize, page: PageNumber) {
        loop {
            let seen = word.load();
            let done = match seen.state() {
                State::Busy => {
                    self.engine.block_on_entry(word);
                    false
                }
                State::Empty if self.last => true,
                State::Empty => word.change(seen, seen.to_same()).is_ok(),
                // A huge zero leaf may lose pages outside the range too: they read as zeros again by a fault.
                State::Zero => self.clear_zero(word, seen, level),
                State::Present(_) if !self.range.covers(page, level) => {
                    unreachable!("blocks over the edges are split before a range is cleared")
                }
                State::Present(frame) => self.clear_present(word, seen, level, page, frame),
                State::Swapped(slot) => {
                    let cleared = word.change(seen, seen.to_empty()).is_ok();
                    if cleared {
                        let orphan = self.engine.swap.cache.drop_reference(&self.engine.frames, slot);
                        self.engine.release_orphan(orphan);
                    }
                    cleared
                }
                State::Node(node) => {
                    self.clear_node(node, level - 1, page);
                    !self.range.covers(page, level) || self.recycle(word, seen, node, level, page)
                }
            };
            if done {
                return;
            }
        }
    }

    fn clear_zero(&self, word: &EntryWord, seen: Entry, level: usize) -> bool {
        if self.last {
            // Only reclaim still walks here, and it never changes a zero leaf.
            word.set_unshared(seen.to_empty());
        } else if word.change(seen, seen.to_empty()).is_err() {
            return false;
        }
        if level == 1 {
            self.engine.huge_zero.put(1);
        }
        true
    }

    fn clear_present(
        &self,
        word: &EntryWord,
        seen: Entry,
        level: usize,
        page: PageNumber,
        frame: FrameId,
    ) -> bool {
        let Some(translation) = &self.space.translation else {
            let cleared = word.change(seen, seen.to_empty()).is_ok();
            if cleared {
                self.engine.disown(frame, Owner { space: self.space.id, page });
            }
            return cleared;
        };
        // The frame must be home before it is anyone else's, so the entry is busy meanwhile.
        let busy = seen.to_busy();
        if word.change(seen, busy).is_err() {
            return false;
        }
        remove_installed(&**translation, Run { page, frame, count: span(level) as u32 });
        self.engine.publish(word, busy.to_empty());
        self.engine.disown(frame, Owner { space: self.space.id, page });
        true
    }

    /// Unlinks a node that the range covers and bumps its entries once more, so that late walkers cannot take what
    /// they see for what they knew. Then it is anyone's.
    fn recycle(&self, word: &EntryWord, seen: Entry, node: NodeId, level: usize, page: PageNumber) -> bool {
        if word.change(seen, seen.to_empty()).is_err() {
            return false;
        }
        if !self.last {
            self.clear_node(node, level - 1, page);
        }
        self.engine.table.nodes.give_back(node);
        true
    }
}

/// Makes the pages reach nothing, however long somebody holds their memory.
pub(crate) fn remove_installed(translation: &dyn Translation, mut run: Run) {
    loop {
        match translation.remove(run) {
            Installed::Done => return,
            Installed::Partly(done) => {
                run.page = run.page.plus(u64::from(done));
                run.frame = run.frame.plus(done);
                run.count -= done;
            }
            // Whoever holds the memory lets go in time; there is no answer but to wait.
            Installed::Busy => thread::yield_now(),
            Installed::Unsupported => unreachable!("what was installed can be removed"),
        }
    }
}

/// Gives every present page of the range these permissions, and makes faults under way look again. A zero page
/// that may no longer be read becomes empty.
pub(crate) fn protect_range(
    engine: &Engine,
    space: &SpaceState,
    range: PageNumberRange,
    protection: Protection,
) {
    if let Some((seen, node)) = root_when_not_busy(engine, space) {
        protect_node(engine, range, protection, node, seen.root_level(), PageNumber(0));
    }
}

fn protect_node(
    engine: &Engine,
    range: PageNumberRange,
    protection: Protection,
    node: NodeId,
    level: usize,
    first: PageNumber,
) {
    for (page, word) in engine.table.entries(node, level, first, range) {
        loop {
            let seen = word.load();
            let to = match seen.state() {
                State::Busy => {
                    engine.block_on_entry(word);
                    continue;
                }
                State::Node(child) => {
                    protect_node(engine, range, protection, child, level - 1, page);
                    break;
                }
                State::Present(_) if !range.covers(page, level) => {
                    unreachable!("blocks over the edges are split before a range is protected")
                }
                State::Present(_) => seen.with_protection(protection),
                State::Zero if !protection.read => seen.to_empty(),
                State::Empty | State::Zero | State::Swapped(_) => seen.to_same(),
            };
            if word.change(seen, to).is_ok() {
                if level == 1 && seen.is_zero() && to.is_empty() {
                    engine.huge_zero.put(1);
                }
                break;
            }
        }
    }
}
