//! The machine that a manager runs on: its clock, its CPUs, its memory and its random bytes.
//!
//! All four are parameters. A manager is built with the real machine by default; a test or a simulator gives
//! a [`Machine`] of its own. No other module of this crate asks the system for them.
//!
//! Cost: no hit path reads the clock. A CPU's number costs one load on the real machine, and one call on a
//! pretended machine.

use std::fmt;
use std::ops::{Add, AddAssign};

use super::{Duration, Shared, face};

/// For tests and simulators: the clock, the CPUs, the memory and the random bytes that a manager uses. The
/// default is the real machine.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
/// use octavo::{Machine, Manager};
///
/// // Time stands still until the test moves it.
/// let millis = Arc::new(AtomicU64::new(0));
/// let clock = Arc::clone(&millis);
/// let machine = Machine::real().with_clock(move || Duration::from_millis(clock.load(Ordering::SeqCst)));
/// let manager = Manager::builder().budget_bytes(16 << 20).machine(machine).build()?;
/// # drop(manager);
/// # Ok::<(), octavo::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub(crate) clock: Clock,
    pub(crate) cpus: Cpus,
    pub(crate) memory: MachineMemory,
    pub(crate) random: Random,
}

impl Machine {
    /// The machine that this process runs on.
    pub fn real() -> Self {
        Self::default()
    }

    /// Replaces the clock. `now` returns the time since some fixed moment, and never goes back. Threads that
    /// wait for a moment read such a clock every millisecond.
    pub fn with_clock(mut self, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        self.clock = Clock { given: Some(Shared::new(now)) };
        self
    }

    /// Replaces the CPUs.
    pub fn with_cpus(mut self, cpus: Cpus) -> Self {
        self.cpus = cpus;
        self
    }

    /// Sets the size of the memory to `bytes`, without a limit of control groups. No budget may be larger.
    pub fn with_memory_bytes(mut self, bytes: u64) -> Self {
        self.memory = MachineMemory { bytes, usable_bytes: bytes };
        self
    }

    /// Replaces the random bytes: `fill` fills the slice that it is given. The key that encrypts pages comes
    /// from here.
    pub fn with_random(
        mut self,
        fill: impl Fn(&mut [u8]) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.random = Random { given: Some(Shared::new(fill)) };
        self
    }
}

/// A moment, by the clock of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instant(Duration);

impl Instant {
    /// Returns `None` if the moment lies beyond the end of time, so that it never comes.
    pub(crate) fn checked_add(self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// Returns zero if `earlier` is later.
    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, time: Duration) {
        *self = *self + time;
    }
}

/// The clock. Cloning is cheap and refers to the same clock.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    given: Option<Shared<dyn Fn() -> Duration + Send + Sync>>,
}

/// The longest sleep of a thread before it reads a clock that is not the real one.
const GIVEN_CLOCK_LOOK: Duration = Duration::from_millis(1);

impl Clock {
    pub(crate) fn now(&self) -> Instant {
        Instant(self.given.as_ref().map_or_else(face::time, |now| now()))
    }

    /// Returns the time since `earlier`.
    pub(crate) fn since(&self, earlier: Instant) -> Duration {
        self.now().saturating_duration_since(earlier)
    }

    /// Returns how long a thread may really sleep before it checks again whether `until` has come.
    pub(crate) fn sleep_until(&self, until: Instant) -> Duration {
        let left = until.saturating_duration_since(self.now());
        if self.given.is_some() { left.min(GIVEN_CLOCK_LOOK) } else { left }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.given.is_some() { "given" } else { "real" };
        write!(f, "the {whose} clock, at {:?}", self.now().0)
    }
}

/// The number of CPUs, and the CPU that a thread is on, for [`Machine::with_cpus`].
#[derive(Clone, Copy)]
pub struct Cpus {
    count: usize,
    given: Option<fn() -> u32>,
}

impl Cpus {
    /// All CPUs that the real machine may ever have.
    pub fn real() -> Self {
        Self { count: face::possible_cpus(), given: None }
    }

    /// Pretends that there are `count` CPUs, at least one. `current` returns the CPU on which the calling
    /// thread is.
    pub fn pretended(count: usize, current: fn() -> u32) -> Self {
        Self { count: count.max(1), given: Some(current) }
    }

    pub(crate) fn count(self) -> usize {
        self.count
    }

    /// Returns whether the kernel's restartable sequences know these CPUs.
    pub(crate) fn are_real(self) -> bool {
        self.given.is_none()
    }

    /// Returns the CPU that this thread is on, below `count`. The thread may be on another one at the next
    /// instruction.
    #[inline]
    pub(crate) fn current(self) -> usize {
        let number = match self.given {
            None => face::current_cpu(),
            Some(current) => current(),
        };
        number as usize % self.count
    }
}

impl Default for Cpus {
    fn default() -> Self {
        Self::real()
    }
}

impl fmt::Debug for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} CPUs", self.count, if self.are_real() { "real" } else { "pretended" })
    }
}

/// The machine's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MachineMemory {
    pub(crate) bytes: u64,
    /// The part of the memory that the process's control groups allow.
    pub(crate) usable_bytes: u64,
}

impl Default for MachineMemory {
    fn default() -> Self {
        face::memory()
    }
}

/// The source of random bytes.
#[derive(Clone, Default)]
pub(crate) struct Random {
    given: Option<Shared<Fill>>,
}

type Fill = dyn Fn(&mut [u8]) -> std::io::Result<()> + Send + Sync;

impl Random {
    /// # Errors
    /// The source's error, if it has no random bytes.
    pub(crate) fn fill(&self, bytes: &mut [u8]) -> std::io::Result<()> {
        match &self.given {
            None => face::fill_random(bytes),
            Some(fill) => fill(bytes),
        }
    }
}

impl fmt::Debug for Random {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.given.is_some() { "given" } else { "real" })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    #[test]
    fn the_real_clock_goes_on_and_is_one_for_all_machines() {
        let (one, other) = (Machine::real().clock, Machine::real().clock);
        let before = one.now();
        assert!(other.now() >= before);
        assert_eq!(one.sleep_until(before), Duration::ZERO);
        let hour = Duration::from_secs(3600);
        assert!(one.sleep_until(before + hour) <= hour);
        assert_eq!(before.checked_add(Duration::MAX), None);
    }

    #[test]
    fn a_given_clock_says_what_it_is_told_and_is_looked_at_often() {
        let seconds = Shared::new(AtomicU64::new(5));
        let hand = Shared::clone(&seconds);
        let clock =
            Machine::real().with_clock(move || Duration::from_secs(hand.load(Ordering::Relaxed))).clock;
        let began = clock.now();
        assert_eq!(clock.since(began), Duration::ZERO);
        assert_eq!(clock.sleep_until(began + Duration::from_secs(60)), GIVEN_CLOCK_LOOK);
        seconds.store(65, Ordering::Relaxed);
        assert_eq!(clock.since(began), Duration::from_secs(60));
        assert_eq!(clock.sleep_until(began + Duration::from_secs(60)), Duration::ZERO);
    }

    #[test]
    fn cpus_memory_and_random_bytes_are_the_ones_given() {
        let machine = Machine::real()
            .with_cpus(Cpus::pretended(3, || 7))
            .with_memory_bytes(1 << 42)
            .with_random(|bytes| {
                bytes.fill(9);
                Ok(())
            });
        assert_eq!((machine.cpus.count(), machine.cpus.current()), (3, 1));
        assert_eq!(machine.memory.usable_bytes, 1 << 42);
        let mut bytes = [0; 3];
        machine.random.fill(&mut bytes).unwrap();
        assert_eq!(bytes, [9; 3]);
        assert!(Cpus::real().current() < Cpus::real().count());
        let (mut one, mut other) = ([0; 16], [0; 16]);
        Random::default().fill(&mut one).unwrap();
        Random::default().fill(&mut other).unwrap();
        assert_ne!(one, other);
    }
}
