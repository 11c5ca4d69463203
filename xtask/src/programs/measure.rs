//! The runs of one row: plain, under Octavo, and under the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use octavo_measure::control_group::ControlGroup;

use super::options::Options;
use super::place::InputFolder;
use super::results::{Charged, ProgramRun, RowOutcome, RunEnd};
use super::rows::ProgramRow;
use crate::machine;
use crate::machine::kernel::{self, Purpose};
use crate::machine::packages;
use crate::machine::process::{self, last_lines, said};
use crate::machine::sampler::Sampler;
use crate::machine::warden::{Warden, quoted};

/// The seed of all inputs.
const SEED: u64 = 1;
/// Plain runs of a row.
const PLAIN_RUNS: usize = 2;
/// The least budget. A smaller one would measure the runner more than the program.
const LEAST_BUDGET: u64 = 16 << 20;
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a program that is asked to end may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Swap bytes beyond the peak, for a program's copies while it is slow.
const SWAP_ROOM: u64 = 512 << 20;

/// The state that all rows share.
#[derive(Debug)]
pub struct ProgramBench<'a> {
    options: &'a Options,
    cache: PathBuf,
    octavo: Option<PathBuf>,
}

/// Where a program runs.
enum ProgramSide<'a> {
    Plain,
    Octavo { program: &'a Path, budget_bytes: u64 },
    Kernel { limit_bytes: u64, swap_bytes: u64 },
}

impl<'a> ProgramBench<'a> {
    pub fn new(options: &'a Options) -> Result<Self, String> {
        let octavo = options.octavo.clone().filter(|program| machine::is_octavo(program));
        if octavo.is_none() {
            eprintln!("This table leaves Octavo out.");
        }
        Ok(Self { options, cache: machine::cache()?, octavo })
    }

    /// Prepares a row, and makes all of its runs.
    pub fn measure(&self, row: &ProgramRow) -> Result<RowOutcome, String> {
        packages::install(row.needs, self.options.install)?;
        let folder = self.cache.join(format!("{}-{}", row.name, self.options.scale));
        fs::create_dir_all(&folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let place = InputFolder { folder, scale: self.options.scale, seed: SEED };
        (row.prepare)(&place)?;
        let plain = self.run_plainly(row, &place)?;
        let budget_bytes = ((plain.peak_bytes as f64 * self.options.budget_share) as u64).max(LEAST_BUDGET);
        let octavo = match &self.octavo {
            Some(program) => Some(self.run(row, &place, ProgramSide::Octavo { program, budget_bytes })?),
            None => None,
        };
        let kernel = |swap_bytes| match self.options.against_kernel {
            true => {
                self.run(row, &place, ProgramSide::Kernel { limit_bytes: budget_bytes, swap_bytes }).map(Some)
            }
            false => Ok(None),
        };
        let kernel_without_swap = kernel(0)?;
        let kernel = kernel(2 * plain.peak_bytes + SWAP_ROOM)?;
        Ok(RowOutcome { name: row.name, plain, budget_bytes, octavo, kernel_without_swap, kernel })
    }

    /// Returns the plain run with the greatest peak among a few. Threads and garbage collectors run
    /// differently each time. A budget that is computed from a low peak would be too small.
    fn run_plainly(&self, row: &ProgramRow, place: &InputFolder) -> Result<ProgramRun, String> {
        let mut greatest: Option<ProgramRun> = None;
        for _ in 0..PLAIN_RUNS {
            let plain = self.run(row, place, ProgramSide::Plain)?;
            if plain.end != RunEnd::Well {
                return Err(format!("a plain run did not end well: {:?}", plain.end));
            }
            if greatest.as_ref().is_none_or(|run| run.peak_bytes < plain.peak_bytes) {
                greatest = Some(plain);
            }
        }
        greatest.ok_or_else(|| "there was no plain run".into())
    }

    /// Makes one run in a fresh folder. Even after an error, it leaves nothing.
    fn run(
        &self,
        row: &ProgramRow,
        place: &InputFolder,
        side: ProgramSide<'_>,
    ) -> Result<ProgramRun, String> {
        let scratch = self.cache.join(format!("run-{}-{}", row.name, std::process::id()));
        let mut warden = Warden::start()?;
        let short = short_folder();
        warden.at_the_end(&format!("rm -rf {} {}", quoted(&scratch), quoted(&short)))?;
        fs::create_dir_all(scratch.join("work"))
            .map_err(|error| format!("cannot make {}: {error}", scratch.display()))?;
        let report = scratch.join("report.json");
        let mut words = (row.command)(place);
        let group = match side {
            ProgramSide::Plain => None,
            ProgramSide::Octavo { program, budget_bytes } => {
                words = [self.octavo_words(program, budget_bytes, &report), words].concat();
                // The group only measures. If no group can be made, the run continues without one.
                let group = kernel::make_group(&mut warden, Purpose::Measure).ok();
                words = group.as_ref().map_or(words.clone(), |group| kernel::entering(group, &words));
                group
            }
            ProgramSide::Kernel { limit_bytes, swap_bytes } => {
                if swap_bytes > 0 {
                    kernel::swap_on(&mut warden, &self.cache, swap_bytes)?;
                }
                let purpose = Purpose::Limit { bytes: limit_bytes, may_swap: swap_bytes > 0 };
                let group = kernel::make_group(&mut warden, purpose)?;
                words = kernel::entering(&group, &words);
                Some(group)
            }
        };
        let environment = [("SHORT_FOLDER", short.display().to_string())];
        let mut child = process::start(&mut warden, &words, &scratch, &environment)?;
        let mut sampler = Sampler::new(child.id());
        let mut charged =
            matches!(side, ProgramSide::Octavo { .. }).then(Charged::default).filter(|_| group.is_some());
        let begun = Instant::now();
        let end = self.wait(&mut child, group.as_ref(), || match (&mut charged, &group) {
            (Some(charged), Some(group)) => look(group, charged),
            (None, Some(group)) => kernel::sum_figures(group),
            _ if matches!(side, ProgramSide::Plain) => sampler.look(),
            _ => {}
        });
        let seconds = begun.elapsed().as_secs_f64();
        if end == RunEnd::TooLong {
            ask_to_end(&mut child);
        }
        let killed = group.as_ref().is_some_and(ControlGroup::has_killed);
        let end = match end {
            RunEnd::Failed(why) if !killed => {
                RunEnd::Failed(format!("{why}: {}", last_lines(&said(&scratch, "stderr"))))
            }
            RunEnd::Failed(_) => RunEnd::Killed,
            end => end,
        };
        if let (Some(charged), Some(group)) = (&mut charged, &group) {
            charged.peak_bytes = group.peak_bytes();
        }
        let run = ProgramRun {
            end,
            charged,
            seconds,
            output: (row.compared)(&said(&scratch, "stdout")),
            peak_bytes: sampler.peak_bytes(),
            report: serde_json::from_str(&said(&scratch, "report.json")).ok(),
        };
        // End all processes first, so that none stays as a zombie.
        drop(warden);
        let _ = child.wait();
        Ok(run)
    }

    fn octavo_words(&self, program: &Path, budget_bytes: u64, report: &Path) -> Vec<String> {
        let mut words = vec![program.display().to_string(), "run".into()];
        words.extend(["--memory".into(), budget_bytes.to_string()]);
        words.extend(["--json".into(), report.display().to_string()]);
        if let Some(compression) = &self.options.compression {
            words.extend(["--compression".into(), compression.clone()]);
        }
        words.push("--".into());
        words
    }

    /// Waits for the program's end, and samples it meanwhile. After the kernel kills a process of a group,
    /// the whole group ends, since the other processes may wait for that one forever.
    fn wait(&self, child: &mut Child, group: Option<&ControlGroup>, mut look: impl FnMut()) -> RunEnd {
        let latest = Instant::now() + Duration::from_secs(self.options.limit_seconds);
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return RunEnd::Well,
                Ok(Some(status)) => return RunEnd::Failed(status.to_string()),
                Ok(None) if Instant::now() > latest => return RunEnd::TooLong,
                Ok(None) => {}
                Err(error) => return RunEnd::Failed(error.to_string()),
            }
            if group.is_some_and(ControlGroup::has_killed) {
                return RunEnd::Killed;
            }
            look();
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Samples the group that Octavo runs in.
fn look(group: &ControlGroup, charged: &mut Charged) {
    charged.anonymous_peak_bytes = charged.anonymous_peak_bytes.max(group.anonymous_bytes().unwrap_or(0));
    let is_helper = |pid: &u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        OCTAVOS_OWN.contains(&name.trim_end())
    };
    let processes = group.processes().iter().filter(|pid| !is_helper(pid)).count();
    charged.processes = charged.processes.max(processes as u64);
}

/// The names of the runner, of a mover, and of the guardian.
const OCTAVOS_OWN: [&str; 3] = ["octavo", "octavo-mover", "exe"];

/// Returns a folder that a program may make, where other users may enter, and whose path fits into a
/// socket's. The warden removes it.
fn short_folder() -> PathBuf {
    PathBuf::from(format!("/tmp/octavo-programs-{}", std::process::id()))
}

/// Asks a process group to end, and gives it some time. Octavo then reports what it has done so far.
fn ask_to_end(child: &mut Child) {
    let _ = Command::new("sh").args(["-c", &format!("kill -s TERM -- -{}", child.id())]).status();
    let latest = Instant::now() + PATIENCE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < latest {
        thread::sleep(LOOK_EVERY);
    }
}
