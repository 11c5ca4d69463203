//! The printed text.

use octavo_measure::table::TextTable;

use super::job::Job;
use crate::report::{ModeRun, WorkloadReport, median_of};
use crate::table::{FigureOverRounds, grouped, percent, rate};

/// Latencies by the names of their measures, in microseconds.
pub const QUANTILES: [(&str, f64); 4] =
    [("p50_us", 0.5), ("p95_us", 0.95), ("p99_us", 0.99), ("p99_9_us", 0.999)];

/// Says what a run was.
pub fn one_line(run: &ModeRun) -> String {
    let measure = |name| grouped(run.measure(name) as u64);
    if run.measure("transactions") == 0.0 {
        return format!("{}: the bank adds up; {} rows of history", run.mode, measure("history_rows"));
    }
    format!(
        "{}: {} transactions/s; p50 {} us, p99 {} us; {} to a flush; the bank adds up: {}",
        run.mode,
        measure("transactions_per_s"),
        measure("p50_us"),
        measure("p99_us"),
        rate(run.measure("transactions_per_flush")),
        if run.failures.is_empty() { "yes" } else { "NO" }
    )
}

/// All modes beside each other, with the medians of their rounds.
pub fn comparison(job: &Job, report: &WorkloadReport) -> TextTable {
    let rounds = FigureOverRounds::new(job.rounds);
    let mut header = vec!["mode"];
    header.extend(rounds.header("transactions/s"));
    header.extend(["p50 us", "p95 us", "p99 us", "p99.9 us", "to a flush", "pin_fast", "pin_slow"]);
    if job.profile {
        header.extend(["pinning", "waiting there"]);
    }
    let mut table = TextTable::new(&header);
    for mode in &job.modes {
        let runs: Vec<&ModeRun> = report.runs_of(mode.name()).collect();
        let mut row = vec![mode.name().to_string()];
        let figures = runs.iter().copied();
        row.extend(rounds.cells(figures, |run| run.measure("transactions_per_s"), rate));
        let median = |name: &str| median_of(&runs, |run| run.measure(name));
        row.extend(QUANTILES.map(|(name, _)| rate(median(name))));
        row.push(rate(median("transactions_per_flush")));
        for name in ["pin_fast", "pin_slow"] {
            row.push(grouped(median_of(&runs, |run| run.counters[name] as f64) as u64));
        }
        if job.profile {
            row.extend(["share_pin", "share_pin_waiting"].map(|name| percent(median(name))));
        }
        table.row(row);
    }
    table
}
