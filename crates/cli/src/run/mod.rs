//! `octavo run`: a program, and all its children, within a limit.

pub mod args;
mod checks;
pub mod demo;
mod lookup;
pub mod messages;
mod outer;
mod settings;
mod summary_file;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use octavo_command::failure::Failure;
use octavo_command::output::tell;
use octavo_pager::{End, KernelSwap, Options, Summary};
use octavo_platform::refusal;
use rustix::process::{Resource, getrlimit};

use crate::run::args::{RunArgs, SwapPlace};
use crate::run::checks::Finding;
use crate::run::lookup::{Lookup, look_up};
use crate::run::settings::{builder, reclaim_policy};
use crate::rungs::{Rung, probes};

/// The exit codes of shells for a program that does not exist, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Runs a program. Returns its exit code.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    if args.check {
        return checks::check(args);
    }
    let is_demo = args.program.is_empty();
    let default = ["/proc/self/exe".into(), demo::SUBCOMMAND.into()];
    let words: &[OsString] = if is_demo { &default } else { &args.program };
    let (program, arguments) = words.split_first().expect("there is a program");
    let mut command = Command::new(program);
    command.args(arguments);
    let found = checks::look(args);
    for check in found.checks {
        match check.finding {
            Finding::Well(_) => {}
            Finding::Lacks(why) if !args.strict && !is_demo => tell(format_args!("octavo: {why}")),
            Finding::Lacks(why) if args.strict => {
                let why = format!(
                    "not started: {why}. Without --strict the program would run, but --memory would not hold"
                );
                return Err(Failure::Said(why));
            }
            Finding::Lacks(why) | Finding::Fails(why) => {
                return Err(Failure::Said(format!("not started: {why}")));
            }
        }
    }
    if found.outer.is_some() {
        // This process becomes the program: nothing is needed between the outer run and the program.
        return Ok(not_started(program, &command.exec()));
    }
    let limit_bytes = found.limit_bytes.expect("a run with a limit that cannot be has ended");
    outer::announce(&mut command, limit_bytes);
    let rung = args.rung.take().unwrap_or(Rung::Pool);
    if rung != Rung::Pool {
        tell(format_args!("octavo: this run takes the {rung} rung: {}", rung.words()));
    }
    let (end, summary) = match rung {
        Rung::Pool => in_pool(command, args, limit_bytes, is_demo)?,
        Rung::File => in_files(command, args, limit_bytes)?,
        Rung::Kernel => in_kernel_swap(&command, args, limit_bytes)?,
    };
    let has_started = !matches!(end, End::NotStarted(_) | End::Refused(_));
    if (args.stats || is_demo) && has_started {
        tell(&summary);
    }
    let was_stopped = matches!(end, End::Stopped(_));
    let is_explained = has_started && (args.explain || (was_stopped || summary.is_slow()) && !args.quiet);
    if is_explained && !was_stopped {
        tell(summary.explain(None));
    }
    if let Some(target) = &args.json {
        summary_file::write(target, &summary)?;
    }
    match end {
        End::Program(status) => Ok(end_as(status)),
        End::NotStarted(error) => Ok(not_started(program, &error)),
        End::Refused(why) => Err(Failure::Said(format!("not started: {why}"))),
        // Print the reason before the explanation.
        End::Stopped(why) if is_explained => {
            let explained = summary.explain(Some(&why));
            Err(Failure::Said(format!("the program was stopped: {why}\n{explained}")))
        }
        End::Stopped(why) => Err(Failure::Said(format!("the program was stopped: {why}"))),
    }
}

fn tells_progress(args: &RunArgs) -> bool {
    !args.quiet && io::stderr().is_terminal()
}

/// Runs a program by the pool rung.
fn in_pool(
    command: Command,
    args: &RunArgs,
    limit_bytes: u64,
    is_demo: bool,
) -> Result<(End, Summary), Failure> {
    let program = command.get_program().to_owned();
    // The manager is made when the program nears its limit, perhaps hours later, and examines the machine
    // then.
    let settings = args.clone();
    let make_manager = move |budget_bytes| {
        let reclaim_policy = reclaim_policy(settings.accessed_bits);
        builder(&settings).budget_bytes(budget_bytes).reclaim_policy(reclaim_policy).build()
    };
    let options = Options {
        limit_bytes,
        socket: args.socket.as_deref(),
        is_strict: args.strict || is_demo,
        tells_progress: tells_progress(args),
        leaves_manager: args.swap.iter().all(|place| place.path.is_dir()),
    };
    octavo_pager::run(command, options, make_manager).map_err(|error| {
        Failure::Said(match (&args.socket, error.kind()) {
            (Some(path), ErrorKind::AddrInUse) => messages::said_of(&messages::SOCKET_TAKEN, path, &error),
            (Some(path), ErrorKind::NotFound) => messages::said_of(&messages::NO_SOCKET, path, &error),
            _ => not_watched(&program, &error),
        })
    })
}

/// Runs a program by the file rung.
fn in_files(command: Command, args: &RunArgs, limit_bytes: u64) -> Result<(End, Summary), Failure> {
    let program = command.get_program().to_owned();
    let place = args.swap.first().cloned().or_else(SwapPlace::without_name);
    let path = place.map_or_else(|| "/var/tmp".into(), |place| place.path);
    let folder = probes::folder(&path).map_err(|why| Failure::Said(format!("not started: {why}")))?;
    let options = Options {
        limit_bytes,
        socket: args.socket.as_deref(),
        is_strict: args.strict,
        tells_progress: tells_progress(args),
        leaves_manager: false,
    };
    octavo_pager::run_in_files(command, options, &folder.path)
        .map_err(|error| Failure::Said(not_watched(&program, &error)))
}

/// Runs a program by the kernel rung.
fn in_kernel_swap(command: &Command, args: &RunArgs, limit_bytes: u64) -> Result<(End, Summary), Failure> {
    let place = args.swap.first().cloned().or_else(SwapPlace::without_name);
    let place = place.ok_or_else(|| {
        Failure::Said("not started: there is no folder for a swap file; name one with --swap".into())
    })?;
    let swap = KernelSwap {
        limit_bytes,
        swap_bytes: settings::kernel_swap_bytes(&place, limit_bytes),
        folder: place.path,
        tells_progress: tells_progress(args),
    };
    octavo_pager::run_in_kernel_swap(command, &swap)
        .map_err(|error| Failure::Said(not_watched(command.get_program(), &error)))
}

/// Says why the runner cannot watch the program.
fn not_watched(program: &OsStr, error: &io::Error) -> String {
    messages::NO_WATCH.with(&[("program", &program.display()), ("why", &refusal::in_words(error))])
}

/// Says why the program could not be started. Returns the exit code that a shell would return.
pub fn not_started(program: &OsStr, error: &io::Error) -> u8 {
    let is_option = program.as_encoded_bytes().starts_with(b"-");
    let (message, code) = match error.kind() {
        ErrorKind::NotFound if is_option => (&messages::NO_OPTION, NOT_FOUND),
        ErrorKind::NotFound if look_up(program) != Lookup::Missing => (&messages::NO_INTERPRETER, NOT_FOUND),
        ErrorKind::NotFound => (&messages::NO_PROGRAM, NOT_FOUND),
        // The error of `fork`.
        ErrorKind::WouldBlock => (&messages::NO_PROCESS, NOT_EXECUTABLE),
        _ => (&messages::NOT_RUN, NOT_EXECUTABLE),
    };
    let limit = getrlimit(Resource::Nproc).current;
    let limit = limit.map_or(String::new(), |most| format!(": it may have {most} (RLIMIT_NPROC)"));
    let words: [(&str, &dyn Display); 3] =
        [("program", &program.display()), ("why", error), ("limit", &limit)];
    tell(format_args!("octavo: {}", message.with(&words)));
    code
}

/// Ends as the program has ended: by the same signal, or by returning its exit code.
fn end_as(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => {
            octavo_pager::end_by_signal(signal);
            // The signal does not end this process. Return the code that a shell would return.
            128 + signal as u8
        }
        (None, None) => 1,
    }
}
