//! Who stands still at a look, and who may go on.
//!
//! ```text
//!   could outgrow the limit before it is managed  ─┐
//!   grows outside of management, or is not adopted ├─► stands still ─► all fits, or there is room for what may come ─► goes on
//!   shares pages, and copies come too fast        ─┘
//! ```
//!
//! Small processes wait in turn instead ([`queue`](super::queue)).

use super::queue::Why;
use super::{LEAST_COPIES, Managed, Monitor, STOPPING};
use crate::system::priority;
use crate::tree::Process;

impl Monitor {
    /// Has processes stand still that could outgrow the limit before they are managed, until they are, and
    /// until the manager has made room. Where less is left than what is `coming`, and where nothing can go
    /// out yet, these are all that are to be taken over. Otherwise, they are those without a mover that share
    /// pages, and all without one if the tree could fill the memory while movers wait for their turns of the
    /// CPU. Managed processes that grow outside of management stand still where less is left than what is
    /// coming: they have new mappings, and a look at these may have to wait. So do those that share pages,
    /// where copies come faster than others go out. And so do those that are not all adopted, once less than
    /// `least_room` is left: the manager does not hold the limit by itself yet.
    pub(super) fn keep_still(&mut self, pids: &[(u64, u32)], total: u64, coming: u64, least_room: u64) {
        if self.stops_none {
            return;
        }
        let limit = self.ledger.limit_bytes();
        let is_short = total + coming > limit;
        let is_short_for_movers = total + self.growth.while_movers_start() > limit;
        let is_full = total + least_room >= limit;
        let may_copy_too_much = total + self.coming_copies() > limit + self.least_for_copies();
        let is_urgent = is_short || !self.is_ready();
        for (anonymous, pid) in pids.iter().copied() {
            if self.standstill.has(pid) {
                continue;
            }
            let may_copy = may_copy_too_much && self.tree.shares_much(pid);
            if may_copy && self.is_small(anonymous, pid) {
                if !self.queue.is_going(pid) {
                    self.wait(pid, Why::Grown);
                }
                continue;
            }
            let is_to_stop = if may_copy {
                true
            } else if self.is_to_be_equipped(anonymous, pid) {
                is_urgent
            } else if let Some(managed) = self.managed.get(&pid) {
                let grows = managed.has_more_outside() || managed.grows();
                grows && is_short || is_full && managed.has_more_to_adopt()
            } else {
                (is_urgent || self.tree.has_families() || is_short_for_movers)
                    && self.find_new(anonymous, pid).is_some()
            };
            if is_to_stop && !self.is_beyond_reach(pid) {
                priority::goes_on(STOPPING);
                self.standstill.stop(pid, self.tree.ancestors(pid), self.guardian.as_ref());
            }
        }
        if is_short {
            self.have_wait();
        }
    }

    /// Returns how many bytes of copies of shared pages may come before the tree stands still. Nobody hears
    /// of the stores that make them. While a process is to get its mover, nobody looks either, and all may
    /// come.
    fn coming_copies(&self) -> u64 {
        let shared = self.tree.shared_bytes();
        let is_to_get_one = |(pid, process): (&u32, &Process)| {
            process.memory.anonymous >= self.least_process
                && self.managed.get(pid).map_or(!self.refused.contains_key(pid), Managed::lacks_mover)
                && self.tree.shares_much(*pid)
        };
        if shared > 0 && self.tree.processes.iter().any(is_to_get_one) {
            return shared;
        }
        self.growth.in_reaction.max(self.least_for_copies() / 2).min(shared)
    }

    /// Returns how much is left at least for copies of shared pages.
    fn least_for_copies(&self) -> u64 {
        self.ledger.limit_bytes() / LEAST_COPIES
    }

    /// Returns whether those that share pages may go on: the tree has `total` bytes, and the copies that may
    /// come fit beside that.
    pub(super) fn has_room_for_copies(&self, total: u64) -> bool {
        self.tree.shared_bytes() > 0
            && total + self.coming_copies() + self.least_for_copies() <= self.ledger.limit_bytes()
    }

    /// Returns whether a process has no mover and cannot get one, since a debugger has it. It would stand
    /// still in vain.
    pub(super) fn is_beyond_reach(&self, pid: u32) -> bool {
        !self.managed.get(&pid).is_some_and(Managed::is_equipped) && octavo_stub::is_traced(pid)
    }

    /// Lets those go on that stand still.
    pub(super) fn let_go_on(&mut self) {
        if self.standstill.has_any() {
            self.tree.ask_all();
        }
        self.standstill.end(self.guardian.as_ref());
    }
}
