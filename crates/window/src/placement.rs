//! Decides where a driver runs: where the kernel puts it, or beside the thread whose faults it serves.
//!
//! ```text
//!   apart    the thread faults ─► another CPU is woken ─► serves ─► wakes the first CPU
//!            (two CPUs wake up for each fault)
//!   beside   the thread faults ─► switch of threads ─► serves ─► switch of threads
//!            (on the thread's own CPU)
//! ```
//!
//! Waking a CPU takes much longer than serving a fault. By default, the kernel looks for an idle CPU for each
//! woken thread, so every fault wakes a CPU. So a driver that is *beside* a thread is bound to the CPU on
//! which the thread ran last. It also has the policy `SCHED_IDLE`. The kernel then counts that CPU as idle,
//! leaves the woken thread there, and runs it at once.
//!
//! This place has a price: such a driver gets no CPU time if others want the CPU, and does nothing while the
//! thread runs. So the driver measures which place is better, in epochs of [`EPOCH`] faults of one thread.
//! The measure is the time that the thread loses per fault: the time that has passed, minus the thread's CPU
//! time. Now and then it tries the other place again. If several threads fault, the driver stays apart.
//!
//! A watcher calls the driver back if it is awaited and gets no CPU ([`Watch::look`]).
//!
//! `choice` decides which place is better, `faulter` asks about the thread that faults, and `watch` holds the
//! state that the driver shares with its watcher.
//!
//! Costs: a comparison per fault. Beside a thread, one look at the thread's CPU per [`LOOK_EVERY`] faults,
//! and after the driver has slept [`LOOK_AFTER_SLEEPS`] times.

mod choice;
mod faulter;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use octavo_platform::threads::{may_leave_idle, set_idle};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

use choice::{DriverPlace, PlacementChoice};
use faulter::Faulter;
pub use watch::Watch;

/// The faults of one thread after which a place is judged.
const EPOCH: u32 = 128;
/// The faults between two looks at the thread's CPU.
const LOOK_EVERY: u32 = 16;
/// After this many sleeps, the driver looks at the thread's CPU as well.
const LOOK_AFTER_SLEEPS: u32 = 2;
/// An epoch with more faults of other threads than this does not count.
const FEW: u32 = 4;
/// After some faults of other threads, the driver follows another thread. The change opens two files. So the
/// number of faults doubles each time until an epoch completes, up to this.
const MANY: u32 = 256;

/// The place of a driver.
#[derive(Debug)]
pub(crate) struct Placement {
    watch: Arc<Watch>,
    own: u32,
    place: DriverPlace,
    choice: PlacementChoice,
    faulter: Option<Faulter>,
    /// The CPU that the driver is bound to.
    bound_to: Option<usize>,
    /// How often the driver has slept since its last look at the thread's CPU.
    sleeps: u32,
    /// This epoch: the faults of the thread and of others, its start, and the thread's CPU time at the start.
    faults: u32,
    others: u32,
    began: Instant,
    computed: Duration,
    /// The faults of others after which the driver follows another thread.
    most_others: u32,
    /// The driver has left the thread for other work, and goes back at the thread's next fault.
    goes_back: bool,
}

impl Placement {
    /// Makes the placement of the calling thread, which must be apart. Returns `None` if it has to stay
    /// apart.
    pub(crate) fn new(watch: Arc<Watch>) -> Option<Self> {
        let cpus = sched_getaffinity(None).ok().filter(|_| may_leave_idle())?;
        watch.set_cpus(cpus);
        Some(Self {
            watch,
            own: gettid().as_raw_nonzero().get() as u32,
            place: DriverPlace::Apart,
            choice: PlacementChoice::new(),
            faulter: None,
            bound_to: None,
            sleeps: 0,
            faults: 0,
            others: 0,
            began: Instant::now(),
            computed: Duration::ZERO,
            most_others: FEW,
            goes_back: false,
        })
    }

    pub(crate) fn is_beside(&self) -> bool {
        self.place == DriverPlace::Beside
    }

    /// Tells the watcher that the driver runs. So the driver gets a CPU, even if it is awaited.
    pub(crate) fn turn(&self) {
        if self.is_beside() {
            self.watch.turn();
        }
    }

    /// Notes that the driver is about to sleep, and no fault waits. A driver beside a thread that it has
    /// woken seldom sleeps, since the thread takes the CPU. If it does sleep, the thread may have moved to
    /// another CPU.
    pub(crate) fn sleeps(&mut self) {
        self.sleeps = self.sleeps.saturating_add(1);
    }

    /// Notes that a thread has met a fault, before the driver serves it.
    pub(crate) fn note(&mut self, thread: u32) {
        if self.watch.take_call() {
            self.choice.forbid();
            self.move_to(DriverPlace::Apart);
        }
        if self.faulter.as_ref().is_none_or(|faulter| faulter.thread != thread) {
            self.others += 1;
            if self.others > FEW {
                self.move_to(DriverPlace::Apart);
            }
            if self.others > self.most_others {
                self.most_others = (self.most_others * 2).min(MANY);
                self.faulter = Faulter::new(thread);
                self.begin();
            }
            return;
        }
        if std::mem::take(&mut self.goes_back) {
            self.move_to(DriverPlace::Beside);
        }
        self.faults += 1;
        if self.faults == EPOCH {
            self.judge();
        } else if self.is_beside()
            && (self.faults.is_multiple_of(LOOK_EVERY) || self.sleeps >= LOOK_AFTER_SLEEPS)
        {
            self.follow();
        }
    }

    /// Leaves the thread for work other than a fault: such work may take long, and may start threads that
    /// would inherit the place.
    pub(crate) fn leave(&mut self) {
        let goes_back = self.is_beside() || self.goes_back;
        self.move_to(DriverPlace::Apart);
        self.goes_back = goes_back;
    }

    fn begin(&mut self) {
        (self.faults, self.others, self.began) = (0, 0, Instant::now());
        self.computed = self.faulter.as_ref().and_then(Faulter::computed).unwrap_or_default();
    }

    fn judge(&mut self) {
        let computed = self.faulter.as_ref().and_then(Faulter::computed).unwrap_or_default();
        let lost = self.began.elapsed().saturating_sub(computed.saturating_sub(self.computed));
        if self.others <= FEW {
            self.most_others = FEW;
            let next = self.choice.judge(self.place, lost / EPOCH);
            self.move_to(next);
        }
        self.begin();
    }

    fn move_to(&mut self, place: DriverPlace) {
        self.goes_back = false;
        if place == self.place {
            return;
        }
        match place {
            DriverPlace::Apart => self.watch.leave(self.own),
            DriverPlace::Beside => {
                if set_idle(self.own, true).is_err() {
                    return;
                }
                self.watch.note_beside(self.own);
            }
        }
        (self.place, self.bound_to) = (place, None);
        if self.is_beside() {
            self.follow();
        }
    }

    /// Binds the driver to the thread's CPU.
    fn follow(&mut self) {
        self.sleeps = 0;
        let Some(cpu) = self.faulter.as_ref().and_then(Faulter::cpu) else { return };
        if self.bound_to != Some(cpu) && cpu < CpuSet::MAX_CPU {
            let mut there = CpuSet::new();
            there.set(cpu);
            // If the driver may not run on that CPU, it is bound to none.
            self.bound_to = sched_setaffinity(None, &there).is_ok().then_some(cpu);
            self.watch.note_bound(self.bound_to);
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.move_to(DriverPlace::Apart);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_goes_back_after_something_else_and_asks_ever_more_seldom_about_threads_that_take_turns() {
        std::thread::spawn(|| {
            let Some(mut placement) = Placement::new(Arc::default()) else { return };
            let (thread, other) = (std::process::id(), gettid().as_raw_nonzero().get() as u32);
            for _ in 0..=EPOCH + FEW {
                placement.note(thread);
            }
            assert!(placement.is_beside());
            placement.leave();
            placement.leave();
            assert!(!placement.is_beside());
            placement.note(thread);
            assert!(placement.is_beside());
            placement.leave();
            (0..=FEW).for_each(|_| placement.note(other));
            assert!(!placement.goes_back, "another thread has the driver by now");
            for _ in 0..100 {
                (0..=MANY).for_each(|turn| placement.note(if turn % 2 == 0 { thread } else { other }));
            }
            assert!(!placement.is_beside());
            assert_eq!(placement.most_others, MANY);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_driver_follows_a_thread_and_comes_back() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            let Some(mut placement) = Placement::new(Arc::default()) else { return };
            let thread = std::process::id();
            for _ in 0..=EPOCH + FEW {
                placement.note(thread);
            }
            assert!(placement.is_beside());
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            // Other threads fault as well.
            for _ in 0..=FEW {
                placement.note(gettid().as_raw_nonzero().get() as u32);
            }
            assert!(!placement.is_beside());
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
