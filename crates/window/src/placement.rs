//! Where a driver runs: wherever the kernel puts it, or beside the thread whose faults it serves.
//!
//! ```text
//!   apart    the thread faults ─► another CPU is woken ─► serves ─► wakes the first CPU     two CPUs wake up for each fault
//!   beside   the thread faults ─► switch of threads ─► serves ─► switch of threads          on the thread's own CPU
//! ```
//!
//! To wake a CPU takes much longer than to serve a fault. Left alone, the kernel always pays for it: it looks
//! for an idle CPU for whoever is woken. So a driver that is *beside* a thread is bound to the CPU on which
//! the thread ran last. It is also in the class of those that run when nobody else wants their CPU. The
//! kernel takes that CPU for idle then, leaves the thread there when it is woken, and lets it go on at once.
//!
//! The price: such a driver gets nothing where others want the CPU, and nothing is done while the thread
//! runs. So it is measured which place is better, in turns of [`EPOCH`] faults of one thread. What counts is
//! the time that the thread loses for a fault: time that has passed, less what the thread has computed. Now
//! and then the other place is tried again. Where several threads fault, the driver stays apart.
//!
//! Whoever watches over the driver calls it back if it is awaited and gets no CPU ([`Watch::look`]).
//!
//! Costs: a comparison for each fault. Beside a thread, one look at where it runs for every [`LOOK_EVERY`]
//! faults, and for every [`LOOK_AFTER_SLEEPS`] times that the driver sleeps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use octavo_platform::threads::{may_leave_idle, runs, set_idle, stat_field};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

/// Faults of one thread after which a place is judged.
const EPOCH: u32 = 128;
/// Faults from one look at where the thread runs to the next.
const LOOK_EVERY: u32 = 16;
/// Or the driver has slept so often.
const LOOK_AFTER_SLEEPS: u32 = 2;
/// Faults of other threads in an epoch that end it.
const FEW: u32 = 4;
/// The most faults of others after which another thread is asked about: it takes two files. Their number
/// doubles each time that no epoch came to its end.
const MANY: u32 = 256;
/// Epochs until the other place is tried: at first, after it won, and at most.
const FIRST_TRIAL: u32 = 1;
const PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 64;
/// Epochs without a trial after the driver was called back, at most.
const MOST_FORBIDDEN: u32 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Apart,
    Beside,
}

impl Place {
    fn other(self) -> Self {
        match self {
            Self::Apart => Self::Beside,
            Self::Beside => Self::Apart,
        }
    }
}

/// Which place is better, by what faults have cost there.
#[derive(Clone, Copy, Debug)]
struct Choice {
    better: Place,
    /// What a fault cost there.
    usual: Duration,
    is_trial: bool,
    epochs_left: u32,
    pause: u32,
    /// Epochs without a trial after the next time that the driver is called back.
    forbids: u32,
}

impl Choice {
    fn new() -> Self {
        let (usual, is_trial) = (Duration::MAX, false);
        let (epochs_left, pause, forbids) = (FIRST_TRIAL, PAUSE, PAUSE);
        Self { better: Place::Apart, usual, is_trial, epochs_left, pause, forbids }
    }

    /// Judges an epoch at a place, in which a fault cost so much. Returns the place of the next.
    fn judge(&mut self, place: Place, cost: Duration) -> Place {
        if place == Place::Beside {
            self.forbids = (self.forbids / 2).max(PAUSE);
        }
        if std::mem::take(&mut self.is_trial) && place != self.better {
            // Beside the thread, no other CPU has to wake. So that place is left only for one that is clearly
            // better.
            let has_won = match place {
                Place::Beside => cost < self.usual,
                Place::Apart => cost < self.usual / 5 * 4,
            };
            if has_won {
                (self.better, self.usual) = (place, cost);
            }
            self.pause = if has_won { PAUSE } else { (self.pause * 2).min(LONGEST_PAUSE) };
            self.epochs_left = self.pause;
        } else if place == self.better {
            // Faults that wait for a device make epochs differ.
            self.usual = if self.usual == Duration::MAX { cost } else { (self.usual * 3 + cost) / 4 };
            // 0: a trial did not take place, as another thread came.
            self.epochs_left = self.epochs_left.saturating_sub(1);
            self.is_trial = self.epochs_left == 0;
            if self.is_trial {
                return place.other();
            }
        }
        self.better
    }

    /// The driver was called back.
    fn forbid(&mut self) {
        (self.better, self.usual, self.is_trial) = (Place::Apart, Duration::MAX, false);
        self.epochs_left = self.forbids;
        self.forbids = (self.forbids * 4).min(MOST_FORBIDDEN);
    }
}

/// What a driver shares with whoever watches over it.
#[derive(Debug, Default)]
pub struct Watch {
    /// The driver's thread, while it is beside another. Else 0.
    beside: AtomicU32,
    /// Turns of the driver. The watcher remembers how many there were when it found the driver awaited.
    turns: AtomicU64,
    awaited_at: AtomicU64,
    is_called_back: AtomicBool,
    /// The CPU to which the driver is bound, and 1 more. Else 0.
    bound_to: AtomicU32,
    /// The CPUs that the driver may use.
    cpus: OnceLock<CpuSet>,
}

impl Watch {
    /// Calls the driver back from beside a thread, if it was awaited at the last look as well, and has made
    /// no turn since. To be called every few milliseconds. `is_awaited` says whether something is there that
    /// the driver has not seen.
    pub fn look(&self, is_awaited: impl FnOnce() -> bool) {
        // Relaxed here: numbers that order nothing. A driver that is called back in vain is apart for a
        // while.
        let thread = self.beside.load(Ordering::Relaxed);
        if thread == 0 || !is_awaited() {
            return self.awaited_at.store(u64::MAX, Ordering::Relaxed);
        }
        let turns = self.turns.load(Ordering::Relaxed);
        let is_awaited_still = self.awaited_at.swap(turns, Ordering::Relaxed) == turns;
        // One that waits for a device gets what it wants.
        if is_awaited_still && runs(std::process::id(), thread) {
            self.call_back();
        }
    }

    /// Calls the driver back from beside a thread. To be called before one waits for the driver.
    pub fn call_back(&self) {
        let thread = self.beside.load(Ordering::Relaxed);
        if thread != 0 {
            self.is_called_back.store(true, Ordering::Relaxed);
            self.leave(thread);
        }
    }

    /// Returns the CPU on which the driver is beside a thread, if it is. Others had better stay away from it.
    pub fn beside_on(&self) -> Option<usize> {
        (self.bound_to.load(Ordering::Relaxed) as usize).checked_sub(1)
    }

    fn leave(&self, thread: u32) {
        self.bound_to.store(0, Ordering::Relaxed);
        self.beside.store(0, Ordering::Relaxed);
        // An error says that the thread has ended.
        let _ = set_idle(thread, false);
        if let (Some(cpus), Some(thread)) = (self.cpus.get(), rustix::process::Pid::from_raw(thread as i32)) {
            let _ = sched_setaffinity(Some(thread), cpus);
        }
    }
}

/// The thread that faults.
#[derive(Debug)]
struct Faulter {
    thread: u32,
    stat: File,
    times: File,
}

impl Faulter {
    fn new(thread: u32) -> Option<Self> {
        let open = |name| File::open(format!("/proc/{thread}/task/{thread}/{name}")).ok();
        Some(Self { thread, stat: open("stat")?, times: open("schedstat")? })
    }

    /// Returns the CPU on which it ran last.
    fn cpu(&self) -> Option<usize> {
        let mut text = [0; 1024];
        let len = self.stat.read_at(&mut text, 0).ok()?;
        parse(stat_field(&text[..len], 39)?)
    }

    /// Returns how long it has run.
    fn computed(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = self.times.read_at(&mut text, 0).ok()?;
        parse(text[..len].split(|byte| *byte == b' ').next()?).map(Duration::from_nanos)
    }
}

fn parse<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.trim().parse().ok()
}

/// The place of a driver.
#[derive(Debug)]
pub(crate) struct Placement {
    watch: Arc<Watch>,
    own: u32,
    place: Place,
    choice: Choice,
    faulter: Option<Faulter>,
    /// The CPU to which the driver is bound.
    bound_to: Option<usize>,
    /// How often the driver has slept since it looked where the thread runs.
    sleeps: u32,
    /// This epoch: faults of the thread and of others, when it began, and what the thread had computed then.
    faults: u32,
    others: u32,
    began: Instant,
    computed: Duration,
    /// Faults of others after which another thread is asked about.
    most_others: u32,
    /// The driver has left the thread for something else, and goes back at the thread's next fault.
    goes_back: bool,
}

impl Placement {
    /// Makes the placement of the thread that calls, which has not run beside another. `None`: it has to stay
    /// apart.
    pub(crate) fn new(watch: Arc<Watch>) -> Option<Self> {
        let cpus = sched_getaffinity(None).ok().filter(|_| may_leave_idle())?;
        let _ = watch.cpus.set(cpus);
        Some(Self {
            watch,
            own: gettid().as_raw_nonzero().get() as u32,
            place: Place::Apart,
            choice: Choice::new(),
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
        self.place == Place::Beside
    }

    /// The driver goes on: whoever waits for it, it gets its CPU.
    pub(crate) fn turn(&self) {
        if self.is_beside() {
            self.watch.turns.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The driver is about to sleep, and no fault waits. Beside a thread that it has woken, it seldom gets to
    /// that: the thread takes the CPU. So the thread may have gone to another.
    pub(crate) fn sleeps(&mut self) {
        self.sleeps = self.sleeps.saturating_add(1);
    }

    /// A thread has met a fault, which is still to be served.
    pub(crate) fn note(&mut self, thread: u32) {
        if self.watch.is_called_back.load(Ordering::Relaxed) {
            self.watch.is_called_back.store(false, Ordering::Relaxed);
            self.choice.forbid();
            self.move_to(Place::Apart);
        }
        if self.faulter.as_ref().is_none_or(|faulter| faulter.thread != thread) {
            self.others += 1;
            if self.others > FEW {
                self.move_to(Place::Apart);
            }
            if self.others > self.most_others {
                self.most_others = (self.most_others * 2).min(MANY);
                self.faulter = Faulter::new(thread);
                self.begin();
            }
            return;
        }
        if std::mem::take(&mut self.goes_back) {
            self.move_to(Place::Beside);
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

    /// Something else than a fault is to be done: it may take its time, and start threads, which would
    /// inherit the place.
    pub(crate) fn leave(&mut self) {
        let goes_back = self.is_beside() || self.goes_back;
        self.move_to(Place::Apart);
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

    fn move_to(&mut self, place: Place) {
        self.goes_back = false;
        if place == self.place {
            return;
        }
        match place {
            Place::Apart => self.watch.leave(self.own),
            Place::Beside => {
                if set_idle(self.own, true).is_err() {
                    return;
                }
                self.watch.beside.store(self.own, Ordering::Relaxed);
            }
        }
        (self.place, self.bound_to) = (place, None);
        if self.is_beside() {
            self.follow();
        }
    }

    /// Goes where the thread is.
    fn follow(&mut self) {
        self.sleeps = 0;
        let Some(cpu) = self.faulter.as_ref().and_then(Faulter::cpu) else { return };
        if self.bound_to != Some(cpu) && cpu < CpuSet::MAX_CPU {
            let mut there = CpuSet::new();
            there.set(cpu);
            // A CPU that the driver may not use stays another's.
            self.bound_to = sched_setaffinity(None, &there).is_ok().then_some(cpu);
            self.watch.bound_to.store(self.bound_to.map_or(0, |cpu| cpu as u32 + 1), Ordering::Relaxed);
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        self.move_to(Place::Apart);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(8);
    const SLOW: Duration = Duration::from_micros(40);

    /// Where a driver is, epoch by epoch, if faults cost this much at each place.
    fn places(choice: &mut Choice, epochs: usize, cost: impl Fn(Place) -> Duration) -> Vec<Place> {
        let mut at = Place::Apart;
        let mut places = Vec::new();
        for _ in 0..epochs {
            places.push(at);
            at = choice.judge(at, cost(at));
        }
        places
    }

    #[test]
    fn the_better_place_is_taken_and_the_other_is_tried_ever_more_seldom() {
        for better in [Place::Apart, Place::Beside] {
            let cost = |place| if place == better { FAST } else { SLOW };
            let places = places(&mut Choice::new(), 4000, cost);
            let others = places[2..].iter().filter(|place| **place != better).count();
            assert!((40..=70).contains(&others), "{better:?}: {others}");
        }
    }

    #[test]
    fn a_place_beside_is_not_left_for_one_that_is_hardly_better() {
        let cost = |place| if place == Place::Apart { SLOW / 20 * 19 } else { SLOW };
        let mut choice = Choice::new();
        assert_eq!(choice.judge(Place::Apart, SLOW * 2), Place::Beside);
        assert_eq!(choice.judge(Place::Beside, SLOW), Place::Beside);
        let later: Vec<_> =
            std::iter::successors(Some(Place::Beside), |at| Some(choice.judge(*at, cost(*at))))
                .take(100)
                .collect();
        assert!(later.iter().filter(|place| **place == Place::Apart).count() <= 5);
    }

    #[test]
    fn a_place_that_becomes_better_is_found() {
        let mut choice = Choice::new();
        places(&mut choice, 500, |place| if place == Place::Apart { FAST } else { SLOW });
        let later = places(&mut choice, 1000, |place| if place == Place::Beside { FAST } else { SLOW });
        assert_eq!(later.last(), Some(&Place::Beside));
    }

    #[test]
    fn a_driver_that_was_called_back_stays_apart_longer_each_time() {
        let cost = |place| if place == Place::Beside { FAST } else { SLOW };
        let apart = [1, 2, 3].map(|calls| {
            let mut choice = Choice::new();
            (0..calls).for_each(|_| choice.forbid());
            places(&mut choice, 1000, cost).iter().position(|place| *place == Place::Beside)
        });
        assert_eq!(apart, [8, 32, 128].map(Some));
    }

    #[test]
    fn a_thread_after_another_has_the_better_place_at_once() {
        let cost = |place| if place == Place::Beside { FAST } else { SLOW };
        let mut choice = Choice::new();
        places(&mut choice, 5, cost);
        // Its first epoch is apart, as it was not known yet.
        assert_eq!(choice.judge(Place::Apart, SLOW), Place::Beside);
    }

    #[test]
    fn a_trial_that_another_thread_ends_is_made_up_for() {
        for better in [Place::Apart, Place::Beside] {
            let cost = |place| if place == better { FAST } else { SLOW };
            let mut choice = Choice::new();
            let mut at = Place::Apart;
            while !choice.is_trial || at == better {
                at = choice.judge(at, cost(at));
            }
            let again = choice.judge(better, FAST);
            assert_eq!((again, choice.is_trial), (better.other(), true));
            assert_eq!(choice.judge(again, SLOW), better);
        }
    }

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
