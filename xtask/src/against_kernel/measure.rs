//! The runs: the sides of a job take turns, round by round.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use octavo_measure::rounds::turns;

use super::figures::{JobRuns, RunFigures, RunSide};
use super::jobs::{self, JobKind, JobProgram, KernelJob};
use super::options::Options;
use crate::machine::kernel::{self, Purpose};
use crate::machine::run::{self, CommandRun, Said};
use crate::machine::warden::Warden;
use crate::machine::{self, packages};
use crate::programs::place::InputFolder;
use crate::programs::rows;

/// The row of the program table that is the NumPy job, and its memory at a scale of 1.
const NUMPY_ROW: &str = "numpy-sort";
const NUMPY_BYTES: f64 = 417.0 * 1048576.0;
/// The pause between two runs that outgrow their memory.
const SETTLE: Duration = Duration::from_millis(1500);
/// How often a program that fits reads all of its memory.
const PASSES_WHERE_IT_FITS: u64 = 60;
/// Makes glibc ask for huge pages for all memory that it gets from the kernel.
const ASK_FOR_HUGE_PAGES: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// A thousand processes: 20 compilations, each of which starts a compiler and an assembler, and short
/// programs.
const TREE: &str = r#"
i=0
while [ $i -lt 20 ]; do
    cc -O1 -c "$1" -o object.o || exit 1
    j=0
    while [ $j -lt 24 ]; do
        /bin/true
        /bin/cat "$1" > /dev/null
        j=$((j + 1))
    done
    i=$((i + 1))
done
"#;
const TREE_SOURCE: &str = "#include <stdio.h>\n\
    int main(int argc, char **argv) { for (int i = 0; i < argc; i++) puts(argv[i]); return 0; }\n";
const COMPILER: packages::Need = packages::Need { test: "command -v cc", packages: &["gcc", "libc6-dev"] };

/// The state that all jobs share. The swap file is switched on as long as the value lives.
#[derive(Debug)]
pub struct JobBench<'a> {
    options: &'a Options,
    cache: PathBuf,
    outgrow: PathBuf,
    has_huge_pages: bool,
    is_warm: bool,
    /// The swap file. The first job that needs it makes it.
    swap: Option<Warden>,
}

/// The outcome of one run. A run that the kernel killed has no figures.
struct RunOutcome {
    figures: RunFigures,
    peak_bytes: Option<u64>,
}

impl<'a> JobBench<'a> {
    pub fn new(options: &'a Options) -> Result<Self, String> {
        if !machine::is_octavo(&options.octavo) {
            return Err("there is nothing to compare".into());
        }
        let outgrow = machine::build_bench("outgrow")?;
        let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
        let has_huge_pages = mode.contains("[madvise]") || mode.contains("[always]");
        if !has_huge_pages {
            eprintln!("This machine gives no transparent huge pages. The column stays empty.");
        }
        let cache = machine::cache()?;
        Ok(Self { options, cache, outgrow, has_huge_pages, is_warm: false, swap: None })
    }

    /// Makes all runs of a job.
    pub fn measure(&mut self, job: &KernelJob) -> Result<JobRuns, String> {
        let (program, times) = match job.kind {
            JobKind::Fits(program, times) => (program, times),
            JobKind::Outgrown(program) | JobKind::AtHand(program) => (program, 1),
        };
        let sides: &[RunSide] = match job.kind {
            JobKind::Outgrown(_) if self.has_huge_pages => {
                &[RunSide::Plain, RunSide::Octavo, RunSide::KernelSmall, RunSide::KernelHuge]
            }
            JobKind::Outgrown(_) => &[RunSide::Plain, RunSide::Octavo, RunSide::KernelSmall],
            JobKind::AtHand(_) | JobKind::Fits(..) => &[RunSide::Plain, RunSide::Octavo],
        };
        if matches!(job.kind, JobKind::Outgrown(_)) && self.swap.is_none() {
            let mut warden = Warden::start()?;
            kernel::swap_on(&mut warden, &self.cache, 2 * self.options.total_bytes + (512 << 20))?;
            self.swap = Some(warden);
        }
        let (bytes, budget_bytes) = jobs::sizes(job.kind, self.options);
        let words = self.words(job.kind, program, bytes)?;
        let budget_bytes = match program {
            JobProgram::Numpy => self.half_of_peak(&words)?,
            _ => budget_bytes,
        };
        self.warm_up(&words, sides, budget_bytes)?;
        let mut runs = JobRuns { budget_bytes, ..JobRuns::default() };
        for (_, side) in turns(self.options.rounds * times, sides.len()) {
            let side = sides[side];
            if matches!(job.kind, JobKind::Outgrown(_)) {
                // Pause, since the file system may still be busy with the swap file of the last run.
                std::thread::sleep(SETTLE);
            }
            let outcome = self.run(self.on(side, &words, budget_bytes, job.kind))?;
            runs.peak_bytes = runs.peak_bytes.max(outcome.peak_bytes);
            runs.add(side, outcome.figures);
        }
        Ok(runs)
    }

    /// Touches much of the machine's memory, since a virtual machine may get memory from its host only then.
    /// Runs the first job once on all of its sides.
    fn warm_up(&mut self, words: &[String], sides: &[RunSide], budget_bytes: u64) -> Result<(), String> {
        if std::mem::replace(&mut self.is_warm, true) {
            return Ok(());
        }
        let bytes = available_bytes() / 2;
        eprintln!("warming up: {} MiB of memory, and one round that does not count", bytes >> 20);
        let touch = [self.outgrow.display().to_string(), "touch".into(), "--bytes".into(), bytes.to_string()];
        self.run(self.run_of(touch.to_vec(), None))?;
        for side in sides {
            self.run(self.on(*side, words, budget_bytes, JobKind::AtHand(JobProgram::True)))?;
        }
        Ok(())
    }

    /// Returns the command line of a job's program.
    fn words(&self, kind: JobKind, program: JobProgram, bytes: u64) -> Result<Vec<String>, String> {
        let options = self.options;
        let outgrow = |arguments: &[(&str, String)]| {
            let mut words = vec![self.outgrow.display().to_string()];
            words.push(if matches!(program, JobProgram::Order(_)) { "order" } else { "random" }.into());
            let all = [("--bytes", bytes.to_string())].into_iter().chain(arguments.iter().cloned());
            words.extend(all.flat_map(|(name, value)| [name.to_owned(), value]));
            words
        };
        Ok(match program {
            JobProgram::Order(contents) => {
                let passes = if matches!(kind, JobKind::Fits(..)) { PASSES_WHERE_IT_FITS } else { 2 };
                outgrow(&[("--contents", contents.into()), ("--passes", passes.to_string())])
            }
            JobProgram::Random(threads, contents) => {
                let reads = options.reads * if threads > 1 { 3 } else { 1 };
                outgrow(&[
                    ("--contents", contents.into()),
                    ("--threads", threads.to_string()),
                    ("--reads", reads.to_string()),
                ])
            }
            JobProgram::Numpy => {
                let row = rows::ALL.iter().find(|row| row.name == NUMPY_ROW).ok_or("there is no such row")?;
                packages::install(row.needs, options.install)?;
                let place =
                    InputFolder { folder: self.cache.clone(), scale: bytes as f64 / NUMPY_BYTES, seed: 1 };
                (row.command)(&place)
            }
            JobProgram::True => vec!["/bin/true".into()],
            JobProgram::Tree => {
                packages::install(&[COMPILER], options.install)?;
                let source = self.cache.join("short.c");
                fs::write(&source, TREE_SOURCE).map_err(|error| format!("cannot write short.c: {error}"))?;
                ["sh", "-c", TREE, "sh", &source.display().to_string()].map(str::to_owned).to_vec()
            }
        })
    }

    /// Returns half of the memory that a program needs. It runs twice, since the first run is charged for the
    /// files that it reads.
    fn half_of_peak(&self, words: &[String]) -> Result<u64, String> {
        let run = || {
            let purpose = Some(Purpose::Measure);
            self.run(self.run_of(words.to_vec(), purpose))
        };
        run()?;
        let peak = run()?.peak_bytes.ok_or("the kernel does not say how much memory the program needs")?;
        Ok(peak / 2)
    }

    /// Makes the run of a program on one side. If the program fits, no wrapper runs in the timed part.
    fn on(&self, side: RunSide, words: &[String], budget_bytes: u64, kind: JobKind) -> CommandRun<'static> {
        let limit = Some(Purpose::Limit { bytes: budget_bytes, may_swap: true });
        let (huge, value) = ASK_FOR_HUGE_PAGES;
        match side {
            RunSide::Plain => self.run_of(words.to_vec(), None),
            RunSide::Octavo => {
                let mut all = vec![self.options.octavo.display().to_string(), "run".into()];
                all.extend(["--memory".into(), budget_bytes.to_string()]);
                let folder = || self.cache.display().to_string();
                all.extend(["--swap".into(), self.options.swap.clone().unwrap_or_else(folder)]);
                if let Some(compression) = &self.options.compression {
                    all.extend(["--compression".into(), compression.clone()]);
                }
                all.push("--".into());
                all.extend(words.iter().cloned());
                let group = (!matches!(kind, JobKind::Fits(..))).then_some(Purpose::Measure);
                self.run_of(all, group)
            }
            RunSide::KernelSmall => {
                let mut all = vec![self.outgrow.display().to_string(), "without-huge-pages".into()];
                all.extend(words.iter().cloned());
                self.run_of(all, limit)
            }
            RunSide::KernelHuge => {
                CommandRun { environment: vec![(huge, value.into())], ..self.run_of(words.to_vec(), limit) }
            }
        }
    }

    /// Makes one run.
    fn run(&self, run: CommandRun<'_>) -> Result<RunOutcome, String> {
        let ended = run::in_a_group(&self.cache, run)?;
        let seconds = ended.said.as_ref().map(|_| ("seconds".to_owned(), ended.seconds));
        let printed = ended.said.iter().flat_map(Said::numbers).map(|(name, value)| (name.to_owned(), value));
        Ok(RunOutcome { figures: printed.chain(seconds).collect(), peak_bytes: ended.peak_bytes })
    }

    /// Makes a run with the time limit of the options.
    fn run_of(&self, words: Vec<String>, group: Option<Purpose>) -> CommandRun<'static> {
        CommandRun::new(words, group, Duration::from_secs(self.options.limit_seconds))
    }
}

fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
