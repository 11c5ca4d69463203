//! `octavo-lab oltp`: TPC-B's transfers, on B-trees of a file with a write-ahead log.
//!
//! | file | what |
//! |---|---|
//! | `args`, `job` | the options, and the job that they ask for |
//! | `btree` | B-trees on guarded pages: the engine's example `btree` |
//! | `log` | the write-ahead log |
//! | `bank` | the tables, a transfer, recovery |
//! | `work` | threads that make transfers |
//! | `tables` | the printed text |
//!
//! This is the workload of *x86: lockless get_user_pages_fast()* (Linux 2.6.27): a database whose threads do
//! direct I/O. The log is written from pinned pages of a space, so each flush takes pins by the path that the
//! patch changed.
//!
//! Compared modes take turns, each time with a new bank. Time is from the first transfer's start until the
//! last thread is done.

pub mod args;
mod bank;
mod btree;
mod job;
mod log;
mod tables;
mod work;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use octavo::{Counter, Manager};
use octavo_command::failure::Failure;
use octavo_command::output::{JsonSink, Text};
use octavo_measure::rounds::turns;

use self::bank::{Audit, Bank};
use self::job::Job;
use self::work::{Done, work};
use crate::choices::Mode;
use crate::manager::{named, with_forms_of};
use crate::profile::{Samples, Site};
use crate::progress::{Pace, TurnProgress};
use crate::report::{ModeMetric, ModeRun, WorkloadReport, failures};

/// The functions that pin pages. The base form takes a lock there.
const PIN: &str = "pin";
const SITES: &[Site] = &[Site {
    name: PIN,
    module: "octavo::access::pin::",
    of_type: "",
    functions: &["pin", "pin_rest", "pin_present"],
}];

pub fn run(job: &Job) -> Result<(), Failure> {
    let text = Text::beside(job.json.as_ref());
    let sink = job.json.as_ref().map(JsonSink::open).transpose()?;
    let pace = Pace::new(job.rounds * job.modes.len() as u32, job.time);
    let mut runs = Vec::new();
    for (round, side) in turns(job.rounds as usize, job.modes.len()) {
        let mode = job.modes[side];
        let title = format!("{}, round {} of {}", mode.name(), round + 1, job.rounds);
        let _progress = TurnProgress::turn(&pace, title, None);
        let run = in_a_folder(job, |folder| take_turn(mode, job, folder, None))?;
        text.line(tables::one_line(&run))?;
        runs.push(run);
    }
    if job.profile {
        add_shares(job, &mut runs)?;
    }
    let names: Vec<&str> = job.modes.iter().map(|mode| mode.name()).collect();
    let report = WorkloadReport::new(job.workload.clone(), runs, &names, &[ModeMetric::TransactionsPerS]);
    if job.rounds > 1 || job.modes.len() > 1 {
        text.line(&report.workload)?;
        text.line(tables::comparison(job, &report))?;
    }
    let is_wrong = report.runs.iter().any(|run| !run.failures.is_empty());
    if let Some(sink) = sink {
        sink.write(&report)?;
    }
    if is_wrong {
        return Err(Failure::Said("the balances do not add up; this is an error in octavo".into()));
    }
    Ok(())
}

/// Works in the folder of the bank that is kept, or in a new one.
fn in_a_folder<T>(job: &Job, work: impl FnOnce(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    let refused = |error| Failure::system(format!("cannot make a folder in {}", job.folder.display()), error);
    if job.keep {
        fs::create_dir_all(&job.folder).map_err(refused)?;
        return work(&job.folder);
    }
    let folder = tempfile::Builder::new().prefix("octavo-oltp-").tempdir_in(&job.folder).map_err(refused)?;
    work(folder.path())
}

/// Opens or makes a bank, makes transfers for the job's time, and adds up what there is.
fn take_turn(
    mode: Mode,
    job: &Job,
    folder: &Path,
    samples: Option<&mut Samples>,
) -> Result<ModeRun, Failure> {
    let manager = with_forms_of(mode, Manager::builder()).budget_bytes(job.memory_bytes).build()?;
    let bank = Bank::open(&manager, folder, job.log_bytes, job.scale)?;
    if let Some(path) = &job.commits {
        check_commits(&bank, path)?;
    }
    let before = manager.counters();
    let done = work(&bank, job, samples)?;
    let counted = manager.counters().since(&before);
    let audit = bank.audit(|_| ())?;
    let mut run = summarise(mode, job, &done, audit);
    let syncs = counted.get(Counter::FileSync).max(1);
    run.faults = counted.get(Counter::PageFault);
    run.faults_per_s = run.faults as f64 / run.seconds.max(f64::MIN_POSITIVE);
    run.mb_per_s = counted.get(Counter::FileRead) as f64 * 4096.0 / 1e6 / run.seconds.max(f64::MIN_POSITIVE);
    run.measures.insert("transactions_per_flush".into(), done.transfers as f64 / syncs as f64);
    run.measures.insert("file_mb".into(), bank.file_bytes()? as f64 / 1e6);
    run.counters = named(&counted);
    drop(bank);
    manager.shutdown().map_err(octavo::ShutdownRefused::into_error)?;
    Ok(run)
}

fn summarise(mode: Mode, job: &Job, done: &Done, audit: Audit) -> ModeRun {
    let mut run = ModeRun {
        mode: mode.name().into(),
        tasks: job.threads.into(),
        budget_bytes: Some(job.memory_bytes),
        seconds: done.seconds,
        failures: failures(!audit.adds_up()),
        ..ModeRun::default()
    };
    let rate = done.transfers as f64 / done.seconds.max(f64::MIN_POSITIVE);
    run.measures.insert("transactions".into(), done.transfers as f64);
    run.measures.insert("transactions_per_s".into(), rate);
    run.measures.insert("history_rows".into(), audit.transfers as f64);
    for (name, quantile) in tables::QUANTILES {
        run.measures.insert(name.into(), done.latencies.value_at_quantile(quantile) as f64 / 1e3);
    }
    run
}

/// Runs each mode again under the sampler, untimed, and adds the share of pins to all its runs.
fn add_shares(job: &Job, runs: &mut [ModeRun]) -> Result<(), Failure> {
    for &mode in &job.modes {
        let mut samples = Samples::watching(SITES);
        in_a_folder(job, |folder| take_turn(mode, job, folder, Some(&mut samples)))?;
        let shares = samples.shares()?;
        let share = samples.site_share(PIN);
        for run in runs.iter_mut().filter(|run| run.mode == mode.name()) {
            run.shares = shares.clone();
            run.measures.insert("share_pin".into(), share.all);
            run.measures.insert("share_pin_waiting".into(), share.waiting);
        }
    }
    Ok(())
}

/// Checks that all transfers that were noted as durable are in the history.
fn check_commits(bank: &Bank, path: &Path) -> Result<(), Failure> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Failure::system(format!("cannot read {}", path.display()), error)),
    };
    let mut missing: BTreeSet<u64> =
        bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    let audit = bank.audit(|number| {
        missing.remove(&number);
    })?;
    match missing.first() {
        None if audit.adds_up() => Ok(()),
        None => Err(Failure::Said(format!("the bank does not add up after its recovery: {audit:?}"))),
        Some(first) => Err(Failure::Said(format!(
            "{} transfers that were durable are lost, the first is {first}",
            missing.len()
        ))),
    }
}
