//! The text that `octavo-lab usemem` prints. Seconds of the whole job and bytes touched come first. The
//! figures that usemem itself would print are separate.

use octavo_command::failure::Failure;
use octavo_command::output::Text;
use octavo_measure::table::TextTable;

use super::job::{Contender, UsememJob};
use super::side::SideOutcomes;
use crate::profile;
use crate::report::{ModeMetric, ModeRun, WorkloadReport, median_of};
use crate::table::{self, FigureOverRounds, counted, grouped, percent, rate};

/// Explains usemem's figures.
const AS_USEMEM_COUNTS: &str = "an eighth of what is mapped, and 8 bytes for each access";

/// Prints a task's lines in usemem's own form.
pub fn print_lines(text: &Text, side: &SideOutcomes) -> Result<(), Failure> {
    text.line(format!("as usemem counts ({AS_USEMEM_COUNTS}):"))?;
    for line in side.lines() {
        text.line(format!("{} bytes / {} usecs = {} KB/s", line.bytes, line.usecs, line.kb_per_s))?;
        text.line(format!("{} usecs to free memory", line.free_usecs))?;
    }
    Ok(())
}

/// Writes one of several runs in a line.
pub fn one_line(run: &ModeRun, round: u32) -> String {
    format!(
        "round {} {:<11} {:>12.6} s  {:>12} MB/s  {:>12} faults",
        round + 1,
        run.mode,
        run.seconds,
        rate(run.mb_per_s),
        grouped(run.faults)
    )
}

/// Describes the threads.
fn threads(job: &UsememJob) -> String {
    let tasks = counted(job.tasks.into(), "task", "tasks");
    match job.plan.threads {
        1 => tasks,
        threads => format!("{tasks} of {threads} threads"),
    }
}

/// Describes the bytes that one run of all threads touches.
fn touched(job: &UsememJob) -> String {
    let accesses = job.accesses();
    let passes = counted(job.plan.repeats.into(), "pass", "passes");
    format!(
        "{} bytes ({} of 8 bytes, in {passes} over {})",
        grouped(accesses.saturating_mul(8)),
        counted(accesses, "access", "accesses"),
        job.size
    )
}

/// Prints the runs of a single mode.
pub fn print_summary(text: &Text, job: &UsememJob, report: &WorkloadReport) -> Result<(), Failure> {
    for run in &report.runs {
        let budget = match &job.budget {
            Some(given) => given.to_string(),
            None => run.budget_bytes.map_or("none".into(), table::bytes),
        };
        text.line(format!("\n{} ({}), budget {budget}", report.workload, run.mode))?;
        text.line(format!("wall time   {:.6} s", run.seconds))?;
        text.line(format!("touched     {}", touched(job)))?;
        text.line(format!("throughput  {} MB/s of bytes touched", rate(run.mb_per_s)))?;
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
        let kb_per_s = run.usemem_kb_per_s.unwrap_or(0);
        text.line(format!("as usemem   {kb_per_s} KB/s: the lines above, added up"))?;
    }
    // The shares are the same for every run of a mode.
    if let Some(run) = report.runs.first().filter(|run| !run.shares.is_empty()) {
        text.line(format!("\n{}", table::shares(&run.mode, &run.shares)))?;
    }
    Ok(())
}

/// Prints the runs of several sides.
pub fn print_comparison(
    text: &Text,
    job: &UsememJob,
    contenders: &[Contender],
    report: &WorkloadReport,
) -> Result<(), Failure> {
    let rounds = FigureOverRounds::new(job.rounds);
    let note = rounds.note(job.rounds);
    text.line(format!("\n{}", report.workload))?;
    text.line(format!("\nthe whole job: {} by {}", touched(job), threads(job)))?;
    text.line(format!("from the first task's start to the last one's end, MB/s of bytes touched, {note}:"))?;
    text.line(main_table(report, contenders, rounds))?;
    let kernel: Vec<&str> = contenders
        .iter()
        .filter(|side| matches!(side, Contender::Kernel(_)))
        .map(|side| side.name())
        .collect();
    let to_beat = report.best_of(&kernel, ModeMetric::Seconds);
    let shown = |name: &str| !kernel.contains(&name) || to_beat == Some(name);
    let ratios = table::ratios(report, &[ModeMetric::Seconds], rounds, |ratio| {
        shown(&ratio.to) && !kernel.contains(&ratio.of.as_str())
    });
    if let Some(ratios) = ratios {
        text.line(format!("\n{ratios}"))?;
    }
    if let (Some(to_beat), true) = (to_beat, kernel.len() > 1) {
        text.line(format!("(of the kernel's two, {to_beat} is the better: the one to beat)"))?;
    }
    text.line(format!("\nas usemem counts: {AS_USEMEM_COUNTS}, by the task's own time,"))?;
    text.line(format!("all tasks added up, so that tasks which end early lift it, {note}:"))?;
    text.line(usemem_table(report, contenders, rounds))
}

fn main_table(report: &WorkloadReport, contenders: &[Contender], rounds: FigureOverRounds) -> TextTable {
    let sampled = report.runs.iter().any(|run| !run.shares.is_empty());
    let mut header = vec!["mode"];
    header.extend(rounds.header("seconds"));
    header.extend(["MB/s", "faults", "faults/s", "peak RSS"]);
    header.extend(sampled.then_some("zero page's get"));
    let mut table = TextTable::new(&header);
    for contender in contenders {
        let runs: Vec<&ModeRun> = report.runs_of(contender.name()).collect();
        let Some(&first) = runs.first() else { continue };
        let median = |value: fn(&ModeRun) -> f64| median_of(&runs, value);
        let mut row = vec![contender.name().to_string()];
        row.extend(rounds.cells(runs.iter().copied(), |run| run.seconds, |seconds| format!("{seconds:.6}")));
        row.push(rate(median(|run| run.mb_per_s)));
        row.push(grouped(median(|run| run.faults as f64) as u64));
        row.push(grouped(median(|run| run.faults_per_s) as u64));
        row.push(runs.iter().map(|run| run.peak_rss_bytes).max().map_or(String::new(), table::bytes));
        if sampled {
            row.push(match contender {
                Contender::Kernel(_) => "not sampled".into(),
                Contender::Octavo(_) if first.shares.is_empty() => "too short".into(),
                Contender::Octavo(_) => percent(profile::zero_page_get_share(&first.shares)),
            });
        }
        table.row(row);
    }
    table
}

fn usemem_table(report: &WorkloadReport, contenders: &[Contender], rounds: FigureOverRounds) -> TextTable {
    let mut header = vec!["mode"];
    header.extend(rounds.header("KB/s"));
    let mut table = TextTable::new(&header);
    for contender in contenders {
        let figure = |run: &ModeRun| run.usemem_kb_per_s.unwrap_or(0) as f64;
        let mut row = vec![contender.name().to_string()];
        row.extend(rounds.cells(report.runs_of(contender.name()), figure, |value| grouped(value as u64)));
        table.row(row);
    }
    table
}
