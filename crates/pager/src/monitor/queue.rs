//! The queue of small processes that wait for room near the limit.
//!
//! A small process is not worth a takeover, and most small processes end soon. But many of them together can
//! exceed a limit, just like a large process. So near the limit, each small process that grows stands still,
//! as do processes that start more of them. These processes continue one after another when there is room,
//! usually because others have ended. If none of them ends, they are taken over while they wait, the largest
//! first.
//!
//! ```text
//!   grows, and there is no room ─► waits ─► has room, and its turn ─► continues ─► ends or settles: next
//!                                    └─► none ends ─► is taken over, and waits for others' pages to go out
//! ```
//!
//! The number of bytes outside that the manager gets is too large on purpose, so that the manager keeps room
//! for processes that continue. At least one process continues every second, even without room, since other
//! processes may wait for it. If there is no room at all, the first process continues soon, as a trial: if it
//! ends, it has made room, and the next process is tried. Taking over a hundred small processes instead would
//! cost more memory than they have.
//!
//! A process that starts others lets all others go first, for at most a second.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use octavo::{Counter, Manager};
use octavo_platform::usage::possible_cpus;

use super::{LEAST_PROCESS, Monitor, STOPPING};
use crate::managed::Managed;
use crate::system::priority;
use crate::system::proc::MemoryInUse;
use crate::tree::LEAST_GROWN;

/// When waiting processes are taken over, the smallest are left alone: together, at most 1/[`SHARE`] of the
/// limit.
const SHARE: u64 = 8;
/// A process below this size is never worth taking over.
const LEAST: u64 = 1 << 20;
/// A process counts as settled when it has not grown much for [`SETTLED`], or after [`MOST_GOING`] in any
/// case. While many pages come back, processes make little progress, and only [`MOST_GOING`] counts.
const SETTLED: Duration = Duration::from_millis(50);
const MOST_GOING: Duration = Duration::from_millis(500);
/// Memory is short if this many pages come back within [`PRESSED`].
const PRESSING: u64 = 256;
const PRESSED: Duration = Duration::from_millis(50);
/// Waiting processes are taken over if none has ended or continued for [`ENDS_WITHIN`], or if the first of
/// them has waited for [`MOST_WAIT`].
const ENDS_WITHIN: Duration = Duration::from_millis(500);
const MOST_WAIT: Duration = Duration::from_secs(1);
/// While there is no room, a process continues when this long has passed since the last one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Like [`PATIENCE`], for the first process that continues after processes have begun to wait.
const FIRST_PATIENCE: Duration = Duration::from_millis(100);
/// Like [`PATIENCE`], if the last process that continued has not grown.
const IDLE_PATIENCE: Duration = Duration::from_millis(100);
/// The manager keeps room for this long after a process last continued.
const KEEPS_ROOM: Duration = Duration::from_secs(1);

/// The processes that wait, and the processes that have just continued.
#[derive(Debug)]
pub(super) struct ProcessQueue {
    waiting: VecDeque<WaitingProcess>,
    going: Vec<GrowingProcess>,
    /// How many processes have ended.
    ended: u64,
    /// The time when a process last ended, continued with room or was taken over, and the time when a process
    /// last continued at all.
    moved_at: Instant,
    went_at: Instant,
    /// Until when the manager keeps room.
    keeps_until: Option<Instant>,
    /// When the pages that came back were last counted and how many they were, and whether memory was short
    /// between the last two counts.
    came_back: (Instant, u64),
    is_pressed: bool,
    /// The time for which the next process waits without room. It is shorter if no process has continued yet,
    /// or if the last one has not grown. It is zero if the last one has ended.
    patience: Duration,
}

/// Why a process has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The process has got memory, or gets copies of shared pages.
    Grown,
    /// The process is new, and has got no memory yet.
    New,
    /// The process has started others.
    Starts,
}

#[derive(Debug)]
struct WaitingProcess {
    pid: u32,
    since: Instant,
    /// The process has started others.
    starts: bool,
}

/// A process that may be getting memory.
#[derive(Debug)]
struct GrowingProcess {
    pid: u32,
    since: Instant,
    bytes: u64,
    grown_at: Instant,
}

impl ProcessQueue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiting: VecDeque::new(),
            going: Vec::new(),
            ended: 0,
            moved_at: now,
            went_at: now,
            keeps_until: None,
            came_back: (now, 0),
            is_pressed: false,
            patience: FIRST_PATIENCE,
        }
    }

    fn push(&mut self, pid: u32, starts: bool, now: Instant) {
        if self.waiting.is_empty() && self.going.is_empty() {
            (self.moved_at, self.went_at, self.patience) = (now, now, FIRST_PATIENCE);
        }
        self.going.retain(|going| going.pid != pid);
        self.waiting.push_back(WaitingProcess { pid, since: now, starts });
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether a process has just continued.
    pub(super) fn is_going(&self, pid: u32) -> bool {
        self.going.iter().any(|going| going.pid == pid)
    }

    /// Records the bytes of the processes. `bytes_of` returns `None` for one that has ended. So far, `ended`
    /// processes of the tree have ended, and `came_back` pages have come back.
    fn note(&mut self, now: Instant, ended: u64, came_back: u64, bytes_of: impl Fn(u32) -> Option<u64>) {
        if now - self.came_back.0 >= PRESSED {
            self.is_pressed = came_back - self.came_back.1 >= PRESSING;
            self.came_back = (now, came_back);
        }
        if std::mem::replace(&mut self.ended, ended) != ended {
            self.moved_at = now;
        }
        self.waiting.retain(|waiting| bytes_of(waiting.pid).is_some());
        self.going.retain_mut(|going| {
            let Some(bytes) = bytes_of(going.pid) else {
                self.patience = Duration::ZERO;
                return false;
            };
            if bytes > going.bytes + LEAST_GROWN {
                (going.bytes, going.grown_at) = (bytes, now);
            }
            // This process did not grow, so the next process may not grow either.
            if going.grown_at == going.since && now - going.since >= SETTLED {
                self.patience = self.patience.min(IDLE_PATIENCE);
            }
            (self.is_pressed || now - going.grown_at < SETTLED) && now - going.since < MOST_GOING
        });
    }

    /// Returns the process to continue next, and whether it has room beside those that have just continued.
    fn next(&self, now: Instant, has_room_beside: impl Fn(u64) -> bool) -> Option<(u32, bool)> {
        let comes_last = |waiting: &WaitingProcess| waiting.starts && now - waiting.since < PATIENCE;
        let first = self.waiting.iter().find(|waiting| !comes_last(waiting)).or(self.waiting.front())?.pid;
        let may_go = self.going.len() < possible_cpus() && has_room_beside(self.going.len() as u64);
        let is_due =
            now - self.went_at >= self.patience && (self.going.is_empty() || !self.patience.is_zero());
        (may_go || is_due).then_some((first, may_go))
    }

    /// Records that a process with `bytes` continues. Without room, that is no progress.
    fn goes_on(&mut self, (pid, has_room): (u32, bool), now: Instant, bytes: u64) {
        self.waiting.retain(|waiting| waiting.pid != pid);
        self.going.push(GrowingProcess { pid, since: now, bytes, grown_at: now });
        self.moved_at = if has_room { now } else { self.moved_at };
        self.went_at = now;
        (self.keeps_until, self.patience) = (Some(now + KEEPS_ROOM), PATIENCE);
    }

    /// Returns whether to take over the waiting processes, because none makes room by ending.
    fn is_stuck(&self, now: Instant) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let is_late = now - first.since >= MOST_WAIT && now - self.went_at >= MOST_WAIT;
        self.going.is_empty() && (now - self.moved_at >= ENDS_WITHIN || is_late)
    }

    /// Records that waiting processes have been taken over.
    fn taken(&mut self, now: Instant) {
        self.moved_at = now;
    }

    fn keeps_room(&self, now: Instant) -> bool {
        !self.waiting.is_empty() || self.keeps_until.is_some_and(|until| now < until)
    }
}

impl Monitor {
    /// Records the memory of the processes that wait, and of those that have just continued.
    pub(super) fn note_queue(&mut self, now: Instant) {
        // A process that has ended has no memory, even before its parent reaps it.
        let there =
            |pid| self.tree.processes.get(&pid).filter(|process| process.memory != MemoryInUse::default());
        let bytes_of = |pid| there(pid).map(|process| process.memory.anonymous);
        let counters = self.manager.as_ref().map(Manager::counters);
        let came_back =
            counters.map_or(0, |counters| counters.get(Counter::SwapIn) + counters.get(Counter::PoolSwapIn));
        self.queue.note(now, self.tree.ended, came_back, bytes_of);
        self.standstill.keep_waiting(|pid| there(pid).is_some(), self.guardian.as_ref());
    }

    /// Returns the size below which processes are not taken over at this look.
    pub(super) fn least_to_take(&self, pids: &[(u64, u32)], now: Instant) -> u64 {
        if !self.queue.is_stuck(now) {
            return LEAST_PROCESS;
        }
        let mut together = 0;
        let small = pids.iter().rev().filter(|(anonymous, pid)| self.is_small(*anonymous, *pid));
        let matters = |(anonymous, _): &&(u64, u32)| {
            together += anonymous;
            together > self.ledger.limit_bytes() / SHARE
        };
        small.clone().find(matters).map_or(LEAST_PROCESS, |(anonymous, _)| (*anonymous).max(LEAST))
    }

    /// Records that no process is left to take over.
    pub(super) fn note_taken(&mut self, now: Instant) {
        if self.least_process < LEAST_PROCESS {
            self.queue.taken(now);
        }
    }

    /// Makes small processes wait that have grown, or that are new and about to run. If any process waits,
    /// those that have started others wait as well.
    pub(super) fn have_wait(&mut self) {
        for (anonymous, pid) in self.tree.grown() {
            if self.is_small(anonymous, pid) {
                self.wait(pid, Why::Grown);
            }
        }
        self.have_newcomers_wait();
    }

    /// Makes small processes wait that are new and about to run. If any process waits, processes that have
    /// started others wait as well, so that none of them overtakes a waiting process.
    pub(super) fn have_newcomers_wait(&mut self) {
        for (anonymous, pid) in self.tree.newcomers(Instant::now()) {
            if self.is_small(anonymous, pid) {
                self.wait(pid, Why::New);
            }
        }
        for parent in self.tree.take_parents() {
            if self.queue.len() > 0 {
                self.wait(parent, Why::Starts);
            }
        }
    }

    pub(super) fn wait(&mut self, pid: u32, why: Why) {
        if self.standstill.has(pid) || self.is_beyond_reach(pid) {
            return;
        }
        priority::goes_on(STOPPING);
        let (ancestors, guardian) = (self.tree.ancestors(pid), self.guardian.as_ref());
        if self.standstill.stop_to_wait(pid, why == Why::New, ancestors, guardian) {
            self.queue.push(pid, why == Why::Starts, Instant::now());
            self.tree.settle(pid);
        }
    }

    /// Returns whether a process has no mover, is too small to be worth one, and was not refused.
    pub(super) fn is_small(&self, anonymous: u64, pid: u32) -> bool {
        let lacks_mover = self.managed.get(&pid).is_none_or(Managed::lacks_mover);
        anonymous < LEAST_PROCESS && lacks_mover && !self.refused.contains_key(&pid)
    }

    /// Continues the processes whose turn it is. The tree has `total` bytes, and `wanted` bytes must be free
    /// for each.
    pub(super) fn let_next_go_on(&mut self, total: u64, wanted: u64) {
        let now = Instant::now();
        let limit = self.ledger.limit_bytes();
        while let Some(next) = self.queue.next(now, |going| total + wanted * (going + 1) <= limit) {
            let (pid, _) = next;
            let anonymous = self.tree.processes.get(&pid).map_or(0, |process| process.memory.anonymous);
            self.queue.goes_on(next, now, anonymous);
            self.tree.settle(pid);
            self.tree.ask_again(pid);
            self.standstill.go_on(pid, self.guardian.as_ref());
        }
    }

    /// Returns how many bytes the manager must leave free for those that wait.
    pub(super) fn kept_room(&self, wanted: u64) -> u64 {
        if self.queue.keeps_room(Instant::now()) { wanted } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn those_that_wait_go_on_in_turn_when_others_have_got_what_they_wanted_or_have_ended() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut queue = ProcessQueue::new(start);
        let count = possible_cpus() as u32 + 2;
        (1..=count).for_each(|pid| queue.push(pid, false, at(0)));
        assert_eq!(queue.next(at(0), |_| false), None, "there is no room");
        let mut went = 0;
        while let Some(next) = queue.next(at(1), |_| true) {
            queue.goes_on(next, at(1), MIB);
            went += 1;
            assert_eq!(next, (went, true));
        }
        assert_eq!(went, count - 2, "one for each CPU");
        queue.note(at(20), 0, 0, |pid| Some(if pid == 1 { 4 * MIB } else { MIB }));
        assert_eq!(queue.next(at(20), |_| true), None, "all may be growing");
        queue.note(at(60), 1, 0, |pid| (pid != 1).then_some(MIB));
        assert_eq!(
            queue.next(at(60), |_| true),
            Some((count - 1, true)),
            "the first has ended, and others do not grow"
        );
        queue.goes_on((count - 1, false), at(60), MIB);
        queue.note(at(400), 1, 0, |_| Some(100 * MIB));
        assert_eq!(queue.next(at(400), |_| true), Some((count, true)), "it has had its time");
        assert_eq!(queue.next(at(401), |_| false), None);
        assert_eq!(queue.next(at(60) + PATIENCE, |_| false), Some((count, false)), "others may wait for it");
        queue.goes_on((count, false), at(2100), MIB);
        assert!(queue.len() == 0 && queue.keeps_room(at(2200)) && !queue.keeps_room(at(9000)));
        [98, 99].into_iter().for_each(|pid| queue.push(pid, false, at(9000)));
        queue.goes_on((98, false), at(9000), MIB);
        queue.note(at(9060), 1, 0, |_| Some(MIB));
        assert_eq!(queue.next(at(9060), |_| false), None);
        assert_eq!(queue.next(at(9100), |_| false), Some((99, false)), "the one before wanted nothing");
    }

    #[test]
    fn without_room_one_is_tried_and_whoever_ends_makes_room_for_the_next() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut queue = ProcessQueue::new(start);
        queue.push(1, true, at(0));
        (2..=4).for_each(|pid| queue.push(pid, false, at(0)));
        assert_eq!(queue.next(at(50), |_| false), None);
        assert_eq!(queue.next(at(100), |_| false), Some((2, false)), "who starts others comes last");
        queue.goes_on((2, false), at(100), MIB);
        queue.note(at(105), 0, 0, |_| Some(MIB));
        assert_eq!(queue.next(at(300), |_| false), None, "it has not ended");
        queue.note(at(305), 1, 0, |pid| (pid != 2).then_some(MIB));
        assert_eq!(queue.next(at(305), |_| false), Some((3, false)));
        queue.goes_on((3, false), at(305), MIB);
        queue.note(at(310), 1, 0, |_| Some(4 * MIB));
        assert_eq!(queue.next(at(900), |_| false), None, "this one does not end");
        assert_eq!(
            queue.next(at(1305), |_| false),
            Some((1, false)),
            "who starts others does not wait for ever"
        );
    }

    #[test]
    fn they_are_taken_over_where_nobody_ends() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut queue = ProcessQueue::new(start);
        assert!(!queue.is_stuck(at(1000)), "nobody waits");
        queue.push(1, false, at(1000));
        queue.push(2, false, at(1001));
        queue.note(at(1400), 1, 0, |_| Some(MIB));
        assert!(!queue.is_stuck(at(1800)), "somebody has ended");
        assert!(queue.is_stuck(at(1900)));
        queue.taken(at(1900));
        assert!(!queue.is_stuck(at(1950)), "their pages are going out");
        (0..30).for_each(|end| queue.note(at(1950 + end * 50), end, 0, |_| Some(MIB)));
        assert!(queue.is_stuck(at(3450)), "those that end make no room for it");
        // A process that was tried, and waits again since it grew, has made no room either.
        let mut queue = ProcessQueue::new(start);
        for tried in 0..5 {
            queue.push(1, false, at(tried * 100));
            assert!(!queue.is_stuck(at(tried * 100 + 50)));
            queue.goes_on((1, false), at(tried * 100 + 60), MIB);
        }
        queue.push(1, false, at(560));
        assert!(queue.is_stuck(at(560)));
    }
}
