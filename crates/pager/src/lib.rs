//! `octavo run`: any program, and all its children, in less memory than they need.
//!
//! The engine lives outside of the program, as Mach's external pagers did. The runner owns one
//! [`Manager`], and each process that it manages is a space of it. One budget holds for the
//! whole tree and for the runner. While the tree fits, nothing is in any process. `docs/pager.md` has the
//! protocol.
//!
//! | module | what it holds |
//! |---|---|
//! | `monitor` | watches the tree's memory, and takes processes over; `monitor/standstill`: processes that stand still until then |
//! | `tree` | the processes and their memory: what they share (`shares`), what nobody pages (`fixed`), who is asked when (`turns`, `rounds`) |
//! | `managed` | a process under management: which mappings are taken (`eligible`, `bss`, `kinds`), and what its driver does beside serving faults (`adopter`, `droppers`) |
//! | `ledger` | the one limit, and who uses how much of it |
//! | `reader` | reads what processes tell where their drivers are busy |
//! | `guardian` | ends the tree if the runner dies |
//! | `report`, `messages` | what a run tells people |
//! | `system` | what the kernel says of processes, and what a run asks of it |

/// Says a line on standard error. Whoever has closed it does not want to hear.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{}\n", format_args!($($words)*)));
    }};
}

mod guardian;
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

pub use guardian::{SUBCOMMAND as GUARDIAN, guardian_main};
use ledger::Ledger;
pub use managed::kinds::Kind;
use monitor::{Failed, Monitor};
pub use octavo_stub::{Message, REASONS, look_for_rights};
use report::socket::{self, Socket};
pub use report::summary::{Faults, Summary, Waits};
pub use system::limits::Raised;
use system::priority;
pub use system::signals::end_by_signal;
use system::signals::{self, Signals};

/// The end of a run.
#[derive(Debug)]
pub enum End {
    /// The program ended by itself, or by a signal.
    Program(ExitStatus),
    /// The program could not be started.
    NotStarted(io::Error),
    /// The run could not begin, for this reason, and the program was not started.
    Refused(String),
    /// The tree was stopped, for this reason.
    Stopped(String),
}

/// The choices for a run.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The most memory that the program, its children and this process may have together.
    pub limit_bytes: u64,
    /// Whoever connects to this path gets the figures up to then, as a line of JSON.
    pub socket: Option<&'a Path>,
    /// A process that cannot be taken over ends the run. Otherwise it goes on without a limit.
    pub is_strict: bool,
    /// A program that does little for a while but wait for pages is told of, to somebody at a terminal.
    pub tells_progress: bool,
    /// At the end of the run the manager is left to the end of this process, which comes soon. All its swap
    /// is in files without names. To free a large one takes a second for some GiB, and the kernel does that
    /// in threads of its own where nobody else has the file. With a named file or a disk this would be wrong:
    /// a transfer may be under way still when another manager takes it.
    pub leaves_manager: bool,
}

/// Runs a program and all its children within a limit. `make_manager` makes the manager, in a thread of its
/// own, before the first process is taken over; it gets the budget. Blocks until the program has ended.
///
/// # Errors
/// The kernel's, where the program cannot be watched, and `AddrInUse` where the socket's path is taken.
pub fn run(
    mut command: Command,
    options: Options<'_>,
    make_manager: impl FnOnce(u64) -> octavo::Result<Manager> + Send + 'static,
) -> io::Result<(End, Summary)> {
    // Children whose parents end become the runner's, so that none gets lost.
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let mut signals = Signals::new()?;
    let socket = options.socket.map(Socket::listen).transpose()?;
    let ledger = Arc::new(Ledger::new(options.limit_bytes));
    let budget_bytes = ledger.budget_bytes();
    let make = Box::new(move || make_manager(budget_bytes).map_err(|error| error.to_string()));
    let mut monitor = Monitor::new(Arc::clone(&ledger), make, options.is_strict)?;
    if let Err(Failed(why)) = monitor.guard_early() {
        return Ok((End::Refused(why), monitor.finish(options.leaves_manager)));
    }
    let program = match command.spawn() {
        Ok(child) => child.id(),
        Err(error) => return Ok((End::NotStarted(error), monitor.finish(options.leaves_manager))),
    };
    // The program has the limits that it was given.
    Raised::now().keep();
    priority::begin();
    let pidfd = Pid::from_raw(program as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose()?;
    let mut status = None;
    let end = loop {
        signals.pass_on(program);
        status = signals::reap(program, |pid| monitor.note_end(pid)).or(status);
        // One at a time: the tree is looked at in between.
        if let Some(reader) = socket.as_ref().and_then(Socket::reader) {
            socket::tell(reader, monitor.figures());
        }
        if options.tells_progress {
            monitor.tell_progress();
        }
        let wait = match monitor.turn() {
            Ok(wait) => wait,
            Err(Failed(why)) => {
                monitor.kill_all();
                break End::Stopped(why);
            }
        };
        if let Some(status) = status {
            if !monitor.has_managed() {
                break End::Program(status);
            }
            // Children that outlive the program are served until they end.
            std::thread::sleep(wait);
            continue;
        }
        if let Err(error) = sleep(&pidfd, wait) {
            monitor.kill_all();
            break End::Stopped(messages::NO_END.with(&[("why", &error)]));
        }
    };
    Ok((end, monitor.finish(options.leaves_manager)))
}

/// Takes process `pid` over as a run does, and lets it go at once.
///
/// # Errors
/// A sentence that says why a run could not manage it.
pub fn try_on(pid: u32) -> Result<(), String> {
    octavo_stub::Mover::inject(pid, managed::STAGING).map(drop).map_err(|error| error.to_string())
}

/// Sleeps until it is time, or the program has ended.
fn sleep(pidfd: &Option<rustix::fd::OwnedFd>, wait: Duration) -> io::Result<()> {
    let mut descriptors: Vec<_> = pidfd.iter().map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
    let wait = wait.try_into().map_err(io::Error::other)?;
    match poll(&mut descriptors, Some(&wait)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
