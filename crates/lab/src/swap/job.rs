//! The job of a swap command, and its sides, which take turns.

use std::path::PathBuf;

use clap::ValueEnum;

use super::device::DeviceChoice;
use super::plan::{Length, Phase, TaskPattern, TaskPlan};
use crate::choices::{CompressionChoice, EngineChoice, JsonTarget, Mode, PolicyChoice, Size};
use crate::huge_pages::{HugePageSetting, KernelPages};
use crate::report::ModeMetric;
use crate::table::{self, counted};

/// A rival of Octavo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rival {
    /// Plain processes in a memory control group, with kernel swap on the same file system; with and without
    /// huge pages
    Kernel,
    /// The same, with kernel swap in compressed memory (zram), whatever Octavo's device
    Zram,
    /// The bare device: 1 MiB blocks in order, or 4 KiB reads by as many threads
    Disk,
}

/// The job.
#[derive(Clone, Debug)]
pub struct SwapJob {
    pub workload: String,
    pub plan: TaskPlan,
    pub tasks: u32,
    pub memory: Size,
    pub modes: Vec<Mode>,
    /// The rivals, in the order of printing: the slowest first.
    pub rivals: Vec<Rival>,
    pub choices: Choices,
    pub rounds: u32,
    pub profile: bool,
    /// The file that records an extra run.
    pub record: Option<PathBuf>,
    pub json: Option<JsonTarget>,
}

/// The settings of Octavo in every mode.
#[derive(Clone, Debug)]
pub struct Choices {
    pub device: DeviceChoice,
    /// The most bytes that may be swapped.
    pub swap_bytes: u64,
    pub policy: PolicyChoice,
    pub engine: EngineChoice,
    pub compression: CompressionChoice,
    pub encrypt: bool,
    /// The largest readahead window. `None` for the manager's default.
    pub readahead_bytes: Option<u64>,
}

/// A side that takes a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Disk,
    Kernel(KernelPages),
    Zram(KernelPages),
    Octavo(Mode),
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Kernel(KernelPages::Base) => "kernel",
            Self::Kernel(KernelPages::Huge) => "kernel-huge",
            Self::Zram(KernelPages::Base) => "zram",
            Self::Zram(KernelPages::Huge) => "zram-huge",
            Self::Octavo(mode) => mode.name(),
        }
    }

    /// Returns the rival that a side belongs to. A rival may have two sides, of which the better is the one
    /// to beat.
    pub fn rival(self) -> Option<Rival> {
        match self {
            Self::Disk => Some(Rival::Disk),
            Self::Kernel(_) => Some(Rival::Kernel),
            Self::Zram(_) => Some(Rival::Zram),
            Self::Octavo(_) => None,
        }
    }
}

impl SwapJob {
    /// Returns the bytes of all tasks.
    pub fn data_bytes(&self) -> u64 {
        self.plan.task_bytes * u64::from(self.tasks)
    }

    /// Returns the accesses of all phases, or `None` if time bounds them.
    pub fn accesses(&self) -> Option<u64> {
        self.plan.phases().iter().try_fold(0u64, |sum, &(phase, _)| {
            let threads = u64::from(self.tasks) * u64::from(self.plan.threads_in(phase));
            Some(sum.saturating_add(self.plan.accesses_in(phase)?.saturating_mul(threads)))
        })
    }

    /// Returns all sides that take turns.
    pub fn contenders(&self, huge_pages: &HugePageSetting) -> Vec<Contender> {
        let kernel_runs = huge_pages.kernel_runs().iter();
        let rivals = self.rivals.iter().flat_map(|rival| match rival {
            Rival::Disk => vec![Contender::Disk],
            Rival::Kernel => kernel_runs.clone().map(|&pages| Contender::Kernel(pages)).collect(),
            Rival::Zram => kernel_runs.clone().map(|&pages| Contender::Zram(pages)).collect(),
        });
        rivals.chain(self.modes.iter().map(|&mode| Contender::Octavo(mode))).collect()
    }

    /// Returns the metric that is compared first: seconds of the whole job or, if all sides load for the same
    /// time, loads a second.
    pub fn first_metric(&self) -> ModeMetric {
        match (self.plan.pattern, self.plan.length) {
            (TaskPattern::ReadRandom, Length::Nanoseconds(_)) => ModeMetric::LoadsPerS,
            _ => ModeMetric::Seconds,
        }
    }

    /// Returns the metrics to compare.
    pub fn metrics(&self) -> Vec<ModeMetric> {
        let others: &[ModeMetric] = match self.plan.pattern {
            TaskPattern::WriteSequential | TaskPattern::WriteRandom => {
                &[ModeMetric::DeviceMbPerS, ModeMetric::UsememKbPerS]
            }
            TaskPattern::ReadSequential => &[ModeMetric::DeviceMbPerS],
            TaskPattern::ReadRandom => &[ModeMetric::LoadsPerS, ModeMetric::RefaultsPerS],
        };
        let first = self.first_metric();
        [first].into_iter().chain(others.iter().copied().filter(|&other| other != first)).collect()
    }

    /// Describes the timed part of the job.
    pub fn in_words(&self) -> String {
        let tasks = counted(self.tasks.into(), "task", "tasks");
        let s = if self.tasks == 1 { "s" } else { "" };
        let (data, memory) = (table::bytes(self.data_bytes()), &self.memory);
        match self.plan.timed_phase() {
            Phase::Write => format!("{tasks} write{s} {data} in {memory} of memory"),
            Phase::ReadBack => {
                format!("{tasks} read{s} back, in order, {data} written in {memory} of memory")
            }
            Phase::Loads => {
                let threads = counted(self.plan.threads.into(), "thread", "threads");
                let length = self.plan.length;
                format!(
                    "{tasks} of {threads} load{s} words of random pages, {length}, of {data} written in {memory} of memory"
                )
            }
        }
    }
}
