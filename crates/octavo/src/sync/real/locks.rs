//! The standard library's locks, without poison.
//!
//! A lock of the standard library is a futex: all of its state lies in its own words. This matters after
//! `fork`. Some locks park threads in a table of the process, of which the child gets a copy. The copy still
//! lists the parent's threads, and the locks of the table itself may be held forever. Threads of the child
//! then sleep and are never woken. With futexes, a child may build a manager of its own, no matter what the
//! parent's threads were doing.
//!
//! A thread that panics under one of these locks leaves the guarded data in a valid state, so the next holder
//! just continues.

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub(crate) type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;
pub(crate) type RwLockReadGuard<'a, T> = std::sync::RwLockReadGuard<'a, T>;
pub(crate) type RwLockWriteGuard<'a, T> = std::sync::RwLockWriteGuard<'a, T>;

/// The number of processor pauses before each further try to take a lock that another thread has. Measured by
/// `--bin frames` with two threads: shorter pauses, or calls of the scheduler between tries, are slower by a
/// third.
const PAUSES: [u32; 5] = [8, 16, 32, 64, 128];

/// A lock for one thread at a time.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.try_lock().unwrap_or_else(|| self.lock_contended())
    }

    /// Tries again for some microseconds before the thread sleeps. Most locks of this crate are held for a
    /// shorter time. If a thread sleeps, it costs one system call in this thread and one in the thread that
    /// wakes it. Each try takes the lock's cache line from the holder's CPU, so tries quickly become rare.
    #[cold]
    fn lock_contended(&self) -> MutexGuard<'_, T> {
        for pauses in PAUSES {
            (0..pauses).for_each(|_| std::hint::spin_loop());
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// A condition on which threads sleep until a change under a [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(std::sync::Condvar);

impl Condvar {
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Releases the lock, sleeps until a notification or for the given time, and takes the lock again.
    pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// A lock for one writer, or several readers.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    #[inline]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[derive(Debug, Default)]
    struct WakeGate {
        state: Mutex<GateState>,
        changed: Condvar,
    }

    #[derive(Debug, Default)]
    struct GateState {
        open: bool,
        waiting: usize,
        passed: usize,
    }

    impl WakeGate {
        fn pass(&self) {
            let mut state = self.state.lock();
            state.waiting += 1;
            while !state.open {
                state = self.changed.wait_for(state, HOUR);
            }
            state.passed += 1;
            self.changed.notify_one();
        }

        fn open(&self) {
            self.state.lock().open = true;
            self.changed.notify_one();
        }

        /// Returns whether `what` becomes true before the time limit.
        fn comes_to(&self, what: impl Fn(&GateState) -> bool) -> bool {
            let deadline = Instant::now() + Duration::from_secs(120);
            while !what(&self.state.lock()) {
                if Instant::now() > deadline {
                    return false;
                }
                thread::yield_now();
            }
            true
        }
    }

    /// The threads of the child have their stacks at the places where sleeping threads of the parent had
    /// their stacks.
    #[test]
    fn threads_of_a_forked_child_are_woken_though_threads_of_the_parent_were_asleep() {
        const PARENTS: usize = 32;
        const CHILDREN: usize = 8;
        let gate = Arc::new(WakeGate::default());
        let parents: Vec<_> = (0..PARENTS)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || gate.pass())
            })
            .collect();
        assert!(gate.comes_to(|state| state.waiting == PARENTS));
        let code = octavo_platform::run_in_forked_child(|| {
            let gates: Arc<Vec<WakeGate>> = Arc::new((0..512).map(|_| WakeGate::default()).collect());
            for _ in 0..CHILDREN {
                let gates = Arc::clone(&gates);
                thread::spawn(move || gates.iter().for_each(WakeGate::pass));
            }
            let all_pass = |gate: &WakeGate| {
                let asleep = gate.comes_to(|state| state.waiting == CHILDREN);
                gate.open();
                asleep && gate.comes_to(|state| state.passed == CHILDREN)
            };
            u8::from(!gates.iter().all(all_pass))
        });
        gate.open();
        parents.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(code.unwrap(), 0);
    }
}
