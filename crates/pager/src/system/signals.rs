//! Signals and ends of processes, passed through between whoever started the runner and the program.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use octavo_platform::threads::{runs, signal_thread};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use crate::system::proc;

/// Signals that the program gets as the runner gets them.
const PASSED_ON: [i32; 5] = [
    signal_hook::consts::SIGTERM,
    signal_hook::consts::SIGHUP,
    signal_hook::consts::SIGUSR1,
    signal_hook::consts::SIGUSR2,
    signal_hook::consts::SIGWINCH,
];

/// Signals that a terminal sends to the program as well, which decides what to do. From elsewhere they may
/// reach the runner only.
const KEYS: [i32; 2] = [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT];

/// Signals that came to the runner.
#[derive(Debug)]
pub(crate) struct Signals(SignalsInfo<WithRawSiginfo>);

impl Signals {
    /// From now on, none of them ends the runner.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new() -> io::Result<Self> {
        SignalsInfo::new(PASSED_ON.iter().chain(&KEYS)).map(Self)
    }

    /// Passes on what has come.
    pub(crate) fn pass_on(&mut self, program: u32) {
        for information in self.0.pending() {
            // The kernel's own codes are positive: a key was pressed at the terminal.
            let is_sent = information.si_code <= 0;
            if (is_sent || PASSED_ON.contains(&information.si_signo))
                && let Some(signal) = Signal::from_named_raw(information.si_signo)
            {
                kill(program, signal);
            }
        }
    }
}

/// Sends a signal. A process that has ended gets none.
pub(crate) fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Stops a process. The kernel gives a signal to the first thread of the process, which may have to wait for
/// a CPU while other threads go on. So those that run get one each: the first that takes it stops all. What
/// is left of these signals ends with the stop.
pub(crate) fn stop(pid: u32) {
    kill(pid, Signal::STOP);
    let threads = proc::threads(pid).unwrap_or_default();
    for thread in threads.into_iter().filter(|thread| runs(pid, *thread)) {
        signal_thread(pid, thread, signal_hook::consts::SIGSTOP);
    }
}

/// Takes the ends of processes that the runner is the parent of, its own and those that nobody else is a
/// parent of any more. Returns how `program` ended, if it did, and tells of the others. To be called by the
/// thread that has started the program. It asks for its own children only: a stop that it took of what
/// another thread traces would be missed there, for ever.
pub(crate) fn reap(program: u32, mut other: impl FnMut(u32)) -> Option<ExitStatus> {
    let mut ended = None;
    // Movers end without a signal, and are seen by those only who ask for all.
    while let Ok(Some((pid, status))) =
        wait(WaitOptions::NOHANG | WaitOptions::from_bits_retain(ALL_CHILDREN))
    {
        match pid.as_raw_nonzero().get() as u32 {
            _ if status.stopped() => {}
            pid if pid == program => ended = Some(ExitStatus::from_raw(status.as_raw())),
            pid => other(pid),
        }
    }
    ended
}

/// `__WALL` and `__WNOTHREAD`.
const ALL_CHILDREN: u32 = 0x4000_0000 | 0x2000_0000;

/// Ends this process as the program was ended: by the same signal, and without a core dump of its own.
/// Returns where the signal ends no process.
pub fn end_by_signal(signal: i32) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
