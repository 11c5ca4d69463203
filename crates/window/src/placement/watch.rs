//! The state that a driver beside a thread shares with its watcher, which may call it back.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use octavo_platform::threads::{runs, set_idle};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The state that a driver shares with its watcher.
#[derive(Debug, Default)]
pub struct Watch {
    /// The driver's thread while it is beside another; otherwise 0.
    beside: AtomicU32,
    /// The driver's turns. `awaited_at` is their number when the watcher last found the driver awaited.
    turns: AtomicU64,
    awaited_at: AtomicU64,
    is_called_back: AtomicBool,
    /// One more than the CPU that the driver is bound to; 0 if it is bound to none.
    bound_to: AtomicU32,
    /// The CPUs that the driver may use.
    cpus: OnceLock<CpuSet>,
}

impl Watch {
    /// Calls the driver back from beside a thread, if it was awaited at the last look too, has made no turn
    /// since, and wants a CPU. Call this every few milliseconds. `is_awaited` says whether there is something
    /// that the driver has not seen.
    pub fn look(&self, is_awaited: impl FnOnce() -> bool) {
        // Relaxed: these numbers order nothing. A driver that is called back needlessly is only apart for a
        // while.
        let thread = self.beside.load(Ordering::Relaxed);
        if thread == 0 || !is_awaited() {
            return self.awaited_at.store(u64::MAX, Ordering::Relaxed);
        }
        let turns = self.turns.load(Ordering::Relaxed);
        let is_awaited_still = self.awaited_at.swap(turns, Ordering::Relaxed) == turns;
        // A driver that waits for a device does not lack a CPU.
        if is_awaited_still && runs(std::process::id(), thread) {
            self.call_back();
        }
    }

    /// Calls the driver back from beside a thread. Call this before you wait for the driver.
    pub fn call_back(&self) {
        let thread = self.beside.load(Ordering::Relaxed);
        if thread != 0 {
            self.is_called_back.store(true, Ordering::Relaxed);
            self.leave(thread);
        }
    }

    /// Returns the CPU on which the driver is beside a thread, if it is. Other threads should avoid that CPU.
    pub fn beside_on(&self) -> Option<usize> {
        (self.bound_to.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    /// Sets the CPUs that the driver may use.
    pub(super) fn set_cpus(&self, cpus: CpuSet) {
        let _ = self.cpus.set(cpus);
    }

    /// Counts a turn of the driver.
    pub(super) fn turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the driver was called back since the last call.
    pub(super) fn take_call(&self) -> bool {
        let is_called_back = self.is_called_back.load(Ordering::Relaxed);
        if is_called_back {
            self.is_called_back.store(false, Ordering::Relaxed);
        }
        is_called_back
    }

    /// Notes that the driver, whose thread has this number, goes beside another thread.
    pub(super) fn note_beside(&self, thread: u32) {
        self.beside.store(thread, Ordering::Relaxed);
    }

    /// Notes that the driver is bound to this CPU, or to none.
    pub(super) fn note_bound(&self, cpu: Option<usize>) {
        self.bound_to.store(cpu.map_or(0, |cpu| cpu as u32 + 1), Ordering::Relaxed);
    }

    /// Makes the driver, whose thread has this number, leave its place beside another thread. Any thread may
    /// call this.
    pub(super) fn leave(&self, thread: u32) {
        self.bound_to.store(0, Ordering::Relaxed);
        self.beside.store(0, Ordering::Relaxed);
        // An error means that the thread has ended.
        let _ = set_idle(thread, false);
        if let (Some(cpus), Some(thread)) = (self.cpus.get(), rustix::process::Pid::from_raw(thread as i32)) {
            let _ = sched_setaffinity(Some(thread), cpus);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn who_is_awaited_twice_without_a_turn_and_wants_a_cpu_is_called_back() {
        let watch = Watch::default();
        let calls = |turns, awaited: bool| {
            watch.turns.store(turns, Ordering::Relaxed);
            watch.look(|| awaited);
            watch.is_called_back.load(Ordering::Relaxed)
        };
        assert!(!calls(1, true) && !calls(1, true), "it is apart");
        // This thread runs.
        watch.beside.store(gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
        assert!(!calls(1, true) && !calls(2, true) && !calls(2, false) && !calls(2, true));
        assert!(calls(2, true));
        assert_eq!(watch.beside.load(Ordering::Relaxed), 0);
    }
}
