//! Tests that compare clusters with a model (a set of slots), and tests with several threads and a map of
//! owners.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::sync::{AtomicBool, thread};
use crate::units::StoredPage;

/// Makes a request that accepts every area.
fn ask(may_grow: bool) -> SlotRequest<'static> {
    SlotRequest { may_grow, shunned: &[] }
}

const BYTES: u64 = 8192;
const CLUSTER: u32 = CLUSTER_SLOTS as u32;

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
}

fn clusters(shapes: &[(u32, i32)]) -> Clusters {
    let shapes: Vec<_> =
        shapes.iter().map(|&(capacity_pages, priority)| AreaShape { capacity_pages, priority }).collect();
    let budget = Arc::new(Budget::new(1 << 30));
    Clusters::new(&shapes, budget, BYTES, Cpus::pretended(3, || CPU.get())).unwrap()
}

fn run(first: u32, count: u32) -> SlotRun {
    SlotRun { first: SwapSlot(first), count }
}

fn free_all(clusters: &Clusters, slots: &BTreeSet<u32>) {
    slots.iter().for_each(|&slot| clusters.free(SwapSlot(slot)));
}

/// The state of a cluster in the model before a step.
#[derive(Clone, Copy, Debug)]
struct ClusterBefore {
    state: ClusterState,
    free: usize,
    longest: usize,
}

/// The slots that were given out, with checks of each answer.
struct Model<'a> {
    clusters: &'a Clusters,
    shapes: &'a [(u32, i32)],
    owned: BTreeSet<u32>,
}

impl Model<'_> {
    fn area_of(&self, slot: u32) -> usize {
        let inside = |area: &usize| {
            let first = self.clusters.areas[*area].first_slot() as u32;
            (first..first + self.shapes[*area].0).contains(&slot)
        };
        (0..self.shapes.len()).find(inside).unwrap_or_else(|| panic!("slot {slot} is in no area"))
    }

    fn see(&self, cluster: u32) -> ClusterBefore {
        let area = self.clusters.area_of(cluster);
        let slots = area.slots_of(cluster);
        let first = cluster * CLUSTER;
        let (mut free, mut longest, mut length) = (0, 0, 0);
        for slot in first..first + slots as u32 {
            length = if self.owned.contains(&slot) { 0 } else { length + 1 };
            free += usize::from(length > 0);
            longest = longest.max(length);
        }
        let touched = cluster - area.first_cluster < area.lists.lock().touched;
        let state =
            if touched { ClusterState::of(self.clusters.cluster(cluster)) } else { ClusterState::NeverUsed };
        ClusterBefore { state, free, longest }
    }

    /// All clusters of the areas of a priority.
    fn see_priority(&self, priority: i32) -> Vec<ClusterBefore> {
        let members = (0..self.shapes.len()).filter(|&area| self.shapes[area].1 == priority);
        members
            .map(|area| &self.clusters.areas[area])
            .flat_map(|area| area.first_cluster..area.first_cluster + area.clusters)
            .map(|cluster| self.see(cluster))
            .collect()
    }

    fn best_priority(&self, has_room: impl Fn(&ClusterBefore) -> bool) -> Option<i32> {
        let priorities = self.shapes.iter().map(|shape| shape.1);
        priorities.filter(|&priority| self.see_priority(priority).iter().any(&has_room)).max()
    }

    fn own(&mut self, run: SlotRun) {
        let (first, last) = (run.first.0, run.first.0 + run.count - 1);
        assert_eq!(first / CLUSTER, last / CLUSTER, "{run:?} lies in one cluster");
        assert_eq!(self.area_of(first), self.area_of(last), "{run:?} lies in one area");
        for slot in first..=last {
            assert!(self.owned.insert(slot), "slot {slot} was handed out twice");
        }
    }

    fn allocate(&mut self, count: u32, may_grow: bool) {
        let best = self.best_priority(|cluster| {
            cluster.free > 0 && (may_grow || cluster.state != ClusterState::NeverUsed)
        });
        let before = best.map(|priority| self.see_priority(priority)).unwrap_or_default();
        let Some(run) = self.clusters.allocate(count, ask(may_grow)) else {
            assert_eq!(best, None, "refused with room left");
            return;
        };
        assert!((1..=count).contains(&run.count));
        let priority = self.shapes[self.area_of(run.first.0)].1;
        assert_eq!(Some(priority), best, "the highest priority with room");
        let seen = self.see(run.first.0 / CLUSTER);
        self.own(run);
        let good = count.min(1 << GOOD_CLASS);
        // A caller that may not let the area grow first gets short runs between used slots.
        if may_grow && run.count < good && self.see(run.first.0 / CLUSTER).free > 0 {
            let better = before.iter().find(|other| {
                other.state != ClusterState::Held
                    && other.state != ClusterState::On(ListId::PARTLY)
                    && other.longest >= 1 << GOOD_CLASS
            });
            assert!(better.is_none(), "{run:?} of {count} out of {seen:?}, with {better:?}");
        }
        match seen.state {
            ClusterState::On(ListId::PARTLY) => {
                let other = before.iter().find(|other| {
                    matches!(other.state, ClusterState::On(_))
                        && other.state != ClusterState::On(ListId::PARTLY)
                        && other.free > 0
                        || may_grow && other.state == ClusterState::NeverUsed
                });
                assert!(other.is_none(), "stole {seen:?}, with {other:?}");
            }
            ClusterState::NeverUsed => assert!(may_grow, "grew"),
            _ => {}
        }
    }

    fn allocate_huge(&mut self, may_grow: bool) {
        let best = self.best_priority(|cluster| {
            cluster.free == CLUSTER_SLOTS && (may_grow || cluster.state != ClusterState::NeverUsed)
        });
        let Some(first) = self.clusters.allocate_huge(ask(may_grow)) else {
            assert_eq!(best, None, "refused with a whole cluster left");
            return;
        };
        assert_eq!(first.0 % CLUSTER, 0);
        assert_eq!(Some(self.shapes[self.area_of(first.0)].1), best);
        assert_eq!(self.see(first.0 / CLUSTER).free, CLUSTER_SLOTS);
        self.own(run(first.0, CLUSTER));
    }

    /// Looks at `count` slots, from the `nth` owned slot on, and frees those that are owned: one by one, or
    /// with one call for each run.
    fn free(&mut self, nth: usize, count: u32, one_by_one: bool) {
        let Some(&first) = self.owned.iter().nth(nth % self.owned.len().max(1)) else { return };
        let end = (first + count).min((first / CLUSTER + 1) * CLUSTER);
        let mut at = first;
        while at < end {
            let len = (at..end).take_while(|slot| self.owned.remove(slot)).count() as u32;
            if one_by_one {
                (at..at + len).for_each(|slot| self.clusters.free(SwapSlot(slot)));
            } else if len > 0 {
                self.clusters.free_run(run(at, len));
            }
            at += len.max(1);
        }
    }

    fn check(&self) {
        self.clusters.validate();
        assert_eq!(self.clusters.used() as usize, self.owned.len());
        for area in 0..self.shapes.len() {
            let here = self.owned.iter().filter(|&&slot| self.area_of(slot) == area).count();
            assert_eq!(self.clusters.area_used(area) as usize, here);
        }
        assert!(self.clusters.used_slots().map(|slot| slot.0).eq(self.owned.iter().copied()));
        let capacity: u32 = self.shapes.iter().map(|shape| shape.0).sum();
        // Under a budget without limit, memory may keep any number of pages.
        let free = capacity - self.owned.len() as u32;
        let is_crowded = self.clusters.is_crowded();
        assert!(is_crowded || free >= capacity / 2, "{free} of {capacity}");
        assert!(!is_crowded || free < capacity / 2 + capacity / 8, "{free} of {capacity}");
        assert_eq!(self.clusters.is_full(), free == 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { count: u32, may_grow: bool, cpu: u32 },
    AllocateHuge { may_grow: bool },
    Free { nth: usize, count: u32, one_by_one: bool },
    FreeEvery { step: usize },
}

fn any_step() -> impl Strategy<Value = Step> {
    let count = prop_oneof![Just(1u32), 1..16u32, Just(32), Just(256), 1..=512u32];
    prop_oneof![
        6 => (count.clone(), any::<bool>(), 0..3u32)
            .prop_map(|(count, may_grow, cpu)| Step::Allocate { count, may_grow, cpu }),
        1 => any::<bool>().prop_map(|may_grow| Step::AllocateHuge { may_grow }),
        4 => (any::<usize>(), count, any::<bool>())
            .prop_map(|(nth, count, one_by_one)| Step::Free { nth, count, one_by_one }),
        1 => (2..40usize).prop_map(|step| Step::FreeEvery { step }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_handed_out_is_what_a_set_of_free_slots_allows(
        shapes in prop::collection::vec((prop_oneof![0..30u32, 0..1500u32, Just(1024)], -1..2i32), 1..5),
        steps in prop::collection::vec(any_step(), 1..80),
    ) {
        let clusters = clusters(&shapes);
        let mut model = Model { clusters: &clusters, shapes: &shapes, owned: BTreeSet::new() };
        for step in steps {
            match step {
                Step::Allocate { count, may_grow, cpu } => {
                    CPU.set(cpu);
                    model.allocate(count, may_grow);
                }
                Step::AllocateHuge { may_grow } => model.allocate_huge(may_grow),
                Step::Free { nth, count, one_by_one } => model.free(nth, count, one_by_one),
                Step::FreeEvery { step } => {
                    for slot in model.owned.iter().copied().step_by(step).collect::<Vec<_>>() {
                        model.owned.remove(&slot);
                        clusters.free(SwapSlot(slot));
                    }
                }
            }
            model.check();
        }
        // Takes every slot, and frees them all.
        while clusters.used() < clusters.capacity() {
            model.allocate(512, true);
        }
        model.allocate(1, true);
        model.check();
        free_all(&clusters, &std::mem::take(&mut model.owned));
        model.check();
        CPU.set(0);
        // All slots are free. So every cluster of full size can be a block again: at once, unless a CPU holds
        // it.
        let whole: u32 = shapes.iter().map(|shape| shape.0 / CLUSTER).sum();
        for _ in 0..whole {
            model.allocate_huge(true);
        }
        prop_assert_eq!(model.owned.len() as u32, whole * CLUSTER);
        model.check();
    }
}

#[test]
fn two_cpus_write_batches_to_clusters_of_their_own() {
    let clusters = clusters(&[(16 * CLUSTER, 0)]);
    let mut before = [None; 2];
    for batch in 0..16 {
        for (cpu, before) in before.iter_mut().enumerate() {
            CPU.set(cpu as u32);
            let got = clusters.allocate(256, ask(true)).unwrap();
            assert_eq!(got.count, 256);
            if batch % 2 == 1 {
                assert_eq!(*before, Some(got.first.0 - 256), "the batches of a CPU follow each other");
            }
            *before = Some(got.first.0);
        }
    }
    assert_eq!(clusters.used(), 16 * 512);
}

#[test]
fn equal_areas_take_turns_by_clusters_and_lower_ones_wait() {
    let clusters = clusters(&[(2 * CLUSTER, 1), (4 * CLUSTER, 5), (4 * CLUSTER, 5)]);
    let mut areas = Vec::new();
    while let Some(run) = clusters.allocate(256, ask(true)) {
        let cluster = run.first.0 / CLUSTER;
        areas.push(clusters.areas.iter().rposition(|area| area.first_cluster <= cluster).unwrap());
    }
    assert_eq!(areas, [1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 0, 0, 0, 0]);
    assert_eq!(clusters.area_used(1), clusters.areas[1].capacity);
}

#[test]
fn a_run_comes_from_where_it_fits_and_fragments_come_last() {
    let clusters = clusters(&[(3 * CLUSTER, 0)]);
    for _ in 0..6 {
        assert_eq!(clusters.allocate(256, ask(true)).unwrap().count, 256);
    }
    assert_eq!(clusters.allocate(1, ask(true)), None);
    // Frees every second slot of the first cluster, and a run of the second.
    (0..512).step_by(2).for_each(|slot| clusters.free(SwapSlot(slot)));
    clusters.free_run(run(CLUSTER + 100, 70));
    assert_eq!(clusters.allocate(64, ask(true)), Some(run(CLUSTER + 100, 64)));
    // The six slots that are left fill the cluster.
    assert_eq!(clusters.allocate(64, ask(true)), Some(run(CLUSTER + 164, 6)));
    // Now the callers get single slots, in order, so that places lie close together.
    assert_eq!(clusters.allocate(64, ask(true)), Some(run(0, 1)));
    assert_eq!(clusters.allocate(64, ask(true)), Some(run(2, 1)));
    // A cluster with a longer run appears.
    clusters.free_run(run(2 * CLUSTER, 200));
    assert_eq!(clusters.allocate(256, ask(true)), Some(run(2 * CLUSTER, 200)));
    assert_eq!(clusters.allocate(64, ask(true)), Some(run(4, 1)));
    clusters.validate();
}

#[test]
fn what_is_left_of_a_block_is_left_alone_until_nothing_else_is() {
    let clusters = clusters(&[(3 * CLUSTER, 0)]);
    let block = clusters.allocate_huge(ask(true)).unwrap();
    assert_eq!(block, SwapSlot(0));
    clusters.free_run(run(7, 300));
    for slot in 0..1024 {
        assert_eq!(clusters.allocate(1, ask(true)), Some(run(CLUSTER + slot, 1)));
    }
    clusters.free(SwapSlot(CLUSTER + 5));
    assert_eq!(clusters.allocate(300, ask(true)), Some(run(CLUSTER + 5, 1)), "a fragment goes first");
    assert_eq!(clusters.allocate_huge(ask(true)), None);
    assert_eq!(clusters.allocate(300, ask(true)), Some(run(7, 300)), "stolen");
    clusters.free_run(run(0, 512));
    assert_eq!(clusters.allocate_huge(ask(true)), Some(SwapSlot(0)), "whole again");
    clusters.validate();
}

#[test]
fn a_block_wholly_freed_is_a_block_again() {
    let clusters = clusters(&[(CLUSTER, 0)]);
    for _ in 0..3 {
        let block = clusters.allocate_huge(ask(true)).unwrap();
        (0..512).rev().for_each(|slot| clusters.free(SwapSlot(block.0 + slot)));
        clusters.validate();
    }
}

#[test]
fn used_places_come_before_new_ones_for_who_would_not_grow() {
    let clusters = clusters(&[(3 * CLUSTER, 0)]);
    assert_eq!(clusters.allocate(512, ask(false)), None, "it would have to grow");
    assert_eq!(clusters.allocate(512, ask(true)), Some(run(0, 512)));
    (0..512).step_by(4).for_each(|slot| clusters.free(SwapSlot(slot)));
    assert_eq!(clusters.allocate(256, ask(false)), Some(run(0, 1)));
    assert_eq!(clusters.allocate(256, ask(true)), Some(run(CLUSTER, 256)));
    assert_eq!(clusters.touched().count(), 2);
}

#[test]
fn the_budget_pays_for_clusters_when_they_are_first_used() {
    let clusters = clusters(&[(4 * CLUSTER, 0)]);
    let each = BYTES + 128;
    assert_eq!(clusters.budget.used_bytes(), 0);
    for used in 1..=4 {
        let run = clusters.allocate(512, ask(true)).unwrap();
        assert_eq!(clusters.budget.used_bytes(), used * each);
        clusters.free_run(run);
        clusters.allocate_huge(ask(true)).unwrap();
        assert_eq!(clusters.budget.used_bytes(), used * each, "the same cluster again");
    }
}

#[test]
fn a_slot_freed_twice_or_never_allocated_is_a_bug_that_is_told() {
    for (slot, count) in [(0, 1), (5, 1), (3, 4), (600, 1), (699, 4)] {
        let clusters = clusters(&[(700, 0)]);
        clusters.allocate(10, ask(true)).unwrap();
        clusters.free_run(run(5, 5));
        clusters.free(SwapSlot(0));
        let twice = std::panic::AssertUnwindSafe(|| clusters.free_run(run(slot, count)));
        let message = *std::panic::catch_unwind(twice).unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains("freed twice") || message.contains("no run of slots"), "{message}");
    }
}

#[test]
fn more_slots_than_numbers_are_refused() {
    let shape = AreaShape { capacity_pages: StoredPage::MOST - 512, priority: 0 };
    let make = |shapes: &[AreaShape]| {
        Clusters::new(shapes, Arc::new(Budget::new(1 << 30)), BYTES, Cpus::pretended(1, || 0))
            .map(|it| it.capacity())
    };
    assert_eq!(make(&[shape]).unwrap(), StoredPage::MOST - 512);
    assert_eq!(make(&[shape, shape]).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(make(&[]).unwrap(), 0);
}

fn xorshift(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed * 0x9E37_79B9 + 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

/// Clusters move between lists and CPUs all the time. All threads together hold fewer slots than there are.
#[test]
fn nobody_is_refused_while_there_is_room() {
    let clusters = clusters(&[(2 * CLUSTER, 0)]);
    thread::scope(|scope| {
        for seed in 0..4 {
            let clusters = &clusters;
            scope.spawn(move || {
                let mut random = xorshift(seed);
                let mut held = std::collections::VecDeque::new();
                let mut held_slots = 0;
                for _ in 0..20_000 {
                    CPU.set(random(3) as u32);
                    let room = 2 * CLUSTER / 4 - 1 - held_slots;
                    if room == 0 || held_slots > 0 && random(2) == 0 {
                        let run: SlotRun = held.pop_front().unwrap();
                        held_slots -= run.count;
                        (0..run.count).for_each(|slot| clusters.free(SwapSlot(run.first.0 + slot)));
                    } else {
                        let count = 1 + random(u64::from(room.min(100))) as u32;
                        let run = clusters.allocate(count, ask(true)).expect("there is room for all");
                        held_slots += run.count;
                        held.push_back(run);
                    }
                }
            });
        }
    });
    clusters.validate();
}

/// Threads allocate, hold and free. A thread that gets a slot sets its flag, which must be clear.
#[test]
fn no_slot_has_two_owners_under_several_threads() {
    // The last area is small, so that CPUs meet in one cluster.
    for (shapes, cpus) in [
        (&[(20 * CLUSTER, 0), (700, 0), (9 * CLUSTER, -1)][..], 3),
        (&[(3 * CLUSTER, 0)], 1),
        (&[(300, 0)], 3),
    ] {
        let clusters = clusters(shapes);
        let most = clusters.areas.last().map_or(0, |area| area.first_cluster + area.clusters) * CLUSTER;
        let owned: Vec<AtomicBool> = (0..most).map(|_| AtomicBool::new(false)).collect();
        let none_left = AtomicU32::new(0);
        thread::scope(|scope| {
            for seed in 0..4u64 {
                let (clusters, owned, none_left) = (&clusters, &owned, &none_left);
                scope.spawn(move || {
                    let mut random = xorshift(seed);
                    let mut held: Vec<SlotRun> = Vec::new();
                    for _ in 0..8000 {
                        CPU.set(random(cpus) as u32);
                        let give_back = random(100) < 45 || held.len() > 120;
                        if give_back && !held.is_empty() {
                            let at = random(held.len() as u64) as usize;
                            let mut run = held.swap_remove(at);
                            // Sometimes the thread frees only a part of its run.
                            if random(3) == 0 && run.count > 1 {
                                let keep = 1 + random(u64::from(run.count) - 1) as u32;
                                held.push(SlotRun { first: run.first, count: keep });
                                run =
                                    SlotRun { first: SwapSlot(run.first.0 + keep), count: run.count - keep };
                            }
                            for slot in run.first.0..run.first.0 + run.count {
                                assert!(owned[slot as usize].swap(false, Ordering::Relaxed));
                            }
                            clusters.free_run(run);
                            continue;
                        }
                        let may_grow = random(4) > 0;
                        let count = [1, 3, 32, 256][random(4) as usize];
                        let got = if random(20) == 0 {
                            clusters
                                .allocate_huge(ask(may_grow))
                                .map(|first| SlotRun { first, count: CLUSTER })
                        } else {
                            clusters.allocate(count, ask(may_grow))
                        };
                        let Some(run) = got else {
                            none_left.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        for slot in run.first.0..run.first.0 + run.count {
                            let taken = owned[slot as usize].swap(true, Ordering::Relaxed);
                            assert!(!taken, "slot {slot} has two owners");
                        }
                        held.push(run);
                    }
                    for run in held {
                        (run.first.0..run.first.0 + run.count)
                            .for_each(|slot| owned[slot as usize].store(false, Ordering::Relaxed));
                        clusters.free_run(run);
                    }
                });
            }
        });
        assert!(none_left.load(Ordering::Relaxed) > 0, "the areas were full at times");
        assert_eq!(clusters.used(), 0);
        clusters.validate();
        let whole: u32 = shapes.iter().map(|shape| shape.0 / CLUSTER).sum();
        assert_eq!((0..whole).filter_map(|_| clusters.allocate_huge(ask(true))).count() as u32, whole);
    }
}
