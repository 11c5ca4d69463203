//! Checks what a run needs. The checks come before the program starts. Without them, a run would notice a
//! lack only when memory gets short.

use std::collections::HashSet;
use std::env;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use octavo::io::SwapArea;
use octavo::{ErrorKind, PAGE_BYTES, bytes_for_people};
use octavo_command::choices::JsonTarget;
use octavo_command::failure::Failure;
use octavo_command::output::Text;
use octavo_command::result_file::{ResultFile, folder_of};
use octavo_pager::Raised;
use octavo_platform::accessed::AccessedBits;
use octavo_platform::{Reservation, usage};
use rustix::process::{Resource, geteuid, getrlimit};

use crate::run::args::{LEAST_BYTES, MemoryLimit, RunArgs, SwapPlace};
use crate::run::demo;
use crate::run::lookup::{Lookup, look_up};
use crate::run::messages::{self, said_of};
use crate::run::outer::{Outer, outer};
use crate::run::settings::{builder, places};
use crate::rungs::{Rung, RungChoice};

/// With fewer descriptors, a run of one process fails midway.
const LEAST_DESCRIPTORS: u64 = 64;
/// About how many descriptors the runner keeps for itself, and how many for each process that it manages.
const OWN_DESCRIPTORS: u64 = 30;
const DESCRIPTORS_EACH: u64 = 10;
/// A place for swap with less room than this is refused, unless the user limited it to less.
const LEAST_ROOM: u64 = 16 << 20;
/// The largest swap that is advised to a user who has too few addresses.
const MOST_ADVISED_SWAP: u64 = 8 << 30;
/// Bytes of addresses that the runner takes besides the manager: stacks and heaps of threads, and its
/// program.
const REST_BYTES: usize = 128 << 20;
/// With `auto`, the run's limit is lower than the machine's or container's by this much. The difference is
/// for page tables, sockets, and growth that is not noticed yet.
const MARGIN_BYTES: u64 = 32 << 20;

/// The result of a check.
#[derive(Debug)]
pub enum Finding {
    /// All is well. The text says what was found.
    Well(String),
    /// The program can run, but Octavo cannot do what the user asks for.
    Lacks(String),
    /// Nothing can run.
    Fails(String),
}

use Finding::{Fails, Lacks, Well};

/// One thing that a run needs.
#[derive(Debug)]
pub struct Check {
    pub what: &'static str,
    pub finding: Finding,
}

impl Check {
    fn new(what: &'static str, found: Result<String, String>) -> Self {
        Self { what, finding: found.map_or_else(Fails, Well) }
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.finding {
            Well(words) => write!(f, "  {:<15}{words}", self.what),
            Lacks(why) | Fails(why) => write!(f, "! {:<15}{why}", self.what),
        }
    }
}

/// The results of all checks.
#[derive(Debug)]
pub struct CheckResults {
    pub checks: Vec<Check>,
    /// The limit of a run. `None` if the check of the limit failed.
    pub limit_bytes: Option<u64>,
    /// The run around this one.
    pub outer: Option<Outer>,
}

/// Checks everything that a run with these options needs. Costs one or two milliseconds.
pub fn look(args: &RunArgs) -> CheckResults {
    let raised = Raised::now();
    let (limit, outer) = (limit(args), outer());
    let limit_bytes = limit.as_ref().ok().copied();
    let swap = swap(args);
    // The addresses depend on the limit and on swap, so both must be known.
    let bytes = limit_bytes.filter(|_| swap.is_ok());
    let checks = [
        Some(Check::new(
            "limit",
            limit.map(|bytes| format!("{} for the program and Octavo", bytes_for_people(bytes))),
        )),
        Some(Check::new("swap", swap)),
        bytes.map(|bytes| Check::new("addresses", addresses(args, bytes))),
        Some(Check::new("open files", descriptors())),
        Some(Check { what: "rights", finding: rights(args.rung) }),
        outer.map(|outer| Check { what: "run around it", finding: Lacks(inside(&outer)) }),
        args.json.as_ref().map(|target| Check::new("summary", summary(target))),
    ];
    drop(raised);
    CheckResults { checks: checks.into_iter().flatten().collect(), limit_bytes, outer }
}

/// Does the checks of [`look`], checks the program and its socket, and tries to take a process over. Prints
/// the results to standard output. Returns the exit code.
pub fn check(args: &RunArgs) -> Result<u8, Failure> {
    let CheckResults { mut checks, .. } = look(args);
    checks.extend(args.program.first().map(|program| Check::new("program", find(program))));
    checks.extend(args.socket.as_ref().map(|path| Check::new("socket", free_socket(path))));
    checks.push(Check { what: "a process", finding: try_one().map_or_else(Lacks, Well) });
    checks.push(Check { what: "pages in use", finding: Well(pages_in_use()) });
    let text = Text::beside(None);
    checks.iter().try_for_each(|check| text.line(check))?;
    let is_well = checks.iter().all(|check| matches!(check.finding, Well(_)));
    text.line(if is_well { "A run can do all of it." } else { "A run cannot do all of it." })?;
    Ok(u8::from(!is_well))
}

/// Finds the program.
fn find(program: &OsStr) -> Result<String, String> {
    let words: [(&str, &dyn Display); 2] =
        [("program", &program.display()), ("why", &"it may not be executed")];
    match look_up(program) {
        Lookup::Found(path) => Ok(path.display().to_string()),
        Lookup::NotExecutable(_) => Err(messages::NOT_RUN.with(&words)),
        Lookup::Missing if program.as_encoded_bytes().starts_with(b"-") => {
            Err(messages::NO_OPTION.with(&words))
        }
        Lookup::Missing => Err(messages::NO_PROGRAM.with(&words)),
    }
}

/// Checks whether a path can become a socket.
fn free_socket(path: &Path) -> Result<String, String> {
    match fs::symlink_metadata(path).map(|found| found.file_type().is_socket()) {
        Ok(true) if UnixStream::connect(path).is_err() => Ok(path.display().to_string()),
        Ok(_) => Err(said_of(&messages::SOCKET_TAKEN, path, &"")),
        Err(_) if folder_of(path).is_dir() => Ok(path.display().to_string()),
        Err(error) => Err(said_of(&messages::NO_SOCKET, path, &error)),
    }
}

/// Returns the limit of a run.
///
/// # Errors
/// Returns what is wrong with it.
fn limit(args: &RunArgs) -> Result<u64, String> {
    let most_bytes = usage::usable_memory_bytes();
    let bytes = match args.memory {
        MemoryLimit::Auto if args.program.is_empty() => demo::LIMIT_BYTES,
        MemoryLimit::Auto => most_bytes.saturating_sub(most_bytes / 32 + MARGIN_BYTES),
        MemoryLimit::Bytes(bytes) => bytes,
    };
    if bytes > most_bytes {
        let words: [(&str, &dyn Display); 2] =
            [("wanted", &bytes_for_people(bytes)), ("most", &bytes_for_people(most_bytes))];
        return Err(messages::LIMIT_ABOVE_MACHINE.with(&words));
    }
    if bytes < LEAST_BYTES {
        return Err(messages::LIMIT_TOO_SMALL.with(&[("bytes", &bytes)]));
    }
    Ok(bytes)
}

/// Checks the swap places.
fn swap(args: &RunArgs) -> Result<String, String> {
    let places = places(args);
    if let Some(twice) = twice(places.iter().map(|(place, _)| &*place.path)) {
        return Err(messages::PLACE_TWICE.with(&[("place", &twice.display())]));
    }
    // The user may not know who has set this variable.
    let from = if args.swap.is_empty() && env::var_os("TMPDIR").is_some() { "TMPDIR: " } else { "" };
    let at = |place: &SwapPlace, area: &SwapArea| swap_at(place, area).map_err(|why| format!("{from}{why}"));
    let places = places.into_iter().map(|(place, area)| at(&place, &area));
    places.collect::<Result<Vec<_>, String>>().map(|places| places.join("; "))
}

/// Returns the first file or disk that is named twice. Two areas in one folder have a file each.
fn twice<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<&'a Path> {
    let mut seen = HashSet::new();
    // A file that is not there yet counts by its folder.
    let place = |path: &Path| {
        let folder = folder_of(path).canonicalize().unwrap_or_default();
        path.canonicalize().unwrap_or_else(|_| folder.join(path.file_name().unwrap_or_default()))
    };
    paths.filter(|path| !path.is_dir()).find(|path| !seen.insert(place(path)))
}

fn swap_at(place: &SwapPlace, area: &SwapArea) -> Result<String, String> {
    let limit_bytes = place.limit_bytes.unwrap_or(u64::MAX);
    if limit_bytes < PAGE_BYTES as u64 {
        return Err(messages::NO_PAGE.with(&[("bytes", &limit_bytes)]));
    }
    area.check().map_err(|error| refused(&error, None))?;
    let path = &place.path;
    let found = fs::metadata(path).ok();
    if found.as_ref().is_some_and(|found| found.file_type().is_block_device()) {
        return Ok(format!("the disk {}", path.display()));
    }
    let is_folder = found.as_ref().is_some_and(|found| found.is_dir());
    let kept_bytes = found.filter(|found| found.is_file()).map_or(0, |found| found.blocks() * 512);
    let folder = if is_folder { path } else { folder_of(path) };
    let room = room_at(folder, kept_bytes).unwrap_or(u64::MAX);
    if room < LEAST_ROOM.min(limit_bytes) {
        let words: [(&str, &dyn Display); 2] =
            [("place", &path.display()), ("room", &bytes_for_people(room))];
        return Err(messages::LITTLE_ROOM.with(&words));
    }
    let what = if is_folder { "a file without a name in " } else { "" };
    let most = room.min(limit_bytes);
    let most = if most == u64::MAX { String::new() } else { format!(", up to {}", bytes_for_people(most)) };
    Ok(format!("{what}{}{most}", path.display()))
}

/// Returns how many bytes a file in this folder may hold: the free room of the file system plus `kept_bytes`
/// that the file has already, but at most the limit on file sizes. File systems that report no size have no
/// bound.
fn room_at(folder: &Path, kept_bytes: u64) -> Option<u64> {
    let system = rustix::fs::statvfs(folder).ok().filter(|system| system.f_blocks > 0);
    let free = system.map(|system| {
        // Some blocks are reserved for root.
        let blocks = if geteuid().is_root() { system.f_bfree } else { system.f_bavail };
        blocks.saturating_mul(system.f_frsize).saturating_add(kept_bytes)
    });
    free.into_iter().chain(getrlimit(Resource::Fsize).current).min()
}

/// Checks whether there are enough addresses.
fn addresses(args: &RunArgs, limit_bytes: u64) -> Result<String, String> {
    // Leave room for the rest of the runner.
    let _rest = Reservation::new(REST_BYTES, PAGE_BYTES);
    let builder = |args: &RunArgs| builder(args).budget_bytes(limit_bytes);
    if let Err(error) = builder(args).check() {
        let fits = |swap_bytes: &u64| builder(&with_swap_of(args, *swap_bytes)).check().is_ok();
        // Each half of the former.
        let sizes = std::iter::successors(Some(MOST_ADVISED_SWAP), |bytes| Some(bytes / 2));
        let less = sizes.take_while(|bytes| *bytes >= LEAST_ROOM).find(fits);
        return Err(refused(&error, less));
    }
    Ok(match getrlimit(Resource::As).current {
        Some(most) => format!("enough, of {}", bytes_for_people(most)),
        None => "as many as are wanted".into(),
    })
}

/// Returns the options with this much swap in each place.
fn with_swap_of(args: &RunArgs, bytes: u64) -> RunArgs {
    let places = places(args).into_iter();
    let swap = places.map(|(place, _)| SwapPlace { limit_bytes: Some(bytes), ..place }).collect();
    RunArgs { swap, ..args.clone() }
}

/// Describes an error of the engine to the user who gave these options. With `less` bytes of swap there would
/// be enough addresses.
fn refused(error: &octavo::Error, less: Option<u64>) -> String {
    let why: &dyn Display = &error.what_happened();
    match (error.kind(), getrlimit(Resource::As).current) {
        (ErrorKind::SwapUnavailable, _) => messages::NO_PLACE.with(&[("why", why)]),
        (ErrorKind::SwapNotEmpty, _) => messages::PLACE_TAKEN.with(&[("why", why)]),
        (ErrorKind::System, Some(most)) => {
            let less = less.map_or_else(String::new, |bytes| {
                format!(", or use less swap, as by --swap /var/tmp:{}M", bytes >> 20)
            });
            messages::NO_ADDRESSES.with(&[("why", why), ("limit", &bytes_for_people(most)), ("less", &less)])
        }
        _ => error.what_happened().into(),
    }
}

/// Checks the limit on descriptors. The runner keeps a few for each process of the tree.
fn descriptors() -> Result<String, String> {
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < LEAST_DESCRIPTORS => {
            Err(messages::FEW_FILES.with(&[("most", &most), ("least", &LEAST_DESCRIPTORS)]))
        }
        Some(most) => {
            let processes = (most - OWN_DESCRIPTORS) / DESCRIPTORS_EACH;
            Ok(format!("up to {most}, enough for some {processes} processes at once"))
        }
        None => Ok("as many as are wanted".into()),
    }
}

fn rights(rung: RungChoice) -> Finding {
    match rung.take() {
        Ok(Rung::Pool) => Well("a userfaultfd, and tracing".into()),
        Ok(rung @ (Rung::File | Rung::Kernel)) => Well(rung.words().into()),
        Err(why) if rung == RungChoice::Auto && Rung::File.probe().is_ok() => {
            Lacks(messages::NO_RIGHTS_BUT_FILES.with(&[("why", &why)]))
        }
        Err(why) => Lacks(messages::NO_RIGHTS.with(&[("why", &why)])),
    }
}

fn inside(outer: &Outer) -> String {
    messages::INSIDE.with(&[("pid", &outer.pid), ("limit", &bytes_for_people(outer.limit_bytes))])
}

fn summary(target: &JsonTarget) -> Result<String, String> {
    match target {
        JsonTarget::Stdout => Ok("to standard output".into()),
        JsonTarget::File(path) => match ResultFile::check(path) {
            Ok(()) => Ok(format!("to {}", path.display())),
            Err(error) => Err(said_of(&messages::NO_SUMMARY, path, &error)),
        },
    }
}

/// Tries to take a small process over.
fn try_one() -> Result<String, String> {
    let start = || {
        Command::new("/proc/self/exe")
            .arg(demo::WAITING)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    };
    let mut process =
        start().map_err(|error| messages::NOT_RUN.with(&[("program", &"octavo"), ("why", &error)]))?;
    let tried = octavo_pager::try_on(process.id());
    // The process ends when its standard input is closed.
    drop(process.stdin.take());
    let _ = process.wait();
    tried.map(|()| "was taken over, and let go".into())
}

fn pages_in_use() -> String {
    match AccessedBits::prepare() {
        Ok(_) => "are told by the processor".into(),
        Err(why) => format!("show in faults only: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_keeps_its_blocks() {
        const KEPT: u64 = 1 << 50;
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let room = |kept| room_at(folder.path(), kept);
        let most = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        // Other processes may write to the file system meanwhile, but not as much as a petabyte.
        if let (Some(without), Some(with)) = (room(0), room(KEPT)) {
            assert!(without < KEPT && with >= KEPT.min(most), "{without} {with}");
        }
    }
}
