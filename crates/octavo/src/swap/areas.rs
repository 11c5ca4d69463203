//! The areas that pages go to, as one row of slots.
//!
//! Each area is a device of its own. [`Clusters`](super::clusters::Clusters), made from the same
//! [`AreaShape`]s in the same order, knows which of its slots are free. Once the areas are open, only their
//! health changes.
//!
//! **Several areas.** An area that fails or is silent does not stop the other areas. It is *shunned* (it gets
//! no new pages) while another area is well and has room. A failing area still gets a batch now and then, as
//! a probe. A silent area gets nothing new until its first answer. The state of all areas together is the
//! state of the best area with room.

use smallvec::SmallVec;

use crate::error::Error;
use crate::io::{ANY_QUEUE, Device, Direction, Host, Job, Urgency, Waited};
use crate::store::Completing;
use crate::swap::area::{Area, timed_out};
use crate::swap::area_stats::AreaStats;
use crate::swap::clusters::{AreaShape, MOST_SLOTS, next_first_slot};
use crate::swap::health::{Condition, HealthWord};
use crate::swap::single_reads::SingleReads;
use crate::sync::{AtomicBool, Shared};
use crate::units::{PAGE_BYTES, SwapSlot, bytes_for_people};

/// The health words of all areas, read one after another.
pub(crate) type HealthSnapshot = SmallVec<[HealthWord; 2]>;

/// Whether each area is shunned. Empty if no area is shunned.
pub(super) type Shunned = SmallVec<[bool; 8]>;

/// All areas, in the order in which they were given.
pub(crate) struct Areas {
    areas: Box<[Area]>,
    /// Whether a completion panicked inside a call of a device.
    is_broken: Shared<AtomicBool>,
    pub(super) single_reads: SingleReads,
}

impl Areas {
    /// Numbers the places of each device. There are 2^31 numbers in all; places without a number are not
    /// used.
    pub(crate) fn new(devices: impl IntoIterator<Item = (Box<dyn Device>, AreaShape)>) -> Self {
        let is_broken = Shared::new(AtomicBool::new(false));
        let mut next = 0;
        let area = |(device, mut shape): (Box<dyn Device>, AreaShape)| {
            let first = next;
            let left = MOST_SLOTS.saturating_sub(first).try_into().unwrap_or(u32::MAX);
            shape.capacity_pages = shape.capacity_pages.min(device.capacity_pages()).min(left);
            next = next_first_slot(first, shape.capacity_pages);
            // If no number is left, the area has no places either.
            Area::new(device, shape, first.try_into().unwrap_or(u32::MAX), Shared::clone(&is_broken))
        };
        Self {
            areas: devices.into_iter().map(area).collect(),
            is_broken,
            single_reads: SingleReads::default(),
        }
    }

    /// How many areas there are.
    pub(crate) fn count(&self) -> usize {
        self.areas.len()
    }

    /// Returns whether there is no area.
    pub(crate) fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    /// The shape of each area.
    pub(crate) fn shapes(&self) -> Vec<AreaShape> {
        self.areas.iter().map(|area| area.shape).collect()
    }

    /// The first slot of each area.
    pub(crate) fn first_slots(&self) -> Vec<u32> {
        self.areas.iter().map(|area| area.first_slot).collect()
    }

    /// The slot at which another area would begin.
    pub(crate) fn end_slot(&self) -> u32 {
        self.areas.last().map_or(0, |last| {
            let end = next_first_slot(u64::from(last.first_slot), last.shape.capacity_pages);
            end.try_into().unwrap_or(u32::MAX)
        })
    }

    /// The index of the area that has a slot, and the place there.
    #[inline]
    pub(crate) fn locate(&self, slot: SwapSlot) -> (usize, u32) {
        let after = self.areas.partition_point(|area| area.first_slot <= slot.0);
        let index = after.checked_sub(1).expect("a slot of some area");
        (index, slot.0 - self.areas[index].first_slot)
    }

    /// The area that has a slot's page, and the place there.
    #[inline]
    pub(super) fn area_of(&self, slot: SwapSlot) -> (&Area, u32) {
        let (index, place) = self.locate(slot);
        (&self.areas[index], place)
    }

    // --- the devices ---

    /// Submits a job to the device of its slots. Returns false if the device is full; then nothing has begun.
    pub(super) fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool {
        let (area, place) = self.area_of(SwapSlot::named(job.first));
        if job.direction == Direction::Read {
            self.single_reads.note(job.count);
        }
        area.submit(host, job, place, urgency)
    }

    /// Starts the transfers that devices have only collected so far.
    pub(super) fn flush(&self) {
        self.areas.iter().for_each(Area::flush);
    }

    /// Completes the transfers that have ended.
    pub(super) fn poll(&self) {
        self.areas.iter().for_each(Area::poll);
    }

    /// Does what [`Device::wait`] does, for a thread that waits for any transfer.
    pub(super) fn wait_for_any(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        if let [only] = &*self.areas {
            return only.wait(ANY_QUEUE, still_waiting);
        }
        // The thread can wait in one area only. So the devices of all areas complete their transfers without
        // a thread that waits.
        self.serve();
        Waited::Sleep
    }

    /// Makes the devices complete transfers without a thread that waits.
    pub(super) fn serve(&self) {
        self.areas.iter().for_each(Area::serve);
    }

    /// Returns a guard, to be held while a completion runs.
    pub(super) fn completing(&self) -> Completing<'_> {
        Completing::begin(&self.is_broken)
    }

    // --- how they do ---

    /// The present health of each area.
    pub(crate) fn asked(&self) -> HealthSnapshot {
        self.areas.iter().map(Area::seen).collect()
    }

    /// Notes that a deadline has passed. When the wait for this deadline began, the areas' health was
    /// `asked`. Areas that have not answered since then are silent.
    pub(crate) fn note_silence(&self, asked: &HealthSnapshot) {
        for (area, before) in self.areas.iter().zip(asked) {
            area.note_silence(*before);
        }
    }

    /// The figures of each area. `used_slots` tells for an area's index how many of its slots are in use.
    pub(super) fn stats(&self, used_slots: impl Fn(usize) -> u32) -> Vec<AreaStats> {
        self.areas.iter().enumerate().map(|(index, area)| area.stats(used_slots(index))).collect()
    }

    /// How many writes have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.areas.iter().map(Area::failures).sum()
    }

    /// What to expect of a write: the state of the best area with room, or of the best area if none has room.
    pub(super) fn state(&self, has_room: impl Fn(usize) -> bool) -> Condition {
        let best = |some: &dyn Fn(usize) -> bool| {
            let states = self.areas.iter().enumerate().filter(|(index, _)| some(*index));
            states.map(|(_, area)| area.state()).min()
        };
        best(&has_room).or_else(|| best(&|_| true)).unwrap_or(Condition::Well)
    }

    /// Returns whether the area of a slot is not well, while another area with room is well.
    pub(super) fn are_better_than_that_of(&self, slot: SwapSlot, has_room: impl Fn(usize) -> bool) -> bool {
        let is_better = |(index, area): (usize, &Area)| area.state() == Condition::Well && has_room(index);
        self.area_of(slot).0.state() != Condition::Well && self.areas.iter().enumerate().any(is_better)
    }

    /// Returns whether transfers are in flight and all of these are on silent devices.
    pub(crate) fn keep_all(&self) -> bool {
        let mut busy = self.areas.iter().map(Area::seen).filter(|seen| seen.in_flight() > 0).peekable();
        busy.peek().is_some() && busy.all(|seen| seen.state() == Condition::Silent)
    }

    /// Returns whether some device is silent: it has not answered in time, and still owes the answer.
    pub(crate) fn owe_answers(&self) -> bool {
        self.areas.iter().any(|area| area.state() == Condition::Silent)
    }

    /// The number of pages that are now being written to silent devices.
    pub(crate) fn silent_writing_pages(&self) -> u32 {
        let silent = self.areas.iter().filter(|area| area.state() == Condition::Silent);
        silent.map(Area::writing_pages).sum()
    }

    /// The areas that get no new pages now.
    pub(super) fn shunned(&self, has_room: impl Fn(usize) -> bool) -> Shunned {
        if self.areas.iter().all(|area| area.state() == Condition::Well) {
            return Shunned::new();
        }
        let is_shunned = |area: &Area| match area.state() {
            Condition::Well => false,
            Condition::Failing => !area.is_to_be_probed(),
            Condition::Silent => true,
        };
        let mut shunned: Shunned = self.areas.iter().map(is_shunned).collect();
        if !shunned.iter().enumerate().any(|(index, shunned)| !shunned && has_room(index)) {
            // No failing area is due for a probe, and no area is better.
            shunned = self.areas.iter().map(|area| area.state() == Condition::Silent).collect();
        }
        shunned
    }

    /// Returns whether a write failed lately in one of the best areas.
    pub(super) fn are_cautious(&self) -> bool {
        let best = self.areas.iter().map(Area::state).min();
        self.areas.iter().map(Area::seen).any(|seen| seen.is_cautious() && Some(seen.state()) == best)
    }

    /// The reason why pages cannot go to areas of this state. The reasons of areas that have room come first.
    #[cold]
    pub(super) fn failure(&self, state: Condition, has_room: impl Fn(usize) -> bool) -> Option<Error> {
        let failure = |room: bool| {
            let mut asked = self.areas.iter().enumerate();
            asked.find_map(|(index, area)| {
                let is_asked = area.state() == state && has_room(index) == room;
                is_asked.then(|| area.failure()).flatten()
            })
        };
        failure(true).or_else(|| failure(false))
    }

    /// The error for an access whose time ran out while it waited for the device of a slot.
    #[cold]
    pub(crate) fn timed_out_at(&self, slot: SwapSlot) -> Error {
        timed_out(&self.area_of(slot).0.name)
    }

    /// The error for an access whose time ran out while it waited for no particular device.
    #[cold]
    pub(crate) fn timed_out(&self) -> Error {
        let busy = || self.areas.iter().filter(|area| area.seen().in_flight() > 0);
        match busy().find(|area| area.state() == Condition::Silent).or_else(|| busy().next()) {
            Some(area) => timed_out(&area.name),
            None => timed_out(&self.describe()),
        }
    }

    /// The names of all areas, for messages.
    pub(crate) fn describe(&self) -> String {
        if self.areas.is_empty() {
            return "nothing".into();
        }
        let names: Vec<_> = self.areas.iter().map(|area| &*area.name).collect();
        names.join(", ")
    }

    /// The start of a message: all areas are full, how much of each is in use, and how much of it could not
    /// be written. `pages` counts the pages of the two for an area.
    #[cold]
    pub(crate) fn describe_full(&self, pages: impl Fn(usize) -> (u32, u32)) -> String {
        let full = self.areas.iter().enumerate().map(|(index, area)| {
            let bytes = |pages| bytes_for_people(u64::from(pages) * PAGE_BYTES as u64);
            let (used, withheld) = pages(index);
            let failed = match withheld {
                0 => String::new(),
                pages => format!(", writing to {} of it failed", bytes(pages)),
            };
            let (used, most) = (bytes(used), bytes(area.shape.capacity_pages));
            format!("{} is full ({used} of at most {most} in use{failed})", area.name)
        });
        full.collect::<Vec<_>>().join(", ")
    }
}

impl std::fmt::Debug for Areas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Areas").field(&self.describe()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::io::test_device::TestDevice;
    use crate::swap::clusters::{CLUSTER_SLOTS, Clusters, SlotRequest};
    use crate::sync::{Arc, Cpus};
    use crate::units::StoredPage;

    fn areas(devices: &[(&'static str, u32, i32)]) -> Areas {
        Areas::new(devices.iter().map(|&(name, capacity_pages, priority)| {
            (TestDevice::new(capacity_pages).named(name).boxed(), AreaShape { capacity_pages, priority })
        }))
    }

    fn clusters(areas: &Areas) -> Clusters {
        Clusters::new(&areas.shapes(), Arc::new(Budget::new(1 << 30)), 0, Cpus::pretended(1, || 0)).unwrap()
    }

    #[test]
    fn every_slot_handed_out_is_a_place_of_its_own() {
        let areas = areas(&[("a", 700, 0), ("none", 0, 7), ("b", 512, 3), ("c", 1, 3), ("d", 1500, -2)]);
        let clusters = clusters(&areas);
        let mut places = std::collections::HashSet::new();
        while let Some(run) = clusters.allocate(300, SlotRequest { may_grow: true, shunned: &[] }) {
            for slot in run.first.0..run.first.0 + run.count {
                let (area, place) = areas.area_of(SwapSlot(slot));
                assert!(place < area.shape.capacity_pages, "place {place} of {}", area.name);
                assert!(places.insert((area.name.clone(), place)));
            }
        }
        assert_eq!(places.len(), 700 + 512 + 1 + 1500);
        let full = areas.describe_full(|area| (clusters.area_used(area), u32::from(area == 3) * 2));
        assert_eq!(
            full,
            "a is full (2.7 MiB of at most 2.7 MiB in use), none is full (0 bytes of at most 0 bytes in use), \
             b is full (2 MiB of at most 2 MiB in use), c is full (4 KiB of at most 4 KiB in use, \
             writing to 8 KiB of it failed), d is full (5.9 MiB of at most 5.9 MiB in use)"
        );
        assert_eq!(areas.describe(), "a, none, b, c, d");
    }

    #[test]
    fn an_area_begins_at_a_cluster_after_a_gap() {
        let areas = areas(&[("a", 513, 0), ("b", 512, 0), ("c", 1, 0)]);
        let place = |slot| {
            let (area, place) = areas.area_of(SwapSlot(slot));
            (area.name.clone(), place)
        };
        let cluster = CLUSTER_SLOTS as u32;
        assert_eq!(place(cluster), ("a".into(), cluster));
        assert_eq!(place(2 * cluster), ("b".into(), 0));
        assert_eq!(place(3 * cluster - 1), ("b".into(), cluster - 1));
        assert_eq!(place(4 * cluster), ("c".into(), 0), "the number after b's last is nobody's");
    }

    #[test]
    fn places_without_a_number_are_not_used() {
        let huge = StoredPage::MOST;
        let areas = areas(&[("a", huge - 700, 0), ("b", huge, 0), ("c", huge, 0)]);
        let places: Vec<_> = areas.shapes().iter().map(|shape| shape.capacity_pages).collect();
        assert_eq!(places[0], huge - 700);
        assert!((1..700).contains(&places[1]) && places[2] == 0, "{places:?}");
        assert_eq!(clusters(&areas).capacity(), places.iter().sum::<u32>());
    }
}
