//! The processes of the tree: which there are, and how much memory they have together.
//!
//! The kernel counts a page that a fork shares in every process that shows it. So the processes of one program,
//! which have forked from each other, are counted together: their shares (PSS) are asked for in turn, and
//! in between the pages that they get are added, and those that go are taken off. A store to a shared page gets a page that
//! no count shows, since a process has as many as before. But it is a fault, so each fault is taken for one until all have been
//! asked again. One answer serves private and shared memory. A `vfork` child has no memory of its own.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use octavo_platform::process_memory::share_memory;

use crate::fixed::{Asked, Shared};
use crate::proc::{self, Fixed, Memory, Statm};
use crate::rounds::{Next, Rounds, Wanted};
use crate::shares::{Group, Newcomer};

/// From one look at which processes there are to the next, where none has come.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// New processes are looked for during at most one part in so many of the time.
const LOOK_SHARE: u32 = 10;

/// A process of the tree.
#[derive(Debug)]
pub(crate) struct Process {
    statm: Statm,
    pub(crate) memory: Memory,
    asked: Asked,
    /// Where its stack begins: processes that have forked from each other have the same.
    pub(crate) stack: u64,
    parent: u32,
    /// Its faults until the last two looks at which processes there are.
    faults: [u64; 2],
    /// It has the memory of its parent, and none of its own.
    is_vforked: bool,
}

/// The process that has forked, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parent {
    Known(u32),
    /// It has been taken for a relative, or has not been found itself: none of this one's children fits.
    Thought(u32),
}

/// All processes that descend from the runner, but for the runner's own helpers.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) processes: BTreeMap<u32, Process>,
    /// Processes that have forked from each other, by where their stacks begin.
    families: BTreeMap<u64, Group>,
    shared: Shared,
    rounds: Rounds,
    /// How many there have been.
    pub(crate) seen: u64,
    pub(crate) helpers: Vec<u32>,
    last_look: Option<LastLook>,
}

/// When the processes were last looked for.
#[derive(Clone, Copy, Debug)]
struct LastLook {
    at: Instant,
    took: Duration,
    /// The newest process or thread of the machine then.
    newest: u64,
}

impl Tree {
    /// Leaves a process out, and what descends from it: a helper of the runner.
    pub(crate) fn leave_out(&mut self, pid: impl Into<Option<u32>>) {
        if let Some(pid) = pid.into() {
            self.helpers.push(pid);
            self.processes.remove(&pid);
        }
    }

    /// Takes a helper off the list that has ended.
    pub(crate) fn forget_helper(&mut self, pid: u32) {
        self.helpers.retain(|helper| *helper != pid);
    }

    /// Finds out which processes there are, if it is time to, and returns whether it was. While nobody has started a process, that is
    /// seldom. New processes are looked for after `within`, but for at most one part in [`LOOK_SHARE`] of the time.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub(crate) fn look_if_due(&mut self, within: Duration) -> io::Result<bool> {
        let now = Instant::now();
        let passed = self.last_look.map_or(Duration::MAX, |last| now - last.at);
        let is_due = match self.last_look {
            None => true,
            Some(_) if passed >= LOOK_EVERY => true,
            Some(last) => passed >= within.max(last.took * LOOK_SHARE) && proc::newest() != last.newest,
        };
        if is_due {
            // A process that comes during the look is newer.
            let newest = proc::newest();
            let looked = self.look();
            self.last_look = Some(LastLook { at: now, took: now.elapsed(), newest });
            looked?;
        }
        Ok(is_due)
    }

    /// Finds the processes of the tree: each with its parent.
    ///
    /// # Errors
    /// The kernel's, for want of descriptors.
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
        // A number that a process took over from an ancestor could make a circle.
        std::iter::successors(parent(&pid), parent).take_while(known).take(self.processes.len()).collect()
    }

    /// Finds out which processes there are.
    ///
    /// # Errors
    /// The kernel's, for want of descriptors. No process is taken for one that has ended then, but new ones may be left out.
    pub(crate) fn look(&mut self) -> io::Result<()> {
        let found = self.find()?;
        let stats = found.iter().map(|(pid, _)| proc::ask(*pid)).collect::<io::Result<Vec<_>>>()?;
        let mut looked = Ok(());
        self.processes.retain(|pid, _| found.iter().any(|(found, _)| found == pid));
        let is_known = |processes: &BTreeMap<u32, Process>, pid| {
            // A process that ran another program since is another one.
            processes.get(&pid).is_some_and(|process: &Process| !process.is_vforked)
        };
        for ((pid, parent), stat) in found.into_iter().zip(stats) {
            let (stack, faults) = stat.map_or((0, 0), |stat| (stat.stack, stat.faults));
            if let Some(process) = self.processes.get_mut(&pid) {
                process.stack = stack;
                process.faults = [process.faults[1], faults];
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
            let memory = Memory::default();
            let asked = Asked::new(pid);
            let faults = [0, faults];
            self.processes.insert(pid, Process { statm, memory, asked, stack, parent, faults, is_vforked });
        }
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

    /// Returns the first process with this stack that nobody knows yet: a child of `parent`, or of the runner, which gets children
    /// whose parents have ended. Where the parent is not known for sure, it is anybody's child in the end.
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

    /// Returns whether a process has forked from another one of the tree, and runs the same program.
    pub(crate) fn is_fork(&self, pid: u32) -> bool {
        let Some(process) = self.processes.get(&pid) else { return false };
        let parent = self.processes.get(&process.parent);
        process.is_vforked || parent.is_some_and(|parent| parent.stack == process.stack)
    }

    /// Returns whether processes may share pages that a store would copy.
    pub(crate) fn has_families(&self) -> bool {
        !self.families.is_empty()
    }

    /// Measures the processes, and returns their anonymous memory together. `has_copies` tells of a process whether its shared pages
    /// count as copies already, so that stores to them are not looked for.
    pub(crate) fn measure(&mut self, has_copies: impl Fn(u32) -> bool) -> u64 {
        let mut sum = 0;
        for process in self.processes.values_mut().filter(|process| !process.is_vforked) {
            process.memory = process.statm.read();
            sum += process.memory.anonymous;
        }
        for family in self.families.values_mut() {
            let pids: Vec<u32> = family.members().map(|(pid, _)| pid).collect();
            let has_copies = pids.iter().all(|pid| has_copies(*pid));
            for pid in pids {
                let anonymous = self.processes.get(&pid).map_or(0, |process| process.memory.anonymous);
                // A process that has ended has made its last fault.
                let faults = || proc::stat(pid).map_or(0, |stat| stat.faults);
                family.note(pid, anonymous, (!has_copies).then(faults));
            }
        }
        self.ask();
        for family in self.families.values() {
            sum = sum - family.counted().0 + family.estimate();
        }
        sum
    }

    /// Returns the memory of the processes that nobody pages, as they were measured last. It is more where it `fits` even so.
    pub(crate) fn fixed(&mut self, fits: impl FnOnce(Fixed) -> bool) -> Fixed {
        let (now, mut tables) = (Instant::now(), 0);
        self.shared.begin();
        for (pid, process) in self.processes.iter_mut().filter(|(_, process)| !process.is_vforked) {
            let fixed = process.asked.fixed(now, process.memory);
            self.shared.add(*pid, fixed.shared);
            tables += fixed.tables;
        }
        let most = self.shared.most(|shared| fits(Fixed { shared, tables }));
        self.ask();
        Fixed { shared: self.shared.estimate().unwrap_or(most), tables }
    }

    /// Asks processes for their shares whose turn it is.
    fn ask(&mut self) {
        let mut wanted = BTreeMap::<u32, Wanted>::new();
        for (pid, is_known) in self.groups().flat_map(|group| group.members()) {
            let wanted = wanted.entry(pid).or_default();
            wanted.is_known |= is_known;
            wanted.is_new |= !is_known;
        }
        while let Some(next) = self.rounds.next(Instant::now(), &wanted) {
            match next {
                Next::Begin => self.groups().for_each(Group::begin_round),
                Next::End => self.groups().for_each(Group::end_round),
                Next::Ask(pid) => {
                    self.ask_one(pid);
                    wanted.insert(pid, Wanted { is_known: true, is_new: false });
                }
            }
        }
    }

    fn ask_one(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        if let Some(shared) = &mut self.shared.group
            && shared.contains(pid)
        {
            shared.note(pid, process.asked.ask(Instant::now(), process.memory).shared, None);
        }
        let shares = proc::shares(pid);
        if let Some(family) = self.families.get_mut(&process.stack) {
            family.answered(pid, shares.map(|shares| shares.anonymous));
        }
        if let Some(shared) = &mut self.shared.group {
            shared.answered(pid, shares.map(|shares| shares.shared));
        }
    }

    /// All groups of processes that may show the same pages.
    fn groups(&mut self) -> impl Iterator<Item = &mut Group> {
        self.families.values_mut().chain(&mut self.shared.group)
    }
}
