//! The layout of lkp-tests' `compare`: <https://github.com/intel/lkp-tests>, `lib/compare.rb` and
//! `lib/stats.rb`.
//!
//! A column has a mean of width 10. If the relative standard deviation of the population is above 2 %, the
//! column has this deviation, too. Means below 1000 have two decimals, and those above 10^8 four digits. A
//! metric is listed if
//!
//! - a side has at least three runs, and
//! - the least of one side is above the other's median, and the other's greatest is below that side's median,
//!   and
//! - the medians differ by more than 1 %. For counters, they must differ by more than 5 %, and one must be
//!   above 1000.
//!
//! Shares of time are listed if one is above 5 %. Failures are in a separate table, which shows the number of
//! failures and of runs.
//!
//! In 2016, a change of a share was given in percent of the share. Since then, it is a difference.

use octavo_measure::statistics::{mean, population_deviation};

use super::results::{ComparedResults, ComparedSide, Metric, MetricKind};

/// The version of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edition {
    Today,
    /// The version that printed the table of Linux commit 371a096edf43.
    Of2016,
}

const MEAN_WIDTH: usize = 10;
const CHANGE_WIDTH: usize = 10;
const DEVIATION_WIDTH: usize = 6;

/// The table.
pub fn lines(comparison: &ComparedResults, all: bool, edition: Edition) -> Vec<String> {
    let ComparedResults { sides, metrics, .. } = comparison;
    let mut listed: Vec<_> =
        metrics.iter().filter(|metric| all || is_listed(metric, sides, edition)).collect();
    let keys = |metric: &Metric| key(comparison, metric);
    // The workload's own measures come first, then the bases with the fewest metrics.
    let bases: Vec<String> = listed.iter().map(|metric| base(&keys(metric)).to_string()).collect();
    let weight = |base: &str| match base == comparison.program() {
        true => 0,
        false => bases.iter().filter(|other| *other == base).count(),
    };
    listed.sort_by(|one, other| {
        let (a, b) = (keys(one), keys(other));
        let by_change = || change(one, edition).total_cmp(&change(other, edition));
        let by_name = || match edition {
            Edition::Today => sort_key(&a).cmp(sort_key(&b)).then_with(by_change),
            Edition::Of2016 => a.cmp(&b),
        };
        weight(base(&a)).cmp(&weight(base(&b))).then_with(by_name)
    });
    let (failures, figures): (Vec<_>, Vec<_>) =
        listed.into_iter().partition(|metric| metric.kind == MetricKind::Failure);
    let mut lines = header(sides, edition);
    let others = sides.len() - 1;
    if !failures.is_empty() {
        lines.push(format!("       fail:runs{}", "  %reproduction    fail:runs".repeat(others)));
        lines.push(format!("           |    {}", "         |             |    ".repeat(others)));
        lines.extend(failures.iter().map(|metric| failure_line(metric, sides, &keys(metric))));
    }
    if !figures.is_empty() {
        lines.push(format!("         %stddev{}", "     %change         %stddev".repeat(others)));
        lines.push(format!("             \\  {}", "        |                \\  ".repeat(others)));
        lines.extend(figures.iter().map(|metric| line(metric, edition, &keys(metric))));
    }
    if failures.is_empty() && figures.is_empty() {
        lines.push("nothing has changed; --all lists everything".into());
    }
    lines.iter().map(|line| line.trim_end().to_string()).collect()
}

/// Returns the metric's name in the tool. The workload's measures are listed under the workload's name.
fn key(comparison: &ComparedResults, metric: &Metric) -> String {
    match metric.kind {
        MetricKind::Performance | MetricKind::Failure if !metric.name.contains('.') => {
            format!("{}.{}", comparison.program(), metric.name)
        }
        _ => metric.name.clone(),
    }
}

fn base(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// Shares of time are sorted by their change.
fn sort_key(key: &str) -> &str {
    if base(key) == "perf-profile" { base(key) } else { key }
}

fn header(sides: &[ComparedSide], edition: Edition) -> Vec<String> {
    let first_width = MEAN_WIDTH + DEVIATION_WIDTH;
    let (width, is_left) = match edition {
        Edition::Today => (first_width + CHANGE_WIDTH + 1, false),
        Edition::Of2016 => (first_width + CHANGE_WIDTH, true),
    };
    let (mut names, mut rule) = (String::new(), String::new());
    for (place, side) in sides.iter().enumerate() {
        let width = if place == 0 { first_width } else { width };
        let name: String = side.name.chars().take(width).collect();
        names += &if is_left { format!("{name:<width$} ") } else { format!("{name:>width$} ") };
        rule += &format!("{} ", "-".repeat(width));
    }
    vec![names, rule]
}

fn line(metric: &Metric, edition: Edition, key: &str) -> String {
    let mut line = String::new();
    let means: Vec<f64> = metric.samples.iter().map(|samples| mean_or_zero(samples)).collect();
    for (samples, &mean) in metric.samples.iter().zip(&means) {
        if !line.is_empty() {
            line += &shown_change(change_of(metric, means[0], mean, edition), is_difference(metric, edition));
        }
        line += &format!("{:>MEAN_WIDTH$}", shown_mean(mean));
        line += &shown_deviation(samples, mean, edition);
    }
    format!("{line}  {key}")
}

fn shown_mean(mean: f64) -> String {
    match mean.abs() {
        size if size < 1000.0 => format!("{mean:.2}"),
        size if size > 1e8 => general(mean, 4),
        _ => format!("{:.0}", mean.floor()),
    }
}

fn shown_deviation(samples: &[f64], mean: f64, edition: Edition) -> String {
    // A single run has no deviation. Then -1 stands in its place.
    let deviation = population_deviation(samples).unwrap_or(-1.0);
    let relative = if mean == 0.0 { deviation } else { 100.0 * deviation / mean };
    match edition {
        Edition::Of2016 if deviation < 0.0 => format!(" ±{:>3}%", -1),
        _ if relative > 2.0 => format!(" ±{:>3}%", relative.floor()),
        _ => " ".repeat(DEVIATION_WIDTH),
    }
}

fn shown_change(change: f64, is_difference: bool) -> String {
    let sign = if change < 0.0 { "" } else { "+" };
    let number = if change.abs() < 1e5 { format!("{change:.1}") } else { general(change, 2) };
    format!("{:>CHANGE_WIDTH$}{}", format!("{sign}{number}"), if is_difference { "  " } else { "% " })
}

fn failure_line(metric: &Metric, sides: &[ComparedSide], key: &str) -> String {
    let mut line = String::new();
    let rate = |side: usize| metric.samples[side].iter().sum::<f64>() / sides[side].runs as f64;
    for (place, samples) in metric.samples.iter().enumerate() {
        if place > 0 {
            line += &format!("{:>CHANGE_WIDTH$.0}% ", 100.0 * (rate(place) - rate(0)));
        }
        let failures = samples.iter().sum::<f64>();
        let shown = if failures == 0.0 { String::new() } else { format!("{failures:.0}") };
        let (width, runs_width) = (MEAN_WIDTH + 1, DEVIATION_WIDTH - 2);
        line += &format!("{shown:>width$}:{:<runs_width$}", sides[place].runs);
    }
    format!("{line}  {key}")
}

/// Formats like C's `%g`, for numbers large enough to have an exponent.
fn general(number: f64, digits: usize) -> String {
    let text = format!("{number:.*e}", digits - 1);
    let (fraction, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let fraction =
        if fraction.contains('.') { fraction.trim_end_matches('0').trim_end_matches('.') } else { fraction };
    format!("{fraction}e+{exponent:0>2}")
}

fn is_difference(metric: &Metric, edition: Edition) -> bool {
    edition == Edition::Today && (metric.kind == MetricKind::Share || metric.name.ends_with('%'))
}

/// Returns the change of the second side.
fn change(metric: &Metric, edition: Edition) -> f64 {
    let mean = |side: usize| metric.samples.get(side).map_or(0.0, |samples| mean_or_zero(samples));
    change_of(metric, mean(0), mean(1), edition)
}

fn change_of(metric: &Metric, base: f64, mean: f64, edition: Edition) -> f64 {
    // The tool does the same: instead of a division by zero, it shows a change that is far too large.
    let divisor = if base == 0.0 { 1e-100 } else { base };
    if is_difference(metric, edition) { mean - base } else { 100.0 * (mean - base) / divisor }
}

fn mean_or_zero(samples: &[f64]) -> f64 {
    if samples.is_empty() { 0.0 } else { mean(samples) }
}

fn is_listed(metric: &Metric, sides: &[ComparedSide], edition: Edition) -> bool {
    (1..sides.len()).any(|side| has_changed(metric, sides, side, edition))
}

/// Returns whether a side differs from the first one.
fn has_changed(metric: &Metric, sides: &[ComparedSide], side: usize, edition: Edition) -> bool {
    let sorted = |side: usize| {
        // A run that lacks the metric counts as zero. If there are many runs, the extremes do not count.
        let mut samples = metric.samples[side].clone();
        samples.resize(samples.len().max(sides[side].runs), 0.0);
        samples.sort_by(f64::total_cmp);
        let margin = (samples.len() >> 5).min(3);
        samples[margin..samples.len() - margin].to_vec()
    };
    let (base, new) = (sorted(0), sorted(side));
    let (Some((&low, &high)), Some((&new_low, &new_high))) =
        (base.first().zip(base.last()), new.first().zip(new.last()))
    else {
        return false;
    };
    let (middle, new_middle) = (base[base.len() / 2], new[new.len() / 2]);
    match metric.kind {
        MetricKind::Failure => return high != new_high,
        MetricKind::Share => return sides[0].runs.max(sides[side].runs) >= 3 && middle.max(new_middle) > 5.0,
        MetricKind::Performance | MetricKind::Counter => {}
    }
    if metric.samples[0].is_empty() || sides[0].runs.max(sides[side].runs) < 3 {
        return false;
    }
    let are_apart = low > new_middle && middle > new_high || new_low > middle && new_middle > high;
    let ratio = middle.max(new_middle) / middle.min(new_middle);
    let is_large = match (metric.kind, edition) {
        (MetricKind::Performance, _) => ratio > 1.01,
        (_, Edition::Today) => ratio > 1.05 && high.max(new_high) > 1000.0,
        (_, Edition::Of2016) => ratio > 1.1 && high.max(new_high) > 1000.0,
    };
    are_apart && is_large
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes two samples around a mean, with a deviation in percent of it.
    fn around(mean: f64, percent: f64) -> Vec<f64> {
        let part = percent / 100.0;
        vec![mean * (1.0 - part), mean * (1.0 + part), mean * (1.0 - part), mean * (1.0 + part)]
    }

    fn metric(name: &str, kind: MetricKind, base: Vec<f64>, patched: Vec<f64>) -> Metric {
        Metric { name: name.into(), kind, samples: vec![base, patched] }
    }

    fn comparison(metrics: Vec<Metric>) -> ComparedResults {
        let side = |name: &str| ComparedSide { name: name.into(), runs: 4 };
        ComparedResults {
            workload: "vm-scalability swap-w-seq".into(),
            sides: vec![side("base"), side("base+patch")],
            metrics,
        }
    }

    /// The figures of Linux commit 371a096edf43, *mm: don't use radix tree writeback tags for pages in swap
    /// cache*. The printed means of the first lock differ by 23.5 %, but the message says 23.4 %, so it was
    /// computed from more digits.
    fn seed() -> ComparedResults {
        const ADD: &str = "perf-profile.cycles-pp._raw_spin_lock_irq.__add_to_swap_cache.add_to_swap_cache.add_to_swap.shrink_page_list";
        const REMOVE: &str = "perf-profile.cycles-pp._raw_spin_lock_irqsave.__remove_mapping.shrink_page_list.shrink_inactive_list.shrink_zone_memcg";
        const TEST_SET: &str = "perf-profile.cycles-pp._raw_spin_lock_irqsave.__test_set_page_writeback.bdev_write_page.__swap_writepage.swap_writepage";
        const TEST_CLEAR: &str = "perf-profile.cycles-pp._raw_spin_lock_irqsave.test_clear_page_writeback.end_page_writeback.page_endio.pmem_rw_page";
        comparison(vec![
            metric(TEST_CLEAR, MetricKind::Share, around(10.52, 13.5), Vec::new()),
            metric(TEST_SET, MetricKind::Share, around(10.36, 11.5), Vec::new()),
            metric(REMOVE, MetricKind::Share, around(10.82, 13.5), around(7.24, 14.5)),
            metric(ADD, MetricKind::Share, around(10.856, 12.5), around(8.314, 16.5)),
            metric(
                "vmstat.swap.so",
                MetricKind::Performance,
                around(1_207_402.0, 7.5),
                around(1_476_578.0, 6.5),
            ),
            metric("throughput", MetricKind::Performance, around(2_506_952.0, 2.5), around(3_212_076.0, 7.5)),
        ])
    }

    #[test]
    fn the_table_of_the_seed_comes_out() {
        let expected = "\
base             base+patch
---------------- --------------------------
         %stddev     %change         %stddev
             \\          |                \\
   2506952 ±  2%     +28.1%    3212076 ±  7%  vm-scalability.throughput
   1207402 ±  7%     +22.3%    1476578 ±  6%  vmstat.swap.so
     10.86 ± 12%     -23.4%       8.31 ± 16%  perf-profile.cycles-pp._raw_spin_lock_irq.__add_to_swap_cache.add_to_swap_cache.add_to_swap.shrink_page_list
     10.82 ± 13%     -33.1%       7.24 ± 14%  perf-profile.cycles-pp._raw_spin_lock_irqsave.__remove_mapping.shrink_page_list.shrink_inactive_list.shrink_zone_memcg
     10.36 ± 11%    -100.0%       0.00 ± -1%  perf-profile.cycles-pp._raw_spin_lock_irqsave.__test_set_page_writeback.bdev_write_page.__swap_writepage.swap_writepage
     10.52 ± 13%    -100.0%       0.00 ± -1%  perf-profile.cycles-pp._raw_spin_lock_irqsave.test_clear_page_writeback.end_page_writeback.page_endio.pmem_rw_page";
        assert_eq!(lines(&seed(), false, Edition::Of2016).join("\n"), expected);
    }

    #[test]
    fn today_shares_change_by_a_difference_and_are_sorted_by_it() {
        let lines = lines(&seed(), false, Edition::Today);
        let expected = [
            "            base                  base+patch",
            "---------------- ---------------------------",
            "         %stddev     %change         %stddev",
            "             \\          |                \\",
            "   2506952 ±  2%     +28.1%    3212076 ±  7%  vm-scalability.throughput",
            "   1207402 ±  7%     +22.3%    1476578 ±  6%  vmstat.swap.so",
            "     10.52 ± 13%     -10.5        0.00        perf-profile.cycles-pp._raw_spin_lock_irqsave.test_clear_page_",
            "     10.36 ± 11%     -10.4        0.00        perf-profile.cycles-pp._raw_spin_lock_irqsave.__test_set_page_",
            "     10.82 ± 13%      -3.6        7.24 ± 14%  perf-profile.cycles-pp._raw_spin_lock_irqsave.__remove_mapping",
            "     10.86 ± 12%      -2.5        8.31 ± 16%  perf-profile.cycles-pp._raw_spin_lock_irq.__add_to_swap_cache.",
        ];
        let cut = |line: &String| line.chars().take(107).collect::<String>();
        let got: Vec<_> = lines.iter().map(cut).collect();
        for (got, expected) in got.iter().zip(expected) {
            assert!(got.starts_with(expected) || expected.starts_with(got.as_str()), "{got}\n{expected}");
        }
        assert_eq!(got.len(), expected.len());
    }

    #[test]
    fn only_what_has_changed_is_listed() {
        let performance = |base, new| metric("rate", MetricKind::Performance, base, new);
        let counter =
            |base: f64, new| metric("counters.n", MetricKind::Counter, around(base, 0.1), around(new, 0.1));
        let listed = |metric: &Metric, edition| is_listed(metric, &comparison(Vec::new()).sides, edition);
        let today = |metric: &Metric| listed(metric, Edition::Today);
        assert!(today(&performance(around(100.0, 0.1), around(102.0, 0.1))));
        assert!(!today(&performance(around(100.0, 0.1), around(100.9, 0.1))), "less than 1 %");
        assert!(!today(&performance(around(100.0, 5.0), around(102.0, 5.0))), "they are not apart");
        assert!(!today(&performance(Vec::new(), around(102.0, 0.1))), "nothing to compare with");
        assert!(today(&counter(10_000.0, 10_700.0)) && !today(&counter(10_000.0, 10_400.0)));
        assert!(!listed(&counter(10_000.0, 10_700.0), Edition::Of2016), "less than 10 %");
        assert!(!today(&counter(10.0, 20.0)), "small counts");
        assert!(!today(&metric("perf-profile.f", MetricKind::Share, around(1.0, 1.0), around(4.0, 1.0))));
        let mut few = comparison(vec![performance(vec![1.0, 1.0], vec![2.0, 2.0])]);
        few.sides.iter_mut().for_each(|side| side.runs = 2);
        assert!(!is_listed(&few.metrics[0], &few.sides, Edition::Today), "two runs say little");
        assert!(lines(&few, false, Edition::Today).last().unwrap().contains("nothing has changed"));
        assert!(lines(&few, true, Edition::Today).last().unwrap().contains("+100.0%"));
    }

    #[test]
    fn what_fails_has_a_table_of_its_own() {
        let failed = metric("wrong_data", MetricKind::Failure, vec![0.0; 4], vec![1.0, 0.0, 0.0, 0.0]);
        let lines = lines(&comparison(vec![failed]), false, Edition::Today);
        assert_eq!(
            lines[2..],
            [
                "       fail:runs  %reproduction    fail:runs",
                "           |             |             |",
                "           :4           25%           1:4     vm-scalability.wrong_data",
            ]
        );
    }

    #[test]
    fn large_numbers_have_an_exponent() {
        assert_eq!(shown_mean(4_726_928_591.0), "4.727e+09");
        assert_eq!(shown_mean(2e9), "2e+09");
        assert_eq!((shown_mean(999.994).as_str(), shown_mean(1999.9).as_str()), ("999.99", "1999"));
        assert_eq!(shown_change(3e7, false), "    +3e+07% ");
        assert_eq!(
            shown_change(
                change_of(&metric("m", MetricKind::Performance, vec![], vec![]), 0.0, 1.0, Edition::Today),
                false
            ),
            "   +1e+102% "
        );
    }
}
