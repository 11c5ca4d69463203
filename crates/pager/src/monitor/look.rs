//! One look of the monitor: its measurements, and the actions that follow.
//!
//! ```text
//!   find processes ─► watch the drivers ─► measure ─► near the limit: take over
//!                                                     else: leave the tree alone
//!     ─► tell the manager what is outside of management ─► continue processes
//! ```

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::growth::time_to_fill;
use super::{Failed, LEAST_COPIES, Managed, Monitor, PATIENCE, SHORTEST};
use crate::ledger::Use;
use crate::messages;
use crate::system::priority;
use crate::system::proc::Fixed;

/// The longest time between two looks, far below the limit.
const LONGEST: Duration = Duration::from_millis(10);
/// A look asks this many of the stopped processes whether they still stand.
const ASKED_TO_STAND: usize = 4;
/// Growth outside of management after which the monitor looks as often as it can.
const LEAST_GROWTH: u64 = 512 << 10;
/// The time between two cleanups of staging.
const TIDY_EVERY: Duration = Duration::from_millis(50);
/// For a tree that may fill half of its limit in less time than this, preparation begins at a sixteenth of
/// the limit instead of at half of it.
const PREPARE_WITHIN: Duration = Duration::from_millis(100);

/// The memory of the tree at a look, and the memory that the tree may get before it stands still, in bytes.
#[derive(Clone, Copy, Debug)]
struct Outlook {
    limit: u64,
    total: u64,
    coming: u64,
}

impl Outlook {
    /// Returns the least room to keep below the limit.
    fn least_margin(self) -> u64 {
        (self.limit / 8).clamp(16 << 20, 256 << 20).min(self.limit / 2)
    }

    /// Returns how far below the limit the monitor begins to take processes over.
    fn margin(self) -> u64 {
        self.least_margin().max(self.coming.min(self.limit / 2))
    }

    fn is_near(self) -> bool {
        self.total + self.margin() > self.limit
    }

    /// Returns how many bytes the tree may still get before all processes that must stand still are stopped.
    fn soon(self) -> u64 {
        self.coming.max(self.margin() / 2)
    }

    /// Returns the least room to leave while not all pages are adopted.
    fn least_room(self) -> u64 {
        self.margin() / 4
    }

    /// Returns the room that must be free before a waiting process continues.
    fn wanted(self) -> u64 {
        self.soon() + (1 << 20)
    }

    /// Returns the room to keep free for copies of pages that forks share.
    fn spare(self) -> u64 {
        (2 * self.coming).max(self.limit / LEAST_COPIES).min(self.least_margin())
    }

    fn room(self) -> u64 {
        self.limit.saturating_sub(self.total)
    }

    fn room_before_margin(self) -> u64 {
        self.limit.saturating_sub(self.total + self.margin())
    }
}

impl Monitor {
    /// Looks once, and acts on it. Returns how long to wait until the next look.
    ///
    /// # Errors
    /// Returns why the tree must not go on, for instance because a page could not be kept or brought back.
    pub(crate) fn turn(&mut self) -> Result<Duration, Failed> {
        priority::begins(self.look_takes);
        let began = priority::cpu_time();
        let wait = self.look()?;
        self.look_takes = (self.look_takes * 7 + (priority::cpu_time() - began)) / 8;
        priority::sleeps(wait, self.look_takes);
        Ok(wait)
    }

    fn look(&mut self) -> Result<Duration, Failed> {
        let now = Instant::now();
        self.keep_guarded()?;
        // The pages of ended processes stay charged until this call.
        self.take_last_forks()?;
        self.find_processes(now)?;
        self.standstill.stop_again(ASKED_TO_STAND);
        self.tidy(now);
        self.watch_drivers()?;
        let mut outlook = self.measure_outlook(now);
        self.follow_managed();
        self.prepare_early(outlook)?;
        let is_near = outlook.is_near();
        if is_near {
            outlook.total = self.take_over_some(outlook)?;
        } else {
            self.leave_alone(outlook);
        }
        self.follow_unpaged(outlook.total, is_near)?;
        self.tell_manager(outlook);
        self.let_next_go_on(outlook.total, outlook.wanted());
        self.room = outlook.room();
        Ok(time_to_fill(outlook.room_before_margin()).clamp(self.calm, LONGEST))
    }

    /// Finds the processes of the tree, if that is due.
    fn find_processes(&mut self, now: Instant) -> Result<(), Failed> {
        match self.tree.look_if_due(time_to_fill(self.room) / 4) {
            Ok(false) => {}
            Ok(true) => {
                self.blind_since = None;
                self.end_those_that_ended();
                self.find_forks();
                self.note_vain_looks();
            }
            // Other threads or processes may have taken the last descriptors for a moment.
            Err(_) if self.blind_since.get_or_insert(now).elapsed() < PATIENCE => {}
            Err(error) => return Err(Failed::refused(&messages::BLIND, &error)),
        }
        Ok(())
    }

    /// Frees what is left in staging now and then, and at once if there is no room.
    fn tidy(&mut self, now: Instant) {
        let is_due = self.tidied_at.is_none_or(|at| now - at >= TIDY_EVERY);
        if is_due || self.room == 0 {
            // The contents of each process's staging count toward the limit.
            self.managed.values().for_each(Managed::tidy);
        }
        if is_due {
            self.tidied_at = Some(now);
            self.standstill.follow();
        }
    }

    /// Watches the drivers of managed processes, and keeps other threads off the CPUs that these drivers
    /// need.
    ///
    /// # Errors
    /// Returns the failure of a managed process.
    fn watch_drivers(&mut self) -> Result<(), Failed> {
        self.ending.iter().for_each(|(_, managed)| managed.watch());
        for managed in self.managed.values().chain(&self.forks) {
            managed.watch();
            if let Some(failure) = managed.failure() {
                return Err(Failed(failure + &self.cause()));
            }
        }
        self.affinity.keep_off(self.managed.values().filter_map(Managed::driver_beside_on));
        Ok(())
    }

    fn measure_outlook(&mut self, now: Instant) -> Outlook {
        let total = self.measure();
        self.note_queue(now);
        let limit = self.ledger.limit_bytes();
        Outlook { limit, total, coming: self.growth.take_in(Instant::now(), total) }
    }

    /// Measures how much memory the tree and the runner have together.
    fn measure(&mut self) -> u64 {
        let own = self.own.read();
        let managed = &self.managed;
        let moved = |pid| managed.get(&pid).map(Managed::moved).unwrap_or_default();
        let anonymous = self.tree.measure(own.anonymous, moved);
        let limit = self.ledger.limit_bytes();
        let fits = |fixed: Fixed| anonymous + own.anonymous + fixed.shared + fixed.tables < limit / 2;
        let (tree, own_fixed) = (self.tree.fixed(fits), self.own_asked.fixed(Instant::now(), own, false));
        self.fixed = Fixed { shared: tree.shared + own_fixed.shared, tables: tree.tables + own_fixed.tables };
        let total = anonymous + own.anonymous + self.fixed.shared + self.fixed.tables;
        self.anonymous = anonymous;
        // The limit must hold for the upper bound, while reports give the best estimate.
        let doubtful = self.tree.doubtful_bytes;
        self.summary.note_peaks(anonymous.saturating_sub(doubtful), self.fixed);
        self.ledger.note(total.saturating_sub(doubtful));
        total
    }

    /// Records how much memory each managed process has now. Has pages adopted again that the program has
    /// dropped but that are still present.
    fn follow_managed(&mut self) {
        let mut moved = Vec::new();
        for (pid, managed) in &mut self.managed {
            let process = self.tree.processes.get(pid);
            if managed.note_growth(process.map_or(0, |process| process.memory.anonymous)) && process.is_some()
            {
                // The manager's count is already new, and is subtracted from the process's count. So the
                // process's count must be new as well.
                moved.push(*pid);
            }
            managed.take_kept();
        }
        moved.into_iter().for_each(|pid| self.tree.ask_again(pid));
    }

    /// Prepares to take processes over, well before the tree is near its limit.
    fn prepare_early(&mut self, outlook: Outlook) -> Result<(), Failed> {
        let early = if time_to_fill(outlook.limit / 2) < PREPARE_WITHIN { 16 } else { 2 };
        if self.making.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish_preparing()
        } else if self.manager.is_none() && outlook.total > outlook.limit / early {
            self.prepare()
        } else {
            Ok(())
        }
    }

    /// Takes over a process, if there is one to take over. Returns the tree's bytes after that.
    fn take_over_some(&mut self, outlook: Outlook) -> Result<u64, Failed> {
        let mut total = outlook.total;
        if self.take_over(total, outlook.soon(), outlook.least_room())? {
            total = self.measure();
            self.calm = SHORTEST;
        }
        self.growth.go_on(Instant::now(), total);
        Ok(total)
    }

    /// Leaves the tree alone, except that new processes have to wait if others already wait for room.
    fn leave_alone(&mut self, outlook: Outlook) {
        let waiting = self.queue.len() as u64 * outlook.wanted();
        if outlook.total + outlook.margin() + waiting > outlook.limit {
            self.have_newcomers_wait();
        }
        self.tree.settle_all();
    }

    /// Passes the number of bytes outside to the manager, and continues processes that need not stand still
    /// any more.
    fn tell_manager(&mut self, outlook: Outlook) {
        let Some(manager) = &self.manager else {
            if self.making.is_none() {
                // The processes to take over have ended, or could not be looked at.
                self.let_go_on();
            }
            return;
        };
        let adopting = self.managed.values().map(Managed::adopting_bytes).sum();
        let used = Use {
            total_bytes: outlook.total,
            shared_bytes: self.tree.shared_bytes(),
            adopting_bytes: adopting,
        };
        let kept = self.kept_room(outlook.least_margin());
        let outside = self.ledger.tell(manager, used, outlook.spare(), kept);
        self.summary.note(manager, &self.managed, &self.ending, &self.tree);
        self.let_go_on_where_it_fits(outlook, adopting, outside);
        self.calm_down(outside);
    }

    /// Continues the processes that stand still in three cases: all memory is known, and fits; all is known,
    /// and there is room for the copies that may come; or they have stood still for too long. `adopting`
    /// bytes are still to be adopted, and `outside` bytes are outside of management.
    fn let_go_on_where_it_fits(&mut self, outlook: Outlook, adopting: u64, outside: u64) {
        let is_apart = outlook.total + outlook.least_room() < outlook.limit;
        let is_known = (adopting == 0 || is_apart) && self.managed.values().all(Managed::is_settled);
        let stats = self.manager.as_ref().and_then(|manager| manager.stats().ok());
        let fits = is_known
            && stats.as_ref().is_some_and(|stats| {
                stats.used_bytes - stats.outside_bytes + outside <= stats.budget_bytes + stats.shared_bytes
            });
        let is_too_long = self.standstill.is_too_long(adopting + stats.map_or(0, |stats| stats.used_bytes));
        // If memory cannot go out, stopping processes again would not help.
        self.stops_none = !fits && (self.stops_none || is_too_long);
        if fits || is_known && self.has_room_for_copies(outlook.total) || is_too_long {
            self.let_go_on();
        }
    }

    /// Looks less often while memory outside does not grow. If everything that grows is managed, the manager
    /// alone holds the limit.
    fn calm_down(&mut self, outside: u64) {
        let grows = outside > self.outside + LEAST_GROWTH;
        self.outside = outside;
        self.calm = if grows { SHORTEST } else { (self.calm * 5 / 4).min(LONGEST / 2) };
    }
}
