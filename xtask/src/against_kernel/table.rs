//! The table in Markdown.

use octavo_measure::statistics::Spread;
use octavo_measure::table::markdown_row;

use super::figures::{JobRuns, RunSide};
use super::jobs::{FigureRow, FigureTarget, KernelJob, Unit};
use super::options::Options;
use crate::machine::document::measured_on;

pub const COLUMNS: &str = "what | no limit | octavo | kernel, small pages | kernel, huge pages | octavo's peak | found | wanted | holds";

/// Says where and how the figures were measured.
pub fn circumstances(options: &Options) -> String {
    let mebibytes = |bytes: u64| bytes >> 20;
    format!(
        "{} {} MiB in {} MiB, {} rounds; median (least to greatest):\n",
        measured_on(),
        mebibytes(options.total_bytes),
        mebibytes(options.budget_bytes),
        options.rounds,
    )
}

/// Returns the lines of one job.
pub fn lines(job: &KernelJob, runs: &JobRuns) -> String {
    job.rows.iter().enumerate().map(|(index, row)| line(row, runs, index == 0)).collect()
}

fn line(row: &FigureRow, runs: &JobRuns, is_first: bool) -> String {
    let side = |side| match (runs.spread(side, row.figure), runs.sides.get(&side)) {
        (Some(spread), _) => figure(row.unit, spread),
        (None, Some(rounds)) if rounds.iter().all(|figures| figures.is_empty()) => "killed".into(),
        _ => "–".into(),
    };
    let peak = match runs.peak_bytes.filter(|_| is_first) {
        Some(peak) => format!("{} of {} MiB", peak >> 20, runs.budget_bytes >> 20),
        None => String::new(),
    };
    let verdict = runs.verdict(row);
    let found = verdict.map_or("–".into(), |verdict| found(row.wanted, verdict.found));
    let holds = match (row.wanted, verdict) {
        (FigureTarget::Nothing, _) => "",
        (_, Some(verdict)) if verdict.holds => "yes",
        (_, Some(_)) => "**no**",
        (_, None) => "–",
    };
    let cells = [
        side(RunSide::Plain),
        side(RunSide::Octavo),
        side(RunSide::KernelSmall),
        side(RunSide::KernelHuge),
        peak,
        found,
        wanted(row.wanted),
        holds.to_owned(),
    ];
    markdown_row(row.name, cells)
}

fn figure(unit: Unit, Spread { median, min, max }: Spread) -> String {
    match unit {
        Unit::Seconds => format!("{median:.2} ({min:.2} to {max:.2}) s"),
        Unit::Milliseconds => format!("{:.2} ({:.2} to {:.2}) ms", 1e3 * median, 1e3 * min, 1e3 * max),
        Unit::Microseconds => format!("{median:.1} ({min:.1} to {max:.1}) µs"),
    }
}

fn found(wanted: FigureTarget, Spread { median, min, max }: Spread) -> String {
    match wanted {
        FigureTarget::Times(_) | FigureTarget::Nothing => format!("{median:.2} ({min:.2} to {max:.2}) times"),
        FigureTarget::PercentMore(_) => format!("{median:+.1} ({min:+.1} to {max:+.1}) %"),
        FigureTarget::MillisecondsMore(_) => format!("{median:+.2} ({min:+.2} to {max:+.2}) ms"),
    }
}

fn wanted(wanted: FigureTarget) -> String {
    match wanted {
        FigureTarget::Times(times) => format!("{times:.1} times"),
        FigureTarget::PercentMore(percent) => format!("at most +{percent} %"),
        FigureTarget::MillisecondsMore(milliseconds) => format!("at most +{milliseconds} ms"),
        FigureTarget::Nothing => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::{row, runs};
    use super::*;

    #[test]
    fn a_line_says_what_was_found_and_whether_it_holds() {
        let sides: &[(RunSide, &[f64])] =
            &[(RunSide::Octavo, &[1.0, 2.0, 1.0]), (RunSide::KernelSmall, &[2.0, 4.0, 2.0])];
        let runs = runs(sides);
        assert_eq!(
            line(&row(FigureTarget::Times(1.5)), &runs, true),
            "| a job | – | 1.00 (1.00 to 2.00) s | 2.00 (2.00 to 4.00) s | – | 260 of 256 MiB \
             | 2.00 (2.00 to 2.00) times | 1.5 times | yes |\n"
        );
        assert!(line(&row(FigureTarget::Times(2.5)), &runs, false).ends_with("| 2.5 times | **no** |\n"));
    }

    #[test]
    fn a_side_that_the_kernel_has_killed_says_so() {
        let mut runs = runs(&[(RunSide::Octavo, &[1.0])]);
        runs.add(RunSide::KernelSmall, Default::default());
        assert!(line(&row(FigureTarget::Times(1.5)), &runs, false).contains("| killed | – |"));
    }
}
