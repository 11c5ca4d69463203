//! Bounded stacks: each CPU has one of each class.
//!
//! | word of a CPU's area | bytes | writer |
//! |---|---|---|
//! | stop: 0 is open, 1 is held by one thread | 0..4 | the thread that takes or releases the CPU |
//! | of class `c`, at `64 + 32 c`: top (16 bits) and pops so far (48 bits) | 0..8 | sections; the holder |
//! | limit | 8..12 | the holder |
//! | values inserted by holders, less values removed by them | 16..24 | the holder |
//! | slots of every class, u32 each | after the headers | sections (below top only by the commit); the holder |

use std::arch::asm;
use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{MEMBARRIER_FLAG_CPU, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, Shape, membarrier};
use crate::{PAGE_BYTES, Reservation};

/// A section returns one word: the outcome in its high half, the value in its low half.
const EMPTY_OR_FULL: u64 = 1 << 32;
const BUSY: u64 = 2 << 32;

/// The outcome of [`StackArea::pop_here`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pop {
    /// The youngest value.
    Value(u32),
    /// The stack is empty.
    Empty,
    /// Another thread holds this CPU's area. The caller must do without the stack.
    Busy,
}

/// The outcome of [`StackArea::push_here`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Push {
    /// The stack has the value.
    Done,
    /// The stack is at its limit.
    Full,
    /// Another thread holds this CPU's area. The caller must do without the stack.
    Busy,
}

/// The place of one class of stacks within a CPU's area.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Class {
    /// The addresses are those for CPU 0. For another CPU, they are higher by `cpu << STRIDE_SHIFT`.
    header: u64,
    slots: u64,
    capacity: u64,
}

/// Bounded stacks of `u32`, one of each class for each CPU, and a stop word for each CPU.
///
/// The sections (`*_here`) of one CPU exclude each other, and the holder of that CPU's stop word excludes
/// them all. The plain accessors are for holders. A misuse of the accessors loses values, but is memory-safe,
/// since bounds always hold.
#[derive(Debug)]
pub struct StackArea {
    shape: Shape,
    /// Entries beyond the requested classes share one header and have no room: each is empty and full at
    /// once.
    classes: [Class; MOST_CLASSES],
    cpus: usize,
    /// The most bytes that one CPU's stacks can use.
    used_bytes: usize,
    memory: Reservation,
}

/// The most classes of one area. A power of two.
const MOST_CLASSES: usize = 16;
/// The width of the top in a header, in bits.
const TOP_BITS: u32 = 16;
const TOP_MASK: u64 = (1 << TOP_BITS) - 1;
/// Each CPU has 256 KiB of address space. Most of it is never touched.
const STRIDE_SHIFT: u32 = 18;
const STRIDE: usize = 1 << STRIDE_SHIFT;
const FIRST_HEADER: usize = 64;
const HEADER_BYTES: usize = 32;
const LIMIT_OFFSET: usize = 8;
const NET_OFFSET: usize = 16;

impl StackArea {
    /// Makes room for stacks of these `capacities` (each below 65536) on each of `cpus` CPUs. Every stack is
    /// empty, and every limit is 0.
    ///
    /// Fails with the kernel's error if the address space is exhausted.
    pub fn new(cpus: usize, capacities: &[usize]) -> io::Result<Self> {
        assert!(cpus > 0 && cpus < 1 << 20, "a sensible number of CPUs");
        assert!(capacities.len() <= MOST_CLASSES, "at most {MOST_CLASSES} classes");
        let roomless = FIRST_HEADER + HEADER_BYTES * capacities.len();
        let mut at = (roomless + HEADER_BYTES).next_multiple_of(64);
        let roomless = Class { header: roomless as u64, slots: at as u64, capacity: 0 };
        let mut classes = [roomless; MOST_CLASSES];
        for (index, &capacity) in capacities.iter().enumerate() {
            assert!(capacity < 1 << TOP_BITS, "a stack's top fits its bits");
            let header = FIRST_HEADER + HEADER_BYTES * index;
            classes[index] = Class { header: header as u64, slots: at as u64, capacity: capacity as u64 };
            at = (at + 4 * capacity).next_multiple_of(64);
        }
        assert!(at <= STRIDE, "a CPU's stacks fit its area");
        let memory = Reservation::new(STRIDE * cpus, PAGE_BYTES)?;
        memory.advise_backing(0..memory.len(), crate::Backing::BasePages);
        let shape = Shape::new(&memory, STRIDE, cpus);
        for class in &mut classes {
            class.header += shape.base;
            class.slots += shape.base;
        }
        Ok(Self { shape, classes, cpus, used_bytes: at.next_multiple_of(PAGE_BYTES), memory })
    }

    /// Returns the most bytes of memory that the stacks can use.
    pub fn bytes(&self) -> usize {
        self.used_bytes * self.cpus
    }

    /// Returns the offsets of a class's header and slots in a CPU's area.
    fn offsets(&self, class: usize) -> (usize, usize) {
        let Class { header, slots, .. } = self.classes[class];
        ((header - self.shape.base) as usize, (slots - self.shape.base) as usize)
    }

    fn at(&self, cpu: usize, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset + bytes <= STRIDE && cpu < self.cpus, "inside a CPU's area");
        // SAFETY: the offset is inside the reservation (just checked).
        unsafe { self.memory.base().as_ptr().add((cpu << STRIDE_SHIFT) + offset) }
    }

    fn word32(&self, cpu: usize, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "word aligned");
        // SAFETY: the word is in bounds (`at`) and aligned, and stays mapped while `self` lives. Only the
        // sections' assembly and atomics access the word, and always with the size that the table at the head
        // of this file gives for its offset.
        unsafe { AtomicU32::from_ptr(self.at(cpu, offset, 4).cast()) }
    }

    fn word64(&self, cpu: usize, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "word aligned");
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.at(cpu, offset, 8).cast()) }
    }

    /// Returns the CPU's stop word. A word other than zero keeps the sections of that CPU out, once the
    /// running ones have left (see `stop_here` and `expel`).
    pub fn stop(&self, cpu: usize) -> &AtomicU32 {
        self.word32(cpu, 0)
    }

    /// Returns the capacity of a class.
    #[inline]
    pub fn capacity(&self, class: usize) -> usize {
        self.classes[class].capacity as usize
    }

    fn header(&self, cpu: usize, class: usize) -> &AtomicU64 {
        self.word64(cpu, self.offsets(class).0)
    }

    /// Returns the number of values on the stack.
    pub fn top(&self, cpu: usize, class: usize) -> usize {
        (self.header(cpu, class).load(Ordering::Relaxed) & TOP_MASK) as usize
    }

    /// Returns the number of values on the stack, and how many values sections have popped so far (48 bits),
    /// at one moment.
    pub fn top_and_pops(&self, cpu: usize, class: usize) -> (usize, u64) {
        let word = self.header(cpu, class).load(Ordering::Relaxed);
        ((word & TOP_MASK) as usize, word >> TOP_BITS)
    }

    /// Sets the number of values on the stack, at most its capacity, and adds `pops` to the count of pops.
    pub fn set_top(&self, cpu: usize, class: usize, top: usize, pops: u64) {
        assert!(top <= self.capacity(class), "top within the capacity");
        let header = self.header(cpu, class);
        let before = header.load(Ordering::Relaxed) >> TOP_BITS;
        header.store((before.wrapping_add(pops) << TOP_BITS) | top as u64, Ordering::Relaxed);
    }

    /// Returns the number of values at which sections stop pushing.
    pub fn limit(&self, cpu: usize, class: usize) -> usize {
        self.word32(cpu, self.offsets(class).0 + LIMIT_OFFSET).load(Ordering::Relaxed) as usize
    }

    /// Sets the limit, at most to the capacity.
    pub fn set_limit(&self, cpu: usize, class: usize, limit: usize) {
        assert!(limit <= self.capacity(class), "limit within the capacity");
        let word = self.word32(cpu, self.offsets(class).0 + LIMIT_OFFSET);
        word.store(limit as u32, Ordering::Relaxed);
    }

    /// Returns the number of values that holders inserted, minus the number of values that they removed,
    /// modulo 2^64.
    pub fn net(&self, cpu: usize, class: usize) -> &AtomicU64 {
        self.word64(cpu, self.offsets(class).0 + NET_OFFSET)
    }

    /// Returns the slots of the stack. Slot 0 is the oldest.
    pub fn slots(&self, cpu: usize, class: usize) -> &[AtomicU32] {
        let capacity = self.capacity(class);
        let first = self.at(cpu, self.offsets(class).1, 4 * capacity).cast::<AtomicU32>();
        // SAFETY: the slots are in bounds (`at`) and aligned (they begin at multiples of 64), and stay mapped
        // while `self` lives. `word32` says who accesses them.
        unsafe { std::slice::from_raw_parts(first, capacity) }
    }

    /// Takes the youngest value of this CPU's stack, without an atomic read-modify-write.
    #[inline]
    pub fn pop_here(&self, class: usize) -> Pop {
        if self.shape.cpus == 0 {
            return Pop::Busy;
        }
        let class: &Class = &self.classes[class % MOST_CLASSES];
        let mut result: u64;
        // SAFETY: the section works on the area of the CPU that it runs on, because the kernel restarts it
        // otherwise.
        // - The thread's rseq area exists at `rseq_offset`: `cpus > 0` only if `Rseq::probe` found it.
        // - The CPU number is checked against `cpus`, so the stop word, header and limit are inside `memory`.
        // - The top is at most the class's capacity (`set_top`, `push_here`) and is checked not to be 0. So
        //   the slot at `top - 1` is inside `memory`.
        // - The only store is the commit, of a header whose top is one smaller: the top stays within the
        //   capacity.
        // - Elsewhere only atomics access the memory that the section touches. The section uses no stack.
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
                "shl {area}, {STRIDE_SHIFT}",
                "mov {header}, qword ptr [{class} + {HEADER}]",
                "mov {slots}, qword ptr [{class} + {SLOTS}]",
                "add {header}, {area}",
                "add {slots}, {area}",
                "add {area}, qword ptr [{shape} + {BASE}]",
                "cmp dword ptr [{area}], 0",
                "jne 6f",
                "mov {area}, qword ptr [{header}]",
                "movzx {value:e}, {area:x}",
                "test {value:e}, {value:e}",
                "jz 7f",
                "mov {value:e}, dword ptr [{slots} + 4 * {value} - 4]",
                "add {area}, 65535",
                "mov qword ptr [{header}], {area}",
                "4:",
                ".pushsection .text.octavo_rseq, \"ax\", @progbits",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                "jmp 2b",
                "6:",
                "movabs {value}, {BUSY}",
                "jmp 4b",
                "7:",
                "movabs {value}, {EMPTY}",
                "jmp 4b",
                ".popsection",
                rseq = in(reg) self.shape.rseq_offset,
                shape = in(reg) &raw const self.shape,
                class = in(reg) std::ptr::from_ref(class),
                area = out(reg) _,
                slots = out(reg) _,
                header = out(reg) _,
                value = out(reg) result,
                CPUS = const offset_of!(Shape, cpus),
                STRIDE_SHIFT = const STRIDE_SHIFT,
                BASE = const offset_of!(Shape, base),
                SLOTS = const offset_of!(Class, slots),
                HEADER = const offset_of!(Class, header),
                BUSY = const BUSY,
                EMPTY = const EMPTY_OR_FULL,
                options(nostack),
            );
        }
        if result < EMPTY_OR_FULL {
            Pop::Value(result as u32)
        } else if result == BUSY {
            Pop::Busy
        } else {
            Pop::Empty
        }
    }

    /// Puts a value on this CPU's stack, without an atomic read-modify-write.
    #[inline]
    pub fn push_here(&self, class: usize, value: u32) -> Push {
        if self.shape.cpus == 0 {
            return Push::Busy;
        }
        let class: &Class = &self.classes[class % MOST_CLASSES];
        let mut result: u64;
        // SAFETY: as in `pop_here`. The index `top` is checked against the limit, which `set_limit` keeps
        // within the capacity. The slot at `top` is above the stack until the commit raises the top by one.
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
                "shl {area}, {STRIDE_SHIFT}",
                "mov {header}, qword ptr [{class} + {HEADER}]",
                "mov {slots}, qword ptr [{class} + {SLOTS}]",
                "add {header}, {area}",
                "add {slots}, {area}",
                "add {area}, qword ptr [{shape} + {BASE}]",
                "cmp dword ptr [{area}], 0",
                "jne 6f",
                "mov {area}, qword ptr [{header}]",
                "movzx {result:e}, {area:x}",
                "cmp {result:e}, dword ptr [{header} + {LIMIT}]",
                "jae 7f",
                "mov dword ptr [{slots} + 4 * {result}], {value:e}",
                "add {area}, 1",
                "mov qword ptr [{header}], {area}",
                "4:",
                ".pushsection .text.octavo_rseq, \"ax\", @progbits",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                "jmp 2b",
                "6:",
                "movabs {result}, {BUSY}",
                "jmp 4b",
                "7:",
                "movabs {result}, {FULL}",
                "jmp 4b",
                ".popsection",
                rseq = in(reg) self.shape.rseq_offset,
                shape = in(reg) &raw const self.shape,
                class = in(reg) std::ptr::from_ref(class),
                value = in(reg) value,
                area = out(reg) _,
                slots = out(reg) _,
                header = out(reg) _,
                result = out(reg) result,
                CPUS = const offset_of!(Shape, cpus),
                STRIDE_SHIFT = const STRIDE_SHIFT,
                BASE = const offset_of!(Shape, base),
                SLOTS = const offset_of!(Class, slots),
                HEADER = const offset_of!(Class, header),
                LIMIT = const LIMIT_OFFSET,
                BUSY = const BUSY,
                FULL = const EMPTY_OR_FULL,
                options(nostack),
            );
        }
        if result < EMPTY_OR_FULL {
            Push::Done
        } else if result == BUSY {
            Push::Busy
        } else {
            Push::Full
        }
    }

    /// Takes the stop word of the CPU that this thread runs on, and returns that CPU. Returns `None` if
    /// another thread holds it.
    ///
    /// Afterwards no section of that CPU is running. The kernel restarts an interrupted section, because this
    /// thread ran on its CPU in between.
    pub fn stop_here(&self) -> Option<usize> {
        if self.shape.cpus == 0 {
            return None;
        }
        let mut taken: u64;
        // SAFETY: as in `pop_here`. The only store is the compare-and-swap of the stop word, which is the
        // commit.
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
                "mov {taken:e}, dword ptr fs:[{rseq} + 4]",
                "cmp {taken}, qword ptr [{shape} + {CPUS}]",
                "jae 6f",
                "mov {area}, {taken}",
                "shl {area}, {STRIDE_SHIFT}",
                "add {area}, qword ptr [{shape} + {BASE}]",
                "xor eax, eax",
                "lock cmpxchg dword ptr [{area}], {one:e}",
                "4:",
                "jne 6f",
                "8:",
                ".pushsection .text.octavo_rseq, \"ax\", @progbits",
                ".byte 0x0f, 0xb9, 0x3d",
                ".long 0x53053053",
                "5:",
                "jmp 2b",
                "6:",
                "movabs {taken}, {BUSY}",
                "jmp 8b",
                ".popsection",
                rseq = in(reg) self.shape.rseq_offset,
                shape = in(reg) &raw const self.shape,
                one = in(reg) 1,
                area = out(reg) _,
                taken = out(reg) taken,
                out("rax") _,
                CPUS = const offset_of!(Shape, cpus),
                STRIDE_SHIFT = const STRIDE_SHIFT,
                BASE = const offset_of!(Shape, base),
                BUSY = const BUSY,
                options(nostack),
            );
        }
        (taken < BUSY).then_some(taken as usize)
    }

    /// Waits until no section that began before this call still runs on `cpu`. Costs about a microsecond.
    ///
    /// Fails with the kernel's error. The state of that CPU is then unknown.
    pub fn expel(&self, cpu: usize) -> io::Result<()> {
        match membarrier(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_FLAG_CPU, cpu as u32) {
            // A CPU that is offline runs nothing. Linux before 5.10 has neither the CPU flag nor this
            // barrier: the probe refused it.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Rseq, current_cpu};
    use super::*;
    use crate::usage;
    use std::sync::atomic::AtomicBool;

    fn area() -> StackArea {
        let area = StackArea::new(usage::possible_cpus(), &[8, 300]).unwrap();
        for cpu in 0..usage::possible_cpus() {
            area.set_limit(cpu, 0, 4);
            area.set_limit(cpu, 1, 300);
        }
        area
    }

    #[test]
    fn a_stack_is_last_in_first_out_and_bounded_by_its_limit() {
        if Rseq::probe().is_none() {
            return;
        }
        let area = area();
        // If the thread migrates in the middle, an answer is unexpected. So the test tries until the thread
        // stays on its CPU.
        for _ in 0..1000 {
            let cpu = current_cpu();
            let results = [area.push_here(1, 7), area.push_here(1, 8)];
            let popped = [area.pop_here(1), area.pop_here(1), area.pop_here(1)];
            if current_cpu() == cpu && popped[2] == Pop::Empty {
                assert_eq!(results, [Push::Done, Push::Done]);
                assert_eq!(popped[..2], [Pop::Value(8), Pop::Value(7)]);
                break;
            }
        }
        let full = (0..1000).any(|value| area.push_here(0, value) == Push::Full);
        assert!(full, "the limit holds");
        assert!((0..usage::possible_cpus()).all(|cpu| area.top(cpu, 0) <= 4));
    }

    #[test]
    fn a_stopped_cpu_answers_busy() {
        if Rseq::probe().is_none() {
            return;
        }
        let area = area();
        let cpus = usage::possible_cpus();
        for cpu in 0..cpus {
            area.stop(cpu).store(1, Ordering::Relaxed);
        }
        assert_eq!(area.pop_here(0), Pop::Busy);
        assert_eq!(area.push_here(0, 1), Push::Busy);
        assert_eq!(area.stop_here(), None);
        for cpu in 0..cpus {
            area.stop(cpu).store(0, Ordering::Release);
        }
        let held = area.stop_here().expect("nobody holds it");
        assert_eq!(area.stop(held).load(Ordering::Relaxed), 1);
    }

    /// Values move between threads on stacks that a third thread keeps draining. No value may be lost or
    /// doubled.
    #[test]
    fn values_survive_preemption_and_remote_drains() {
        if Rseq::probe().is_none() {
            return;
        }
        const VALUES: u32 = 200;
        let area = area();
        let cpus = usage::possible_cpus();
        let over = AtomicBool::new(false);
        let mut held: Vec<u32> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4u32)
                .map(|worker| {
                    let (area, over) = (&area, &over);
                    scope.spawn(move || {
                        let mut held: Vec<u32> = (0..VALUES / 4).map(|i| worker * (VALUES / 4) + i).collect();
                        while !over.load(Ordering::Relaxed) {
                            for _ in 0..100 {
                                if let Some(&value) = held.last()
                                    && area.push_here(1, value) == Push::Done
                                {
                                    held.pop();
                                }
                                if let Pop::Value(value) = area.pop_here(1) {
                                    held.push(value);
                                }
                            }
                        }
                        held
                    })
                })
                .collect();
            let mut drained = Vec::new();
            // The time is enough for hundreds of preemptions: a section takes a few nanoseconds, and the tick
            // comes every few milliseconds.
            let began = std::time::Instant::now();
            for round in 0.. {
                if began.elapsed().as_millis() > 1500 {
                    break;
                }
                let cpu = round % cpus;
                if area.stop(cpu).compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                    continue;
                }
                area.expel(cpu).unwrap();
                // This thread takes all values and gives them all back, so that the slots pass through it.
                let top = area.top(cpu, 1);
                drained.extend(area.slots(cpu, 1)[..top].iter().map(|slot| slot.load(Ordering::Relaxed)));
                area.set_top(cpu, 1, 0, 0);
                for (index, value) in drained.drain(..).rev().enumerate() {
                    area.slots(cpu, 1)[index].store(value, Ordering::Relaxed);
                }
                area.set_top(cpu, 1, top, 0);
                area.stop(cpu).store(0, Ordering::Release);
            }
            over.store(true, Ordering::Relaxed);
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        for cpu in 0..cpus {
            let slots = &area.slots(cpu, 1)[..area.top(cpu, 1)];
            held.extend(slots.iter().map(|slot| slot.load(Ordering::Relaxed)));
        }
        held.sort_unstable();
        assert_eq!(held, (0..VALUES).collect::<Vec<_>>());
    }
}
