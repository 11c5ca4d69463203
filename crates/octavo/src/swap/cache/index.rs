//! From a slot to its frame, in three forms.
//!
//! | form | frames and shadows stand in | changes take | start and end of a writeback |
//! |---|---|---|---|
//! | `TaggedTree` (base) | a mapping for each area, with tags | its lock, once a page | its lock, and set and clear tags |
//! | `IndexTree` (patched) | a mapping for each area, without | its lock, once a page | flip the frame's flag, no lock |
//! | `Table` (best) | the slot's own word | the cluster's lock, which is held anyway | as `IndexTree` |
//!
//! Every change of a slot is made under its cluster's lock, and the mapping's lock comes after. So in every
//! form, a slot keeps its frame while a thread holds the cluster's lock.

use crate::budget::Budget;
use crate::config::SwapCache;
use crate::frame::{FrameWords, PageIs};
use crate::mapping::{Mapping, PageWord, Tag, Tags};
use crate::store::Started;
use crate::swap::cache::words::{SlotWords, slot_of};
use crate::sync::Arc;
use crate::units::{FrameId, SwapSlot};

#[derive(Debug)]
pub(super) enum SlotIndex {
    /// One tree for each area, in the order of their slots.
    Trees(Box<[IndexTree]>),
    Table,
}

#[derive(Debug)]
pub(super) struct IndexTree {
    first: u32,
    mapping: Mapping,
}

impl SlotIndex {
    /// Makes an index for areas that begin at the slots `areas`, with `end` slots in all.
    pub(super) fn new(
        form: SwapCache,
        areas: &[u32],
        end: u32,
        budget: &Arc<Budget>,
    ) -> std::io::Result<Self> {
        let tags = match form {
            SwapCache::TaggedTree => Tags::Kept,
            SwapCache::Tree => Tags::None,
            SwapCache::Table => return Ok(Self::Table),
        };
        let tree = |(at, &first): (usize, &u32)| {
            let slots = areas.get(at + 1).unwrap_or(&end) - first;
            let mapping = Mapping::new(slots as usize, u64::from(slots), tags, Arc::clone(budget))?;
            Ok(IndexTree { first, mapping })
        };
        Ok(Self::Trees(areas.iter().enumerate().map(tree).collect::<std::io::Result<_>>()?))
    }

    /// The mapping of a slot's area, and the slot's index there, or `None` if there are no mappings.
    #[inline]
    pub(super) fn mapping(&self, slot: SwapSlot) -> Option<(&Mapping, u64)> {
        match self {
            Self::Table => None,
            Self::Trees(trees) => {
                let tree = &trees[trees.partition_point(|tree| tree.first <= slot.0) - 1];
                Some((&tree.mapping, u64::from(slot.0 - tree.first)))
            }
        }
    }

    fn tagged(&self, slot: SwapSlot) -> Option<(&Mapping, u64)> {
        self.mapping(slot).filter(|(mapping, _)| mapping.keeps_tags())
    }

    /// Returns whether the start and the end of a writeback take a lock.
    pub(super) fn locks_writeback(&self) -> bool {
        matches!(self, Self::Trees(trees) if trees.iter().any(|tree| tree.mapping.keeps_tags()))
    }

    /// The word of a slot, without any lock. [`Mapping::peek`] says how far to trust it.
    #[inline]
    pub(super) fn peek(&self, slot: SwapSlot, words: &SlotWords) -> PageWord {
        self.mapping(slot).map_or_else(|| words.frame(), |(mapping, index)| mapping.peek(index))
    }

    // --- under the slot's lock ---

    /// Sets a frame. Returns the word before, such as a shadow.
    pub(super) fn put(&self, slot: SwapSlot, words: &SlotWords, frame: FrameId) -> PageWord {
        let Some((mapping, index)) = self.mapping(slot) else {
            let before = words.frame();
            words.set_frame(PageWord::frame(frame));
            return before;
        };
        if words.frame() != PageWord::NOTHING {
            words.set_frame(PageWord::NOTHING);
        }
        mapping.lock().set(index, PageWord::frame(frame))
    }

    /// Clears the slot.
    pub(super) fn forget(&self, slot: SwapSlot, words: &SlotWords) {
        let Some((mapping, index)) = self.mapping(slot) else {
            return words.set_frame(PageWord::NOTHING);
        };
        let mut changes = mapping.lock();
        if let Some(place) = changes.find(index) {
            changes.remove(&place, PageWord::NOTHING);
        }
    }

    /// Replaces the shadow, if there is one.
    pub(super) fn replace_shadow(&self, slot: SwapSlot, words: &SlotWords, left: PageWord) {
        let Some((mapping, index)) = self.mapping(slot) else {
            if words.frame().as_shadow().is_some() {
                words.set_frame(left);
            }
            return;
        };
        let mut changes = mapping.lock();
        if let Some(place) = changes.find(index).filter(|place| changes.word(place).as_shadow().is_some()) {
            changes.replace(&place, left);
        }
    }

    /// Removes the frame, leaves a shadow, and calls `gone`. If `gone` returns false, the frame is put back.
    /// While `gone` runs, look-ups find nothing: `gone` sees the pin of an earlier look-up, and a later
    /// look-up sees that the frame is not there.
    pub(super) fn forget_if(
        &self,
        slot: SwapSlot,
        words: &SlotWords,
        frame: FrameId,
        left: PageWord,
        gone: impl FnOnce() -> bool,
    ) -> bool {
        let Some((mapping, index)) = self.mapping(slot) else {
            words.set_frame(left);
            let is_gone = gone();
            if !is_gone {
                words.set_frame(PageWord::frame(frame));
            }
            return is_gone;
        };
        let mut changes = mapping.lock();
        let place = changes.find(index).expect("a cached frame is in the tree");
        changes.replace(&place, PageWord::RESERVED);
        let is_gone = gone();
        if is_gone {
            changes.remove(&place, left);
        } else {
            changes.replace(&place, PageWord::frame(frame));
        }
        is_gone
    }

    // --- writeback, by the thread that has the frame isolated and pinned ---

    pub(super) fn start_writeback(
        &self,
        slot: SwapSlot,
        frame: FrameId,
        words: &FrameWords,
        page: PageIs,
    ) -> Started {
        let Some((mapping, index)) = self.tagged(slot) else { return start_unlocked(slot, words, page) };
        let mut changes = mapping.lock();
        let Some(place) = changes.find(index).filter(|place| changes.word(place) == PageWord::frame(frame))
        else {
            return Started::Refused;
        };
        // Under the lock, the slot belongs to the frame, and the flag and the tag change together.
        if !words.holds.start_writeback(page) {
            return Started::Refused;
        }
        changes.set_tag(&place, Tag::Writeback);
        if !words.holds.load().is_dirty() {
            changes.clear_tag(&place, Tag::Dirty);
        }
        changes.clear_tag(&place, Tag::ToWrite);
        Started::Yes
    }

    /// Ends a writeback. Returns whether a thread waits for the frame.
    pub(super) fn end_writeback(&self, slot: SwapSlot, words: &FrameWords, written: bool) -> bool {
        let Some((mapping, index)) = self.tagged(slot) else { return words.holds.end_writeback(written) };
        let mut changes = mapping.lock();
        let waiters = words.holds.end_writeback(written);
        let place = changes.find(index).expect("a page under writeback is never removed");
        changes.clear_tag(&place, Tag::Writeback);
        waiters
    }

    /// Checks that the trees are sound, and that the tag of each page agrees with the flag of its frame.
    /// Linear; no other thread may be at work.
    pub(super) fn validate(&self, is_written: &dyn Fn(FrameId) -> bool) {
        let Self::Trees(trees) = self else { return };
        for IndexTree { mapping, first } in trees {
            let changes = mapping.lock();
            changes.validate();
            if mapping.keeps_tags() {
                let mut next = changes.next_tagged(0, Tag::Writeback);
                while let Some((index, word)) = next {
                    let frame = word.as_frame().expect("only frames are written");
                    assert!(
                        is_written(frame),
                        "slot {} is tagged and not written",
                        u64::from(*first) + index
                    );
                    next = changes.next_tagged(index + 1, Tag::Writeback);
                }
            }
        }
    }

    /// Under the slot's lock: checks that a page has the tag WRITEBACK if its frame has the flag. The write
    /// may be ending, so both are read under the tree's lock.
    pub(super) fn validate_writeback(&self, slot: SwapSlot, words: &FrameWords) {
        let Some((mapping, index)) = self.tagged(slot) else { return };
        let changes = mapping.lock();
        let is_tagged = changes.find(index).is_some_and(|place| changes.has_tag(&place, Tag::Writeback));
        assert_eq!(is_tagged, words.holds.load().is_writeback(), "tag and flag agree");
    }
}

/// Changes DIRTY, or clean, to WRITEBACK without a lock.
///
/// Three kinds of thread could take the slot from the frame meanwhile:
/// - A thread that detaches the frame, or forgets it because its read failed, holds a pin.
///   `HoldWord::start_writeback` fails while that thread holds its pin. Once the pin is dropped, the start
///   acquires the thread's changes, so the second check below sees them.
/// - A thread that forgets an orphan takes the frame out of LIVE before it touches the slot, by a
///   read-modify-write that fails under WRITEBACK. If the read-modify-write comes first, this start fails. If
///   this start comes first, the read-modify-write fails.
/// - A thread that evicts a frame must hold the only pin. It cannot, since the caller of this function has a
///   pin.
fn start_unlocked(slot: SwapSlot, words: &FrameWords, page: PageIs) -> Started {
    // This first check only saves setting the flag and clearing it again.
    if slot_of(words) != Some(slot) || !words.holds.start_writeback(page) {
        return Started::Refused;
    }
    if slot_of(words) == Some(slot) {
        return Started::Yes;
    }
    // The frame left the cache between the two checks. For a moment, its word said that the frame was being
    // written.
    if words.holds.cancel_writeback() { Started::RefusedAndAwaited } else { Started::Refused }
}
