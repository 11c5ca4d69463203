//! The file rung: keeps a tree within its limit by private files, without any privilege.
//!
//! ```text
//!   measure ─► below half of the limit: sleep
//!      ▲   ├─► near it:   take the largest process in
//!      │   ├─► above it:  clean a batch while the tree runs
//!      └───┴─► far above: clean while the tree stands still
//! ```
//!
//! What the limit covers is memory that the kernel cannot drop: private copies, shared memory, page tables,
//! and the runner itself. The page cache of the file is dropped by the kernel where a control group has a
//! limit, and otherwise here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use octavo_platform::threads::set_short_slices;
use octavo_platform::usage;
use octavo_private_files::{Cleaner, Refusal};
use rustix::process::Signal;

use crate::backing::Backing;
use crate::guardian::{Entrusted, Guardian};
use crate::messages;
use crate::monitor::Failed;
use crate::monitor::standstill::Standstill;
use crate::report::progress::{CameBack, DiskWaits, ProgramFigures, ProgressMessages};
use crate::report::rungs::Files as FileFigures;
use crate::report::summary::Summary;
use crate::system::proc::{self, Statm, StatusFile};
use crate::system::{priority, signals};
use crate::tree::Tree;

/// Smaller processes are not worth a mapper.
const LEAST_PROCESS: u64 = 8 << 20;
/// Processes smaller than this run on while others stand still.
const LEAST_STOPPED: u64 = 1 << 20;
/// With a smaller limit, the guardians start before the program.
const SMALL_LIMIT: u64 = 1 << 30;
/// The time between two looks near the limit, and far below it.
const SHORT: Duration = Duration::from_millis(1);
const LONG: Duration = Duration::from_millis(5);
/// The time between two looks for processes, and for shared memory and page tables.
const FIND_EVERY: Duration = Duration::from_millis(20);
const ASK_EVERY: Duration = Duration::from_millis(50);
/// The time between two questions for shares, which take an eighth of the time at most.
const SHARES_EVERY: Duration = Duration::from_millis(20);
/// A process that could not be taken in is tried again after this long.
const TRIED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// How long the tree is killed at least: a process may fork meanwhile.
const KILLING: Duration = Duration::from_millis(40);
/// The time from a look to the moment at which the tree stands still, and how fast a high rate is forgotten.
const REACTION: Duration = Duration::from_millis(8);
const FADES: f64 = 0.97;
/// A longer time between two looks counts as this: nothing was to be done then.
const LONGEST_GAP: Duration = Duration::from_millis(30);
/// The most batches that are written within one stop.
const MOST_AT_ONCE: u64 = 3;
/// How many times the reaction takes to take a process in on a busy machine.
const ENGAGING: u64 = 8;
/// The longest rest after cleaning in vain, and the rest from which on no process stands still for it.
const LONGEST_REST: Duration = Duration::from_millis(500);
const MOST_VAIN: Duration = Duration::from_millis(60);
const MIB: u64 = 1 << 20;
/// Why nothing of a process goes out any more.
const PINNED: &str = "a device, or io_uring, may write to its memory at any time";

/// The bounds that follow from a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    /// From here on, processes are taken in.
    engage: u64,
    /// Above this, pages are cleaned.
    clean: u64,
    /// Above this, the tree stands still meanwhile.
    hold: u64,
    /// The size of a batch.
    batch: u64,
}

impl Bounds {
    /// Leaves room for what threads fill between two looks, some MiB a millisecond.
    fn of(limit_bytes: u64) -> Self {
        let hold = limit_bytes - (limit_bytes / 6).clamp(12 * MIB, 256 * MIB);
        let clean = hold - (limit_bytes / 8).clamp(4 * MIB, 128 * MIB);
        Self { engage: clean / 4 * 3, clean, hold, batch: (limit_bytes / 16).clamp(2 * MIB, 16 * MIB) }
    }
}

/// A process of the tree.
#[derive(Debug)]
struct Known {
    statm: Statm,
    status: Option<StatusFile>,
    fixed_bytes: u64,
    anonymous_bytes: u64,
    /// Where its stack begins, which is the same for processes that have forked from each other.
    stack: u64,
    /// What it had when it was asked for its share of the pages that forks share, and that share.
    share: Option<(u64, u64)>,
    parent: u32,
}

impl Known {
    /// Reads how much private memory it has. Pages that it shared with its family count by its last share.
    fn private_bytes(&self) -> u64 {
        let now = self.statm.read().anonymous;
        self.share.map_or(now, |(then, share)| (share + now).saturating_sub(then))
    }
}

/// A process that could not be taken in.
#[derive(Debug)]
struct RefusedProcess {
    why: String,
    program: String,
    /// The time of the next try.
    again_at: Instant,
}

/// Watches a tree by the file rung.
pub(crate) struct Files {
    began: Instant,
    earlier_children: usage::ChildrensUse,
    limit_bytes: u64,
    bounds: Bounds,
    is_strict: bool,
    cleaner: Cleaner,
    tree: Tree,
    known: BTreeMap<u32, Known>,
    /// Processes that may have the filter: those that were taken in, and their children.
    filtered: BTreeSet<u32>,
    entrusted: BTreeMap<u32, Entrusted>,
    refused: BTreeMap<u32, RefusedProcess>,
    growth: Growth,
    /// How long cleaning rests since it freed nothing, and until when.
    vain: Duration,
    rests_until: Option<Instant>,
    standstill: Standstill,
    guardian: Option<Guardian>,
    lacks_guardian: bool,
    own: Statm,
    found_at: Option<Instant>,
    newest: u32,
    asked_at: Option<Instant>,
    shares_at: Option<Instant>,
    shares_took: Duration,
    /// Processes of which the user was told that they are pinned.
    told_pinned: BTreeSet<u32>,
    has_told_failure: bool,
    progress: ProgressMessages,
    disk_waits: DiskWaits,
    summary: Summary,
}

impl Files {
    /// Makes the file of pages.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn new(limit_bytes: u64, folder: &Path, is_strict: bool) -> std::io::Result<Self> {
        Ok(Self {
            began: Instant::now(),
            earlier_children: usage::of_children(),
            limit_bytes,
            bounds: Bounds::of(limit_bytes),
            is_strict,
            cleaner: Cleaner::in_folder(folder)?,
            tree: Tree::default(),
            known: BTreeMap::new(),
            filtered: BTreeSet::new(),
            entrusted: BTreeMap::new(),
            refused: BTreeMap::new(),
            growth: Growth::default(),
            vain: Duration::ZERO,
            rests_until: None,
            standstill: Standstill::default(),
            guardian: None,
            lacks_guardian: false,
            own: Statm::of(std::process::id())?,
            found_at: None,
            newest: 0,
            asked_at: None,
            shares_at: None,
            shares_took: Duration::ZERO,
            told_pinned: BTreeSet::new(),
            has_told_failure: false,
            progress: ProgressMessages::default(),
            disk_waits: DiskWaits::default(),
            summary: Summary {
                budget_bytes: limit_bytes,
                files: Some(FileFigures::default()),
                ..Summary::default()
            },
        })
    }

    /// Looks for processes that have started or ended.
    fn find(&mut self) -> Result<(), Failed> {
        let (now, newest) = (Instant::now(), proc::newest());
        let is_due = self.found_at.is_none_or(|at| now - at >= FIND_EVERY) || newest != self.newest;
        if !is_due {
            return Ok(());
        }
        (self.found_at, self.newest) = (Some(now), newest);
        self.tree.helpers.clear();
        let mappers = self.cleaner.managed();
        self.tree.helpers.extend(mappers.iter().map(|(_, mapper)| *mapper));
        self.tree.helpers.extend(self.guardian.iter().flat_map(Guardian::guards));
        let found = self.tree.find().map_err(|error| Failed::refused(&messages::BLIND, &error))?;
        self.known.retain(|pid, _| found.iter().any(|(found, _)| found == pid));
        for (pid, parent) in found {
            if self.known.contains_key(&pid) {
                continue;
            }
            let Ok(statm) = Statm::of(pid) else { continue };
            if proc::name(pid) == octavo_stub::MAPPER_NAME {
                // The helper of a process that has just ended.
                continue;
            }
            // An orphan is a child of the runner.
            let is_orphan = parent == std::process::id() && !self.filtered.is_empty();
            if is_orphan || self.filtered.contains(&parent) {
                self.filtered.insert(pid);
            }
            self.summary.processes += 1;
            self.known.insert(
                pid,
                Known {
                    statm,
                    status: None,
                    fixed_bytes: 0,
                    anonymous_bytes: 0,
                    stack: proc::stat(pid).map_or(0, |stat| stat.stack),
                    share: None,
                    parent,
                },
            );
        }
        for pid in self.cleaner.forget_ended() {
            self.entrusted.remove(&pid);
        }
        self.refused.retain(|pid, _| self.known.contains_key(pid));
        Ok(())
    }

    /// Returns the bytes that the kernel cannot drop.
    fn measure(&mut self) -> u64 {
        let now = Instant::now();
        let asks = self.asked_at.is_none_or(|at| now - at >= ASK_EVERY);
        if asks {
            self.asked_at = Some(now);
        }
        let mut sum = self.own.read().anonymous;
        for (pid, known) in &mut self.known {
            if asks {
                known.status = known.status.take().or_else(|| StatusFile::of(*pid).ok());
                let fixed = known.status.as_ref().map(|status| status.read().fixed).unwrap_or_default();
                known.fixed_bytes = fixed.shared + fixed.tables;
            }
            known.anonymous_bytes = known.private_bytes();
            sum += known.anonymous_bytes + known.fixed_bytes;
        }
        if sum > self.bounds.engage && self.ask_for_shares(now) {
            return self.measure();
        }
        self.growth.note(sum);
        let known = self.refused.keys().filter_map(|pid| self.known.get(pid));
        let unmanaged = known.map(|known| known.anonymous_bytes).sum();
        self.summary.unpaged_bytes = self.summary.unpaged_bytes.max(unmanaged);
        self.summary.used_bytes = sum;
        self.summary.peak_bytes = self.summary.peak_bytes.max(sum);
        sum
    }

    /// Asks the members of families for their shares, if that is due. A store to a shared page makes a copy
    /// that only such an answer shows.
    fn ask_for_shares(&mut self, now: Instant) -> bool {
        let every = SHARES_EVERY.max(self.shares_took * 8);
        if self.shares_at.is_some_and(|at| now - at < every) {
            return false;
        }
        self.shares_at = Some(now);
        let mut stacks = BTreeMap::<u64, u32>::new();
        self.known.values().for_each(|known| *stacks.entry(known.stack).or_default() += 1);
        for (pid, known) in &mut self.known {
            let then = known.statm.read().anonymous;
            let is_alone = stacks[&known.stack] == 1;
            let share = if is_alone { None } else { proc::shares(*pid) };
            known.share = share.map(|share| (then, share.anonymous));
        }
        self.shares_took = now.elapsed();
        true
    }

    /// Returns the largest process that is not managed yet, but should be.
    fn next_to_engage(&self) -> Option<u32> {
        let now = Instant::now();
        let managed: BTreeSet<_> = self.cleaner.managed().into_iter().map(|(pid, _)| pid).collect();
        let is_new = |(pid, known): &(&u32, &Known)| {
            let may_be_tried = self.refused.get(pid).is_none_or(|refused| now >= refused.again_at);
            known.anonymous_bytes >= LEAST_PROCESS && !managed.contains(pid) && may_be_tried
        };
        let largest = self.known.iter().filter(is_new).max_by_key(|(_, known)| known.anonymous_bytes);
        largest.map(|(pid, _)| *pid)
    }

    /// Takes the largest process in that is not managed yet. Returns whether there was one.
    fn engage(&mut self) -> Result<bool, Failed> {
        let Some(pid) = self.next_to_engage() else { return Ok(false) };
        self.guard()?;
        match self.cleaner.engage(pid, self.filtered.contains(&pid)) {
            Ok(mapper) => {
                self.tree.helpers.push(mapper);
                self.filtered.insert(pid);
                if let Some(refused) = self.refused.remove(&pid) {
                    self.summary.forget_refused(&refused.why, &refused.program);
                }
                let stack = proc::stat(pid).map_or(0, |stat| stat.stack);
                let guardian = self.guardian.as_ref().expect("it was just made");
                let entrusted = guardian.entrust(Some(pid), stack);
                self.entrusted
                    .insert(pid, entrusted.map_err(|error| Failed::refused(&messages::NO_GUARDIAN, &error))?);
                self.summary.managed_processes += 1;
                self.summary.most_managed = self.summary.most_managed.max(self.entrusted.len() as u64);
            }
            Err(Refusal(why)) => self.refuse(pid, why)?,
        }
        Ok(true)
    }

    fn refuse(&mut self, pid: u32, why: String) -> Result<(), Failed> {
        let again_at = Instant::now() + TRIED_AGAIN_AFTER;
        self.standstill.go_on(pid, self.guardian.as_ref());
        if let Some(refused) = self.refused.get_mut(&pid) {
            // The summary keeps the first reason.
            refused.again_at = again_at;
            return Ok(());
        }
        let program = proc::name(pid);
        let refused = RefusedProcess { why: why.clone(), program: program.clone(), again_at };
        self.refused.insert(pid, refused);
        if !proc::has_memory(pid) {
            return Ok(());
        }
        self.summary.note_refused(&why, &program);
        let words: [(&str, &dyn std::fmt::Display); 3] =
            [("program", &program), ("pid", &pid), ("why", &why)];
        self.tell(messages::NOT_MANAGED.with(&words))
    }

    fn tell(&self, sentence: String) -> Result<(), Failed> {
        if self.is_strict {
            return Err(Failed(sentence));
        }
        say!("octavo: {sentence}");
        Ok(())
    }

    /// Starts the guardians, which end the tree if the runner dies: calls of its programs would fail.
    fn guard(&mut self) -> Result<(), Failed> {
        let failed = |error: std::io::Error| Failed::refused(&messages::NO_GUARDIAN, &error);
        if self.guardian.is_none() {
            self.guardian = Some(Guardian::new().map_err(failed)?);
            self.lacks_guardian = true;
        }
        if std::mem::take(&mut self.lacks_guardian) {
            priority::starts_others();
            let started = self.guardian.as_ref().expect("it is there").complete().map_err(failed)?;
            self.tree.helpers.extend(started);
            priority::begins(Duration::ZERO);
        }
        Ok(())
    }

    /// Frees memory if the tree has too much.
    fn clean(&mut self, used: u64) -> Result<(), Failed> {
        let Self { cleaner, tree, known, own, bounds, standstill, guardian, growth, .. } = self;
        let mut list = || Ok(tree.find()?.into_iter().map(|(pid, _)| pid).collect());
        let freed = if used > bounds.hold {
            // By several stops, so that none takes long.
            let wanted = (used - bounds.clean + bounds.batch).min(bounds.batch * MOST_AT_ONCE);
            cleaner.clean_at_once(wanted, bounds.batch, &mut list)
        } else {
            let mut looked_at = Instant::now();
            let mut look = || {
                if looked_at.elapsed() < SHORT || standstill.has_any() {
                    return;
                }
                looked_at = Instant::now();
                let sum: u64 = known.values().map(|known| known.private_bytes() + known.fixed_bytes).sum();
                let sum = sum + own.read().anonymous;
                growth.note(sum);
                if sum + growth.expected() > bounds.hold {
                    keep_still(known, standstill, guardian.as_ref());
                }
            };
            cleaner.clean(bounds.batch, &mut list, &mut look)
        };
        let freed = freed.map_err(|error| Failed::refused(&messages::BLIND, &error))?;
        self.note_freed(freed);
        if let Some(why) = self.cleaner.why_failed()
            && !std::mem::replace(&mut self.has_told_failure, true)
        {
            self.tell(messages::WITHOUT_LIMIT.with(&[("why", &why)]))?;
        }
        Ok(())
    }
}

/// Stops all but the smallest processes, until there is room.
fn keep_still(known: &BTreeMap<u32, Known>, standstill: &mut Standstill, guardian: Option<&Guardian>) {
    for (pid, process) in known {
        if process.anonymous_bytes >= LEAST_STOPPED && !standstill.has(*pid) {
            let parent = |pid: &u32| known.get(pid).map(|process| process.parent);
            // A reused number could make a cycle.
            let ancestors = std::iter::successors(parent(pid), parent).take(known.len());
            let ancestors = ancestors.filter(|pid| known.contains_key(pid)).collect();
            standstill.stop(*pid, ancestors, guardian);
        }
    }
}

/// How fast the tree grows.
#[derive(Debug, Default)]
struct Growth {
    last: Option<(Instant, u64)>,
    bytes_a_second: f64,
    /// The longest recent time between two looks, in seconds.
    gap: f64,
}

impl Growth {
    fn note(&mut self, bytes: u64) {
        let now = Instant::now();
        if let Some((at, before)) = self.last
            && now - at >= SHORT / 2
        {
            let passed = (now - at).as_secs_f64();
            let rate = bytes.saturating_sub(before) as f64 / passed;
            self.bytes_a_second = rate.max(self.bytes_a_second * FADES);
            self.gap = passed.min(LONGEST_GAP.as_secs_f64()).max(self.gap * FADES);
            self.last = Some((now, bytes));
        }
        self.last.get_or_insert((now, bytes));
    }

    /// Returns what the tree may get before it stands still.
    fn expected(&self) -> u64 {
        (self.bytes_a_second * self.gap.max(REACTION.as_secs_f64())) as u64
    }
}

impl Files {
    /// Lets some time pass before the next try if nothing could be freed, twice as much each time.
    fn note_freed(&mut self, freed: Option<u64>) {
        let has_written = self.cleaner.has_written();
        if freed.is_some_and(|bytes| bytes > 0) || has_written {
            self.vain = Duration::ZERO;
        } else if freed.is_some() {
            self.vain = (self.vain * 2).clamp(SHORT, LONGEST_REST);
            self.rests_until = Some(Instant::now() + self.vain);
        }
    }

    /// Returns whether cleaning was in vain, so that it waits.
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }
}

impl Backing for Files {
    fn prepare_early(&mut self) -> Result<(), Failed> {
        // Later, the start would take long, and nobody looks meanwhile.
        if self.limit_bytes < SMALL_LIMIT { self.guard() } else { Ok(()) }
    }

    fn turn(&mut self) -> Result<Duration, Failed> {
        if self.found_at.is_none() {
            // Only now, since the program would inherit it. Older kernels refuse, so looks are late when the
            // machine is busy.
            let _ = set_short_slices();
        }
        self.find()?;
        let used = self.measure();
        if let Some(why) = self.cleaner.why_broken() {
            return Err(Failed(why));
        }
        if self.lacks_guardian {
            self.guard()?;
        }
        for pid in self.cleaner.pinned() {
            if self.told_pinned.insert(pid) {
                self.refuse(pid, PINNED.into())?;
            }
        }
        let is_tight = used + self.growth.expected() > self.bounds.hold;
        let is_vain = self.vain > MOST_VAIN;
        // Its threads and the runner's would wait for CPUs at every step.
        let comes_in = used + self.growth.expected() * ENGAGING > self.bounds.hold
            && used > self.bounds.engage
            && self.next_to_engage().is_some();
        if !is_vain && (is_tight || comes_in) {
            keep_still(&self.known, &mut self.standstill, self.guardian.as_ref());
        }
        while used > self.bounds.engage && self.engage()? && self.standstill.has_any() {}
        if used > self.bounds.clean && !self.rests() {
            self.clean(used)?;
        }
        if self.standstill.has_any() {
            self.standstill.stop_again(usize::MAX);
            let used = self.measure();
            let is_over = used <= self.bounds.clean || self.vain > MOST_VAIN;
            if is_over || self.standstill.is_too_long(used) {
                self.standstill.end(self.guardian.as_ref());
            }
        } else {
            self.standstill.follow();
        }
        Ok(if used > self.limit_bytes / 2 { SHORT } else { LONG })
    }

    fn note_end(&mut self, pid: u32) {
        self.lacks_guardian |= self.guardian.as_ref().is_some_and(|guardian| guardian.note_end(pid));
    }

    fn is_needed(&self) -> bool {
        !self.cleaner.managed().is_empty()
    }

    fn tell_progress(&mut self) {
        let now = Instant::now();
        if self.cleaner.managed().is_empty() {
            return;
        }
        let waited = self.disk_waits.sample(now, || self.known.keys().copied().collect());
        if !self.progress.is_due(now) {
            return;
        }
        let living = self.known.keys().filter_map(|pid| proc::stat(*pid)).map(|stat| stat.disk_faults);
        let disk_faults = living.sum::<u64>() + usage::of_children().major_faults;
        let figures = self.cleaner.figures();
        let seen = ProgramFigures {
            cpu_seconds: proc::cpu_seconds(self.known.keys().copied()),
            waited_seconds: (figures.stopped + self.standstill.stood()).as_secs_f64(),
            disk_seconds: waited.as_secs_f64(),
            came_back: CameBack::DiskFaults(disk_faults),
            // Pages of the file that the program has changed count twice.
            tree_bytes: self.summary.used_bytes + figures.file_bytes,
        };
        if let Some(sentence) = self.progress.note(now, seen) {
            say!("octavo: {sentence}");
        }
    }

    fn kill_all(&mut self) {
        let began = Instant::now();
        while began.elapsed() < KILLING {
            let found = self.tree.find().unwrap_or_default();
            found.into_iter().for_each(|(pid, _)| signals::kill(pid, Signal::KILL));
            std::thread::sleep(SHORT);
        }
        self.cleaner.forget_ended();
    }

    fn figures(&mut self) -> &Summary {
        let figures = self.cleaner.figures();
        let summary = &mut self.summary;
        summary.seconds = self.began.elapsed().as_secs_f64();
        let ended = usage::of_children().since(self.earlier_children);
        summary.program_cpu_seconds = ended.cpu.as_secs_f64();
        summary.own_cpu_seconds = priority::cpu_time_of_all().as_secs_f64();
        summary.written_bytes = figures.written_bytes;
        summary.swapped_out_bytes = figures.converted_bytes + figures.cleaned_bytes;
        summary.waits.stood_seconds = (figures.stopped + self.standstill.stood()).as_secs_f64();
        summary.files = Some(FileFigures {
            stops: figures.stops,
            failed_stops: figures.failed_stops,
            longest_stop_seconds: figures.longest_stop.as_secs_f64(),
            converted_bytes: figures.converted_bytes,
            cleaned_bytes: figures.cleaned_bytes,
            changed_bytes: figures.changed_bytes,
            disk_faults: ended.major_faults,
        });
        summary
    }
}

impl Files {
    /// Ends the run. Returns the figures.
    pub(crate) fn finish(mut self) -> Summary {
        self.standstill.end_all(self.guardian.as_ref());
        self.cleaner.forget_ended();
        self.entrusted.clear();
        if let Some(guardian) = self.guardian.take() {
            guardian.finish();
        }
        self.figures();
        let used = usage::of_children().since(self.earlier_children);
        self.summary.largest_process_bytes = used.peak_resident_bytes;
        self.summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_leave_room_at_every_limit() {
        for limit in [32 * MIB, 64 * MIB, 192 * MIB, 1 << 30, 64 << 30] {
            let bounds = Bounds::of(limit);
            assert!(bounds.engage < bounds.clean && bounds.clean < bounds.hold && bounds.hold < limit);
            assert!(limit - bounds.hold >= 12 * MIB && bounds.batch <= limit - bounds.hold, "{bounds:?}");
        }
    }
}
