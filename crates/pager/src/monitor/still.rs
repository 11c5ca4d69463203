//! Which processes stand still at a look, and which may continue.
//!
//! ```text
//!   could outgrow the limit before it is managed  ─┐
//!   grows outside of management, or is not adopted ├─► stands still
//!   shares pages, and copies come too fast        ─┘     └─► all fits, or copies have room ─► continues
//! ```
//!
//! Small processes wait in a queue instead ([`queue`](super::queue)).

use super::queue::Why;
use super::{LEAST_COPIES, Managed, Monitor, STOPPING};
use crate::system::priority;
use crate::tree::Process;

impl Monitor {
    /// Stops processes that could exceed the limit before they are managed, until they are managed and the
    /// manager has made room:
    ///
    /// - all that are to be taken over, if less room is left than `coming` bytes, or nothing can go out yet;
    /// - of these, all unmanaged ones, if the tree has families that share pages, or could exceed its limit
    ///   while movers wait for a CPU;
    /// - managed ones that grow outside of management, if less room is left than `coming` bytes: they have
    ///   new mappings, and a look at these may have to wait;
    /// - those that share much, if the copies that may come would exceed the limit by more than the room left
    ///   for copies;
    /// - those with many pages not adopted yet, if at most `least_room` is left: until these are adopted, the
    ///   manager alone cannot hold the limit.
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

    /// Returns how many bytes of copies of shared pages may come before the tree stands still. The stores
    /// that make them cause no event. While a process gets its mover, the monitor does not look either, so
    /// all shared pages may be copied.
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

    /// Returns the least room to leave for copies of shared pages.
    fn least_for_copies(&self) -> u64 {
        self.ledger.limit_bytes() / LEAST_COPIES
    }

    /// Returns whether processes that share pages may continue: the copies that may come fit beside the
    /// tree's `total` bytes.
    pub(super) fn has_room_for_copies(&self, total: u64) -> bool {
        self.tree.shared_bytes() > 0
            && total + self.coming_copies() + self.least_for_copies() <= self.ledger.limit_bytes()
    }

    /// Returns whether a process has no mover and cannot get one, because a debugger traces it. A standstill
    /// of such a process would have no effect.
    pub(super) fn is_beyond_reach(&self, pid: u32) -> bool {
        !self.managed.get(&pid).is_some_and(Managed::is_equipped) && octavo_stub::is_traced(pid)
    }

    /// Continues the processes that stand still, except those in the queue.
    pub(super) fn let_go_on(&mut self) {
        if self.standstill.has_any() {
            self.tree.ask_all();
        }
        self.standstill.end(self.guardian.as_ref());
    }
}
