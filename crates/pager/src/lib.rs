//! `octavo run`: any program, and all its children, in less memory than they need.
//!
//! The engine lives outside the program, as Mach's external pagers did. The runner owns one [`Manager`], and
//! each managed process is a space of this manager. One budget covers the whole tree and the runner. While
//! the tree fits in its limit, no process is changed. `docs/pager.md` describes the protocol.
//!
//! | module | what it holds |
//! |---|---|
//! | `monitor` | watches the tree's memory, and takes processes over; `monitor/standstill`: processes that are stopped until they are taken over |
//! | `tree` | the processes and their memory: shared memory (`shares`), memory that is not paged (`fixed`), the order in which processes are asked about their memory (`turns`, `rounds`) |
//! | `backing` | the seam between a run and the ways to keep its limit |
//! | `files` | another way: private files, without any privilege |
//! | `managed` | a process under management: which mappings are taken (`eligible`, `bss`, `kinds`), and the work of its driver besides serving faults (`adopter`, `droppers`) |
//! | `ledger` | the one limit, and how much of it each process uses |
//! | `kernel` | another way to keep a limit: a control group, and a swap file of the kernel's |
//! | `reader` | reads the events of processes whose drivers are busy |
//! | `guardian` | ends the tree if the runner dies |
//! | `report`, `messages` | the messages of a run for people |
//! | `system` | calls to the kernel: its facts about processes, and the requests of a run |

/// Prints a line to standard error. Ignores errors, since the stream may be closed.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($words)*)));
    }};
}

mod backing;
mod files;
mod guardian;
mod kernel;
mod ledger;
mod managed;
pub mod messages;
mod monitor;
mod reader;
mod report;
mod system;
mod tree;

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use octavo::Manager;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, set_child_subreaper};

use backing::Backing;
use files::Files;
pub use guardian::{SUBCOMMAND as GUARDIAN, guardian_main};
pub use kernel::group::memory_group;
pub use kernel::keeper::{SUBCOMMAND as SWAP_KEEPER, keeper_main};
pub use kernel::{ENTER, KernelSwap, enter_main, look_for_kernel_rung, run_in_kernel_swap};
use ledger::Ledger;
pub use managed::kinds::MemoryKind;
use monitor::{Failed, Monitor};
pub use octavo_stub::{Message, REASONS, look_for_rights, look_for_tracing, look_for_userfaultfd, may_trace};
use report::socket::{self, Socket};
pub use report::summary::{FaultsByKind, Summary, Waits};
pub use system::limits::Raised;
use system::priority;
pub use system::signals::end_by_signal;
use system::signals::{self, Signals};

/// Tells how a run ended.
#[derive(Debug)]
pub enum End {
    /// The program exited, or a signal ended it.
    Program(ExitStatus),
    /// The program could not be started.
    NotStarted(io::Error),
    /// The run could not begin, for this reason, and the program was not started.
    Refused(String),
    /// The tree was stopped, for this reason.
    Stopped(String),
}

/// Configures a run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The most memory in bytes that the program, its children and this process may use together.
    pub limit_bytes: u64,
    /// The path of a socket. A client that connects gets the figures up to then, as a line of JSON.
    pub socket: Option<&'a Path>,
    /// Whether the run ends when its limit cannot be kept: a process cannot be taken over, or memory that
    /// cannot be paged exceeds the limit. Otherwise, the program continues above its limit.
    pub is_strict: bool,
    /// Whether to tell a user at a terminal that, for a while, the program has done little but wait for
    /// pages.
    pub tells_progress: bool,
    /// Whether to leave the manager's cleanup to the exit of this process, which must follow soon after the
    /// run. Freeing a large swap file takes about a second for a few GiB. If the file is unnamed and no other
    /// process has it open, the kernel frees it in its own threads. Set this only if all swap is in such
    /// files: with a named file or a disk, a transfer might still be in flight when another manager reuses
    /// that place.
    pub leaves_manager: bool,
}

/// Runs a program and all its children within a limit. Before the first process is taken over,
/// `make_manager` makes the manager from the budget in bytes, in a thread of its own. Blocks until the
/// program has ended.
///
/// # Errors
/// Returns the kernel's error if the program cannot be watched, and `AddrInUse` if the socket's path is
/// taken.
pub fn run(
    mut command: Command,
    options: Options<'_>,
    make_manager: impl FnOnce(u64) -> octavo::Result<Manager> + Send + 'static,
) -> io::Result<(End, Summary)> {
    let ledger = Arc::new(Ledger::new(options.limit_bytes));
    let budget_bytes = ledger.budget_bytes();
    let make = Box::new(move || make_manager(budget_bytes).map_err(|error| messages::not_managed(&error)));
    let mut monitor = Monitor::new(Arc::clone(&ledger), make, options.is_strict)?;
    let end = watch(&mut command, options, &mut monitor)?;
    Ok((end, monitor.finish(options.leaves_manager)))
}

/// Runs a program and all its children within a limit, by private files in a folder. Needs no privilege.
/// Blocks until the program has ended.
///
/// # Errors
/// Returns the kernel's error if the program cannot be watched or the file cannot be made, and `AddrInUse` if
/// the socket's path is taken.
pub fn run_in_files(mut command: Command, options: Options<'_>, folder: &Path) -> io::Result<(End, Summary)> {
    let raised = Raised::now();
    let mut files = Files::new(options.limit_bytes, folder, options.is_strict)?;
    drop(raised);
    let end = watch(&mut command, options, &mut files)?;
    Ok((end, files.finish()))
}

/// Starts the program, and watches it to its end.
fn watch(command: &mut Command, options: Options<'_>, backing: &mut dyn Backing) -> io::Result<End> {
    // Orphans become children of the runner, so that none gets lost.
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut signals = Signals::new()?;
    let socket = options.socket.map(Socket::listen).transpose()?;
    if let Err(Failed(why)) = backing.prepare_early() {
        return Ok(End::Refused(why));
    }
    let program = match command.spawn() {
        Ok(child) => child.id(),
        Err(error) => return Ok(End::NotStarted(error)),
    };
    // Raise this process's limits only now: the program has started with the limits that it was given.
    Raised::now().keep();
    priority::begin();
    let pidfd = Pid::from_raw(program as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose()?;
    let mut status = None;
    Ok(loop {
        signals.pass_on(program);
        status = signals::reap(program, |pid| backing.note_end(pid)).or(status);
        // Serve one reader, then look at the tree before the next one.
        if let Some(reader) = socket.as_ref().and_then(Socket::reader) {
            socket::tell(reader, backing.figures());
        }
        if options.tells_progress {
            backing.tell_progress();
        }
        let wait = match backing.turn() {
            Ok(wait) => wait,
            Err(Failed(why)) => {
                backing.kill_all();
                break End::Stopped(why);
            }
        };
        if let Some(status) = status {
            if !backing.is_needed() {
                break End::Program(status);
            }
            // Children that outlive the program are served until they end.
            std::thread::sleep(wait);
            continue;
        }
        if let Err(error) = sleep(&pidfd, wait) {
            backing.kill_all();
            break End::Stopped(messages::NO_END.with(&[("why", &error)]));
        }
    })
}

/// Checks that a run could manage process `pid`: takes it over as a run does, and releases it at once.
///
/// # Errors
/// Returns a sentence that says why a run could not manage it.
pub fn try_on(pid: u32) -> Result<(), String> {
    octavo_stub::Mover::inject(pid, managed::STAGING).map(drop).map_err(|error| error.to_string())
}

/// Sleeps for `wait`, or until the program has ended.
fn sleep(pidfd: &Option<rustix::fd::OwnedFd>, wait: Duration) -> io::Result<()> {
    let mut descriptors: Vec<_> = pidfd.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
    let wait = wait.try_into().map_err(io::Error::other)?;
    match poll(&mut descriptors, Some(&wait)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
