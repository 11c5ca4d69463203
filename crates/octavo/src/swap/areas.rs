//! The areas that pages go to, as one row of slots.
//!
//! Each area is a device of its own; which slots of it are free is known to [`Clusters`](super::clusters::Clusters),
//! made from the same [`AreaShape`]s in the same order. Nothing changes after they were opened.

use std::io;
use std::panic::resume_unwind;

use crate::io::{ANY_QUEUE, Device, Host, Job, Submitted, Transfer, Urgency, Waited};
use crate::store::Completing;
use crate::swap::clusters::{AreaShape, MOST_SLOTS, next_first_slot};
use crate::swap::health::Health;
use crate::sync::{AtomicBool, Ordering, Shared, catch_panic};
use crate::units::{PAGE_BYTES, SwapSlot, bytes_for_people};

/// A device, and which slots are its places.
struct Area {
    device: Box<dyn Device>,
    health: Health,
    shape: AreaShape,
    first_slot: u32,
}

/// All areas, in the order in which they were given.
///
/// A device may be the caller's, and panic. The panic ends here: the unwinding drops the transfer, which ends with an error,
/// and everybody who waits for it is told. A panic of ours in a completion goes on.
pub(crate) struct Areas {
    areas: Box<[Area]>,
    /// A completion of ours panicked, inside a device's call.
    is_broken: AtomicBool,
}

impl Areas {
    /// Numbers the places that each device offers, which may be fewer than it has. Those that no number is left for
    /// are not used: there are 2^31 in all.
    pub(crate) fn new(devices: impl IntoIterator<Item = (Box<dyn Device>, AreaShape)>) -> Self {
        let mut next = 0;
        let area = |(device, mut shape): (Box<dyn Device>, AreaShape)| {
            let first = next;
            let left = MOST_SLOTS.saturating_sub(first).try_into().unwrap_or(u32::MAX);
            shape.capacity_pages = shape.capacity_pages.min(device.capacity_pages()).min(left);
            next = next_first_slot(first, shape.capacity_pages);
            // Where no number is left there are no places either.
            Area {
                device,
                health: Health::default(),
                shape,
                first_slot: first.try_into().unwrap_or(u32::MAX),
            }
        };
        Self { areas: devices.into_iter().map(area).collect(), is_broken: AtomicBool::new(false) }
    }

    /// No area at all: nowhere to go.
    pub(crate) fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    /// What each area offers.
    pub(crate) fn shapes(&self) -> Vec<AreaShape> {
        self.areas.iter().map(|area| area.shape).collect()
    }

    /// The first slot of each area.
    pub(crate) fn first_slots(&self) -> Vec<u32> {
        self.areas.iter().map(|area| area.first_slot).collect()
    }

    /// Where another area would begin.
    pub(crate) fn end_slot(&self) -> u32 {
        self.areas.last().map_or(0, |last| {
            let end = next_first_slot(u64::from(last.first_slot), last.shape.capacity_pages);
            end.try_into().unwrap_or(u32::MAX)
        })
    }

    /// Whose place a slot is, as an index, and which.
    #[inline]
    pub(crate) fn locate(&self, slot: SwapSlot) -> (usize, u32) {
        let after = self.areas.partition_point(|area| area.first_slot <= slot.0);
        let index = after.checked_sub(1).expect("a slot of some area");
        (index, slot.0 - self.areas[index].first_slot)
    }

    /// The device that has a slot's page, and where there.
    #[inline]
    pub(crate) fn device_of(&self, slot: SwapSlot) -> (&dyn Device, u32) {
        let (index, place) = self.locate(slot);
        (&*self.areas[index].device, place)
    }

    /// Hands a job over to the device of its slots. False: the device is full, and nothing has begun.
    pub(crate) fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool {
        let (index, place) = self.locate(SwapSlot::named(job.first));
        let area = &self.areas[index];
        let before = area.health.begin();
        let transfer = Transfer::new(host, job, place);
        let back = match self.call(|| area.device.submit(transfer, urgency)) {
            None | Some(Submitted::Accepted) => return true,
            Some(Submitted::Full(back)) => back,
        };
        let now = area.health.load();
        let wrong = if back.place() != place || back.direction() != job.direction {
            "gave a transfer back that is under way"
        } else if now.under_way() == 1 && now.has_not_answered_since(before) {
            // Nobody would ever learn that there is room again.
            "says that it is full, and has nothing under way"
        } else {
            area.health.refused();
            back.take_back();
            return false;
        };
        back.complete(Err(io::Error::other(format!("the device {wrong}"))));
        true
    }

    /// Starts what was only collected so far.
    pub(crate) fn flush(&self) {
        self.each(|device| device.flush());
    }

    /// Completes what has ended.
    pub(crate) fn poll(&self) {
        self.each(|device| device.poll());
    }

    /// Somebody who cannot pull completions waits for one.
    pub(crate) fn serve(&self) {
        self.each(|device| device.serve());
    }

    /// Waits for a transfer of the area that has this slot. A device that panics is not waited in.
    pub(crate) fn wait(&self, slot: SwapSlot, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.wait_in(self.device_of(slot).0, queue, still_waiting)
    }

    /// As [`Areas::wait`], for any transfer of the only area. `None`: there are several, or none.
    pub(crate) fn wait_in_only(&self, still_waiting: &dyn Fn() -> bool) -> Option<Waited> {
        match &*self.areas {
            [only] => Some(self.wait_in(&*only.device, ANY_QUEUE, still_waiting)),
            _ => None,
        }
    }

    fn wait_in(&self, device: &dyn Device, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.call(|| device.wait(queue, still_waiting)).unwrap_or(Waited::Sleep)
    }

    fn each(&self, work: impl Fn(&dyn Device)) {
        for area in &self.areas {
            self.call(|| work(&*area.device));
        }
    }

    /// Calls a device. `None`: the device panicked.
    #[inline]
    fn call<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        match catch_panic(work) {
            Ok(done) => Some(done),
            Err(panic) if self.is_broken.load(Ordering::Relaxed) => resume_unwind(panic),
            Err(_) => None,
        }
    }

    /// To be kept while a completion of ours runs.
    pub(crate) fn completing(&self) -> Completing<'_> {
        Completing::begin(&self.is_broken)
    }

    /// A transfer of these slots has ended.
    pub(crate) fn note_end(&self, first: SwapSlot) {
        self.areas[self.locate(first).0].health.end();
    }

    /// All areas by name, for messages.
    pub(crate) fn describe(&self) -> String {
        if self.areas.is_empty() {
            return "nothing".into();
        }
        let names: Vec<_> = self.areas.iter().map(|area| area.device.describe()).collect();
        names.join(", ")
    }

    /// That all areas are full, and what is in use of each, as the start of a message.
    #[cold]
    pub(crate) fn describe_full(&self, used_pages: impl Fn(usize) -> u32) -> String {
        let full = self.areas.iter().enumerate().map(|(index, area)| {
            let used = bytes_for_people(u64::from(used_pages(index)) * PAGE_BYTES as u64);
            format!("{} is full ({used} in use)", area.device.describe())
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
    use crate::swap::clusters::{CLUSTER_SLOTS, Clusters};
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
        while let Some(run) = clusters.allocate(300, true) {
            for slot in run.first.0..run.first.0 + run.count {
                let (device, place) = areas.device_of(SwapSlot(slot));
                assert!(place < device.capacity_pages(), "place {place} of {}", device.describe());
                assert!(places.insert((device.describe(), place)));
            }
        }
        assert_eq!(places.len(), 700 + 512 + 1 + 1500);
        let full = areas.describe_full(|area| clusters.area_used(area));
        assert_eq!(
            full,
            "a is full (2.7 MiB in use), none is full (0 bytes in use), b is full (2 MiB in use), \
             c is full (4 KiB in use), d is full (5.9 MiB in use)"
        );
        assert_eq!(areas.describe(), "a, none, b, c, d");
    }

    #[test]
    fn an_area_begins_at_a_cluster_after_a_gap() {
        let areas = areas(&[("a", 513, 0), ("b", 512, 0), ("c", 1, 0)]);
        let place = |slot| {
            let (device, place) = areas.device_of(SwapSlot(slot));
            (device.describe(), place)
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
        assert_eq!(clusters(&areas).capacity(), places.iter().sum());
    }
}
