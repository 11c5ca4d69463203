//! Per-CPU stacks and cells in simulated words, with the layout of the real face: each CPU has lines of its
//! own.
//!
//! During a section, its CPU runs no other thread. A holder on another CPU waits until a running section has
//! ended, like `membarrier`.

use crate::sync::percpu::{Pop, Push, pop_plainly, push_plainly};
use crate::sync::{AtomicU32, AtomicU64, Ordering, WordArray, thread};

use super::current_cpu;

/// Words of 64 bits in a cache line.
const LINE: usize = 8;
/// The number of words of a class's header. It is the same in the real face.
const HEADER: usize = 4;
const LIMIT: usize = 1;
const NET: usize = 2;
const TOP_MASK: u64 = 0xffff;

pub(crate) fn sections_work() -> bool {
    true
}

#[derive(Debug)]
pub(crate) struct Storage {
    capacities: Vec<usize>,
    /// The position of the first slot of each class, among the slots of a CPU.
    firsts: Vec<usize>,
    /// The stop words. Each has a cache line of its own.
    stops: WordArray<AtomicU32>,
    headers: WordArray<AtomicU64>,
    slots: WordArray<AtomicU32>,
    header_words: usize,
    slot_words: usize,
}

impl Storage {
    pub(crate) fn new(cpus: usize, capacities: &[usize]) -> std::io::Result<Self> {
        let header_words = (HEADER * capacities.len()).next_multiple_of(LINE);
        let mut slot_words = 0;
        let mut firsts = Vec::new();
        for capacity in capacities {
            firsts.push(slot_words);
            slot_words = (slot_words + capacity).next_multiple_of(2 * LINE);
        }
        Ok(Self {
            capacities: capacities.into(),
            firsts,
            stops: WordArray::new(cpus * 2 * LINE)?,
            headers: WordArray::new(cpus * header_words.max(1))?,
            slots: WordArray::new(cpus * slot_words.max(1))?,
            header_words,
            slot_words,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.stops) + size_of_val(&*self.headers) + size_of_val(&*self.slots)
    }

    pub(crate) fn capacity(&self, class: usize) -> usize {
        self.capacities[class]
    }

    pub(crate) fn stop(&self, cpu: usize) -> &AtomicU32 {
        &self.stops[cpu * 2 * LINE]
    }

    fn header(&self, cpu: usize, class: usize, word: usize) -> &AtomicU64 {
        &self.headers[cpu * self.header_words + HEADER * class + word]
    }

    pub(crate) fn top(&self, cpu: usize, class: usize) -> usize {
        self.top_and_pops(cpu, class).0
    }

    pub(crate) fn top_and_pops(&self, cpu: usize, class: usize) -> (usize, u64) {
        let word = self.header(cpu, class, 0).load(Ordering::Relaxed);
        ((word & TOP_MASK) as usize, word >> 16)
    }

    pub(crate) fn set_top(&self, cpu: usize, class: usize, top: usize, pops: u64) {
        let header = self.header(cpu, class, 0);
        let before = header.load(Ordering::Relaxed) >> 16;
        header.store((before + pops) << 16 | top as u64, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self, cpu: usize, class: usize) -> usize {
        self.header(cpu, class, LIMIT).load(Ordering::Relaxed) as usize
    }

    pub(crate) fn set_limit(&self, cpu: usize, class: usize, limit: usize) {
        self.header(cpu, class, LIMIT).store(limit as u64, Ordering::Relaxed);
    }

    pub(crate) fn net(&self, cpu: usize, class: usize) -> &AtomicU64 {
        self.header(cpu, class, NET)
    }

    pub(crate) fn slots(&self, cpu: usize, class: usize) -> &[AtomicU32] {
        let first = cpu * self.slot_words + self.firsts[class];
        &self.slots[first..first + self.capacities[class]]
    }

    pub(crate) fn stop_here(&self) -> Option<usize> {
        let cpu = current_cpu() as usize;
        let taken = self.stop(cpu).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.ok().map(|_| cpu)
    }

    pub(crate) fn expel(&self, cpu: usize) -> std::io::Result<()> {
        while octavo_sim::is_in_section(cpu as u32) {
            thread::yield_now();
        }
        Ok(())
    }
}

pub(crate) fn pop_in_section(storage: &Storage, class: usize) -> Pop {
    octavo_sim::in_section(|| {
        let cpu = current_cpu() as usize;
        if storage.stop(cpu).load(Ordering::Acquire) != 0 {
            return Pop::Busy;
        }
        pop_plainly(storage, cpu, class)
    })
}

pub(crate) fn push_in_section(storage: &Storage, class: usize, value: u32) -> Push {
    octavo_sim::in_section(|| {
        let cpu = current_cpu() as usize;
        if storage.stop(cpu).load(Ordering::Acquire) != 0 {
            return Push::Busy;
        }
        push_plainly(storage, cpu, class, value)
    })
}

/// The counters of each CPU. Each CPU has cache lines of its own.
#[derive(Debug)]
pub(crate) struct CellArea {
    cells: WordArray<AtomicU64>,
    stride: usize,
}

impl CellArea {
    pub(crate) fn new(cpus: usize, cells: usize) -> std::io::Result<Self> {
        let stride = cells.next_multiple_of(2 * LINE);
        Ok(Self { cells: WordArray::new(cpus * stride)?, stride })
    }

    /// Adds by a plain addition, like a section.
    pub(crate) fn add_here(&self, index: usize, n: u64) {
        let cell = &self.cells[current_cpu() as usize * self.stride + index];
        octavo_sim::in_section(|| {
            cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed)
        });
    }

    pub(crate) fn sum(&self, index: usize) -> u64 {
        self.cells
            .iter()
            .skip(index)
            .step_by(self.stride)
            .fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }
}
