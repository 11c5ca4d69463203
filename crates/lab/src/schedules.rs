//! Runs the engine under chosen schedules.

use std::panic::Location;
use std::sync::{Mutex, PoisonError};

use clap::{Subcommand, ValueEnum};
use octavo_check::{Case, Exhausted, MUTANTS, Mutant, Pair, Workload, exhaust};
use octavo_command::failure::Failure;
use octavo_sim::interleaving;

/// The commands. A run is a function of its seed, which chooses the manager's switches, the device's manners,
/// what each thread does, and which thread goes on at each operation on a shared word.
#[derive(Debug, Subcommand)]
pub enum Schedules {
    /// Runs seeds. The first one that fails is named, with its last steps and the command that repeats it
    Check {
        /// The first seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How many
        #[arg(long, default_value_t = 1000)]
        runs: u64,
        /// Switch a bug on; `octavo-lab mutants` lists them
        #[arg(long, value_name = "NAME", value_parser = mutant)]
        mutant: Option<&'static Mutant>,
        /// What the threads do [default: the seed chooses]
        #[arg(long, value_enum)]
        workload: Option<Workload>,
        /// How many pieces of the interleaving to print, up to the failure
        #[arg(long, value_name = "PIECES", default_value_t = 40)]
        interleaving: usize,
    },
    /// Goes through all schedules of small meetings with few preemptions, one after the other
    Exhaust {
        /// The meetings [default: all]
        #[arg(long, value_enum)]
        pair: Vec<Pair>,
        /// Switch a bug on; `octavo-lab mutants` lists them
        #[arg(long, value_name = "NAME", value_parser = mutant)]
        mutant: Option<&'static Mutant>,
        /// The most preemptions of a schedule
        #[arg(long, default_value_t = 1)]
        preemptions: u32,
        /// The most schedules of a meeting
        #[arg(long, default_value_t = 1_000_000)]
        schedules: u64,
    },
    /// Switches one bug on after the other, and tells how many runs find each
    Mutants {
        /// The bugs [default: all]
        #[arg(value_name = "NAME", value_parser = mutant)]
        names: Vec<&'static Mutant>,
        /// The first seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// The most runs for each
        #[arg(long, default_value_t = 2000)]
        runs: u64,
        /// What the threads do [default: the seed chooses]
        #[arg(long, value_enum)]
        workload: Option<Workload>,
    },
}

fn mutant(name: &str) -> Result<&'static Mutant, String> {
    MUTANTS.iter().find(|mutant| mutant.name == name).ok_or_else(|| "no bug has this name".into())
}

/// The place of the last panic, on whichever thread it was.
static PANICKED: Mutex<String> = Mutex::new(String::new());
/// The running seed, and the command that repeats it.
static RUNNING: Mutex<(u64, String)> = Mutex::new((0, String::new()));

fn take<T: Default>(value: &Mutex<T>) -> T {
    std::mem::take(&mut *value.lock().unwrap_or_else(PoisonError::into_inner))
}

fn set<T>(value: &Mutex<T>, to: T) {
    *value.lock().unwrap_or_else(PoisonError::into_inner) = to;
}

/// The standard library's message if a thread panics while it unwinds. The process would end then.
const PANIC_UPON_PANIC: &str = "panic in a destructor during cleanup";
/// The number of runs that must find a bug.
const ENOUGH: u64 = 3;

/// The exit code after a failure under a schedule.
const FOUND: u8 = 1;

/// Runs one of the commands. Returns the exit code.
pub fn run(command: Schedules) -> Result<u8, Failure> {
    // A panic is a finding. It is reported as a finding, and not on standard error.
    std::panic::set_hook(Box::new(|info| {
        if info.payload_as_str() == Some(PANIC_UPON_PANIC) {
            let (seed, again) = take(&RUNNING);
            println!(
                "seed {seed} failed: a thread panicked while it unwound\n  at {}\nagain: {again}",
                take(&PANICKED)
            );
            std::process::exit(1);
        }
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        set(&PANICKED, place);
    }));
    match command {
        Schedules::Check { seed, runs, mutant, workload, interleaving } => {
            Ok(check(seed, runs, mutant, workload, interleaving))
        }
        Schedules::Exhaust { pair, mutant, preemptions, schedules } => {
            Ok(exhaust_all(&pair, mutant, preemptions, schedules))
        }
        Schedules::Mutants { names, seed, runs, workload } => {
            println!("{:<40} {:>8} {:>8} {:>8}  what is wrong", "bug", "runs", "found", "first");
            for mutant in if names.is_empty() { MUTANTS.iter().collect() } else { names } {
                let hunt = hunt(mutant, workload, seed, runs)?;
                let first = hunt.first.map_or("-".into(), |first| first.to_string());
                println!(
                    "{:<40} {:>8} {:>8} {first:>8}  {}",
                    mutant.name, hunt.runs, hunt.found, mutant.what
                );
            }
            Ok(0)
        }
    }
}

/// The result of looking for a bug.
struct Hunt {
    runs: u64,
    /// Runs that failed.
    found: u64,
    /// The first seed that failed, counted from 1.
    first: Option<u64>,
}

/// Runs seeds with a bug until it is found often enough. The runs are in other processes, since a bug may end
/// its process.
fn hunt(
    mutant: &'static Mutant,
    workload: Option<Workload>,
    seed: u64,
    most_runs: u64,
) -> Result<Hunt, Failure> {
    let system = |error| Failure::system("cannot run the checks of a bug", error);
    let itself = std::env::current_exe().map_err(system)?;
    let mut hunt = Hunt { runs: 0, found: 0, first: None };
    while hunt.runs < most_runs && hunt.found < ENOUGH {
        let (from, left) = (seed + hunt.runs, most_runs - hunt.runs);
        let mut check = std::process::Command::new(&itself);
        check.args([
            "check",
            "--seed",
            &from.to_string(),
            "--runs",
            &left.to_string(),
            "--mutant",
            mutant.name,
        ]);
        check.args(["--interleaving", "0"]);
        if let Some(choice) = workload.and_then(|choice| choice.to_possible_value()) {
            check.args(["--workload", choice.get_name()]);
        }
        let ended = check.output().map_err(system)?;
        if ended.status.success() {
            hunt.runs = most_runs;
            break;
        }
        // The simulator itself reports a thread that waits forever while it unwinds.
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let seed_of = |line: &str| {
            let (_, rest) = line.split_once("seed ")?;
            rest.split_once(" failed").or_else(|| rest.split_once(" has panicked"))?.0.parse::<u64>().ok()
        };
        let Some(failed) = said.lines().find_map(seed_of) else {
            return Err(Failure::Said(format!(
                "{} ended with {} and told no seed: {said}",
                mutant.name, ended.status
            )));
        };
        hunt.runs = failed + 1 - seed;
        hunt.found += 1;
        hunt.first.get_or_insert(hunt.runs);
    }
    Ok(hunt)
}

fn check(
    first: u64,
    runs: u64,
    mutant: Option<&'static Mutant>,
    workload: Option<Workload>,
    pieces: usize,
) -> u8 {
    let (mut steps, mut switches) = (0, 0);
    let mut with = mutant.map_or(String::new(), |mutant| format!(" --mutant {}", mutant.name));
    if let Some(choice) = workload.and_then(|choice| choice.to_possible_value()) {
        with = format!("{with} --workload {}", choice.get_name());
    }
    let repeat = |seed| format!("octavo-lab check --seed {seed} --runs 1{with} --interleaving {pieces}");
    for seed in (first..=u64::MAX).zip(0..runs).map(|(seed, _)| seed) {
        set(&RUNNING, (seed, repeat(seed)));
        let case = Case { seed, workload, mutant };
        let explored = octavo_check::run(case, false);
        steps += explored.steps;
        switches += explored.switches;
        let Err(stopped) = explored.result else { continue };
        let place = take(&PANICKED);
        if pieces > 0 {
            let again = octavo_check::run(case, true);
            let text = interleaving(&again.trace, place_for_people);
            let lines: Vec<_> = text.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(pieces)..].join("\n"));
        }
        println!("seed {seed} failed after {} steps: {stopped}", explored.steps);
        if !place.is_empty() {
            println!("  at {place}");
        }
        println!("again: {}", repeat(seed));
        return FOUND;
    }
    println!("{runs} runs went well: {steps} operations on shared words, {switches} switches of threads");
    0
}

fn exhaust_all(pairs: &[Pair], mutant: Option<&'static Mutant>, preemptions: u32, schedules: u64) -> u8 {
    let pairs = if pairs.is_empty() { Pair::value_variants() } else { pairs };
    let mut code = 0;
    for &pair in pairs {
        let name = pair.to_possible_value().map_or(String::new(), |value| value.get_name().to_string());
        let Exhausted { tried, are_all, failed } = exhaust(pair, mutant, preemptions, schedules);
        match failed.map(|failed| failed.result) {
            Some(Err(stopped)) => {
                println!("{name}: the {tried}th schedule failed: {stopped}\n  at {}", take(&PANICKED));
                code = FOUND;
            }
            _ if are_all => println!("{name}: all {tried} schedules went well"),
            _ => println!("{name}: {tried} schedules went well, and there are more"),
        }
    }
    code
}

/// Returns a place without the folders above the engine's source.
fn place_for_people(place: &Location<'static>) -> String {
    let file = place.file();
    let file = ["octavo/src/", "/out/engine/", "crates/"]
        .iter()
        .find_map(|above| file.rsplit_once(above))
        .map_or(file, |(_, rest)| rest);
    format!("{file}:{}", place.line())
}
