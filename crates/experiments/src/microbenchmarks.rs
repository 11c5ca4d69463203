//! Published microbenchmarks, simulated. A machine's costs were fitted to some of them, and the others test
//! the costs.
//!
//! Nothing else is fitted: the experiments of the Linux patches are predictions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::{MachineModel, now, run, thread, work};
use serde::{Deserialize, Serialize};

/// The threads' operation on the one word that they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// An atomic addition.
    Add,
    /// A load, and compare-and-swaps until one succeeds.
    CompareAndSwap,
}

/// A published figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Published {
    /// The machine's name.
    pub machine: &'static str,
    /// What was measured.
    pub what: Microbenchmark,
    /// The figure in nanoseconds.
    pub nanoseconds: f64,
    /// Where it was published.
    pub source: &'static str,
    /// Whether a cost of the machine was fitted to it. Otherwise, it is a test.
    pub is_fit: bool,
}

/// A microbenchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Microbenchmark {
    /// Two threads hand a word back and forth: the time of one way.
    PingPong {
        /// The CPUs of both.
        cpus: (usize, usize),
    },
    /// Threads on CPUs from 0 change one word: the time divided by the operations of all.
    Counter {
        /// The number of threads.
        threads: usize,
        /// The operation.
        operation: Operation,
        /// Nanoseconds of plain work between operations.
        between: u64,
    },
}

const CORES: &str = "nviennot/core-to-core-latency, results";
const PERFBOOK: &str = "McKenney, Is Parallel Programming Hard, CodeSamples/count/data";
const FOLLY: &str = "facebook/folly, SmallLocksBenchmark.cpp";

/// The published figures.
pub const PUBLISHED: &[Published] = &[
    ping_pong("broadwell-ep", (0, 28), 8.3, true),
    ping_pong("broadwell-ep", (0, 5), 45.0, true),
    ping_pong("broadwell-ep", (0, 20), 127.5, true),
    counter("skylake-sp", 1, Operation::Add, 0, 4.8, PERFBOOK, true),
    counter("skylake-sp", 28, Operation::Add, 0, 22.3, PERFBOOK, true),
    counter("skylake-sp", 2, Operation::Add, 0, 31.9, PERFBOOK, false),
    counter("skylake-sp", 56, Operation::Add, 0, 23.7, PERFBOOK, false),
    counter("skylake-sp", 112, Operation::Add, 0, 28.6, PERFBOOK, false),
    counter("skylake-sp", 224, Operation::Add, 0, 31.5, PERFBOOK, false),
    counter("skylake-sp", 420, Operation::Add, 0, 35.3, PERFBOOK, false),
    counter("nehalem", 1, Operation::Add, 0, 7.6, PERFBOOK, true),
    counter("nehalem", 2, Operation::Add, 0, 12.5, PERFBOOK, false),
    counter("nehalem", 4, Operation::Add, 0, 17.8, PERFBOOK, false),
    counter("nehalem", 8, Operation::Add, 0, 23.9, PERFBOOK, true),
    counter("nehalem", 16, Operation::Add, 0, 23.7, PERFBOOK, false),
    counter("broadwell-ep", 56, Operation::Add, 600, 59.0, FOLLY, false),
    counter("broadwell-ep", 56, Operation::CompareAndSwap, 600, 87.0, FOLLY, false),
];

const fn ping_pong(machine: &'static str, cpus: (usize, usize), nanoseconds: f64, is_fit: bool) -> Published {
    Published { machine, what: Microbenchmark::PingPong { cpus }, nanoseconds, source: CORES, is_fit }
}

const fn counter(
    machine: &'static str,
    threads: usize,
    operation: Operation,
    between: u64,
    nanoseconds: f64,
    source: &'static str,
    is_fit: bool,
) -> Published {
    let what = Microbenchmark::Counter { threads, operation, between };
    Published { machine, what, nanoseconds, source, is_fit }
}

/// How often a word is handed over.
const HANDOVERS: u64 = 2000;
/// Operations of all threads together.
const OPERATIONS: usize = 100_000;

impl fmt::Display for Microbenchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PingPong { cpus: (one, other) } => {
                write!(f, "a word between CPUs {one} and {other}, one way")
            }
            Self::Counter { threads, operation, between } => {
                let operation = match operation {
                    Operation::Add => "an addition",
                    Operation::CompareAndSwap => "a load and compare-and-swap",
                };
                write!(f, "{operation} to one word by {threads} threads")?;
                if *between > 0 { write!(f, ", {between} ns between") } else { Ok(()) }
            }
        }
    }
}

impl Microbenchmark {
    /// Simulates the figure, in nanoseconds. The figure depends only on the machine and the seed.
    pub fn simulate(self, machine: &MachineModel, seed: u64) -> f64 {
        match self {
            Self::PingPong { cpus } => simulate_ping_pong(machine, seed, cpus),
            Self::Counter { threads, operation, between } => {
                simulate_counter(machine, seed, threads, operation, Duration::from_nanos(between))
            }
        }
    }
}

fn simulate_ping_pong(machine: &MachineModel, seed: u64, cpus: (usize, usize)) -> f64 {
    let timed = run(machine, seed, move || {
        let word = Arc::new(AtomicU64::new(0));
        let other = Arc::clone(&word);
        let hand = |word: &AtomicU64, from: u64, to: u64| {
            while word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_err() {}
        };
        let pong = move || (0..HANDOVERS).for_each(|_| hand(&other, 1, 0));
        let pong = thread::Builder::new().cpu(cpus.1).spawn(pong).expect("memory for a stack");
        let ping = move || {
            // Both threads run before the clock starts.
            hand(&word, 0, 1);
            let began = now();
            (1..HANDOVERS).for_each(|_| hand(&word, 0, 1));
            now() - began
        };
        let ping = thread::Builder::new().cpu(cpus.0).spawn(ping).expect("memory for a stack");
        pong.join().expect("no panic");
        ping.join().expect("no panic")
    });
    timed.expect("both threads end").0.as_nanos() as f64 / (2 * (HANDOVERS - 1)) as f64
}

fn simulate_counter(
    machine: &MachineModel,
    seed: u64,
    threads: usize,
    operation: Operation,
    between: Duration,
) -> f64 {
    let each = OPERATIONS / threads;
    let timed = run(machine, seed, move || {
        let (word, ready) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let begin = |cpu| {
            let (word, ready) = (Arc::clone(&word), Arc::clone(&ready));
            let body = move || {
                ready.fetch_add(1, Ordering::Relaxed);
                while ready.load(Ordering::Relaxed) < threads as u64 {
                    work(Duration::from_micros(2));
                }
                let began = now();
                for _ in 0..each {
                    match operation {
                        Operation::Add => drop_value(word.fetch_add(1, Ordering::Relaxed)),
                        Operation::CompareAndSwap => {
                            let more = |value| Some(value + 1);
                            drop_value(word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more));
                        }
                    }
                    work(between);
                }
                (began, now())
            };
            thread::Builder::new().cpu(cpu).spawn(body).expect("memory for a stack")
        };
        let threads: Vec<_> = (0..threads).map(begin).collect();
        let times: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let began = times.iter().map(|(began, _)| *began).max().unwrap_or_default();
        times.iter().map(|(_, ended)| *ended).max().unwrap_or_default() - began
    });
    timed.expect("all threads end").0.as_nanos() as f64 / (each * threads) as f64
}

fn drop_value<T>(_value: T) {}
