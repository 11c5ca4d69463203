//! `octavo usemem`: vm-scalability's usemem, on Octavo's memory and on the kernel's.
//!
//! Modes that are compared run by turns, each round starting with the next mode, so that a slow phase of the
//! machine hits all of them alike. Time is from the first task's start to the last task's last touch;
//! throughput is the sum of what each task prints, as it is counted for usemem.

pub mod kernel_side;
pub(crate) mod octavo_side;
pub(crate) mod touch;

use std::collections::BTreeMap;

pub use self::touch::Plan;
use self::touch::{Mismatch, Outcome};
use crate::args::JsonTarget;
use crate::failure::Failure;
use crate::output::{JsonSink, Text};
use crate::profile::{self, Samples};
use crate::progress::Progress;
use crate::report::{Metric, Report, Run, Spread};
use crate::table::{self, Table, grouped};

/// Sampled passes of a mode at the most: short ones are all start-up.
const SAMPLED_PASSES: u32 = 100;

/// A form of the four mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Base,
    Patched,
    Best,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Patched => "patched",
            Self::Best => "best",
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug)]
pub struct Job {
    pub workload: String,
    pub plan: Plan,
    pub tasks: u32,
    pub modes: Vec<Mode>,
    pub against_kernel: bool,
    pub budget_bytes: Option<u64>,
    pub rounds: u32,
    pub profile: bool,
    pub json: Option<JsonTarget>,
}

/// Whose memory is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Kernel,
    Octavo(Mode),
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Octavo(mode) => mode.name(),
        }
    }
}

/// What one run of one side did: outcomes by task and thread.
#[derive(Debug)]
struct Side {
    outcomes: Vec<Vec<Outcome>>,
    budget_bytes: Option<u64>,
    faults: u64,
    peak_rss_bytes: u64,
    counters: BTreeMap<String, u64>,
}

/// A thread's two lines.
struct Line {
    bytes: u64,
    usecs: u64,
    kb_per_s: u64,
    free_usecs: u64,
}

impl Side {
    fn threads(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().flatten()
    }

    fn start_ns(&self) -> u64 {
        self.threads().map(|outcome| outcome.start_ns).min().unwrap_or(0)
    }

    fn seconds(&self) -> f64 {
        let end = self.threads().map(|outcome| outcome.end_ns).max().unwrap_or(0);
        // A clock that stood still gives no division by zero further on.
        end.saturating_sub(self.start_ns()).max(1) as f64 / 1e9
    }

    /// What usemem prints. Its clock starts for all tasks at once.
    fn lines(&self) -> impl Iterator<Item = Line> {
        let start_ns = self.start_ns();
        self.threads().map(move |outcome| {
            let usecs = (outcome.end_ns.saturating_sub(start_ns) / 1000).max(1);
            Line {
                bytes: outcome.bytes,
                usecs,
                kb_per_s: kb_per_s(outcome.bytes, usecs),
                free_usecs: outcome.free_ns / 1000,
            }
        })
    }

    fn mismatches(&self) -> u64 {
        self.threads().map(|outcome| outcome.mismatches).sum()
    }

    fn first_mismatch(&self) -> Option<Mismatch> {
        self.threads().find_map(|outcome| outcome.first_mismatch)
    }
}

pub(crate) fn kb_per_s(bytes: u64, usecs: u64) -> u64 {
    let per_second = ((u128::from(bytes) * 1_000_000) >> 10) / u128::from(usecs);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

/// Does the job, and fails where it failed or where data was wrong.
pub fn run(job: &Job) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    if job.against_kernel {
        kernel_side::check_room(job.tasks, &job.plan)?;
    }
    let contenders = contenders(job);
    let compared = contenders.len() > 1;
    if job.against_kernel {
        text.line(kernel_side::huge_page_note())?;
        text.line("start-up, fork and exit are left out on both sides")?;
        if let Some(budget) = job.budget_bytes {
            let budget = table::bytes(budget);
            text.line(format!("the budget of {budget} binds Octavo's side; the kernel knows none"))?;
        }
    }

    let mut runs = Vec::new();
    let mut wrong = Vec::new();
    for round in 0..job.rounds {
        for turn in 0..contenders.len() {
            let contender = contenders[(turn + round as usize) % contenders.len()];
            let side = run_once(job, contender, &round_title(job, contender, round), None)?;
            let run = summarise(job, contender, &side);
            match compared {
                true => text.line(one_line(&run, round))?,
                false => print_lines(&text, &side)?,
            }
            if let Some(sentence) = complaint(contender, &side) {
                wrong.push(sentence);
            }
            runs.push(run);
        }
    }
    if job.profile {
        add_shares(job, &mut runs)?;
    }

    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    let report =
        Report::new(job.workload.clone(), runs, &names, &[Metric::Seconds, Metric::ThroughputKbPerS]);
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    match compared {
        true => print_comparison(&text, &report, &names)?,
        false => print_summary(&text, job, &report)?,
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Said(wrong.join("; "))),
    }
}

fn contenders(job: &Job) -> Vec<Contender> {
    let kernel = job.against_kernel.then_some(Contender::Kernel);
    kernel.into_iter().chain(job.modes.iter().map(|&mode| Contender::Octavo(mode))).collect()
}

fn run_once(
    job: &Job,
    contender: Contender,
    title: &str,
    samples: Option<&mut Samples>,
) -> Result<Side, Failure> {
    match contender {
        Contender::Kernel => {
            let _progress = Progress::start(title.to_string(), None);
            kernel_side::run(job.tasks, &job.plan)
        }
        Contender::Octavo(mode) => {
            let threads = u64::from(job.tasks) * u64::from(job.plan.threads);
            let progress =
                Progress::start(title.to_string(), Some(job.plan.accesses().saturating_mul(threads)));
            octavo_side::run(mode, job.tasks, &job.plan, job.budget_bytes, progress.counter(), samples)
        }
    }
}

fn round_title(job: &Job, contender: Contender, round: u32) -> String {
    match job.rounds {
        1 => contender.name().to_string(),
        rounds => format!("{}, round {} of {rounds}", contender.name(), round + 1),
    }
}

fn summarise(job: &Job, contender: Contender, side: &Side) -> Run {
    let seconds = side.seconds();
    Run {
        mode: contender.name().into(),
        tasks: job.tasks.into(),
        budget_bytes: side.budget_bytes,
        seconds,
        throughput_kb_per_s: side.lines().fold(0, |sum, line| sum.saturating_add(line.kb_per_s)),
        faults: side.faults,
        faults_per_s: side.faults as f64 / seconds,
        peak_rss_bytes: side.peak_rss_bytes,
        counters: side.counters.clone(),
        shares: BTreeMap::new(),
        measures: BTreeMap::new(),
    }
}

/// Runs each mode again under the sampler, off the clock, and notes the shares with all its runs.
fn add_shares(job: &Job, runs: &mut [Run]) -> Result<(), Failure> {
    for &mode in &job.modes {
        let mut samples = Samples::default();
        for pass in 1..=SAMPLED_PASSES {
            let title = format!("{}, sampled pass {pass}", mode.name());
            run_once(job, Contender::Octavo(mode), &title, Some(&mut samples))?;
            if samples.is_enough() {
                break;
            }
        }
        let shares = samples.shares()?;
        runs.iter_mut().filter(|run| run.mode == mode.name()).for_each(|run| run.shares = shares.clone());
    }
    Ok(())
}

fn complaint(contender: Contender, side: &Side) -> Option<String> {
    let Mismatch { offset, expected, found } = side.first_mismatch()?;
    Some(format!(
        "{} words were not what the last repeat wrote ({}; first at offset {offset:#x} of a piece: expected \
         {expected:#018x}, found {found:#018x})",
        side.mismatches(),
        contender.name(),
    ))
}

fn print_lines(text: &Text, side: &Side) -> Result<(), Failure> {
    for line in side.lines() {
        text.line(format!("{} bytes / {} usecs = {} KB/s", line.bytes, line.usecs, line.kb_per_s))?;
        text.line(format!("{} usecs to free memory", line.free_usecs))?;
    }
    Ok(())
}

fn one_line(run: &Run, round: u32) -> String {
    format!(
        "round {} {:<8} {:>12.6} s  {:>16} KB/s  {:>12} faults",
        round + 1,
        run.mode,
        run.seconds,
        grouped(run.throughput_kb_per_s),
        grouped(run.faults)
    )
}

fn print_summary(text: &Text, job: &Job, report: &Report) -> Result<(), Failure> {
    for run in &report.runs {
        text.line("")?;
        let budget = run.budget_bytes.map_or("none".into(), table::bytes);
        text.line(format!("{} ({}), budget {budget}", report.workload, run.mode))?;
        text.line(format!("wall time   {:.6} s", run.seconds))?;
        text.line(format!("throughput  {} KB/s", run.throughput_kb_per_s))?;
        text.line(format!("faults      {} ({:.0} faults/s)", run.faults, run.faults_per_s))?;
        text.line(format!("peak RSS    {}", table::bytes(run.peak_rss_bytes)))?;
        if job.plan.verify {
            text.line("verified    each repeat read what the last one wrote".to_string())?;
        }
        let moved: Vec<String> = run
            .counters
            .iter()
            .filter(|&(_, &value)| value > 0)
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        text.line(format!("counters    {}", moved.join(", ")))?;
    }
    // The same for every run of a mode.
    if let Some(run) = report.runs.first().filter(|run| !run.shares.is_empty()) {
        print_shares(text, &run.mode, &run.shares)?;
    }
    Ok(())
}

pub(crate) fn print_shares(text: &Text, mode: &str, shares: &BTreeMap<String, f64>) -> Result<(), Failure> {
    let mut largest: Vec<_> = shares.iter().filter(|&(_, &share)| share >= 0.01).collect();
    largest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let mut table = Table::new(&["function", "share"]);
    for (name, share) in largest {
        table.row(vec![name.clone(), percent(*share)]);
    }
    text.line(format!("\ntime by function, {mode} (sampled in runs that are not timed):\n{table}"))
}

fn print_comparison(text: &Text, report: &Report, modes: &[&str]) -> Result<(), Failure> {
    let mut table = Table::new(&[
        "mode",
        "runs",
        "seconds",
        "min",
        "max",
        "KB/s",
        "faults",
        "faults/s",
        "peak RSS",
        "zero page's get",
    ]);
    for mode in modes {
        let runs: Vec<&Run> = report.runs_of(mode).collect();
        let median = |value: fn(&Run) -> f64| Spread::of(runs.iter().map(|run| value(run)));
        let (Some(seconds), Some(first)) = (median(|run| run.seconds), runs.first()) else { continue };
        let whole = |value| median(value).map_or(String::new(), |spread| grouped(spread.median as u64));
        table.row(vec![
            mode.to_string(),
            runs.len().to_string(),
            format!("{:.6}", seconds.median),
            format!("{:.6}", seconds.min),
            format!("{:.6}", seconds.max),
            whole(|run| run.throughput_kb_per_s as f64),
            whole(|run| run.faults as f64),
            whole(|run| run.faults_per_s),
            runs.iter().map(|run| run.peak_rss_bytes).max().map_or(String::new(), table::bytes),
            match first.shares.is_empty() {
                true => "-".into(),
                false => percent(profile::zero_page_get_share(&first.shares)),
            },
        ]);
    }
    text.line(format!("\n{}\nmedians, and the largest peak RSS\n{table}\n", report.workload))?;
    text.line(ratio_table(report))
}

/// How the modes compare.
pub(crate) fn ratio_table(report: &Report) -> Table {
    let mut table = Table::new(&["better by", "metric", "median", "min", "max"]);
    for ratio in &report.ratios {
        let mut row = vec![format!("{} than {}", ratio.of, ratio.to), ratio.metric.title().into()];
        row.extend([ratio.median, ratio.min, ratio.max].map(|value| format!("{value:.3}x")));
        table.row(row);
    }
    table
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kilobytes_are_counted_as_usemem_counts_them() {
        // The seed's figures: 13,422,182,400 bytes in 303,970 us.
        assert_eq!(kb_per_s(13_422_182_400, 303_970), ((13_422_182_400u64 * 1_000_000) >> 10) / 303_970);
        assert_eq!(kb_per_s(1024, 1), 1_000_000);
        assert_eq!(kb_per_s(u64::MAX, 1), u64::MAX);
    }

    #[test]
    fn time_runs_from_the_first_start_to_the_last_end() {
        let outcome = |start_ns, end_ns| Outcome { bytes: 1 << 20, start_ns, end_ns, ..Outcome::default() };
        let side = Side {
            outcomes: vec![vec![outcome(1_000, 501_000)], vec![outcome(2_000, 1_001_000)]],
            budget_bytes: None,
            faults: 0,
            peak_rss_bytes: 0,
            counters: BTreeMap::new(),
        };
        assert_eq!(side.seconds(), 0.001);
        let usecs: Vec<u64> = side.lines().map(|line| line.usecs).collect();
        assert_eq!(usecs, [500, 1000]);
    }
}
