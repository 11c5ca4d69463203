//! The layout of mmtests' comparison: <https://github.com/gormanm/mmtests>, `bin/lib/MMTests/Compare.pm` and
//! `Stat.pm`.
//!
//! A rate has its harmonic mean, a time its arithmetic mean. The parentheses behind a mean say by how much it
//! is better, relative to the first side. They become asterisks if the two means differ by more than the sum
//! of their margins: 1.96 standard deviations each, whatever the number of runs.

use octavo_measure::statistics::{harmonic_deviation, harmonic_mean, mean, sample_deviation};

use super::results::{ComparedResults, Metric, MetricKind};

/// The length of mmtests' longest name of a statistic (`BHmean.95`).
const STATISTIC_WIDTH: usize = 9;
const FIELD_WIDTH: usize = 12;
const PERCENT_WIDTH: usize = 7;
/// `qnorm(0.975)`
const HALF_WIDTH: f64 = 1.959_963_984_540_054;

/// Returns the table: the means, and with `all` every statistic of every metric.
pub fn lines(comparison: &ComparedResults, all: bool) -> Vec<String> {
    let is_shown =
        |metric: &&Metric| all || metric.kind == MetricKind::Performance && metric.says_something();
    let metrics: Vec<_> = comparison.metrics.iter().filter(is_shown).collect();
    let statistics: &[Statistic] = if all { &Statistic::ALL } else { &[Statistic::Mean] };
    let name_width = metrics.iter().map(|metric| metric.name.chars().count()).max().unwrap_or(0);
    let figures = || metrics.iter().flat_map(|metric| statistics.iter().map(|of| row(metric, *of)));
    let longest = figures().flatten().map(|value| format!("{value:.2}").len() + 1).max().unwrap_or(0);
    let width = longest.max(FIELD_WIDTH);
    let mut lines = vec![comparison.program().to_string()];
    let names: Vec<_> = comparison.sides.iter().map(|side| rows_of_name(&side.name)).collect();
    for part in [|name: &(String, String)| name.0.clone(), |name: &(String, String)| name.1.clone()] {
        let column = |name| format!("{:>1$}", part(name), width + PERCENT_WIDTH + 4);
        let columns: String = names.iter().map(column).collect();
        lines.push(format!("{:1$}{columns}", "", STATISTIC_WIDTH + 1 + name_width));
    }
    for of in statistics {
        lines.extend(metrics.iter().map(|metric| {
            let head = format!("{:<STATISTIC_WIDTH$} {:<name_width$}", of.name(metric), metric.name);
            format!("{head}{}", shown(metric, *of, width))
        }));
    }
    lines.iter().map(|line| line.trim_end().to_string()).collect()
}

/// Splits a side's name into two rows, at the first hyphen, or at the second one if an `rc` and a digit
/// follow.
fn rows_of_name(name: &str) -> (String, String) {
    let Some(first) = name.find('-') else { return (name.into(), String::new()) };
    let rest = &name.as_bytes()[first..];
    let is_candidate = rest.starts_with(b"-rc") && rest.get(3).is_some_and(u8::is_ascii_digit);
    let end = if is_candidate {
        first + name[first + 1..].find('-').map_or(name.len() - first, |at| at + 1)
    } else {
        first
    };
    (name[..end].into(), name.get(end + 1..).unwrap_or_default().into())
}

/// A statistic of a metric's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistic {
    Least,
    Mean,
    Deviation,
    Variation,
    Greatest,
}

impl Statistic {
    /// All statistics, in mmtests' order.
    const ALL: [Self; 5] = [Self::Least, Self::Mean, Self::Deviation, Self::Variation, Self::Greatest];

    fn name(self, metric: &Metric) -> &'static str {
        match (self, metric.is_less_better()) {
            (Self::Least, _) => "Min",
            (Self::Mean, true) => "Amean",
            (Self::Mean, false) => "Hmean",
            (Self::Deviation, true) => "Stddev",
            (Self::Deviation, false) => "HStddev",
            (Self::Variation, true) => "CoeffVar",
            (Self::Variation, false) => "HCoeffVar",
            (Self::Greatest, _) => "Max",
        }
    }

    fn of(self, samples: &[f64], is_less_better: bool) -> f64 {
        let least = || samples.iter().copied().fold(f64::NAN, f64::min);
        let greatest = || samples.iter().copied().fold(f64::NAN, f64::max);
        match self {
            Self::Least => least(),
            Self::Mean if is_less_better => mean(samples),
            Self::Mean => harmonic_mean(samples),
            Self::Deviation => deviation(samples, is_less_better),
            Self::Variation => {
                100.0 * deviation(samples, is_less_better) / Self::Mean.of(samples, is_less_better)
            }
            Self::Greatest => greatest(),
        }
    }
}

fn deviation(samples: &[f64], is_less_better: bool) -> f64 {
    let deviation = if is_less_better { sample_deviation(samples) } else { harmonic_deviation(samples) };
    deviation.unwrap_or(f64::NAN)
}

/// Returns a statistic by side, or zero if there is none.
fn row(metric: &Metric, of: Statistic) -> Vec<f64> {
    let is_less_better = metric.is_less_better();
    let value = |samples: &Vec<f64>| of.of(samples, is_less_better);
    metric.samples.iter().map(value).map(|value| if value.is_finite() { value } else { 0.0 }).collect()
}

fn shown(metric: &Metric, of: Statistic, width: usize) -> String {
    let values = row(metric, of);
    let less_is_better = metric.is_less_better() || matches!(of, Statistic::Deviation | Statistic::Variation);
    let field = |(side, value): (usize, &f64)| {
        let better = better_by(*value, values[0], less_is_better);
        let differs = of == Statistic::Mean && side > 0 && are_apart(metric, values[0], *value, side);
        let (open, close) = if differs { ('*', '*') } else { ('(', ')') };
        format!("{value:>width$.2} {open}{better:>PERCENT_WIDTH$.2}%{close}")
    };
    values.iter().enumerate().map(field).collect()
}

/// Returns by how many percent of the base a mean is better. If one of the two is zero, returns mmtests'
/// figure for that case.
fn better_by(new: f64, base: f64, less_is_better: bool) -> f64 {
    match less_is_better {
        _ if new == base => 0.0,
        true if new == 0.0 => 100.0,
        true if base == 0.0 => -99.0,
        true => 100.0 - new * 100.0 / base,
        false if new == 0.0 => 0.0,
        false if base == 0.0 => 100.0,
        false => new * 100.0 / base - 100.0,
    }
}

/// Returns whether two means differ by more than the sum of their margins. Returns `false` if a side has one
/// run only.
fn are_apart(metric: &Metric, base: f64, new: f64, side: usize) -> bool {
    let half = |side: usize| HALF_WIDTH * deviation(&metric.samples[side], metric.is_less_better());
    (new - base).abs() > half(0) + half(side)
}

#[cfg(test)]
mod tests {
    use super::super::results::ComparedSide;
    use super::*;

    /// Makes three rates with this harmonic mean, and a deviation of about `part` of it.
    fn rates(mean: f64, part: f64) -> Vec<f64> {
        [1.0 - part, 1.0, 1.0 + part].map(|times| mean / times).to_vec()
    }

    fn comparison(names: [&str; 2], metrics: Vec<Metric>) -> ComparedResults {
        let side = |name: &str| ComparedSide { name: name.into(), runs: 3 };
        ComparedResults { workload: "netperf-udp".into(), sides: names.map(side).to_vec(), metrics }
    }

    fn rate(name: &str, base: Vec<f64>, new: Vec<f64>) -> Metric {
        Metric { name: name.into(), kind: MetricKind::Performance, samples: vec![base, new] }
    }

    #[test]
    fn the_table_of_the_seed_comes_out() {
        // The figures of Linux commit 44042b449872, *mm/page_alloc: allow high-order pages to be stored on
        // the per-cpu lists*.
        let figures = [
            ("send-64", 261.46, 266.30),
            ("send-128", 516.35, 536.78),
            ("send-256", 1014.13, 1034.63),
            ("send-1024", 3907.65, 4046.11),
            ("send-2048", 7492.93, 7754.85),
            ("send-3312", 11410.04, 11772.32),
            ("send-4096", 13521.95, 13912.34),
            ("send-8192", 21660.50, 22730.72),
            ("send-16384", 31902.32, 32637.50),
        ];
        let metric =
            |(name, base, patched): (&str, f64, f64)| rate(name, rates(base, 0.004), rates(patched, 0.004));
        let names = ["5.13.0-rc2-mm-pcpburst-v3r4", "5.13.0-rc2-mm-pcphighorder-v1r7"];
        let expected = "\
netperf-udp
                                 5.13.0-rc2             5.13.0-rc2
                           mm-pcpburst-v3r4   mm-pcphighorder-v1r7
Hmean     send-64         261.46 (   0.00%)      266.30 *   1.85%*
Hmean     send-128        516.35 (   0.00%)      536.78 *   3.96%*
Hmean     send-256       1014.13 (   0.00%)     1034.63 *   2.02%*
Hmean     send-1024      3907.65 (   0.00%)     4046.11 *   3.54%*
Hmean     send-2048      7492.93 (   0.00%)     7754.85 *   3.50%*
Hmean     send-3312     11410.04 (   0.00%)    11772.32 *   3.18%*
Hmean     send-4096     13521.95 (   0.00%)    13912.34 *   2.89%*
Hmean     send-8192     21660.50 (   0.00%)    22730.72 *   4.94%*
Hmean     send-16384    31902.32 (   0.00%)    32637.50 *   2.30%*";
        let lines = lines(&comparison(names, figures.map(metric).to_vec()), false);
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn asterisks_mean_that_the_intervals_do_not_meet() {
        let of = |base, new| lines(&comparison(["a", "b"], vec![rate("send", base, new)]), false)[3].clone();
        assert!(of(rates(100.0, 0.01), rates(103.0, 0.01)).ends_with("(   3.00%)"), "the intervals meet");
        assert!(of(rates(100.0, 0.005), rates(103.0, 0.005)).ends_with("*   3.00%*"));
        assert!(of(rates(100.0, 0.005), rates(97.0, 0.005)).ends_with("*  -3.00%*"));
        assert!(of(vec![100.0], vec![200.0]).ends_with("( 100.00%)"), "one run says nothing");
    }

    #[test]
    fn times_have_arithmetic_means_and_less_of_them_is_better() {
        let seconds =
            Metric { samples: vec![vec![1.0, 3.0], vec![1.0, 1.0]], ..rate("seconds", vec![], vec![]) };
        let lines = lines(&comparison(["a", "b"], vec![seconds]), true);
        let expected = "\
Min       seconds        1.00 (   0.00%)        1.00 (   0.00%)
Amean     seconds        2.00 (   0.00%)        1.00 (  50.00%)
Stddev    seconds        1.41 (   0.00%)        0.00 ( 100.00%)
CoeffVar  seconds       70.71 (   0.00%)        0.00 ( 100.00%)
Max       seconds        3.00 (   0.00%)        1.00 (  66.67%)";
        assert_eq!(lines[3..].join("\n"), expected);
    }

    #[test]
    fn names_take_two_rows() {
        let rows = |name| {
            let (one, two) = rows_of_name(name);
            format!("{one}|{two}")
        };
        assert_eq!(rows("5.13.0-rc2-mm-pcp"), "5.13.0-rc2|mm-pcp");
        assert_eq!((rows("old-base").as_str(), rows("best").as_str()), ("old|base", "best|"));
        assert_eq!((rows("6.1-rc3").as_str(), rows("a-").as_str()), ("6.1-rc3|", "a|"));
        assert_eq!(rows("x-rcu-y"), "x|rcu-y");
    }

    #[test]
    fn wide_figures_make_wide_columns() {
        let lines = lines(&comparison(["a", "b"], vec![rate("kb", vec![4_726_928_591.0], vec![1.0])]), false);
        assert!(lines[3].starts_with("Hmean     kb 4726928591.00 (   0.00%)"), "{}", lines[3]);
        assert_eq!(lines[1].chars().count(), lines[3].chars().count());
    }
}
