//! Injection makes a mover by one `clone` in a thread of the program.
//!
//! 1. Seize a thread and interrupt it. Save its registers and its signal mask, block its signals.
//! 2. Make it call `clone(CLONE_VM | CLONE_FILES)` by the program's own `syscall` instruction, up to the stop
//!    in which the kernel reports the child.
//! 3. Interrupt the thread again, so that it stops before it leaves the kernel. Restore its mask and
//!    registers, and detach.
//!
//! The thread runs no instruction of ours but the one system call, and gets no signal. After the last stop,
//! the kernel can still restart the call that the first stop interrupted.
//!
//! The child shares the program's descriptor table for a moment, and then takes an empty one of its own
//! (`close_range` with `CLOSE_RANGE_UNSHARE`). So the child keeps no file of the program open. No reader of
//! the program's pipes waits in vain for an end of file.

use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use octavo_platform::proc_text;
use octavo_platform::threads::{is_real_time, set_real_time};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::set_current_timer_slack;

use crate::error::{InjectError, InjectErrorKind, no_stop, refused};
use crate::layout::{MOST_STAGING_BYTES, PAGE};
use crate::mover::Mover;
use crate::prepare::{self, Inherited};
use crate::reasons;
use crate::resume::{Sequence, registers_to_resume};
use crate::target::{self, Status};
use crate::tracee::{ALL_SIGNALS, NoStop, Stop, Tracee, prepare_call};

/// How long one thread may take to stop before the next one is tried. A thread in an uninterruptible wait (a
/// disk, a `vfork`) does not stop.
const FIRST_PATIENCE: Duration = Duration::from_millis(30);
/// How long the last candidate may take.
const LAST_PATIENCE: Duration = Duration::from_millis(500);
/// How often the `clone` is tried. The kernel refuses a `clone` while a stop of the whole process begins.
const CLONES: usize = 8;

/// A new mover, and what it cost.
#[derive(Debug)]
pub struct Injected {
    /// The mover.
    pub mover: Mover,
    /// How long a thread of the program was stopped.
    pub stopped: Duration,
    /// How long the whole injection took.
    pub whole: Duration,
}

impl Mover {
    /// Puts a mover into a running process, with two staging ranges of `staging_bytes` each (whole pages, at
    /// most 1 GiB).
    ///
    /// One thread of the program is stopped for some tens of microseconds. The calling thread only waits: the
    /// work runs on a thread of its own, since tracing belongs to a thread.
    ///
    /// Fails with an error that has a [kind](InjectErrorKind). The program then runs as before. An address
    /// range without pages may stay behind in it.
    pub fn inject(pid: u32, staging_bytes: u64) -> Result<Injected, InjectError> {
        Self::inject_with(pid, staging_bytes, None)
    }

    /// Like [`inject`](Self::inject), for a process that is probably the child of a fork. Its memory has a
    /// descriptor already: the fork event brought it, and it becomes descriptor A.
    ///
    /// Fails with [`InjectErrorKind::AnotherProcess`] if the descriptor is for another process, and with
    /// [`InjectErrorKind::Changing`] if that is unknown for now. In both cases the descriptor was not used.
    pub fn inject_into_fork(
        pid: u32,
        staging_bytes: u64,
        inherited: Inherited,
    ) -> Result<Injected, InjectError> {
        Self::inject_with(pid, staging_bytes, Some(inherited))
    }

    fn inject_with(
        pid: u32,
        staging_bytes: u64,
        inherited: Option<Inherited>,
    ) -> Result<Injected, InjectError> {
        if staging_bytes == 0 || !staging_bytes.is_multiple_of(PAGE) || staging_bytes > MOST_STAGING_BYTES {
            return Err(InjectError::new(InjectErrorKind::Unsupported, &reasons::STAGING_SIZE, &[]));
        }
        on_own_thread(move || inject(pid, staging_bytes, inherited))
    }
}

/// Does work that traces, on a thread of its own: see [`Tracee`].
pub fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, InjectError> + Send + 'static,
) -> Result<T, InjectError> {
    let is_first = is_real_time();
    let work = std::thread::Builder::new()
        .name("octavo-inject".into())
        .spawn(move || {
            if is_first {
                // The waiting caller has a real-time priority, so its worker gets one too.
                let _ = set_real_time(true);
            }
            work()
        })
        .map_err(|error| InjectError::system("starting a thread", error))?;
    work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Puts a mover into the process. Runs on a thread of its own, see [`Tracee`].
pub fn inject(pid: u32, staging_bytes: u64, inherited: Option<Inherited>) -> Result<Injected, InjectError> {
    let start = Instant::now();
    let prepare = |child: &Tracee, at, process: &OwnedFd| {
        prepare::prepare(pid, child, at, process, staging_bytes, inherited)
    };
    let Beside { process, is_our_child, stopped, parts } = put_beside(pid, 0, &mut |_| {}, prepare)?;
    let mover = Mover::new(process, parts, is_our_child);
    mover.probe()?;
    Ok(Injected { mover, stopped, whole: start.elapsed() })
}

/// A new process beside a program.
pub struct Beside<P> {
    /// Its number and its pidfd.
    pub process: (u32, OwnedFd),
    pub is_our_child: bool,
    /// How long a thread of the program was stopped.
    pub stopped: Duration,
    /// What was prepared in it.
    pub parts: P,
}

/// Puts a new process beside a program, and prepares it. `filters` is how many seccomp filters of the program
/// are the runner's. `interrupted` is called with each thread that was told to stop.
pub fn put_beside<P>(
    pid: u32,
    filters: u32,
    interrupted: &mut dyn FnMut(u32),
    prepare: impl FnOnce(&Tracee, u64, &OwnedFd) -> Result<P, InjectError>,
) -> Result<Beside<P>, InjectError> {
    // This thread's pauses are short, and the default timer slack would add 50 µs to each. A refusal only
    // costs time.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let status = Status::of(pid)?;
    if status.tracer != 0 {
        let tracer = format!("{} ({})", proc_text::name(status.tracer), status.tracer);
        return Err(InjectError::new(InjectErrorKind::Traced, &reasons::TRACED, &[("tracer", &tracer)]));
    }
    if target::shares_our_memory(pid) {
        return Err(InjectError::new(InjectErrorKind::Unsupported, &reasons::SHARES_RUNNERS_MEMORY, &[]));
    }
    let at = target::find_syscall(pid).map_err(|error| permission(pid, error))?;
    let is_our_child = status.parent == std::process::id();
    let suspension = suspension(&status, filters)?;
    let (child, stopped) = birth(pid, at, &status, suspension, interrupted)?;
    match bring_up(&child, suspension, |process| prepare(&child, at, process)) {
        Ok((process, parts)) => Ok(Beside { process: (child.tid(), process), is_our_child, stopped, parts }),
        Err(error) => {
            child.kill();
            Err(error)
        }
    }
}

/// Makes a helper of the new process. Until it is detached, the process ends with this thread.
fn bring_up<P>(
    child: &Tracee,
    suspension: i32,
    prepare: impl FnOnce(&OwnedFd) -> Result<P, InjectError>,
) -> Result<(OwnedFd, P), InjectError> {
    child.wait_for_trap(None).map_err(no_stop)?;
    let process = Pid::from_raw(child.tid() as i32).ok_or_else(InjectError::gone)?;
    let process = pidfd_open(process, PidfdFlags::empty())
        .map_err(|error| InjectError::system("opening the new process", error))?;
    child
        .set_options(libc::PTRACE_O_EXITKILL | suspension)
        .map_err(|error| InjectError::system("tracing the new process", error))?;
    let parts = prepare(&process)?;
    Ok((process, parts))
}

/// Makes the new process, stopped and traced. Also returns how long the program's thread was stopped.
fn birth(
    pid: u32,
    at: u64,
    status: &Status,
    suspension: i32,
    interrupted: &mut dyn FnMut(u32),
) -> Result<(Tracee, Duration), InjectError> {
    let (thread, start) = stop_a_thread(pid, suspension, interrupted)?;
    let saved =
        Saved::of(pid, &thread).map_err(|error| InjectError::system("reading the thread's state", error))?;
    if saved.is_32_bit() {
        return Err(InjectError::new(InjectErrorKind::Unsupported, &reasons::RUNS_32_BIT, &[]));
    }
    let born = clone_in(pid, &thread, &saved, at, (status, suspension));
    // The thread continues as before, whether or not the clone succeeded.
    saved.restore(&thread).map_err(|_| InjectError::gone())?;
    let _ = thread.resume(libc::PTRACE_DETACH, 0);
    let stopped = start.elapsed();
    Ok((born?, stopped))
}

/// The state that the thread gets back.
pub struct Saved {
    pub registers: libc::user_regs_struct,
    resumed: libc::user_regs_struct,
    mask: u64,
    dispatch: Option<crate::tracee::Dispatch>,
}

impl Saved {
    pub fn is_32_bit(&self) -> bool {
        self.registers.cs != 0x33
    }

    pub fn has_dispatch(&self) -> bool {
        self.dispatch.is_some()
    }

    pub fn of(pid: u32, thread: &Tracee) -> Result<Self, Errno> {
        let registers = thread.registers()?;
        let sequence = thread.sequence_area().and_then(|(area, _)| running_sequence(pid, area));
        Ok(Self {
            resumed: registers_to_resume(&registers, sequence),
            registers,
            mask: thread.signal_mask()?,
            dispatch: thread.dispatch(),
        })
    }

    pub fn restore(&self, thread: &Tracee) -> Result<(), Errno> {
        if let Some(dispatch) = &self.dispatch {
            thread.set_dispatch(dispatch)?;
        }
        thread.set_signal_mask(self.mask)?;
        thread.set_registers(&self.resumed)
    }
}

/// Reads the descriptor of the sequence that the thread is in, if any.
fn running_sequence(pid: u32, area: u64) -> Option<Sequence> {
    // The pointer follows two CPU numbers.
    let mut pointer = [0; 8];
    target::read_bytes(pid, area + 8, &mut pointer).ok()?;
    let pointer = u64::from_ne_bytes(pointer);
    if pointer == 0 {
        return None;
    }
    let mut descriptor = [0; 32];
    target::read_bytes(pid, pointer, &mut descriptor).ok()?;
    Some(Sequence::from_bytes(&descriptor))
}

/// Stops one thread, and returns it with the time at which it was told to stop.
pub fn stop_a_thread(
    pid: u32,
    suspension: i32,
    interrupted: &mut dyn FnMut(u32),
) -> Result<(Tracee, Instant), InjectError> {
    let threads = target::threads(pid);
    let mut reason = InjectError::gone();
    for (index, &tid) in threads.iter().enumerate() {
        let thread = match Tracee::seize(tid, suspension) {
            Ok(thread) => thread,
            Err(Errno::SRCH) => continue,
            // The kernel may refuse the option, although it allows the tracing.
            Err(_) if suspension != 0 && Tracee::seize(tid, 0).is_ok() => {
                return Err(filtered());
            }
            Err(error) => {
                reason = refused(error);
                continue;
            }
        };
        let start = Instant::now();
        let patience = if index + 1 == threads.len() { LAST_PATIENCE } else { FIRST_PATIENCE };
        let told = thread.interrupt().map_err(NoStop::Refused).map(|()| interrupted(tid));
        match told.and_then(|()| thread.wait_for_trap(Some(patience))) {
            Ok(()) => return Ok((thread, start)),
            Err(error) => reason = no_stop(error),
        }
    }
    Err(reason)
}

/// Set only once the thread is stopped: before that, the program itself may make a thread, which we must not
/// trace. If the runner dies before the thread has its own registers back, the program ends; otherwise the
/// thread would continue at a wrong place in its code.
pub const CLONE_OPTIONS: i32 =
    libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;

/// Returns the option that suspends the program's filters while a task is traced, if it has any. Without this
/// option, a filter could end the program because of a call that only the injection makes.
///
/// A process with as many filters as the runner has only those of their common container. These allow the
/// runner's own calls, and cannot be suspended from inside. So do the `filters` that the runner itself has
/// put into the process.
fn suspension(status: &Status, filters: u32) -> Result<i32, InjectError> {
    let ours = Status::of(std::process::id())?.filters;
    Ok(if status.filters == 0 || status.filters == ours || status.filters == ours + filters {
        0
    } else {
        libc::PTRACE_O_SUSPEND_SECCOMP
    })
}

fn filtered() -> InjectError {
    InjectError::new(InjectErrorKind::Seccomp, &reasons::FILTERED, &[])
}

/// Makes the stopped thread call `clone`. Afterwards the thread is stopped inside the kernel, before it can
/// continue with registers that are not its own.
fn clone_in(
    pid: u32,
    thread: &Tracee,
    saved: &Saved,
    at: u64,
    (status, suspension): (&Status, i32),
) -> Result<Tracee, InjectError> {
    let system = |error: Errno| InjectError::system("making a process in the program", error);
    if !target::is_syscall(pid, at) {
        return Err(InjectError::new(InjectErrorKind::Changing, &reasons::CODE_CHANGED, &[]));
    }
    if saved.dispatch.is_some() {
        thread.set_dispatch(&crate::tracee::Dispatch::default()).map_err(system)?;
    }
    thread.set_options(CLONE_OPTIONS | suspension).map_err(system)?;
    thread.set_signal_mask(ALL_SIGNALS).map_err(system)?;
    let mut flags = (libc::CLONE_VM | libc::CLONE_FILES) as u64;
    if status.parent == std::process::id() {
        // The runner can reap its own child, and the program gets no unknown child.
        flags |= libc::CLONE_PARENT as u64;
    }
    let mut registers = saved.registers;
    prepare_call(&mut registers, at, libc::SYS_clone, [flags, 0, 0, 0, 0, 0]);
    for _ in 0..CLONES {
        thread.set_registers(&registers).map_err(system)?;
        let mut child = None;
        let (mut signal, mut is_inside) = (0, false);
        // The first stop is at the call's entry. The next stop reports the child if the call succeeds, or
        // else the call's exit.
        let answer = loop {
            thread.resume(libc::PTRACE_SYSCALL, signal).map_err(system)?;
            signal = 0;
            match thread.wait().map_err(no_stop)? {
                Stop::Cloned => {
                    child = Some(Tracee::born(thread.message().map_err(system)? as u32));
                    // The next stop is inside the kernel, after the call.
                    break 0;
                }
                Stop::SystemCall if is_inside => break thread.registers().map_err(system)?.rax as i64,
                Stop::SystemCall => is_inside = true,
                // Only a signal that stops the process comes through, and it should take effect.
                Stop::Signal(arrived) => signal = arrived,
                Stop::Trap => {}
            }
        };
        thread.interrupt().map_err(system)?;
        thread.resume(libc::PTRACE_CONT, 0).map_err(system)?;
        thread.wait_for_trap(None).map_err(no_stop)?;
        match child {
            Some(child) => return Ok(child),
            // A stop of the whole process begins: the kernel asks to make the call again.
            None if (-516..=-512).contains(&answer) => {}
            None => return Err(system(Errno::from_raw_os_error(-answer as i32))),
        }
    }
    Err(InjectError::new(InjectErrorKind::Stuck, &reasons::NO_CHILD, &[]))
}

/// If the process exists but its map is unreadable, permission is missing.
fn permission(pid: u32, error: InjectError) -> InjectError {
    let is_there = std::path::Path::new(&format!("/proc/{pid}")).exists();
    if error.kind() == InjectErrorKind::Gone && is_there { refused(Errno::PERM) } else { error }
}
