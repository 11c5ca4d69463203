//! One table that compares guards with an adopter's other choices: a `Vec` without a limit, mapped files, and
//! the kernel's swap.
//!
//! The programs are those of `jobs` in `crates/bench`, each run in a process of its own. All sides except two
//! run in memory control groups with the same limit: the budget, plus some room for the process itself. The
//! sides take turns, round by round.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use octavo_measure::rounds::turns;
use octavo_measure::statistics::Spread;
use octavo_measure::table::{markdown_header, markdown_row};

use crate::machine;
use crate::machine::document::{Marks, measured_on};
use crate::machine::kernel::{self, Purpose};
use crate::machine::run::{self, CommandRun};
use crate::machine::warden::Warden;

const MARKS: Marks = Marks { begin: "<!-- jobs: begin -->", end: "<!-- jobs: end -->" };

const USAGE: &str = "\
Usage: cargo xtask jobs [--rounds N] [--mebibytes N] [--budget N] [--write]     (as root)

  --rounds N        rounds, in which the sides take turns (5)
  --mebibytes N     the data of each job (64)
  --budget N        the memory for them, in MiB (16)
  --write           puts the table into docs/benchmarks.md
";

const JOBS: [&str; 3] = ["sort", "aggregation", "search"];
/// The memory that a process needs besides its data: code, stacks, and buffers on the heap.
const PROCESS_BYTES: u64 = 6 << 20;
/// The pause between two runs, in which the file system settles.
const SETTLE: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(300);

/// A side: its column, what `jobs` calls it, and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JobSide {
    column: &'static str,
    word: &'static str,
    is_limited: bool,
}

const fn side(column: &'static str, word: &'static str, is_limited: bool) -> JobSide {
    JobSide { column, word, is_limited }
}

const SIDES: [JobSide; 6] = [
    side("`Vec`, no limit", "slices", false),
    side("guards, no limit", "guards", false),
    side("guards", "guards", true),
    side("`mmap`", "mmap", true),
    side("`mmap`, tuned", "mmap-tuned", true),
    side("kernel swap", "slices", true),
];
const VEC: usize = 0;
const GUARDS_AT_HAND: usize = 1;
const GUARDS: usize = 2;
const MMAPS: [usize; 2] = [3, 4];
const SWAP: usize = 5;

#[derive(Debug)]
struct Options {
    rounds: usize,
    bytes: u64,
    budget_bytes: u64,
    write: bool,
}

/// Measures, and prints the table.
pub fn main(arguments: &[String]) -> ExitCode {
    machine::command(USAGE, || USAGE.into(), parse(arguments), measure)
}

fn parse(arguments: &[String]) -> Result<Option<Options>, String> {
    let mut options = Options { rounds: 5, bytes: 64 << 20, budget_bytes: 16 << 20, write: false };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut number = || machine::number(argument, arguments.next());
        match argument.as_str() {
            "--rounds" => options.rounds = number()? as usize,
            "--mebibytes" => options.bytes = number()? << 20,
            "--budget" => options.budget_bytes = number()? << 20,
            "--write" => options.write = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("there is no option `{argument}`")),
        }
    }
    Ok(Some(options))
}

/// Seconds of the whole process, and of the job's timed part. `None` if the kernel killed it.
type Seconds = Option<(f64, f64)>;

fn measure(options: &Options) -> Result<(), String> {
    let program = machine::build_bench("jobs")?;
    let cache = machine::cache()?;
    let mut warden = Warden::start()?;
    kernel::swap_on(&mut warden, &cache, 2 * options.bytes + (256 << 20))?;
    let mut lines = String::new();
    for job in JOBS {
        eprintln!("==== {job}");
        let mut runs = BTreeMap::<usize, Vec<Seconds>>::new();
        let mut answers = Vec::new();
        // The first round warms up, and does not count.
        for (round, side) in turns(1 + options.rounds, SIDES.len()) {
            std::thread::sleep(SETTLE);
            let (answer, seconds) = run_side(&program, &cache, job, SIDES[side], options)?;
            answers.extend(answer);
            if round > 0 {
                runs.entry(side).or_default().push(seconds);
            }
        }
        answers.dedup();
        if answers.len() != 1 {
            return Err(format!("{job}: the sides do not agree, or all were killed: {answers:?}"));
        }
        let new = lines_of(job, &runs);
        eprint!("{new}");
        lines += &new;
    }
    let columns = SIDES.map(|side| side.column).join(" | ");
    let columns = format!(
        "seconds | {columns} | guards beside the better `mmap` | beside kernel swap | beside `Vec`, no limit"
    );
    let part = format!(
        "{} {} MiB of data in {} MiB, and {} MiB for the process; {} rounds, medians (least):\n\n{}{lines}",
        measured_on(),
        options.bytes >> 20,
        options.budget_bytes >> 20,
        PROCESS_BYTES >> 20,
        options.rounds,
        markdown_header(&columns),
    );
    MARKS.show_benchmark(&part, options.write)
}

fn lines_of(job: &str, runs: &BTreeMap<usize, Vec<Seconds>>) -> String {
    let line = |name: String, pick: fn((f64, f64)) -> f64| {
        let spread = |side: usize| -> Option<Spread> {
            let all = runs.get(&side)?.iter().map(|seconds| seconds.map(pick));
            Spread::of(all.collect::<Option<Vec<f64>>>()?)
        };
        let cell = |side: usize| {
            let shown = |spread: Spread| format!("{:.2} ({:.2})", spread.median, spread.min);
            spread(side).map_or("killed".into(), shown)
        };
        let median = |side: usize| Some(spread(side)?.median);
        let ratio = |other: Option<f64>, own: Option<f64>| match (other, own) {
            (Some(other), Some(own)) => format!("{:.2}", other / own),
            _ => "–".into(),
        };
        let mmap = MMAPS.into_iter().filter_map(median).min_by(f64::total_cmp);
        let ratios = [
            ratio(mmap, median(GUARDS)),
            ratio(median(SWAP), median(GUARDS)),
            ratio(median(VEC), median(GUARDS_AT_HAND)),
        ];
        markdown_row(name, (0..SIDES.len()).map(cell).chain(ratios))
    };
    line(format!("{job}, whole"), |(whole, _)| whole) + &line(format!("{job}, the job alone"), |(_, job)| job)
}

fn run_side(
    program: &Path,
    cache: &Path,
    job: &str,
    side: JobSide,
    options: &Options,
) -> Result<(Option<String>, Seconds), String> {
    let budget_bytes = if side.is_limited { options.budget_bytes } else { 4 * options.bytes };
    let mut words = vec![program.display().to_string(), job.to_owned(), side.word.to_owned()];
    words.extend([options.bytes.to_string(), budget_bytes.to_string(), cache.display().to_string()]);
    let limit =
        Purpose::Limit { bytes: options.budget_bytes + PROCESS_BYTES, may_swap: side.word == "slices" };
    let group = side.is_limited.then_some(limit);
    let run = CommandRun::new(words.clone(), group, LIMIT);
    let Some(said) = run::in_a_group(cache, run)?.said else { return Ok((None, None)) };
    match (said.value("answer"), said.number("seconds"), said.number("job")) {
        (Some(answer), Some(whole), Some(alone)) => Ok((Some(answer.to_owned()), Some((whole, alone)))),
        _ => Err(format!("`{}` did not say what it was asked", words.join(" "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_lines_have_all_sides() {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let options = parse(&words("--rounds 3 --mebibytes 80 --write")).unwrap().unwrap();
        assert_eq!((options.rounds, options.bytes, options.budget_bytes), (3, 80 << 20, 16 << 20));
        assert!(parse(&words("--rounds")).is_err() && parse(&words("--budget 0")).is_err());
        let mut runs: BTreeMap<usize, Vec<Seconds>> =
            (0..SIDES.len()).map(|side| (side, vec![Some((side as f64 + 1.0, 0.5)); 3])).collect();
        runs.insert(SWAP, vec![Some((9.0, 8.0)), None, Some((9.0, 8.0))]);
        let lines = lines_of("sort", &runs);
        assert_eq!(
            lines.lines().next().unwrap(),
            "| sort, whole | 1.00 (1.00) | 2.00 (2.00) | 3.00 (3.00) | 4.00 (4.00) | 5.00 (5.00) | killed | 1.33 | – | 0.50 |"
        );
    }
}
