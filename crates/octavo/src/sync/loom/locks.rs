//! loom's locks, with the methods of the real locks.

use crate::sync::{AtomicBool, Duration, Ordering};

/// loom's mutex, with the methods of the real mutex. A panic ends the model, so poison never matters.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

pub(crate) type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// loom's condition variable, with the methods of the real one. Time does not pass in a model, so only a
/// notification ends a wait.
#[derive(Debug, Default)]
pub(crate) struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn wait_for<'a, T>(&self, guard: MutexGuard<'a, T>, _timeout: Duration) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap()
    }
}

/// loom's reader-writer lock, with the methods of the real lock.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(loom::sync::RwLock<T>);

pub(crate) type RwLockReadGuard<'a, T> = loom::sync::RwLockReadGuard<'a, T>;
pub(crate) type RwLockWriteGuard<'a, T> = loom::sync::RwLockWriteGuard<'a, T>;

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap()
    }
}

/// A value that is set once, with the methods of std's `OnceLock`. The flag shows the checker that the value
/// is published.
#[derive(Debug, Default)]
pub(crate) struct OnceLock<T> {
    value: std::sync::OnceLock<T>,
    published: AtomicBool,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self { value: std::sync::OnceLock::new(), published: AtomicBool::new(false) }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        if self.published.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let set = self.value.set(value);
        self.published.store(true, Ordering::Release);
        set
    }

    /// In a model, only one thread at a time calls this, so its order is not explored.
    pub(crate) fn get_or_init(&self, init: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(init);
        self.published.store(true, Ordering::Release);
        value
    }
}
