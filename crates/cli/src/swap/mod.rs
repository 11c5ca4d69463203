//! `octavo swap-w-seq` and its kin: more data than memory, on Octavo, on the kernel's swap, and the bare device.
//!
//! | file | what |
//! |---|---|
//! | `args`, `device` | the options, and where pages go |
//! | `plan`, `data`, `work` | what each task does, what pages hold, one thread's way through it |
//! | `octavo_side`, `kernel_side`, `disk_side` | the sides of a comparison |
//! | `keeper` | sets the machine up for the kernel's side, and puts it back whatever happens |
//! | `monitor` | how fast pages go out and come in, once they do |
//! | `tables` | what is printed |
//!
//! Sides run by turns, each round starting with the next one, so that a slow phase of the machine hits all of them
//! alike. Time is from the first task's start to the last task's end in the timed phase.

mod aligned;
pub mod args;
mod data;
mod device;
mod disk_side;
pub mod keeper;
pub mod kernel_side;
mod monitor;
mod octavo_side;
mod plan;
mod tables;
mod work;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;

use clap::ValueEnum;

use self::data::PAGE_BYTES;
use self::device::Device;
use self::disk_side::{DiskSide, Moved, written_file};
use self::keeper::{AreaChoice, Setup};
use self::kernel_side::KernelSide;
use self::monitor::Seen;
use self::octavo_side::{Choices, CompressionChoice};
pub use self::plan::Pattern;
use self::plan::{Phase, Plan};
use self::work::Outcome;
use crate::args::JsonTarget;
use crate::failure::Failure;
use crate::output::{JsonSink, Text};
use crate::profile::Samples;
use crate::progress::Progress;
use crate::report::{Metric, Report, Run};
use crate::table;
use crate::usemem::touch::Mismatch;
use crate::usemem::{Mode, kb_per_s};

/// Sampled runs of a mode at the most.
const SAMPLED_RUNS: u32 = 10;
/// What the device is measured with, at least and at the most.
const DISK_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=8 << 30;

/// Whom Octavo is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rival {
    /// Plain processes in a memory control group, with kernel swap on the same file system
    Kernel,
    /// The same, with kernel swap in compressed memory (zram), whatever Octavo's device
    Zram,
    /// The bare device: 1 MiB blocks in order, or 4 KiB reads by as many threads
    Disk,
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Job {
    pub workload: String,
    plan: Plan,
    tasks: u32,
    modes: Vec<Mode>,
    /// The slowest to print first.
    rivals: Vec<Rival>,
    choices: Choices,
    rounds: u32,
    profile: bool,
    json: Option<JsonTarget>,
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Disk,
    Kernel,
    Zram,
    Octavo(Mode),
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Kernel => "kernel",
            Self::Zram => "zram",
            Self::Octavo(mode) => mode.name(),
        }
    }
}

/// A phase that is over: outcomes by task and thread.
#[derive(Debug)]
struct PhaseDone {
    phase: Phase,
    timed: bool,
    outcomes: Vec<Vec<Outcome>>,
    seen: Seen,
}

/// What one run of one side did.
#[derive(Debug)]
struct Side {
    phases: Vec<PhaseDone>,
    budget_bytes: u64,
    faults: u64,
    /// Octavo's peak resident set; most that was charged to the kernel's control group.
    peak_bytes: u64,
    /// What of it was the device.
    ram_device_bytes: Option<u64>,
    /// Most memory that zram took, which the control group is not charged for.
    zram_bytes: Option<u64>,
    counters: BTreeMap<String, u64>,
}

impl Side {
    fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.phases.iter().flat_map(|phase| phase.outcomes.iter().flatten())
    }

    fn mismatch(&self) -> Option<(u64, Mismatch)> {
        let first = self.outcomes().find_map(|outcome| outcome.first_mismatch)?;
        Some((self.outcomes().map(|outcome| outcome.mismatches).sum(), first))
    }
}

/// The rivals, set up.
#[derive(Debug, Default)]
struct Rivals {
    disk: Option<DiskSide>,
    /// What Octavo's side swaps to, written in full as theirs is.
    area: Option<File>,
    zram: Option<KernelSide>,
    kernel: Option<KernelSide>,
}

/// Does the job, and fails where it failed or where data was wrong.
pub fn run(job: &Job) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    let mut rivals = set_up(job, &text)?;
    let mut job = job.clone();
    if let (Some(file), Device::TemporaryIn(folder)) = (&rivals.area, &job.choices.device) {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        job.choices.device = Device::Written { path, folder: folder.clone() };
    }
    let job = &job;
    let result = compare(job, &text, &mut rivals);
    // Whatever came of it, the machine is put back as it was, and it is said where that failed.
    let finished =
        [rivals.zram.take(), rivals.kernel.take()].map(|side| side.map_or(Ok(()), KernelSide::finish));
    let (report, wrong) = result?;
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    tables::print(&text, job, &report)?;
    finished.into_iter().collect::<Result<Vec<()>, _>>()?;
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Said(wrong.join("; "))),
    }
}

fn set_up(job: &Job, text: &Text) -> Result<Rivals, Failure> {
    let (choices, plan) = (&job.choices, &job.plan);
    let data_bytes = plan.task_bytes * u64::from(job.tasks);
    let wants = |rival| job.rivals.contains(&rival);
    let disk_bytes = match plan.pattern {
        Pattern::ReadRandom => data_bytes,
        _ => data_bytes.saturating_sub(choices.budget_bytes),
    };
    let disk_bytes = disk_bytes.clamp(*DISK_BYTES.start(), *DISK_BYTES.end());
    let files = (1 + u64::from(wants(Rival::Kernel))) * choices.swap_bytes
        + u64::from(wants(Rival::Disk)) * disk_bytes;
    choices.device.check_room(files)?;
    let mut rivals = Rivals::default();
    if let (Device::TemporaryIn(folder), false) = (&choices.device, job.rivals.is_empty()) {
        let _progress = Progress::start("writing the file to swap to".into(), None);
        let cannot = |error| Failure::system(format!("cannot make a file in {}", folder.display()), error);
        rivals.area = Some(written_file(folder, choices.swap_bytes).map_err(cannot)?);
    }
    if wants(Rival::Kernel) {
        let area = match &choices.device {
            Device::Block(path) => AreaChoice::Device(path.clone()),
            Device::Ram => zram(choices),
            other => AreaChoice::FileIn(other.folder().unwrap_or("/var/tmp".as_ref()).to_path_buf()),
        };
        rivals.kernel = Some(set_up_kernel(job, text, Contender::Kernel, area)?);
    }
    if wants(Rival::Zram) {
        rivals.zram = Some(set_up_kernel(job, text, Contender::Zram, zram(choices))?);
    }
    if wants(Rival::Disk) {
        let _progress = Progress::start("writing the file to measure the disk with".into(), None);
        rivals.disk = Some(DiskSide::set_up(&choices.device, disk_bytes)?);
    }
    Ok(rivals)
}

fn zram(choices: &Choices) -> AreaChoice {
    let algorithm = match choices.compression {
        CompressionChoice::Zstd => "zstd".into(),
        CompressionChoice::Lz4 | CompressionChoice::Off => "lz4".into(),
    };
    AreaChoice::Zram { algorithm }
}

fn set_up_kernel(
    job: &Job,
    text: &Text,
    contender: Contender,
    area: AreaChoice,
) -> Result<KernelSide, Failure> {
    let setup = Setup {
        limit_bytes: job.choices.budget_bytes,
        area,
        area_bytes: job.choices.swap_bytes,
        no_neighbours: job.plan.pattern.is_random(),
    };
    let _progress = Progress::start("setting the kernel's swap up".into(), None);
    let (side, found) = KernelSide::set_up(&setup)?;
    for sentence in found {
        text.line(sentence)?;
    }
    text.line(format!(
        "{}: {} processes in a memory control group of {}, swapping to {}{}",
        contender.name(),
        job.tasks,
        table::bytes(setup.limit_bytes),
        side.area(),
        if setup.no_neighbours { ", vm.page-cluster 0" } else { "" }
    ))?;
    Ok(side)
}

fn compare(job: &Job, text: &Text, rivals: &mut Rivals) -> Result<(Report, Vec<String>), Failure> {
    let contenders = contenders(job);
    let mut runs = Vec::new();
    let mut wrong = Vec::new();
    for round in 0..job.rounds {
        // New data each time: no side may find what it knows.
        let plan = Plan { seed: u64::from(round) + 1, ..job.plan.clone() };
        for turn in 0..contenders.len() {
            let contender = contenders[(turn + round as usize) % contenders.len()];
            let title = format!("{}, round {} of {}", contender.name(), round + 1, job.rounds);
            let run = match contender {
                Contender::Disk => {
                    let _progress = Progress::start(title, None);
                    let disk = rivals.disk.as_ref().expect("it was set up");
                    summarise_disk(job, disk.run(job.tasks, &plan)?)
                }
                Contender::Kernel | Contender::Zram => {
                    let _progress = Progress::start(title, None);
                    let kernel =
                        if contender == Contender::Zram { &mut rivals.zram } else { &mut rivals.kernel };
                    let side = kernel.as_mut().expect("it was set up").run(job.tasks, &plan)?;
                    summarise(job, contender, &side, &mut wrong)
                }
                Contender::Octavo(mode) => {
                    let side = run_octavo(job, mode, &plan, title, None)?;
                    summarise(job, contender, &side, &mut wrong)
                }
            };
            text.line(tables::one_line(job, &run, round))?;
            runs.push(run);
        }
    }
    if job.profile {
        add_shares(job, &mut runs)?;
    }
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    Ok((Report::new(job.workload.clone(), runs, &names, metrics(job.plan.pattern)), wrong))
}

fn contenders(job: &Job) -> Vec<Contender> {
    let rivals = job.rivals.iter().map(|rival| match rival {
        Rival::Disk => Contender::Disk,
        Rival::Kernel => Contender::Kernel,
        Rival::Zram => Contender::Zram,
    });
    rivals.chain(job.modes.iter().map(|&mode| Contender::Octavo(mode))).collect()
}

/// What is compared.
fn metrics(pattern: Pattern) -> &'static [Metric] {
    match pattern {
        Pattern::WriteSequential | Pattern::WriteRandom => &[Metric::ThroughputKbPerS, Metric::DeviceMbPerS],
        Pattern::ReadSequential => &[Metric::MbPerS, Metric::DeviceMbPerS],
        Pattern::ReadRandom => &[Metric::LoadsPerS, Metric::RefaultsPerS],
    }
}

fn run_octavo(
    job: &Job,
    mode: Mode,
    plan: &Plan,
    title: String,
    samples: Option<&mut Samples>,
) -> Result<Side, Failure> {
    let accesses = plan.phases().iter().try_fold(0u64, |sum, &(phase, _)| {
        let threads = u64::from(job.tasks) * u64::from(plan.threads_in(phase));
        Some(sum.saturating_add(plan.accesses_in(phase)?.saturating_mul(threads)))
    });
    let progress = Progress::start(title, accesses);
    octavo_side::run(mode, job.tasks, plan, &job.choices, progress.counter(), samples)
}

/// Runs each mode again under the sampler, off the clock, and notes the shares with all its runs.
fn add_shares(job: &Job, runs: &mut [Run]) -> Result<(), Failure> {
    for &mode in &job.modes {
        let mut samples = Samples::watching(tables::SAMPLED_SITES);
        for pass in 1..=SAMPLED_RUNS {
            let title = format!("{}, sampled run {pass}", mode.name());
            run_octavo(job, mode, &job.plan, title, Some(&mut samples))?;
            if samples.is_enough() {
                break;
            }
        }
        let shares = samples.shares()?;
        for run in runs.iter_mut().filter(|run| run.mode == mode.name()) {
            run.shares = shares.clone();
            for site in &tables::LOCK_SITES {
                let share = samples.site_share(site.title);
                run.measures.extend([(site.share, share.all), (site.waiting, share.waiting)]);
            }
        }
    }
    Ok(())
}

fn summarise_disk(job: &Job, moved: Moved) -> Run {
    let device = match job.plan.pattern {
        Pattern::ReadRandom => ("loads_per_s", moved.operations as f64 / moved.seconds),
        _ => ("device_mb_per_s", moved.bytes as f64 / moved.seconds / 1e6),
    };
    Run {
        mode: Contender::Disk.name().into(),
        tasks: job.tasks.into(),
        budget_bytes: None,
        seconds: moved.seconds,
        throughput_kb_per_s: 0,
        faults: 0,
        faults_per_s: 0.0,
        peak_rss_bytes: 0,
        counters: BTreeMap::new(),
        shares: BTreeMap::new(),
        measures: [device].into(),
    }
}

fn summarise(job: &Job, contender: Contender, side: &Side, wrong: &mut Vec<String>) -> Run {
    if let Some((words, Mismatch { offset, expected, found })) = side.mismatch() {
        wrong.push(format!(
            "{words} words were not what was written ({}; first at offset {offset:#x} of a task's memory: expected \
             {expected:#018x}, found {found:#018x})",
            contender.name()
        ));
    }
    let timed = side.phases.iter().find(|phase| phase.timed).expect("one phase is timed");
    let start_ns = timed.outcomes.iter().flatten().map(|outcome| outcome.start_ns).min().unwrap_or(0);
    let end_ns = timed.outcomes.iter().flatten().map(|outcome| outcome.end_ns).max().unwrap_or(0);
    // A clock that stood still gives no division by zero further on.
    let seconds = end_ns.saturating_sub(start_ns).max(1) as f64 / 1e9;
    let throughput = timed.outcomes.iter().flatten().map(|outcome| {
        let usecs = (outcome.end_ns.saturating_sub(start_ns) / 1000).max(1);
        kb_per_s(usemem_bytes(&job.plan, timed.phase, outcome), usecs)
    });
    let mut measures = rates(timed, seconds);
    measures.insert("peak_allowed_bytes", allowed_bytes(side) as f64);
    measures.extend(side.ram_device_bytes.map(|bytes| ("ram_device_bytes", bytes as f64)));
    measures.extend(side.zram_bytes.map(|bytes| ("zram_bytes", bytes as f64)));
    Run {
        mode: contender.name().into(),
        tasks: job.tasks.into(),
        budget_bytes: Some(side.budget_bytes),
        seconds,
        throughput_kb_per_s: throughput.fold(0, u64::saturating_add),
        faults: side.faults,
        faults_per_s: side.faults as f64 / seconds,
        peak_rss_bytes: side.peak_bytes.saturating_sub(side.ram_device_bytes.unwrap_or(0)),
        counters: side.counters.clone(),
        shares: BTreeMap::new(),
        measures,
    }
}

/// As usemem counts: an eighth of what is mapped, and 8 for each access.
fn usemem_bytes(plan: &Plan, phase: Phase, outcome: &Outcome) -> u64 {
    let mapped = if phase == Phase::Write { plan.task_bytes / 8 } else { 0 };
    mapped + outcome.words * 8
}

fn rates(timed: &PhaseDone, seconds: f64) -> BTreeMap<&'static str, f64> {
    let accesses: u64 = timed.outcomes.iter().flatten().map(|outcome| outcome.accesses).sum();
    let moved = timed.seen.total();
    let kib_per_s = |pages: u64| pages as f64 * (PAGE_BYTES / 1024) as f64 / seconds;
    let mut rates = BTreeMap::from([
        ("swap_out_kb_per_s", kib_per_s(moved.out_pages)),
        ("swap_in_kb_per_s", kib_per_s(moved.in_pages)),
    ]);
    let steady = match timed.phase {
        Phase::Write => timed.seen.steady_bytes_per_s(|traffic| traffic.out_pages),
        Phase::ReadBack => timed.seen.steady_bytes_per_s(|traffic| traffic.in_pages),
        Phase::Loads => None,
    };
    rates.extend(steady.map(|bytes| ("device_mb_per_s", bytes / 1e6)));
    match timed.phase {
        Phase::Loads => {
            let threads = timed.outcomes.iter().flatten().count() as f64;
            rates.insert("loads_per_s", accesses as f64 / seconds);
            rates.insert("us_per_load", seconds * threads * 1e6 / accesses.max(1) as f64);
            rates.insert("refaults_per_s", (moved.in_pages + moved.pool_in_pages) as f64 / seconds);
        }
        Phase::Write | Phase::ReadBack => {
            rates.insert("mb_per_s", accesses as f64 * PAGE_BYTES as f64 / seconds / 1e6);
        }
    }
    rates
}

/// The budget, 3 % and 16 MiB.
fn allowed_bytes(side: &Side) -> u64 {
    side.budget_bytes + side.budget_bytes * 3 / 100 + (16 << 20)
}

#[cfg(test)]
mod tests {
    use super::monitor::Traffic;
    use super::*;

    #[test]
    fn a_write_counts_as_usemem_counts_it_and_a_read_by_its_words() {
        let plan = plan::small(Pattern::WriteSequential);
        let outcome = Outcome { words: 16 * 512, ..Outcome::default() };
        assert_eq!(usemem_bytes(&plan, Phase::Write, &outcome), (64 << 10) / 8 + (64 << 10));
        assert_eq!(usemem_bytes(&plan, Phase::ReadBack, &outcome), 64 << 10);
    }

    #[test]
    fn loads_are_counted_by_all_threads_and_refaults_from_the_pool_too() {
        let outcome = Outcome { accesses: 1000, ..Outcome::default() };
        let done = PhaseDone {
            phase: Phase::Loads,
            timed: true,
            outcomes: vec![vec![outcome.clone(), outcome]],
            seen: Seen::of(Traffic::default(), Traffic { in_pages: 30, pool_in_pages: 20, out_pages: 500 }),
        };
        let rates = rates(&done, 0.5);
        assert_eq!((rates["loads_per_s"], rates["us_per_load"]), (4000.0, 500.0));
        assert_eq!((rates["refaults_per_s"], rates["swap_in_kb_per_s"]), (100.0, 240.0));
        assert!(!rates.contains_key("mb_per_s"));
    }
}
