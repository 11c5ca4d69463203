//! `octavo run` over devices that fail, are late and return wrong bytes, as a seed says.
//!
//! ```text
//! cargo build --release -p octavo-torture
//! cargo run --release -p octavo-pager --example on_failing_device -- --seed 1 --rounds 100 -- \
//!     target/release/octavo-torture --memory 192M --seconds 10
//! ```
//!
//! Each round runs the program in 96 MiB over a separate device. A round is good if the program succeeds, or
//! if it was stopped with a reason. A round is bad if the program hangs, or if the program fails: the program
//! checks the bytes that it reads. A bad round prints its seed. The seed determines the device's faults, but
//! not which thread they hit.

#[path = "../../octavo/tests/common/device/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod device;

use std::env;
use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use device::{EIO, Manner, Random, TestDevice, Whims};
use octavo::io::SwapArea;
use octavo::{HugePolicy, Manager, ReclaimPolicy};
use octavo_pager::{End, GUARDIAN};

const USAGE: &str = "usage: on_failing_device [--seed S] [--rounds N] [--no-writes-for MS] -- PROGRAM ARGS";
const LIMIT_BYTES: u64 = 96 << 20;
const DEVICE_PAGES: u32 = 1 << 18;
/// A round that takes this long hangs.
const PATIENCE: Duration = Duration::from_secs(600);
/// The exit code of a round that was stopped with a reason.
const STOPPED: u8 = 99;

struct Options {
    seed: u64,
    rounds: u64,
    /// All writes fail until this many milliseconds after the first failure. 0 for no such failures.
    no_writes_ms: u64,
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some(GUARDIAN) {
        octavo_pager::guardian_main();
        return ExitCode::SUCCESS;
    }
    match options() {
        Ok(options) if options.rounds == 1 => one_round(&options),
        Ok(options) => many_rounds(&options),
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options { seed: 1, rounds: 1, no_writes_ms: 0, program: Vec::new() };
    let mut arguments = env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        let field = match argument.to_str() {
            Some("--seed") => &mut options.seed,
            Some("--rounds") => &mut options.rounds,
            Some("--no-writes-for") => &mut options.no_writes_ms,
            Some("--") => {
                options.program = arguments.collect();
                break;
            }
            _ => return Err(format!("{} is no option", argument.display())),
        };
        let number = arguments.next().and_then(|number| number.to_str()?.parse().ok());
        *field = number.ok_or_else(|| format!("{} wants a number", argument.display()))?;
    }
    if options.program.is_empty() { Err("a program is missing".into()) } else { Ok(options) }
}

/// Runs each round in a separate process.
fn many_rounds(options: &Options) -> ExitCode {
    let (mut bad, mut stopped) = (0, 0);
    for seed in options.seed..options.seed + options.rounds {
        match round_apart(seed, options) {
            Ok(Some(code)) if code == i32::from(STOPPED) => stopped += 1,
            Ok(Some(0)) => {}
            end => {
                println!("seed {seed}: BAD: {end:?}");
                bad += 1;
            }
        }
    }
    println!("{} rounds: {stopped} stopped and told why, {bad} bad", options.rounds);
    ExitCode::from(u8::from(bad > 0))
}

/// Returns the exit code. Returns `None` if a signal ended the round, or if the round hung and was killed
/// here.
fn round_apart(seed: u64, options: &Options) -> io::Result<Option<i32>> {
    let mut command = Command::new(env::current_exe()?);
    command.args(["--seed", &seed.to_string(), "--no-writes-for", &options.no_writes_ms.to_string(), "--"]);
    command.args(&options.program);
    let (mut child, began) = (command.spawn()?, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn one_round(options: &Options) -> ExitCode {
    let (program, arguments) = options.program.split_first().expect("there is a program");
    let mut command = Command::new(program);
    command.args(arguments);
    let whims = whims(options.seed);
    let file = tempfile::tempfile().expect("a temporary file");
    let device = TestDevice::simulated(DEVICE_PAGES, options.seed, Manner::Threads(2), whims).in_file(file);
    if options.no_writes_ms > 0 {
        device.writes().fail_every(1, EIO);
        let (device, passes_after) = (device.clone(), Duration::from_millis(options.no_writes_ms));
        thread::spawn(move || {
            while device.happened().failed_writes == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            thread::sleep(passes_after);
            device.writes().fail_every(0, 0);
        });
    }
    let area = SwapArea::device(device.boxed());
    let make_manager = move |budget_bytes| {
        Manager::builder()
            .huge(HugePolicy::Never)
            .reclaim_policy(ReclaimPolicy::Returns)
            .swap_area(area)
            .budget_bytes(budget_bytes)
            .build()
    };
    let limits = octavo_pager::Options {
        limit_bytes: LIMIT_BYTES,
        socket: None,
        is_strict: false,
        tells_progress: false,
        leaves_manager: false,
    };
    let (end, summary) = octavo_pager::run(command, limits, make_manager).expect("the program starts");
    let how = match &end {
        End::Program(status) => status.to_string(),
        End::NotStarted(error) => format!("not started: {error}"),
        End::Refused(why) => format!("not started: {why}"),
        End::Stopped(why) => format!("stopped: {why}"),
    };
    println!(
        "seed {}: {how}; {} MiB out, {} MiB in; {whims:?}; {:?}",
        options.seed,
        summary.swapped_out_bytes >> 20,
        summary.swapped_in_bytes >> 20,
        device.happened()
    );
    match end {
        End::Program(status) if status.success() => ExitCode::SUCCESS,
        End::Program(_) | End::NotStarted(_) | End::Refused(_) => ExitCode::FAILURE,
        End::Stopped(_) => ExitCode::from(STOPPED),
    }
}

/// Returns how the device of a round fails. Most devices fail now and then, and the program continues. Some
/// devices fail so often that the program has to be stopped.
fn whims(seed: u64) -> Whims {
    let mut random = Random::new(seed);
    let mut pick = |of: &[u64]| of[random.below(of.len() as u64) as usize];
    Whims {
        inline: pick(&[0, 0, 200]),
        failed_reads: pick(&[0, 5, 20, 20, 50, 400]),
        failed_writes: pick(&[0, 0, 20, 100, 300, 1000]),
        full: pick(&[0, 0, 1]) == 1,
        lying_reads: pick(&[0, 0, 5, 20]),
        lost_writes: pick(&[0, 0, 0, 0, 1]),
        delay: pick(&[0, 20, 100, 300]),
        refused: pick(&[0, 0, 100, 500]),
    }
}
