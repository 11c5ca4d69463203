//! Stops a process for a moment: all of its threads, by ptrace.
//!
//! While a process is stopped, no thread stores to its memory, changes its mappings or meets a protection.
//! Unlike a stop by a signal, this stop is not reported to the parent. An interrupted wait is restarted, as
//! after an injection. A program that was stopped before stays stopped.
//!
//! A process cannot be held while one of its threads is in an uninterruptible wait (for a disk, the child of
//! a `vfork`, or the reader of a userfaultfd event), while another process traces it, or while a child shares
//! its memory.
//!
//! Tracing belongs to a thread. So each hold has a thread of its own: when that thread or the runner ends,
//! all stopped threads continue.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU64;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use octavo_platform::process_memory::share_memory;
use octavo_platform::threads::set_idle;
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity, set_current_timer_slack};

use crate::target;
use crate::tracee::Tracee;

/// How long the threads may take to stop. Meanwhile, the threads that have stopped already cannot run.
const PATIENCE: Duration = Duration::from_millis(20);
/// The first and the longest pause between two looks. The kernel needs some microseconds for a stop.
const FIRST_PAUSE: Duration = Duration::from_micros(2);
const LONGEST_PAUSE: Duration = Duration::from_micros(500);

/// Keeps a process stopped while it lives.
#[derive(Debug)]
pub struct Still {
    go_on: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Still {
    /// Stops all threads of a process that has a mover. Returns `None` if they could not be stopped for now.
    /// In that case, they continue.
    pub fn hold(pid: u32, mover: u32) -> Option<Self> {
        Self::hold_but(pid, mover, None)
    }

    /// Like [`hold`](Self::hold), but leaves a thread out that cannot run anyway: it waits for the answer of
    /// a seccomp listener, and gets none meanwhile.
    pub fn hold_but(pid: u32, mover: u32, waiting: Option<u32>) -> Option<Self> {
        let ((has_stopped, stopped), (go_on, end)) = (channel(), channel());
        let thread = std::thread::Builder::new()
            .name("octavo-still".into())
            .spawn(move || hold_until(pid, mover, waiting, &has_stopped, &end))
            .ok()?;
        let still = Self { go_on: Some(go_on), thread: Some(thread) };
        stopped.recv().is_ok_and(|is_still| is_still).then_some(still)
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        drop(self.go_on.take());
        // A panic in the thread has been printed, and its end lets the process continue.
        self.thread.take().map(JoinHandle::join);
    }
}

/// The work of the thread that traces.
fn hold_until(pid: u32, mover: u32, waiting: Option<u32>, has_stopped: &Sender<bool>, end: &Receiver<()>) {
    // A driver beside a thread is idle-class and bound to one CPU. This thread would inherit that, and might
    // wait for a CPU with half of the program stopped.
    let _ = set_idle(0, false);
    let _ = sched_getaffinity(Some(getpid())).and_then(|cpus| sched_setaffinity(None, &cpus));
    // The pauses of this thread are short, and the kernel would make them 50 µs longer. A refusal costs time
    // only.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    let mut threads = BTreeMap::new();
    let is_still = stop_all(pid, waiting, &mut threads) && !shares_memory(pid, mover, threads.keys());
    if has_stopped.send(is_still).is_ok() && is_still {
        // Wait until the other end is dropped.
        let _ = end.recv();
    }
    // A thread that did not stop is released when this one ends.
    threads.values().for_each(Tracee::let_go);
}

/// Stops all threads, also those that others start meanwhile. Returns false if that takes too long.
fn stop_all(pid: u32, waiting: Option<u32>, threads: &mut BTreeMap<u32, Tracee>) -> bool {
    let (start, mut pause) = (Instant::now(), FIRST_PAUSE);
    loop {
        // A thread that was stopped before the look starts no other thread after it. A thread that stops
        // later may have started one since the list was made.
        let stood: BTreeSet<_> =
            threads.iter().filter(|(_, thread)| thread.is_stopped()).map(|(tid, _)| *tid).collect();
        let mut found: BTreeSet<_> = target::threads(pid).into_iter().collect();
        if found.is_empty() {
            return false;
        }
        found.retain(|tid| Some(*tid) != waiting);
        if stood == found && stood.len() == threads.len() {
            return true;
        }
        // Threads that have ended may have started others.
        threads.retain(|tid, _| found.contains(tid));
        for tid in found {
            if threads.contains_key(&tid) {
                continue;
            }
            // The kernel refuses to trace a thread that is just ending. The next look no longer finds the
            // thread.
            if let Ok(thread) = Tracee::seize(tid, 0)
                && matches!(thread.interrupt(), Ok(()) | Err(Errno::SRCH))
            {
                threads.insert(tid, thread);
            }
        }
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns whether a child shares the memory of the process, or may do so. Such a child would continue to
/// run.
fn shares_memory<'a>(pid: u32, mover: u32, mut threads: impl Iterator<Item = &'a u32>) -> bool {
    threads.any(|tid| {
        let Ok(children) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")) else {
            return true;
        };
        let mut children = children.split_ascii_whitespace().filter_map(|child| child.parse().ok());
        children.any(|child| child != mover && share_memory(pid, child))
    })
}
