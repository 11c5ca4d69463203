//! Checks that states, lists and counts of clusters agree with their bits: for tests, and for
//! `Manager::validate`.

use crate::swap::clusters::bits::SlotBits;
use crate::swap::clusters::lists::{ClusterState, ListId};
use crate::swap::clusters::{AreaClusters, Clusters, Current};

impl Clusters {
    /// Returns the first state, list or count that contradicts the bits. Linear, and exact only while no
    /// other thread is at work.
    pub(crate) fn contradiction(&self) -> Option<String> {
        self.areas.iter().find_map(|area| {
            let lists = area.lists.lock();
            let touched = area.first_cluster..area.first_cluster + lists.touched;
            let used: usize = touched.clone().map(|index| self.used_of(area, index)).sum();
            let is_listed =
                |index: &u32| matches!(ClusterState::of(self.cluster(*index)), ClusterState::On(_));
            let listed = touched.clone().filter(is_listed).count();
            let linked = lists.contradiction(&self.clusters, &area.hints, listed);
            touched.clone().find_map(|index| self.misplaced(area, index)).or(linked).or_else(|| {
                (used != area.used() as usize)
                    .then(|| format!("{used} slots are in use, and {} counted", area.used()))
            })
        })
    }

    fn used_of(&self, area: &AreaClusters, index: u32) -> usize {
        area.slots_of(index) - SlotBits::load(&self.cluster(index).bits).free_slots()
    }

    fn misplaced(&self, area: &AreaClusters, index: u32) -> Option<String> {
        let bits = SlotBits::load(&self.cluster(index).bits);
        let state = ClusterState::of(self.cluster(index));
        let currents = self.groups.iter().flat_map(|group| &group.currents);
        let named =
            currents.filter(|current| Current::load(current).is_some_and(|now| now.cluster == index)).count();
        let is_whole = area.is_whole(index, &bits);
        let is_right = match state {
            ClusterState::NeverUsed => false,
            ClusterState::Held => bits.free_slots() > 0,
            ClusterState::Full | ClusterState::FullHuge => bits.free_slots() == 0,
            ClusterState::On(ListId::FREE) => is_whole,
            ClusterState::On(ListId::PARTLY) => bits.free_slots() > 0 && !is_whole,
            ClusterState::On(ListId(class)) => {
                bits.longest().is_some_and(|run| run.1.ilog2() == class) && !is_whole
            }
        };
        (!is_right || named != usize::from(state == ClusterState::Held))
            .then(|| format!("cluster {index} is {state:?}, the current one of {named} CPUs, with {bits:?}"))
    }

    /// Checks the clusters, while no other thread is at work.
    ///
    /// # Panics
    /// If there is a [`Clusters::contradiction`].
    #[cfg(test)]
    pub(crate) fn validate(&self) {
        assert_eq!(self.contradiction(), None);
    }
}
