//! The children of a managed process's forks. They are served from the moment the fork's event is read.
//! Later, the monitor finds out which processes they are.

use std::fmt::Display;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use octavo::ErrorKind;
use octavo::translation::TranslatedSpace;
use octavo_platform::userfaultfd::Userfaultfd;
use octavo_stub::Message;
use octavo_window::{Target, Window};

use super::Managed;
use crate::managed::adopter::may_pass;
use crate::managed::shared::{Claim, DriverState, ProcessContext, ProgramToManage};
use crate::messages;
use crate::tree::Parent;

/// After this many vain searches for a fork's child, the user gets a message. A search comes at least every
/// 20 ms.
pub(super) const MOST_VAIN_LOOKS: u32 = 100;
/// The longest time for which a fork waits for room.
const FORK_PATIENCE: Duration = Duration::from_secs(20);

/// The parent's side of a fork.
#[derive(Clone, Copy)]
pub(super) struct Forking<'a> {
    pub(super) space: &'a TranslatedSpace,
    pub(super) window: &'a Window<Target>,
    pub(super) shared: &'a DriverState,
    /// The parent's forked children, until the monitor takes them.
    pub(super) forks: &'a Mutex<Vec<Managed>>,
    pub(super) stack: u64,
}

impl Managed {
    /// Takes a child in, in the thread of its parent's driver. After the call, the child is served, or waits
    /// until the tree is stopped.
    pub(super) fn take_in(parent: &Forking<'_>, child: OwnedFd) {
        let Forking { space, window, shared, forks, stack } = *parent;
        let events = Userfaultfd::of_fork(child, window.reach().events().features());
        let (layout, wiped) = (shared.layout.of_fork(), window.reach().take_wiped());
        let DriverState { manager, ledger, guardian, reader, .. } = shared;
        let common = ProcessContext { manager, ledger, guardian, reader };
        let program = ProgramToManage { pid: None, stack, name: "a fork".into() };
        let claim = Claim::new(guardian, &program, events);
        let unserved = |claim| shared.unserved.lock().expect("nobody panics here").push(claim);
        let give_up =
            |message: &Message, why: &dyn Display| shared.give_up(window.reach().pid(), message, why);
        if shared.failure.lock().expect("nobody panics here").is_some() {
            // A failure of the parent's memory would be a failure of the child's memory as well.
            return unserved(claim);
        }
        let wiped: Vec<_> = match wiped.wait() {
            Ok(wiped) => wiped.iter().flat_map(|range| layout.lock().mapped_in(range)).collect(),
            Err(_) if claim.has_ended() => return,
            Err(error) => {
                unserved(claim);
                return give_up(&messages::FORK_UNASKED, &error);
            }
        };
        let forked = Managed::serve(common, program, &claim, layout, |of_child| {
            let began = Instant::now();
            loop {
                let forget = |range: &Range<u64>| of_child.forget(range.start, range.end - range.start);
                match of_child.fork_from(space).and_then(|()| wiped.iter().try_for_each(forget)) {
                    // The parent's pages cannot go out now, but writes may complete, and other processes may
                    // make room.
                    Err(error)
                        if (may_pass(&error) || error.kind() == ErrorKind::SwapFull)
                            && began.elapsed() < FORK_PATIENCE
                            && !claim.has_ended() =>
                    {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    done => return done,
                }
            }
        });
        match forked {
            Ok(forked) => forks.lock().expect("nobody panics here").push(forked),
            Err(_) if claim.has_ended() => {}
            Err(why) => {
                unserved(claim);
                give_up(&messages::FORK_UNSERVED, &why);
            }
        }
    }

    /// Takes the children that process `pid` has forked since the last call.
    pub(crate) fn take_forks(&self, pid: u32) -> Vec<Managed> {
        let mut forks = std::mem::take(&mut *self.forks.lock().expect("nobody panics here"));
        forks.iter_mut().for_each(|fork| fork.parent = pid);
        forks
    }

    /// Records which process a fork's child is thought to be.
    pub(crate) fn found(&self, pid: u32) {
        self.entrusted.found(pid);
    }

    /// Records that a fork's child must be searched for again.
    pub(crate) fn lost(&mut self) {
        self.entrusted.found(0);
        // The refused process was not this child.
        self.is_refused = false;
    }

    /// Records that a fork's child is not process `pid`.
    pub(crate) fn is_not(&mut self, pid: u32) {
        self.others.push(pid);
        self.vain_looks = 0;
    }

    /// Records that no process can be this fork's child. Returns `true` once, when the user should get a
    /// message: each process that was regarded as the child was another one, and no new candidate has come
    /// for a while.
    pub(crate) fn looked_in_vain(&mut self) -> bool {
        self.vain_looks = self.vain_looks.saturating_add(1);
        let is_given_up = self.vain_looks >= MOST_VAIN_LOOKS && !self.others.is_empty();
        is_given_up && !std::mem::replace(&mut self.is_told, true)
    }

    /// Returns which process has forked this child. After a vain search, the recorded parent is only a guess:
    /// the parent may have been matched to the wrong process, or may not have been found itself.
    pub(crate) fn forked_by(&self) -> Parent {
        let is_known = self.vain_looks == 0 && self.others.is_empty();
        if is_known { Parent::Known(self.parent) } else { Parent::Thought(self.parent) }
    }

    /// Returns whether a fork's child may be this process, as far as is known.
    pub(crate) fn may_be(&self, pid: u32) -> bool {
        !self.others.contains(&pid)
    }

    /// Returns why the tree must not go on even though the process has ended: a child that it has forked
    /// cannot be served. Any other failure concerned the memory of the process itself, which is gone.
    pub(crate) fn failure_of_forks(&self) -> Option<String> {
        let unserved = self.shared.unserved.lock().expect("nobody panics here");
        self.failure().filter(|_| unserved.iter().any(|child| !child.has_ended()))
    }
}
