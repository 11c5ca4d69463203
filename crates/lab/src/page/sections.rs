//! Each kind of results, as a part of the page.

use std::fs;
use std::path::Path;

use maud::{Markup, PreEscaped, html};
use octavo_command::failure::Failure;
use octavo_experiments::comparison::{Comparison as Experiment, Evidence};
use octavo_experiments::scaling::Curve;
use octavo_measure::statistics::median;
use octavo_measure::table::TextTable;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::compare::{self, ComparedResults, Metric, MetricKind};
use crate::experiments::scaling::Curves;
use crate::experiments::{self, Machines};
use crate::plots::{self, BarGroup};
use crate::replay;
use crate::table::{bytes, counted};

/// The results of one file.
#[derive(Debug)]
pub struct Section {
    /// The name in links.
    pub id: String,
    pub title: String,
    /// The file's name.
    pub file: String,
    pub body: Markup,
}

impl Section {
    /// Reads a file. Returns `None` if its kind is unknown.
    pub fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let name = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::system(format!("cannot read {name}"), error))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::Said(format!("{name} is not JSON: {error}")))?;
        let part = ResultKind::of(value).map_err(|error| {
            Failure::Said(format!(
                "{name} is not as this version of octavo writes it: {error}; write it anew"
            ))
        })?;
        let Some(part) = part else { return Ok(None) };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let id =
            stem.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
        Ok(Some(Self { id, title: part.title(&stem), file, body: part.body()? }))
    }
}

/// The kinds of results.
#[derive(Debug)]
enum ResultKind {
    Workload(ComparedResults),
    Experiment(Experiment),
    Scaling(Curves),
    Machines(Machines),
    Replay(replay::ReplayReport),
}

impl ResultKind {
    /// Returns `None` if the kind of the contents is unknown.
    fn of(value: Value) -> serde_json::Result<Option<Self>> {
        fn part<T: DeserializeOwned>(
            value: Value,
            part: impl FnOnce(T) -> ResultKind,
        ) -> serde_json::Result<Option<ResultKind>> {
            serde_json::from_value(value).map(part).map(Some)
        }
        let has = |key: &str| value.get(key).is_some();
        match () {
            () if has("experiment") => part(value, Self::Experiment),
            () if has("curves") => part(value, Self::Scaling),
            () if has("microbenchmarks") => part(value, Self::Machines),
            () if has("replays") => part(value, Self::Replay),
            () => Ok(ComparedResults::of_value(value).map(Self::Workload)),
        }
    }

    fn title(&self, stem: &str) -> String {
        match self {
            Self::Workload(comparison) if comparison.workload.is_empty() => stem.into(),
            Self::Workload(comparison) => comparison.workload.clone(),
            Self::Experiment(experiment) => format!("The lab: {}", experiment.experiment),
            Self::Scaling(curves) => format!("Scaling on {}, simulated", curves.machine),
            Self::Machines(_) => "The simulated machines".into(),
            Self::Replay(report) => format!("Replay of {}", report.trace),
        }
    }

    fn body(&self) -> Result<Markup, Failure> {
        match self {
            Self::Workload(comparison) => workload(comparison),
            Self::Experiment(experiment) => self::experiment(experiment),
            Self::Scaling(curves) => scaling(curves),
            Self::Machines(machines) => Ok(html! { (table(&machines.table())) (table(&machines.tests())) }),
            Self::Replay(report) => replayed(report),
        }
    }
}

fn workload(comparison: &ComparedResults) -> Result<Markup, Failure> {
    let sides: Vec<_> = comparison.sides.iter().map(|side| side.name.as_str()).collect();
    let runs: Vec<_> = comparison
        .sides
        .iter()
        .map(|side| format!("{} of {}", counted(side.runs as u64, "run", "runs"), side.name))
        .collect();
    let share = |metric: &&Metric| metric.kind == MetricKind::Share;
    let shares: Vec<_> =
        comparison.metrics.iter().filter(share).map(|metric| group(metric, "perf-profile.")).collect();
    let first = comparison.metrics.iter().find(|metric| metric.kind == MetricKind::Performance);
    Ok(html! {
        p { (runs.join(", ")) ". Medians; the least and the most in parentheses. " em { "times" }
            " above 1 means that the side is better than the first." }
        @if let Some(first) = first {
            (figure(&plots::bars(&first.name, &first.name, &sides, &[group(first, "")])?, &first.name))
        }
        (table(&compare::table(comparison, false)))
        @if !shares.is_empty() {
            (figure(&plots::bars("time by function", "% of sampled time", &sides, &largest(shares))?, "time by function"))
        }
        details {
            summary { "Every metric, with counters and shares of time" }
            (table(&compare::table(comparison, true)))
        }
    })
}

/// The most functions that a plot shows.
const FUNCTIONS: usize = 12;

/// Returns the groups with the largest values, the largest first.
fn largest(mut groups: Vec<BarGroup>) -> Vec<BarGroup> {
    let most = |group: &BarGroup| group.values.iter().flatten().copied().fold(0.0, f64::max);
    groups.sort_by(|one, other| most(other).total_cmp(&most(one)));
    groups.truncate(FUNCTIONS);
    groups
}

fn group(metric: &Metric, prefix: &str) -> BarGroup {
    let value = |samples: &Vec<f64>| Some(median(samples)).filter(|median| median.is_finite());
    let name = metric.name.strip_prefix(prefix).unwrap_or(&metric.name);
    BarGroup { name: name.into(), values: metric.samples.iter().map(value).collect() }
}

fn experiment(experiment: &Experiment) -> Result<Markup, Failure> {
    const KINDS: [Evidence; 4] =
        [Evidence::Published, Evidence::SimulatedLinux, Evidence::SimulatedOctavo, Evidence::Measured];
    let mut groups: Vec<BarGroup> = Vec::new();
    for line in &experiment.lines {
        let percent = line.ratio.map(|ratio| 100.0 * (ratio - 1.0)).filter(|percent| percent.is_finite());
        let Some(place) = KINDS.iter().position(|kind| *kind == line.evidence) else { continue };
        match groups.iter_mut().find(|group| group.name == line.figure) {
            Some(group) => group.values[place] = percent,
            None => {
                let mut values = vec![None; KINDS.len()];
                values[place] = percent;
                groups.push(BarGroup { name: line.figure.clone(), values });
            }
        }
    }
    let is_there = |place: &usize| groups.iter().any(|group| group.values[*place].is_some());
    let places: Vec<_> = (0..KINDS.len()).filter(is_there).collect();
    let kinds: Vec<_> = places.iter().map(|place| KINDS[*place].name()).collect();
    for group in &mut groups {
        group.values = places.iter().map(|place| group.values[*place]).collect();
    }
    Ok(html! {
        p { "The simulated machine is " (experiment.machine) ", with seed " (experiment.seed)
            ". A star marks what was fitted on what was published." }
        (figure(&plots::bars("patched to base", "change in %", &kinds, &groups)?, "the change by the patch, by kind of evidence"))
        (table(&experiments::table_of(experiment)))
        @for note in &experiment.notes { p { (note) } }
    })
}

fn scaling(curves: &Curves) -> Result<Markup, Failure> {
    let of_mechanism = |curves: &[Curve]| -> Result<Markup, Failure> {
        let name = curves[0].mechanism.name();
        let mut culprits = experiments::scaling::culprits(curves).into_iter();
        let title = culprits.next();
        Ok(html! {
            h3 { (name) }
            (figure(&experiments::scaling::plot(curves)?, &format!("operations a second of {name} over CPUs, simulated")))
            (table(&experiments::scaling::table_of(curves)))
            @if let Some(title) = title {
                p { (title) }
                ul { @for line in culprits { li { (line.trim()) } } }
            }
        })
    };
    let parts: Vec<_> = curves
        .curves
        .chunk_by(|one, other| one.mechanism == other.mechanism)
        .map(of_mechanism)
        .collect::<Result<_, _>>()?;
    Ok(html! { p { "Seed " (curves.seed) "." } @for part in parts { (part) } })
}

fn replayed(report: &replay::ReplayReport) -> Result<Markup, Failure> {
    let memories = report.memories();
    Ok(html! {
        @for line in replay::headline(report).lines() { p { (line) } }
        @if memories.len() > 1 { (figure(&report.plot()?, "misses of each policy over memory")) }
        @for memory in memories {
            h3 { "In " (bytes(memory)) }
            (table(&report.table(memory)))
        }
    })
}

/// Makes a table that scrolls on its own on a narrow screen.
fn table(table: &TextTable) -> Markup {
    let (header, rows) = table.parts();
    let is_text_column =
        |place: usize| rows.first().and_then(|row| row.get(place)).is_some_and(|cell| is_text(cell));
    html! {
        div.scrolls tabindex="0" role="group" aria-label="table" {
            table {
                thead { tr { @for (place, cell) in header.iter().enumerate() {
                            th.text[is_text_column(place)] scope="col" { (cell) }
                        } } }
                tbody {
                    @for row in rows {
                        tr {
                            @for (place, cell) in row.iter().enumerate() {
                                @if place == 0 {
                                    th scope="row" { (cell) }
                                } @else {
                                    td.text[is_text(cell)] { (cell) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns whether a cell holds words, which are aligned left. Figures are aligned right.
fn is_text(cell: &str) -> bool {
    let count = |is: fn(&char) -> bool| cell.chars().filter(is).count();
    count(|letter| letter.is_alphabetic()) > count(|letter| letter.is_ascii_digit()) + 2
}

fn figure(image: &str, caption: &str) -> Markup {
    html! { figure role="img" aria-label=(caption) { (PreEscaped(image)) } }
}
