//! Storage of modelled atomics. In a model, a section is a critical section of its CPU's mutex. This is
//! correct because the sections of one CPU exclude each other: an interrupted section starts again, so it has
//! had no effect. `expel` takes and drops the mutex, so that all sections that had begun have ended.

use std::cell::Cell;

use loom::thread_local;

use crate::sync::percpu::{Pop, Push, pop_plainly, push_plainly};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, WordArray};

thread_local! {
    static CPU: Cell<u32> = Cell::new(0);
}

/// Returns the CPU on which this modelled thread was put.
pub(crate) fn current_cpu() -> u32 {
    CPU.with(Cell::get)
}

/// Puts this modelled thread on a CPU.
#[cfg(test)]
pub(crate) fn run_on(cpu: u32) {
    CPU.with(|cell| cell.set(cpu));
}

pub(crate) fn sections_work() -> bool {
    true
}

#[derive(Debug)]
pub(crate) struct Storage {
    capacities: Vec<usize>,
    cpus: Vec<Cpu>,
}

#[derive(Debug)]
struct Cpu {
    section: Mutex<()>,
    stop: AtomicU32,
    classes: Vec<Class>,
}

#[derive(Debug)]
struct Class {
    header: AtomicU64,
    limit: AtomicU32,
    net: AtomicU64,
    slots: WordArray<AtomicU32>,
}

impl Storage {
    pub(crate) fn new(cpus: usize, capacities: &[usize]) -> std::io::Result<Self> {
        let class = |&capacity: &usize| Class {
            header: AtomicU64::new(0),
            limit: AtomicU32::new(0),
            net: AtomicU64::new(0),
            slots: WordArray::new(capacity).unwrap(),
        };
        let cpu = |_| Cpu {
            section: Mutex::new(()),
            stop: AtomicU32::new(0),
            classes: capacities.iter().map(class).collect(),
        };
        Ok(Self { capacities: capacities.into(), cpus: (0..cpus).map(cpu).collect() })
    }

    pub(crate) fn bytes(&self) -> usize {
        0
    }

    pub(crate) fn capacity(&self, class: usize) -> usize {
        self.capacities[class]
    }

    pub(crate) fn stop(&self, cpu: usize) -> &AtomicU32 {
        &self.cpus[cpu].stop
    }

    pub(crate) fn top(&self, cpu: usize, class: usize) -> usize {
        self.top_and_pops(cpu, class).0
    }

    pub(crate) fn top_and_pops(&self, cpu: usize, class: usize) -> (usize, u64) {
        let word = self.cpus[cpu].classes[class].header.load(Ordering::Relaxed);
        ((word & 0xffff) as usize, word >> 16)
    }

    pub(crate) fn set_top(&self, cpu: usize, class: usize, top: usize, pops: u64) {
        let header = &self.cpus[cpu].classes[class].header;
        let before = header.load(Ordering::Relaxed) >> 16;
        header.store((before + pops) << 16 | top as u64, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self, cpu: usize, class: usize) -> usize {
        self.cpus[cpu].classes[class].limit.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set_limit(&self, cpu: usize, class: usize, limit: usize) {
        self.cpus[cpu].classes[class].limit.store(limit as u32, Ordering::Relaxed);
    }

    pub(crate) fn net(&self, cpu: usize, class: usize) -> &AtomicU64 {
        &self.cpus[cpu].classes[class].net
    }

    pub(crate) fn slots(&self, cpu: usize, class: usize) -> &[AtomicU32] {
        &self.cpus[cpu].classes[class].slots
    }

    pub(crate) fn stop_here(&self) -> Option<usize> {
        let cpu = current_cpu() as usize;
        let _section = self.cpus[cpu].section.lock();
        let word = &self.cpus[cpu].stop;
        word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| cpu)
    }

    pub(crate) fn expel(&self, cpu: usize) -> std::io::Result<()> {
        drop(self.cpus[cpu].section.lock());
        Ok(())
    }
}

pub(crate) fn pop_in_section(storage: &Storage, class: usize) -> Pop {
    let cpu = current_cpu() as usize;
    let _section = storage.cpus[cpu].section.lock();
    if storage.stop(cpu).load(Ordering::Acquire) != 0 {
        return Pop::Busy;
    }
    pop_plainly(storage, cpu, class)
}

pub(crate) fn push_in_section(storage: &Storage, class: usize, value: u32) -> Push {
    let cpu = current_cpu() as usize;
    let _section = storage.cpus[cpu].section.lock();
    if storage.stop(cpu).load(Ordering::Acquire) != 0 {
        return Push::Busy;
    }
    push_plainly(storage, cpu, class, value)
}

/// Models have no cells. Cells order nothing, and would only multiply the orders to explore.
#[derive(Debug)]
pub(crate) struct CellArea;

impl CellArea {
    pub(crate) fn new(_cpus: usize, _cells: usize) -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn add_here(&self, _index: usize, _n: u64) {}

    pub(crate) fn sum(&self, _index: usize) -> u64 {
        0
    }
}
