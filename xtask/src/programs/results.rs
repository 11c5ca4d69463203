//! The measurements of a row.

use serde_json::{Value, json};

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum RunEnd {
    /// The run succeeded.
    Well,
    /// The kernel killed a process of the run for lack of memory.
    Killed,
    /// The run exceeded its time limit.
    TooLong,
    /// The run failed. The text is the end of its output.
    Failed(String),
}

/// One run.
#[derive(Clone, Debug)]
pub struct ProgramRun {
    pub end: RunEnd,
    pub seconds: f64,
    /// The part of standard output that the row compares.
    pub output: String,
    pub peak_bytes: u64,
    /// The output of `octavo run --json`.
    pub report: Option<Value>,
    /// The kernel's charges to Octavo's group.
    pub charged: Option<Charged>,
}

/// The kernel's charges to a group without a limit, including Octavo's runner and helpers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    /// The peak of all memory, including page cache and page tables. The kernel records it, so it is exact.
    pub peak_bytes: Option<u64>,
    /// The peak of anonymous memory, which the budget limits. Sampled.
    pub anonymous_peak_bytes: u64,
    /// The most processes at once, without the runner and its helpers. Sampled.
    pub processes: u64,
}

impl Charged {
    /// Returns the most that a tree may use: its budget plus 3 %, 16 MiB, and 2 MiB a process.
    pub fn bound_bytes(&self, budget_bytes: u64) -> u64 {
        budget_bytes + budget_bytes * 3 / 100 + (16 << 20) + self.processes * (2 << 20)
    }
}

/// All runs of one row.
#[derive(Clone, Debug)]
pub struct RowOutcome {
    pub name: &'static str,
    pub plain: ProgramRun,
    pub budget_bytes: u64,
    pub octavo: Option<ProgramRun>,
    pub kernel_without_swap: Option<ProgramRun>,
    pub kernel: Option<ProgramRun>,
}

impl RowOutcome {
    /// Returns a figure that Octavo reports.
    pub fn reported(&self, name: &str) -> Option<f64> {
        self.octavo.as_ref()?.report.as_ref()?.get(name)?.as_f64()
    }

    fn same(&self, run: &Option<ProgramRun>) -> Option<bool> {
        run.as_ref().map(|run| run.end == RunEnd::Well && run.output == self.plain.output)
    }

    /// Returns whether the output under Octavo equals the output of the plain run.
    pub fn octavo_same(&self) -> Option<bool> {
        self.same(&self.octavo)
    }

    /// Returns whether the kernel killed the program that had no swap.
    pub fn killed_without(&self) -> Option<bool> {
        self.kernel_without_swap.as_ref().map(|run| run.end == RunEnd::Killed)
    }

    /// Returns sentences that say what is wrong.
    pub fn complaints(&self) -> Vec<String> {
        let mut complaints = Vec::new();
        for (side, run) in [("octavo", &self.octavo), ("kernel swap", &self.kernel)] {
            let Some(run) = run else { continue };
            match &run.end {
                RunEnd::Failed(why) => complaints.push(format!("failed under {side}: {why}")),
                // With swap, the kernel may kill or be slow. The table shows both.
                RunEnd::Killed | RunEnd::TooLong if side == "kernel swap" => {}
                RunEnd::Killed => complaints.push(format!("was killed under {side}")),
                RunEnd::TooLong => complaints.push(format!("took too long under {side}")),
                RunEnd::Well if run.output != self.plain.output => {
                    complaints.push(format!("gave another output under {side}"));
                }
                RunEnd::Well => {}
            }
        }
        if let Some(charged) = self.octavo.as_ref().and_then(|run| run.charged) {
            let bound = charged.bound_bytes(self.budget_bytes);
            if charged.anonymous_peak_bytes > bound {
                complaints.push(format!(
                    "had {} MiB of anonymous memory under octavo, where {} MiB is the most for its budget",
                    charged.anonymous_peak_bytes >> 20,
                    bound >> 20
                ));
            }
        }
        complaints
    }
}

/// Returns all figures.
pub fn json(outcomes: &[RowOutcome]) -> Value {
    let run = |run: &Option<ProgramRun>| match run {
        None => Value::Null,
        Some(run) => {
            json!({ "end": end(&run.end), "seconds": run.seconds, "report": run.report, "charged": charged(run) })
        }
    };
    let row = |outcome: &RowOutcome| {
        json!({
            "program": outcome.name,
            "plain": run(&Some(outcome.plain.clone())),
            "peak_bytes": outcome.plain.peak_bytes,
            "budget_bytes": outcome.budget_bytes,
            "octavo": run(&outcome.octavo),
            "kernel": run(&outcome.kernel),
            "kernel_without_swap": run(&outcome.kernel_without_swap),
            "octavo_same": outcome.octavo_same(),
            "kernel_same": outcome.same(&outcome.kernel),
        })
    };
    Value::Array(outcomes.iter().map(row).collect())
}

fn charged(run: &ProgramRun) -> Value {
    run.charged.map_or(Value::Null, |charged| {
        json!({
            "peak_bytes": charged.peak_bytes,
            "anonymous_peak_bytes": charged.anonymous_peak_bytes,
            "processes": charged.processes,
        })
    })
}

fn end(end: &RunEnd) -> String {
    match end {
        RunEnd::Well => "well".into(),
        RunEnd::Killed => "killed".into(),
        RunEnd::TooLong => "too long".into(),
        RunEnd::Failed(why) => format!("failed: {why}"),
    }
}
