//! Keeps the engine's threads off the CPUs of drivers that run beside a thread.
//!
//! Such a driver runs only while no other thread needs its CPU, so the kernel regards the CPU as idle. The
//! kernel would move the engine's own threads to this CPU, and the fault that the driver serves would wait
//! for them.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The name of the drivers, whose CPUs are not changed.
const DRIVER: &[u8] = b"octavo-serve";
/// The prefix of the names of the engine's threads.
const ENGINE: &[u8] = b"octavo-";

/// The CPUs on which the engine's threads may run.
#[derive(Debug)]
pub(crate) struct Affinity {
    all: CpuSet,
    taken: CpuSet,
    looks: u32,
}

/// How many calls pass until threads are listed again, since the engine may have started new ones.
const LOOK_AGAIN: u32 = 64;

impl Affinity {
    pub(crate) fn new() -> Self {
        Self { all: sched_getaffinity(None).unwrap_or_default(), taken: CpuSet::new(), looks: 0 }
    }

    /// Keeps the engine's threads off these CPUs from now on, if other CPUs are left for them.
    pub(crate) fn keep_off(&mut self, cpus: impl Iterator<Item = usize>) {
        let mut taken = CpuSet::new();
        cpus.filter(|cpu| *cpu < CpuSet::MAX_CPU).for_each(|cpu| taken.set(cpu));
        self.looks = self.looks.wrapping_add(1);
        let may_lack = taken.count() > 0 && self.looks.is_multiple_of(LOOK_AGAIN);
        if taken == self.taken && !may_lack {
            return;
        }
        self.taken = taken;
        let mut left = self.all;
        (0..CpuSet::MAX_CPU).filter(|cpu| taken.is_set(*cpu)).for_each(|cpu| left.unset(cpu));
        let may_use = if left.count() > 0 { left } else { self.all };
        for thread in engine_threads() {
            // An error means that the thread has ended.
            let _ = sched_setaffinity(Some(thread), &may_use);
        }
    }
}

/// Returns the engine's threads, except drivers.
fn engine_threads() -> impl Iterator<Item = Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(|task| {
        let thread = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read(task.path().join("comm")).ok()?;
        let is_engine = name.starts_with(ENGINE) && !name.starts_with(DRIVER);
        Pid::from_raw(thread).filter(|_| is_engine)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_the_engine_keep_off_and_others_do_not() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let (say, said) = std::sync::mpsc::channel();
        let start = |name: &str, told: std::sync::mpsc::Receiver<()>| {
            let say = say.clone();
            let body = move || {
                say.send(rustix::thread::gettid()).unwrap();
                let _ = told.recv();
            };
            std::thread::Builder::new().name(name.into()).spawn(body).unwrap()
        };
        let (tell_driver, told_driver) = std::sync::mpsc::channel::<()>();
        let engine = start("octavo-background", told);
        let engine_thread = said.recv().unwrap();
        let driver = start("octavo-serve", told_driver);
        let driver_thread = said.recv().unwrap();
        let allowed = |thread| sched_getaffinity(Some(thread)).unwrap();

        let mut affinity = Affinity::new();
        let all = affinity.all;
        let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        affinity.keep_off([first].into_iter());
        // A thread that started after the call has its old affinity at first.
        sched_setaffinity(Some(engine_thread), &all).unwrap();
        (0..LOOK_AGAIN).for_each(|_| affinity.keep_off([first].into_iter()));
        // If there is only one CPU, the threads stay on it.
        assert_eq!(allowed(engine_thread).is_set(first), all.count() == 1);
        assert_eq!(allowed(driver_thread), all);
        affinity.keep_off((0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)));
        assert_eq!(allowed(engine_thread), all, "no CPU is left");
        affinity.keep_off(std::iter::empty());
        assert_eq!(allowed(engine_thread), all);
        drop((tell, tell_driver));
        engine.join().unwrap();
        driver.join().unwrap();
    }
}
