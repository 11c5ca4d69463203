//! Passes signals on to the program, and reads how processes have ended.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use octavo_platform::threads::{runs, signal_thread, use_default_action};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;

use crate::system::proc;

/// Signals that the runner always passes on.
const PASSED_ON: [i32; 5] = [
    signal_hook::consts::SIGTERM,
    signal_hook::consts::SIGHUP,
    signal_hook::consts::SIGUSR1,
    signal_hook::consts::SIGUSR2,
    signal_hook::consts::SIGWINCH,
];

/// Signals that a terminal sends to the program as well. If another process sends them, they may reach the
/// runner only.
const KEYS: [i32; 2] = [signal_hook::consts::SIGINT, signal_hook::consts::SIGQUIT];

/// Signals that came to the runner.
#[derive(Debug)]
pub(crate) struct Signals(SignalsInfo<WithRawSiginfo>);

impl Signals {
    /// Catches the signals: from now on, none of them ends the runner. Has the kernel tell of children that
    /// end, even if this process was started with that ignored: their statuses would be lost.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn new() -> io::Result<Self> {
        use_default_action(signal_hook::consts::SIGCHLD);
        SignalsInfo::new(PASSED_ON.iter().chain(&KEYS)).map(Self)
    }

    /// Passes on the signals that have come.
    pub(crate) fn pass_on(&mut self, program: u32) {
        for information in self.0.pending() {
            // A positive code is the kernel's own. For [`KEYS`], it means that a key was pressed at the
            // terminal, so the program has the signal as well.
            let is_sent = information.si_code <= 0;
            if (is_sent || PASSED_ON.contains(&information.si_signo))
                && let Some(signal) = Signal::from_named_raw(information.si_signo)
            {
                kill(program, signal);
            }
        }
    }
}

/// Sends a signal. Does nothing if the process has ended.
pub(crate) fn kill(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Stops a process. The kernel gives a signal to the first thread of the process, which may have to wait for
/// a CPU while other threads run. So each running thread gets a signal of its own. The first thread that
/// takes its signal stops all threads, and the other signals then have no effect.
pub(crate) fn stop(pid: u32) {
    kill(pid, Signal::STOP);
    let threads = proc::threads(pid).unwrap_or_default();
    for thread in threads.into_iter().filter(|thread| runs(pid, *thread)) {
        signal_thread(pid, thread, signal_hook::consts::SIGSTOP);
    }
}

/// Reaps ended children of the runner, orphans included. Returns how `program` ended, if it did, and calls
/// `other` for each other child. Must be called by the thread that started the program. It waits only for
/// children of the calling thread: if it consumed the stop of a process that another thread traces, that
/// thread would never see the stop.
pub(crate) fn reap(program: u32, mut other: impl FnMut(u32)) -> Option<ExitStatus> {
    let mut ended = None;
    // Movers end without a signal, so only a wait for all kinds of children sees them.
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

/// Ends this process as the program was ended: by the same signal, without another core dump. Returns if the
/// signal does not end processes.
pub fn end_by_signal(signal: i32) {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = signal_hook::low_level::emulate_default_handler(signal);
}
