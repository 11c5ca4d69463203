//! Clearing a range of a table, and changing what may be done with one.
//!
//! The caller holds the space's layout lock and has changed the regions first; the rules that make clearing safe
//! against faults under way and late walkers stand at the head of `table/mod.rs`.

use crate::engine::{Engine, SpaceState, Split, split_leaf};
use crate::error::{Error, ErrorKind, Result};
use crate::rmap::Owner;
use crate::sync::thread;
use crate::table::entry::{Entry, EntryWord, NodeId, State};
use crate::table::translation::{Installed, Run};
use crate::table::{LEVELS, PageNumberRange, Protection, SpaceId, span};
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
    let range = PageNumberRange { start: PageNumber(0), end: PageNumber(span(LEVELS)) };
    Clearing { engine, space, range, last: true }.clear_root();
}

impl Clearing<'_> {
    fn clear_root(&self) {
        let root = self.engine.table.root(self.space.id);
        loop {
            let seen = root.load();
            match seen.state() {
                // A fault that makes the root taller either did so before, or finds the region gone when it goes on.
                State::Node(_) if !root.confirm(seen) => {}
                State::Node(node) => {
                    let level = seen.root_level();
                    self.clear_node(node, level, PageNumber(0));
                    if !self.last {
                        return;
                    }
                    if root.change(seen, seen.to_empty()).is_ok() {
                        self.engine.table.nodes.give_back(node);
                        return;
                    }
                }
                // A fault may be about to put a node here; after the bump it looks at the regions again.
                _ => {
                    if root.change(seen, seen.to_same()).is_ok() {
                        return;
                    }
                }
            }
        }
    }

    fn clear_node(&self, node: NodeId, level: usize, first: PageNumber) {
        let span = span(level);
        for (slot, word) in self.engine.table.nodes.entries(node).iter().enumerate() {
            let page = first.plus(slot as u64 * span);
            let end = page.plus(span);
            if page < self.range.end && self.range.start < end {
                self.clear_entry(word, level, page);
            }
        }
    }

    fn covers(&self, page: PageNumber, level: usize) -> bool {
        self.range.start <= page && page.plus(span(level)) <= self.range.end
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
                State::Present(_) if !self.covers(page, level) => {
                    self.split(page);
                    false
                }
                State::Present(frame) => self.clear_present(word, seen, level, page, frame),
                State::Swapped(slot) => {
                    let cleared = word.change(seen, seen.to_empty()).is_ok();
                    if cleared {
                        let orphan = self.engine.swap.drop_reference(&self.engine.frames, slot);
                        self.engine.release_orphan(orphan);
                    }
                    cleared
                }
                State::Node(node) => {
                    self.clear_node(node, level - 1, page);
                    !self.covers(page, level) || self.recycle(word, seen, node, level, page)
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
        let mut run = Run { page, frame, count: span(level) as u32 };
        loop {
            match translation.remove(run) {
                Installed::Done => break,
                Installed::Partly(done) => {
                    run.page = run.page.plus(u64::from(done));
                    run.frame = run.frame.plus(done);
                    run.count -= done;
                }
                // Whoever holds the memory lets go in time; unmap has no answer but to wait.
                Installed::Busy => thread::yield_now(),
                Installed::Unsupported => unreachable!("what was installed can be removed"),
            }
        }
        self.engine.publish(word, busy.to_empty());
        self.engine.disown(frame, Owner { space: self.space.id, page });
        true
    }

    /// A huge leaf reaches over the edge of the range. Its split was tried before the regions changed
    /// ([`prepare_edges`]), so it is here again only because a fault under way came in between: wait it out.
    fn split(&self, page: PageNumber) {
        let walk = self.engine.table.walk(self.space.id, page);
        if walk.level == 1 && split_leaf(self.engine, self.space.id, page, &walk, 0) != Split::Retry {
            thread::yield_now();
        }
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

/// Splits the huge leaves that reach over the edges of a range, before anything else is changed.
///
/// # Errors
/// `Busy` where one is pinned; `OutOfMemory` where no node is to be had. Nothing has changed then.
pub(crate) fn prepare_edges(engine: &Engine, space: SpaceId, range: PageNumberRange) -> Result<()> {
    for edge in [range.start, range.end] {
        if edge == edge.huge_start() {
            continue;
        }
        loop {
            let walk = engine.table.walk(space, edge);
            if walk.level != 1 || !matches!(walk.entry().state(), State::Present(_)) {
                break;
            }
            match split_leaf(engine, space, edge, &walk, 0) {
                Split::Retry => {}
                Split::NoNode => return Err(engine.out_of_memory()),
                Split::Pinned => {
                    let message = format!(
                        "the 2 MiB block at {:#x} is pinned and cannot be split; drop its pins first",
                        edge.huge_start().address()
                    );
                    return Err(Error::new(ErrorKind::Busy, message));
                }
            }
        }
    }
    Ok(())
}

/// Gives every present page of the range these permissions, and makes faults under way look again. A zero page
/// that may no longer be read becomes empty.
pub(crate) fn protect_range(
    engine: &Engine,
    space: &SpaceState,
    range: PageNumberRange,
    protection: Protection,
) {
    let root = engine.table.root(space.id);
    loop {
        // As in `Clearing::clear_root`.
        let seen = root.load();
        match seen.state() {
            State::Node(_) if !root.confirm(seen) => {}
            State::Node(node) => {
                protect_node(engine, space.id, range, protection, node, seen.root_level(), PageNumber(0));
                return;
            }
            _ if root.change(seen, seen.to_same()).is_ok() => return,
            _ => {}
        }
    }
}

fn protect_node(
    engine: &Engine,
    space: SpaceId,
    range: PageNumberRange,
    protection: Protection,
    node: NodeId,
    level: usize,
    first: PageNumber,
) {
    let span = span(level);
    for (slot, word) in engine.table.nodes.entries(node).iter().enumerate() {
        let page = first.plus(slot as u64 * span);
        if page >= range.end || page.plus(span) <= range.start {
            continue;
        }
        loop {
            let seen = word.load();
            let to = match seen.state() {
                State::Busy => {
                    engine.block_on_entry(word);
                    continue;
                }
                State::Node(child) => {
                    protect_node(engine, space, range, protection, child, level - 1, page);
                    break;
                }
                State::Present(_) if page < range.start || page.plus(span) > range.end => {
                    // As in `Clearing::split`: a fault under way put it over the edge.
                    let walk = engine.table.walk(space, page);
                    if walk.level == 1 && split_leaf(engine, space, page, &walk, 0) != Split::Retry {
                        thread::yield_now();
                    }
                    continue;
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
