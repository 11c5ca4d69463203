//! The processes of the tree, and the memory that they use together.
//!
//! The kernel counts a page that forks share in every process that maps it. So a family, the processes of one
//! program that have forked from each other, is counted together. Its members are asked for their shares
//! (PSS) one after another. Between two answers, pages that a member gets are added, and pages that it loses
//! are subtracted. A store to a shared page makes a copy that no count reveals, since the process has as many
//! pages as before. But the store is a fault, so each fault counts as a copy until all members have been
//! asked again. A page that Octavo brings into a process without a fault counts like a fault. One answer
//! gives the shares of private and of shared memory. A `vfork` child has no memory of its own.
//!
//! The cost of a look depends on what has changed. Processes that change are asked each time, and the others
//! [in turn](Turns). New processes are looked for among the process numbers that the machine has given out
//! since the last look, and only now and then in the lists of children.

pub(crate) mod fixed;
pub(crate) mod rounds;
pub(crate) mod shares;
pub(crate) mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use octavo_platform::process_memory::share_memory;

use crate::system::priority;
use crate::system::proc::{self, Fixed, MemoryInUse, Stat, StatFile, Statm, StatusFigures};
use crate::tree::fixed::{FixedMemory, SharedMemory};
use crate::tree::rounds::{NextQuestion, ProcessToAsk, Rounds};
use crate::tree::shares::{FaultMark, Newcomer, SharingGroup};
use crate::tree::turns::{Anonymous, Turns};

/// The time between two looks for processes while none has started.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Looks for new processes take at most 1/[`LOOK_SHARE`] of the time.
const LOOK_SHARE: u32 = 10;
/// The time between two looks at all lists of children, which take at most 1/[`FIND_SHARE`] of the time.
const FIND_EVERY: Duration = Duration::from_secs(2);
const FIND_SHARE: u32 = 50;
/// If there are more new numbers than [`LEAST_NUMBERS`] and than [`NUMBERS_EACH`] for each process of the
/// tree, the lists of children are read instead, which costs less.
const LEAST_NUMBERS: u32 = 64;
const NUMBERS_EACH: u32 = 4;
/// The CPU time that it takes to ask about a process, and to ask for the shares of a GiB.
const ASKING: Duration = Duration::from_micros(10);
const ASKING_A_GIB: Duration = Duration::from_millis(20);
/// How many processes are asked between two checks of the thread's allowance of CPU time.
const ASKED_AT_ONCE: usize = 16;

/// A family shares much if the kernel counts this many bytes more for it than it has.
const LEAST_SHARED: u64 = 1 << 20;

/// A process has grown if it got more than this many bytes.
pub(crate) const LEAST_GROWN: u64 = 256 << 10;

/// How long a process counts as new: its memory is still to come.
const NEW_FOR: Duration = Duration::from_millis(250);

/// While there is a process younger than this that was not asked for its share, no process is asked. This
/// pause lasts for at most [`ASKED_WITHIN`].
const ASKED_AFTER: Duration = Duration::from_millis(50);
const ASKED_WITHIN: Duration = Duration::from_millis(150);

/// A process of the tree.
#[derive(Debug)]
pub(crate) struct Process {
    statm: Statm,
    /// Kept open once its faults were asked for.
    stat: Option<StatFile>,
    pub(crate) memory: MemoryInUse,
    asked: FixedMemory,
    /// The address at which the process's stack begins. It is the same for processes that have forked from
    /// each other.
    pub(crate) stack: u64,
    parent: u32,
    /// The faults of the process at the last two looks that asked about it, and at the last measurement.
    faults: [u64; 2],
    measured_faults: u64,
    /// The pages that Octavo had moved at the last measurement.
    moved: MovedPages,
    /// Whether the process uses its parent's memory, and has no memory of its own.
    is_vforked: bool,
    /// The bytes that the process had at the latest of these moments: there was room for all processes, the
    /// process began to wait, or the process continued. `None` if the process has started since. Its memory
    /// is then still to come.
    settled: Option<u64>,
    came_at: Instant,
    /// Whether the process has waited for room since it started.
    has_waited: bool,
}

impl Process {
    /// Returns the kernel's last detailed answer about the process.
    pub(crate) fn told(&self) -> StatusFigures {
        self.asked.told()
    }
}

/// Pages of a process that Octavo has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MovedPages {
    /// The pages that the process got although the kernel counted no fault for them.
    pub(crate) unfaulted_pages: u64,
    /// The pages of its own memory that were taken from the process.
    pub(crate) taken_pages: u64,
}

/// The process that has forked, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    Known(u32),
    /// This process is recorded as the parent, but a search has failed. It may have been mistaken for a
    /// relative, or the real parent may not have been found itself.
    Thought(u32),
}

/// All processes that descend from the runner, except the runner's helpers.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) processes: BTreeMap<u32, Process>,
    /// Processes that have forked from each other, by where their stacks begin.
    families: BTreeMap<u64, SharingGroup>,
    /// For each family, the bytes by which the kernel's counts exceed what the family has, by the last
    /// measurement.
    shared_bytes: BTreeMap<u64, u64>,
    /// How many bytes of the last measurement are only a safety margin. By their last answers, the processes
    /// have that many bytes fewer.
    pub(crate) doubtful_bytes: u64,
    shared: SharedMemory,
    rounds: Rounds,
    /// When processes were last asked for their shares, or were first due to be asked.
    asked_at: Option<Instant>,
    turns: Turns,
    /// How many processes have been seen, and how many of them have ended.
    pub(crate) seen: u64,
    pub(crate) ended: u64,
    /// Processes that have started others since the last [`Tree::take_parents`], or since there was last
    /// room.
    parents: BTreeSet<u32>,
    pub(crate) helpers: Vec<u32>,
    /// Whether a process was found to have lost all its memory since the last look.
    has_ended: bool,
    last_look: Option<LastLook>,
    last_find: Option<(Instant, Duration)>,
    /// When a new number last had no process. The process may still appear: the kernel gives the number out
    /// first.
    unanswered_at: Option<Instant>,
}

/// The time of the last look for processes.
#[derive(Clone, Copy, Debug)]
struct LastLook {
    at: Instant,
    took: Duration,
    /// The machine's newest process or thread number then, and at the look before.
    newest: u32,
    before: u32,
}

impl Tree {
    /// Excludes a helper of the runner, and its descendants.
    pub(crate) fn leave_out(&mut self, pid: impl Into<Option<u32>>) {
        if let Some(pid) = pid.into() {
            self.helpers.push(pid);
            self.processes.remove(&pid);
        }
    }

    /// Forgets a helper that has ended.
    pub(crate) fn forget_helper(&mut self, pid: u32) {
        self.helpers.retain(|helper| *helper != pid);
    }

    /// Begins a look. Looks for processes if such a look is due, and returns whether it was. While no process
    /// starts, such a look is seldom due. After one has started, a look is due once `within` has passed since
    /// the last one, or later if looks would take more than 1/[`LOOK_SHARE`] of the time.
    ///
    /// # Errors
    /// The errors of [`look`](Self::look).
    pub(crate) fn look_if_due(&mut self, within: Duration) -> io::Result<bool> {
        self.turns.begin_look();
        let now = Instant::now();
        let passed = self.last_look.map_or(Duration::MAX, |last| now - last.at);
        let is_due = match self.last_look {
            None => true,
            Some(_) if self.has_ended => true,
            Some(_) if passed >= LOOK_EVERY => true,
            Some(last) => passed >= within.max(last.took * LOOK_SHARE) && proc::newest() != last.newest,
        };
        if is_due {
            self.has_ended = false;
            // Read first: a process that starts during the look has a newer number.
            let newest = proc::newest();
            // Begin one look earlier: a process may have got its number before the last look, and have
            // appeared after it.
            let before = self.last_look.map(|last| last.before);
            let looked = match before.filter(|before| self.is_found_by_numbers(*before, newest, now)) {
                Some(before) => self.look_among(before, newest),
                None => {
                    // These numbers are not asked about one by one, so any of them may be unanswered.
                    let are_new = before.is_some_and(|before| before != newest);
                    self.unanswered_at = if are_new { Some(now) } else { self.unanswered_at };
                    self.look()
                }
            };
            let before = self.last_look.map_or(newest, |last| last.newest);
            self.last_look = Some(LastLook { at: now, took: now.elapsed(), newest, before });
            looked?;
        }
        Ok(is_due)
    }

    /// Returns whether to look for new processes among the new numbers. For a while after a number had no
    /// process, the lists of children are read as often as allowed: a process that has its number already may
    /// take longer than a look to appear.
    fn is_found_by_numbers(&self, before: u32, newest: u32, now: Instant) -> bool {
        let most = LEAST_NUMBERS.max(self.processes.len() as u32 * NUMBERS_EACH);
        let is_unanswered = self.unanswered_at.is_some_and(|at| now - at < FIND_EVERY);
        let every = if is_unanswered { Duration::ZERO } else { FIND_EVERY };
        let is_recent = |(at, took)| now - at < every.max(took * FIND_SHARE);
        // The numbers wrap around.
        newest.checked_sub(before).is_some_and(|count| count <= most) && self.last_find.is_some_and(is_recent)
    }

    /// Finds the processes of the tree, each with its parent.
    ///
    /// # Errors
    /// Returns the kernel's error if descriptors run out.
    pub(crate) fn find(&self) -> io::Result<Vec<(u32, u32)>> {
        let (mut found, mut at) = (vec![(std::process::id(), 0)], 0);
        let mut children = Vec::new();
        while at < found.len() {
            let parent = found[at].0;
            proc::children(parent, &mut children)?;
            let ours = children.drain(..).filter(|child| !self.helpers.contains(child));
            found.extend(ours.map(|child| (child, parent)));
            at += 1;
        }
        found.remove(0);
        Ok(found)
    }

    /// Returns the ancestors of a process in the tree, the nearest first.
    pub(crate) fn ancestors(&self, pid: u32) -> Vec<u32> {
        let parent = |pid: &u32| self.processes.get(pid).map(|process| process.parent);
        let known = |pid: &u32| self.processes.contains_key(pid);
        // A reused number could make a cycle.
        std::iter::successors(parent(&pid), parent).take_while(known).take(self.processes.len()).collect()
    }

    /// Finds the tree's processes by the lists of children.
    ///
    /// # Errors
    /// Returns the kernel's error if descriptors run out. Then no process is mistaken for an ended one, but
    /// new ones may be missing.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let began = Instant::now();
        priority::goes_on(self.last_find.map_or(Duration::ZERO, |(_, took)| took));
        let found = self.find()?;
        let before = self.processes.len();
        self.processes.retain(|pid, _| found.iter().any(|(found, _)| found == pid));
        self.ended += (before - self.processes.len()) as u64;
        let looked = self.take_in(found, BTreeMap::new());
        self.last_find = Some((began, began.elapsed()));
        looked
    }

    /// Finds new processes among the new numbers, and known processes that have ended. Asks again about known
    /// processes that change, and about `vfork` children.
    ///
    /// # Errors
    /// The errors of [`look`](Self::look).
    fn look_among(&mut self, before: u32, newest: u32) -> io::Result<()> {
        priority::goes_on(ASKING * (newest - before));
        let (mut ended, mut found, mut looked) = (Vec::new(), Vec::new(), Ok(()));
        let mut told = BTreeMap::new();
        for (index, (pid, process)) in self.processes.iter().enumerate() {
            if index % ASKED_AT_ONCE == 0 {
                priority::goes_on(ASKING * ASKED_AT_ONCE as u32);
            }
            let is_empty = process.memory == MemoryInUse::default();
            if is_empty && proc::ask(*pid).is_ok_and(|stat| stat.is_none()) {
                ended.push(*pid);
            } else if process.is_vforked || !self.turns.is_calm(*pid) {
                found.push((*pid, process.parent));
            }
        }
        self.ended += ended.len() as u64;
        ended.into_iter().for_each(|pid| drop(self.processes.remove(&pid)));
        let own = std::process::id();
        for pid in before.saturating_add(1)..=newest {
            if self.processes.contains_key(&pid) || self.helpers.contains(&pid) {
                continue;
            }
            let Some(stat) = proc::ask(pid).unwrap_or_else(|error| {
                looked = Err(error);
                None
            }) else {
                self.unanswered_at = Some(Instant::now());
                continue;
            };
            let parent = stat.parent;
            let is_ours = parent == own
                || self.processes.contains_key(&parent)
                || found.iter().rev().any(|(found, _)| *found == parent);
            if is_ours && proc::is_process(pid) {
                found.push((pid, parent));
                told.insert(pid, stat);
            }
        }
        self.take_in(found, told).and(looked)
    }

    /// Adds new processes. Asks about each process of `found`, unless `told` has the answer already.
    fn take_in(&mut self, found: Vec<(u32, u32)>, mut told: BTreeMap<u32, Stat>) -> io::Result<()> {
        let mut looked = Ok(());
        let is_known = |processes: &BTreeMap<u32, Process>, pid| {
            // A `vfork` child that has executed a program since is a new process.
            processes.get(&pid).is_some_and(|process: &Process| !process.is_vforked)
        };
        for (index, (pid, parent)) in found.into_iter().enumerate() {
            if index % ASKED_AT_ONCE == 0 {
                priority::goes_on(ASKING * ASKED_AT_ONCE as u32);
            }
            let kept = self.processes.get(&pid).and_then(|process| process.stat.as_ref());
            let ask = || kept.map_or_else(|| proc::ask(pid), |file| Ok(file.read()));
            let stat = match told.remove(&pid).map_or_else(ask, |stat| Ok(Some(stat))) {
                Ok(stat) => stat,
                Err(error) => {
                    looked = Err(error);
                    continue;
                }
            };
            let (stack, faults) = stat.map_or((0, 0), |stat| (stat.stack, stat.faults));
            if let Some(process) = self.processes.get_mut(&pid) {
                process.stack = stack;
                process.faults = [process.faults[1], faults + process.moved.unfaulted_pages];
            }
            if is_known(&self.processes, pid) {
                continue;
            }
            let statm = match proc::answer(Statm::of(pid)) {
                Ok(Some(statm)) => statm,
                Ok(None) => continue,
                Err(error) => {
                    looked = Err(error);
                    continue;
                }
            };
            self.seen += u64::from(!self.processes.contains_key(&pid));
            let is_vforked = share_memory(pid, parent);
            let process = Process {
                memory: MemoryInUse::default(),
                asked: FixedMemory::new(pid),
                stat: None,
                faults: [0, faults],
                measured_faults: 0,
                moved: MovedPages::default(),
                statm,
                stack,
                parent,
                is_vforked,
                settled: None,
                came_at: Instant::now(),
                has_waited: false,
            };
            if self.processes.insert(pid, process).is_none() {
                self.parents.insert(parent);
            }
            self.turns.answered(pid, true);
        }
        self.turns.keep(|pid| self.processes.contains_key(&pid));
        self.find_families();
        looked
    }

    fn find_families(&mut self) {
        let mut members = BTreeMap::<u64, BTreeMap<u32, Newcomer>>::new();
        for (pid, process) in self.processes.iter().filter(|(_, process)| !process.is_vforked) {
            let is_fork = self.is_fork(*pid) || self.families.contains_key(&process.stack);
            let newcomer = Newcomer { is_fork, faults: process.faults[0] };
            members.entry(process.stack).or_default().insert(*pid, newcomer);
        }
        members.retain(|_, members| members.len() > 1);
        self.families.retain(|stack, _| members.contains_key(stack));
        for (stack, members) in members {
            self.families.entry(stack).or_default().keep(&members);
        }
    }

    /// Returns the first process with this stack that is not known yet: a child of `parent`, or of the
    /// runner, which adopts orphans. If the parent is not known for sure, any process with this stack fits as
    /// a last resort.
    pub(crate) fn find_fork(
        &self,
        stack: u64,
        parent: Parent,
        mut is_known: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut fits = |parent: Option<u32>| {
            self.processes.iter().find_map(|(pid, process)| {
                let is_child = parent.is_none_or(|parent| process.parent == parent);
                let fits = process.stack == stack && is_child && !process.is_vforked;
                (fits && !is_known(*pid)).then_some(*pid)
            })
        };
        let (Parent::Known(pid) | Parent::Thought(pid)) = parent;
        let found = fits(Some(pid)).or_else(|| fits(Some(std::process::id())));
        found.or_else(|| if let Parent::Thought(_) = parent { fits(None) } else { None })
    }

    /// Returns whether a process was forked by another one of the tree, and runs the same program.
    pub(crate) fn is_fork(&self, pid: u32) -> bool {
        let Some(process) = self.processes.get(&pid) else { return false };
        let parent = self.processes.get(&process.parent);
        process.is_vforked || parent.is_some_and(|parent| parent.stack == process.stack)
    }

    /// Returns whether processes may share pages that a store copies.
    pub(crate) fn has_families(&self) -> bool {
        !self.families.is_empty()
    }

    /// Returns the processes that are new, or have grown since there was last room, with their bytes: the
    /// largest first.
    pub(crate) fn grown(&self) -> Vec<(u64, u32)> {
        let has_grown = |process: &Process| {
            let is_more = |settled| process.memory.anonymous > settled + LEAST_GROWN;
            // There is no point in stopping a process that has no memory of its own, or has lost its memory.
            !process.is_vforked
                && process.memory != MemoryInUse::default()
                && process.settled.is_none_or(is_more)
        };
        let grown = self.processes.iter().filter(|(_, process)| has_grown(process));
        let mut grown: Vec<_> = grown.map(|(pid, process)| (process.memory.anonymous, *pid)).collect();
        grown.sort_unstable_by(|a, b| b.cmp(a));
        grown
    }

    /// Returns the processes that started recently and have not waited for room yet, with their bytes.
    pub(crate) fn newcomers(&self, now: Instant) -> Vec<(u64, u32)> {
        let is_new = |process: &Process| !process.has_waited && now - process.came_at < NEW_FOR;
        let new = self.processes.iter().filter(|(_, process)| is_new(process) && !process.is_vforked);
        new.map(|(pid, process)| (process.memory.anonymous, *pid)).collect()
    }

    /// Records that a process begins to wait for room, or continues. Only later growth counts.
    pub(crate) fn settle(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            (process.settled, process.has_waited) = (Some(process.memory.anonymous), true);
        }
    }

    /// Records that there is room for all.
    pub(crate) fn settle_all(&mut self) {
        self.processes.values_mut().for_each(|process| process.settled = Some(process.memory.anonymous));
        self.parents.clear();
    }

    /// Returns the processes that have started others since the last call, or since there was last room if
    /// that was later. They still exist, and have memory of their own.
    pub(crate) fn take_parents(&mut self) -> BTreeSet<u32> {
        let mut parents = std::mem::take(&mut self.parents);
        parents.retain(|pid| self.processes.get(pid).is_some_and(|process| !process.is_vforked));
        parents
    }

    /// Makes the next looks ask all processes, since those that stood still continue.
    pub(crate) fn ask_all(&mut self) {
        self.turns.ask_all();
    }

    /// Has a process asked at the next looks, even if it was calm.
    pub(crate) fn ask_again(&mut self, pid: u32) {
        self.turns.answered(pid, true);
    }

    /// Measures the processes, and returns the sum of their anonymous memory. The runner has `own_bytes`.
    /// `moved` tells how many pages of a process Octavo has moved.
    pub(crate) fn measure(&mut self, own_bytes: u64, moved: impl Fn(u32) -> MovedPages) -> u64 {
        let began = Instant::now();
        let (asked, others) = self.turns.begin();
        let first = self.families.values().flat_map(SharingGroup::unnoted).collect();
        self.measure_all(first, &moved);
        self.measure_all(asked, &moved);
        self.ask();
        let mut sum = self.sum();
        let anonymous = |sum| Anonymous { machine: proc::machine_anonymous(), known: sum + own_bytes };
        if !others.is_empty() && self.turns.is_alarmed(Instant::now(), anonymous(sum)) {
            self.measure_all(others, &moved);
            sum = self.sum();
            self.turns.asked_all(began, Instant::now(), anonymous(sum));
        }
        sum
    }

    fn measure_all(&mut self, pids: Vec<u32>, moved: impl Fn(u32) -> MovedPages) {
        for (index, pid) in pids.into_iter().enumerate() {
            if index % ASKED_AT_ONCE == 0 {
                priority::goes_on(ASKING * ASKED_AT_ONCE as u32);
            }
            self.measure_one(pid, moved(pid));
        }
    }

    /// Returns the anonymous memory of all processes, by the last measurement.
    fn sum(&mut self) -> u64 {
        (self.shared_bytes, self.doubtful_bytes) = (BTreeMap::new(), 0);
        for (stack, family) in &self.families {
            let estimate = family.estimate();
            self.shared_bytes.insert(*stack, family.counted().0 - estimate);
            self.doubtful_bytes += estimate - family.told(estimate);
        }
        let processes = self.processes.values().filter(|process| !process.is_vforked);
        processes.map(|process| process.memory.anonymous).sum::<u64>().saturating_sub(self.shared_bytes())
    }

    /// Returns by how many bytes the kernel's counts of families exceed what their members have together, by
    /// the last measurement.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.shared_bytes.values().sum()
    }

    /// Returns whether a process shares much with others, so that its stores make copies.
    pub(crate) fn shares_much(&self, pid: u32) -> bool {
        let shared = self.processes.get(&pid).and_then(|process| self.shared_bytes.get(&process.stack));
        shared.is_some_and(|shared| *shared > LEAST_SHARED)
    }

    fn measure_one(&mut self, pid: u32, moved: MovedPages) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| !process.is_vforked) else {
            return;
        };
        let memory = process.statm.read();
        let mut has_changed = memory != process.memory;
        process.memory = memory;
        // The count is unknown while a fork's child is searched for again.
        let moved = if moved == MovedPages::default() { process.moved } else { moved };
        process.moved = moved;
        self.has_ended |= has_changed && memory == MemoryInUse::default();
        if let Some(family) = self.families.get_mut(&process.stack).filter(|family| family.contains(pid)) {
            if process.stat.is_none() {
                process.stat = StatFile::of(pid).ok();
            }
            // A process that has ended makes no more faults, so 0 does no harm.
            let stat = process.stat.as_ref().and_then(StatFile::read);
            let faults = stat.map_or(0, |stat| stat.faults) + moved.unfaulted_pages;
            has_changed |= std::mem::replace(&mut process.measured_faults, faults) != faults;
            let taken = moved.taken_pages;
            family.note(pid, FaultMark { counted: memory.anonymous, faults: Some(faults), taken });
            if has_changed {
                self.rounds.note_change();
            }
        }
        self.turns.answered(pid, has_changed);
    }

    /// Returns the processes' memory that cannot be paged, by the last measurement. If an upper bound already
    /// `fits`, returns that bound.
    pub(crate) fn fixed(&mut self, fits: impl FnOnce(Fixed) -> bool) -> Fixed {
        let (now, mut tables) = (Instant::now(), 0);
        self.shared.begin();
        for (pid, process) in self.processes.iter_mut().filter(|(_, process)| !process.is_vforked) {
            let fixed = process.asked.fixed(now, process.memory, self.turns.is_calm(*pid));
            self.shared.add(*pid, fixed.shared);
            tables += fixed.tables;
        }
        let most = self.shared.most(|shared| fits(Fixed { shared, tables }));
        self.ask();
        Fixed { shared: self.shared.estimate().unwrap_or(most), tables }
    }

    /// Asks the processes that are due for their shares. To answer, the kernel waits while the process
    /// changes its mappings. Among many new processes, that process may wait long for a CPU. So while young
    /// processes exist that were not asked, the monitor asks rarely.
    fn ask(&mut self) {
        let now = Instant::now();
        if self.has_young(now) && now - *self.asked_at.get_or_insert(now) < ASKED_WITHIN {
            return;
        }
        self.asked_at = Some(now);
        if self.rounds.rest(now) && self.groups().all(|group| group.all_have_answered()) {
            return;
        }
        let mut wanted = BTreeMap::<u32, ProcessToAsk>::new();
        for (pid, is_known) in self.groups().flat_map(|group| group.members()) {
            let wanted = wanted.entry(pid).or_default();
            wanted.is_known |= is_known;
            wanted.is_new |= !is_known;
        }
        while let Some(next) = self.rounds.next(Instant::now(), &wanted) {
            match next {
                NextQuestion::Begin => self.groups().for_each(SharingGroup::begin_round),
                NextQuestion::End => self.groups().for_each(SharingGroup::end_round),
                NextQuestion::Ask(pid) => {
                    self.ask_one(pid);
                    wanted.insert(pid, ProcessToAsk { is_known: true, is_new: false });
                }
            }
        }
    }

    /// Returns whether a member of a group is young and was not asked.
    fn has_young(&self, now: Instant) -> bool {
        let groups = self.families.values().chain(&self.shared.group);
        let mut unasked = groups.flat_map(SharingGroup::members).filter(|(_, is_known)| !is_known);
        let came_at = |pid| self.processes.get(&pid).map(|process| process.came_at);
        unasked.any(|(pid, _)| came_at(pid).is_some_and(|came_at| now - came_at < ASKED_AFTER))
    }

    fn ask_one(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if let Some(shared) = &mut self.shared.group
            && shared.contains(pid)
        {
            let counted = process.asked.ask(Instant::now(), process.memory).shared;
            shared.note(pid, FaultMark { counted, faults: None, taken: 0 });
        }
        let bytes = process.memory.anonymous + process.memory.others;
        priority::goes_on(ASKING * 3 + ASKING_A_GIB * (bytes >> 20) as u32 / 1024);
        let shares = proc::shares(pid);
        if let Some(family) = self.families.get_mut(&process.stack) {
            family.answered(pid, shares.map(|shares| shares.anonymous));
        }
        if let Some(shared) = &mut self.shared.group {
            shared.answered(pid, shares.map(|shares| shares.shared));
        }
    }

    /// All groups of processes that may map the same pages.
    fn groups(&mut self) -> impl Iterator<Item = &mut SharingGroup> {
        self.families.values_mut().chain(&mut self.shared.group)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process that has its number, but has not appeared yet, looks like one that has ended.
    #[test]
    fn where_a_number_is_nobodys_the_lists_of_children_are_read_soon() {
        let mut tree = Tree::default();
        let ended =
            Command::new("true").spawn().and_then(|mut child| child.wait().map(|_| child.id())).unwrap();
        assert_eq!(proc::ask(ended).unwrap(), None);
        let before = ended - 1;
        let now = Instant::now();
        tree.last_find = Some((now, Duration::from_millis(1)));
        let later = now + Duration::from_millis(100);
        assert!(tree.is_found_by_numbers(before, ended, later));
        tree.look_among(before, ended).unwrap();
        assert!(!tree.is_found_by_numbers(before, ended, later));
        let soon = now + Duration::from_millis(40);
        assert!(tree.is_found_by_numbers(before, ended, soon), "they have just been read");
        tree.last_find = Some((now + FIND_EVERY * 10, Duration::from_millis(1)));
        assert!(tree.is_found_by_numbers(before, ended, now + FIND_EVERY * 11 - Duration::from_millis(100)));
    }
}
