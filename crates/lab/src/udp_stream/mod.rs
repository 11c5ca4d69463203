//! `octavo-lab udp-stream`: netperf's UDP_STREAM over loopback, with message buffers from Octavo's frames.
//!
//! | file | what |
//! |---|---|
//! | `args` | the options |
//! | `message` | the contents of a message |
//! | `sender` | the thread that sends, the thread that frees |
//! | `receiver` | the process that receives |
//!
//! This is the workload of *mm/page_alloc: allow high-order pages to be stored on the per-cpu lists* (Linux
//! 5.14, commit 44042b449872), as mmtests runs it: `netperf -t UDP_STREAM -i 3,3 -I 95,5` for nine sizes,
//! five times. An iteration is the mean of three runs. Like netperf, it complains if the true mean may be
//! more than 2.5 % off. Forms take turns run by run, so that a slow phase of the machine hits all alike.
//!
//! Two things differ from the kernel. A message's bytes lie in Octavo's frames *and*, while it is on its way,
//! in the kernel's own, since the socket copies them. So the kernel's allocator works for each message too,
//! and Octavo's is a smaller part of the whole. The second difference: a thread of the sender frees the
//! messages, instead of the receiver.

pub mod args;
mod message;
pub mod receiver;
mod sender;

use std::collections::BTreeMap;
use std::time::Duration;

use octavo::frame::FrameAllocator;
use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_experiments::comparison::{Evidence, FormFigures};
use octavo_experiments::percpu_lists;
use octavo_measure::statistics::{harmonic_mean, interval_width, mean};
use octavo_measure::table::TextTable;

use self::sender::{Sent, UdpStream};
use crate::choices::{JsonTarget, Mode, ModeChoice};
use crate::progress::{Pace, TurnProgress};
use crate::report::{ModeRun, WorkloadReport, failures};
use crate::table::{counted, percent};

/// The widest interval that netperf's `-I 95,5` accepts.
const WIDEST: f64 = 0.05;

/// The options of a run.
#[derive(Clone, Debug)]
pub struct StreamJob {
    pub modes: Vec<Mode>,
    pub sizes: Vec<u64>,
    pub iterations: u32,
    pub runs: u32,
    pub time: Duration,
    pub json: Option<JsonTarget>,
}

/// The measurements of an iteration of a form, by size.
#[derive(Clone, Debug, Default)]
struct Iteration {
    /// 10^6 bit/s of each run.
    runs: BTreeMap<u64, Vec<f64>>,
    seconds: f64,
    sent: u64,
    sent_bytes: u64,
    received: u64,
    wrong: u64,
}

pub fn run(job: &StreamJob) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    let iterations = measure(job)?;
    text.line(workload(job))?;
    text.line(table_of(job, &iterations))?;
    iterations_note(job, &iterations).iter().try_for_each(|line| text.line(line))?;
    let report = report_of(job, &iterations);
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    match iterations.iter().flatten().map(|iteration| iteration.wrong).sum::<u64>() {
        0 => Ok(()),
        wrong => Err(Failure::Said(format!(
            "{} came otherwise than sent; this is an error in octavo",
            counted(wrong, "message", "messages")
        ))),
    }
}

/// Returns the lines of the lab's experiment: every form and published size, in less time than [`run`] takes.
pub fn lines() -> Result<Vec<FormFigures>, Failure> {
    let job = StreamJob {
        modes: ModeChoice::All.modes(),
        sizes: percpu_lists::PUBLISHED.map(|(bytes, ..)| bytes).to_vec(),
        iterations: 3,
        runs: 3,
        time: Duration::from_millis(100),
        json: None,
    };
    let iterations = measure(&job)?;
    let line = |(bytes, base, patched): (u64, f64, f64)| {
        let means = hmeans(&iterations, bytes).try_into().expect("three forms");
        FormFigures::new(percpu_lists::figure(bytes), Evidence::Measured).of(means).beside(patched / base)
    };
    Ok(percpu_lists::PUBLISHED.map(line).to_vec())
}

/// Measures all iterations of each mode.
fn measure(job: &StreamJob) -> Result<Vec<Vec<Iteration>>, Failure> {
    let frames: Vec<FrameAllocator> =
        job.modes.iter().map(|mode| sender::allocator(*mode)).collect::<Result<_, _>>()?;
    let mut stream = UdpStream::open()?;
    let runs = job.iterations * job.runs * (job.sizes.len() * job.modes.len()) as u32;
    let pace = Pace::new(job.iterations, job.time * runs / job.iterations);
    let mut all = vec![Vec::new(); job.modes.len()];
    for iteration in 0..job.iterations as usize {
        all.iter_mut().for_each(|iterations: &mut Vec<Iteration>| iterations.push(Iteration::default()));
        let title = format!("iteration {} of {}", iteration + 1, job.iterations);
        let _progress = TurnProgress::turn(&pace, title, None);
        for &size in &job.sizes {
            for run in 0..job.runs as usize {
                for turn in 0..job.modes.len() {
                    let mode = (turn + run + iteration) % job.modes.len();
                    let sent = stream.run(&frames[mode], size, job.time)?;
                    all[mode][iteration].add(size, sent);
                }
            }
        }
    }
    Ok(all)
}

impl Iteration {
    fn add(&mut self, size: u64, sent: Sent) {
        let megabits = (sent.messages * size * 8) as f64 / sent.seconds / 1e6;
        self.runs.entry(size).or_default().push(megabits);
        self.seconds += sent.seconds;
        self.sent += sent.messages;
        self.sent_bytes += sent.messages * size;
        self.received += sent.received;
        self.wrong += sent.wrong;
    }
}

/// Returns the harmonic means of a size, by mode.
fn hmeans(iterations: &[Vec<Iteration>], size: u64) -> Vec<f64> {
    let of_mode = |of: &Vec<Iteration>| {
        let means: Vec<f64> = of.iter().map(|iteration| mean(&iteration.runs[&size])).collect();
        harmonic_mean(&means)
    };
    iterations.iter().map(of_mode).collect()
}

fn workload(job: &StreamJob) -> String {
    let sizes: Vec<_> = job.sizes.iter().map(u64::to_string).collect();
    format!(
        "udp-stream --sizes {} --iterations {} --runs {} --seconds {}",
        sizes.join(","),
        job.iterations,
        job.runs,
        job.time.as_secs_f64()
    )
}

fn table_of(job: &StreamJob, iterations: &[Vec<Iteration>]) -> TextTable {
    let mut header = vec!["Hmean, 10^6 bit/s".to_string()];
    for (place, mode) in job.modes.iter().enumerate() {
        header.push(mode.name().into());
        if place > 0 {
            header.push(format!("to {}", job.modes[0].name()));
        }
    }
    let mut table = TextTable::new(&header);
    for &size in &job.sizes {
        let means = hmeans(iterations, size);
        let mut row = vec![format!("send-{size}")];
        for (place, mean) in means.iter().enumerate() {
            row.push(format!("{mean:.2}"));
            if place > 0 {
                row.push(format!("{:+.2} %", 100.0 * (mean / means[0] - 1.0)));
            }
        }
        table.row(row);
    }
    table
}

/// Says how reliable the figures are.
fn iterations_note(job: &StreamJob, iterations: &[Vec<Iteration>]) -> Vec<String> {
    let all = || iterations.iter().flatten();
    let widths =
        || all().flat_map(|iteration| iteration.runs.values()).filter_map(|runs| interval_width(runs));
    let (wide, count) = (widths().filter(|width| *width > WIDEST).count(), widths().count());
    let (sent, received): (u64, u64) =
        (all().map(|iteration| iteration.sent).sum(), all().map(|iteration| iteration.received).sum());
    vec![
        format!(
            "{} of {} runs each; in {wide} of {count} the 95 % interval is wider than {} of the mean",
            counted(job.iterations.into(), "iteration", "iterations"),
            job.runs,
            percent(WIDEST)
        ),
        format!(
            "{} of what was sent was received, and looked at",
            percent(received as f64 / sent.max(1) as f64)
        ),
    ]
}

fn report_of(job: &StreamJob, iterations: &[Vec<Iteration>]) -> WorkloadReport {
    let mut runs = Vec::new();
    for iteration in 0..job.iterations as usize {
        for (mode, of_mode) in job.modes.iter().zip(iterations) {
            let iteration = &of_mode[iteration];
            let rate = |(size, runs): (&u64, &Vec<f64>)| (format!("send-{size}").into(), mean(runs));
            runs.push(ModeRun {
                mode: mode.name().into(),
                tasks: 2,
                seconds: iteration.seconds,
                mb_per_s: iteration.sent_bytes as f64 / iteration.seconds / 1e6,
                measures: iteration.runs.iter().map(rate).collect(),
                failures: failures(iteration.wrong > 0),
                counters: [("sent".into(), iteration.sent), ("received".into(), iteration.received)].into(),
                ..ModeRun::default()
            });
        }
    }
    let names: Vec<&str> = job.modes.iter().map(|mode| mode.name()).collect();
    WorkloadReport::new(workload(job), runs, &names, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> StreamJob {
        let time = Duration::from_millis(300);
        StreamJob {
            modes: vec![Mode::Base, Mode::Patched],
            sizes: vec![64],
            iterations: 2,
            runs: 3,
            time,
            json: None,
        }
    }

    fn iteration(messages: [u64; 3]) -> Iteration {
        let mut iteration = Iteration::default();
        for messages in messages {
            iteration.add(64, Sent { messages, received: messages / 2, wrong: 0, seconds: 0.5 });
        }
        iteration
    }

    #[test]
    fn an_iteration_is_the_mean_of_its_runs_and_iterations_have_a_harmonic_one() {
        // 10^6 messages of 64 bytes in half a second are 1024 * 10^6 bit/s.
        let base = vec![iteration([1_000_000; 3]), iteration([1_000_000, 2_000_000, 3_000_000])];
        let patched = vec![iteration([2_000_000; 3]), iteration([2_000_000; 3])];
        let all = [base, patched];
        // 2 / (1/1024 + 1/2048)
        assert_eq!(hmeans(&all, 64), [4096.0 / 3.0, 2048.0]);
        let table = table_of(&job(), &all).to_string();
        assert!(table.ends_with("send-64            1365.33  2048.00  +50.00 %"), "{table}");
        let notes = iterations_note(&job(), &all);
        assert!(notes[0].contains("in 1 of 4 the 95 % interval is wider"), "{}", notes[0]);
        assert!(notes[1].starts_with("50.00% of what was sent"), "{}", notes[1]);
        let report = report_of(&job(), &all);
        assert_eq!(report.runs.len(), 4);
        assert_eq!((report.runs[1].mode.as_str(), report.runs[1].measure("send-64")), ("patched", 2048.0));
        assert!(report.runs[0].failures.is_empty());
    }
}
