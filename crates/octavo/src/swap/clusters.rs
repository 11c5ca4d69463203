//! The free slots of all areas.
//!
//! Slots are numbered over all areas. Each area begins with a new cluster (512 slots, 2 MiB of pages), after
//! a gap. A [`SlotRun`] lies in one cluster, and so in one area. A device writes a long run in one transfer.
//! So each CPU takes slots from a cluster of its own, in ascending order, and prefers a cluster with a long
//! run.
//!
//! [`Clusters::allocate`] searches all areas of the highest priority (round robin) in this order, and then
//! the areas of each lower priority:
//!
//! 1. The CPU's current cluster, from the last slot taken, while it has good runs (64 slots, or as many as
//!    are asked for).
//! 2. *Nonfull*: a cluster with a run of all slots asked for, and of at least 64.
//! 3. A whole cluster: first one that was used and is free again, then one that was never used.
//! 4. Nonfull with a run of 64.
//! 5. *Fragmented*: a cluster with the longest run there is. It remains current while it has runs of about
//!    this length and no cluster is better.
//! 6. *Steal*: a cluster with the rest of a block of order 9. It comes late, since it may become whole again.
//! 7. The current clusters of other CPUs.
//!
//! A caller that sets `may_grow` to false first gets slots between used slots (step 5), and gets no slots of
//! clusters that were never used. `None` means that all slots of each searched area were in use at some
//! moment. If `may_grow` is false, `None` may also mean that all lists were empty and no CPU had a current
//! cluster, while no cluster moved. A CPU leaves its cluster when it takes the last free slot. A whole block
//! ([`Clusters::allocate_huge`]) gets a whole cluster or nothing. [`Clusters::is_crowded`] is the hint that
//! clean pages should give up their slots.
//!
//! Locking: the clusters of an area with the same number modulo 256 have one lock over their bits. The lock
//! of the area's lists is taken under this lock. It guards the states and links of the area's clusters. No
//! other lock is taken under either. A CPU gets a current cluster under the lists' lock, and loses it under
//! both locks. So a thread that holds a cluster's lock and finds the cluster still current may take slots of
//! the cluster. A cluster with free slots that is on no list is always some CPU's current one.
//!
//! Cost: a run from the current cluster takes one lock and about ten words, and touches no cache line that
//! other CPUs write. A cluster takes 128 bytes. When the cluster is first used, these bytes are charged to
//! the budget, with the bytes that other structures keep for the cluster's slots. Reclaim must always get
//! this memory, so the charge may exceed the limit. Reclaim then empties a chunk. Nothing is allocated later.

mod area;
mod bits;
mod check;
mod lists;
#[cfg(all(test, loom))]
mod loom;
mod standalone;
#[cfg(all(test, not(loom)))]
mod tests;

use crossbeam_utils::CachePadded;

use crate::budget::Budget;
use crate::sizes::GOOD_RUN_CLASS as GOOD_CLASS;
use crate::sync::{Arc, AtomicU32, AtomicU64, Cpus, Ordering, WordArray};
use crate::units::{StoredPage, SwapSlot};

use area::{AreaClusters, ClusterLock};
use bits::{SlotBits, WORDS};
use lists::{AreaLists, ClusterState, ListId, RUN_CLASSES};
pub use standalone::StandaloneSlots;

pub(crate) use crate::sizes::CLUSTER_SLOTS;

/// A run of consecutive slots, in one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRun {
    pub(crate) first: SwapSlot,
    pub(crate) count: u32,
}

/// The size and priority of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AreaShape {
    pub(crate) capacity_pages: u32,
    /// Areas of higher priority are used first.
    pub(crate) priority: i32,
}

/// The first slot of the next area. At least one number between two areas is never used. So slots with
/// consecutive numbers are consecutive places on one device.
pub(crate) fn next_first_slot(first_slot: u64, capacity_pages: u32) -> u64 {
    first_slot + (u64::from(capacity_pages) + 1).next_multiple_of(CLUSTER_SLOTS as u64)
}

/// The most slots that can exist: a frame's word can name no more.
pub(crate) const MOST_SLOTS: u64 = StoredPage::MOST as u64;

/// The words of a cluster, on two cache lines of their own.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), derive(zerocopy::FromZeros))]
#[repr(C, align(128))]
struct Cluster {
    /// The bits change under the cluster's lock, and [`SlotBits::load`] reads them.
    bits: [AtomicU64; WORDS],
    /// A [`ClusterState`]. It changes under the lists' lock. A change from `Held` to another state also takes
    /// the cluster's lock.
    state: AtomicU32,
    /// The neighbours on the list, plus 1, or 0 if there are none. They change under the lists' lock.
    next: AtomicU32,
    previous: AtomicU32,
}

/// Areas of one priority.
#[derive(Debug)]
struct PriorityGroup {
    members: Box<[usize]>,
    /// Each CPU's current cluster: a [`Current`].
    currents: Box<[CachePadded<AtomicU64>]>,
    /// The area of the group that is searched first.
    turn: AtomicU32,
}

impl PriorityGroup {
    /// The areas of the group that the caller does not refuse.
    fn asked<'a>(&'a self, ask: SlotRequest<'a>) -> impl Iterator<Item = usize> + 'a {
        self.members.iter().copied().filter(move |area| !ask.shuns(*area))
    }
}

/// Which slots a caller takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRequest<'a> {
    /// Whether clusters that were never used may be taken. If not, slots between used slots come first.
    pub(crate) may_grow: bool,
    /// Whether the caller refuses each area, by the area's index. Empty if the caller accepts every area.
    pub(crate) shunned: &'a [bool],
}

impl SlotRequest<'_> {
    pub(super) fn shuns(self, area: usize) -> bool {
        self.shunned.get(area).is_some_and(|shunned| *shunned)
    }
}

/// A CPU's current cluster.
///
/// ```text
/// | 0 .. 16 | run class it was picked for, 8 | next slot to try, 16 | cluster + 1, 32 |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    cluster: u32,
    next: usize,
    /// The CPU takes runs of 2^class slots from the cluster, or shorter runs if the caller asks for fewer
    /// slots.
    class: usize,
}

const NONE: u64 = 0;

impl Current {
    /// Acquire: this thread sees the cluster's words from the moment when it became current.
    fn load(word: &AtomicU64) -> Option<Self> {
        let word = word.load(Ordering::Acquire);
        (word != NONE).then(|| Self {
            cluster: word as u32 - 1,
            next: (word >> 32) as u16 as usize,
            class: (word >> 48) as u8 as usize,
        })
    }

    fn word(self) -> u64 {
        u64::from(self.cluster + 1) | (self.next as u64) << 32 | (self.class as u64) << 48
    }
}

/// All slots of all areas.
#[derive(Debug)]
pub(crate) struct Clusters {
    clusters: WordArray<Cluster>,
    areas: Box<[AreaClusters]>,
    /// Highest priority first.
    groups: Box<[PriorityGroup]>,
    capacity: u32,
    cpus: Cpus,
    budget: Arc<Budget>,
    bytes_per_cluster: u64,
}

impl Clusters {
    /// Makes all slots free. `bytes_per_cluster` is the memory that other structures keep for the slots of a
    /// used cluster.
    ///
    /// # Errors
    /// `InvalidInput` for more slots than numbers. The kernel's error, if the address space is exhausted.
    pub(crate) fn new(
        shapes: &[AreaShape],
        budget: Arc<Budget>,
        bytes_per_cluster: u64,
        cpus: Cpus,
    ) -> std::io::Result<Self> {
        let mut next = 0;
        let areas: Box<[_]> = shapes
            .iter()
            .map(|shape| {
                let first = next;
                next = next_first_slot(first, shape.capacity_pages);
                AreaClusters::new(first, shape.capacity_pages)
            })
            .collect();
        let has_slots = |area: &&AreaClusters| area.capacity > 0;
        let last =
            areas.iter().rfind(has_slots).map_or(0, |area| area.first_slot() + u64::from(area.capacity));
        if last > MOST_SLOTS {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "the swap areas have more than 2^31 pages in all",
            ));
        }
        let mut priorities: Vec<_> = shapes.iter().map(|shape| shape.priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let group = |&priority: &i32| PriorityGroup {
            members: (0..shapes.len()).filter(|&area| shapes[area].priority == priority).collect(),
            currents: (0..cpus.count()).map(|_| CachePadded::new(AtomicU64::new(NONE))).collect(),
            turn: AtomicU32::new(0),
        };
        let clusters = areas.iter().rfind(has_slots).map_or(0, |area| area.first_cluster + area.clusters);
        Ok(Self {
            clusters: WordArray::new((clusters as usize).max(1))?,
            capacity: areas.iter().map(|area| area.capacity).sum(),
            areas,
            groups: priorities.iter().rev().map(group).collect(),
            cpus,
            budget,
            bytes_per_cluster,
        })
    }

    /// The number of an area's slots in use.
    pub(crate) fn used_in_area(&self, area: usize) -> u32 {
        self.areas[area].used()
    }

    /// The number of slots in use. Exact while no other thread is at work.
    pub(crate) fn used(&self) -> u32 {
        self.areas.iter().map(AreaClusters::used).sum()
    }

    /// Returns whether no slot is free. Each area is read at a different moment.
    pub(crate) fn is_full(&self) -> bool {
        self.areas.iter().all(AreaClusters::is_full)
    }

    /// Returns whether no slot of an area is free.
    pub(crate) fn is_area_full(&self, area: usize) -> bool {
        self.areas[area].is_full()
    }

    /// Returns whether fewer than `slots` slots may be free. The answer may be true too early, by up to an
    /// eighth of all slots, but never too late.
    pub(crate) fn may_be_fewer_than(&self, slots: u32) -> bool {
        let used: u32 = self.areas.iter().map(AreaClusters::most_used).sum();
        self.capacity < used.saturating_add(slots)
    }

    /// The number of free slots. Exact while no other thread is at work. Costs as much as
    /// [`AreaClusters::used`].
    pub(crate) fn free_slots(&self) -> u32 {
        self.capacity.saturating_sub(self.used())
    }

    /// How many slots there are.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many areas there are.
    pub(crate) fn areas(&self) -> usize {
        self.areas.len()
    }

    /// The index of the area that has a slot.
    pub(crate) fn area_of_slot(&self, slot: SwapSlot) -> usize {
        self.index_of((slot.0 as usize / CLUSTER_SLOTS) as u32)
    }

    /// The number of slots in use of one area.
    pub(crate) fn area_used(&self, area: usize) -> u32 {
        self.areas[area].used()
    }

    /// Returns whether clean pages should give up their slots: more than half of all slots are in use, and
    /// fewer are free than pages in memory may keep. The answer may be true too early, by up to an eighth of
    /// all slots, but never too late.
    pub(crate) fn is_crowded(&self) -> bool {
        let used: u32 = self.areas.iter().map(AreaClusters::most_used).sum();
        let free = self.capacity - used.min(self.capacity);
        free < self.capacity / 2 && u64::from(free) < self.budget.limit_pages()
    }

    /// Allocates up to `count` consecutive slots of one cluster. Returns `None` if each area is full, is
    /// refused by the caller, or has only clusters that the caller may not take.
    pub(crate) fn allocate(&self, count: u32, ask: SlotRequest<'_>) -> Option<SlotRun> {
        (0..self.groups()).find_map(|group| self.allocate_in(group, count, ask))
    }

    /// Like [`Clusters::allocate`], but takes slots only from the areas of one priority.
    pub(crate) fn allocate_in(&self, group: usize, count: u32, ask: SlotRequest<'_>) -> Option<SlotRun> {
        self.take_in(&self.groups[group], (count as usize).clamp(1, CLUSTER_SLOTS), ask)
    }

    /// Returns how many priorities the areas have. The highest is group 0.
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns whether an area belongs to a group.
    pub(crate) fn is_of(&self, group: usize, area: usize) -> bool {
        self.groups[group].members.contains(&area)
    }

    /// Allocates a whole cluster, for a block of order 9. Returns `None` if there is none, and the block must
    /// be split.
    #[cfg_attr(not(test), allow(dead_code, reason = "blocks are split before they go out"))]
    pub(crate) fn allocate_huge(&self, ask: SlotRequest<'_>) -> Option<SwapSlot> {
        self.groups.iter().find_map(|group| self.take_whole(group, ask))
    }

    /// Frees a slot.
    pub(crate) fn free(&self, slot: SwapSlot) {
        self.free_run(SlotRun { first: slot, count: 1 });
    }

    /// Frees the slots of a run, or of a part of one.
    pub(crate) fn free_run(&self, run: SlotRun) {
        let slot = run.first.0 as usize;
        let (index, first) = ((slot / CLUSTER_SLOTS) as u32, slot % CLUSTER_SLOTS);
        let end = first + run.count as usize;
        let area = self.area_of(index);
        assert!(end <= area.slots_of(index), "{run:?} is no run of slots");
        let mut lock = area.lock(index);
        let cluster = self.cluster(index);
        let mut bits = SlotBits::load(&cluster.bits);
        assert!(bits.all_used(first, end), "{run:?} was freed twice, or never allocated");
        bits.clear(first, end);
        bits.store(&cluster.bits, first, end);
        lock.remove(run.count);

        // A cluster leaves Held only under its own lock, which this thread has. So only Held is certain here.
        let before = ClusterState::of(cluster);
        let run_class = || ListId::runs(bits.run_around(first, end).ilog2() as usize);
        let to = match before {
            ClusterState::Held => return,
            ClusterState::NeverUsed => unreachable!("its slots were in use"),
            _ if area.is_whole(index, &bits) => ListId::FREE,
            ClusterState::FullHuge => ListId::PARTLY,
            ClusterState::On(ListId::PARTLY) => return,
            ClusterState::Full => run_class(),
            ClusterState::On(list) => match run_class() {
                longer if longer.0 > list.0 => longer,
                _ => return,
            },
        };
        let mut lists = area.lists.lock();
        if ClusterState::of(cluster) != ClusterState::Held {
            lists.move_to(&self.clusters, index, ClusterState::On(to), &area.hints);
        }
    }

    fn lock(&self, cluster: u32) -> ClusterLock<'_> {
        self.area_of(cluster).lock(cluster)
    }

    fn cluster(&self, cluster: u32) -> &Cluster {
        &self.clusters[cluster as usize]
    }

    fn area_of(&self, cluster: u32) -> &AreaClusters {
        &self.areas[self.index_of(cluster)]
    }

    fn index_of(&self, cluster: u32) -> usize {
        let after = self.areas.partition_point(|area| area.first_cluster <= cluster);
        after.checked_sub(1).expect("a slot of some area")
    }

    /// Returns whether the caller refuses the slots of a cluster.
    fn is_shunned(&self, cluster: u32, ask: SlotRequest<'_>) -> bool {
        !ask.shunned.is_empty() && ask.shuns(self.index_of(cluster))
    }

    fn current_of<'a>(&self, group: &'a PriorityGroup) -> &'a AtomicU64 {
        &group.currents[self.cpus.current()]
    }

    fn take_in(&self, group: &PriorityGroup, count: usize, ask: SlotRequest<'_>) -> Option<SlotRun> {
        let current = self.current_of(group);
        loop {
            if let Some(run) = self.take_from_current(group, current, count, ask) {
                return Some(run);
            }
            if group.asked(ask).all(|area| self.areas[area].is_full()) {
                return None;
            }
            if self.pick(group, current, count, ask) {
                continue;
            }
            let before = self.moves(group, ask);
            if let Some(run) = group.currents.iter().find_map(|other| self.take_any(other, count, ask)) {
                return Some(run);
            }
            if before.is_some() && self.moves(group, ask) == before {
                // Neither a listed nor a current cluster had a free slot.
                return None;
            }
        }
    }

    /// Returns how often clusters of a group were listed or made current, or `None` while a list has a
    /// cluster that may have free slots.
    fn moves(&self, group: &PriorityGroup, ask: SlotRequest<'_>) -> Option<u64> {
        let moves_of = |area: usize| {
            let lists = self.areas[area].lists.lock();
            let any = lists.any() || ask.may_grow && lists.touched < self.areas[area].clusters;
            (!any).then_some(lists.moves)
        };
        group.asked(ask).map(moves_of).sum()
    }

    /// Takes a run from the CPU's current cluster. Leaves the cluster if it has no good run.
    fn take_from_current(
        &self,
        group: &PriorityGroup,
        current: &AtomicU64,
        count: usize,
        ask: SlotRequest<'_>,
    ) -> Option<SlotRun> {
        loop {
            let Current { cluster, .. } = Current::load(current)?;
            let mut lock = self.lock(cluster);
            let Some(now) = Current::load(current).filter(|now| now.cluster == cluster) else { continue };
            let mut bits = SlotBits::load(&self.cluster(cluster).bits);
            let least = count.min(1 << now.class);
            // If the area may not grow, slots between used slots are the safest.
            let leave = self.is_shunned(cluster, ask)
                || now.class < GOOD_CLASS && ask.may_grow && self.has_better(group, ask);
            let run = if leave {
                None
            } else {
                bits.find(now.next, least).or_else(|| bits.find(0, least)).or_else(|| {
                    // A shorter run is taken if it is the last of the cluster, which is then full.
                    bits.runs(0).next().filter(|(_, len)| *len == bits.free_slots())
                })
            };
            let Some((first, len)) = run else {
                self.leave(current, cluster, &bits);
                return None;
            };
            let len = len.min(count);
            let run = self.take(&mut lock, cluster, &mut bits, first, len);
            if bits.none_free() {
                self.leave(current, cluster, &bits);
            } else {
                current.store(Current { next: first + len, ..now }.word(), Ordering::Release);
            }
            return Some(run);
        }
    }

    /// Takes slots, under the cluster's lock.
    fn take(
        &self,
        lock: &mut ClusterLock<'_>,
        cluster: u32,
        bits: &mut SlotBits,
        first: usize,
        len: usize,
    ) -> SlotRun {
        bits.set(first, first + len);
        bits.store(&self.cluster(cluster).bits, first, first + len);
        lock.add(len as u32);
        SlotRun { first: SwapSlot(cluster * CLUSTER_SLOTS as u32 + first as u32), count: len as u32 }
    }

    /// Under the cluster's lock: ends the cluster's time as current, and lists it by its longest run.
    fn leave(&self, current: &AtomicU64, cluster: u32, bits: &SlotBits) {
        let area = self.area_of(cluster);
        let to = match bits.longest() {
            None => ClusterState::Full,
            Some(_) if area.is_whole(cluster, bits) => ClusterState::On(ListId::FREE),
            Some((_, len)) => ClusterState::On(ListId::runs(len.ilog2() as usize)),
        };
        let mut lists = area.lists.lock();
        current.store(NONE, Ordering::Release);
        lists.move_to(&self.clusters, cluster, to, &area.hints);
    }

    /// Returns whether there are clusters with good runs.
    fn has_better(&self, group: &PriorityGroup, ask: SlotRequest<'_>) -> bool {
        group.asked(ask).any(|area| {
            let hints = &self.areas[area].hints;
            (GOOD_CLASS..RUN_CLASSES).any(|class| hints.may_have(ListId::runs(class)))
                || hints.may_have(ListId::FREE)
                || hints.may_have_never_used()
        })
    }

    /// Makes the best available cluster the CPU's current one. Returns true if the CPU now has a current
    /// cluster, from this thread or another.
    fn pick(&self, group: &PriorityGroup, current: &AtomicU64, count: usize, ask: SlotRequest<'_>) -> bool {
        // Clusters of this class and above have a run of all slots asked for.
        let enough = (count.next_power_of_two().ilog2() as usize).clamp(GOOD_CLASS, RUN_CLASSES);
        let longest_first = |classes: std::ops::Range<usize>| {
            self.by_turns(group, ask, |area| {
                let mut classes = classes.clone().rev();
                classes.find_map(|class| self.pick_from(area, ListId::runs(class), current, class))
            })
        };
        // A device that cannot grow has room only between used slots, if it has any.
        (!ask.may_grow && longest_first(0..GOOD_CLASS))
            || self.by_turns(group, ask, |area| {
                (enough..RUN_CLASSES)
                    .find_map(|class| self.pick_from(area, ListId::runs(class), current, class))
                    .or_else(|| self.pick_from(area, ListId::FREE, current, RUN_CLASSES))
                    .or_else(|| if ask.may_grow { self.pick_never_used(area, current) } else { None })
            })
            || longest_first(GOOD_CLASS..enough)
            || longest_first(0..GOOD_CLASS)
            || self.by_turns(group, ask, |area| self.steal(area, current))
    }

    /// Tries the areas of a group, round robin. Returns whether `has` returned `Some` for one of them.
    fn by_turns(
        &self,
        group: &PriorityGroup,
        ask: SlotRequest<'_>,
        mut has: impl FnMut(&AreaClusters) -> Option<()>,
    ) -> bool {
        let (turn, areas) = (group.turn.load(Ordering::Relaxed) as usize, group.members.len());
        (0..areas).map(|step| (turn + step) % areas).any(|member| {
            let area = group.members[member];
            let found = !ask.shuns(area) && has(&self.areas[area]).is_some();
            if found {
                group.turn.store(((member + 1) % areas) as u32, Ordering::Relaxed);
            }
            found
        })
    }

    /// Picks the first cluster of a list. Returns `Some` if the CPU has a current cluster.
    fn pick_from(&self, area: &AreaClusters, list: ListId, current: &AtomicU64, class: usize) -> Option<()> {
        if !area.hints.may_have(list) {
            return None;
        }
        let mut lists = area.lists.lock();
        let cluster = lists.head(list)?;
        if name(current, cluster, class) {
            lists.move_to(&self.clusters, cluster, ClusterState::Held, &area.hints);
        }
        Some(())
    }

    /// Makes a cluster that holds the rest of a block of order 9 an ordinary cluster.
    fn steal(&self, area: &AreaClusters, current: &AtomicU64) -> Option<()> {
        if !area.hints.may_have(ListId::PARTLY) {
            return None;
        }
        let mut lists = area.lists.lock();
        let cluster = lists.head(ListId::PARTLY)?;
        // A guess, since the cluster's lock is not held. It only decides which runs are taken first.
        let longest = SlotBits::load(&self.cluster(cluster).bits).longest();
        if name(current, cluster, longest.map_or(0, |(_, len)| len.ilog2() as usize)) {
            lists.move_to(&self.clusters, cluster, ClusterState::Held, &area.hints);
        }
        Some(())
    }

    fn pick_never_used(&self, area: &AreaClusters, current: &AtomicU64) -> Option<()> {
        if !area.hints.may_have_never_used() {
            return None;
        }
        let mut lists = area.lists.lock();
        let cluster = self.touch(area, &mut lists, 1)?;
        lists.move_to(&self.clusters, cluster, ClusterState::Held, &area.hints);
        // If another thread has given the CPU a current cluster, this cluster is listed as free.
        let state = if name(current, cluster, RUN_CLASSES) {
            return Some(());
        } else if area.slots_of(cluster) == CLUSTER_SLOTS {
            ClusterState::On(ListId::FREE)
        } else {
            ClusterState::On(ListId::runs(area.slots_of(cluster).ilog2() as usize))
        };
        lists.move_to(&self.clusters, cluster, state, &area.hints);
        Some(())
    }

    /// Takes the first cluster of an area that was never used, if it has at least `least` slots.
    fn touch(&self, area: &AreaClusters, lists: &mut AreaLists, least: usize) -> Option<u32> {
        if lists.touched == area.clusters {
            return None;
        }
        let cluster = area.first_cluster + lists.touched;
        let slots = area.slots_of(cluster);
        if slots < least {
            return None;
        }
        lists.touched += 1;
        self.budget.charge_over(size_of::<Cluster>() as u64 + self.bytes_per_cluster);
        SlotBits::free(slots).store_all(&self.cluster(cluster).bits);
        Some(cluster)
    }

    /// Takes the longest run of some CPU's current cluster. A full cluster is no longer current.
    fn take_any(&self, current: &AtomicU64, count: usize, ask: SlotRequest<'_>) -> Option<SlotRun> {
        loop {
            let cluster = Current::load(current).filter(|now| !self.is_shunned(now.cluster, ask))?.cluster;
            let mut lock = self.lock(cluster);
            if Current::load(current).is_some_and(|now| now.cluster == cluster) {
                let mut bits = SlotBits::load(&self.cluster(cluster).bits);
                let (first, len) = bits.longest()?;
                let run = self.take(&mut lock, cluster, &mut bits, first, len.min(count));
                if bits.none_free() {
                    self.leave(current, cluster, &bits);
                }
                return Some(run);
            }
        }
    }

    fn take_whole(&self, group: &PriorityGroup, ask: SlotRequest<'_>) -> Option<SwapSlot> {
        let mut found = None;
        let mut take = |area: &AreaClusters, cluster: &mut dyn FnMut(&mut AreaLists) -> Option<u32>| {
            let mut lists = area.lists.lock();
            let cluster = cluster(&mut lists)?;
            lists.move_to(&self.clusters, cluster, ClusterState::FullHuge, &area.hints);
            found = Some(cluster);
            Some(())
        };
        let used_before = self.by_turns(group, ask, |area| {
            let may_have = area.hints.may_have(ListId::FREE);
            if may_have { take(area, &mut |lists| lists.head(ListId::FREE)) } else { None }
        });
        if !used_before {
            if let Some(first) = self.take_whole_current(self.current_of(group), ask) {
                return Some(first);
            }
            if ask.may_grow {
                self.by_turns(group, ask, |area| {
                    take(area, &mut |lists| self.touch(area, lists, CLUSTER_SLOTS))
                });
            }
        }
        match found {
            // The cluster is on no list and is no CPU's current cluster, so no other thread reaches it.
            Some(cluster) => {
                let mut free = SlotBits::free(CLUSTER_SLOTS);
                Some(self.take(&mut self.lock(cluster), cluster, &mut free, 0, CLUSTER_SLOTS).first)
            }
            None => group.currents.iter().find_map(|current| self.take_whole_current(current, ask)),
        }
    }

    /// Takes a CPU's current cluster, if all of it is free.
    fn take_whole_current(&self, current: &AtomicU64, ask: SlotRequest<'_>) -> Option<SwapSlot> {
        let cluster = Current::load(current).filter(|now| !self.is_shunned(now.cluster, ask))?.cluster;
        let area = self.area_of(cluster);
        let mut lock = area.lock(cluster);
        Current::load(current).filter(|now| now.cluster == cluster)?;
        let mut bits = SlotBits::load(&self.cluster(cluster).bits);
        if !area.is_whole(cluster, &bits) {
            return None;
        }
        let mut lists = area.lists.lock();
        current.store(NONE, Ordering::Release);
        lists.move_to(&self.clusters, cluster, ClusterState::FullHuge, &area.hints);
        drop(lists);
        Some(self.take(&mut lock, cluster, &mut bits, 0, CLUSTER_SLOTS).first)
    }

    /// The slots in use. Each cluster is read at a different moment.
    pub(crate) fn used_slots(&self) -> impl Iterator<Item = SwapSlot> {
        self.touched().flat_map(move |cluster| {
            let bits = {
                let _lock = self.lock(cluster);
                SlotBits::load(&self.cluster(cluster).bits)
            };
            (0..self.area_of(cluster).slots_of(cluster))
                .filter(move |&at| bits.is_used(at))
                .map(move |at| SwapSlot(cluster * CLUSTER_SLOTS as u32 + at as u32))
        })
    }

    /// The clusters that have been used.
    pub(crate) fn touched(&self) -> impl Iterator<Item = u32> {
        self.areas.iter().flat_map(|area| area.first_cluster..area.first_cluster + area.lists.lock().touched)
    }
}

/// If a CPU has no current cluster, makes this cluster the current one, and returns true. Called under the
/// lists' lock of the cluster's area.
fn name(current: &AtomicU64, cluster: u32, class: usize) -> bool {
    // If runs are short, the CPU also takes runs that are half as long as the longest: a search for a cluster
    // costs more than taking a run.
    let class = if class < GOOD_CLASS { class.saturating_sub(1) } else { GOOD_CLASS };
    let word = Current { cluster, next: 0, class }.word();
    // Release: publishes the cluster's words. Threads of one CPU may race here, under the locks of different
    // areas.
    current.compare_exchange(NONE, word, Ordering::Release, Ordering::Relaxed).is_ok()
}
