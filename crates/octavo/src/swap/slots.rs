//! The slots that pages may have. These are the free slots of the clusters, without the slots that could not
//! be written, which are withheld.
//!
//! An area that has failed lately gives its slots in this order, before any area of a lower priority:
//!
//! 1. free slots of clusters that were used before;
//! 2. if many slots are withheld, some of the withheld slots, as an attempt;
//! 3. clusters that were never used.
//!
//! If few slots are withheld, the withheld slots come last.

use crate::swap::clusters::{Clusters, SlotRequest, SlotRun};
use crate::swap::unwritable::Unwritable;
use crate::sync::{AtomicBool, Ordering};
use crate::units::{CHUNK_FRAMES, SwapSlot};

/// The most slots that are withheld before some of them are tried again. Without this limit, a device that
/// fails for a while would use up all of its slots, and the budget would pay for the maps of all slots.
const MOST_WITHHELD: u32 = 2048;

/// New pages leave this many free slots plus free frames, so that pages that are out can come in
/// (`engine/growth.rs`).
const KEPT: u32 = 64;
/// New pages leave this many more if pages can be away: away pages take memory from home in chunks, and home
/// must stay usable.
const KEPT_FOR_AWAY: u32 = 2 * CHUNK_FRAMES;
/// A small swap keeps at most one in this many of its slots.
const KEPT_SHARE: u32 = 4;

/// The slots of all areas.
#[derive(Debug)]
pub(crate) struct Slots {
    clusters: Clusters,
    unwritable: Unwritable,
    /// Whether fewer slots than are kept were free at the last count.
    few: AtomicBool,
    /// Whether new pages may have to leave room because slots are few.
    guarded: AtomicBool,
}

impl Slots {
    pub(super) fn new(clusters: Clusters) -> Self {
        Self {
            unwritable: Unwritable::new(clusters.areas()),
            clusters,
            few: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
        }
    }

    /// Allocates up to `count` consecutive slots. Returns `None` if each area is full or refused by the
    /// caller. A caller that sets `may_grow` to false gets slots of clusters that were never used only if
    /// there are no other slots.
    pub(super) fn allocate(&self, count: u32, ask: SlotRequest<'_>) -> Option<SlotRun> {
        let run = self.allocate_some(count, ask);
        self.note_taken();
        run
    }

    fn allocate_some(&self, count: u32, ask: SlotRequest<'_>) -> Option<SlotRun> {
        let of_group = |group| self.allocate_in(group, count, ask);
        (0..self.clusters.groups()).find_map(of_group).or_else(|| {
            // Other threads may take the slots that are given back.
            while self.give_withheld_back(count, |area| !ask.shuns(area)) {
                let run = self.clusters.allocate(count, SlotRequest { may_grow: true, ..ask });
                if run.is_some() {
                    return run;
                }
            }
            None
        })
    }

    /// Allocates slots of the areas that have one priority.
    fn allocate_in(&self, group: usize, count: u32, ask: SlotRequest<'_>) -> Option<SlotRun> {
        let allocate = |may_grow| self.clusters.allocate_in(group, count, SlotRequest { may_grow, ..ask });
        let is_asked = |area| !ask.shuns(area) && self.clusters.is_of(group, area);
        let known = if ask.may_grow { None } else { allocate(false) };
        known
            .or_else(|| {
                let tries_again =
                    self.unwritable.withheld() >= MOST_WITHHELD && self.give_withheld_back(count, is_asked);
                if tries_again { allocate(ask.may_grow) } else { None }
            })
            .or_else(|| allocate(true))
    }

    /// Allocates a whole cluster, 512 consecutive slots. Returns `None` if no cluster is free.
    pub(super) fn allocate_huge(&self, ask: SlotRequest<'_>) -> Option<SwapSlot> {
        let first = self.clusters.allocate_huge(ask);
        self.note_taken();
        first
    }

    /// Notes whether slots are now few.
    fn note_taken(&self) {
        if self.are_guarded() || self.clusters.may_be_fewer_than(self.kept(true)) {
            self.count_free();
        }
    }

    /// Returns whether fewer slots than are kept were free at the last count.
    pub(super) fn are_few(&self) -> bool {
        self.few.load(Ordering::Relaxed)
    }

    /// Returns whether new pages may have to leave room for pages that come in.
    #[inline]
    pub(crate) fn are_guarded(&self) -> bool {
        // Relaxed: a hint. Pages that are added meanwhile take some of the slots that are kept.
        self.guarded.load(Ordering::Relaxed)
    }

    /// Returns how many free slots and frames, in sum, new pages leave.
    pub(crate) fn kept(&self, for_away: bool) -> u32 {
        let kept = if for_away { KEPT + KEPT_FOR_AWAY } else { KEPT };
        kept.min(self.clusters.capacity() / KEPT_SHARE)
    }

    /// Counts the slots that pages may have, and notes whether they are few.
    pub(super) fn count_free(&self) -> u32 {
        let free = self.clusters.free_slots();
        let (few, guarded) = (free < self.kept(false), free < self.kept(true));
        // A flag is written only if it changes, since all new pages read it.
        for (flag, now) in [(&self.few, few), (&self.guarded, guarded)] {
            if flag.load(Ordering::Relaxed) != now {
                flag.store(now, Ordering::Relaxed);
            }
        }
        free
    }

    /// Gives up to `count` withheld slots of the chosen areas back to the clusters, to be tried again.
    /// Returns whether there were such slots.
    #[cold]
    fn give_withheld_back(&self, count: u32, is_asked: impl Fn(usize) -> bool) -> bool {
        let area_of = |slot| self.clusters.area_of_slot(slot);
        self.unwritable.give_back(count as usize, is_asked, |slot| self.clusters.free(slot), area_of)
    }

    /// Frees a slot that nothing leads to any more.
    pub(super) fn free(&self, slot: SwapSlot) {
        if !self.unwritable.withhold(slot, |slot| self.clusters.area_of_slot(slot)) {
            self.clusters.free(slot);
        }
    }

    /// Notes that a slot could not be written.
    pub(super) fn note_unwritable(&self, slot: SwapSlot) {
        self.unwritable.note(slot);
    }

    /// Returns whether free slots are getting few.
    pub(super) fn is_crowded(&self) -> bool {
        self.clusters.is_crowded()
    }

    /// Returns whether no slot is free. Withheld slots count as free, since pages get them when there are no
    /// other slots.
    pub(crate) fn is_full(&self) -> bool {
        self.unwritable.withheld() == 0 && self.clusters.is_full()
    }

    /// Like [`Slots::is_full`], but for one area.
    pub(super) fn is_area_full(&self, area: usize) -> bool {
        self.unwritable.withheld_of(area) == 0 && self.clusters.is_area_full(area)
    }

    /// The number of slots in use of an area.
    pub(super) fn area_used(&self, area: usize) -> u32 {
        self.clusters.area_used(area).saturating_sub(self.unwritable.withheld_of(area))
    }

    /// The number of slots of an area that are withheld, because they could not be written.
    pub(super) fn area_withheld(&self, area: usize) -> u32 {
        self.unwritable.withheld_of(area)
    }

    /// The number of slots in use. Two counts are read one after the other, so their difference may be wrong
    /// for a moment.
    pub(crate) fn used(&self) -> u32 {
        self.clusters.used().saturating_sub(self.unwritable.withheld())
    }

    /// The clusters, for checks.
    pub(super) fn clusters(&self) -> &Clusters {
        &self.clusters
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::swap::clusters::{AreaShape, CLUSTER_SLOTS};
    use crate::sync::{Arc, Cpus};

    const CLUSTER: u32 = CLUSTER_SLOTS as u32;

    /// Makes areas. For each, the number of clusters and the priority are given.
    fn slots(areas: &[(u32, i32)]) -> Slots {
        let shape = |&(clusters, priority)| AreaShape { capacity_pages: clusters * CLUSTER, priority };
        let shapes: Vec<_> = areas.iter().map(shape).collect();
        let budget = Arc::new(Budget::new(1 << 30));
        Slots::new(Clusters::new(&shapes, budget, 0, Cpus::pretended(1, || 0)).unwrap())
    }

    fn allocate(slots: &Slots, count: u32, may_grow: bool, shunned: &[bool]) -> Option<(u32, u32)> {
        slots.allocate(count, SlotRequest { may_grow, shunned }).map(|run| (run.first.0, run.count))
    }

    fn withhold(slots: &Slots, range: std::ops::Range<u32>) {
        for slot in range.map(SwapSlot) {
            slots.note_unwritable(slot);
            slots.free(slot);
        }
    }

    #[test]
    fn places_that_were_written_come_before_those_that_failed_and_before_new_ones() {
        let slots = slots(&[(8, 0)]);
        for cluster in 0..5 {
            assert_eq!(allocate(&slots, CLUSTER, true, &[]), Some((cluster * CLUSTER, CLUSTER)));
        }
        withhold(&slots, CLUSTER..CLUSTER + MOST_WITHHELD);
        [7, 9].into_iter().for_each(|slot| slots.free(SwapSlot(slot)));
        assert_eq!(allocate(&slots, 64, false, &[]), Some((7, 1)));
        assert_eq!(allocate(&slots, 64, false, &[]), Some((9, 1)));
        assert_eq!(allocate(&slots, 64, false, &[]), Some((CLUSTER, 64)), "an attempt");
        assert_eq!(
            allocate(&slots, 64, false, &[]),
            Some((5 * CLUSTER, 64)),
            "no more of them than are asked for"
        );
        assert_eq!(slots.used(), CLUSTER + 64 + 64);
    }

    #[test]
    fn an_area_of_a_higher_priority_grows_before_another_is_asked() {
        let slots = slots(&[(2, 1), (1, 0)]);
        let other = allocate(&slots, CLUSTER, true, &[true, false]).unwrap().0;
        assert_eq!(allocate(&slots, CLUSTER, true, &[]), Some((0, CLUSTER)));
        slots.free(SwapSlot(other + 3));
        assert_eq!(allocate(&slots, 8, false, &[]), Some((CLUSTER, 8)));
        assert_eq!(allocate(&slots, 8, false, &[true, false]), Some((other + 3, 1)));
    }

    #[test]
    fn withheld_places_of_an_area_that_is_shunned_stay_withheld() {
        let slots = slots(&[(1, 0), (1, 0)]);
        let mut firsts = [0; 2].map(|_| allocate(&slots, CLUSTER, true, &[]).unwrap().0);
        firsts.sort_unstable();
        let [one, other] = firsts;
        withhold(&slots, one..one + 100);
        withhold(&slots, other..other + 100);
        let run = allocate(&slots, 64, false, &[true, false]);
        assert_eq!(run, Some((other, 64)));
        assert_eq!(slots.unwritable.withheld_of(0), 100);
        while allocate(&slots, 64, true, &[]).is_some() {}
        assert!(slots.is_full() && slots.unwritable.withheld() == 0);
    }
}
