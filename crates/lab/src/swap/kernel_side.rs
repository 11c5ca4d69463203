//! The kernel's side: the same accesses to plain anonymous memory, by processes of their own in a memory
//! control group of the same limit, with kernel swap on the same file system.
//!
//! The keeper sets up the machine once ([`Keeper`]). Swap is on only during a run of this side.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use octavo_command::failure::Failure;
use octavo_platform::PlainMemory;
use serde::{Deserialize, Serialize};

use super::data::{PAGE_WORDS, PageWords};
use super::keeper::{Keeper, Ready, Setup, ZramMemory};
use super::monitor::{self, DeviceTraffic};
use super::plan::{Phase, TaskPlan};
use super::side::{PhaseDone, SideRun};
use super::work::{PagedMemory, PhaseOutcome, alone, work};
use crate::gate::all_at_once;
use crate::huge_pages::KernelPages;
use crate::processes::{self, Processes, Usage, ready_and_told_to_go};
use crate::worker::Toucher;

/// The limit is lowered until zram uses at most this much more than was counted, but at most this many times.
const ENOUGH_BYTES: u64 = 1 << 20;
const MOST_LOWERINGS: u32 = 100;

/// The subcommand by which `octavo-lab` starts a process of this side.
pub const SUBCOMMAND: &str = "swap-task";

/// The order for a process.
#[derive(Debug, Serialize, Deserialize)]
struct ProcessOrder {
    task: u32,
    plan: TaskPlan,
    pages: KernelPages,
    /// The file to which the process writes, to enter the control group.
    procs: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Done {
    /// The outcomes of each phase, by thread.
    phases: Vec<Vec<PhaseOutcome>>,
    faults: u64,
    major_faults: u64,
}

/// The machine, set up for this side.
#[derive(Debug)]
pub struct KernelSide {
    keeper: Keeper,
    ready: Ready,
    limit_bytes: u64,
    /// The most bytes in huge pages that were seen in the group at once.
    most_huge_bytes: AtomicU64,
}

impl KernelSide {
    /// Sets up the machine. Also returns what was repaired first.
    pub fn set_up(setup: &Setup) -> Result<(Self, Vec<String>), Failure> {
        let (mut keeper, found) = Keeper::start()?;
        let ready = keeper.set_up(setup)?;
        let (limit_bytes, most_huge_bytes) = (setup.limit_bytes, AtomicU64::new(0));
        Ok((Self { keeper, ready, limit_bytes, most_huge_bytes }, found))
    }

    /// The area that the kernel swaps to, for people.
    pub fn area(&self) -> &str {
        &self.ready.area
    }

    /// Restores the machine.
    pub fn finish(self) -> Result<(), Failure> {
        self.keeper.finish()
    }

    /// Runs all tasks once and returns their outcome.
    pub(super) fn run(
        &mut self,
        tasks: u32,
        plan: &TaskPlan,
        pages: KernelPages,
    ) -> Result<SideRun, Failure> {
        self.keeper.on()?;
        // Reset the peak, so that it becomes this run's. Some kernels refuse this. Then the peak is the
        // largest of all runs.
        let _ = fs::write(&self.ready.peak, "0");
        if let Some(zram) = &self.ready.zram {
            zram.begin();
        }
        *self.most_huge_bytes.get_mut() = 0;
        // Restore the limit, since the last run may have lowered it.
        let _ = fs::write(&self.ready.limit, self.limit_bytes.to_string());
        let side = self.run_processes(tasks, plan, pages);
        let off = self.keeper.off();
        let side = side?;
        off?;
        Ok(side)
    }

    fn run_processes(&self, tasks: u32, plan: &TaskPlan, pages: KernelPages) -> Result<SideRun, Failure> {
        let mut processes = Processes::default();
        for task in 0..tasks {
            let order = ProcessOrder { task, plan: plan.clone(), pages, procs: self.ready.procs.clone() };
            processes.start(SUBCOMMAND, &order, Stdio::piped())?;
        }
        let phases = plan.phases();
        let mut seen = Vec::new();
        processes.wait_until_ready()?;
        for number in 1..phases.len() {
            let (ready, looks) = monitor::during(
                || self.traffic(),
                || {
                    processes.go()?;
                    processes.wait_until_ready()
                },
            );
            ready.map_err(|failure| self.explained(failure))?;
            seen.push((looks, phases[number - 1]));
            self.count_zram_under_the_limit();
        }
        let (done, looks) = monitor::during(
            || self.traffic(),
            || {
                processes.go()?;
                processes.collect::<Done>()
            },
        );
        let mut done = done.map_err(|failure| self.explained(failure))?;
        seen.extend(phases.last().map(|&phase| (looks, phase)));
        let by_phase = seen.into_iter().enumerate().map(|(number, (seen, (phase, timed)))| PhaseDone {
            phase,
            timed,
            outcomes: done.iter_mut().map(|done| std::mem::take(&mut done.phases[number])).collect(),
            seen,
        });
        let phases: Vec<PhaseDone> = by_phase.collect();
        let total = |pages: fn(&DeviceTraffic) -> u64| {
            phases.iter().map(|phase| pages(&phase.seen.total())).sum::<u64>()
        };
        let peak = fs::read_to_string(&self.ready.peak).unwrap_or_default();
        Ok(SideRun {
            budget_bytes: self.limit_bytes,
            faults: done.iter().map(|done| done.faults).sum(),
            peak_bytes: peak.trim().parse().unwrap_or(0),
            ram_device_bytes: None,
            huge_bytes: Some(self.most_huge_bytes.load(Ordering::Relaxed)),
            zram_bytes: self.ready.zram.as_ref().and_then(ZramMemory::peak_bytes),
            counters: [
                ("pgfault".to_string(), done.iter().map(|done| done.faults).sum()),
                ("pgmajfault".to_string(), done.iter().map(|done| done.major_faults).sum()),
                ("pswpout".to_string(), total(|traffic| traffic.out_pages)),
                ("pswpin".to_string(), total(|traffic| traffic.in_pages)),
            ]
            .into(),
            latencies: None,
            areas: Vec::new(),
            phases,
        })
    }

    /// Returns the pages moved so far. Each reading makes the kernel sum the group's figures, which it
    /// otherwise does every two seconds. Reclaim relies on those figures. If accesses use up the inactive
    /// list faster, reclaim believes that the list is long, finds it empty, and kills the process, although
    /// swap is nearly empty and every page is reclaimable.
    fn traffic(&self) -> DeviceTraffic {
        let figures = fs::read_to_string(&self.ready.figures).unwrap_or_default();
        // The names in versions 1 and 2. Relaxed: the figure is read after its writer has ended.
        let huge_bytes = count_in(&figures, "rss_huge").max(count_in(&figures, "anon_thp"));
        self.most_huge_bytes.fetch_max(huge_bytes, Ordering::Relaxed);
        machine_traffic()
    }

    /// Lowers the limit by zram's memory, which is charged to no group, so that both sides have the same
    /// memory in total. The tasks wait meanwhile. A lower limit sends more pages to zram, which then uses
    /// more memory, so this repeats until it is close enough.
    fn count_zram_under_the_limit(&self) {
        let Some(zram) = &self.ready.zram else { return };
        let mut counted_bytes = 0;
        for _ in 0..MOST_LOWERINGS {
            let used_bytes = zram.used_bytes().unwrap_or(0);
            if used_bytes.saturating_sub(counted_bytes) < ENOUGH_BYTES {
                return;
            }
            // The kernel may refuse a limit that it cannot reach at once. In that case, the loop asks again.
            match fs::write(&self.ready.limit, self.limit_bytes.saturating_sub(used_bytes).to_string()) {
                Ok(()) => counted_bytes = used_bytes,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Explains a failure: a killed process had too little swap or memory, unless its error says more.
    fn explained(&self, failure: Failure) -> Failure {
        Failure::Said(format!("kernel side, swapping to {}: {failure}", self.ready.area))
    }
}

/// Reads the whole machine's counters: the kernel keeps none of these for a control group.
fn machine_traffic() -> DeviceTraffic {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    DeviceTraffic {
        out_pages: count_in(&text, "pswpout"),
        in_pages: count_in(&text, "pswpin"),
        pool_in_pages: 0,
    }
}

/// Returns a figure of a file that has one name and figure in each line.
fn count_in(figures: &str, name: &str) -> u64 {
    let line = figures.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Runs one process.
pub fn task_main(order: &str) -> Result<(), Failure> {
    let order: ProcessOrder = serde_json::from_str(order).map_err(|_| {
        Failure::Said(format!("{SUBCOMMAND} is started by octavo-lab itself; use octavo-lab swap-w-seq"))
    })?;
    processes::answer(do_all(&order))
}

fn do_all(order: &ProcessOrder) -> Result<Option<Done>, Failure> {
    let plan = &order.plan;
    // Enter the group before any memory is touched, since a page stays charged to its first group.
    fs::write(&order.procs, "0").map_err(|error| Failure::system("cannot enter the control group", error))?;
    let memory = KernelMemory::new(plan, order.pages)?;
    // Read the text before the clock starts.
    plan.data.page(0, 0).word(0);
    let before = Usage::now();
    let mut phases = Vec::new();
    for (phase, _) in plan.phases() {
        if !ready_and_told_to_go()? {
            return Ok(None);
        }
        phases.push(go_through(&memory, order, phase)?);
    }
    let after = Usage::now();
    let major_faults = after.major_faults - before.major_faults;
    Ok(Some(Done { phases, faults: after.minor_faults - before.minor_faults + major_faults, major_faults }))
}

fn go_through(
    memory: &KernelMemory,
    order: &ProcessOrder,
    phase: Phase,
) -> Result<Vec<PhaseOutcome>, Failure> {
    let stop = AtomicBool::new(false);
    let one = |toucher: Toucher| {
        let Ok(outcome) = work(memory, &order.plan, phase, toucher, alone(&stop));
        outcome
    };
    let touchers = (0..order.plan.threads_in(phase)).map(|thread| Toucher { task: order.task, thread });
    match order.plan.threads_in(phase) {
        // Work in the process's first thread, like usemem.
        1 => Ok(touchers.map(one).collect()),
        _ => all_at_once(touchers, |toucher| Ok(one(toucher)), None),
    }
}

/// The kernel's own memory.
struct KernelMemory(PlainMemory);

impl KernelMemory {
    fn new(plan: &TaskPlan, pages: KernelPages) -> Result<Self, Failure> {
        let bytes = usize::try_from(plan.task_bytes).map_err(|_| io::ErrorKind::OutOfMemory.into());
        let memory = bytes.and_then(|bytes| PlainMemory::new(bytes, pages.backing()));
        memory.map(Self).map_err(|error| Failure::system("the kernel cannot map the memory", error))
    }
}

impl PagedMemory for KernelMemory {
    type Error = std::convert::Infallible;

    #[inline]
    fn write_page(&self, page: u64, words: &PageWords<'_>) -> Result<(), Self::Error> {
        let first = page as usize * PAGE_WORDS;
        words.each(|index, word| self.0.store(first + index, word));
        Ok(())
    }

    #[inline]
    fn read_page(&self, page: u64, mut take: impl FnMut(usize, u64)) -> Result<(), Self::Error> {
        let first = page as usize * PAGE_WORDS;
        (0..PAGE_WORDS).for_each(|index| take(index, self.0.load(first + index)));
        Ok(())
    }

    #[inline]
    fn load(&self, page: u64, word: usize) -> Result<u64, Self::Error> {
        Ok(self.0.load(page as usize * PAGE_WORDS + word))
    }

    fn push_out(&self, pages: u64) -> Result<(), Self::Error> {
        self.0.page_out(0..pages as usize * PAGE_WORDS);
        Ok(())
    }

    fn prefetch(&self, page: u64) -> Result<(), Self::Error> {
        let first = page as usize * PAGE_WORDS;
        self.0.will_need(first..first + PAGE_WORDS);
        Ok(())
    }
}
