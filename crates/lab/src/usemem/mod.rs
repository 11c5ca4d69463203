//! `octavo-lab usemem`: vm-scalability's usemem, on Octavo's memory and on the kernel's.
//!
//! | file | what |
//! |---|---|
//! | `args`, `job` | the options, and the job that they ask for |
//! | `touch` | the accesses to memory, the same on both sides |
//! | `octavo_side`, `kernel_side`, `side` | the sides, and the outcome of one run of one side |
//! | `tables` | the printed text |
//!
//! Compared modes take turns. Each round starts with the next mode, so a slow phase of the machine hits all
//! of them alike. Time is from the first task's start to the last task's last touch.

pub mod args;
mod job;
pub mod kernel_side;
mod octavo_side;
mod side;
mod tables;
mod touch;

use std::sync::Arc;
use std::time::Duration;

use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_measure::rounds::turns;

use self::job::{Contender, UsememJob};
use self::side::SideOutcomes;
use crate::aside::Aside;
use crate::huge_pages::HugePageSetting;
use crate::profile::Samples;
use crate::progress::{Pace, TurnProgress};
use crate::record::Recorder;
use crate::report::{ModeMetric, ModeRun, WorkloadReport, failures};
use crate::worker::Mismatch;

/// The most sampled passes of a mode. If a pass is short, its samples show little but the start-up, so more
/// passes would not help.
const SAMPLED_PASSES: u32 = 100;

/// Does the job. Fails if the job failed or data was wrong.
pub fn run(job: &UsememJob) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    let recorder = job.record.as_deref().map(Recorder::open).transpose()?;
    let huge_pages = HugePageSetting::here();
    let contenders = contenders(job, &huge_pages);
    if job.against_kernel {
        kernel_side::check_room(job.tasks, &job.plan)?;
        text.line(huge_pages.note())?;
        text.line("start-up, fork and exit are left out on both sides")?;
        if let Some(budget) = &job.budget {
            text.line(format!("the budget of {budget} binds Octavo's side; the kernel knows none"))?;
        }
    }
    let (runs, mut wrong) = all_rounds(job, &contenders, &text)?;
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    let report = WorkloadReport::new(
        job.workload.clone(),
        runs,
        &names,
        &[ModeMetric::Seconds, ModeMetric::UsememKbPerS],
    );
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    match contenders.len() {
        1 => tables::print_summary(&text, job, &report)?,
        _ => tables::print_comparison(&text, job, &contenders, &report)?,
    }
    if let Some(recorder) = recorder {
        text.line(record(job, recorder, &mut wrong)?)?;
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Failure::Said(wrong.join("; "))),
    }
}

fn contenders(job: &UsememJob, huge_pages: &HugePageSetting) -> Vec<Contender> {
    let kernel = if job.against_kernel { huge_pages.kernel_runs() } else { &[] };
    let kernel = kernel.iter().map(|&pages| Contender::Kernel(pages));
    kernel.chain(job.modes.iter().map(|&mode| Contender::Octavo(mode))).collect()
}

/// Makes all runs. Returns the runs, and a sentence for each run whose data was wrong.
fn all_rounds(
    job: &UsememJob,
    contenders: &[Contender],
    text: &Text,
) -> Result<(Vec<ModeRun>, Vec<String>), Failure> {
    let pace = Pace::new(job.rounds * contenders.len() as u32, Duration::ZERO);
    let (mut runs, mut wrong) = (Vec::new(), Vec::new());
    for (round, side) in turns(job.rounds as usize, contenders.len()) {
        let (round, contender) = (round as u32, contenders[side]);
        let side = take_turn(job, contender, round, &pace)?;
        let run = summarise(job, contender, &side);
        match contenders.len() {
            1 => tables::print_lines(text, &side)?,
            _ => text.line(tables::one_line(&run, round))?,
        }
        wrong.extend(complaint(contender, &side));
        runs.push(run);
    }
    if job.profile {
        add_shares(job, &pace, &mut runs)?;
    }
    Ok((runs, wrong))
}

fn take_turn(
    job: &UsememJob,
    contender: Contender,
    round: u32,
    pace: &Arc<Pace>,
) -> Result<SideOutcomes, Failure> {
    let title = match job.rounds {
        1 => contender.name().to_string(),
        rounds => format!("{}, round {} of {rounds}", contender.name(), round + 1),
    };
    match contender {
        Contender::Kernel(pages) => {
            let _progress = TurnProgress::turn(pace, title, None);
            kernel_side::run(job.tasks, &job.plan, pages)
        }
        Contender::Octavo(mode) => {
            let progress = TurnProgress::turn(pace, title, Some(job.accesses()));
            octavo_side::run(mode, job, Aside::of(&progress))
        }
    }
}

fn summarise(job: &UsememJob, contender: Contender, side: &SideOutcomes) -> ModeRun {
    let seconds = side.seconds();
    ModeRun {
        mode: contender.name().into(),
        tasks: job.tasks.into(),
        budget_bytes: side.budget_bytes,
        seconds,
        mb_per_s: side.touched_bytes() as f64 / seconds / 1e6,
        usemem_kb_per_s: Some(side.lines().fold(0, |sum, line| sum.saturating_add(line.kb_per_s))),
        faults: side.faults,
        faults_per_s: side.faults as f64 / seconds,
        peak_rss_bytes: side.peak_rss_bytes,
        counters: side.counters.clone(),
        failures: failures(side.mismatches() > 0),
        ..ModeRun::default()
    }
}

/// Runs each mode again under the sampler, untimed, and adds the shares to all its runs.
fn add_shares(job: &UsememJob, pace: &Arc<Pace>, runs: &mut [ModeRun]) -> Result<(), Failure> {
    for &mode in &job.modes {
        let mut samples = Samples::default();
        for pass in 1..=SAMPLED_PASSES {
            let title = format!("{}, sampled pass {pass}", mode.name());
            let progress = TurnProgress::aside(pace, title, Some(job.accesses()));
            octavo_side::run(mode, job, Aside { samples: Some(&mut samples), ..Aside::of(&progress) })?;
            if samples.is_enough() {
                break;
            }
        }
        let shares = samples.shares()?;
        runs.iter_mut().filter(|run| run.mode == mode.name()).for_each(|run| run.shares = shares.clone());
    }
    Ok(())
}

/// Runs the first mode once more, untimed, and records it. Returns a summary of the file.
fn record(job: &UsememJob, recorder: Recorder, wrong: &mut Vec<String>) -> Result<String, Failure> {
    let pace = Pace::new(1, Duration::ZERO);
    let mode = job.modes[0];
    let progress = TurnProgress::aside(&pace, format!("{}, recorded run", mode.name()), Some(job.accesses()));
    let side = octavo_side::run(mode, job, Aside { recorder: Some(&recorder), ..Aside::of(&progress) })?;
    wrong.extend(complaint(Contender::Octavo(mode), &side));
    recorder.finish()
}

fn complaint(contender: Contender, side: &SideOutcomes) -> Option<String> {
    let Mismatch { offset, expected, found } = side.first_mismatch()?;
    Some(format!(
        "{} words were not what the last repeat wrote ({}; first at offset {offset:#x} of a piece: expected \
         {expected:#018x}, found {found:#018x})",
        side.mismatches(),
        contender.name(),
    ))
}
