//! Has a thread of the program install a filter with a listener.
//!
//! The filter of a task is installed by the task itself. So a thread of the program is stopped as for an
//! injection, makes four calls, and goes on as before. The filter's program lies in the helper's scratch
//! memory, which the program shares.

use std::os::fd::OwnedFd;

use octavo_platform::seccomp_listener::FILTER_FLAGS;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::{InjectError, InjectErrorKind, no_stop};
use crate::inject::{CLONE_OPTIONS, Saved, stop_a_thread};
use crate::layout::Layout;
use crate::mailbox::{Mailbox, SCRATCH_AT};
use crate::reasons;
use crate::target;
use crate::tracee::{ALL_SIGNALS, Stop, Tracee, prepare_call};

/// The offsets in the scratch memory of the filter's header and of its statements.
const HEADER: usize = 0;
const STATEMENTS: usize = 64;
/// How often a call is made again that the kernel asks for again.
const TRIES: usize = 8;

/// Writes a filter into the scratch memory.
pub fn write(mailbox: &Mailbox, layout: Layout, filter: &[u8]) {
    let address = layout.mailbox + (SCRATCH_AT + STATEMENTS) as u64;
    mailbox.write_scratch(HEADER, &[filter.len() as u64 / 8, address]);
    for (index, statement) in filter.chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(statement.try_into().expect("eight bytes"));
        mailbox.write_scratch(STATEMENTS + 8 * index, &[word]);
    }
}

/// Installs the filter, and returns the listener. Runs on a thread of its own, see [`Tracee`].
pub fn listen(pid: u32, layout: Layout) -> Result<OwnedFd, InjectError> {
    const SET_MODE_FILTER: u64 = 1;
    let header = layout.mailbox + (SCRATCH_AT + HEADER) as u64;
    in_a_thread(pid, |call| {
        let system = |error| InjectError::system("taking the listener of a filter", error);
        succeeded(call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as u64, 1, 0, 0, 0, 0])?)?;
        let number = call(libc::SYS_seccomp, [SET_MODE_FILTER, FILTER_FLAGS, header, 0, 0, 0])?;
        let number = succeeded(number)?;
        let process = Pid::from_raw(pid as i32).ok_or_else(InjectError::gone)?;
        let listener = pidfd_open(process, PidfdFlags::empty())
            .and_then(|process| pidfd_getfd(process, number as i32, PidfdGetfdFlags::empty()))
            .map_err(system);
        // The listener must not stay with the program.
        call(libc::SYS_close, [number, 0, 0, 0, 0, 0])?;
        listener
    })
}

/// Makes one call. Runs on a thread of its own.
pub fn ask(pid: u32, number: libc::c_long, arguments: [u64; 6]) -> Result<i64, InjectError> {
    in_a_thread(pid, |call| call(number, arguments))
}

fn succeeded(answer: i64) -> Result<u64, InjectError> {
    let error = || Errno::from_raw_os_error(-answer as i32);
    u64::try_from(answer).map_err(|_| InjectError::system("installing a filter in the program", error()))
}

/// Makes calls in a thread of the program.
type Caller<'a> = dyn Fn(libc::c_long, [u64; 6]) -> Result<i64, InjectError> + 'a;

/// Stops a thread, has `work` make calls in it, and lets it go on as before.
fn in_a_thread<T>(
    pid: u32,
    work: impl FnOnce(&Caller<'_>) -> Result<T, InjectError>,
) -> Result<T, InjectError> {
    let at = target::find_syscall(pid)?;
    let (thread, _) = stop_a_thread(pid, 0, &mut |_| {})?;
    let saved =
        Saved::of(pid, &thread).map_err(|error| InjectError::system("reading the thread's state", error))?;
    let done = borrow(pid, &thread, &saved, at, work);
    // The thread continues as before, whether or not that succeeded.
    saved.restore(&thread).map_err(|_| InjectError::gone())?;
    let _ = thread.resume(libc::PTRACE_DETACH, 0);
    done
}

fn borrow<T>(
    pid: u32,
    thread: &Tracee,
    saved: &Saved,
    at: u64,
    work: impl FnOnce(&Caller<'_>) -> Result<T, InjectError>,
) -> Result<T, InjectError> {
    let system = |error| InjectError::system("borrowing a thread of the program", error);
    if saved.is_32_bit() || !target::is_syscall(pid, at) {
        return Err(InjectError::new(InjectErrorKind::Changing, &reasons::CODE_CHANGED, &[]));
    }
    if saved.has_dispatch() {
        thread.set_dispatch(&crate::tracee::Dispatch::default()).map_err(system)?;
    }
    thread.set_options(CLONE_OPTIONS).map_err(system)?;
    thread.set_signal_mask(ALL_SIGNALS).map_err(system)?;
    let done = work(&|number, arguments| call_in(thread, saved, at, number, arguments));
    // The next stop is inside the kernel, after the last call.
    thread.interrupt().map_err(system)?;
    thread.resume(libc::PTRACE_CONT, 0).map_err(system)?;
    thread.wait_for_trap(None).map_err(no_stop)?;
    done
}

/// Makes a stopped thread do one system call. Afterwards it is stopped at the exit of the call.
fn call_in(
    thread: &Tracee,
    saved: &Saved,
    at: u64,
    number: libc::c_long,
    arguments: [u64; 6],
) -> Result<i64, InjectError> {
    let system = |error| InjectError::system("making a call in the program", error);
    let mut registers = saved.registers;
    prepare_call(&mut registers, at, number, arguments);
    for _ in 0..TRIES {
        thread.set_registers(&registers).map_err(system)?;
        let (mut signal, mut is_inside) = (0, false);
        let answer = loop {
            thread.resume(libc::PTRACE_SYSCALL, signal).map_err(system)?;
            signal = 0;
            match thread.wait().map_err(no_stop)? {
                Stop::SystemCall if is_inside => break thread.registers().map_err(system)?.rax as i64,
                Stop::SystemCall => is_inside = true,
                // Only a signal that stops the process comes through, and it should take effect.
                Stop::Signal(arrived) => signal = arrived,
                Stop::Trap | Stop::Cloned => {}
            }
        };
        // Otherwise the kernel asks for the call again.
        if !(-516..=-512).contains(&answer) {
            return Ok(answer);
        }
    }
    Err(InjectError::new(InjectErrorKind::Stuck, &reasons::NO_STOP, &[]))
}
