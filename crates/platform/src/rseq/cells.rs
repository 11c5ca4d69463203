//! Counters with a copy for each CPU.

use std::arch::asm;
use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Shape, current_cpu};
use crate::{PAGE_BYTES, Reservation};

/// Cells of `u64`. Each CPU has its own cells, and a thread adds to the cells of the CPU that it runs on.
#[derive(Debug)]
pub struct CellArea {
    shape: Shape,
    cells: usize,
    memory: Reservation,
}

impl CellArea {
    /// Makes room for `cells` cells on each of `cpus` CPUs, all 0.
    ///
    /// Fails with the kernel's error if the address space is exhausted.
    pub fn new(cpus: usize, cells: usize) -> io::Result<Self> {
        assert!(cpus > 0 && cells > 0, "at least one cell");
        let stride = (cells * 8).next_multiple_of(128);
        let memory = Reservation::new(stride * cpus, PAGE_BYTES)?;
        memory.advise_backing(0..memory.len(), crate::Backing::BasePages);
        let shape = Shape::new(&memory, stride, cpus);
        Ok(Self { shape, cells, memory })
    }

    fn cell(&self, cpu: usize, index: usize) -> &AtomicU64 {
        let stride = self.shape.stride as usize;
        assert!(index < self.cells && cpu < self.cpus(), "cell inside the area");
        // SAFETY: the cell is in bounds (checked) and aligned (the stride is a multiple of 128). It stays
        // mapped while `self` lives. Only atomics of this size and the section's single addition access it.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(cpu * stride + index * 8).cast()) }
    }

    fn cpus(&self) -> usize {
        self.memory.len() / self.shape.stride as usize
    }

    /// Adds to a cell of this CPU: by a plain addition in a section if sections work, otherwise by an atomic
    /// addition.
    #[inline]
    pub fn add_here(&self, index: usize, n: u64) {
        assert!(index < self.cells, "cell inside the area");
        if self.shape.cpus == 0 {
            self.cell(current_cpu() as usize % self.cpus(), index).fetch_add(n, Ordering::Relaxed);
            return;
        }
        let mut outside: u64;
        // SAFETY: as in `StackArea::pop_here`. The CPU number is checked against `cpus` and the index against
        // `cells`, so the cell is inside `memory`. The addition to memory is one instruction, and is the
        // commit. On this CPU, nothing comes between its load and its store, and no other CPU writes this
        // cell.
        unsafe {
            asm!(
                ".pushsection __rseq_cs, \"aw\", @progbits",
                ".balign 32",
                "9:",
                ".long 0, 0",
                ".quad 3f, 4f - 3f, 5f",
                ".popsection",
                "2:",
                "lea {area}, [rip + 9b]",
                "mov qword ptr fs:[{rseq} + 8], {area}",
                "3:",
                "mov {area:e}, dword ptr fs:[{rseq} + 4]",
                "cmp {area}, qword ptr [{shape} + {CPUS}]",
                "jae 6f",
                "imul {area}, qword ptr [{shape} + {STRIDE}]",
                "add {area}, qword ptr [{shape} + {BASE}]",
                "add qword ptr [{area} + 8 * {index}], {n}",
                "4:",
                ".pushsection .text.octavo_rseq, \"ax\", @progbits",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                "jmp 2b",
                "6:",
                "xor {area:e}, {area:e}",
                "jmp 4b",
                ".popsection",
                rseq = in(reg) self.shape.rseq_offset,
                shape = in(reg) &raw const self.shape,
                index = in(reg) index,
                n = in(reg) n,
                area = out(reg) outside,
                CPUS = const offset_of!(Shape, cpus),
                STRIDE = const offset_of!(Shape, stride),
                BASE = const offset_of!(Shape, base),
                options(nostack),
            );
        }
        assert!(
            outside != 0,
            "the kernel keeps CPU numbers below its possible count, and threads registered"
        );
    }

    /// Returns a cell's sum over all CPUs.
    pub fn sum(&self, index: usize) -> u64 {
        (0..self.cpus()).fold(0, |sum, cpu| sum.wrapping_add(self.cell(cpu, index).load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage;

    #[test]
    fn cells_add_up() {
        let cells = CellArea::new(usage::possible_cpus(), 3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100_000).for_each(|_| cells.add_here(1, 2)));
            }
        });
        assert_eq!((cells.sum(0), cells.sum(1), cells.sum(2)), (0, 800_000, 0));
    }
}
