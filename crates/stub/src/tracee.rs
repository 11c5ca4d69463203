//! One traced thread, and the ptrace calls on it.
//!
//! Tracing belongs to the *thread* that seized. When that thread ends, the kernel detaches all its tracees.
//! So an injection runs on a thread of its own: whatever goes wrong, no thread of the program stays traced.

use std::io;
use std::time::{Duration, Instant};

use libc::user_regs_struct as Registers;
use octavo_platform::proc_text;
use rustix::io::Errno;

use crate::resume::registers_to_resume;

/// Blocks every signal. The kernel itself excludes SIGKILL and SIGSTOP.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// The low bits of a status that tells of a stop.
const STOPPED: i32 = 0x7f;

/// Why a tracee is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The tracee was interrupted, was just created, or takes part in a stop of its process.
    Trap,
    /// The tracee made a child, and has not returned from the call.
    Cloned,
    /// The tracee enters or leaves a system call.
    SystemCall,
    /// The tracee is about to get a signal.
    Signal(i32),
}

/// Why a tracee did not stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoStop {
    /// The tracee has ended.
    Gone,
    /// The tracee did not stop in time.
    Late,
    /// The kernel refused.
    Refused(Errno),
}

/// A thread that this thread traces.
#[derive(Debug)]
pub struct Tracee {
    tid: i32,
}

impl Tracee {
    /// Returns whether the tracee is stopped, even if the stop has been waited for already. Does not wait.
    pub fn is_stopped(&self) -> bool {
        self.held_signal().is_ok()
    }

    /// Returns whether the tracee stops before `deadline`. Does not wait for it as for a child, which would
    /// take its end from its parent.
    pub fn stops_before(&self, deadline: Instant) -> bool {
        let mut pause = FIRST_PAUSE;
        while !self.is_stopped() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        true
    }

    /// Detaches from a stopped tracee, with the signal that it was about to get. An interrupted wait is
    /// restarted.
    pub fn let_go(&self) {
        if let Ok(signal) = self.held_signal() {
            if signal == 0
                && let Ok(registers) = self.registers()
            {
                // The kernel itself handles a restartable sequence: the thread ran no other code.
                let _ = self.set_registers(&registers_to_resume(&registers, None));
            }
            let _ = self.resume(libc::PTRACE_DETACH, signal);
        }
    }

    /// Returns the signal that a stopped tracee is about to get, or 0.
    fn held_signal(&self) -> Result<i32, Errno> {
        // SAFETY: all-zero bytes are a valid value of the structure.
        let mut information = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
        match self.request(libc::PTRACE_GETSIGINFO, 0, &raw mut information as usize) {
            // A stop without a signal has a code of its own.
            Ok(()) if information.si_code >> 8 == libc::PTRACE_EVENT_STOP => Ok(0),
            Ok(()) => Ok(information.si_signo),
            // The tracee takes part in a stop of its process.
            Err(Errno::INVAL) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Starts to trace a thread without stopping it.
    pub fn seize(tid: u32, options: i32) -> Result<Self, Errno> {
        let tracee = Self { tid: tid as i32 };
        tracee.request(libc::PTRACE_SEIZE, 0, options as usize)?;
        Ok(tracee)
    }

    /// Takes a child that the kernel itself has attached to this thread.
    pub fn born(tid: u32) -> Self {
        Self { tid: tid as i32 }
    }

    pub fn tid(&self) -> u32 {
        self.tid as u32
    }

    /// Replaces the options.
    pub fn set_options(&self, options: i32) -> Result<(), Errno> {
        self.request(libc::PTRACE_SETOPTIONS, 0, options as usize)
    }

    /// Makes the tracee stop before it runs another instruction of its program.
    pub fn interrupt(&self) -> Result<(), Errno> {
        self.request(libc::PTRACE_INTERRUPT, 0, 0)
    }

    /// Lets a stopped tracee continue, with a signal or 0, by `PTRACE_CONT`, `PTRACE_SYSCALL`,
    /// `PTRACE_SINGLESTEP` or `PTRACE_DETACH`.
    pub fn resume(&self, how: libc::c_uint, signal: i32) -> Result<(), Errno> {
        self.request(how, 0, signal as usize)
    }

    /// Waits until the tracee stops, on request or by itself, or ends. The tracee must not be in an
    /// uninterruptible wait: this call would wait until that wait ends.
    pub fn wait(&self) -> Result<Stop, NoStop> {
        loop {
            if let Some(stop) = self.look(0)? {
                return Ok(stop);
            }
        }
    }

    /// Waits for a stop of a thread that may be in an uninterruptible wait (for a disk, or for the child of a
    /// `vfork`).
    fn wait_at_most(&self, patience: Duration) -> Result<Stop, NoStop> {
        let start = Instant::now();
        let mut pause = FIRST_PAUSE;
        loop {
            if let Some(stop) = self.look(libc::WNOHANG)? {
                return Ok(stop);
            }
            if start.elapsed() > patience {
                return Err(NoStop::Late);
            }
            // Sleep, since other threads may keep the CPU. A thread that sleeps soon runs again. A thread
            // that only yields does not.
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Looks for a stop or the end of the tracee. The end of a child of this process is left to whoever waits
    /// for its children: it is told once, with the status.
    fn look(&self, options: i32) -> Result<Option<Stop>, NoStop> {
        let Some(seen) = self.wait_for(libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | options)? else {
            return Ok(None);
        };
        if matches!(seen.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
            if !self.is_own_child() {
                // Its parent learns of the end when the tracer has seen it.
                self.wait_for(libc::WEXITED | libc::WNOHANG)?;
            }
            return Err(NoStop::Gone);
        }
        // A tracee that is killed meanwhile has no stop any more.
        let taken = self.wait_for(libc::WSTOPPED | libc::WNOHANG)?;
        // SAFETY: the kernel has filled this in for a child that stopped.
        Ok(taken.map(|taken| stop_of(unsafe { taken.si_status() } << 8 | STOPPED)))
    }

    fn wait_for(&self, options: i32) -> Result<Option<libc::siginfo_t>, NoStop> {
        // SAFETY: all-zero bytes are a valid value of the structure.
        let mut seen = unsafe { std::mem::zeroed::<libc::siginfo_t>() };
        // SAFETY: the structure is live for the call.
        match unsafe {
            libc::waitid(libc::P_PID, self.tid as libc::id_t, &raw mut seen, libc::__WALL | options)
        } {
            // A signal of 0 tells that there is nothing.
            0 => Ok((seen.si_signo != 0).then_some(seen)),
            _ => match last_error() {
                Errno::INTR => Ok(None),
                Errno::CHILD => Err(NoStop::Gone),
                error => Err(NoStop::Refused(error)),
            },
        }
    }

    /// Returns whether the tracee is the first thread of a child of this process, or may be. An end that is
    /// left alone by mistake is told when the thread that traces ends.
    fn is_own_child(&self) -> bool {
        let Ok(status) = proc_text::read(self.tid(), "status") else { return true };
        let number = |key| status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u32>().ok());
        number("Tgid:") == Some(self.tid()) && number("PPid:") == Some(std::process::id())
    }

    /// Waits for a stop that is no signal, without a limit or for `at_most`. Signals on the way reach the
    /// tracee as usual.
    pub fn wait_for_trap(&self, at_most: Option<Duration>) -> Result<(), NoStop> {
        loop {
            let stop = at_most.map_or_else(|| self.wait(), |patience| self.wait_at_most(patience))?;
            match stop {
                Stop::Trap => return Ok(()),
                Stop::Signal(signal) => {
                    self.resume(libc::PTRACE_CONT, signal).map_err(|_| NoStop::Gone)?;
                }
                Stop::Cloned | Stop::SystemCall => {
                    self.resume(libc::PTRACE_CONT, 0).map_err(|_| NoStop::Gone)?;
                }
            }
        }
    }

    /// Ends the tracee's process, and waits for its end. Nobody else may have waited for the process.
    pub fn kill(&self) {
        // SAFETY: the number is the tracee's as long as this thread, its tracer, has not seen its end.
        unsafe { libc::kill(self.tid, libc::SIGKILL) };
        while matches!(self.wait_for(libc::WEXITED), Ok(None)) {}
    }

    pub fn registers(&self) -> Result<Registers, Errno> {
        // SAFETY: all-zero bytes are a valid value of the structure.
        let mut registers = unsafe { std::mem::zeroed::<Registers>() };
        self.request(libc::PTRACE_GETREGS, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    pub fn set_registers(&self, registers: &Registers) -> Result<(), Errno> {
        self.request(libc::PTRACE_SETREGS, 0, std::ptr::from_ref(registers) as usize)
    }

    pub fn signal_mask(&self) -> Result<u64, Errno> {
        let mut mask = 0u64;
        self.request(libc::PTRACE_GETSIGMASK, size_of::<u64>(), &raw mut mask as usize)?;
        Ok(mask)
    }

    pub fn set_signal_mask(&self, mask: u64) -> Result<(), Errno> {
        self.request(libc::PTRACE_SETSIGMASK, size_of::<u64>(), &raw const mask as usize)
    }

    /// Returns the number that belongs to the stop: after [`Stop::Cloned`], the child's thread number.
    pub fn message(&self) -> Result<u64, Errno> {
        let mut message = 0u64;
        self.request(libc::PTRACE_GETEVENTMSG, 0, &raw mut message as usize)?;
        Ok(message)
    }

    /// Returns the address of the thread's area for restartable sequences, and its signature. Returns `None`
    /// if it has none.
    pub fn sequence_area(&self) -> Option<(u64, u32)> {
        #[repr(C)]
        #[derive(Default)]
        struct Configuration {
            address: u64,
            bytes: u32,
            signature: u32,
            flags: u32,
            padding: u32,
        }
        let mut found = Configuration::default();
        let bytes = size_of::<Configuration>();
        self.request(libc::PTRACE_GET_RSEQ_CONFIGURATION, bytes, &raw mut found as usize).ok()?;
        (found.address != 0).then_some((found.address, found.signature))
    }

    /// Returns how the kernel dispatches the thread's system calls to the program itself (syscall user
    /// dispatch), if that is on.
    pub fn dispatch(&self) -> Option<Dispatch> {
        let mut found = Dispatch::default();
        let bytes = size_of::<Dispatch>();
        let get = libc::PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG;
        self.request(get, bytes, &raw mut found as usize).ok()?;
        (found.mode != 0).then_some(found)
    }

    /// Sets the value that [`dispatch`](Self::dispatch) returns.
    pub fn set_dispatch(&self, dispatch: &Dispatch) -> Result<(), Errno> {
        let set = libc::PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG;
        self.request(set, size_of::<Dispatch>(), std::ptr::from_ref(dispatch) as usize)
    }

    /// Makes a stopped tracee do one system call, and returns its answer. `at` is the address of a `syscall`
    /// instruction. The tracee's registers are lost. Do not use this on a tracee whose signal handlers
    /// matter: if SIGTRAP is blocked, the kernel's trap after a step resets its handler.
    pub fn remote_call(&self, at: u64, number: libc::c_long, arguments: [u64; 6]) -> Result<i64, NoStop> {
        let mut registers = self.registers().map_err(NoStop::Refused)?;
        prepare_call(&mut registers, at, number, arguments);
        self.set_registers(&registers).map_err(NoStop::Refused)?;
        loop {
            self.resume(libc::PTRACE_SINGLESTEP, 0).map_err(NoStop::Refused)?;
            match self.wait()? {
                Stop::Signal(libc::SIGTRAP) => break,
                // Signals are blocked, and other stops do not come from the step.
                _ => continue,
            }
        }
        Ok(self.registers().map_err(NoStop::Refused)?.rax as i64)
    }

    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> Result<(), Errno> {
        // SAFETY: each caller passes as `data` a number, or the address of a live value of the type and size
        // that the request reads or writes.
        if unsafe { libc::ptrace(request, self.tid, address, data) } >= 0 {
            Ok(())
        } else {
            Err(last_error())
        }
    }
}

/// The first and the longest pause between two looks. The kernel needs some microseconds for a stop.
const FIRST_PAUSE: Duration = Duration::from_micros(2);
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// Sets the registers for a system call.
pub fn prepare_call(registers: &mut Registers, at: u64, number: libc::c_long, arguments: [u64; 6]) {
    registers.rip = at;
    registers.rax = number as u64;
    // This value means that there is no system call to restart.
    registers.orig_rax = u64::MAX;
    [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9] = arguments;
}

/// `ptrace_sud_config`: how system calls are dispatched to the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Dispatch {
    pub mode: u64,
    pub selector: u64,
    pub offset: u64,
    pub len: u64,
}

fn stop_of(status: i32) -> Stop {
    let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
    match event {
        libc::PTRACE_EVENT_STOP => Stop::Trap,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => Stop::Cloned,
        _ if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
        _ => Stop::Signal(signal),
    }
}

pub fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).expect("the error of a system call has a number")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// A run waits for the status of its program, and would wait for ever.
    #[test]
    fn the_end_of_a_child_is_left_to_those_who_wait_for_children() {
        for stops_first in [false, true] {
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let tracee = Tracee::seize(child.id(), 0).unwrap();
            if stops_first {
                tracee.interrupt().unwrap();
                assert_eq!(tracee.wait(), Ok(Stop::Trap));
            }
            child.kill().unwrap();
            assert_eq!(tracee.wait(), Err(NoStop::Gone));
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        }
    }
}
