//! How long accesses wait while swap-out runs at full speed, compared with the kernel's swap.
//!
//! The program is `latency` of `crates/bench`. Each run has a process and a memory control group of its own,
//! with the same limit for both sides. The sides take turns, round by round. The kernel's readahead is off
//! (`vm.page-cluster` 0), since the pages are read at random.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use octavo_measure::rounds::turns;
use octavo_measure::statistics::Spread;
use octavo_measure::table::{markdown_header, markdown_row};

use crate::machine;
use crate::machine::document::{Marks, measured_on};
use crate::machine::kernel::{self, Purpose};
use crate::machine::run::{self, CommandRun, Said};
use crate::machine::warden::Warden;

const MARKS: Marks = Marks { begin: "<!-- latency: begin -->", end: "<!-- latency: end -->" };

const USAGE: &str = "\
Usage: cargo xtask latency [--rounds N] [--budget N] [--seconds N] [--pace N] [--write]     (as root)

  --rounds N        rounds, in which the sides take turns (5)
  --budget N        the memory of each side, in MiB (256)
  --seconds N       the time of each run (8)
  --pace N          MB/s that both sides write in the second half of the table (400)
  --write           puts the table into docs/benchmarks.md
";

/// The memory that a process needs besides its budget: code, stacks, and buffers on the heap.
const PROCESS_BYTES: u64 = 8 << 20;
const SETTLE: Duration = Duration::from_millis(1500);
const LIMIT: Duration = Duration::from_secs(300);
const SIDES: [&str; 2] = ["kernel", "octavo"];
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// The rows: the program's name for a figure, and the title in the table.
const ROWS: [(&str, &str); 9] = [
    ("refault_p50", "a page that was out, p50, µs"),
    ("refault_p99", "p99"),
    ("refault_p999", "p99.9"),
    ("refault_max", "longest"),
    ("new_p50", "a new page, p50, µs"),
    ("new_p99", "p99"),
    ("new_p999", "p99.9"),
    ("new_max", "longest"),
    ("written", "written meanwhile, MB/s"),
];
const COUNTS: [&str; 2] = ["refault_count", "new_count"];

#[derive(Debug)]
struct Options {
    rounds: usize,
    budget_bytes: u64,
    seconds: u64,
    pace: u64,
    write: bool,
}

/// Measures, and prints the table.
pub fn main(arguments: &[String]) -> ExitCode {
    machine::command(USAGE, || USAGE.into(), parse(arguments), measure)
}

fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options { rounds: 5, budget_bytes: 256 << 20, seconds: 8, pace: 400, write: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || machine::number(argument, arguments.next());
        match argument.as_str() {
            "--rounds" => options.rounds = number()? as usize,
            "--budget" => options.budget_bytes = number()? << 20,
            "--seconds" => options.seconds = number()?,
            "--pace" => options.pace = number()?,
            "--write" => options.write = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("there is no option `{argument}`")),
        }
    }
    Ok(Some(options))
}

fn measure(options: &Options) -> Result<(), String> {
    let program = machine::build_bench("latency")?;
    let cache = machine::cache()?;
    let mut warden = Warden::start()?;
    kernel::swap_on(&mut warden, &cache, 6 * options.budget_bytes + (256 << 20))?;
    read_no_neighbours(&mut warden)?;
    let mut part = format!(
        "{} {} MiB of memory, {} s a run, {} rounds; medians (least to most).\n",
        measured_on(),
        options.budget_bytes >> 20,
        options.seconds,
        options.rounds,
    );
    for pace in [None, Some(options.pace)] {
        let runs = runs_at(pace, &program, &cache, options)?;
        part += &match pace {
            None => "\nEach side writes as fast as it can:\n\n".to_owned(),
            Some(pace) => format!("\nBoth sides write {pace} MB/s:\n\n"),
        };
        part += &table(&runs)?;
    }
    MARKS.show_benchmark(&part, options.write)
}

type SideRuns = [Vec<Said>; SIDES.len()];

fn runs_at(pace: Option<u64>, program: &Path, cache: &Path, options: &Options) -> Result<SideRuns, String> {
    let mut runs = SideRuns::default();
    // The first round warms up, and does not count.
    for (round, side) in turns(1 + options.rounds, SIDES.len()) {
        std::thread::sleep(SETTLE);
        let said = run_side(program, cache, SIDES[side], pace, options)?;
        if round > 0 {
            runs[side].push(said);
        }
    }
    Ok(runs)
}

fn read_no_neighbours(warden: &mut Warden) -> Result<(), String> {
    let failed = |error| format!("cannot read or set {PAGE_CLUSTER}: {error}");
    let before = std::fs::read_to_string(PAGE_CLUSTER).map_err(failed)?;
    warden.at_the_end(&format!("echo {} > {PAGE_CLUSTER}", before.trim()))?;
    std::fs::write(PAGE_CLUSTER, "0").map_err(failed)
}

fn run_side(
    program: &Path,
    cache: &Path,
    side: &str,
    pace: Option<u64>,
    options: &Options,
) -> Result<Said, String> {
    // Octavo holds the budget itself, and the kernel's side has the same limit.
    let limit = Purpose::Limit { bytes: options.budget_bytes + PROCESS_BYTES, may_swap: side == "kernel" };
    let [budget, seconds] = [options.budget_bytes, options.seconds].map(|number| number.to_string());
    let mut words =
        vec![program.display().to_string(), side.into(), budget, seconds, cache.display().to_string()];
    words.extend(pace.map(|pace| (pace * 1_000_000).to_string()));
    run::in_a_group(cache, CommandRun::new(words, Some(limit), LIMIT))?
        .said
        .ok_or_else(|| format!("the kernel has killed the side `{side}` for want of memory"))
}

fn table(runs: &SideRuns) -> Result<String, String> {
    let all = |side: usize, figure: &str| -> Result<Vec<f64>, String> {
        let figures = runs[side].iter().map(|said| said.number(figure));
        figures
            .collect::<Option<_>>()
            .ok_or_else(|| format!("the side `{}` did not say {figure}", SIDES[side]))
    };
    let spread = |side, figure| Spread::of(all(side, figure)?).ok_or("there was no round".to_owned());
    let cell =
        |Spread { median, min, max }| format!("{} ({} to {})", digits(median), digits(min), digits(max));
    let mut lines = markdown_header(" | kernel swap | Octavo | kernel : Octavo");
    for (figure, name) in ROWS {
        let (kernel, octavo) = (spread(0, figure)?, spread(1, figure)?);
        let ratio = format!("{:.2}", kernel.median / octavo.median);
        lines += &markdown_row(name, [cell(kernel), cell(octavo), ratio]);
    }
    let least = |figure| -> Result<f64, String> {
        let counts = [all(0, figure)?, all(1, figure)?].concat();
        Ok(counts.into_iter().fold(f64::INFINITY, f64::min))
    };
    let [refaults, new_pages] = COUNTS.map(least);
    lines += &format!("\nEach run timed {} refaults and {} new pages, or more.\n", refaults?, new_pages?);
    Ok(lines)
}

/// Writes a figure with three digits, or with all digits before the point.
fn digits(figure: f64) -> String {
    match figure {
        100.0.. => format!("{figure:.0}"),
        10.0.. => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--rounds 3 --budget 64 --seconds 2")).unwrap().unwrap();
        assert_eq!((options.rounds, options.budget_bytes, options.seconds), (3, 64 << 20, 2));
        assert!(parse(&words("--seconds")).is_err() && parse(&words("octavo")).is_err());
    }
}
