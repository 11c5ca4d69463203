//! Finds out which processes are the children of forks.
//!
//! A fork's event brings a descriptor for the child's memory, but not the child's number. So the monitor
//! searches for the child among the processes of the tree. If it has chosen the wrong process, it searches
//! again.

use std::time::Duration;

use super::{Failed, Monitor, is_watched};
use crate::managed::Managed;
use crate::messages;
use crate::system::priority;

impl Monitor {
    /// Finds out which processes are the children of forks.
    pub(super) fn find_forks(&mut self) {
        for (pid, managed) in &self.managed {
            self.forks.extend(managed.take_forks(*pid));
        }
        let mut index = 0;
        while index < self.forks.len() {
            let fork = &self.forks[index];
            let more = fork.take_forks(fork.parent);
            let (managed, watched) = (&self.managed, &mut self.watched);
            let is_another = |pid| {
                let mut is_watched = || is_watched(watched, pid, fork.stack).unwrap_or(false);
                managed.contains_key(&pid) || !fork.may_be(pid) || !is_watched()
            };
            if !fork.is_current() {
                let fork = self.forks.remove(index);
                self.let_go(fork.parent, fork);
            } else if let Some(pid) = self.tree.find_fork(fork.stack, fork.forked_by(), is_another) {
                let fork = self.forks.remove(index);
                fork.found(pid);
                self.manage(pid, fork);
            } else {
                index += 1;
            }
            self.forks.extend(more);
        }
    }

    /// Counts the looks that did not find a fork's child, and tells the user about a child if there are too
    /// many.
    pub(super) fn note_vain_looks(&mut self) {
        for fork in &mut self.forks {
            if fork.looked_in_vain() {
                let parent = fork.parent;
                say!("octavo: {}", messages::FORK_UNKNOWN.with(&[("parent", &parent)]));
            }
        }
    }

    /// Searches again for a fork's child, since process `pid` was mistaken for it. That process may be a
    /// sibling, and other siblings may have been confused as well. So the monitor searches again for all
    /// siblings, except those that are certain.
    pub(super) fn look_again(&mut self, pid: u32) {
        let Some(mut fork) = self.managed.remove(&pid) else { return };
        fork.is_not(pid);
        let is_doubtful =
            |managed: &Managed| managed.stack == fork.stack && managed.parent != 0 && !managed.is_equipped();
        let siblings = self.managed.extract_if(.., |_, managed| is_doubtful(managed));
        let found: Vec<_> = siblings.map(|(_, sibling)| sibling).collect();
        // The child comes first, since fewer processes are possible for it.
        let first = self.forks.len();
        self.forks.push(fork);
        self.forks.extend(found);
        self.forks[first..].iter_mut().for_each(Managed::lost);
    }

    /// Takes the last forks of processes that have ended, and drops the processes whose drivers have ended
    /// too.
    ///
    /// # Errors
    /// Returns an error if a fork could not be served. Its child waits as long as the parent's entry exists.
    pub(super) fn take_last_forks(&mut self) -> Result<(), Failed> {
        let mut failure = None;
        for (parent, mut managed) in std::mem::take(&mut self.ending) {
            let has_stopped = managed.has_stopped();
            if has_stopped {
                managed.wait();
            }
            self.forks.extend(managed.take_forks(parent));
            let failed = managed.failure_of_forks();
            if has_stopped && failed.is_none() {
                // Freeing a large space takes long, which must not happen at high priority.
                priority::goes_on(Duration::MAX);
                self.summary.add(managed);
            } else {
                self.ending.push((parent, managed));
            }
            failure = failure.or(failed);
        }
        failure.map_or(Ok(()), |why| Err(Failed(why + &self.cause())))
    }
}
