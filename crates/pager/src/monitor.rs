//! The monitor: watches how much memory the tree uses, and takes processes over before the tree exceeds its
//! limit.
//!
//! ```text
//!   measure ─► far below the limit: sleep
//!      ▲   └─► near it: take the largest process over ─► tell the manager what is outside of management
//!      └───── sleep ◄──────────────────────────────────────────────┘
//! ```
//!
//! While the tree fits in its limit, no process is changed. A look costs about 1 µs per process, and about
//! 10 µs for a process that shares pages with its family. The nearer the tree comes to its limit, the more
//! often the monitor looks.

mod end;
mod forks;
mod growth;
mod look;
mod queue;
pub(crate) mod standstill;
mod still;
mod unpaged;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use octavo::Manager;
use octavo_platform::{refusal, usage};
use octavo_stub::Message;

use self::growth::{Growth, time_to_fill};
use self::queue::ProcessQueue;
use crate::guardian::Guardian;
use crate::ledger::Ledger;
use crate::managed::{Managed, ProcessContext, Refusal, Unequipped};
use crate::messages;
use crate::monitor::standstill::Standstill;
use crate::reader::Reader;
use crate::report::progress::{CameBack, ProgramFigures, ProgressMessages};
use crate::report::summary::Summary;
use crate::system::affinity::Affinity;
use crate::system::priority::{self, WorkEstimate};
use crate::system::proc::{self, Fixed, Stat, Statm};
use crate::tree::Tree;
use crate::tree::fixed::FixedMemory;
use unpaged::Excess;

/// The shortest time between two looks at the tree's memory, near the limit.
const SHORTEST: Duration = Duration::from_millis(1);
/// At least 1/[`LEAST_COPIES`] of the limit is kept free for copies of pages that forks share.
const LEAST_COPIES: u64 = 32;
/// Smaller processes are not worth taking over.
const LEAST_PROCESS: u64 = 8 << 20;
/// How long the monitor tolerates failing to list the tree's processes, and how long it tries to kill them at
/// the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// If the reason why a process could not be taken over may pass, it is tried again after this long.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// If a tree can fill half of its limit within this time, the guardian starts before the program.
const GUARD_WITHIN: Duration = Duration::from_millis(25);

/// The CPU time that it takes to stop a process, to make a mover in a thread of the process, and to ask the
/// kernel for details of all mappings of a process.
const STOPPING: Duration = Duration::from_micros(50);
const INJECTING: Duration = Duration::from_micros(300);
const ASKING_AT_LENGTH: Duration = Duration::from_millis(5);

/// This many descriptors are enough to find processes while other threads open descriptors.
const SPARE: usize = 8;

/// Why the monitor ended a run.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl Failed {
    pub(crate) fn new(message: &Message, why: &dyn Display) -> Self {
        Self(message.with(&[("why", why)]))
    }

    /// Like [`new`](Self::new), for a refusal by the kernel. Names the limit that may be its reason.
    pub(crate) fn refused(message: &Message, error: &std::io::Error) -> Self {
        Self::new(message, &refusal::in_words(error))
    }
}

/// Makes the manager, or says why the run cannot go on.
pub(crate) type MakeManager = Box<dyn FnOnce() -> Result<Manager, String> + Send>;

/// Watches a tree.
pub(crate) struct Monitor {
    began: Instant,
    /// The resources that children of this process used before the run. With `cargo run`, these children are
    /// the compilers.
    earlier_children: usage::ChildrensUse,
    ledger: Arc<Ledger>,
    /// Makes the manager. `None` when the work has begun.
    make_manager: Option<MakeManager>,
    /// A thread that makes the manager.
    making: Option<JoinHandle<Result<Manager, String>>>,
    /// Whether a process that cannot be managed ends the run.
    is_strict: bool,
    manager: Option<Manager>,
    guardian: Option<Guardian>,
    reader: Reader,
    /// Whether a guardian process has ended, and must be replaced.
    lacks_guardian: bool,
    pub(crate) tree: Tree,
    /// The time since which the processes of the tree cannot be found.
    blind_since: Option<Instant>,
    /// Spare descriptors. They are closed before the tree is killed, which needs descriptors itself.
    spare: Vec<OwnedFd>,
    managed: BTreeMap<u32, Managed>,
    /// Processes that cannot be managed.
    refused: BTreeMap<u32, RefusedProcess>,
    /// For each unmanaged process, with the stack that identifies its program: whether a userfaultfd watches
    /// its memory all the same, because a managed process forked it.
    watched: BTreeMap<(u32, u64), bool>,
    own: Statm,
    own_asked: FixedMemory,
    /// The tree's and the runner's memory that cannot be paged, at the last look.
    fixed: Fixed,
    /// The tree's anonymous memory at the last look.
    anonymous: u64,
    excess: Excess,
    /// How many bytes the tree could still get within its limit, at the last look.
    room: u64,
    pub(crate) summary: Summary,
    managed_pids: BTreeSet<u32>,
    /// Whether processes have survived the kill. They would read zeros without the runner's descriptors.
    has_survivors: bool,
    standstill: Standstill,
    queue: ProcessQueue,
    /// Smaller processes are not taken over at this look.
    least_process: u64,
    /// Whether processes stood still without any effect. While this is true, no process is stopped. It
    /// becomes false when memory fits again.
    stops_none: bool,
    /// Children of forks, not yet matched with processes of the tree.
    forks: Vec<Managed>,
    /// Processes that have ended, but whose drivers have not. Their forks may still be reported.
    ending: Vec<(u32, Managed)>,
    /// Movers of processes that have ended, until the movers have ended too.
    ending_movers: Vec<u32>,
    tidied_at: Option<Instant>,
    affinity: Affinity,
    /// The bytes outside of management at the last look, and the shortest wait until the next one. The wait
    /// gets longer while those bytes do not grow.
    outside: u64,
    calm: Duration,
    growth: Growth,
    progress: ProgressMessages,
    /// The CPU time that recent looks have taken on average.
    look_takes: Duration,
    /// Estimates of the time to take a process over or look at its mappings, and to count its memory by kind.
    engaging: WorkEstimate,
    counting: WorkEstimate,
}

/// A process that could not be taken over.
#[derive(Clone, Debug)]
struct RefusedProcess {
    /// The address at which the process's stack begins. It identifies the program.
    stack: u64,
    /// The time of the next try, if the reason may pass.
    again_at: Option<Instant>,
    why: String,
    program: String,
}

impl RefusedProcess {
    fn holds(&self, stack: u64, now: Instant) -> bool {
        self.stack == stack && self.again_at.is_none_or(|at| now < at)
    }
}

/// Returns whether the memory of an unmanaged process is watched. That does not change while the process runs
/// one program, so the kernel is asked once per program. Returns `None` if the kernel cannot tell now.
fn is_watched(known: &mut BTreeMap<(u32, u64), bool>, pid: u32, stack: u64) -> Option<bool> {
    if let Some(is_watched) = known.get(&(pid, stack)) {
        return Some(*is_watched);
    }
    priority::goes_on(ASKING_AT_LENGTH);
    let is_watched = proc::is_watched(pid).ok()?;
    known.insert((pid, stack), is_watched);
    Some(is_watched)
}

impl Monitor {
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        make_manager: MakeManager,
        is_strict: bool,
    ) -> std::io::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            earlier_children: usage::of_children(),
            ledger,
            is_strict,
            make_manager: Some(make_manager),
            making: None,
            manager: None,
            guardian: None,
            reader: Reader::default(),
            lacks_guardian: false,
            tree: Tree::default(),
            blind_since: None,
            spare: (0..SPARE)
                .map(|_| File::open("/dev/null").map(OwnedFd::from))
                .collect::<Result<_, _>>()?,
            managed: BTreeMap::new(),
            refused: BTreeMap::new(),
            watched: BTreeMap::new(),
            own: Statm::of(std::process::id())?,
            own_asked: FixedMemory::new(std::process::id()),
            fixed: Fixed::default(),
            anonymous: 0,
            excess: Excess::default(),
            room: 0,
            summary: Summary::default(),
            managed_pids: BTreeSet::new(),
            has_survivors: false,
            standstill: Standstill::default(),
            queue: ProcessQueue::new(Instant::now()),
            least_process: LEAST_PROCESS,
            stops_none: false,
            forks: Vec::new(),
            ending: Vec::new(),
            ending_movers: Vec::new(),
            tidied_at: None,
            affinity: Affinity::new(),
            outside: 0,
            calm: SHORTEST,
            growth: Growth::new(Instant::now()),
            progress: ProgressMessages::default(),
            look_takes: Duration::ZERO,
            engaging: WorkEstimate::default(),
            counting: WorkEstimate::default(),
        })
    }

    /// Starts the guardian, and a thread that makes the manager. That takes milliseconds, during which the
    /// monitor watches the tree.
    fn prepare(&mut self) -> Result<(), Failed> {
        let Some(make_manager) = self.make_manager.take() else { return Ok(()) };
        self.guard()?;
        // The manager's threads inherit the priority of the thread that makes it. So that thread first takes
        // the priority that the runner was given. The monitor keeps its higher priority: otherwise it would
        // wait long for a CPU among many runnable processes.
        let make = || {
            priority::lower();
            make_manager()
        };
        let making = std::thread::Builder::new().name("octavo-make".into()).spawn(make);
        self.making = Some(making.map_err(|error| Failed::refused(&messages::NO_THREAD, &error))?);
        Ok(())
    }

    /// Starts the guardian before the program if the tree may fill its limit soon. Later, among many
    /// processes, the start would take long, and the monitor does not look meanwhile.
    ///
    /// # Errors
    /// The errors of [`turn`](Self::turn).
    pub(crate) fn guard_early(&mut self) -> Result<(), Failed> {
        if time_to_fill(self.ledger.limit_bytes() / 2) < GUARD_WITHIN { self.guard() } else { Ok(()) }
    }

    /// Starts the guardian.
    fn guard(&mut self) -> Result<(), Failed> {
        if self.guardian.is_some() {
            return Ok(());
        }
        // The guardian is a process, and must not inherit the monitor's priority.
        priority::starts_others();
        let guardian = Guardian::new().and_then(|guardian| Ok((guardian.complete()?, guardian)));
        let (started, guardian) =
            guardian.map_err(|error| Failed::refused(&messages::NO_GUARDIAN, &error))?;
        started.into_iter().for_each(|guard| self.tree.leave_out(guard));
        self.guardian = Some(guardian);
        // Take the high priority again: the tree may be filling its limit just now.
        priority::begins(self.look_takes);
        Ok(())
    }

    /// Records that a child of the runner has ended, which may be a guardian.
    pub(crate) fn note_end(&mut self, pid: u32) {
        if self.guardian.as_ref().is_some_and(|guardian| guardian.note_end(pid)) {
            self.tree.forget_helper(pid);
            self.lacks_guardian = true;
        }
    }

    /// Starts another guardian if one has ended.
    fn keep_guarded(&mut self) -> Result<(), Failed> {
        if !std::mem::take(&mut self.lacks_guardian) {
            return Ok(());
        }
        let guardian = self.guardian.as_ref().expect("it has been there");
        priority::starts_others();
        let started = guardian.complete();
        let started = started.map_err(|error| Failed::refused(&messages::NO_GUARDIAN, &error))?;
        started.into_iter().for_each(|guard| self.tree.leave_out(guard));
        Ok(())
    }

    /// Returns whether processes can be taken over without waiting for the manager.
    fn is_ready(&self) -> bool {
        self.manager.is_some() || self.making.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Waits for the manager.
    fn finish_preparing(&mut self) -> Result<(), Failed> {
        self.prepare()?;
        if let Some(making) = self.making.take() {
            let panicked =
                |_| Err(messages::NO_MANAGER.with(&[("why", &"the thread that makes it has panicked")]));
            let manager = making.join().unwrap_or_else(panicked).map_err(Failed)?;
            self.manager = Some(manager);
        }
        Ok(())
    }

    /// Takes over the largest process that is not managed, and new mappings of managed processes. The tree
    /// has `total` bytes, and may get `coming` more before it stands still. `least_room` bytes must stay
    /// free. Returns whether there was something to take over.
    fn take_over(&mut self, total: u64, coming: u64, least_room: u64) -> Result<bool, Failed> {
        let mut pids: Vec<_> =
            self.tree.processes.iter().map(|(pid, process)| (process.memory.anonymous, *pid)).collect();
        pids.sort_unstable();
        pids.reverse();
        self.least_process = self.least_to_take(&pids, Instant::now());
        self.keep_still(&pids, total, coming, least_room);
        let mut has_acted = false;
        for (anonymous, pid) in pids.iter().copied() {
            if self.is_to_be_equipped(anonymous, pid) {
                self.equip(pid)?;
            } else if let Some(managed) = self.managed.get_mut(&pid) {
                if managed.has_more_outside() {
                    // Ignore errors: the process may have ended, or have changed by now.
                    let _ = self.engaging.take(|| managed.look());
                    has_acted = true;
                }
                continue;
            } else if let Some(stat) = self.find_new(anonymous, pid) {
                self.prepare()?;
                // While the manager is made, new processes may start and must be stopped, so do not wait for
                // it.
                if self.is_ready() {
                    self.engage(pid, stat.stack)?;
                }
            } else {
                continue;
            }
            // While one process is taken over, new processes may start and fill the memory. So look for new
            // processes before the next one is taken over.
            return Ok(true);
        }
        self.note_taken(Instant::now());
        Ok(has_acted)
    }

    /// Returns whether a process is a fork's child without a mover, and large enough to get one. Until then,
    /// its faults are served, but its pages cannot go out.
    fn is_to_be_equipped(&self, anonymous: u64, pid: u32) -> bool {
        anonymous >= self.least_process && self.managed.get(&pid).is_some_and(Managed::lacks_mover)
    }

    fn equip(&mut self, pid: u32) -> Result<(), Failed> {
        priority::charge(INJECTING);
        let managed = self.managed.get_mut(&pid).expect("it was just found");
        match self.engaging.take(|| managed.equip(pid)) {
            Ok(()) => self.tree.leave_out(managed.mover_pid()),
            Err(Unequipped::Another) => {
                self.look_again(pid);
                self.find_forks();
            }
            // The next look comes soon.
            Err(Unequipped::Later) => {}
            // The child's faults are still served. The child's own pages count as outside of management.
            Err(Unequipped::Refused(why)) => {
                managed.refuse();
                self.tell(pid, messages::FORK_NOT_MANAGED.with(&[("why", &why)]))?;
            }
        }
        Ok(())
    }

    /// Tells the user about a process whose pages cannot go out, unless it has just ended.
    ///
    /// # Errors
    /// Returns the same sentence if the run is strict.
    fn tell(&self, pid: u32, sentence: String) -> Result<(), Failed> {
        if !proc::has_memory(pid) {
            return Ok(());
        }
        if self.is_strict {
            return Err(Failed(sentence));
        }
        say!("octavo: {sentence}");
        Ok(())
    }

    /// Returns the kernel's `stat` of a process if it should be taken over.
    fn find_new(&mut self, anonymous: u64, pid: u32) -> Option<Stat> {
        if anonymous < self.least_process || self.managed.contains_key(&pid) || self.is_fork_of_managed(pid) {
            return None;
        }
        let refused = self.refused.get(&pid);
        let now = Instant::now();
        let is_refused = |stack| refused.is_some_and(|refused| refused.holds(stack, now));
        if self.tree.processes.get(&pid).is_some_and(|process| is_refused(process.stack)) {
            return None;
        }
        proc::stat(pid).filter(|stat| !is_refused(stat.stack))
    }

    /// Returns whether a managed process forked this process. The fork's event reports this, but may not have
    /// been taken in yet. A child that was forked before its parent was managed has none of the watched
    /// memory, and is taken over like any other process.
    fn is_fork_of_managed(&mut self, pid: u32) -> bool {
        let Some(stack) = self.tree.processes.get(&pid).map(|process| process.stack) else { return false };
        let is_same = |managed: &Managed| managed.stack == stack;
        // If the parent has ended, the runner is the parent now.
        let is_related = self.tree.is_fork(pid) && self.managed.values().any(is_same)
            || self.forks.iter().chain(self.ending.iter().map(|(_, managed)| managed)).any(is_same);
        is_related && is_watched(&mut self.watched, pid, stack).unwrap_or(true)
    }

    fn engage(&mut self, pid: u32, stack: u64) -> Result<(), Failed> {
        self.finish_preparing()?;
        let guardian = self.guardian.as_ref().expect("it is as old as the manager");
        let manager = self.manager.as_ref().expect("it was just made");
        priority::charge(INJECTING);
        let common = ProcessContext { manager, ledger: &self.ledger, guardian, reader: &self.reader };
        match self.engaging.take(|| Managed::engage(common, pid)) {
            Ok(managed) => {
                self.forget_refusal(pid);
                self.tree.leave_out(managed.mover_pid());
                self.manage(pid, managed);
            }
            // The process has just ended.
            Err(_) if !proc::has_memory(pid) => {}
            Err(Refusal { why, may_pass }) => {
                let again_at = may_pass.then(|| Instant::now() + TRIED_AGAIN_AFTER);
                let known = self.refused.get_mut(&pid).filter(|known| known.stack == stack);
                if let Some(known) = known {
                    // The summary keeps the first reason.
                    known.again_at = again_at;
                } else {
                    let program = proc::name(pid);
                    self.summary.note_refused(&why, &program);
                    let refused =
                        RefusedProcess { stack, again_at, why: why.clone(), program: program.clone() };
                    self.refused.insert(pid, refused);
                    let words: [(&str, &dyn Display); 3] =
                        [("program", &program), ("pid", &pid), ("why", &why)];
                    self.tell(pid, messages::NOT_MANAGED.with(&words))?;
                }
            }
        }
        Ok(())
    }

    /// Records that a process that could not be managed is managed now.
    fn forget_refusal(&mut self, pid: u32) {
        if let Some(refused) = self.refused.remove(&pid) {
            self.summary.forget_refused(&refused.why, &refused.program);
        }
    }

    fn manage(&mut self, pid: u32, managed: Managed) {
        self.managed.insert(pid, managed);
        self.managed_pids.insert(pid);
        self.summary.managed_processes = self.managed_pids.len() as u64;
        self.summary.most_managed = self.summary.most_managed.max(self.managed.len() as u64);
    }

    /// Stops managing a process that has ended. It may have forked just before, as daemons do, so it is kept
    /// until its driver has ended. The monitor does not wait for the driver: a fork may need room, which only
    /// the monitor can make.
    fn let_go(&mut self, pid: u32, managed: Managed) {
        managed.gone();
        managed.stop();
        self.ending.push((pid, managed));
    }

    fn end_those_that_ended(&mut self) {
        let ended: Vec<u32> =
            self.managed.iter().filter(|(_, managed)| !managed.is_current()).map(|(pid, _)| *pid).collect();
        for pid in ended {
            if let Some(managed) = self.managed.remove(&pid) {
                let mover = managed.mover_pid();
                self.let_go(pid, managed);
                self.ending_movers.extend(mover);
            }
        }
        // If the process has ended but the memory still exists, the memory belongs to another process.
        let has_ended = |pid| matches!(proc::ask(pid), Ok(None | Some(Stat { state: b'Z', .. })));
        // A child that is being reparented may be in no list of children for a moment.
        let is_mistaken = |(pid, managed): &(&u32, &Managed)| {
            !managed.is_equipped() && !self.tree.processes.contains_key(pid) && has_ended(**pid)
        };
        let mistaken: Vec<u32> = self.managed.iter().filter(is_mistaken).map(|(pid, _)| *pid).collect();
        mistaken.into_iter().for_each(|pid| self.look_again(pid));
        // A mover stays on the list of helpers until it has ended. Otherwise it would count as a process of
        // the tree, since it shares a program's memory.
        let (left, gone) = std::mem::take(&mut self.ending_movers)
            .into_iter()
            .partition(|mover| !matches!(proc::ask(*mover), Ok(None)));
        self.ending_movers = left;
        Vec::into_iter(gone).for_each(|mover| self.tree.forget_helper(mover));
        self.refused.retain(|pid, _| self.tree.processes.contains_key(pid));
        self.watched.retain(|(pid, stack), _| {
            let process = self.tree.processes.get(pid);
            process.is_some_and(|process| process.stack == *stack) && !self.managed.contains_key(pid)
        });
        self.summary.processes = self.tree.seen;
    }

    /// Returns whether processes are left that need the runner.
    pub(crate) fn has_managed(&self) -> bool {
        !self.managed.is_empty() || !self.forks.is_empty() || !self.ending.is_empty()
    }

    /// Prints a message to standard error if the program has done little but wait for a while. Costs one look
    /// at each process per ten seconds.
    pub(crate) fn tell_progress(&mut self) {
        let now = Instant::now();
        if self.manager.is_none() || !self.progress.is_due(now) {
            return;
        }
        // This takes longer than a look at high priority may.
        priority::goes_on(Duration::MAX);
        let cpu_seconds = proc::cpu_seconds(self.tree.processes.keys().copied());
        let figures = self.figures();
        let seen = ProgramFigures {
            cpu_seconds,
            waited_seconds: figures.waited(),
            disk_seconds: 0.0,
            came_back: CameBack::Bytes(figures.swapped_in_bytes),
            tree_bytes: figures.tree_bytes,
        };
        if let Some(sentence) = self.progress.note(now, seen) {
            say!("octavo: {sentence}");
        }
    }

    /// Returns the figures up to now.
    pub(crate) fn figures(&mut self) -> &Summary {
        self.summary.peak_bytes = self.ledger.peak_bytes();
        self.summary.budget_bytes = self.ledger.limit_bytes();
        self.summary.used_bytes = self.growth.total;
        self.summary.processes = self.tree.seen;
        self.summary.seconds = self.began.elapsed().as_secs_f64();
        self.summary.program_cpu_seconds =
            usage::of_children().since(self.earlier_children).cpu.as_secs_f64();
        self.summary.own_cpu_seconds = priority::cpu_time_of_all().as_secs_f64();
        self.summary.background_cpu_seconds = proc::cpu_seconds_of_own("octavo-backgrou");
        self.summary.waits.stood_seconds = self.standstill.stood().as_secs_f64();
        if let Some(manager) = &self.manager {
            self.summary.note(manager, &self.managed, &self.ending, &self.tree);
            self.summary.note_waits(manager);
        }
        &self.summary
    }
}

#[cfg(test)]
mod tests;
