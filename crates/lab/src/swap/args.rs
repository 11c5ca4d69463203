//! The options of the swap commands, and the checks of their combinations.

use std::path::PathBuf;

use clap::value_parser;
use octavo_command::failure::Failure;

use super::data::{Data, PAGE_BYTES};
use super::device::DeviceChoice;
use super::job::{Choices, Rival, SwapJob};
use super::plan::{Length, TaskPattern, TaskPlan};
use crate::choices::{CompressionChoice, EngineChoice, JsonTarget, ModeChoice, PolicyChoice, Size, name_of};

const DEFAULT_SECONDS: f64 = 5.0;
/// Swap beyond the data: a margin for pages that are written again before their slots are free.
const SWAP_MARGIN_BYTES: u64 = 64 << 20;

/// The options of all swap commands.
#[derive(Debug, clap::Args)]
pub struct SwapArgs {
    /// Tasks, each with a space of its own (a process of its own on the kernel's side) [default: 8; 1 for
    /// swap-r-rand]
    #[arg(short = 'n', long = "nproc", value_name = "N", value_parser = value_parser!(u32).range(1..=4096))]
    tasks: Option<u32>,
    /// Octavo's memory budget, everything included, and the kernel's control group limit
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    memory: Size,
    /// Data of all tasks together [default: three times the memory]
    #[arg(long, value_name = "SIZE")]
    total: Option<Size>,
    /// Where pages go: ram (memory that completes at once), a file to be made, a directory for a temporary
    /// one, or a block device, which is refused if it holds something [default: $TMPDIR or /var/tmp]
    #[arg(long, value_name = "ram|FILE|BLOCKDEV")]
    device: Option<String>,
    /// Overwrite what the block device of --device holds
    #[arg(long)]
    force: bool,
    /// The contents of pages
    #[arg(long, value_enum, default_value_t = Data::Random)]
    data: Data,
    /// How Octavo reads and writes a file or block device
    #[arg(long, value_enum, default_value_t)]
    engine: EngineChoice,
    /// How Octavo packs pages in memory before they go out, if it does. zram (--against zram, and the
    /// kernel's side of --device ram) packs by the same algorithm, or by LZ4 if this is off
    #[arg(long, value_enum, default_value_t)]
    compression: CompressionChoice,
    /// Encrypt what Octavo writes, by a key that only its process has
    #[arg(long)]
    encrypt: bool,
    /// Which pages go when Octavo's memory is short
    #[arg(long, value_enum, default_value_t)]
    policy: PolicyChoice,
    /// The most that Octavo reads ahead of a fault [default: what is best for the device]
    #[arg(long, value_name = "SIZE")]
    readahead: Option<Size>,
    /// Use 2 MiB blocks on Octavo's side, if there are any. The kernel's side always runs both with and
    /// without huge pages
    #[arg(long)]
    huge: bool,
    /// Store and load Octavo's memory word by word, instead of a page at a time
    #[arg(long)]
    words: bool,
    /// Check every word that is read. After writes, this takes a further pass that is not timed. Wrong data
    /// gives exit code 1
    #[arg(long)]
    verify: bool,
    /// The form of each mechanism: before its patch, after it, or the best known; all compares the three, in
    /// a table as that of Linux commit 371a096edf43
    #[arg(long, value_enum, default_value_t = ModeChoice::Best)]
    mode: ModeChoice,
    /// Compare with the kernel's swap under a control group of the same limit, with such swap to zram, or
    /// with the bare device. May be given several times. The kernel's sides need root, and restore the
    /// machine afterwards. They run with 4 KiB pages and with transparent huge pages, and the better of the
    /// two counts
    #[arg(long, value_enum)]
    against: Vec<Rival>,
    /// Runs of each side; the sides take turns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..))]
    rounds: u32,
    /// Sample the time each function takes, in further runs that are not timed (--mode all does so anyway)
    #[arg(long)]
    profile: bool,
    /// Record each access of Octavo's side in FILE, in one further run that is not timed; `octavo-lab replay`
    /// reads it
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Write the results as one JSON object to FILE, or to standard output (-); text then goes to standard
    /// error
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    json: Option<JsonTarget>,
}

/// Random loads have a few more.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    common: SwapArgs,
    /// Threads of each task that load
    #[arg(short = 't', long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Ask for pages this many loads ahead
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = value_parser!(u32).range(0..=65536))]
    prefetch: u32,
    /// Loads of each thread, instead of a time
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds", value_parser = value_parser!(u64).range(1..))]
    loads: Option<u64>,
    /// How long to load [default: 5]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
}

/// The reason why there is no job: a command line that makes no sense, or a machine that cannot do the job.
#[derive(Debug)]
pub enum JobRefusal {
    Nonsense(String),
    Failure(Failure),
}

impl SwapArgs {
    pub fn into_job(self, pattern: TaskPattern) -> Result<SwapJob, JobRefusal> {
        self.job(pattern, 8, 1, 0, Length::Loads(0))
    }

    fn job(
        self,
        pattern: TaskPattern,
        default_tasks: u32,
        threads: u32,
        prefetch: u32,
        length: Length,
    ) -> Result<SwapJob, JobRefusal> {
        let tasks = self.tasks.unwrap_or(default_tasks);
        let memory = &self.memory;
        let total = self.total.as_ref().map_or(memory.bytes.saturating_mul(3), |total| total.bytes);
        let total_given =
            self.total.as_ref().map_or_else(|| format!("three times {memory}"), Size::to_string);
        let nonsense = |sentence: String| Err(JobRefusal::Nonsense(sentence));
        let task_bytes = total / u64::from(tasks) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if task_bytes == 0 {
            return nonsense(format!(
                "a total of {total_given} leaves no page of {PAGE_BYTES} bytes for each of {tasks} tasks; give more"
            ));
        }
        if total >= 1 << 43 {
            return nonsense(format!(
                "a total of {total_given} is more than swap can hold; give less than 8T"
            ));
        }
        let modes = self.mode.modes();
        let device = DeviceChoice::of(self.device.as_deref(), self.force).map_err(JobRefusal::Failure)?;
        if device == DeviceChoice::Ram && self.against.contains(&Rival::Disk) {
            return nonsense("--against disk measures a device, and --device ram is none; drop one".into());
        }
        if device == DeviceChoice::Ram
            && self.against.contains(&Rival::Kernel)
            && self.against.contains(&Rival::Zram)
        {
            return nonsense("--against kernel swaps to zram already where --device is ram; drop one".into());
        }
        Ok(SwapJob {
            workload: self.workload(pattern, tasks),
            plan: TaskPlan {
                pattern,
                task_bytes,
                data: self.data,
                seed: 0,
                words: self.words,
                verify: self.verify,
                huge: self.huge,
                threads,
                prefetch,
                length,
            },
            tasks,
            memory: self.memory,
            profile: self.profile || modes.len() > 1,
            modes,
            rivals: [Rival::Disk, Rival::Kernel, Rival::Zram]
                .into_iter()
                .filter(|rival| self.against.contains(rival))
                .collect(),
            choices: Choices {
                device,
                // If data comes back, swap has more than twice the size of the data. When swap is more than
                // half full, the kernel frees the slots of pages that came in, and would write those pages
                // again.
                swap_bytes: total
                    .saturating_mul(
                        if matches!(pattern, TaskPattern::ReadSequential | TaskPattern::ReadRandom) {
                            2
                        } else {
                            1
                        },
                    )
                    .saturating_add(total / 8)
                    .saturating_add(SWAP_MARGIN_BYTES),
                policy: self.policy,
                compression: self.compression,
                encrypt: self.encrypt,
                engine: self.engine,
                readahead_bytes: self.readahead.map(|size| size.bytes),
            },
            rounds: self.rounds,
            record: self.record,
            json: self.json,
        })
    }

    /// Returns the workload as a command line, without the rivals in the comparison.
    fn workload(&self, pattern: TaskPattern, tasks: u32) -> String {
        let mut line = format!("{} -n {tasks} --memory {}", pattern.name(), self.memory);
        if let Some(total) = &self.total {
            line.push_str(&format!(" --total {total}"));
        }
        line.push_str(&format!(" --data {}", name_of(self.data)));
        if let Some(device) = &self.device {
            line.push_str(&format!(" --device {device}"));
        }
        if self.force {
            line.push_str(" --force");
        }
        if self.compression != CompressionChoice::default() {
            line.push_str(&format!(" --compression {}", name_of(self.compression)));
        }
        if self.engine != EngineChoice::default() {
            line.push_str(&format!(" --engine {}", name_of(self.engine)));
        }
        if self.policy != PolicyChoice::default() {
            line.push_str(&format!(" --policy {}", name_of(self.policy)));
        }
        if let Some(size) = &self.readahead {
            line.push_str(&format!(" --readahead {size}"));
        }
        for (given, flag) in [
            (self.encrypt, " --encrypt"),
            (self.huge, " --huge"),
            (self.words, " --words"),
            (self.verify, " --verify"),
        ] {
            if given {
                line.push_str(flag);
            }
        }
        line
    }
}

impl LoadArgs {
    pub fn into_job(self) -> Result<SwapJob, JobRefusal> {
        let seconds = self.seconds.unwrap_or(DEFAULT_SECONDS);
        if !(0.001..=86_400.0).contains(&seconds) {
            return Err(JobRefusal::Nonsense(format!(
                "{seconds} seconds are no time to load; give 0.001 to 86400"
            )));
        }
        let length = self.loads.map_or(Length::Nanoseconds((seconds * 1e9) as u64), Length::Loads);
        let (threads, prefetch) = (self.threads, self.prefetch);
        let mut job = self.common.job(TaskPattern::ReadRandom, 1, threads, prefetch, length)?;
        job.workload.push_str(&format!(" --threads {threads}"));
        if prefetch > 0 {
            job.workload.push_str(&format!(" --prefetch {prefetch}"));
        }
        match length {
            Length::Loads(loads) => job.workload.push_str(&format!(" --loads {loads}")),
            Length::Nanoseconds(_) => job.workload.push_str(&format!(" --seconds {seconds}")),
        }
        Ok(job)
    }
}
