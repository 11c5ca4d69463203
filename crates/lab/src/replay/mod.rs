//! `octavo-lab replay`: a trace under the engine's policies, and under Belady's optimum.
//!
//! | file | what |
//! |---|---|
//! | `args`, `job` | the options, and the job that they ask for |
//! | `engine_side` | the replay of a trace in the engine |
//!
//! For each size of memory, all policies run first. The optimum then gets as many frames as the policy with
//! the most frames, so that it never loses. If no policy is chosen, the default one runs to find this number.

pub mod args;
mod engine_side;
mod job;

use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;
use std::time::Duration;

use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_measure::table::TextTable;
use octavo_trace::{ReplayOutcome, Trace, optimum};
use serde::{Deserialize, Serialize};

use self::args::FormatChoice;
use self::engine_side::Replayed;
use self::job::{Contender, EventCosts, ReplayJob};
use crate::choices::{PolicyChoice, Size, name_of};
use crate::plots::{self, Axes, Series};
use crate::progress::{Pace, TurnProgress};
use crate::table::{self, counted, grouped, percent};

const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;
/// Bytes of the buffer for reading a trace.
const BUFFER_BYTES: usize = 1 << 16;

/// The object that `--json` writes.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReplayReport {
    pub trace: String,
    format: String,
    accesses: u64,
    writes: u64,
    pages: u32,
    costs: EventCosts,
    replays: Vec<ReplayRow>,
}

/// One policy in one size of memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ReplayRow {
    policy: String,
    memory_bytes: u64,
    /// The most frames that were available for pages.
    frames: u64,
    hits: u64,
    misses: u64,
    hit_ratio: f64,
    write_backs: u64,
    cost_seconds: f64,
}

/// Does the job.
pub fn run(job: &ReplayJob) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    let (trace, format) = read(job)?;
    let mut report = ReplayReport {
        trace: job.file.display().to_string(),
        format: name_of(format),
        accesses: trace.accesses(),
        writes: trace.writes(),
        pages: trace.pages(),
        costs: job.costs,
        replays: Vec::new(),
    };
    text.line(headline(&report))?;
    let pace = Pace::new((job.memories.len() * job.contenders.len()) as u32, Duration::ZERO);
    for memory in &job.memories {
        report.replays.extend(replay_in(job, &trace, memory, &pace)?);
    }
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    for memory in &job.memories {
        text.line(format!("\nin {memory}:\n{}", report.table(memory.bytes)))?;
    }
    Ok(())
}

/// Reads the trace, and finds its format.
fn read(job: &ReplayJob) -> Result<(Trace, FormatChoice), Failure> {
    let name = job.file.display();
    let cannot = |error| Failure::system(format!("cannot open the trace {name}"), error);
    let file = BufReader::with_capacity(BUFFER_BYTES, File::open(&job.file).map_err(cannot)?);
    let (trace, format, page_bytes) = octavo_trace::read(file, job.format)
        .map_err(|error| Failure::Said(format!("cannot read the trace {name}: {error}")))?;
    if let Some(bytes) = page_bytes.filter(|bytes| u64::from(*bytes) != PAGE_BYTES) {
        return Err(Failure::Said(format!(
            "the trace {name} has pages of {bytes} bytes, and Octavo's have {PAGE_BYTES}"
        )));
    }
    Ok((trace, FormatChoice::of(format)))
}

/// Replays with all contenders in one size of memory, in the order in which they were named.
fn replay_in(
    job: &ReplayJob,
    trace: &Trace,
    memory: &Size,
    pace: &Arc<Pace>,
) -> Result<Vec<ReplayRow>, Failure> {
    let steps = trace.steps().len() as u64;
    let in_engine = |policy: PolicyChoice| {
        let progress = TurnProgress::turn(pace, format!("{}, {memory}", name_of(policy)), Some(steps));
        engine_side::replay(trace, policy, memory.bytes, progress.counter())
    };
    let mut replayed = Vec::new();
    let mut most_frames = 0;
    for contender in &job.contenders {
        if let Contender::Policy(policy) = contender {
            let Replayed { outcome, frames } = in_engine(*policy)?;
            replayed.push((*contender, outcome, frames));
            most_frames = most_frames.max(frames);
        }
    }
    if let Some(place) = job.contenders.iter().position(|contender| *contender == Contender::Belady) {
        if most_frames == 0 {
            most_frames = in_engine(PolicyChoice::default())?.frames;
        }
        let _progress = TurnProgress::turn(pace, format!("belady, {memory}"), None);
        replayed.insert(place, (Contender::Belady, optimum(trace, most_frames), most_frames));
    }
    let rows = replayed.into_iter().map(|(contender, outcome, frames)| ReplayRow {
        policy: name_of(contender),
        memory_bytes: memory.bytes,
        frames,
        hits: outcome.hits,
        misses: outcome.misses,
        hit_ratio: outcome.hits as f64 / trace.accesses() as f64,
        write_backs: outcome.write_backs,
        cost_seconds: job.costs.seconds(outcome),
    });
    Ok(rows.collect())
}

impl EventCosts {
    fn seconds(self, outcome: ReplayOutcome) -> f64 {
        let pairs = [
            (outcome.hits, self.hit_ns),
            (outcome.misses, self.miss_ns),
            (outcome.write_backs, self.write_back_ns),
        ];
        pairs.into_iter().map(|(times, ns)| times as f64 * ns as f64).sum::<f64>() / 1e9
    }
}

pub fn headline(report: &ReplayReport) -> String {
    let ReplayReport { trace, format, accesses, writes, pages, costs, .. } = report;
    let EventCosts { hit_ns, miss_ns, write_back_ns } = costs;
    format!(
        "{trace} ({format}): {}, {} of them writes, to {} ({}); the first use of each page is a miss\n\
         costs: {} ns a hit, {} ns a miss, {} ns a page written back",
        counted(*accesses, "access", "accesses"),
        grouped(*writes),
        counted((*pages).into(), "page", "pages"),
        table::bytes(u64::from(*pages) * PAGE_BYTES),
        grouped(*hit_ns),
        grouped(*miss_ns),
        grouped(*write_back_ns),
    )
}

impl ReplayReport {
    /// Returns the sizes of memory in bytes, in the order of the rows.
    pub fn memories(&self) -> Vec<u64> {
        let mut memories: Vec<_> = self.replays.iter().map(|row| row.memory_bytes).collect();
        memories.dedup();
        memories
    }

    /// Returns the results of each policy in `memory_bytes` of memory.
    pub fn table(&self, memory_bytes: u64) -> TextTable {
        let mut table = TextTable::new(&["policy", "frames", "hit ratio", "misses", "write-backs", "cost s"]);
        for row in self.replays.iter().filter(|row| row.memory_bytes == memory_bytes) {
            table.row(vec![
                row.policy.clone(),
                grouped(row.frames),
                percent(row.hit_ratio),
                grouped(row.misses),
                grouped(row.write_backs),
                format!("{:.3}", row.cost_seconds),
            ]);
        }
        table
    }

    /// Plots the misses of each policy, in percent of the accesses, over MiB of memory.
    pub fn plot(&self) -> Result<String, Failure> {
        let mut series: Vec<Series> = Vec::new();
        for row in &self.replays {
            let point = (row.memory_bytes as f64 / f64::from(1 << 20), 100.0 * (1.0 - row.hit_ratio));
            match series.iter_mut().find(|series| series.name == row.policy) {
                Some(series) => series.points.push(point),
                None => series.push(Series { name: row.policy.clone(), points: vec![point] }),
            }
        }
        series.iter_mut().for_each(|series| series.points.sort_by(|one, other| one.0.total_cmp(&other.0)));
        plots::curves(Axes { title: "misses", right: "MiB of memory", up: "% of accesses" }, &series)
    }
}
