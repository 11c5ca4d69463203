//! Clears a range of a table, or changes its permissions.
//!
//! The caller holds the space's layout lock, has changed the regions first, and has then split the blocks
//! over the range's edges (`edges.rs`). The head of `table/mod.rs` explains why clearing is safe against
//! faults under way and late walkers.
//!
//! Pages that are away are Busy while the translation is asked about them, many at once. Before the thread
//! blocks on another thread's Busy entry, it asks about its own batch.

use smallvec::SmallVec;

use crate::engine::{Batch, Engine, SpaceState};
use crate::rmap::Owner;
use crate::sizes::{FEW_TRANSLATED, TRANSLATED};
use crate::store::Reference;
use crate::table::entry::{Entry, EntryWord, NodeId, State};
use crate::table::translation::{Home, Remove};
use crate::table::{PageNumberRange, Protection, span};
use crate::units::{FrameId, PageNumber};

/// The change to the entries of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Clear,
    /// As `Clear`, but the other side has already dropped the pages that were away.
    Forget,
    /// As `Clear`, in a space that is being dropped. No fault can happen in it any more.
    ClearLast,
    Protect(Protection),
}

/// One change of one range.
struct Changing<'a> {
    engine: &'a Engine,
    space: &'a SpaceState,
    range: PageNumberRange,
    change: Change,
    away: SmallVec<[AwayLeaf<'a>; FEW_TRANSLATED]>,
    /// Whether the translation has done everything that it was asked for.
    is_done: bool,
}

/// A leaf that is away, and Busy until the translation has been asked.
struct AwayLeaf<'a> {
    page: PageNumber,
    level: usize,
    word: &'a EntryWord,
    before: Entry,
    busy: Entry,
    /// The permissions that are left. `None` if the leaf becomes empty.
    narrowed: Option<Protection>,
}

/// Removes everything that the table has in the range, and recycles the nodes that it covers.
pub(crate) fn unmap_range(engine: &Engine, space: &SpaceState, range: PageNumberRange) {
    Changing::new(engine, space, range, Change::Clear).clear_root();
}

/// Removes everything that the table has in the range. The other side has already dropped its part.
pub(crate) fn forget_range(engine: &Engine, space: &SpaceState, range: PageNumberRange) {
    Changing::new(engine, space, range, Change::Forget).clear_root();
}

/// Removes everything that a dropped space had, its root included.
pub(crate) fn clear_space(engine: &Engine, space: &SpaceState) {
    let range = PageNumberRange::from(PageNumber(0));
    Changing::new(engine, space, range, Change::ClearLast).clear_root();
}

/// Gives every present page of the range these permissions, and makes faults under way look again. A zero
/// page that may no longer be read becomes empty. A page that is away only loses permissions here; a fault
/// gives it more. Returns `false` if the space's translation cannot take permissions away from some of the
/// pages.
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

/// Returns the root and its node, or `None` if there is no node. Faults under way find the same root, or find
/// that the regions have changed.
fn root_when_not_busy(engine: &Engine, space: &SpaceState) -> Option<(Entry, NodeId)> {
    let root = engine.table.root(space.id);
    loop {
        let seen = root.load();
        match seen.state() {
            // A fault that makes the root taller has done so before this, or looks at the regions again.
            State::Node(_) if !root.confirm(seen) => {}
            State::Node(node) => return Some((seen, node)),
            // A fault may be about to put a node here. After the version bump, it looks at the regions again.
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

    /// Returns `false` if the entry has changed and must be looked at again.
    fn change_entry(&mut self, word: &'a EntryWord, level: usize, page: PageNumber) -> bool {
        let seen = word.load();
        match seen.state() {
            State::Busy => {
                // The entry may be one of this thread's own, on the second way through a node.
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
                Change::Clear | Change::Forget | Change::ClearLast => {
                    self.clear_leaf(word, seen, level, page)
                }
            },
        }
    }

    fn clear_leaf(&mut self, word: &'a EntryWord, seen: Entry, level: usize, page: PageNumber) -> bool {
        let last = self.change == Change::ClearLast;
        match seen.state() {
            State::Empty => last || word.change(seen, seen.to_same()).is_ok(),
            _ if seen.is_away() && self.change != Change::Forget => {
                self.make_busy(word, seen, level, page, None)
            }
            State::Zero if last => {
                // Only reclaim still walks here, and it never changes a zero leaf.
                word.set_unshared(seen.to_empty());
                self.end_zeros(level)
            }
            // A huge zero leaf may lose pages outside the range too. A fault makes them read as zeros again.
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
                    self.engine.drop_reference(Reference::counted(slot.stored()));
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
                // If the entry allows nothing, the permissions at the other side may be unknown.
                if narrowed == before && before != Protection::NONE {
                    return word.change(seen, seen.to_same()).is_ok();
                }
                self.make_busy(word, seen, level, page, Some(narrowed))
            }
            State::Present(_) => {
                // In a space with a translation, the next access checks whether the frame is shared.
                let is_known = self.space.translation.is_none();
                let protection = if is_known { protection } else { Protection::NONE };
                word.change(seen, seen.with_protection(protection)).is_ok()
            }
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

    /// Makes a leaf Busy, and adds it to the next batch for the translation.
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

    /// Asks the translation about the batch of Busy leaves, and publishes them.
    fn ask(&mut self) {
        let away = std::mem::take(&mut self.away);
        let Some(translation) = self.space.translation.as_deref().filter(|_| !away.is_empty()) else {
            return;
        };
        let (mut remove, mut protect) = (Batch::new(), Batch::new());
        for leaf in &away {
            let pages = span(leaf.level) as u32;
            match leaf.narrowed {
                None => remove.add(leaf.page, pages, Remove::DROP),
                Some(narrowed) => protect.add(leaf.page, pages, narrowed),
            }
        }
        let home = Home::new(self.engine.frames.bytes());
        // The bytes are dropped. Every translation can do that, so one that has panicked is asked again.
        let is_gone = remove.insist(|runs| translation.remove(home, runs));
        let mut again = Batch::new();
        let leaving = away.iter().filter(|leaf| leaf.narrowed.is_none());
        for (leaf, _) in leaving.zip(is_gone).filter(|(_, is_gone)| !is_gone) {
            again.add(leaf.page, span(leaf.level) as u32, Remove::DROP);
        }
        again.insist(|runs| translation.remove(home, runs));
        let mut protected = protect.insist(|runs| translation.protect(runs)).into_iter();
        for AwayLeaf { page, level, word, before, busy, narrowed } in away {
            match (narrowed, before.state()) {
                (Some(_), State::Present(frame)) if protected.next() == Some(false) => {
                    self.is_done = false;
                    let mut shown = busy.to_what_was(before);
                    // A part of a block may have been changed, or a page whose answer was lost in a panic.
                    let mut back = Batch::new();
                    back.add(page, span(level) as u32, before.protection());
                    if back.insist(|runs| translation.protect(runs)).contains(&false) {
                        // The permissions at the other side are unknown. The next fault there, and the next
                        // change, ask again.
                        self.engine.frames.words(frame).holds.mark_dirty();
                        self.engine.give_place_up(frame);
                        shown = shown.with_protection(Protection::NONE);
                    }
                    self.engine.publish(word, shown);
                }
                (Some(narrowed), State::Present(frame)) => {
                    if before.protection().write && !narrowed.write {
                        // The other side may have stored to the page, and the entry no longer says so.
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

    /// Unlinks a node that the range covers, and bumps its entries once more, so that late walkers cannot
    /// mistake new entries for those that they saw. Then the node can be reused.
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
