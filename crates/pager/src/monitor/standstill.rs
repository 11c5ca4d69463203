//! Processes that stand still until they are taken over.
//!
//! ```text
//!   stopped (SIGSTOP)
//!     ─► nothing is left to wait for, or it takes too long
//!     ─► continued (SIGCONT)
//!     ─► parents that have stopped as well are continued
//! ```
//!
//! Some programs, such as `su`, stop themselves when their child stops, and wait until both are continued. So
//! for a while after a process continues, its ancestors are watched, except those that something else had
//! stopped before it.
//!
//! Others may continue a stopped process: a shell, a supervisor, the program itself. Such a process would
//! fill memory that nobody expects. So each look asks some of the stopped processes whether they still stand,
//! and stops them again. A look costs one read of `/proc` for each process that it asks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::STOPPING;
use crate::guardian::Guardian;
use crate::system::{priority, proc, signals};

/// How long processes stand still while nothing is adopted and nothing goes out.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long processes stand still at most, since running processes may wait for them.
const MOST_PATIENCE: Duration = Duration::from_secs(20);
/// The CPU time of asking a process whether it still stands.
const ASKING: Duration = Duration::from_micros(5);
/// How long a process may take to stop before the signal is sent once more. A thread takes a signal when it
/// gets a CPU.
const TO_STOP: Duration = Duration::from_millis(10);
/// How long ancestors are watched.
const FOLLOWED: Duration = Duration::from_secs(10);

/// The processes that stand still, and ancestors that may have stopped as a result.
#[derive(Debug, Default)]
pub(crate) struct Standstill {
    /// The stopped processes, by their numbers.
    stopped: BTreeMap<u32, StoppedProcess>,
    waiting: Option<StandstillStart>,
    /// Processes that have continued, and until when their ancestors are watched.
    going_on: Vec<GoingOn>,
    /// The stopped process that was asked last whether it still stands.
    asked: u32,
    /// The total time for which processes stood still, without those that still do.
    stood: Duration,
}

#[derive(Debug)]
struct StoppedProcess {
    /// The ancestors of the process, except ancestors that were already stopped by something else.
    ancestors: Vec<u32>,
    /// Whether the process waits for its turn, instead of continuing with the others.
    waits: bool,
    /// When the process started. Another process may get the same number later.
    start: u64,
    since: Instant,
    /// When it was last told to stop; `None` as soon as it has been seen stopped.
    told: Option<Instant>,
}

impl StoppedProcess {
    /// Asks about the process, whose number is `pid`. Returns `None` if it has ended.
    fn stat(&self, pid: u32) -> Option<proc::Stat> {
        proc::stat(pid).filter(|stat| stat.start == self.start)
    }
}

#[derive(Debug)]
struct GoingOn {
    pid: u32,
    ancestors: Vec<u32>,
    until: Instant,
}

/// The start of the present standstill, and the bytes that were left at the last look: bytes that were not
/// adopted yet, and adopted bytes that were still in memory.
#[derive(Debug)]
struct StandstillStart {
    began: Instant,
    /// When `left` last became less.
    progressed: Instant,
    left: u64,
}

impl StandstillStart {
    fn new(now: Instant) -> Self {
        Self { began: now, progressed: now, left: u64::MAX }
    }

    fn is_too_long(&mut self, now: Instant, left: u64) -> bool {
        if left < self.left {
            self.progressed = now;
        }
        self.left = left;
        now - self.progressed > PATIENCE || now - self.began > MOST_PATIENCE
    }
}

fn is_stopped(pid: u32) -> bool {
    proc::stat(pid).is_some_and(|stat| stat.state == b'T' || stat.state == b't')
}

/// Returns whether a process in this state exists, and is not stopped already.
fn may_stop(state: u8) -> bool {
    !b"TtZX".contains(&state)
}

impl Standstill {
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.stopped.contains_key(&pid)
    }

    /// Returns how long all processes together have stood still so far.
    pub(crate) fn stood(&self) -> Duration {
        self.stood + self.stopped.values().map(|stopped| stopped.since.elapsed()).sum::<Duration>()
    }

    /// Returns whether processes stand still that will continue together.
    pub(crate) fn has_any(&self) -> bool {
        self.stopped.values().any(|stopped| !stopped.waits)
    }

    /// Stops a running process. A process that something else has stopped is left alone: Octavo must not
    /// continue it.
    pub(crate) fn stop(&mut self, pid: u32, ancestors: Vec<u32>, guardian: Option<&Guardian>) {
        if self.stop_one(pid, ancestors, guardian, false, may_stop) {
            self.waiting.get_or_insert_with(|| StandstillStart::new(Instant::now()));
        }
    }

    /// Like [`stop`](Self::stop), but the process stands still until its turn. A newcomer is stopped only if
    /// it is ready to run. Returns whether the process was stopped.
    pub(crate) fn stop_to_wait(
        &mut self,
        pid: u32,
        is_newcomer: bool,
        ancestors: Vec<u32>,
        guardian: Option<&Guardian>,
    ) -> bool {
        let is_ready = |state| state == b'R';
        self.stop_one(pid, ancestors, guardian, true, if is_newcomer { is_ready } else { may_stop })
    }

    fn stop_one(
        &mut self,
        pid: u32,
        ancestors: Vec<u32>,
        guardian: Option<&Guardian>,
        waits: bool,
        may_stop: fn(u8) -> bool,
    ) -> bool {
        let Some(stat) = proc::stat(pid).filter(|stat| may_stop(stat.state)) else { return false };
        let ancestors = ancestors.into_iter().filter(|pid| self.has(*pid) || !is_stopped(*pid)).collect();
        // Record the process with the guardian first. If a guardian continues a process that is not stopped
        // yet, this does no harm.
        guardian.iter().for_each(|guardian| guardian.stopped(pid));
        signals::stop(pid);
        let (start, since) = (stat.start, Instant::now());
        self.stopped.insert(pid, StoppedProcess { ancestors, waits, start, since, told: Some(since) });
        true
    }

    /// Forgets processes that no longer wait for their turns, usually because they have ended.
    pub(crate) fn keep_waiting(&mut self, waits: impl Fn(u32) -> bool, guardian: Option<&Guardian>) {
        for (pid, stopped) in self.stopped.extract_if(.., |pid, stopped| stopped.waits && !waits(*pid)) {
            self.stood += stopped.since.elapsed();
            // When a parent ends, a look may miss its child for a moment, and a process that is about to
            // execute a program seems to have no memory. If the process still exists, continue it, even if it
            // runs: it may not have taken the signal yet that stops it, and it would stop for ever.
            if stopped.stat(pid).is_some() {
                signals::kill(pid, Signal::CONT);
            }
            guardian.iter().for_each(|guardian| guardian.continued(pid));
        }
    }

    /// Continues a process whose turn it is.
    pub(crate) fn go_on(&mut self, pid: u32, guardian: Option<&Guardian>) {
        self.let_go_on(|stopped, _| stopped == pid, guardian);
    }

    /// Stops processes again that something else has continued meanwhile. A call asks `most` of the
    /// processes, and the next call asks the next ones.
    pub(crate) fn stop_again(&mut self, most: usize) {
        let (now, count) = (Instant::now(), self.stopped.len().min(most));
        priority::goes_on(ASKING * count as u32);
        for _ in 0..count {
            let next = self.stopped.range(self.asked + 1..).next().or_else(|| self.stopped.iter().next());
            let Some(pid) = next.map(|(pid, _)| *pid) else { return };
            self.asked = pid;
            let Some(stopped) = self.stopped.get_mut(&pid) else { return };
            let Some(stat) = stopped.stat(pid) else { continue };
            if !may_stop(stat.state) {
                stopped.told = None;
                continue;
            }
            // It may not have taken the signal yet.
            let is_due = stopped.told.is_none_or(|told| now - told > TO_STOP);
            // A debugger that has come meanwhile would meet one signal after another.
            if is_due && !octavo_stub::is_traced(pid) {
                priority::goes_on(STOPPING);
                signals::stop(pid);
                stopped.told = Some(now);
            }
        }
    }

    /// Records that `left` bytes are not adopted yet, or are adopted and still in memory. Returns whether
    /// processes have stood still for too long.
    pub(crate) fn is_too_long(&mut self, left: u64) -> bool {
        self.waiting.as_mut().is_some_and(|waiting| waiting.is_too_long(Instant::now(), left))
    }

    /// Continues all processes except those that wait for their turns.
    pub(crate) fn end(&mut self, guardian: Option<&Guardian>) {
        self.waiting = None;
        self.let_go_on(|_, stopped| !stopped.waits, guardian);
    }

    /// Continues all processes, at the end of the run.
    pub(crate) fn end_all(&mut self, guardian: Option<&Guardian>) {
        self.let_go_on(|_, _| true, guardian);
    }

    fn let_go_on(&mut self, which: impl Fn(u32, &StoppedProcess) -> bool, guardian: Option<&Guardian>) {
        let until = Instant::now() + FOLLOWED;
        for (pid, StoppedProcess { mut ancestors, since, .. }) in
            self.stopped.extract_if(.., |pid, stopped| which(*pid, stopped))
        {
            self.stood += since.elapsed();
            signals::kill(pid, Signal::CONT);
            // Keep the ancestors from the last time: the new list lacks those that something else has stopped
            // since then.
            if let Some(at) = self.going_on.iter().position(|going| going.pid == pid) {
                ancestors.extend(self.going_on.swap_remove(at).ancestors);
                ancestors.sort_unstable();
                ancestors.dedup();
            }
            guardian.iter().for_each(|guardian| guardian.continued(pid));
            self.going_on.push(GoingOn { pid, ancestors, until });
        }
    }

    /// Continues ancestors that stopped after their descendants were stopped. Each is continued only once,
    /// because a second stop is deliberate. If a terminal stops a process and its ancestor, neither is
    /// continued.
    pub(crate) fn follow(&mut self) {
        let now = Instant::now();
        self.going_on.retain(|going| now < going.until || self.stopped.contains_key(&going.pid));
        // Many processes have the same ancestors, and asking whether a process has stopped takes much longer
        // than a lookup.
        let ancestors: BTreeSet<u32> =
            self.going_on.iter().flat_map(|going| &going.ancestors).copied().collect();
        let stands_still = |pid: u32| self.stopped.contains_key(&pid);
        let found: BTreeSet<u32> =
            ancestors.into_iter().filter(|pid| !stands_still(*pid) && is_stopped(*pid)).collect();
        for going in &mut self.going_on {
            let have_stopped = going.ancestors.iter().any(|ancestor| found.contains(ancestor));
            if have_stopped && !stands_still(going.pid) && !is_stopped(going.pid) {
                for ancestor in going.ancestors.extract_if(.., |ancestor| found.contains(ancestor)) {
                    signals::kill(ancestor, Signal::CONT);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::managed::tests::wait_until;

    #[test]
    fn processes_stand_still_as_long_as_that_brings_something_but_not_for_ever() {
        let start = Instant::now();
        let mut waiting = StandstillStart::new(start);
        let mut is_too_long = |seconds, left| waiting.is_too_long(start + Duration::from_secs(seconds), left);
        assert!(!is_too_long(1, 100));
        assert!(!is_too_long(3, 99), "less is left");
        assert!(!is_too_long(4, 200), "another one is adopted");
        assert!(!is_too_long(5, 199));
        assert!(is_too_long(8, 199));
        assert!((9..20).all(|second| !is_too_long(second, 100 - second)));
        assert!(is_too_long(21, 1));
    }

    #[test]
    fn a_parent_that_stops_with_its_child_goes_on_with_it() {
        let mut shell = Command::new("sh");
        // The script behaves like `su`: it stops itself when its child has stopped.
        let script = "exec 3<&0; cat <&3 & while ! grep -q 'State:.*T' /proc/$!/status; do :; done; kill -STOP $$; wait $!";
        let mut shell = shell.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let mut children = Vec::new();
        wait_until(|| {
            proc::children(shell.id(), &mut children).unwrap();
            !children.is_empty()
        });
        let mut standstill = Standstill::default();
        standstill.stop(children[0], vec![shell.id()], None);
        wait_until(|| is_stopped(shell.id()));
        standstill.follow();
        assert!(is_stopped(shell.id()), "its child stands still");
        standstill.end(None);
        wait_until(|| {
            standstill.follow();
            !is_stopped(shell.id())
        });
        drop(shell.stdin.take());
        assert!(shell.wait().unwrap().success());
    }

    #[test]
    fn processes_that_others_continue_stop_again() {
        let sleeper = || Command::new("sleep").arg("1000").spawn().unwrap();
        let mut sleepers: Vec<_> = (0..9).map(|_| sleeper()).collect();
        let pids: Vec<u32> = sleepers.iter().map(|sleeper| sleeper.id()).collect();
        let mut standstill = Standstill::default();
        pids.iter().for_each(|pid| standstill.stop(*pid, Vec::new(), None));
        for _ in 0..2 {
            wait_until(|| pids.iter().all(|pid| is_stopped(*pid)));
            // Three calls ask each process once.
            (0..3).for_each(|_| standstill.stop_again(3));
            pids.iter().for_each(|pid| signals::kill(*pid, Signal::CONT));
            wait_until(|| !pids.iter().any(|pid| is_stopped(*pid)));
            (0..3).for_each(|_| standstill.stop_again(3));
        }
        wait_until(|| pids.iter().all(|pid| is_stopped(*pid)));
        standstill.end(None);
        wait_until(|| !pids.iter().any(|pid| is_stopped(*pid)));
        standstill.stop_again(9);
        assert!(!pids.iter().any(|pid| is_stopped(*pid)), "they do not stand still any more");
        for sleeper in &mut sleepers {
            sleeper.kill().unwrap();
            sleeper.wait().unwrap();
        }
    }

    #[test]
    fn a_process_that_is_let_go_before_it_has_stopped_goes_on() {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        // Most of them wait for a CPU when the signal comes, and take it only later.
        let mut spinners: Vec<_> = (0..8).map(|_| spin()).collect();
        let ticks = |pid| proc::stat(pid).unwrap().cpu_ticks;
        wait_until(|| spinners.iter().all(|spinner| ticks(spinner.id()) > 0));
        for _ in 0..4 {
            let mut standstill = Standstill::default();
            for spinner in &spinners {
                assert!(standstill.stop_to_wait(spinner.id(), false, Vec::new(), None));
                standstill.keep_waiting(|_| false, None);
                assert!(!standstill.has(spinner.id()));
            }
            let before: Vec<_> = spinners.iter().map(|spinner| ticks(spinner.id())).collect();
            // One tick may have begun before.
            let goes_on = |(spinner, before): (&std::process::Child, &u64)| ticks(spinner.id()) > before + 1;
            wait_until(|| spinners.iter().zip(&before).all(goes_on));
        }
        for spinner in &mut spinners {
            spinner.kill().unwrap();
            spinner.wait().unwrap();
        }
    }

    #[test]
    fn an_ancestor_goes_on_once_and_is_remembered_once() {
        let sleeper = || Command::new("sleep").arg("1000").spawn().unwrap();
        let (mut child, mut parent) = (sleeper(), sleeper());
        let began = Instant::now();
        let mut standstill = Standstill::default();
        let stop_parent = || {
            signals::stop(parent.id());
            wait_until(|| is_stopped(parent.id()));
        };
        for _ in 0..3 {
            standstill.stop(child.id(), vec![parent.id()], None);
            wait_until(|| is_stopped(child.id()));
            standstill.end(None);
            wait_until(|| !is_stopped(child.id()));
        }
        assert_eq!((standstill.going_on.len(), standstill.going_on[0].ancestors.len()), (1, 1));
        assert!(!standstill.stood().is_zero() && standstill.stood() < began.elapsed());
        stop_parent();
        wait_until(|| {
            standstill.follow();
            !is_stopped(parent.id())
        });
        stop_parent();
        standstill.follow();
        assert!(is_stopped(parent.id()), "somebody means it");
        for process in [&mut child, &mut parent] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}
