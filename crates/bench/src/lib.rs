//! The parts that Octavo's own benches share: threads on CPUs of their own, a generator, medians.

pub mod jobs;
pub mod latency;
pub mod pages;
pub mod policies;

use std::sync::Barrier;
use std::time::Instant;

/// A small generator, xorshift64*. It gives the same numbers on every run.
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// Draws a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) * n as u64) >> 32) as usize
    }
}

/// Runs `work` on `threads` threads, each on a CPU of its own. Returns the nanoseconds that a step of the
/// slowest thread took. `work` waits at the barrier, starts its clock, and returns its start and the number
/// of its steps.
pub fn timed(threads: usize, work: impl Fn(&Barrier, usize) -> (Instant, usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, work) = (&barrier, &work);
                scope.spawn(move || {
                    let mut cpus = rustix::thread::CpuSet::new();
                    cpus.set(thread);
                    // A refusal only makes the figures noisier.
                    let _ = rustix::thread::sched_setaffinity(None, &cpus);
                    let (began, steps) = work(barrier, thread);
                    began.elapsed().as_nanos() as f64 / steps as f64
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a worker")).fold(0.0, f64::max)
    })
}

/// Writes the median, and the least in brackets. On a machine that others use too, the truth lies between the
/// two.
pub fn summary(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    format!("{:.1} ({:.1})", values[values.len() / 2], values[0])
}

/// Measures all sides in turn, round after round, and prints a row of their summaries.
pub fn row(name: &str, rounds: usize, sides: &mut [(&str, &mut dyn FnMut() -> f64)]) {
    let mut figures = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for ((_, side), figures) in sides.iter_mut().zip(&mut figures) {
            figures.push(side());
        }
    }
    print!("| {name} |");
    figures.into_iter().for_each(|figures| print!(" {} |", summary(figures)));
    println!();
}
