//! The table in Markdown.

use octavo_measure::table::{markdown_header, markdown_row};

use super::results::{ProgramRun, RowOutcome, RunEnd};
use super::rows;
use crate::machine::document::Marks;

const COLUMNS: &str = "program | plain s | octavo s | kernel swap s | peak | budget | octavo peak | managed % | swapped in | same output | killed without";
const MARKS: Marks = Marks { begin: "<!-- programs: begin -->", end: "<!-- programs: end -->" };

/// Returns the whole table.
pub fn table(outcomes: &[RowOutcome]) -> String {
    markdown_header(COLUMNS) + &outcomes.iter().map(line).collect::<String>()
}

/// Returns the line of one row.
pub fn line(outcome: &RowOutcome) -> String {
    let seconds = |run: &Option<ProgramRun>| run.as_ref().map_or("–".into(), seconds);
    let answer = |answer: Option<bool>| match answer {
        None => "–",
        Some(true) => "yes",
        Some(false) => "**no**",
    };
    let cells = [
        self::seconds(&outcome.plain),
        seconds(&outcome.octavo),
        seconds(&outcome.kernel),
        mebibytes(outcome.plain.peak_bytes as f64),
        mebibytes(outcome.budget_bytes as f64),
        octavo_peak(outcome),
        outcome.reported("managed_share").map_or("–".into(), |share| format!("{:.0}", 100.0 * share)),
        outcome.reported("swapped_in_bytes").map_or("–".into(), mebibytes),
        answer(outcome.octavo_same()).into(),
        answer(outcome.killed_without()).replace('*', ""),
    ];
    markdown_row(outcome.name, cells)
}

/// Returns the anonymous memory of the tree and the runner, in bold if it is above the bound.
fn octavo_peak(outcome: &RowOutcome) -> String {
    let Some(charged) = outcome.octavo.as_ref().and_then(|run| run.charged) else { return "–".into() };
    let peak = mebibytes(charged.anonymous_peak_bytes as f64);
    let is_within = charged.anonymous_peak_bytes <= charged.bound_bytes(outcome.budget_bytes);
    if is_within { peak } else { format!("**{peak}**") }
}

fn seconds(run: &ProgramRun) -> String {
    match &run.end {
        RunEnd::Well => format!("{:.1}", run.seconds),
        RunEnd::Killed => "killed".into(),
        RunEnd::TooLong => format!("over {:.0}", run.seconds),
        RunEnd::Failed(_) => "failed".into(),
    }
}

fn mebibytes(bytes: f64) -> String {
    format!("{:.0} MiB", bytes / f64::from(1 << 20))
}

/// Puts the rows between the marks of a document. Rows that were not run stay as they are.
pub fn put_into(text: &str, outcomes: &[RowOutcome]) -> Result<String, String> {
    let old = MARKS.part_of(text)?;
    let old_line =
        |name: &str| old.split_inclusive('\n').find(|line| line.starts_with(&format!("| {name} |")));
    let mut part = markdown_header(COLUMNS);
    for row in rows::ALL {
        let new = outcomes.iter().find(|outcome| outcome.name == row.name).map(line);
        if let Some(line) = new.or_else(|| old_line(row.name).map(str::to_owned)) {
            part += &line;
        }
    }
    MARKS.put_into(text, &part)
}

#[cfg(test)]
mod tests {
    use super::super::results::Charged;
    use super::*;

    fn outcome(name: &'static str, seconds: f64) -> RowOutcome {
        let plain = ProgramRun {
            end: RunEnd::Well,
            seconds,
            output: "7".into(),
            peak_bytes: 300 << 20,
            report: None,
            charged: None,
        };
        let report = serde_json::json!({ "managed_share": 0.975, "swapped_in_bytes": 5 << 20 });
        let charged = Charged { peak_bytes: None, anonymous_peak_bytes: 160 << 20, processes: 1 };
        let octavo = ProgramRun {
            seconds: 2.0 * seconds,
            report: Some(report),
            charged: Some(charged),
            ..plain.clone()
        };
        let killed = ProgramRun { end: RunEnd::Killed, ..plain.clone() };
        RowOutcome {
            name,
            plain,
            budget_bytes: 150 << 20,
            octavo: Some(octavo),
            kernel_without_swap: Some(killed),
            kernel: None,
        }
    }

    #[test]
    fn a_line_has_what_was_measured() {
        let expected = "| redis | 1.5 | 3.0 | – | 300 MiB | 150 MiB | 160 MiB | 98 | 5 MiB | yes | yes |\n";
        assert_eq!(line(&outcome("redis", 1.5)), expected);
        let mut wrong = outcome("redis", 1.5);
        wrong.octavo.as_mut().unwrap().output = "8".into();
        assert!(line(&wrong).contains("| **no** |"));
        assert_eq!(wrong.complaints(), ["gave another output under octavo"]);
        wrong.octavo.as_mut().unwrap().charged.as_mut().unwrap().anonymous_peak_bytes = 180 << 20;
        assert!(line(&wrong).contains("| **180 MiB** |"));
        assert_eq!(wrong.complaints().len(), 2);
    }

    #[test]
    fn rows_that_were_not_run_stay_in_the_document() {
        let text = format!("# Head\n{}\n{}\ntail\n", MARKS.begin, MARKS.end);
        let first = put_into(&text, &[outcome("redis", 1.0)]).unwrap();
        let second = put_into(&first, &[outcome("numpy-sort", 2.0)]).unwrap();
        let names: Vec<_> = second.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(&names[names.len() - 3..], ["numpy-sort", "redis", "programs:"]);
        assert!(second.ends_with("tail\n"));
        assert!(put_into("no marks", &[]).is_err());
    }
}
