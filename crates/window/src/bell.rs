//! The bell: other threads ring it to make the driver look for work.
//!
//! ```text
//!   Looks   the driver looks for work, or does it      ─ ring ─► Rung
//!   Rung    there is work that it may have missed      ─ it looks again ─► Looks
//!   Sleeps  it has found none, and sleeps              ─ ring ─► Rung, and it is woken
//! ```
//!
//! A nap is a short sleep of bounded length. The driver may nap even if it was rung.
//!
//! A thread publishes its work, and then rings. The driver announces that it looks, and then looks. Both
//! exchange the same word, so the later exchange sees the earlier one. Either the driver finds the work, or
//! it finds that the bell was rung.
//!
//! Costs: one exchange per ring, and one per turn of the driver. A ring makes a system call only if the
//! driver sleeps.

use std::sync::Arc;
use std::task::Wake;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};

use crate::sync::{AtomicBool, AtomicU8, AtomicU32, Ordering};

const NO_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

const LOOKS: u8 = 0;
const RUNG: u8 = 1;
const SLEEPS: u8 = 2;

/// The driver's state: whether it looks for work.
#[derive(Debug)]
struct Attention(AtomicU8);

impl Attention {
    fn new() -> Self {
        Self(AtomicU8::new(LOOKS))
    }

    // AcqRel: the later exchange sees everything that the other thread did before its own.

    /// Announces work. Returns whether the driver must be woken.
    fn call(&self) -> bool {
        self.0.swap(RUNG, Ordering::AcqRel) == SLEEPS
    }

    fn is_asleep(&self) -> bool {
        self.0.load(Ordering::Acquire) == SLEEPS
    }

    /// After this, the driver sees all work that was announced so far.
    fn look(&self) {
        self.0.swap(LOOKS, Ordering::AcqRel);
    }

    /// The driver has found nothing. Returns whether it may sleep until it is woken.
    fn doze(&self) -> bool {
        self.0.compare_exchange(LOOKS, SLEEPS, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The driver will sleep for a moment, whether it was called or not.
    fn nod(&self) {
        self.0.swap(SLEEPS, Ordering::AcqRel);
    }

    fn is_called(&self) -> bool {
        self.0.load(Ordering::Acquire) == RUNG
    }
}

/// Wakes the driver from other threads.
#[derive(Debug)]
pub struct Bell {
    attention: Attention,
    descriptor: OwnedFd,
    ends: AtomicBool,
    /// The driver's turns so far.
    turns: AtomicU32,
}

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// The kernel's error if the process has too many descriptors.
    pub fn new() -> std::io::Result<Arc<Self>> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (attention, ends, turns) = (Attention::new(), AtomicBool::new(false), AtomicU32::new(0));
        Ok(Arc::new(Self { attention, descriptor, ends, turns }))
    }

    /// Makes the driver look for work.
    pub fn ring(&self) {
        if self.attention.call() {
            let _ = write(&self.descriptor, &1_u64.to_ne_bytes());
        }
    }

    /// Ends the driver.
    pub fn end(&self) {
        self.ends.store(true, Ordering::Release);
        self.ring();
    }

    /// Returns whether the bell's driver has something to do that it has not seen: an event, or a ring.
    pub fn is_awaited(&self, events: BorrowedFd<'_>) -> bool {
        self.is_rung()
            || self.poll(events, &NO_TIME).is_ok_and(|(has_events, was_rung)| has_events || was_rung)
    }

    /// Returns whether the bell was rung since the driver's last turn began.
    pub(crate) fn is_rung(&self) -> bool {
        self.attention.is_called()
    }

    /// Returns whether the driver sleeps: when it wakes, it first looks for events.
    pub fn is_asleep(&self) -> bool {
        self.attention.is_asleep()
    }

    /// Begins a turn of the driver. Returns whether the driver must end instead.
    pub(crate) fn begin_turn(&self) -> bool {
        // Relaxed: readers only compare two values. Only the driver writes it.
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.attention.look();
        self.ends.load(Ordering::Acquire)
    }

    /// Ends a turn in which the driver found nothing to do. Returns whether it may sleep: nobody has rung
    /// since the turn began.
    pub(crate) fn may_sleep(&self) -> bool {
        self.attention.doze()
    }

    /// Sleeps until there are events, until a ring after the driver found that it [may
    /// sleep](Self::may_sleep), or for `longest`. Returns whether anything happened.
    pub(crate) fn sleep(&self, events: BorrowedFd<'_>, longest: &Timespec) -> std::io::Result<bool> {
        match self.poll(events, longest) {
            Ok((has_events, was_rung)) => {
                if was_rung {
                    let _ = read(&self.descriptor, &mut [0; 8]);
                }
                Ok(has_events || was_rung)
            }
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps for a moment, even if the bell was rung before. A later ring or an event ends the nap.
    pub(crate) fn nap(&self, events: BorrowedFd<'_>, moment: &Timespec) -> std::io::Result<bool> {
        self.attention.nod();
        self.sleep(events, moment)
    }

    /// Waits until there are events or somebody has woken the driver, for at most `longest`. Returns whether
    /// there are events, and whether somebody has woken the driver.
    fn poll(&self, events: BorrowedFd<'_>, longest: &Timespec) -> rustix::io::Result<(bool, bool)> {
        let mut both = [PollFd::new(&events, PollFlags::IN), PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut both, Some(longest))?;
        Ok((!both[0].revents().is_empty(), !both[1].revents().is_empty()))
    }
}

/// The facts about a driver that a watcher keeps between two looks at it.
#[derive(Debug, Default)]
pub struct Lateness {
    /// The driver's turn at the last look, if it was busy or had events then.
    turn: Option<u32>,
}

impl Lateness {
    /// Looks at a bell's driver. Returns whether the driver has kept its events waiting since the last look.
    /// That is so if it has begun no turn since then, and was busy at both looks, or asleep although it
    /// `has_events`. A driver that was woken may have to wait for a CPU.
    pub fn look(&mut self, bell: &Bell, has_events: bool) -> bool {
        let turn = (has_events || !bell.is_asleep()).then(|| bell.turns.load(Ordering::Relaxed));
        let before = std::mem::replace(&mut self.turn, turn);
        turn.is_some() && before == turn
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(all(test, loom))]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A_MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1000 };

    #[test]
    fn a_driver_that_was_rung_while_it_looked_looks_again() {
        let bell = Bell::new().unwrap();
        assert!(!bell.begin_turn());
        bell.ring();
        assert!(bell.is_rung() && !bell.may_sleep());
        assert_eq!(read(&bell.descriptor, &mut [0; 8]).unwrap_err(), Errno::AGAIN, "nobody sleeps");
        assert!(!bell.begin_turn() && bell.may_sleep());
    }

    #[test]
    fn a_driver_that_sleeps_is_woken_once() {
        let (bell, other) = (Bell::new().unwrap(), Bell::new().unwrap());
        let events = std::os::fd::AsFd::as_fd(&other.descriptor);
        assert!(!bell.begin_turn() && bell.may_sleep());
        assert!(!bell.is_awaited(events));
        bell.ring();
        bell.ring();
        assert!(bell.is_awaited(events));
        assert!(bell.sleep(events, &A_MOMENT).unwrap());
        assert!(!bell.begin_turn() && bell.may_sleep());
        assert!(!bell.sleep(events, &A_MOMENT).unwrap(), "the second ring found it awake");
    }

    #[test]
    fn a_nap_ends_by_a_ring() {
        let (bell, other) = (Bell::new().unwrap(), Bell::new().unwrap());
        let events = std::os::fd::AsFd::as_fd(&other.descriptor);
        assert!(!bell.begin_turn());
        bell.ring();
        assert!(!bell.nap(events, &A_MOMENT).unwrap(), "that ring was before");
        bell.ring();
        assert!(bell.sleep(events, &A_MOMENT).unwrap());
    }

    #[test]
    fn the_end_is_heard_at_any_time() {
        for sleeps in [false, true] {
            let bell = Bell::new().unwrap();
            assert!(!bell.begin_turn());
            assert!(!sleeps || bell.may_sleep());
            bell.end();
            assert!(!bell.may_sleep() && bell.begin_turn());
        }
    }

    #[test]
    fn a_driver_is_late_that_begins_no_turn_while_there_is_something_for_it() {
        let (bell, mut lateness) = (Bell::new().unwrap(), Lateness::default());
        let mut is_late = |has_events| lateness.look(&bell, has_events);
        bell.begin_turn();
        assert_eq!([is_late(false), is_late(false), is_late(true)], [false, true, true], "it is busy");
        assert!(bell.may_sleep());
        assert_eq!([is_late(false), is_late(false)], [false, false], "nothing has come");
        assert_eq!([is_late(true), is_late(true)], [false, true], "it was woken, and has no CPU");
        bell.begin_turn();
        assert!(!is_late(true));
        bell.begin_turn();
        assert!(bell.may_sleep() && !is_late(true) && !is_late(false) && !is_late(true));
    }
}
