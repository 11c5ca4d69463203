//! The object that `--json` writes, which has the same shape for every workload.
//!
//! `{"workload", "runs": [{"mode", "tasks", "budget_bytes", "seconds", "mb_per_s", "usemem_kb_per_s",
//! "faults", "faults_per_s", "peak_rss_bytes", "counters": {…}, "shares": {function: share}}], "ratios":
//! [{"of", "to", "metric", "median", "min", "max"}]}`
//!
//! The swap commands add `"measures": {name: figure}` to each run, named with their units. A failed run has
//! `"failures": {name: 1}`.
//!
//! `mode` is `base`, `patched`, `best`, `kernel`, `zram` or `disk`. The kernel's modes with `-huge` at the
//! end use transparent huge pages. A ratio above 1 means that `of` is better, whether less or more of the
//! metric is better. Each ratio compares two runs of the same round, which ran next to each other.

use std::borrow::Cow;
use std::collections::BTreeMap;

use octavo_measure::statistics::Spread;
use serde::Serialize;

/// All runs of a workload, and the ratios between its modes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadReport {
    /// The workload with its options, as a command line.
    pub workload: String,
    /// Every run, in the order they were made.
    pub runs: Vec<ModeRun>,
    /// A ratio for each pair of modes and each [`ModeMetric`] that both have.
    pub ratios: Vec<Ratio>,
}

/// One run of one mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ModeRun {
    pub mode: String,
    pub tasks: u64,
    /// Null if there is no budget: the kernel uses all memory of the machine.
    pub budget_bytes: Option<u64>,
    /// The job's time, from the first task's start to the last one's end.
    pub seconds: f64,
    /// The rate in bytes of memory that the job touched or, for random loads, in bytes that came back for
    /// them.
    pub mb_per_s: f64,
    /// The rate as usemem counts it: see [`usemem_kb_per_s`]. Null if usemem has no such command.
    pub usemem_kb_per_s: Option<u64>,
    pub faults: u64,
    pub faults_per_s: f64,
    pub peak_rss_bytes: u64,
    pub counters: BTreeMap<String, u64>,
    /// Share of sampled time by function. Empty if nothing was sampled.
    pub shares: BTreeMap<String, f64>,
    /// Other measures, named with their units.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub measures: BTreeMap<Cow<'static, str>, f64>,
    /// Failures, each at most once a run.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<&'static str, u64>,
}

/// Returns the failures of a run, whose data `is_wrong` or not.
pub fn failures(is_wrong: bool) -> BTreeMap<&'static str, u64> {
    is_wrong.then_some(("wrong_data", 1)).into_iter().collect()
}

impl ModeRun {
    /// Returns one of the measures. NaN if it was not taken.
    pub fn measure(&self, name: &str) -> f64 {
        self.measures.get(name).copied().unwrap_or(f64::NAN)
    }
}

/// Returns the median of a figure over runs. NaN if there are none.
pub fn median_of(runs: &[&ModeRun], value: impl Fn(&ModeRun) -> f64) -> f64 {
    Spread::of(runs.iter().map(|run| value(run))).map_or(f64::NAN, |spread| spread.median)
}

/// A figure by which modes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeMetric {
    Seconds,
    /// The rate as usemem counts it.
    UsememKbPerS,
    /// Bytes moved to and from the swap device, once it was in use.
    DeviceMbPerS,
    LoadsPerS,
    /// Pages that came back.
    RefaultsPerS,
    TransactionsPerS,
}

/// The ratio by which `of` is better than `to`, over the rounds of one command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    pub of: String,
    pub to: String,
    pub metric: ModeMetric,
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl ModeMetric {
    /// Returns the metric's name for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::UsememKbPerS => "usemem's KB/s",
            Self::DeviceMbPerS => "steady MB/s",
            Self::LoadsPerS => "loads/s",
            Self::RefaultsPerS => "pages back/s",
            Self::TransactionsPerS => "transactions/s",
        }
    }

    /// Returns the run's figure. NaN if it has none.
    fn value(self, run: &ModeRun) -> f64 {
        match self {
            Self::Seconds => run.seconds,
            Self::UsememKbPerS => run.usemem_kb_per_s.map_or(f64::NAN, |kb_per_s| kb_per_s as f64),
            Self::DeviceMbPerS => run.measure("device_mb_per_s"),
            Self::LoadsPerS => run.measure("loads_per_s"),
            Self::RefaultsPerS => run.measure("refaults_per_s"),
            Self::TransactionsPerS => run.measure("transactions_per_s"),
        }
    }

    /// Returns the ratio by which one value is better than another.
    fn advantage(self, of: f64, to: f64) -> f64 {
        if self == Self::Seconds { to / of } else { of / to }
    }
}

impl WorkloadReport {
    /// Makes a report of runs, in the order in which they were made. In each pair of `modes`, the later is
    /// compared to the earlier. A metric that a run does not have is left out.
    pub fn new(workload: String, runs: Vec<ModeRun>, modes: &[&str], metrics: &[ModeMetric]) -> Self {
        let ratios = ratios(&runs, modes, metrics);
        Self { workload, runs, ratios }
    }

    /// Returns the mode among these with the best median of `metric`, the first among equals.
    pub fn best_of<'n>(&self, names: &[&'n str], metric: ModeMetric) -> Option<&'n str> {
        let median = |name: &str| median_of(&self.runs_of(name).collect::<Vec<_>>(), |run| metric.value(run));
        names
            .iter()
            .copied()
            .reduce(|best, name| if metric.advantage(median(name), median(best)) > 1.0 { name } else { best })
    }

    /// Returns the runs of one mode.
    pub fn runs_of<'a>(&'a self, mode: &'a str) -> impl Iterator<Item = &'a ModeRun> + 'a {
        self.runs.iter().filter(move |run| run.mode == mode)
    }
}

/// Returns the rate that usemem prints for one task, in 1024 bytes a second.
pub fn usemem_kb_per_s(bytes: u64, usecs: u64) -> u64 {
    let per_second = ((u128::from(bytes) * 1_000_000) >> 10) / u128::from(usecs);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

fn ratios(runs: &[ModeRun], modes: &[&str], metrics: &[ModeMetric]) -> Vec<Ratio> {
    let by_mode = |mode: &str| runs.iter().filter(move |run| run.mode == mode).collect::<Vec<_>>();
    let mut ratios = Vec::new();
    for (index, to) in modes.iter().enumerate() {
        for of in &modes[index + 1..] {
            let (of_runs, to_runs) = (by_mode(of), by_mode(to));
            for &metric in metrics {
                // The nth run of one mode is compared with the nth of the other.
                let rounds = of_runs
                    .iter()
                    .zip(&to_runs)
                    .map(|(of, to)| metric.advantage(metric.value(of), metric.value(to)));
                if let Some(Spread { median, min, max }) =
                    Spread::of(rounds.filter(|ratio| ratio.is_finite()))
                {
                    ratios.push(Ratio { of: of.to_string(), to: to.to_string(), metric, median, min, max });
                }
            }
        }
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [ModeMetric; 2] = [ModeMetric::Seconds, ModeMetric::UsememKbPerS];

    fn run(mode: &str, seconds: f64, usemem_kb_per_s: u64) -> ModeRun {
        ModeRun {
            mode: mode.into(),
            tasks: 1,
            seconds,
            mb_per_s: 1.0,
            usemem_kb_per_s: Some(usemem_kb_per_s),
            faults: 3,
            faults_per_s: 3.0 / seconds,
            ..ModeRun::default()
        }
    }

    #[test]
    fn a_measure_that_one_side_lacks_is_not_compared() {
        let measured = |mode, figure| ModeRun {
            measures: BTreeMap::from([("loads_per_s".into(), figure)]),
            ..run(mode, 1.0, 1)
        };
        let runs = vec![measured("disk", 2.0), measured("best", 3.0)];
        let report = WorkloadReport::new(
            "w".into(),
            runs,
            &["disk", "best"],
            &[ModeMetric::LoadsPerS, ModeMetric::DeviceMbPerS],
        );
        assert_eq!(report.ratios.len(), 1);
        assert_eq!((report.ratios[0].metric, report.ratios[0].median), (ModeMetric::LoadsPerS, 1.5));
    }

    #[test]
    fn a_ratio_above_one_means_that_of_is_better_for_every_metric() {
        let runs =
            vec![run("base", 2.0, 100), run("best", 1.0, 300), run("best", 2.0, 100), run("base", 8.0, 50)];
        let report = WorkloadReport::new("test".into(), runs, &["base", "best"], &BOTH);
        assert_eq!(report.ratios.len(), 2);
        assert!(report.ratios.iter().all(|ratio| ratio.of == "best" && ratio.to == "base"));
        let seconds = &report.ratios[0];
        assert_eq!(
            (seconds.metric, seconds.min, seconds.median, seconds.max),
            (ModeMetric::Seconds, 2.0, 3.0, 4.0)
        );
        assert_eq!((report.ratios[1].min, report.ratios[1].max), (2.0, 3.0));
    }

    #[test]
    fn every_pair_is_compared_and_one_mode_alone_is_not() {
        let runs = ["kernel", "base", "patched", "best"].map(|mode| run(mode, 1.0, 1));
        let report =
            WorkloadReport::new("test".into(), runs.to_vec(), &["kernel", "base", "patched", "best"], &BOTH);
        assert_eq!(report.ratios.len(), 6 * BOTH.len());
        assert!(
            WorkloadReport::new("test".into(), vec![run("best", 1.0, 1)], &["best"], &BOTH).ratios.is_empty()
        );
    }

    #[test]
    fn the_keys_are_the_documented_ones() {
        let report = WorkloadReport::new(
            "w".into(),
            vec![run("base", 1.0, 1), run("best", 1.0, 1)],
            &["base", "best"],
            &BOTH,
        );
        let json = serde_json::to_value(&report).unwrap();
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<std::collections::BTreeSet<_>>()
        };
        let expect = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        assert_eq!(keys(&json), expect(&["workload", "runs", "ratios"]));
        assert_eq!(
            keys(&json["runs"][0]),
            expect(&[
                "mode",
                "tasks",
                "budget_bytes",
                "seconds",
                "mb_per_s",
                "usemem_kb_per_s",
                "faults",
                "faults_per_s",
                "peak_rss_bytes",
                "counters",
                "shares"
            ])
        );
        assert_eq!(keys(&json["ratios"][0]), expect(&["of", "to", "metric", "median", "min", "max"]));
        assert_eq!(json["ratios"][1]["metric"], "usemem_kb_per_s");
    }

    #[test]
    fn the_better_of_two_is_the_one_with_the_better_median() {
        let of = |base: f64, huge: f64| {
            let runs = vec![run("kernel", base, 1), run("kernel-huge", huge, 1), run("best", 1.0, 1)];
            let names = ["kernel", "kernel-huge", "best"];
            WorkloadReport::new("w".into(), runs, &names, &BOTH).best_of(&names[..2], ModeMetric::Seconds)
        };
        assert_eq!(of(2.0, 1.5), Some("kernel-huge"));
        assert_eq!(of(1.5, 2.0), Some("kernel"));
        assert_eq!(of(2.0, 2.0), Some("kernel"));
        // Round by round, the second is better in the mean, but its median is worse.
        let rounds = [("kernel", 1.9), ("kernel-huge", 1.0), ("kernel", 0.5), ("kernel-huge", 2.7)];
        let runs = rounds.map(|(side, seconds)| run(side, seconds, 1)).to_vec();
        let report = WorkloadReport::new("w".into(), runs, &["kernel", "kernel-huge"], &BOTH);
        assert!(report.ratios[0].median > 1.0);
        assert_eq!(report.best_of(&["kernel", "kernel-huge"], ModeMetric::Seconds), Some("kernel"));
        let alone = WorkloadReport::new("w".into(), vec![run("kernel", 1.0, 1)], &["kernel"], &BOTH);
        assert_eq!(alone.best_of(&["kernel"], ModeMetric::Seconds), Some("kernel"));
        assert_eq!(alone.best_of(&[], ModeMetric::Seconds), None);
    }

    #[test]
    fn kilobytes_are_counted_as_usemem_counts_them() {
        // The figures of Linux commit 6fcb52a56ff6: 13,422,182,400 bytes in 303,970 us.
        assert_eq!(
            usemem_kb_per_s(13_422_182_400, 303_970),
            ((13_422_182_400u64 * 1_000_000) >> 10) / 303_970
        );
        assert_eq!(usemem_kb_per_s(1024, 1), 1_000_000);
        assert_eq!(usemem_kb_per_s(u64::MAX, 1), u64::MAX);
    }
}
