//! `octavo run`: a program, and all its children, within a limit.

pub mod args;
pub mod demo;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use octavo::io::{SwapArea, SwapFile};
use octavo::{HugePolicy, Manager, ManagerBuilder, ReclaimPolicy};
use octavo_pager::{End, Summary};
use octavo_platform::accessed::AccessedBits;
use octavo_platform::usage;

use crate::choices::{AccessedBitsChoice, JsonTarget};
use crate::failure::Failure;
use crate::output::tell;
use crate::run::args::{Memory, RunArgs, SwapPlace};

/// The least limit in which a program can be served.
const LEAST_BYTES: u64 = 32 << 20;
/// What `auto` leaves of a limit to the kernel: page tables, sockets, and what comes before it is noticed.
const MARGIN_BYTES: u64 = 32 << 20;

/// Runs a program. Returns its exit code.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let is_demo = args.program.is_empty();
    let limit_bytes = match args.memory {
        Memory::Auto if is_demo => demo::LIMIT_BYTES,
        _ => limit(&args.memory)?,
    };
    let default = ["/proc/self/exe".into(), demo::SUBCOMMAND.into()];
    let words: &[OsString] = if is_demo { &default } else { &args.program };
    let (program, arguments) = words.split_first().expect("there is a program");
    let mut command = Command::new(program);
    command.args(arguments);
    args.swap.iter().try_for_each(check_place)?;
    let builder = builder(args);
    let accessed_bits = args.accessed_bits;
    let make_manager = move |budget_bytes| {
        builder.budget_bytes(budget_bytes).reclaim_policy(reclaim_policy(accessed_bits)).build()
    };
    let (end, summary) = octavo_pager::run(command, limit_bytes, args.socket.as_deref(), make_manager)
        .map_err(|error| match (&args.socket, error.kind()) {
            (Some(path), ErrorKind::AddrInUse) => Failure::Said(format!(
                "somebody listens at {}, or it is no socket; give --socket another path",
                path.display()
            )),
            (_, ErrorKind::NotFound) if program.as_encoded_bytes().starts_with(b"-") => Failure::Said(format!(
                "there is no option {0}, and no program of that name; `octavo run --help` lists the options, which come before the program",
                program.display()
            )),
            _ => Failure::system(format!("cannot run {}", program.display()), error),
        })?;
    if args.stats || is_demo {
        tell(&summary);
    }
    if let Some(target) = &args.json {
        write_json(target, &summary)?;
    }
    match end {
        End::Program(status) => Ok(end_as(status)),
        End::Stopped(why) => Err(Failure::Said(format!("the program was stopped: {why}"))),
    }
}

fn limit(memory: &Memory) -> Result<u64, Failure> {
    let bytes = match memory {
        Memory::Bytes(bytes) => *bytes,
        Memory::Auto => {
            let limit = usage::usable_memory_bytes();
            limit.saturating_sub(limit / 32 + MARGIN_BYTES)
        }
    };
    if bytes < LEAST_BYTES {
        let message = format!(
            "a limit of {bytes} bytes is too small to serve a program in; give --memory at least {} MiB",
            LEAST_BYTES >> 20
        );
        return Err(Failure::Said(message));
    }
    Ok(bytes)
}

/// All of the manager's settings but its budget.
fn builder(args: &RunArgs) -> ManagerBuilder {
    let mut builder = Manager::builder()
        .huge(HugePolicy::Never)
        .compression(args.compression.compression())
        .encrypt(args.encrypt);
    for place in &args.swap {
        builder = builder.swap_area(area(place));
    }
    if args.swap.is_empty() {
        builder = builder.swap_file(SwapFile::default());
    }
    builder
}

/// Returns the policy for what can be known of the use of a program's pages. Where accessed bits cannot be read, it shows in faults only.
fn reclaim_policy(accessed_bits: AccessedBitsChoice) -> ReclaimPolicy {
    let is_known = accessed_bits == AccessedBitsChoice::Auto && AccessedBits::prepare().is_ok();
    if is_known { ReclaimPolicy::S3Fifo } else { ReclaimPolicy::Returns }
}

/// Swap is opened when the program outgrows its limit, which may be hours later. So a place that is not there is said before.
fn check_place(place: &SwapPlace) -> Result<(), Failure> {
    let folder =
        place.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if place.path.exists() || folder.is_dir() {
        return Ok(());
    }
    let (path, folder) = (place.path.display(), folder.display());
    Err(Failure::Said(format!("--swap {path}: there is no folder {folder}; make it, or give another path")))
}

fn area(place: &SwapPlace) -> SwapArea {
    let kind = fs::metadata(&place.path).map(|metadata| metadata.file_type());
    let area = match kind {
        Ok(kind) if kind.is_block_device() => SwapArea::block_device(&place.path),
        Ok(kind) if kind.is_dir() => SwapArea::temporary(&place.path),
        _ => SwapArea::file(&place.path),
    };
    place.limit_bytes.into_iter().fold(area, SwapArea::limit_bytes)
}

fn write_json(target: &JsonTarget, summary: &Summary) -> Result<(), Failure> {
    let json = serde_json::to_string(summary)
        .map_err(|error| Failure::Said(format!("the summary cannot be written as JSON: {error}")))?;
    match target {
        JsonTarget::Stdout => println!("{json}"),
        JsonTarget::File(path) => write_file(path, &json)?,
    }
    Ok(())
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, format!("{text}\n"))
        .map_err(|error| Failure::system(format!("cannot write the summary to {}", path.display()), error))
}

/// Ends as the program has ended: by the same signal, or with the code to be returned.
fn end_as(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => {
            octavo_pager::end_by_signal(signal);
            // The signal does not end this process. A shell would say it like this.
            128 + signal as u8
        }
        (None, None) => 1,
    }
}
