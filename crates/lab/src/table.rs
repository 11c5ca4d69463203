//! Figures for people, and the columns that hold them. A cell without a figure has a text that says why.

use std::collections::BTreeMap;

use octavo_measure::statistics::Spread;
use octavo_measure::table::TextTable;

use crate::report::{ModeMetric, ModeRun, Ratio, WorkloadReport};

/// A figure over the rounds of a side: its median and, if there are several rounds, the least and the
/// greatest.
#[derive(Clone, Copy, Debug)]
pub struct FigureOverRounds {
    several: bool,
}

impl FigureOverRounds {
    pub fn new(rounds: u32) -> Self {
        Self { several: rounds > 1 }
    }

    /// Returns the titles above the figures.
    pub fn header(self, title: &str) -> Vec<&str> {
        if self.several { vec![title, "least", "most"] } else { vec![title] }
    }

    pub fn cells<'r>(
        self,
        runs: impl IntoIterator<Item = &'r ModeRun>,
        value: impl Fn(&ModeRun) -> f64,
        show: impl Fn(f64) -> String,
    ) -> Vec<String> {
        let Some(spread) = Spread::of(runs.into_iter().map(value)) else { return Vec::new() };
        self.spread(spread, show)
    }

    pub fn spread(self, spread: Spread, show: impl Fn(f64) -> String) -> Vec<String> {
        let all = [spread.median, spread.min, spread.max].map(show);
        all.into_iter().take(if self.several { 3 } else { 1 }).collect()
    }

    /// Says how the figures were made.
    pub fn note(self, rounds: u32) -> String {
        if self.several { format!("medians of {rounds} rounds") } else { "one round".into() }
    }
}

/// Says how much better some modes are than others, by these metrics. Returns `None` if no mode is compared.
pub fn ratios(
    report: &WorkloadReport,
    metrics: &[ModeMetric],
    rounds: FigureOverRounds,
    is_shown: impl Fn(&Ratio) -> bool,
) -> Option<TextTable> {
    let mut header = vec!["better by", "in"];
    header.extend(rounds.header("times"));
    let mut table = TextTable::new(&header);
    let mut any = false;
    for ratio in metrics.iter().flat_map(|&metric| report.ratios.iter().filter(move |r| r.metric == metric)) {
        if is_shown(ratio) {
            any = true;
            let mut row = vec![format!("{} than {}", ratio.of, ratio.to), ratio.metric.title().into()];
            let spread = Spread { median: ratio.median, min: ratio.min, max: ratio.max };
            row.extend(rounds.spread(spread, |times| format!("{times:.3}")));
            table.row(row);
        }
    }
    any.then_some(table)
}

/// Lists the functions that take most of the time.
pub fn shares(mode: &str, shares: &BTreeMap<String, f64>) -> String {
    let mut largest: Vec<_> = shares.iter().filter(|&(_, &share)| share >= 0.01).collect();
    largest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let mut table = TextTable::new(&["function", "share"]);
    for (name, share) in largest {
        table.row(vec![name.clone(), percent(*share)]);
    }
    format!("time by function, {mode} (sampled in runs that are not timed):\n{table}")
}

pub fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}

/// Formats a rate with about three digits: `0.42`, `13.4`, `2,104`.
pub fn rate(value: f64) -> String {
    match value {
        100.0.. => grouped(value.round() as u64),
        10.0..100.0 => format!("{value:.1}"),
        0.005..10.0 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => "<0.01".into(),
    }
}

/// Formats a whole number with separated thousands: `4,726,928,591`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things: `1 process`, `72 processes`.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    format!("{} {}", grouped(number), if number == 1 { one } else { several })
}

/// Formats bytes as people write them: `16 MiB`, `1.5 GiB`.
pub fn bytes(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1u64 << shift) as f64;
            return if value.fract() == 0.0 {
                format!("{value} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
    }
    format!("{bytes} bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(4_726_928_591), "4,726,928,591");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(100 << 30), "100 GiB");
        assert_eq!(bytes(7), "7 bytes");
        let rates = [0.0, 0.001, 0.423, 13.44, 99.96, 2104.4].map(rate);
        assert_eq!(rates, ["0", "<0.01", "0.42", "13.4", "100.0", "2,104"]);
        assert_eq!(
            (counted(1, "task", "tasks").as_str(), counted(0, "task", "tasks").as_str()),
            ("1 task", "0 tasks")
        );
    }

    #[test]
    fn one_round_has_no_median() {
        let spread = Spread { median: 2.0, min: 1.0, max: 3.0 };
        let show = |value: f64| value.to_string();
        assert_eq!(FigureOverRounds::new(1).spread(spread, show), ["2"]);
        assert_eq!(FigureOverRounds::new(1).note(1), "one round");
        assert_eq!(FigureOverRounds::new(3).spread(spread, show), ["2", "1", "3"]);
        assert_eq!(
            (FigureOverRounds::new(3).header("s"), FigureOverRounds::new(1).header("s")),
            (vec!["s", "least", "most"], vec!["s"])
        );
    }
}
