//! The model-checked face: loom explores every order the memory model allows.

pub(crate) use std::sync::OnceLock;

pub(crate) use loom::sync::Arc;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub(crate) use loom::thread;

/// A boxed array: models are small.
#[derive(Debug)]
pub(crate) struct WordArray<T>(Box<[T]>);

impl<T: Default> WordArray<T> {
    pub(crate) fn new(len: usize) -> std::io::Result<Self> {
        Ok(Self((0..len).map(|_| T::default()).collect()))
    }

    pub(crate) fn wiped_on_fork(len: usize) -> std::io::Result<Self> {
        Self::new(len)
    }

    pub(crate) fn populate(&self, _elements: std::ops::Range<usize>) -> std::io::Result<()> {
        Ok(())
    }
}

impl<T> std::ops::Deref for WordArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// loom's mutex with parking_lot's face: a model that panics ends, so poison never matters.
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

/// loom's reader-writer lock with parking_lot's face.
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

/// Hint that this thread spins: lets another run.
pub(crate) fn spin_hint() {
    loom::thread::yield_now();
}
