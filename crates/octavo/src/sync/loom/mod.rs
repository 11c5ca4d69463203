//! The model-checked face: loom explores every order the memory model allows.

mod locks;
mod machine;
pub(super) mod percpu;
mod threads;

pub(crate) use loom::sync::Arc;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

pub(crate) use locks::{Condvar, Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub(crate) use machine::reach_bytes;
pub(super) use machine::{current_cpu, fill_random, memory, possible_cpus, stable_address, time};
pub(super) use threads::with_kept_waker;
pub(crate) use threads::{catch_panic, park_for, pause, spin_hint, thread, with_own_words};

/// Explores a model with at most `preemptions` preemptions of threads that could continue. There are too many
/// orders to explore all of them, and few preemptions are enough to find most bugs.
#[cfg(test)]
pub(crate) fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

/// A boxed array is enough, since models are small.
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
