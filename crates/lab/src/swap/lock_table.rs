//! The swap cache's lock at its four call sites, form by form, with the change from the base form.
//!
//! The table has the layout of the one in the patch *mm: don't use radix tree writeback tags for pages in
//! swap cache* (Linux 4.9, commit 371a096edf43).

use octavo_measure::table::TextTable;

use super::job::SwapJob;
use crate::profile::Site;
use crate::report::{ModeRun, WorkloadReport};
use crate::table::{percent, rate};

/// A call site of the swap cache's lock.
pub struct LockSite {
    pub title: &'static str,
    counter: &'static str,
    /// Names of the measures of a run.
    pub share: &'static str,
    pub waiting: &'static str,
}

/// The four call sites that the table tells apart.
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

/// The functions of Octavo at those sites.
pub const SAMPLED_SITES: &[Site] = &[
    cache_functions(LOCK_SITES[0].title, &["insert", "insert_run"]),
    cache_functions(LOCK_SITES[1].title, &["start_writeback"]),
    cache_functions(LOCK_SITES[2].title, &["end_writeback"]),
    cache_functions(LOCK_SITES[3].title, &["evict_run"]),
];

/// Returns the means, and the change from the base form. Compared modes are also sampled.
pub fn lock_table(job: &SwapJob, report: &WorkloadReport) -> TextTable {
    let mut header = vec!["", "base"];
    for &mode in &job.modes[1..] {
        header.extend(["change", mode.name()]);
    }
    let mut table = TextTable::new(&header);
    let by_mode: Vec<Vec<&ModeRun>> =
        job.modes.iter().map(|mode| report.runs_of(mode.name()).collect()).collect();
    let mut row = |title: String, figure: &dyn Fn(&ModeRun) -> f64, show: fn(f64) -> String| {
        let figures: Vec<(f64, f64)> = by_mode.iter().map(|runs| mean_and_deviation(runs, figure)).collect();
        let mut cells = vec![title];
        for (number, &(mean, deviation)) in figures.iter().enumerate() {
            if number > 0 {
                cells.push(change(figures[0].0, mean));
            }
            let relative = (deviation / mean * 100.0).trunc();
            cells.push(match relative > 2.0 {
                true => format!("{} ±{relative:2}%", show(mean)),
                false => show(mean),
            });
        }
        table.row(cells);
    };
    row("seconds".into(), &|run| run.seconds, |seconds| format!("{seconds:.3}"));
    row("MB/s".into(), &|run| run.mb_per_s, rate);
    row("swap-out MB/s".into(), &|run| run.measure("swap_out_mb_per_s"), rate);
    for site in &LOCK_SITES {
        row(format!("share of samples, {}", site.title), &|run| run.measure(site.share), percent);
    }
    for site in &LOCK_SITES {
        row(format!("waiting for the lock, {}", site.title), &|run| run.measure(site.waiting), percent);
    }
    for site in &LOCK_SITES {
        row(
            format!("acquisitions a page, {}", site.title),
            &|run| per_page_out(run, site.counter),
            acquisitions,
        );
    }
    let all = |run: &ModeRun| LOCK_SITES.iter().map(|site| per_page_out(run, site.counter)).sum();
    row("acquisitions a page".into(), &all, acquisitions);
    table
}

/// Says by how much a mean differs from the base form's.
fn change(base: f64, mean: f64) -> String {
    match mean / base - 1.0 {
        change if change.is_finite() => format!("{:+.1}%", change * 100.0),
        _ if mean > 0.0 => "from none".into(),
        _ => "none both".into(),
    }
}

fn acquisitions(value: f64) -> String {
    match value.is_finite() {
        true => format!("{value:.3}"),
        false => "none out".into(),
    }
}

fn mean_and_deviation(runs: &[&ModeRun], figure: &dyn Fn(&ModeRun) -> f64) -> (f64, f64) {
    let count = runs.len() as f64;
    let mean = runs.iter().map(|run| figure(run)).sum::<f64>() / count;
    let variance = runs.iter().map(|run| (figure(run) - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// Returns the acquisitions of the lock for each page that went out. NaN if no page went out.
fn per_page_out(run: &ModeRun, counter: &str) -> f64 {
    match (run.counters.get(counter), run.counters.get("pswpout")) {
        (Some(&taken), Some(&pages)) if pages > 0 => taken as f64 / pages as f64,
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn acquisitions_are_told_for_each_page_that_went_out() {
        let counters = [("swap_lock_add", 300), ("pswpout", 100)];
        let base = ModeRun {
            mode: "base".into(),
            tasks: 8,
            counters: counters.map(|(name, value)| (name.to_string(), value)).into(),
            ..ModeRun::default()
        };
        assert_eq!(per_page_out(&base, "swap_lock_add"), 3.0);
        assert!(per_page_out(&base, "swap_lock_remove").is_nan());
        assert_eq!(acquisitions(f64::NAN), "none out");
    }

    #[test]
    fn a_change_without_a_figure_says_why() {
        assert_eq!(change(2.0, 3.0), "+50.0%");
        assert_eq!((change(0.0, 0.1).as_str(), change(0.0, 0.0).as_str()), ("from none", "none both"));
        assert_eq!(change(f64::NAN, f64::NAN), "none both");
    }
}
