//! The text that the swap commands print: a line for each run, and the seconds of the whole job with their
//! ratios. The phases and usemem's figures have tables of their own, with titles that explain them.

use octavo_command::failure::Failure;
use octavo_command::output::Text;
use octavo_measure::table::TextTable;

use super::figures::{FILL, FILL_SECONDS, JOB, PhaseMeasures};
use super::job::{Contender, Rival, SwapJob};
use super::lock_table::lock_table;
use super::plan::{Phase, TaskPattern};
use crate::report::{ModeMetric, ModeRun, WorkloadReport, median_of};
use crate::table::{self, FigureOverRounds, grouped, rate};

/// Writes one run in a line.
pub fn one_line(job: &SwapJob, run: &ModeRun, round: u32) -> String {
    let mut line = format!("round {} {:<11} {:>10.3} s", round + 1, run.mode, run.seconds);
    let loads = job.plan.timed_phase() == Phase::Loads;
    if loads {
        line.push_str(&format!("  {:>10} loads/s", number(run.measure("loads_per_s"))));
    }
    let what = match run.mode == Contender::Disk.name() && !loads {
        true => " by the device alone, of less data",
        false if loads => " back",
        false => "",
    };
    line.push_str(&format!("  {:>8} MB/s{what}", rate(run.mb_per_s)));
    line
}

fn number(value: f64) -> String {
    grouped(value.round() as u64)
}

/// Prints the report.
pub fn print(
    text: &Text,
    job: &SwapJob,
    contenders: &[Contender],
    report: &WorkloadReport,
) -> Result<(), Failure> {
    let rounds = FigureOverRounds::new(job.rounds);
    let note = rounds.note(job.rounds);
    text.line(format!("\n{}, to {}", report.workload, job.choices.device.describe()))?;
    text.line(format!("\nthe whole job: {}", job.in_words()))?;
    text.line(format!("from the first task's start to the last one's end, {note}:"))?;
    text.line(main_table(job, contenders, report, rounds))?;
    let to_beat = print_ratios(text, job, contenders, report, rounds)?;
    text.line("\nphases: what went out to the device and came in from it, in MB/s over all of the phase,")?;
    text.line(format!("and, steady, from the first page that moved to the last, {note}:"))?;
    text.line(phase_table(job, contenders, report))?;
    let device = [&to_beat[..], &[Contender::Disk.name()]].concat();
    print_ratios_of(text, contenders, report, rounds, &[ModeMetric::DeviceMbPerS], &device)?;
    if job.plan.timed_phase() == Phase::Write {
        text.line("\nas usemem counts: an eighth of what a task maps and 8 bytes for each word, by the task's own time,")?;
        text.line(format!("all tasks added up, so that tasks which end early lift it, {note}:"))?;
        text.line(usemem_table(contenders, report, rounds))?;
    }
    if job.modes.len() > 1 {
        let rounds = table::counted(job.rounds.into(), "round", "rounds");
        text.line(format!("\nthe swap cache's lock at its four call sites, means of {rounds}:"))?;
        text.line(lock_table(job, report))?;
    }
    text.line("")?;
    print_memory(text, contenders, report)?;
    if job.plan.verify {
        text.line("verified: every word that was read was the one that was written")?;
    }
    if let ([mode], true) = (job.modes.as_slice(), job.profile) {
        let shares = report.runs_of(mode.name()).next().map(|run| run.shares.clone()).unwrap_or_default();
        text.line(format!("\n{}", table::shares(mode.name(), &shares)))?;
    }
    Ok(())
}

/// Returns whether a side does the whole job. If the order is sequential, the bare device moves a different
/// amount than the others, and is listed with the phases.
fn does_the_job(job: &SwapJob, contender: Contender) -> bool {
    contender != Contender::Disk || job.plan.pattern == TaskPattern::ReadRandom
}

fn main_table(
    job: &SwapJob,
    contenders: &[Contender],
    report: &WorkloadReport,
    rounds: FigureOverRounds,
) -> TextTable {
    let loads = job.plan.timed_phase() == Phase::Loads;
    let by_time = job.first_metric() == ModeMetric::LoadsPerS;
    let mut header = vec!["side"];
    match by_time {
        true => header.extend(rounds.header("loads/s").into_iter().chain(["seconds"])),
        false => header.extend(rounds.header("seconds")),
    }
    match (loads, by_time) {
        (true, true) => header.extend(["us/load", "MB/s back"]),
        (true, false) => header.extend(["loads/s", "us/load", "MB/s back"]),
        (false, _) => header.push("MB/s"),
    }
    let mut table = TextTable::new(&header);
    for &contender in contenders.iter().filter(|contender| does_the_job(job, **contender)) {
        let runs: Vec<&ModeRun> = report.runs_of(contender.name()).collect();
        let all = || runs.iter().copied();
        let seconds = |run: &ModeRun| run.seconds;
        let measured = |name: &'static str| median_of(&runs, |run| run.measure(name));
        let mut row = vec![contender.name().to_string()];
        match by_time {
            true => {
                row.extend(rounds.cells(all(), |run| run.measure("loads_per_s"), number));
                row.push(format!("{:.3}", median_of(&runs, seconds)));
            }
            false => row.extend(rounds.cells(all(), seconds, |seconds| format!("{seconds:.3}"))),
        }
        if loads && !by_time {
            row.push(number(measured("loads_per_s")));
        }
        if loads {
            row.push(format!("{:.2}", measured("us_per_load")));
        }
        row.push(rate(median_of(&runs, |run| run.mb_per_s)));
        table.row(row);
    }
    table
}

/// Compares Octavo with the better side of each rival, and its modes with each other. Returns the rivals'
/// better sides.
fn print_ratios(
    text: &Text,
    job: &SwapJob,
    contenders: &[Contender],
    report: &WorkloadReport,
    rounds: FigureOverRounds,
) -> Result<Vec<&'static str>, Failure> {
    let first = job.first_metric();
    let mut to_beat = Vec::new();
    let mut remarks = Vec::new();
    for (rival, whose) in
        [(Rival::Kernel, "the kernel's"), (Rival::Zram, "zram's"), (Rival::Disk, "the disk's")]
    {
        let sides = contenders.iter().filter(|side| side.rival() == Some(rival) && does_the_job(job, **side));
        let sides: Vec<&'static str> = sides.map(|side| side.name()).collect();
        let Some(better) = report.best_of(&sides, first) else { continue };
        to_beat.push(better);
        if sides.len() > 1 {
            remarks.push(format!("(of {whose} two, {better} is the better: the one to beat)"));
        }
    }
    let metrics = match job.plan.timed_phase() {
        Phase::Loads => vec![first, ModeMetric::RefaultsPerS],
        Phase::Write | Phase::ReadBack => vec![first],
    };
    print_ratios_of(text, contenders, report, rounds, &metrics, &to_beat)?;
    remarks.iter().try_for_each(|remark| text.line(remark))?;
    Ok(to_beat)
}

/// Compares Octavo's modes with each other, and with the sides `to_beat`.
fn print_ratios_of(
    text: &Text,
    contenders: &[Contender],
    report: &WorkloadReport,
    rounds: FigureOverRounds,
    metrics: &[ModeMetric],
    to_beat: &[&str],
) -> Result<(), Failure> {
    let ours: Vec<&str> =
        contenders.iter().filter(|side| side.rival().is_none()).map(|side| side.name()).collect();
    let shown = table::ratios(report, metrics, rounds, |ratio| {
        let (of, to) = (ratio.of.as_str(), ratio.to.as_str());
        ours.contains(&of) && (ours.contains(&to) || to_beat.contains(&to))
    });
    shown.map_or(Ok(()), |table| text.line(format!("\n{table}")))
}

fn phase_table(job: &SwapJob, contenders: &[Contender], report: &WorkloadReport) -> TextTable {
    let mut table = TextTable::new(&["side", "phase", "seconds", "out", "in", "steady"]);
    let (title, filled_before) = match job.plan.timed_phase() {
        Phase::Write => ("writing", false),
        Phase::ReadBack => ("reading back", true),
        Phase::Loads => ("loads", true),
    };
    for contender in contenders {
        let runs: Vec<&ModeRun> = report.runs_of(contender.name()).collect();
        let mut row = |title: &str, seconds: f64, measures: PhaseMeasures| {
            let of = |name: &'static str| median_of(&runs, |run| run.measure(name));
            let steady = of(measures.device);
            table.row(vec![
                contender.name().into(),
                title.into(),
                format!("{seconds:.3}"),
                rate(of(measures.out)),
                rate(of(measures.in_)),
                if steady.is_finite() { rate(steady) } else { "nothing moved".into() },
            ]);
        };
        if *contender == Contender::Disk {
            let (seconds, speed) =
                (median_of(&runs, |run| run.seconds), rate(median_of(&runs, |run| run.mb_per_s)));
            let (out, in_) = match job.plan.timed_phase() {
                Phase::Write => (speed.clone(), rate(0.0)),
                Phase::ReadBack | Phase::Loads => (rate(0.0), speed.clone()),
            };
            table.row(vec!["disk".into(), "alone".into(), format!("{seconds:.3}"), out, in_, speed]);
            continue;
        }
        if filled_before {
            row("filling before", median_of(&runs, |run| run.measure(FILL_SECONDS)), FILL);
        }
        row(title, median_of(&runs, |run| run.seconds), JOB);
    }
    table
}

fn usemem_table(contenders: &[Contender], report: &WorkloadReport, rounds: FigureOverRounds) -> TextTable {
    let mut header = vec!["side"];
    header.extend(rounds.header("KB/s"));
    let mut table = TextTable::new(&header);
    for contender in contenders.iter().filter(|contender| **contender != Contender::Disk) {
        let figure = |run: &ModeRun| run.usemem_kb_per_s.unwrap_or(0) as f64;
        let mut row = vec![contender.name().to_string()];
        row.extend(rounds.cells(report.runs_of(contender.name()), figure, number));
        table.row(row);
    }
    table
}

/// Prints the memory that was used, beside the most that is allowed.
fn print_memory(text: &Text, contenders: &[Contender], report: &WorkloadReport) -> Result<(), Failure> {
    for contender in contenders {
        let name = contender.name();
        let Some(most) = report.runs_of(name).max_by_key(|run| run.peak_rss_bytes) else { continue };
        let peak = table::bytes(most.peak_rss_bytes);
        match contender {
            Contender::Disk => {}
            Contender::Kernel(_) | Contender::Zram(_) => {
                let beside = match most.measures.get("zram_bytes") {
                    Some(&bytes) => format!(", and zram took {} beside it", table::bytes(bytes as u64)),
                    None => String::new(),
                };
                let huge = if name.ends_with("-huge") { huge_pages_had(report, name) } else { String::new() };
                text.line(format!("{name}: most charged to the control group {peak}{beside}{huge}"))?;
            }
            Contender::Octavo(_) => text.line(octavo_memory(name, most, &peak))?,
        }
    }
    Ok(())
}

/// Says how much of its side the kernel chose to put in huge pages.
fn huge_pages_had(report: &WorkloadReport, name: &str) -> String {
    let least = report.runs_of(name).map(|run| run.measure("huge_bytes") as u64).min().unwrap_or(0);
    match least {
        0 => "; in at least one run no huge page was seen in it".into(),
        bytes => format!("; {} of it or more in huge pages in each run", table::bytes(bytes)),
    }
}

fn octavo_memory(name: &str, most: &ModeRun, peak: &str) -> String {
    let allowed = most.measure("peak_allowed_bytes");
    let verdict = match most.peak_rss_bytes as f64 <= allowed {
        true => "within",
        false => "MORE THAN",
    };
    let without = match most.measures.get("ram_device_bytes") {
        Some(&bytes) => format!(", without the device's own {}", table::bytes(bytes as u64)),
        None => String::new(),
    };
    format!(
        "{name}: peak resident set {peak}{without}, {verdict} the {} allowed (budget, 3 %, 16 MiB)",
        table::bytes(allowed as u64)
    )
}
