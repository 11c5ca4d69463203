//! Threads that measure: they start together, each on a CPU of its own.
//!
//! [`steps`] times a number of steps of each thread, and takes the slowest. [`batches`] times each thread for
//! a fixed time, and takes the mean.

use std::cell::Cell;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    static INDEX: Cell<u32> = const { Cell::new(0) };
}

/// Returns the number of the calling worker within its measurement, from 0. If the process may use enough
/// CPUs, this is also the number of the worker's CPU among them.
#[inline]
pub fn index() -> u32 {
    INDEX.get()
}

/// Runs `work` on `threads` threads, each on a CPU of its own, and returns their answers in order. They share
/// the barrier.
fn on_cpus<T: Send>(threads: usize, work: impl Fn(&Barrier, usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(threads);
    let (barrier, work) = (&barrier, &work);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                scope.spawn(move || {
                    INDEX.set(index as u32);
                    stay_on_cpu(index);
                    work(barrier, index)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
    })
}

/// Keeps the calling thread on the `index`-th CPU that it may use. If there are too few, the scheduler
/// chooses.
fn stay_on_cpu(index: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cpu = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).nth(index);
    if let Some(cpu) = cpu {
        let mut only = CpuSet::new();
        only.set(cpu);
        // If the kernel refuses, the figures vary more, but are still correct.
        let _ = sched_setaffinity(None, &only);
    }
}

/// Returns the nanoseconds that a step of the slowest thread took. `work` waits at the barrier, starts its
/// clock, and returns its start and the number of its steps.
pub fn steps(threads: usize, work: impl Fn(&Barrier, usize) -> (Instant, usize) + Sync) -> f64 {
    let each = on_cpus(threads, |barrier, index| {
        let (began, steps) = work(barrier, index);
        began.elapsed().as_nanos() as f64 / steps as f64
    });
    each.into_iter().fold(0.0, f64::max)
}

/// The length of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The part that is timed.
    pub timed: Duration,
    /// The part before it, which is not timed.
    pub warm: Duration,
}

impl Plan {
    /// Plans `millis` timed milliseconds, after a fifth of that to warm up.
    pub fn of_millis(millis: u64) -> Self {
        Self { timed: Duration::from_millis(millis), warm: Duration::from_millis(millis) / 5 }
    }
}

/// The work that one worker repeats.
pub trait Work {
    /// Does a batch of operations and returns their number, or `None` if the side could not continue.
    fn batch(&mut self) -> Option<u64>;
}

/// Returns the mean of the threads' nanoseconds per operation, or `None` if one failed.
///
/// Each worker is timed over whole batches, so it reads the clock once a batch. Before a worker drops its
/// [`Work`], it waits for the other workers. So no worker is timed while another one cleans up.
pub fn batches<W: Work>(threads: usize, plan: Plan, make: impl Fn(usize) -> W + Sync) -> Option<f64> {
    let each = on_cpus(threads, |barrier, index| {
        let mut work = make(index);
        barrier.wait();
        let warm = timed(&mut work, plan.warm);
        barrier.wait();
        let ns = warm.and_then(|_| timed(&mut work, plan.timed));
        barrier.wait();
        ns
    });
    let total: f64 = each.into_iter().sum::<Option<f64>>()?;
    Some(total / threads as f64)
}

fn timed(work: &mut impl Work, length: Duration) -> Option<f64> {
    let begun = Instant::now();
    let mut done = 0;
    loop {
        done += work.batch()?;
        let elapsed = begun.elapsed();
        if elapsed >= length {
            return Some(elapsed.as_nanos() as f64 / done as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sleeps(Option<u64>);

    impl Work for Sleeps {
        fn batch(&mut self) -> Option<u64> {
            thread::sleep(Duration::from_micros(100));
            self.0
        }
    }

    #[test]
    fn the_time_of_a_batch_is_shared_among_its_operations() {
        let ns = batches(2, Plan::of_millis(5), |_| Sleeps(Some(10))).unwrap();
        assert!(ns >= 10_000.0, "{ns} ns");
    }

    #[test]
    fn one_failing_worker_fails_the_measurement() {
        assert_eq!(batches(2, Plan::of_millis(1), |index| Sleeps((index == 0).then_some(1))), None);
    }

    #[test]
    fn the_slowest_thread_counts() {
        let ns = steps(2, |barrier, thread| {
            barrier.wait();
            let began = Instant::now();
            thread::sleep(Duration::from_millis(2 * thread as u64));
            assert_eq!(index() as usize, thread);
            (began, 10)
        });
        assert!(ns >= 200_000.0, "{ns} ns");
    }
}
