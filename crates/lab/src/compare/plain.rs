//! A table of medians, with the least and the greatest, and how much better each side is.

use octavo_measure::statistics::{Spread, median};
use octavo_measure::table::TextTable;

use super::results::{ComparedResults, Metric, MetricKind};
use crate::table::rate;

/// Returns the table, and a line on how it was made.
pub fn lines(comparison: &ComparedResults, all: bool) -> Vec<String> {
    let runs: Vec<_> =
        comparison.sides.iter().map(|side| format!("{} of {}", side.runs, side.name)).collect();
    vec![
        comparison.workload.clone(),
        table(comparison, all).to_string(),
        format!("medians of the runs, the least and the most in parentheses ({})", runs.join(", ")),
    ]
}

/// Returns the table of each side's performance. With `all`, it includes counters and shares of time.
pub fn table(comparison: &ComparedResults, all: bool) -> TextTable {
    let mut header = vec!["metric".to_string()];
    for (place, side) in comparison.sides.iter().enumerate() {
        header.push(side.name.clone());
        if place > 0 {
            header.push("times".into());
        }
    }
    let mut table = TextTable::new(&header);
    for metric in comparison
        .metrics
        .iter()
        .filter(|metric| all || metric.kind == MetricKind::Performance && metric.says_something())
    {
        let mut row = vec![metric.name.clone()];
        for (place, samples) in metric.samples.iter().enumerate() {
            row.push(Spread::of(samples.iter().copied()).map_or("-".into(), shown));
            if place > 0 {
                row.push(times(metric, place));
            }
        }
        table.row(row);
    }
    table
}

fn shown(Spread { median, min, max }: Spread) -> String {
    if min == max { rate(median) } else { format!("{} ({}-{})", rate(median), rate(min), rate(max)) }
}

/// Returns the factor by which a side is better than the first. It is above 1 if the side is better, whether
/// less or more of the metric is better. For counters and shares, it is the factor by which there is more.
fn times(metric: &Metric, side: usize) -> String {
    let (base, new) = (median(&metric.samples[0]), median(&metric.samples[side]));
    let times = if metric.kind == MetricKind::Performance && metric.is_less_better() {
        base / new
    } else {
        new / base
    };
    if times.is_finite() { format!("{times:.3}") } else { "-".into() }
}

#[cfg(test)]
mod tests {
    use super::super::results::ComparedSide;
    use super::*;

    #[test]
    fn a_side_that_is_better_has_more_than_one() {
        let metric = |name: &str, kind, base: &[f64], best: &[f64]| Metric {
            name: name.into(),
            kind,
            samples: vec![base.to_vec(), best.to_vec()],
        };
        let side = |name: &str, runs| ComparedSide { name: name.into(), runs };
        let comparison = ComparedResults {
            workload: "usemem 1g".into(),
            sides: vec![side("base", 3), side("best", 1)],
            metrics: vec![
                metric("seconds", MetricKind::Performance, &[2.0, 4.0, 3.0], &[1.5]),
                metric("loads_per_s", MetricKind::Performance, &[200.0], &[]),
                metric("counters.pswpout", MetricKind::Counter, &[10.0], &[30.0]),
            ],
        };
        let expected = "\
usemem 1g
metric                   base  best  times
seconds      3.00 (2.00-4.00)  1.50  2.000
loads_per_s               200     -      -
medians of the runs, the least and the most in parentheses (3 of base, 1 of best)";
        assert_eq!(lines(&comparison, false).join("\n"), expected);
        assert!(lines(&comparison, true)[1].ends_with("3.000"));
    }
}
