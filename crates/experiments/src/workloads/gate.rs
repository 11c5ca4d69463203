//! Runs tasks that begin together, and end together in the profile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::{AtomicU64, Profile, begin, end, now, rest, spawn_on};

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunResult<T> {
    /// What each task returned.
    pub tasks: Vec<T>,
    /// From the opening of the gate to the end of the last task, including its cleanup.
    pub elapsed: Duration,
    /// How the time was spent from the opening of the gate until each task had done its work, before cleanup.
    #[allow(dead_code, reason = "only simulated runs have one")]
    pub profile: Profile,
}

/// Runs `work` once for each of `things`, each on a CPU of its own, all from the same moment. `work` returns
/// a second value for the cleanup: each task drops it when all tasks have done their work.
pub(crate) fn all_at_once<S: Send + 'static, T: Send + 'static, L: 'static>(
    things: Vec<S>,
    work: impl Fn(usize, S) -> (T, L) + Send + Sync + 'static,
) -> RunResult<T> {
    all_at_once_after(things, |_, _| {}, work)
}

/// Like [`all_at_once`], but each task prepares its thing first. The gate opens when all tasks have prepared
/// theirs.
pub(crate) fn all_at_once_after<S: Send + 'static, T: Send + 'static, L: 'static>(
    things: Vec<S>,
    prepare: impl Fn(usize, &S) + Send + Sync + 'static,
    work: impl Fn(usize, S) -> (T, L) + Send + Sync + 'static,
) -> RunResult<T> {
    let prepare = Arc::new(prepare);
    let count = things.len() as u64;
    let (work, ready, gate, done) = (Arc::new(work), counter(), counter(), counter());
    let tasks: Vec<_> = things
        .into_iter()
        .enumerate()
        .map(|(number, thing)| {
            let (work, ready) = (Arc::clone(&work), Arc::clone(&ready));
            let prepare = Arc::clone(&prepare);
            let (gate, done) = (Arc::clone(&gate), Arc::clone(&done));
            let body = move || {
                prepare(number, &thing);
                ready.fetch_add(1, Ordering::AcqRel);
                wait_for(&gate, 1);
                let (result, left) = work(number, thing);
                done.fetch_add(1, Ordering::AcqRel);
                wait_for(&gate, 2);
                drop(left);
                (result, now())
            };
            spawn_on(number, body).expect("memory for a thread's stack")
        })
        .collect();
    wait_for(&ready, count);
    begin();
    let began = now();
    gate.store(1, Ordering::Release);
    wait_for(&done, count);
    let profile = end();
    gate.store(2, Ordering::Release);
    let (tasks, ends): (Vec<T>, Vec<Duration>) =
        tasks.into_iter().map(|task| task.join().expect("a task does not panic")).unzip();
    let elapsed = ends.into_iter().max().unwrap_or_default().saturating_sub(began);
    RunResult { tasks, elapsed, profile }
}

fn counter() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(0))
}

fn wait_for(word: &AtomicU64, least: u64) {
    while word.load(Ordering::Acquire) < least {
        rest();
    }
}
