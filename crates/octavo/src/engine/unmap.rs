//! Clearing a range of a table, and changing what may be done with one.
//!
//! The caller holds the space's layout lock, has changed the regions first, and has then split the blocks over the range's
//! edges (`edges.rs`). The head of `table/mod.rs` has the rules that make clearing safe against faults under way and late
//! walkers.
//!
//! Pages that are away are Busy while the translation is asked, many at once. Nobody blocks on another's Busy entry meanwhile:
//! the batch is asked first.

use smallvec::SmallVec;

use crate::engine::{Batch, Engine, SpaceState};
use crate::rmap::Owner;
use crate::sizes::TRANSLATED;
use crate::table::entry::{Entry, EntryWord, NodeId, State};
use crate::table::translation::{Home, Remove};
use crate::table::{PageNumberRange, Protection, span};
use crate::units::{FrameId, PageNumber};

/// What happens to what a table has in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Clear,
    /// As Clear, and nobody can fault in this space any more: it is being dropped.
    ClearLast,
    Protect(Protection),
}

/// One change of one range.
struct Changing<'a> {
    engine: &'a Engine,
    space: &'a SpaceState,
    range: PageNumberRange,
    change: Change,
    away: SmallVec<[AwayLeaf<'a>; TRANSLATED]>,
    /// Whether the translation could do all that it was asked for.
    is_done: bool,
}

/// A leaf that is away, and Busy until the translation has been asked.
struct AwayLeaf<'a> {
    page: PageNumber,
    level: usize,
    word: &'a EntryWord,
    before: Entry,
    busy: Entry,
    /// `None`: it is to be empty.
    narrowed: Option<Protection>,
}

/// Removes everything that the table has in the range, and recycles the nodes that it covers.
pub(crate) fn unmap_range(engine: &Engine, space: &SpaceState, range: PageNumberRange) {
    Changing::new(engine, space, range, Change::Clear).clear_root();
}

/// Removes everything that a dropped space had, its root included.
pub(crate) fn clear_space(engine: &Engine, space: &SpaceState) {
    let range = PageNumberRange::from(PageNumber(0));
    Changing::new(engine, space, range, Change::ClearLast).clear_root();
}

/// Gives every present page of the range these permissions, and makes faults under way look again. A zero page that may no
/// longer be read becomes empty. A page that is away only loses permissions; a fault gives it more. False: the space's
/// translation cannot take permissions away from some of the pages.
pub(crate) fn protect_range(
    engine: &Engine,
    space: &SpaceState,
    range: PageNumberRange,
    protection: Protection,
) -> bool {
    let mut changing = Changing::new(engine, space, range, Change::Protect(protection));
    if let Some((seen, node)) = root_when_not_busy(engine, space) {
        changing.change_node(node, seen.root_level(), PageNumber(0));
        changing.ask();
    }
    changing.is_done
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
            // A fault may be about to put a node here. After the bump it looks at the regions again.
            _ if root.change(seen, seen.to_same()).is_ok() => return None,
            _ => {}
        }
    }
}

impl<'a> Changing<'a> {
    fn new(engine: &'a Engine, space: &'a SpaceState, range: PageNumberRange, change: Change) -> Self {
        Self { engine, space, range, change, away: SmallVec::new(), is_done: true }
    }

    fn clear_root(&mut self) {
        while let Some((seen, node)) = root_when_not_busy(self.engine, self.space) {
            self.change_node(node, seen.root_level(), PageNumber(0));
            self.ask();
            if self.change != Change::ClearLast {
                return;
            }
            let root = self.engine.table.root(self.space.id);
            if root.change(seen, seen.to_empty()).is_ok() {
                self.engine.table.nodes.give_back(node);
                return;
            }
        }
    }

    fn change_node(&mut self, node: NodeId, level: usize, first: PageNumber) {
        for (page, word) in self.engine.table.entries(node, level, first, self.range) {
            while !self.change_entry(word, level, page) {}
        }
    }

    /// False: the entry has changed meanwhile, and is to be looked at again.
    fn change_entry(&mut self, word: &'a EntryWord, level: usize, page: PageNumber) -> bool {
        let seen = word.load();
        match seen.state() {
            State::Busy => {
                // It may be one of ours, on the second way through a node.
                self.ask();
                self.engine.block_on_entry(word);
                false
            }
            State::Node(node) => {
                self.change_node(node, level - 1, page);
                let is_kept = matches!(self.change, Change::Protect(_)) || !self.range.covers(page, level);
                is_kept || self.recycle(word, seen, node, level, page)
            }
            State::Present(_) if !self.range.covers(page, level) => {
                unreachable!("blocks over the edges are split before a range is changed")
            }
            _ => match self.change {
                Change::Protect(protection) => self.protect_leaf(word, seen, level, page, protection),
                Change::Clear | Change::ClearLast => self.clear_leaf(word, seen, level, page),
            },
        }
    }

    fn clear_leaf(&mut self, word: &'a EntryWord, seen: Entry, level: usize, page: PageNumber) -> bool {
        let last = self.change == Change::ClearLast;
        match seen.state() {
            State::Empty => last || word.change(seen, seen.to_same()).is_ok(),
            _ if seen.is_away() => self.make_busy(word, seen, level, page, None),
            State::Zero if last => {
                // Only reclaim still walks here, and it never changes a zero leaf.
                word.set_unshared(seen.to_empty());
                self.end_zeros(level)
            }
            // A huge zero leaf may lose pages outside the range too: they read as zeros again by a fault.
            State::Zero => word.change(seen, seen.to_empty()).is_ok() && self.end_zeros(level),
            State::Present(frame) => {
                let cleared = word.change(seen, seen.to_empty()).is_ok();
                if cleared {
                    self.disown(frame, page);
                }
                cleared
            }
            State::Swapped(slot) => {
                let cleared = word.change(seen, seen.to_empty()).is_ok();
                if cleared {
                    let orphan = self.engine.swap.cache.drop_reference(&self.engine.frames, slot);
                    self.engine.release_orphan(orphan);
                }
                cleared
            }
            State::Busy | State::Node(_) => unreachable!("no leaf"),
        }
    }

    fn protect_leaf(
        &mut self,
        word: &'a EntryWord,
        seen: Entry,
        level: usize,
        page: PageNumber,
        protection: Protection,
    ) -> bool {
        match seen.state() {
            State::Present(_) if seen.is_away() => {
                let before = seen.protection();
                let narrowed = before.both(protection);
                if narrowed == before {
                    return word.change(seen, seen.to_same()).is_ok();
                }
                self.make_busy(word, seen, level, page, Some(narrowed))
            }
            State::Present(_) => word.change(seen, seen.with_protection(protection)).is_ok(),
            State::Zero if !protection.read && seen.is_away() => {
                self.make_busy(word, seen, level, page, None)
            }
            State::Zero if !protection.read => {
                word.change(seen, seen.to_empty()).is_ok() && self.end_zeros(level)
            }
            _ => word.change(seen, seen.to_same()).is_ok(),
        }
    }

    fn end_zeros(&self, level: usize) -> bool {
        if level == 1 {
            self.engine.huge_zero.put(1);
        }
        true
    }

    fn disown(&self, frame: FrameId, page: PageNumber) {
        self.engine.disown(frame, Owner { space: self.space.id, page });
    }

    /// Puts a leaf with those of which the translation is asked next.
    fn make_busy(
        &mut self,
        word: &'a EntryWord,
        before: Entry,
        level: usize,
        page: PageNumber,
        narrowed: Option<Protection>,
    ) -> bool {
        let busy = before.to_busy();
        if word.change(before, busy).is_err() {
            return false;
        }
        self.away.push(AwayLeaf { page, level, word, before, busy, narrowed });
        if self.away.len() == TRANSLATED {
            self.ask();
        }
        true
    }

    /// Asks the translation about the leaves that are busy, and publishes them.
    fn ask(&mut self) {
        let away = std::mem::take(&mut self.away);
        let Some(translation) = self.space.translation.as_deref().filter(|_| !away.is_empty()) else {
            return;
        };
        let (mut remove, mut protect) = (Batch::new(), Batch::new());
        for leaf in &away {
            let pages = span(leaf.level) as u32;
            match leaf.narrowed {
                None => remove.add(leaf.page, pages, Remove { to: None }),
                Some(narrowed) => protect.add(leaf.page, pages, narrowed),
            }
        }
        let home = Home::new(self.engine.frames.bytes());
        // The bytes are nobody's any more: every translation can do that.
        remove.insist(|runs| translation.remove(home, runs));
        let is_protected = protect.insist(|runs| translation.protect(runs));
        self.is_done &= is_protected;
        for AwayLeaf { page, level, word, before, busy, narrowed } in away {
            match (narrowed, before.state()) {
                (Some(narrowed), State::Present(frame)) => {
                    if !is_protected {
                        // The other side may still store to it, and the entry no longer says so.
                        self.engine.frames.words(frame).holds.mark_dirty();
                    }
                    self.engine.publish(word, busy.to_what_was(before).with_protection(narrowed));
                }
                (None, State::Present(frame)) => {
                    self.engine.publish(word, busy.to_empty());
                    self.disown(frame, page);
                }
                _ => {
                    self.engine.publish(word, busy.to_empty());
                    self.end_zeros(level);
                }
            }
        }
    }

    /// Unlinks a node that the range covers and bumps its entries once more, so that late walkers cannot take what
    /// they see for what they knew. Then it is anyone's.
    fn recycle(
        &mut self,
        word: &EntryWord,
        seen: Entry,
        node: NodeId,
        level: usize,
        page: PageNumber,
    ) -> bool {
        self.ask();
        if word.change(seen, seen.to_empty()).is_err() {
            return false;
        }
        if self.change != Change::ClearLast {
            self.change_node(node, level - 1, page);
            self.ask();
        }
        self.engine.table.nodes.give_back(node);
        true
    }
}
