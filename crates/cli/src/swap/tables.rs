//! What the swap commands print: a line for each run, medians and ratios, and the seed's table.

use super::plan::Pattern;
use super::{Contender, Job};
use crate::failure::Failure;
use crate::output::Text;
use crate::profile::Site;
use crate::report::{Report, Run, Spread};
use crate::table::{self, Table, grouped};
use crate::usemem::{percent, ratio_table};

/// A place where the swap cache's lock is taken.
pub struct LockSite {
    pub title: &'static str,
    counter: &'static str,
    /// Measures of a run.
    pub share: &'static str,
    pub waiting: &'static str,
}

/// The four places that the seed's table tells apart.
pub const LOCK_SITES: [LockSite; 4] = [
    LockSite {
        title: "add to the cache",
        counter: "swap_lock_add",
        share: "share_add",
        waiting: "share_add_waiting",
    },
    LockSite {
        title: "start of writeback",
        counter: "swap_lock_start_writeback",
        share: "share_start_writeback",
        waiting: "share_start_writeback_waiting",
    },
    LockSite {
        title: "end of writeback",
        counter: "swap_lock_end_writeback",
        share: "share_end_writeback",
        waiting: "share_end_writeback_waiting",
    },
    LockSite {
        title: "removal",
        counter: "swap_lock_remove",
        share: "share_remove",
        waiting: "share_remove_waiting",
    },
];

const fn cache_functions(name: &'static str, functions: &'static [&'static str]) -> Site {
    Site { name, module: "octavo::swap::cache::", of_type: "Cache", functions }
}

/// The functions of Octavo that these are.
pub const SAMPLED_SITES: &[Site] = &[
    cache_functions(LOCK_SITES[0].title, &["insert", "insert_run"]),
    cache_functions(LOCK_SITES[1].title, &["start_writeback"]),
    cache_functions(LOCK_SITES[2].title, &["end_writeback"]),
    cache_functions(LOCK_SITES[3].title, &["evict_run"]),
];

type Column = (&'static str, fn(&Run) -> String);

/// One run in a line.
pub fn one_line(job: &Job, run: &Run, round: u32) -> String {
    let mut line = format!("round {} {:<8} {:>10.3} s", round + 1, run.mode, run.seconds);
    for (title, cell) in columns(job.plan.pattern) {
        line.push_str(&format!("  {:>12} {title}", cell(run)));
    }
    line
}

/// What is told of a run, beside its seconds.
fn columns(pattern: Pattern) -> &'static [Column] {
    match pattern {
        Pattern::WriteSequential | Pattern::WriteRandom => &[
            ("KB/s", |run| number(run.throughput_kb_per_s as f64)),
            ("MB/s", |run| number(run.measure("mb_per_s"))),
            ("swap-out KB/s", |run| number(run.measure("swap_out_kb_per_s"))),
            ("device MB/s", |run| number(run.measure("device_mb_per_s"))),
        ],
        Pattern::ReadSequential => &[
            ("MB/s", |run| number(run.measure("mb_per_s"))),
            ("swap-in KB/s", |run| number(run.measure("swap_in_kb_per_s"))),
            ("device MB/s", |run| number(run.measure("device_mb_per_s"))),
        ],
        Pattern::ReadRandom => &[
            ("loads/s", |run| number(run.measure("loads_per_s"))),
            ("us/load", |run| decimal(run.measure("us_per_load"))),
            ("refaults/s", |run| number(run.measure("refaults_per_s"))),
            ("swap-in KB/s", |run| number(run.measure("swap_in_kb_per_s"))),
        ],
    }
}

/// A whole number; nothing where there is none.
fn number(value: f64) -> String {
    match value.is_finite() && value > 0.0 {
        true => grouped(value.round() as u64),
        false => "-".into(),
    }
}

fn decimal(value: f64) -> String {
    match value.is_finite() {
        true => format!("{value:.2}"),
        false => "-".into(),
    }
}

/// The report.
pub fn print(text: &Text, job: &Job, report: &Report) -> Result<(), Failure> {
    text.line(format!("\n{}, to {}", report.workload, job.choices.device.describe()))?;
    text.line(format!(
        "medians of {} rounds; device MB/s from the first page that moved to the last",
        job.rounds
    ))?;
    text.line(medians(job, report))?;
    if !report.ratios.is_empty() {
        text.line(format!("\n{}", ratio_table(report)))?;
    }
    if job.modes.len() > 1 {
        text.line(format!("\n{}", seed_table(job, report)))?;
    }
    print_memory(text, job, report)?;
    if job.plan.verify {
        text.line("verified: every word that was read was the one that was written")?;
    }
    if let ([mode], true) = (job.modes.as_slice(), job.profile) {
        let shares = report.runs_of(mode.name()).next().map(|run| run.shares.clone()).unwrap_or_default();
        crate::usemem::print_shares(text, mode.name(), &shares)?;
    }
    Ok(())
}

fn medians(job: &Job, report: &Report) -> Table {
    let columns = columns(job.plan.pattern);
    let mut header = vec!["side", "runs", "seconds", "min", "max"];
    header.extend(columns.iter().map(|(title, _)| *title));
    let mut table = Table::new(&header);
    for contender in super::contenders(job) {
        let runs: Vec<&Run> = report.runs_of(contender.name()).collect();
        let Some(seconds) = Spread::of(runs.iter().map(|run| run.seconds)) else { continue };
        let mut row = vec![contender.name().to_string(), runs.len().to_string()];
        row.extend([seconds.median, seconds.min, seconds.max].map(|value| format!("{value:.3}")));
        row.extend(columns.iter().map(|(_, cell)| cell(&median_run(&runs))));
        table.row(row);
    }
    table
}

/// A run whose every figure is the median of these.
fn median_run(runs: &[&Run]) -> Run {
    let median = |value: &dyn Fn(&Run) -> f64| {
        Spread::of(runs.iter().map(|run| value(run))).map_or(f64::NAN, |s| s.median)
    };
    let mut run = runs[0].clone();
    run.throughput_kb_per_s = median(&|run| run.throughput_kb_per_s as f64) as u64;
    for (&name, value) in &mut run.measures {
        *value = median(&|run| run.measure(name));
    }
    for (name, value) in &mut run.counters {
        *value = median(&|run| run.counters.get(name).copied().unwrap_or(0) as f64) as u64;
    }
    run
}

/// The table of the patch that made swap caches tagless: throughput, swap-out, and the cache's lock at its four call
/// sites, with the change from the base form.
fn seed_table(job: &Job, report: &Report) -> Table {
    let mut header = vec!["", "base"];
    for &mode in &job.modes[1..] {
        header.extend(["%change", mode.name()]);
    }
    let mut table = Table::new(&header);
    let by_mode: Vec<Vec<&Run>> =
        job.modes.iter().map(|mode| report.runs_of(mode.name()).collect()).collect();
    let mut row = |title: String, figure: &dyn Fn(&Run) -> f64, show: fn(f64) -> String| {
        let spreads: Vec<(f64, f64)> = by_mode.iter().map(|runs| mean_and_deviation(runs, figure)).collect();
        let mut cells = vec![title];
        for (number, &(mean, deviation)) in spreads.iter().enumerate() {
            if number > 0 {
                let change = (mean / spreads[0].0 - 1.0) * 100.0;
                cells.push(if change.is_finite() { format!("{change:+.1}%") } else { "-".into() });
            }
            let relative = (deviation / mean * 100.0).trunc();
            cells.push(match relative > 2.0 {
                true => format!("{} ±{relative:2}%", show(mean)),
                false => show(mean),
            });
        }
        table.row(cells);
    };
    row("throughput KB/s".into(), &|run| run.throughput_kb_per_s as f64, number);
    row("MB/s".into(), &|run| run.measure("mb_per_s"), number);
    row("swap-out KB/s".into(), &|run| run.measure("swap_out_kb_per_s"), number);
    for site in &LOCK_SITES {
        row(format!("share of samples, {}", site.title), &|run| run.measure(site.share), share);
    }
    for site in &LOCK_SITES {
        row(format!("waiting for the lock, {}", site.title), &|run| run.measure(site.waiting), share);
    }
    for site in &LOCK_SITES {
        row(
            format!("acquisitions a page, {}", site.title),
            &|run| per_page_out(run, site.counter),
            acquisitions,
        );
    }
    let all = |run: &Run| LOCK_SITES.iter().map(|site| per_page_out(run, site.counter)).sum();
    row("acquisitions a page".into(), &all, acquisitions);
    table
}

fn acquisitions(value: f64) -> String {
    match value.is_finite() {
        true => format!("{value:.3}"),
        false => "-".into(),
    }
}

fn mean_and_deviation(runs: &[&Run], figure: &dyn Fn(&Run) -> f64) -> (f64, f64) {
    let count = runs.len() as f64;
    let mean = runs.iter().map(|run| figure(run)).sum::<f64>() / count;
    let variance = runs.iter().map(|run| (figure(run) - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

fn share(value: f64) -> String {
    match value.is_finite() {
        true => percent(value),
        false => "-".into(),
    }
}

/// How often the lock was taken for each page that went out.
fn per_page_out(run: &Run, counter: &str) -> f64 {
    match (run.counters.get(counter), run.counters.get("pswpout")) {
        (Some(&taken), Some(&pages)) if pages > 0 => taken as f64 / pages as f64,
        _ => f64::NAN,
    }
}

/// What was used against what may be.
fn print_memory(text: &Text, job: &Job, report: &Report) -> Result<(), Failure> {
    for contender in super::contenders(job).into_iter().filter(|contender| *contender != Contender::Disk) {
        let runs: Vec<&Run> = report.runs_of(contender.name()).collect();
        let Some(most) = runs.iter().max_by_key(|run| run.peak_rss_bytes) else { continue };
        let peak = table::bytes(most.peak_rss_bytes);
        if matches!(contender, Contender::Kernel | Contender::Zram) {
            let beside = match most.measures.get("zram_bytes") {
                Some(&bytes) => format!(", and zram took {} beside it", table::bytes(bytes as u64)),
                None => String::new(),
            };
            text.line(format!("{}: most charged to the control group {peak}{beside}", contender.name()))?;
            continue;
        }
        let allowed = most.measure("peak_allowed_bytes");
        let verdict = match most.peak_rss_bytes as f64 <= allowed {
            true => "within",
            false => "MORE THAN",
        };
        let without = match most.measures.get("ram_device_bytes") {
            Some(&bytes) => format!(", without the device's own {}", table::bytes(bytes as u64)),
            None => String::new(),
        };
        text.line(format!(
            "{}: peak resident set {peak}{without}, {verdict} the {} allowed (budget, 3 %, 16 MiB)",
            contender.name(),
            table::bytes(allowed as u64)
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn run(counters: &[(&str, u64)]) -> Run {
        Run {
            mode: "base".into(),
            tasks: 8,
            budget_bytes: None,
            seconds: 1.0,
            throughput_kb_per_s: 1,
            faults: 0,
            faults_per_s: 0.0,
            peak_rss_bytes: 0,
            counters: counters.iter().map(|&(name, value)| (name.to_string(), value)).collect(),
            shares: BTreeMap::new(),
            measures: BTreeMap::new(),
        }
    }

    #[test]
    fn acquisitions_are_told_for_each_page_that_went_out() {
        let base = run(&[("swap_lock_add", 300), ("pswpout", 100)]);
        assert_eq!(per_page_out(&base, "swap_lock_add"), 3.0);
        assert!(per_page_out(&base, "swap_lock_remove").is_nan());
        assert_eq!(acquisitions(f64::NAN), "-");
    }

    #[test]
    fn medians_are_taken_of_every_figure() {
        let with =
            |mb: f64| Run { measures: BTreeMap::from([("mb_per_s", mb)]), ..run(&[("pswpout", mb as u64)]) };
        let runs = [with(1.0), with(5.0), with(3.0)];
        let median = median_run(&runs.iter().collect::<Vec<_>>());
        assert_eq!((median.measure("mb_per_s"), median.counters["pswpout"]), (3.0, 3));
    }
}
