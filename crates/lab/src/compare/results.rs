//! The files that `--json` writes, as metrics by side.
//!
//! Every number of a run is a sample, except the settings of the run. A metric has its name in the file.
//! Counters have the prefix `counters.`, and shares of time, in percent, `perf-profile.`.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use octavo_command::failure::Failure;

/// Metrics of several sides.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedResults {
    /// The workload of the first side, as a command line.
    pub workload: String,
    pub sides: Vec<ComparedSide>,
    pub metrics: Vec<Metric>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparedSide {
    pub name: String,
    pub runs: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    pub name: String,
    pub kind: MetricKind,
    /// For each side: a sample for each of its runs that has the metric.
    pub samples: Vec<Vec<f64>>,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MetricKind {
    /// How well the workload went.
    Performance,
    /// How often something happened.
    Counter,
    /// Percent of the time.
    Share,
    /// How often something went wrong.
    Failure,
}

impl Metric {
    /// Returns whether any sample is not zero.
    pub fn says_something(&self) -> bool {
        self.samples.iter().flatten().any(|sample| *sample != 0.0)
    }

    /// Returns whether less is better. Less is better for times, and for bytes that are used. Everything else
    /// is a rate.
    pub fn is_less_better(&self) -> bool {
        let is_time = |part: &str| matches!(part, "seconds" | "us" | "ns" | "ms");
        let parts = || self.name.split('_');
        self.kind != MetricKind::Performance
            || self.name.ends_with("_bytes")
            || parts().next_back().is_some_and(is_time)
            || parts().next().is_some_and(is_time)
    }
}

/// Settings of a run, which are not results.
const SETTINGS: [&str; 3] = ["tasks", "budget_bytes", "peak_allowed_bytes"];
/// Numbers of a run that count something.
const COUNTS: [&str; 1] = ["faults"];
/// The metrics that people look at first.
const FIRST: [&str; 4] = ["seconds", "mb_per_s", "usemem_kb_per_s", "faults_per_s"];

impl ComparedResults {
    /// Reads files, each named as `FILE` or `FILE#MODE`. Each is one side. A single `FILE` has a side for
    /// each of its modes.
    pub fn read(files: &[String]) -> Result<Self, Failure> {
        let mut documents = Vec::new();
        for file in files {
            let (path, mode) = path_and_mode(file);
            documents.push((path, mode, Document::read(Path::new(path))?));
        }
        let workload =
            documents.first().map_or_else(String::new, |(_, _, document)| document.workload.clone());
        if let [(path, None, document)] = &documents[..] {
            return Self::of_modes(document).map_err(|why| Failure::Said(format!("{path} {why}")));
        }
        let mut sides = Vec::new();
        for (path, mode, document) in &documents {
            let modes = document.modes();
            let mode = match (mode, &modes[..]) {
                (Some(mode), _) if modes.contains(mode) => *mode,
                (None, [only]) => only,
                (Some(_), _) | (None, _) => {
                    return Err(Failure::Said(format!(
                        "{path} has runs of {}; name one, such as {path}#{}",
                        modes.join(", "),
                        modes[0]
                    )));
                }
            };
            sides.push((name_of(path, mode, &documents), document.runs_of(mode)));
        }
        Ok(Self::of(workload, sides))
    }

    /// Compares the modes of a file's contents. Returns `None` if it has no runs of a workload.
    pub fn of_value(value: Value) -> Option<Self> {
        Document::of(value).map(|document| Self::of_document(&document))
    }

    fn of_document(document: &Document) -> Self {
        let sides = document.modes().into_iter().map(|mode| (mode.to_string(), document.runs_of(mode)));
        Self::of(document.workload.clone(), sides.collect())
    }

    fn of_modes(document: &Document) -> Result<Self, String> {
        match &document.modes()[..] {
            [only] => Err(format!("has runs of {only} alone; name another file to compare them with")),
            _ => Ok(Self::of_document(document)),
        }
    }

    fn of(workload: String, sides: Vec<(String, Vec<&Map<String, Value>>)>) -> Self {
        let mut metrics: Vec<Metric> = Vec::new();
        for (side, (_, runs)) in sides.iter().enumerate() {
            for (name, kind, sample) in runs.iter().flat_map(|run| samples(run)) {
                let metric = match metrics.iter_mut().find(|metric| metric.name == name) {
                    Some(metric) => metric,
                    None => {
                        metrics.push(Metric { name, kind, samples: vec![Vec::new(); sides.len()] });
                        metrics.last_mut().expect("it was just added")
                    }
                };
                metric.samples[side].push(sample);
            }
        }
        metrics.sort_by_cached_key(|metric| {
            let first = FIRST.iter().position(|first| *first == metric.name).unwrap_or(FIRST.len());
            let digits = metric.name.chars().rev().take_while(char::is_ascii_digit).count();
            let (stem, number) = metric.name.split_at(metric.name.len() - digits);
            (first, metric.kind, stem.to_string(), number.parse::<u64>().ok())
        });
        let sides = sides.into_iter().map(|(name, runs)| ComparedSide { name, runs: runs.len() }).collect();
        Self { workload, sides, metrics }
    }

    /// Keeps only metrics whose names contain one of `names`. Keeps all if `names` is empty.
    pub fn keep(&mut self, names: &[String]) -> Result<(), Failure> {
        let is_kept =
            |metric: &Metric| names.is_empty() || names.iter().any(|name| metric.name.contains(name));
        if !self.metrics.iter().any(is_kept) {
            let all: Vec<_> = self.metrics.iter().map(|metric| metric.name.as_str()).collect();
            return Err(Failure::Said(format!(
                "no metric has {} in its name; there are {}",
                names.join(" or "),
                all.join(", ")
            )));
        }
        self.metrics.retain(is_kept);
        Ok(())
    }

    /// Returns the first word of the workload's command line.
    pub fn program(&self) -> &str {
        self.workload.split_whitespace().next().unwrap_or("octavo")
    }
}

/// A file may have a # in its name, so only what follows the last one can be a mode.
fn path_and_mode(file: &str) -> (&str, Option<&str>) {
    match file.rsplit_once('#') {
        Some((path, mode)) if !Path::new(file).exists() => (path, Some(mode)),
        _ => (file, None),
    }
}

/// Returns the name of a side, as short as possible.
fn name_of(path: &str, mode: &str, all: &[(&str, Option<&str>, Document)]) -> String {
    let stem = Path::new(path).file_stem().map_or_else(|| path.into(), |stem| stem.to_string_lossy());
    let is_one_file = all.iter().all(|(other, ..)| *other == path);
    let has_modes = all.iter().any(|(_, mode, _)| mode.is_some());
    match (is_one_file && has_modes, has_modes) {
        (true, _) => mode.into(),
        (false, true) => format!("{stem}#{mode}"),
        (false, false) => stem.into(),
    }
}

/// The contents of a file.
#[derive(Debug)]
struct Document {
    workload: String,
    /// Each run has a mode.
    runs: Vec<Map<String, Value>>,
}

impl Document {
    fn read(path: &Path) -> Result<Self, Failure> {
        let name = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::system(format!("cannot read the results {name}"), error))?;
        let value = serde_json::from_str(&text)
            .map_err(|error| Failure::Said(format!("the results {name} are not JSON: {error}")))?;
        Self::of(value).ok_or_else(|| {
            Failure::Said(format!(
                "{name} has no runs of a workload; give what usemem, the swap commands or udp-stream wrote with --json"
            ))
        })
    }

    /// Returns `None` if there is no run, or one without a mode.
    fn of(value: Value) -> Option<Self> {
        let Value::Object(mut object) = value else { return None };
        let Some(Value::Array(runs)) = object.remove("runs") else { return None };
        let run = |run| match run {
            Value::Object(run) if run.get("mode").is_some_and(Value::is_string) => Some(run),
            _ => None,
        };
        let runs: Vec<_> = runs.into_iter().map(run).collect::<Option<_>>()?;
        let workload = object.get("workload").and_then(Value::as_str).unwrap_or_default().into();
        (!runs.is_empty()).then_some(Self { workload, runs })
    }

    /// Returns the modes in the order of their first runs.
    fn modes(&self) -> Vec<&str> {
        let mut modes = Vec::new();
        for run in &self.runs {
            let mode = mode_of(run);
            if !modes.contains(&mode) {
                modes.push(mode);
            }
        }
        modes
    }

    fn runs_of(&self, mode: &str) -> Vec<&Map<String, Value>> {
        self.runs.iter().filter(|run| mode_of(run) == mode).collect()
    }
}

fn mode_of(run: &Map<String, Value>) -> &str {
    run.get("mode").and_then(Value::as_str).unwrap_or_default()
}

/// Returns the samples of a run.
fn samples(run: &Map<String, Value>) -> Vec<(String, MetricKind, f64)> {
    let mut all = Vec::new();
    let parts = [
        ("measures", "", MetricKind::Performance),
        ("failures", "", MetricKind::Failure),
        ("counters", "counters.", MetricKind::Counter),
        ("shares", "perf-profile.", MetricKind::Share),
    ];
    for (name, value) in run {
        if let Some(sample) = value.as_f64().filter(|_| !SETTINGS.contains(&name.as_str())) {
            let kind =
                if COUNTS.contains(&name.as_str()) { MetricKind::Counter } else { MetricKind::Performance };
            all.push((name.clone(), kind, sample));
        }
    }
    for (part, prefix, kind) in parts {
        let Some(values) = run.get(part).and_then(Value::as_object) else { continue };
        let unit = if kind == MetricKind::Share { 100.0 } else { 1.0 };
        let values = values.iter().filter(|(name, _)| !SETTINGS.contains(&name.as_str()));
        all.extend(values.filter_map(|(name, value)| {
            value.as_f64().map(|sample| (format!("{prefix}{name}"), kind, sample * unit))
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(documents: &[(&str, Value)]) -> (tempfile::TempDir, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let write = |(name, value): &(&str, Value)| {
            let path = folder.path().join(name);
            fs::write(&path, value.to_string()).unwrap();
            path.display().to_string()
        };
        let paths = documents.iter().map(write).collect();
        (folder, paths)
    }

    fn usemem(modes: &[&str]) -> Value {
        let run = |mode: &&str| {
            json!({"mode": mode, "tasks": 2, "budget_bytes": 1, "seconds": 2.5, "faults": 7, "usemem_kb_per_s": null,
                   "measures": {"loads_per_s": 8.0}, "counters": {"pswpout": 9}, "shares": {"get": 0.25}})
        };
        json!({"workload": "usemem -n 2", "runs": modes.iter().map(run).collect::<Vec<_>>(), "ratios": []})
    }

    #[test]
    fn every_number_of_a_run_is_a_sample_but_its_settings() {
        let (_folder, paths) = files(&[("one.json", usemem(&["base", "best", "base"]))]);
        let read = ComparedResults::read(&paths).unwrap();
        assert_eq!((read.program(), read.workload.as_str()), ("usemem", "usemem -n 2"));
        let sides: Vec<_> = read.sides.iter().map(|side| (side.name.as_str(), side.runs)).collect();
        assert_eq!(sides, [("base", 2), ("best", 1)]);
        let metrics: Vec<_> =
            read.metrics.iter().map(|m| (m.name.as_str(), m.kind, m.samples[0].clone())).collect();
        assert_eq!(
            metrics,
            [
                ("seconds", MetricKind::Performance, vec![2.5, 2.5]),
                ("loads_per_s", MetricKind::Performance, vec![8.0, 8.0]),
                ("counters.pswpout", MetricKind::Counter, vec![9.0, 9.0]),
                ("faults", MetricKind::Counter, vec![7.0, 7.0]),
                ("perf-profile.get", MetricKind::Share, vec![25.0, 25.0]),
            ]
        );
    }

    #[test]
    fn sizes_stand_in_their_order() {
        let run =
            json!({"mode": "base", "seconds": 1, "measures": {"send-128": 1, "send-16384": 1, "send-64": 1}});
        let document = json!({"workload": "udp-stream", "runs": [run]});
        let names: Vec<_> = ComparedResults::of_value(document)
            .unwrap()
            .metrics
            .into_iter()
            .map(|metric| metric.name)
            .collect();
        assert_eq!(names, ["seconds", "send-64", "send-128", "send-16384"]);
    }

    #[test]
    fn sides_are_named_by_what_tells_them_apart() {
        let (_folder, paths) =
            files(&[("old.json", usemem(&["base", "best"])), ("new.json", usemem(&["best"]))]);
        let names = |files: &[String]| {
            let sides = ComparedResults::read(files).unwrap().sides;
            sides.into_iter().map(|side| side.name).collect::<Vec<_>>()
        };
        let of = |path: &String, mode: &str| format!("{path}#{mode}");
        assert_eq!(names(&[paths[1].clone(), paths[1].clone()]), ["new", "new"]);
        assert_eq!(names(&[of(&paths[0], "best"), paths[1].clone()]), ["old#best", "new#best"]);
        assert_eq!(names(&[of(&paths[0], "best"), of(&paths[0], "base")]), ["best", "base"]);
    }

    #[test]
    fn what_cannot_be_compared_is_said_with_what_can() {
        let (folder, paths) = files(&[
            ("two.json", usemem(&["base", "best"])),
            ("one.json", usemem(&["best"])),
            ("lab.json", json!({"experiment": "pin"})),
            ("none.json", json!({"runs": []})),
            ("no-mode.json", json!({"runs": [{"seconds": 1}]})),
        ]);
        let said = |files: &[String]| ComparedResults::read(files).unwrap_err().to_string();
        assert!(
            said(&paths[..2]).contains("has runs of base, best; name one, such as"),
            "{}",
            said(&paths[..2])
        );
        assert!(said(&[format!("{}#worst", paths[0]), paths[1].clone()]).contains("base, best"));
        assert!(said(&paths[1..2]).contains("name another file"));
        for path in &paths[2..] {
            assert!(said(std::slice::from_ref(path)).contains("no runs of a workload"));
        }
        let missing = folder.path().join("missing.json").display().to_string();
        assert!(said(&[missing]).starts_with("cannot read the results"));
        fs::write(&paths[0], "{").unwrap();
        assert!(said(&paths[..1]).contains("not JSON"));
    }

    #[test]
    fn metrics_are_chosen_by_a_part_of_their_name() {
        let (_folder, paths) = files(&[("one.json", usemem(&["base", "best"]))]);
        let mut read = ComparedResults::read(&paths).unwrap();
        assert!(
            read.keep(&["nothing".into()])
                .unwrap_err()
                .to_string()
                .contains("there are seconds, loads_per_s")
        );
        read.keep(&["sec".into(), "pswp".into()]).unwrap();
        assert_eq!(read.metrics.len(), 2);
    }

    #[test]
    fn the_better_way_of_a_metric_is_known_by_its_unit() {
        let less =
            |name: &str, kind| Metric { name: name.into(), kind, samples: Vec::new() }.is_less_better();
        for name in ["seconds", "fill_seconds", "us_per_load", "peak_rss_bytes"] {
            assert!(less(name, MetricKind::Performance), "{name}");
        }
        for name in ["mb_per_s", "usemem_kb_per_s", "loads_per_s", "send-64"] {
            assert!(!less(name, MetricKind::Performance), "{name}");
        }
        assert!(less("counters.pswpout", MetricKind::Counter) && less("perf-profile.get", MetricKind::Share));
    }
}
