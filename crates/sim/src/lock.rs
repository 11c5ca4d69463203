//! Locks of a simulation: words in cache lines. Threads spin on them for a while and then sleep, as on the
//! standard library's futexes.
//!
//! The value of a lock lies in a lock of the standard library. That lock is never contended, since the
//! simulated word is taken first.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::Duration;

use crate::atomic::{AtomicU32, Ordering};
use crate::simulation::{futex_wait, futex_wake, is_exploring, spin_hint};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held, and threads may sleep on it.
const CONTENDED: u32 = 2;
/// The pauses before each try of a thread that spins, as in the engine's own locks. Then it sleeps.
const PAUSES: [u32; 5] = [8, 16, 32, 64, 128];

fn key(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

/// A lock for one thread at a time.
#[derive(Debug, Default)]
pub struct Mutex<T> {
    word: AtomicU32,
    value: std::sync::Mutex<T>,
}

/// A held [`Mutex`].
pub struct MutexGuard<'a, T> {
    lock: &'a Mutex<T>,
    value: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(FREE), value: std::sync::Mutex::new(value) }
    }

    /// Takes the lock: at most a few microseconds of spinning, then sleep.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if self.try_word() {
            return self.guard();
        }
        // In an exploration, spinning adds nothing: if a lock is taken sooner, that is simply another
        // schedule.
        let rounds = if is_exploring() { &[][..] } else { &PAUSES };
        for pauses in rounds {
            for _ in 0..*pauses {
                spin_hint();
            }
            if self.try_word() {
                return self.guard();
            }
        }
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            futex_wait(key(&self.word), None, || self.word.peek() == CONTENDED);
        }
        self.guard()
    }

    /// Takes the lock if it is free.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.try_word().then(|| self.guard())
    }

    #[track_caller]
    fn try_word(&self) -> bool {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn guard(&self) -> MutexGuard<'_, T> {
        MutexGuard { lock: self, value: Some(self.value.lock().unwrap_or_else(PoisonError::into_inner)) }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect("held until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_deref_mut().expect("held until it is dropped")
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        if self.lock.word.swap(FREE, Ordering::Release) == CONTENDED {
            futex_wake(key(&self.lock.word), 1);
        }
    }
}

/// A condition on which threads sleep until a change under a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(AtomicU32);

impl Condvar {
    /// Wakes one thread that sleeps.
    pub fn notify_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
        futex_wake(key(&self.0), 1);
    }

    /// Releases the lock, sleeps until a notification or for at most `timeout`, and takes the lock again.
    pub fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        let before = self.0.load(Ordering::Relaxed);
        let lock = guard.lock;
        drop(guard);
        futex_wait(key(&self.0), Some(timeout), || self.0.peek() == before);
        lock.lock()
    }
}

/// This bit is set while a writer holds an [`RwLock`]. The other bits count readers.
const WRITER: u32 = 1 << 30;
/// Threads may sleep on an [`RwLock`].
const SLEEPERS: u32 = 1 << 31;

/// A lock for one writer, or several readers.
#[derive(Debug, Default)]
pub struct RwLock<T> {
    word: AtomicU32,
    value: std::sync::RwLock<T>,
}

/// An [`RwLock`] held for reading.
#[derive(Debug)]
pub struct RwLockReadGuard<'a, T> {
    word: &'a AtomicU32,
    value: Option<std::sync::RwLockReadGuard<'a, T>>,
}

/// An [`RwLock`] held for writing.
#[derive(Debug)]
pub struct RwLockWriteGuard<'a, T> {
    word: &'a AtomicU32,
    value: Option<std::sync::RwLockWriteGuard<'a, T>>,
}

impl<T> RwLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: std::sync::RwLock::new(value) }
    }

    /// Takes the lock for reading, shared with other readers.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.take(|word| (word & (WRITER | SLEEPERS) == 0).then(|| word + 1));
        let value = self.value.read().unwrap_or_else(PoisonError::into_inner);
        RwLockReadGuard { word: &self.word, value: Some(value) }
    }

    /// Takes the lock for writing.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.take(|word| (word & !SLEEPERS == 0).then_some(word | WRITER));
        let value = self.value.write().unwrap_or_else(PoisonError::into_inner);
        RwLockWriteGuard { word: &self.word, value: Some(value) }
    }

    #[track_caller]
    fn take(&self, next: impl Fn(u32) -> Option<u32>) {
        let mut pauses = PAUSES.iter();
        loop {
            let word = self.word.load(Ordering::Relaxed);
            if let Some(taken) = next(word) {
                if self.word.compare_exchange(word, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return;
                }
            } else if let Some(pauses) = pauses.next() {
                for _ in 0..*pauses {
                    spin_hint();
                }
            } else if word & SLEEPERS != 0
                || self
                    .word
                    .compare_exchange(word, word | SLEEPERS, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
            {
                futex_wait(key(&self.word), None, || self.word.peek() == word | SLEEPERS);
            }
        }
    }
}

/// Releases a part of the word, and wakes the sleepers if nobody holds the lock any more.
fn give_back(word: &AtomicU32, part: u32) {
    let left = word.fetch_sub(part, Ordering::Release) - part;
    if left == SLEEPERS && word.compare_exchange(SLEEPERS, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        futex_wake(key(word), usize::MAX);
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect("held until it is dropped")
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        give_back(self.word, 1);
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_deref().expect("held until it is dropped")
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_deref_mut().expect("held until it is dropped")
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.value = None;
        give_back(self.word, WRITER);
    }
}

/// A value that is set once.
#[derive(Debug, Default)]
pub struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    setting: Mutex<()>,
}

impl<T> OnceLock<T> {
    /// No value yet.
    pub const fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), setting: Mutex::new(()) }
    }

    /// Returns the value if it is set. Costs a load.
    #[track_caller]
    pub fn get(&self) -> Option<&T> {
        self.setting.word.load(Ordering::Acquire);
        self.value.get()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// Returns the new value if one is set already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _setting = self.setting.lock();
        self.value.set(value)
    }

    /// Returns the value. Makes it now if it is not set yet.
    #[track_caller]
    pub fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        let _setting = self.setting.lock();
        if self.value.get().is_none() {
            let made = init();
            let _ = self.value.set(made);
        }
        self.value.get().expect("set under the lock")
    }
}
