//! Soak: runs everything that the property tests of spaces do, mixed at random, for a given time.
//!
//! There are two kinds of rounds. In the first, one thread runs against an exact model. In the second,
//! several threads share the pages of one space. Each checks the words that only it writes, its *lane*.
//! Meanwhile other threads map, unmap, protect, reclaim, change the budget and make blocks. Devices fail,
//! fill up and are slow. The seed of a round decides its work, and a failure prints that seed. To repeat a
//! round alone, use `--rounds 1 --seed SEED` with the same `--threads`.
//!
//! ```text
//! cargo run --release -p octavo-bench --bin soak -- --seconds 60 --seed 1 [--threads 4] [--rounds N]
//! cargo run --release -p octavo-bench --bin soak -- --simulated --seeds 1000 [--seed 1]
//! ```
//!
//! With `--simulated`, each seed gives two runs over the simulated device. The run with a single thread is
//! the same each time; the run with several threads may differ.

#[path = "../../../octavo/tests/common/mod.rs"]
mod common;
#[path = "../../../octavo/tests/oracle/mod.rs"]
mod oracle;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use common::device::Manner;
use common::{MIB, PAGE, Random};
use oracle::exact::{self, OracleCase};
use oracle::lanes::{self, LaneLoad};
use oracle::simulation;

struct Options {
    seconds: u64,
    seed: u64,
    threads: usize,
    rounds: u64,
    simulated: bool,
}

const USAGE: &str = "\
usage: soak [--seconds N] [--seed S] [--threads T (1 to 8)] [--rounds N]
       soak --simulated [--seeds N] [--seed S]";
/// A round takes much less than a minute. If it takes longer than this, it counts as hanging.
const PATIENCE: Duration = Duration::from_secs(300);

fn options() -> Result<Options, String> {
    let mut options = Options { seconds: 60, seed: 1, threads: 4, rounds: u64::MAX, simulated: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--simulated" {
            (options.simulated, options.rounds, options.seconds) = (true, 100, u64::MAX);
            continue;
        }
        let value = arguments.next().and_then(|value| value.parse::<u64>().ok());
        let value = value.ok_or_else(|| format!("{name} needs a number\n{USAGE}"))?;
        match name.as_str() {
            "--seconds" => options.seconds = value,
            "--seed" => options.seed = value,
            "--rounds" | "--seeds" => options.rounds = value,
            "--threads" if (1..=8).contains(&value) => options.threads = value as usize,
            _ => return Err(format!("{name} {value} is not understood\n{USAGE}")),
        }
    }
    Ok(options)
}

/// Runs one round. Its seed decides the kind of work, its size and its faults.
fn round(seed: u64, threads: usize, simulated: bool) -> &'static str {
    if simulated {
        simulation::run_driven(seed);
        simulation::run_threaded(seed);
        return "simulated device";
    }
    let mut random = Random::new(seed);
    if random.one_in(4) {
        let steps = 500 + random.below(4000);
        exact::run(&OracleCase::random(&mut random, steps));
        return "one thread";
    }
    let budget_bytes = random.pick(&[16, 16, 24, 40]) * MIB;
    let device_faults = random.one_in(2);
    lanes::run(
        seed,
        LaneLoad {
            threads,
            steps: 2000 + random.below(8000),
            pages: budget_bytes / PAGE * (3 + random.below(6)) / 4,
            device_faults,
            other_spaces: random.one_in(2),
            budget_bytes,
            simulated: random.one_in(3).then_some(Manner::Served),
        },
    );
    if device_faults { "lanes, device faults" } else { "lanes" }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let Options { seconds, seed, threads, rounds, simulated } = options;
    match simulated {
        true => println!("soak: {rounds} seeds from {seed} on, simulated device"),
        false => println!("soak: seed {seed}, {seconds} s, {threads} threads"),
    }
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel();
    static CURRENT: AtomicU64 = AtomicU64::new(0);
    thread::spawn(move || {
        for number in 0..rounds {
            if start.elapsed() >= Duration::from_secs(seconds) {
                break;
            }
            // A round with its own seed can be run alone.
            let seed = seed + number;
            CURRENT.store(seed, Ordering::Relaxed);
            let _ = sender.send(catch_unwind(|| round(seed, threads, simulated)).map_err(|_| seed));
        }
    });
    let mut done = std::collections::BTreeMap::<&str, u64>::new();
    loop {
        match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(kind)) => *done.entry(kind).or_default() += 1,
            Ok(Err(failed)) => {
                println!("soak: FAILED at seed {failed} (threads {threads}) after {:?}", start.elapsed());
                return ExitCode::FAILURE;
            }
            Err(RecvTimeoutError::Timeout) => {
                let current = CURRENT.load(Ordering::Relaxed);
                println!("soak: HANGS at seed {current} (threads {threads}) after {:?}", start.elapsed());
                return ExitCode::FAILURE;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    println!(
        "soak: seed {seed}, {:.1} s, {threads} threads: {done:?}, no mismatch",
        start.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
