//! The state of each cluster of an area: never used, on one of the area's lists, held by a CPU, or full.
//!
//! ```text
//!             touch                take slots              leave
//! NeverUsed ---------> Held by a CPU -------> (bits set) -------> Full | Runs(k) | Free
//!                        ^                                          |
//!   Free, Runs(k) -------+ pick                 free a slot --------+--> Runs(k), Free
//!   Free ----> FullHuge (one block of order 9) --> Partly --> Free
//!                                                    +-- pick (steal) --> Held
//! ```
//!
//! In `Runs(k)`, the longest free run has at least 2^k slots, and fewer than 2^(k+1). Lists are queues,
//! linked through the clusters.

use crate::sync::{AtomicU32, Ordering};

use super::{CLUSTER_SLOTS, Cluster};

/// Classes of run lengths, by powers of two. A cluster whose longest run is the whole cluster is on the list
/// of free clusters.
pub(super) const RUN_CLASSES: usize = CLUSTER_SLOTS.ilog2() as usize;

/// A list, as its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListId(pub(super) u32);

impl ListId {
    /// Clusters that were used, and are free again.
    pub(super) const FREE: ListId = ListId(RUN_CLASSES as u32);
    /// Clusters that hold a block of order 9, some of whose slots were freed.
    pub(super) const PARTLY: ListId = ListId(RUN_CLASSES as u32 + 1);
    pub(super) const COUNT: usize = RUN_CLASSES + 2;

    /// Clusters whose longest run is of this class.
    pub(super) const fn runs(class: usize) -> ListId {
        ListId(class as u32)
    }

    /// The list's bit among [`ListHints`].
    fn bit(self) -> u32 {
        1 << self.0
    }
}

/// The state of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClusterState {
    /// No slot of the cluster has been used yet.
    NeverUsed,
    /// The cluster is a CPU's current cluster.
    Held,
    /// All slots are in use.
    Full,
    /// All slots are in use, by one block of order 9.
    FullHuge,
    /// The cluster is on a list.
    On(ListId),
}

impl ClusterState {
    fn word(self) -> u32 {
        match self {
            ClusterState::NeverUsed => 0,
            ClusterState::Held => 1,
            ClusterState::Full => 2,
            ClusterState::FullHuge => 3,
            ClusterState::On(list) => 4 + list.0,
        }
    }

    fn from_word(word: u32) -> Self {
        match word {
            0 => ClusterState::NeverUsed,
            1 => ClusterState::Held,
            2 => ClusterState::Full,
            3 => ClusterState::FullHuge,
            on => ClusterState::On(ListId(on - 4)),
        }
    }

    pub(super) fn of(cluster: &Cluster) -> Self {
        Self::from_word(cluster.state.load(Ordering::Relaxed))
    }

    pub(super) fn set(self, cluster: &Cluster) {
        cluster.state.store(self.word(), Ordering::Relaxed);
    }
}

/// The kinds of cluster that may have free slots. They can be read without the lock.
///
/// ```text
/// | clusters held by CPUs, 20 | some were never used, 1 | lists that have something, 11 |
/// ```
///
/// The word changes at most once for each move of a cluster, under the lists' lock. So if it is 0, all
/// clusters were full at that moment.
#[derive(Debug)]
pub(super) struct ListHints(AtomicU32);

const NEVER_USED: u32 = 1 << ListId::COUNT;
const ONE_HELD: u32 = NEVER_USED << 1;
/// The most held clusters that the word has room for. There are never more CPUs.
const MOST_HELD: u32 = u32::MAX / ONE_HELD;

impl ListHints {
    pub(super) fn new(clusters: u32) -> Self {
        Self(AtomicU32::new(if clusters > 0 { NEVER_USED } else { 0 }))
    }

    /// Returns whether no cluster is on a list, held by a CPU, or never used.
    pub(super) fn are_none(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    pub(super) fn may_have(&self, list: ListId) -> bool {
        self.0.load(Ordering::Relaxed) & list.bit() != 0
    }

    pub(super) fn may_have_never_used(&self) -> bool {
        self.0.load(Ordering::Relaxed) & NEVER_USED != 0
    }
}

/// Ends of a queue: cluster + 1, or 0 if it is empty.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    head: u32,
    tail: u32,
}

/// The lists of one area.
#[derive(Debug)]
pub(super) struct AreaLists {
    ends: [Ends; ListId::COUNT],
    /// The number of clusters of the area.
    clusters: u32,
    /// The number of clusters that are current clusters of CPUs.
    held: u32,
    /// The number of clusters that have been used. These are the first clusters of the area.
    pub(super) touched: u32,
    /// How often a cluster was moved to a state.
    pub(super) moves: u64,
}

impl AreaLists {
    pub(super) fn new(clusters: u32) -> Self {
        Self { ends: [Ends::default(); ListId::COUNT], clusters, held: 0, touched: 0, moves: 0 }
    }

    /// The value of the hints whenever the lock is free.
    pub(super) fn hints(&self) -> u32 {
        let listed =
            self.ends.iter().zip(0..).fold(0, |word, (ends, list)| word | u32::from(ends.head != 0) << list);
        let never_used = if self.touched < self.clusters { NEVER_USED } else { 0 };
        listed | never_used | (self.held.min(MOST_HELD) * ONE_HELD)
    }

    /// The cluster that has been on the list longest.
    pub(super) fn head(&self, list: ListId) -> Option<u32> {
        self.ends[list.0 as usize].head.checked_sub(1)
    }

    /// Returns whether any list has a cluster.
    pub(super) fn any(&self) -> bool {
        self.ends.iter().any(|ends| ends.head != 0)
    }

    /// Moves a cluster off its list, if it is on one, and into another state.
    pub(super) fn move_to(&mut self, clusters: &[Cluster], index: u32, to: ClusterState, hints: &ListHints) {
        let cluster = &clusters[index as usize];
        let before = ClusterState::of(cluster);
        if let ClusterState::On(list) = before {
            self.unlink(clusters, cluster, list);
        }
        self.held -= u32::from(before == ClusterState::Held);
        self.held += u32::from(to == ClusterState::Held);
        if let ClusterState::On(list) = to {
            let ends = &mut self.ends[list.0 as usize];
            cluster.next.store(0, Ordering::Relaxed);
            cluster.previous.store(ends.tail, Ordering::Relaxed);
            match ends.tail {
                0 => ends.head = index + 1,
                tail => clusters[tail as usize - 1].next.store(index + 1, Ordering::Relaxed),
            }
            ends.tail = index + 1;
        }
        to.set(cluster);
        self.moves += 1;
        let said = self.hints();
        if hints.0.load(Ordering::Relaxed) != said {
            hints.0.store(said, Ordering::Relaxed);
        }
    }

    fn unlink(&mut self, clusters: &[Cluster], cluster: &Cluster, list: ListId) {
        let ends = &mut self.ends[list.0 as usize];
        let (next, previous) =
            (cluster.next.load(Ordering::Relaxed), cluster.previous.load(Ordering::Relaxed));
        match previous {
            0 => ends.head = next,
            before => clusters[before as usize - 1].next.store(next, Ordering::Relaxed),
        }
        match next {
            0 => ends.tail = previous,
            after => clusters[after as usize - 1].previous.store(previous, Ordering::Relaxed),
        }
    }

    /// Returns the first contradiction in the links, or a contradiction with `listed`, the number of clusters
    /// whose state says that they are on a list.
    pub(super) fn contradiction(
        &self,
        clusters: &[Cluster],
        hints: &ListHints,
        listed: usize,
    ) -> Option<String> {
        let mut count = 0;
        for (list, ends) in (0..).map(ListId).zip(self.ends) {
            let (mut at, mut before) = (ends.head, 0);
            while at != 0 && count <= listed {
                let cluster = &clusters[at as usize - 1];
                if ClusterState::of(cluster) != ClusterState::On(list)
                    || cluster.previous.load(Ordering::Relaxed) != before
                {
                    return Some(format!("cluster {} is not where {list:?} has it", at - 1));
                }
                (before, at) = (at, cluster.next.load(Ordering::Relaxed));
                count += 1;
            }
            if ends.tail != before {
                return Some(format!("{list:?} ends elsewhere"));
            }
        }
        if hints.0.load(Ordering::Relaxed) != self.hints() {
            return Some(format!("the hints {hints:?} are not those of {self:?}"));
        }
        (count != listed).then(|| format!("{count} clusters are on lists, and {listed} say so"))
    }
}
