//! `octavo run`: a program, and all its children, within a limit.

pub mod args;
pub mod demo;

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use octavo::io::{SwapArea, SwapFile};
use octavo::{HugePolicy, Manager, ManagerBuilder, ReclaimPolicy};
use octavo_pager::{End, Options, Summary};
use octavo_platform::accessed::AccessedBits;
use octavo_platform::usage;
use rustix::process::{Resource, getrlimit};
use tempfile::NamedTempFile;

use crate::choices::{AccessedBitsChoice, JsonTarget};
use crate::failure::Failure;
use crate::output::tell;
use crate::run::args::{LEAST_BYTES, Memory, RunArgs, SwapPlace};

/// With fewer, a run of one process fails midway.
const LEAST_DESCRIPTORS: u64 = 64;
/// The exit codes of shells for a program that is not there, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
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
    check_descriptors()?;
    // Swap is opened when the program outgrows its limit, which may be hours later.
    areas(args).iter().try_for_each(SwapArea::check)?;
    if let Some(JsonTarget::File(path)) = &args.json {
        // The summary is written at the end. Whether it can be shows now.
        aside(path).map_err(|error| cannot_write(path, error))?;
    }
    // The builder is made then, too, and looks at the machine.
    let settings = args.clone();
    let make_manager = move |budget_bytes| {
        let reclaim_policy = reclaim_policy(settings.accessed_bits);
        builder(&settings).budget_bytes(budget_bytes).reclaim_policy(reclaim_policy).build()
    };
    let options = Options {
        limit_bytes,
        socket: args.socket.as_deref(),
        is_strict: args.strict,
        leaves_manager: args.swap.iter().all(|place| place.path.is_dir()),
    };
    let (end, summary) = octavo_pager::run(command, options, make_manager).map_err(|error| {
        match (&args.socket, error.kind()) {
            (Some(path), ErrorKind::AddrInUse) => Failure::Said(format!(
                "somebody listens at {}, or it is no socket; give --socket another path",
                path.display()
            )),
            _ => Failure::system(format!("cannot watch {}", program.display()), error),
        }
    })?;
    let has_started = !matches!(end, End::NotStarted(_));
    if (args.stats || is_demo) && has_started {
        tell(&summary);
    }
    if let Some(target) = &args.json {
        write_json(target, &summary)?;
    }
    match end {
        End::Program(status) => Ok(end_as(status)),
        End::NotStarted(error) => Ok(not_started(program, &error)),
        End::Stopped(why) => Err(Failure::Said(format!("the program was stopped: {why}"))),
    }
}

/// The runner keeps a few descriptors for each process of the tree.
fn check_descriptors() -> Result<(), Failure> {
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < LEAST_DESCRIPTORS => Err(Failure::Said(format!(
            "a process may have {most} open files here (RLIMIT_NOFILE), and Octavo needs {LEAST_DESCRIPTORS}; allow more, as by `ulimit -n 1024`"
        ))),
        _ => Ok(()),
    }
}

fn limit(memory: &Memory) -> Result<u64, Failure> {
    let most_bytes = usage::usable_memory_bytes();
    let bytes = match memory {
        Memory::Bytes(bytes) => *bytes,
        Memory::Auto => most_bytes.saturating_sub(most_bytes / 32 + MARGIN_BYTES),
    };
    if bytes > most_bytes {
        let (wanted, most) = (bytes >> 20, most_bytes >> 20);
        let message = format!(
            "a limit of {wanted} MiB is more than the {most} MiB that there are; give --memory less, or `auto`"
        );
        return Err(Failure::Said(message));
    }
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
    let builder = Manager::builder()
        .huge(HugePolicy::Never)
        .compression(args.compression.compression())
        .encrypt(args.encrypt);
    areas(args).into_iter().fold(builder, ManagerBuilder::swap_area)
}

/// Where pages go: to the places that were named, or to a file without a name.
fn areas(args: &RunArgs) -> Vec<SwapArea> {
    if !args.swap.is_empty() {
        return args.swap.iter().map(|place| area(place, args.force)).collect();
    }
    SwapArea::from_file(SwapFile::default()).into_iter().collect()
}

/// Returns the policy for what can be known of the use of a program's pages. Where accessed bits cannot be read, it shows in faults only.
fn reclaim_policy(accessed_bits: AccessedBitsChoice) -> ReclaimPolicy {
    let is_known = accessed_bits == AccessedBitsChoice::Auto && AccessedBits::prepare().is_ok();
    if is_known { ReclaimPolicy::Reuse } else { ReclaimPolicy::Returns }
}

fn area(place: &SwapPlace, force: bool) -> SwapArea {
    let kind = fs::metadata(&place.path).map(|metadata| metadata.file_type());
    let area = match kind {
        Ok(kind) if kind.is_block_device() => SwapArea::block_device(&place.path),
        Ok(kind) if kind.is_dir() => SwapArea::temporary(&place.path),
        _ => SwapArea::file(&place.path),
    };
    place.limit_bytes.into_iter().fold(area, SwapArea::limit_bytes).overwrite(force)
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

/// Writes a file aside, and puts it in place when it is whole. What is no plain file, such as a pipe, is written as it is.
fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let Some(mut aside) = aside(path)? else { return fs::write(path, format!("{text}\n")) };
        writeln!(aside, "{text}")?;
        aside.persist(path).map(drop).map_err(|error| error.error)
    };
    write().map_err(|error| cannot_write(path, error))
}

/// Makes a file without a name of its own beside the one that it is to take the place of. `None` where that one is no plain file.
fn aside(path: &Path) -> io::Result<Option<NamedTempFile>> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(None);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let permissions = Permissions::from_mode(0o666);
    tempfile::Builder::new().permissions(permissions).tempfile_in(folder).map(Some)
}

fn cannot_write(path: &Path, error: io::Error) -> Failure {
    Failure::system(format!("cannot write the summary to {}", path.display()), error)
}

/// Says why the program could not be started. Returns the exit code, which is a shell's.
fn not_started(program: &OsStr, error: &io::Error) -> u8 {
    let is_option = program.as_encoded_bytes().starts_with(b"-");
    let program = program.display();
    if error.kind() != ErrorKind::NotFound {
        tell(format_args!("octavo: cannot run {program}: {error}"));
        return NOT_EXECUTABLE;
    }
    if is_option {
        tell(format_args!(
            "octavo: there is no option {program}, and no program of that name; `octavo run --help` lists the options, which come before the program"
        ));
    } else {
        tell(format_args!(
            "octavo: cannot run {program}: there is no such program, or what it is to be run by is not there"
        ));
    }
    NOT_FOUND
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_takes_the_place_of_an_older_one_when_it_is_whole_and_pipes_get_it_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("summary.json");
        for text in ["{}", "{\"peak\":1}"] {
            write_file(&file, text).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{text}\n"));
        }
        // A link leads on to what it names.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, "[]").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "[]\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left aside");
        assert!(write_file(&folder.path().join("none/summary.json"), "{}").is_err());
        write_file(Path::new("/dev/null"), "{}").unwrap();
    }
}
