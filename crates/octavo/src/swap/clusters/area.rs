//! One area: its clusters, the locks over their bits, and how many slots are in use.
//!
//! Each lock has its own count of used slots. The area has a sum of these counts, to which each lock adds in
//! steps. So the word that all CPUs read rarely changes.

use crossbeam_utils::CachePadded;

use crate::sizes::{CLUSTER_LOCKS as LOCKS, CLUSTER_SLOTS};
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

use super::bits::SlotBits;
use super::lists::{AreaLists, ListHints};

/// The most slots by which a lock's count may differ from the part of the count that is in the area's sum.
const MOST_UNSUMMED: u32 = 64;
/// The area's sum may be wrong by at most one in this many of the area's slots.
const UNSUMMED_PART: u32 = 16;

/// An area's clusters and their state.
#[derive(Debug)]
pub(super) struct AreaClusters {
    pub(super) first_cluster: u32,
    pub(super) clusters: u32,
    /// The number of slots.
    pub(super) capacity: u32,
    /// The limit that [`MOST_UNSUMMED`] describes, for this area.
    unsummed: u32,
    /// Clusters with the same number, modulo the number of locks, have the same lock.
    locks: Box<[CachePadded<ClusterBits>]>,
    /// The number of slots in use, as far as the locks have added their counts.
    sum: CachePadded<AtomicU32>,
    pub(super) lists: CachePadded<Mutex<AreaLists>>,
    pub(super) hints: CachePadded<ListHints>,
}

/// A lock over the bits of some clusters, and how many of their slots are in use.
#[derive(Debug, Default)]
struct ClusterBits {
    /// The part of `used` that is in the area's sum.
    summed: Mutex<u32>,
    /// The number of used slots. It changes under the lock. Relaxed: the lock orders the changes.
    used: AtomicU32,
}

/// The lock over the bits of a cluster.
#[derive(Debug)]
pub(super) struct ClusterLock<'a> {
    area: &'a AreaClusters,
    used: &'a AtomicU32,
    summed: MutexGuard<'a, u32>,
}

impl ClusterLock<'_> {
    /// Counts slots that have been taken.
    pub(super) fn add(&mut self, slots: u32) {
        self.count(self.used.load(Ordering::Relaxed) + slots);
    }

    /// Counts slots that have been freed.
    pub(super) fn remove(&mut self, slots: u32) {
        self.count(self.used.load(Ordering::Relaxed) - slots);
    }

    fn count(&mut self, used: u32) {
        self.used.store(used, Ordering::Relaxed);
        if used.abs_diff(*self.summed) > self.area.unsummed {
            // The difference may be negative. It wraps, and adding it wraps back, since the sum is never
            // negative.
            self.area.sum.fetch_add(used.wrapping_sub(*self.summed), Ordering::Relaxed);
            *self.summed = used;
        }
    }
}

impl AreaClusters {
    pub(super) fn new(first_slot: u64, capacity: u32) -> Self {
        let clusters = (capacity as usize).div_ceil(CLUSTER_SLOTS) as u32;
        let locks = (clusters as usize).clamp(1, LOCKS);
        Self {
            // `Clusters::new` refuses more slots than there are numbers for.
            first_cluster: (first_slot / CLUSTER_SLOTS as u64) as u32,
            clusters,
            capacity,
            unsummed: (capacity / UNSUMMED_PART / locks as u32).min(MOST_UNSUMMED),
            locks: (0..locks).map(|_| CachePadded::default()).collect(),
            sum: CachePadded::default(),
            lists: CachePadded::new(Mutex::new(AreaLists::new(clusters))),
            hints: CachePadded::new(ListHints::new(clusters)),
        }
    }

    pub(super) fn first_slot(&self) -> u64 {
        u64::from(self.first_cluster) * CLUSTER_SLOTS as u64
    }

    /// Locks the bits of a cluster.
    pub(super) fn lock(&self, cluster: u32) -> ClusterLock<'_> {
        let counted = &self.locks[(cluster - self.first_cluster) as usize % self.locks.len()];
        ClusterLock { area: self, used: &counted.used, summed: counted.summed.lock() }
    }

    /// The number of slots in use. Each lock's count is read at a different moment. Cost: a cache line for
    /// each lock.
    pub(super) fn used(&self) -> u32 {
        self.locks.iter().map(|counted| counted.used.load(Ordering::Relaxed)).sum()
    }

    /// The most slots that may be in use: at least the slots that are in use, and at most an eighth of the
    /// area more. Cost: a load of a word that rarely changes.
    pub(super) fn most_used(&self) -> u32 {
        self.sum.load(Ordering::Relaxed) + self.unsummed * self.locks.len() as u32
    }

    /// Returns whether no slot was free at that moment. Cost: a load of a word that changes when clusters
    /// move.
    pub(super) fn is_full(&self) -> bool {
        self.hints.are_none()
    }

    /// The number of slots of a cluster. The last cluster may have fewer than the others.
    pub(super) fn slots_of(&self, cluster: u32) -> usize {
        let before = (cluster - self.first_cluster) as usize * CLUSTER_SLOTS;
        (self.capacity as usize).saturating_sub(before).min(CLUSTER_SLOTS)
    }

    /// Returns whether a cluster has the full number of slots, and none of them is in use.
    pub(super) fn is_whole(&self, cluster: u32, bits: &SlotBits) -> bool {
        bits.none_used() && self.slots_of(cluster) == CLUSTER_SLOTS
    }
}
