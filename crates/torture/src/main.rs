//! `octavo-torture` checks every word that it reads, while an external pager takes its memory away.
//!
//! Each page of the program is zero, or holds words that follow from the page's address and from the number
//! of its last write ([`patterned`]). So the program knows what every read must return. The kinds of torture
//! ([`kinds`]) do everything with such memory that programs do: they write, map, protect, fork, transfer and
//! start threads. The seed determines the checks, but not their timing.
//!
//! The program does not measure how well a pager works, and does not depend on Octavo. The program must also
//! pass without a pager and under the kernel's swap. So if it finds an error under a pager, the pager is at
//! fault.

mod finding;
mod kinds;
mod memory;
mod options;
mod patterned;
mod process;
mod random;
mod ring;
mod robust;
mod signals;
mod transfer;
mod waits;
mod work;

use std::fs;
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use finding::report;
use kinds::TortureKind;
use options::{Options, USAGE};
use work::{Tally, Team, WorkerState};

fn main() -> ExitCode {
    signals::install();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| process::FRESH.to_str() == Ok(first.as_str())) {
        start_anew();
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| ["help", "-h", "--help"].contains(&argument.as_str())) {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(&arguments) {
        Ok(options) if options.only.is_some() => run_here(&options),
        Ok(options) => run_apart(&options),
        Err(sentence) => {
            eprint!("octavo-torture: {sentence}.\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Runs the short check of a process that the fork kind starts.
fn start_anew() {
    let folder = std::env::temp_dir();
    let tally = Tally::new(&[]);
    let team = Team {
        tally: &tally,
        bytes: 1 << 20,
        threads: 1,
        seed: u64::from(std::process::id()),
        end: Instant::now(),
        folder: &folder,
        sabotage: None,
    };
    kinds::started_anew(&mut WorkerState::new(team, 0));
}

/// Runs the requested kinds as threads of this process.
fn run_here(options: &Options) -> ExitCode {
    if options.part {
        process::end_with_parent();
    }
    let kinds = options.only.as_deref().unwrap_or_default();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let tallies: Vec<Tally> = kinds.iter().map(|kind| Tally::new(kind.operations)).collect();
    thread::scope(|scope| {
        let (ended, endings) = mpsc::channel();
        for (kind, tally) in kinds.iter().zip(&tallies) {
            let team = Team {
                tally,
                bytes: options.memory_bytes / kinds.len(),
                threads: options.threads,
                seed: options.seed,
                end,
                folder: &options.folder,
                sabotage: options.sabotage,
            };
            let ended = ended.clone();
            scope.spawn(move || {
                (kind.run)(team);
                let _ = ended.send(kind.name);
            });
        }
        drop(ended);
        wait_for_all(kinds, &endings, end + Duration::from_secs(options.patience_seconds));
    });
    for (kind, tally) in kinds.iter().zip(&tallies) {
        println!("{}: {}", kind.name, tally.line());
    }
    let (page, call) = (waits::PAGES.get().as_millis(), waits::CALLS.get().as_millis());
    println!("longest waits: {page} ms for a page, {call} ms for a call that changes mappings");
    if let Some(peak) = peak_kib() {
        println!("most memory at once: {} MiB", peak >> 10);
    }
    ExitCode::SUCCESS
}

/// Waits for the kinds. A kind that hangs is a finding. The scope reports a kind that panicked.
fn wait_for_all(kinds: &[TortureKind], endings: &mpsc::Receiver<&'static str>, latest: Instant) {
    let mut waiting: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    while !waiting.is_empty() {
        match endings.recv_timeout(latest.saturating_duration_since(Instant::now())) {
            Ok(name) => waiting.retain(|other| *other != name),
            Err(RecvTimeoutError::Timeout) => {
                report(format_args!("these kinds hang: {}.", waiting.join(", ")));
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Runs every kind in a separate process, all at once.
fn run_apart(options: &Options) -> ExitCode {
    let started = kinds::ALL.map(|kind| (kind.name, start_part(options, kind)));
    let mut running: Vec<(&str, Child)> = Vec::new();
    let mut failed = false;
    for (name, child) in started {
        match child {
            Ok(child) => running.push((name, child)),
            Err(error) => {
                eprintln!("octavo-torture: the process for the kind {name} could not be started: {error}");
                failed = true;
            }
        }
    }
    let latest = Instant::now()
        + Duration::from_secs(options.seconds + options.patience_seconds + PATIENCE_WITH_PARTS);
    while !running.is_empty() && !failed {
        running.retain_mut(|(name, child)| match child.try_wait() {
            Ok(None) if Instant::now() < latest => true,
            Ok(None) => {
                eprintln!("octavo-torture: the process of the kind {name} hangs.");
                failed = true;
                true
            }
            Ok(Some(status)) if status.success() => false,
            Ok(Some(status)) => {
                eprintln!("octavo-torture: the kind {name} ended with {status}.");
                failed = true;
                false
            }
            Err(error) => {
                eprintln!("octavo-torture: cannot wait for the kind {name}: {error}");
                failed = true;
                false
            }
        });
        thread::sleep(Duration::from_millis(20));
    }
    for (_, mut child) in running {
        let _ = child.kill();
        let _ = child.wait();
    }
    if failed { ExitCode::from(finding::FOUND as u8) } else { ExitCode::SUCCESS }
}

/// A part that hangs reports its own hang, if it can. It is killed this many seconds later.
const PATIENCE_WITH_PARTS: u64 = 15;

fn start_part(options: &Options, kind: TortureKind) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    let memory = options.memory_bytes / kinds::ALL.len();
    for (name, value) in [
        ("--seconds", options.seconds.to_string()),
        ("--memory", memory.max(1 << 20).to_string()),
        ("--seed", options.seed.to_string()),
        ("--threads", options.threads.to_string()),
        ("--only", kind.name.to_owned()),
        ("--patience", options.patience_seconds.to_string()),
    ] {
        command.args([name, &value]);
    }
    if let Some(sabotage) = options.sabotage {
        let name = work::Sabotage::NAMES.iter().find(|(_, known)| *known == sabotage).map(|(name, _)| name);
        command.args(name.into_iter().flat_map(|name| ["--sabotage", name]));
    }
    command.arg("--folder").arg(&options.folder).arg("--part").spawn()
}

/// Returns the most memory that this process has had, by the kernel's count.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}
