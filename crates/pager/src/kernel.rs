//! The kernel rung: a program in a memory control group, beside a swap file that exists for this run.
//!
//! The kernel does all the paging. The runner only starts the program in the group, and reads the group's
//! figures all the while: the kernel sums them at each reading, and otherwise only every two seconds. A group
//! that fills faster than that has a wrong length of its lists. The kernel then finds a list empty that it
//! takes for long, and kills a process although nearly all of swap is free.
//!
//! A [keeper] makes group and swap file, and takes them down however the run ends.

pub(crate) mod group;
pub(crate) mod keeper;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use octavo_platform::usage;
use rustix::process::{Pid, PidfdFlags, pidfd_open, set_child_subreaper};

use crate::kernel::group::{Group, GroupFigures};
use crate::kernel::keeper::Keeper;
use crate::messages;
use crate::report::progress::{CameBack, DiskWaits, ProgramFigures, ProgressMessages};
use crate::report::rungs::KernelPaging;
use crate::report::summary::Summary;
use crate::system::signals::{self, Signals};
use crate::system::{priority, proc};
use crate::{End, sleep};

/// The first argument of a process that enters a group and becomes the program.
pub const ENTER: &str = "__enter";
/// The time between two readings of the figures while the group is small, and while it nears its limit.
const SLOW: Duration = Duration::from_millis(20);
const FAST: Duration = Duration::from_micros(1500);

/// What the kernel rung needs besides the program.
#[derive(Clone, Debug)]
pub struct KernelSwap {
    /// The most memory in bytes that the program and its children may use together.
    pub limit_bytes: u64,
    /// The folder for the swap file, on a file system that the kernel can swap to.
    pub folder: PathBuf,
    /// The size of the swap file in bytes.
    pub swap_bytes: u64,
    /// Whether to tell, on standard error, that the program does little but wait.
    pub tells_progress: bool,
}

/// Returns whether the kernel rung can work here: it tries to make a group, and asks for the right to switch
/// swap on.
///
/// # Errors
/// Returns a sentence that says what is missing.
pub fn look_for_kernel_rung() -> Result<(), String> {
    use rustix::thread::{CapabilitySet, capabilities};
    if !capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)) {
        return Err(messages::NO_SWAPON.with(&[]));
    }
    Group::of_this_process()?.try_one()
}

/// Runs a program and all its children in a group. Blocks until none of them is left.
///
/// # Errors
/// Returns the kernel's error if the program cannot be watched.
pub fn run_in_kernel_swap(program: &Command, swap: &KernelSwap) -> io::Result<(End, Summary)> {
    set_child_subreaper(Some(rustix::process::getpid()))?;
    let began = Instant::now();
    let earlier_children = usage::of_children();
    let mut signals = Signals::new()?;
    let kernel = Some(KernelPaging::default());
    let mut summary = Summary { budget_bytes: swap.limit_bytes, kernel, ..Summary::default() };
    let mut keeper = match Keeper::start(swap) {
        Ok(keeper) => keeper,
        Err(why) => return Ok((End::Refused(why), summary)),
    };
    let group = Group::at(keeper.group().to_owned());
    let end = match entering(program, &group).spawn() {
        Err(error) => End::NotStarted(error),
        Ok(child) => {
            let mut progress = swap.tells_progress.then(Progress::default);
            watch(child.id(), &group, &mut signals, &mut summary, &mut progress)?
        }
    };
    summary.peak_bytes = group.peak_bytes().unwrap_or(summary.peak_bytes);
    if let Some(kernel) = &mut summary.kernel {
        kernel.waited_seconds = group.waited().map(|waited| waited.as_secs_f64());
    }
    let killed = group.killed();
    if killed > 0 {
        say!("octavo: {}", messages::KERNEL_KILLED.with(&[("killed", &killed)]));
    }
    summary.seconds = began.elapsed().as_secs_f64();
    // Until the keeper ends, only the program's processes count as children that have ended.
    signals::reap(0, |_| {});
    let program_cpu = usage::of_children().since(earlier_children).cpu;
    let end = match keeper.finish() {
        Ok(()) => end,
        Err(why) => End::Stopped(why),
    };
    let keeper_cpu = usage::of_children().since(earlier_children).cpu.saturating_sub(program_cpu);
    summary.program_cpu_seconds = program_cpu.as_secs_f64();
    summary.own_cpu_seconds = (priority::cpu_time_of_all() + keeper_cpu).as_secs_f64();
    Ok((end, summary))
}

/// Passes signals on and reads the figures, until the program has ended and the group is empty.
fn watch(
    program: u32,
    group: &Group,
    signals: &mut Signals,
    summary: &mut Summary,
    progress: &mut Option<Progress>,
) -> io::Result<End> {
    let pidfd = Pid::from_raw(program as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose()?;
    let mut status = None;
    loop {
        signals.pass_on(program);
        status = signals::reap(program, |_| ()).or(status);
        let figures = group.read_figures();
        let used = figures.anonymous_bytes;
        summary.used_bytes = used;
        summary.anonymous_peak_bytes = summary.anonymous_peak_bytes.max(used);
        summary.kernel.get_or_insert_default().note(figures);
        if let Some(progress) = progress {
            progress.tell(group, figures);
        }
        match status {
            Some(status) if group.processes().is_empty() => return Ok(End::Program(status)),
            Some(_) => std::thread::sleep(FAST),
            None => sleep(&pidfd, if used > summary.budget_bytes / 4 { FAST } else { SLOW })?,
        }
    }
}

/// Tells that the program does little but wait.
#[derive(Debug, Default)]
struct Progress {
    messages: ProgressMessages,
    disk_waits: DiskWaits,
}

impl Progress {
    /// Tells it if a group with these figures has done little but wait for a while.
    fn tell(&mut self, group: &Group, figures: GroupFigures) {
        let Some(swap_bytes) = figures.swap_bytes.filter(|bytes| *bytes > 0) else { return };
        let now = Instant::now();
        let waited = self.disk_waits.sample(now, || group.processes());
        if !self.messages.is_due(now) {
            return;
        }
        let faults = CameBack::DiskFaults(figures.disk_faults.unwrap_or(0));
        let seen = ProgramFigures {
            cpu_seconds: proc::cpu_seconds(group.processes().into_iter()),
            waited_seconds: 0.0,
            disk_seconds: waited.as_secs_f64(),
            came_back: figures.came_back_bytes.map_or(faults, CameBack::Bytes),
            tree_bytes: figures.anonymous_bytes + swap_bytes,
        };
        if let Some(sentence) = self.messages.note(now, seen) {
            say!("octavo: {sentence}");
        }
    }
}

/// Returns the command for a process that enters the group first, and then becomes the program.
fn entering(program: &Command, group: &Group) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(ENTER).arg(group.procs()).arg(program.get_program()).args(program.get_args());
    program.get_envs().for_each(|(name, value)| match value {
        Some(value) => drop(command.env(name, value)),
        None => drop(command.env_remove(name)),
    });
    command
}

/// Enters a group and becomes the program. The arguments are the file of the group's processes, the program,
/// and the program's arguments. Returns the error if that fails.
pub fn enter_main(mut arguments: impl Iterator<Item = OsString>) -> (OsString, io::Error) {
    let (procs, program) = (arguments.next().unwrap_or_default(), arguments.next().unwrap_or_default());
    if let Err(error) = fs::write(procs, "0") {
        return (program, error);
    }
    let error = Command::new(&program).args(arguments).exec();
    (program, error)
}
