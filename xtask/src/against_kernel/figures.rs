//! The figures of one job's runs, and the verdict on them.

use std::collections::BTreeMap;

use octavo_measure::statistics::Spread;

use super::jobs::{FigureRow, FigureTarget};

/// Where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunSide {
    /// Without a limit.
    Plain,
    Octavo,
    /// In a control group with swap, with pages of 4 KiB only.
    KernelSmall,
    /// In a control group with swap. The program asks for huge pages.
    KernelHuge,
}

/// The figures of one run, by their names.
pub type RunFigures = BTreeMap<String, f64>;

/// All runs of a job, round by round. A run that the kernel killed has no figures.
#[derive(Clone, Debug, Default)]
pub struct JobRuns {
    pub sides: BTreeMap<RunSide, Vec<RunFigures>>,
    /// The most bytes that the kernel has charged to Octavo's group.
    pub peak_bytes: Option<u64>,
    pub budget_bytes: u64,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FigureVerdict {
    /// The figure in the unit of the row's target: a factor, a percentage or milliseconds.
    pub found: Spread,
    pub holds: bool,
}

impl JobRuns {
    pub fn add(&mut self, side: RunSide, figures: RunFigures) {
        self.sides.entry(side).or_default().push(figures);
    }

    /// Returns the spread of a figure of one side over all rounds.
    pub fn spread(&self, side: RunSide, figure: &str) -> Option<Spread> {
        let rounds = self.sides.get(&side)?.iter();
        Spread::of(rounds.filter_map(|figures| figures.get(figure).copied()))
    }

    /// Compares Octavo with the side that the row names, round by round.
    pub fn verdict(&self, row: &FigureRow) -> Option<FigureVerdict> {
        let (found, holds) = match row.wanted {
            FigureTarget::Times(times) => {
                let found = self
                    .paired(self.better_kernel(row.figure)?, row.figure, |octavo, kernel| kernel / octavo)?;
                (found, found.median >= times)
            }
            FigureTarget::PercentMore(percent) => {
                let more = |octavo: f64, plain: f64| 100.0 * (octavo / plain - 1.0);
                let found = self.paired(RunSide::Plain, row.figure, more)?;
                (found, found.median <= percent)
            }
            FigureTarget::MillisecondsMore(milliseconds) => {
                let found =
                    self.paired(RunSide::Plain, row.figure, |octavo, plain| 1e3 * (octavo - plain))?;
                (found, found.median <= milliseconds)
            }
            FigureTarget::Nothing => {
                let kernel = self.better_kernel(row.figure)?;
                return Some(FigureVerdict {
                    found: self.paired(kernel, row.figure, |octavo, kernel| kernel / octavo)?,
                    holds: true,
                });
            }
        };
        Some(FigureVerdict { found, holds })
    }

    /// Returns the form of the kernel's side with the lower median.
    fn better_kernel(&self, figure: &str) -> Option<RunSide> {
        let forms = [RunSide::KernelSmall, RunSide::KernelHuge];
        let medians = forms.into_iter().filter_map(|side| Some((side, self.spread(side, figure)?.median)));
        medians.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(side, _)| side)
    }

    fn paired(&self, other: RunSide, figure: &str, compare: impl Fn(f64, f64) -> f64) -> Option<Spread> {
        let pairs = self.sides.get(&RunSide::Octavo)?.iter().zip(self.sides.get(&other)?);
        Spread::of(
            pairs.filter_map(|(octavo, other)| Some(compare(*octavo.get(figure)?, *other.get(figure)?))),
        )
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::jobs::Unit;
    use super::*;

    /// Makes runs with one figure, `seconds`.
    pub fn runs(sides: &[(RunSide, &[f64])]) -> JobRuns {
        let mut runs = JobRuns { peak_bytes: Some(260 << 20), budget_bytes: 256 << 20, ..JobRuns::default() };
        for (side, values) in sides {
            values.iter().for_each(|value| runs.add(*side, RunFigures::from([("seconds".into(), *value)])));
        }
        runs
    }

    pub fn row(wanted: FigureTarget) -> FigureRow {
        FigureRow { name: "a job", figure: "seconds", unit: Unit::Seconds, wanted }
    }

    #[test]
    fn the_better_kernel_counts_round_by_round() {
        let sides: &[(RunSide, &[f64])] = &[
            (RunSide::Octavo, &[1.0, 2.0, 1.0]),
            (RunSide::KernelSmall, &[9.0, 9.0, 9.0]),
            (RunSide::KernelHuge, &[3.0, 3.0, 4.0]),
        ];
        let verdict = runs(sides).verdict(&row(FigureTarget::Times(2.5))).unwrap();
        assert_eq!(verdict, FigureVerdict { found: Spread { median: 3.0, min: 1.5, max: 4.0 }, holds: true });
        assert!(!runs(sides).verdict(&row(FigureTarget::Times(3.5))).unwrap().holds);
    }

    #[test]
    fn octavo_may_take_a_little_longer_than_no_limit() {
        let sides: &[(RunSide, &[f64])] =
            &[(RunSide::Plain, &[1.0, 2.0, 1.0]), (RunSide::Octavo, &[1.01, 2.02, 1.5])];
        let verdict = |wanted| runs(sides).verdict(&row(wanted)).unwrap();
        assert!(
            verdict(FigureTarget::PercentMore(2.0)).holds && !verdict(FigureTarget::PercentMore(0.5)).holds
        );
        assert!(
            verdict(FigureTarget::MillisecondsMore(21.0)).holds
                && !verdict(FigureTarget::MillisecondsMore(5.0)).holds
        );
        assert_eq!(runs(sides).verdict(&row(FigureTarget::Times(1.0))), None);
    }
}
