//! `octavo-lab swap-w-seq` and the other swap commands: more data than memory, on Octavo, on the kernel's
//! swap, and on the bare device.
//!
//! | file | what |
//! |---|---|
//! | `args`, `job`, `device` | the options, the job that they ask for, and the place of pages |
//! | `plan`, `data`, `work` | the phases of each task, the words of pages, the work of one thread |
//! | `octavo_side`, `kernel_side`, `disk_side` | the sides of a comparison |
//! | `keeper` | sets up the machine for the kernel's side, and always restores it |
//! | `monitor` | the rates at which pages go out and come in |
//! | `side`, `figures` | the outcome of a run of one side, and its figures |
//! | `tables`, `lock_table` | the printed text |
//!
//! Sides take turns. Each round starts with the next side, so a slow phase of the machine hits all of them
//! alike. Time is from the first task's start to the last task's end in the timed phase.

pub mod args;
mod data;
mod device;
mod disk_side;
mod figures;
pub mod job;
pub mod keeper;
pub mod kernel_side;
mod lock_table;
mod monitor;
mod octavo_side;
pub mod plan;
mod side;
mod tables;
mod work;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_measure::rounds::turns;

use self::device::DeviceChoice;
use self::disk_side::{DiskSide, written_file};
use self::job::{Choices, Contender, Rival, SwapJob};
use self::keeper::{AreaChoice, Setup};
use self::kernel_side::KernelSide;
use self::plan::{TaskPattern, TaskPlan};
use self::side::SideRun;
use crate::aside::Aside;
use crate::choices::{CompressionChoice, Mode};
use crate::huge_pages::HugePageSetting;
use crate::profile::Samples;
use crate::progress::{Pace, TurnProgress};
use crate::record::Recorder;
use crate::report::{ModeRun, WorkloadReport};
use crate::table::counted;
use crate::worker::Mismatch;

/// The most sampled runs of a mode.
const SAMPLED_RUNS: u32 = 10;
/// The least and the most bytes for measuring the device.
const DISK_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=8 << 30;

/// The rivals, after they were set up.
#[derive(Debug, Default)]
struct Rivals {
    disk: Option<DiskSide>,
    /// The file that Octavo's side swaps to, with all of its blocks, like the rivals' files.
    area: Option<File>,
    zram: Option<KernelSide>,
    kernel: Option<KernelSide>,
}

/// Does the job. Fails if the job failed or data was wrong.
pub fn run(job: &SwapJob) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    let recorder = job.record.as_deref().map(Recorder::open).transpose()?;
    let contenders = contenders(job, &text)?;
    let pace = Pace::new(job.rounds * contenders.len() as u32, job.plan.least_time());
    let mut rivals = set_up(job, &pace, &text)?;
    let mut job = job.clone();
    if let (Some(file), DeviceChoice::TemporaryIn(folder)) = (&rivals.area, &job.choices.device) {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
        job.choices.device = DeviceChoice::Written { path, folder: folder.clone() };
    }
    let job = &job;
    let result = TurnContext { job, contenders: &contenders, rivals: &mut rivals, pace, text: &text }.all();
    // The keeper always restores the machine, and reports what it could not restore.
    let finished =
        [rivals.zram.take(), rivals.kernel.take()].map(|side| side.map_or(Ok(()), KernelSide::finish));
    let (report, mut wrong) = result?;
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    tables::print(&text, job, &contenders, &report)?;
    finished.into_iter().collect::<Result<Vec<()>, _>>()?;
    if let Some(recorder) = recorder {
        text.line(record(job, recorder, &mut wrong)?)?;
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Said(wrong.join("; "))),
    }
}

/// Returns the sides that take turns. Prints which pages the kernel's side has.
fn contenders(job: &SwapJob, text: &Text) -> Result<Vec<Contender>, Failure> {
    let huge_pages = HugePageSetting::here();
    if job.rivals.iter().any(|rival| matches!(rival, Rival::Kernel | Rival::Zram)) {
        text.line(huge_pages.note())?;
    }
    Ok(job.contenders(&huge_pages))
}

fn set_up(job: &SwapJob, pace: &Arc<Pace>, text: &Text) -> Result<Rivals, Failure> {
    let (choices, plan) = (&job.choices, &job.plan);
    let wants = |rival| job.rivals.contains(&rival);
    let disk_bytes = match plan.pattern {
        TaskPattern::ReadRandom => job.data_bytes(),
        _ => job.data_bytes().saturating_sub(job.memory.bytes),
    };
    let disk_bytes = disk_bytes.clamp(*DISK_BYTES.start(), *DISK_BYTES.end());
    let files = (1 + u64::from(wants(Rival::Kernel))) * choices.swap_bytes
        + u64::from(wants(Rival::Disk)) * disk_bytes;
    choices.device.check_room(files)?;
    let mut rivals = Rivals::default();
    if let (DeviceChoice::TemporaryIn(folder), false) = (&choices.device, job.rivals.is_empty()) {
        let _progress = TurnProgress::aside(pace, "writing the file to swap to".into(), None);
        let cannot = |error| Failure::system(format!("cannot make a file in {}", folder.display()), error);
        rivals.area = Some(written_file(folder, choices.swap_bytes).map_err(cannot)?);
    }
    if wants(Rival::Kernel) {
        let area = match &choices.device {
            DeviceChoice::Block(path) => AreaChoice::Device(path.clone()),
            DeviceChoice::Ram => zram(choices),
            other => AreaChoice::FileIn(other.folder().unwrap_or("/var/tmp".as_ref()).to_path_buf()),
        };
        rivals.kernel = Some(set_up_kernel(job, pace, text, "kernel", area)?);
    }
    if wants(Rival::Zram) {
        rivals.zram = Some(set_up_kernel(job, pace, text, "zram", zram(choices))?);
    }
    if wants(Rival::Disk) {
        let _progress = TurnProgress::aside(pace, "writing the file to measure the disk with".into(), None);
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
    job: &SwapJob,
    pace: &Arc<Pace>,
    text: &Text,
    name: &str,
    area: AreaChoice,
) -> Result<KernelSide, Failure> {
    let setup = Setup {
        limit_bytes: job.memory.bytes,
        area,
        area_bytes: job.choices.swap_bytes,
        no_neighbours: job.plan.pattern.is_random(),
    };
    let _progress = TurnProgress::aside(pace, "setting the kernel's swap up".into(), None);
    let (side, found) = KernelSide::set_up(&setup)?;
    for sentence in found {
        text.line(sentence)?;
    }
    text.line(format!(
        "{name}: {} in a memory control group of {}, swapping to {}{}",
        counted(job.tasks.into(), "process", "processes"),
        job.memory,
        side.area(),
        if setup.no_neighbours { ", vm.page-cluster 0" } else { "" }
    ))?;
    Ok(side)
}

/// The state that all turns need.
struct TurnContext<'a> {
    job: &'a SwapJob,
    contenders: &'a [Contender],
    rivals: &'a mut Rivals,
    pace: Arc<Pace>,
    text: &'a Text,
}

impl TurnContext<'_> {
    /// Makes all runs. Returns the report, and a sentence for each run whose data was wrong.
    fn all(mut self) -> Result<(WorkloadReport, Vec<String>), Failure> {
        let (job, contenders) = (self.job, self.contenders);
        let (mut runs, mut wrong) = (Vec::new(), Vec::new());
        for (round, side) in turns(job.rounds as usize, contenders.len()) {
            let (round, contender) = (round as u32, contenders[side]);
            // Each round has new data, so that no side sees the same data twice.
            let plan = TaskPlan { seed: u64::from(round) + 1, ..job.plan.clone() };
            let title = format!("{}, round {} of {}", contender.name(), round + 1, job.rounds);
            let run = self.turn(contender, &plan, title, &mut wrong)?;
            self.text.line(tables::one_line(job, &run, round))?;
            runs.push(run);
        }
        if job.profile {
            add_shares(job, &self.pace, &mut runs)?;
        }
        let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
        Ok((WorkloadReport::new(job.workload.clone(), runs, &names, &job.metrics()), wrong))
    }

    fn turn(
        &mut self,
        contender: Contender,
        plan: &TaskPlan,
        title: String,
        wrong: &mut Vec<String>,
    ) -> Result<ModeRun, Failure> {
        let (job, rivals) = (self.job, &mut *self.rivals);
        let side = match contender {
            Contender::Disk => {
                let _progress = TurnProgress::turn(&self.pace, title, None);
                let disk = rivals.disk.as_ref().expect("it was set up");
                return Ok(figures::of_disk(job, disk.run(job.tasks, plan)?));
            }
            Contender::Kernel(pages) | Contender::Zram(pages) => {
                let _progress = TurnProgress::turn(&self.pace, title, None);
                let of_zram = matches!(contender, Contender::Zram(_));
                let kernel = if of_zram { &mut rivals.zram } else { &mut rivals.kernel };
                kernel.as_mut().expect("it was set up").run(job.tasks, plan, pages)?
            }
            Contender::Octavo(mode) => {
                let progress = TurnProgress::turn(&self.pace, title, job.accesses());
                octavo_side::run(mode, job, plan, Aside::of(&progress))?
            }
        };
        wrong.extend(complaint(contender, &side));
        Ok(figures::of_side(job, contender, &side))
    }
}

/// Runs each mode again under the sampler, untimed, and adds the shares to all its runs.
fn add_shares(job: &SwapJob, pace: &Arc<Pace>, runs: &mut [ModeRun]) -> Result<(), Failure> {
    for &mode in &job.modes {
        let samples = sampled(job, pace, mode)?;
        let shares = samples.shares()?;
        for run in runs.iter_mut().filter(|run| run.mode == mode.name()) {
            run.shares = shares.clone();
            for site in &lock_table::LOCK_SITES {
                let share = samples.site_share(site.title);
                run.measures.extend([(site.share.into(), share.all), (site.waiting.into(), share.waiting)]);
            }
        }
    }
    Ok(())
}

fn sampled(job: &SwapJob, pace: &Arc<Pace>, mode: Mode) -> Result<Samples, Failure> {
    let mut samples = Samples::watching(lock_table::SAMPLED_SITES);
    for pass in 1..=SAMPLED_RUNS {
        let title = format!("{}, sampled run {pass}", mode.name());
        let progress = TurnProgress::aside(pace, title, job.accesses());
        octavo_side::run(
            mode,
            job,
            &job.plan,
            Aside { samples: Some(&mut samples), ..Aside::of(&progress) },
        )?;
        if samples.is_enough() {
            break;
        }
    }
    Ok(samples)
}

/// Runs the first mode once more, untimed, and records it. Returns a summary of the file.
fn record(job: &SwapJob, recorder: Recorder, wrong: &mut Vec<String>) -> Result<String, Failure> {
    let mode = job.modes[0];
    let pace = Pace::new(1, job.plan.least_time());
    let progress = TurnProgress::aside(&pace, format!("{}, recorded run", mode.name()), job.accesses());
    let aside = Aside { recorder: Some(&recorder), ..Aside::of(&progress) };
    let side = octavo_side::run(mode, job, &job.plan, aside)?;
    wrong.extend(complaint(Contender::Octavo(mode), &side));
    recorder.finish()
}

fn complaint(contender: Contender, side: &SideRun) -> Option<String> {
    let (words, Mismatch { offset, expected, found }) = side.mismatch()?;
    Some(format!(
        "{words} words were not what was written ({}; first at offset {offset:#x} of a task's memory: expected \
         {expected:#018x}, found {found:#018x})",
        contender.name()
    ))
}
