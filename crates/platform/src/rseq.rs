//! Restartable sequences: a few instructions that the kernel restarts when it preempts, migrates or
//! interrupts their thread. So a plain store at their end is atomic against every other thread on this CPU.
//!
//! glibc registers the per-thread area (since 2.35). The probe finds the place of the area at run time, by
//! `__rseq_offset` and `__rseq_size`. So programs also start on older systems, and use the fallbacks there.
//!
//! Every section below has one shape: it announces its descriptor, reads the CPU number *inside* the section,
//! computes, and **commits by its last instruction**. An abort jumps to the announcement and starts over.
//! Stores made before the commit stay invisible, since they go to slots above a stack's top.
//!
//! After a section has ended, the thread's area may still point at the section's descriptor. So code that
//! holds a descriptor must not be unloaded (`dlclose`) while its threads live.

use std::arch::asm;
use std::io;
use std::sync::OnceLock;

use crate::{Reservation, usage};

mod cells;
mod stacks;

pub use cells::CellArea;
pub use stacks::{Pop, Push, StackArea};

/// The place of each thread's rseq area, relative to the thread pointer. A value exists only if sections
/// work.
#[derive(Clone, Copy, Debug)]
pub struct Rseq {
    offset: isize,
}

const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 8;
const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: libc::c_int = 1 << 7;
const MEMBARRIER_FLAG_CPU: libc::c_uint = 1;
/// In its first version, the kernel's structure ends after `flags`.
const SMALLEST_AREA_BYTES: u32 = 20;

impl Rseq {
    /// Finds glibc's registration, and registers the process for `membarrier`. Returns `None` if either is
    /// missing. The probe runs once.
    pub fn probe() -> Option<Self> {
        static PROBED: OnceLock<Option<Rseq>> = OnceLock::new();
        *PROBED.get_or_init(|| {
            // SAFETY: `dlsym` gets a constant, terminated name. If the symbols exist, they are glibc's
            // constants of exactly these types (<sys/rseq.h>), initialised before `main`.
            let (offset, size) = unsafe {
                let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
                let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
                if offset.is_null() || size.is_null() {
                    return None;
                }
                (offset.read(), size.read())
            };
            if size < SMALLEST_AREA_BYTES {
                return None;
            }
            let rseq = Rseq { offset };
            // A negative number, which is huge as a u32, means "not registered".
            if rseq.cpu() as usize >= usage::possible_cpus() {
                return None;
            }
            membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0).ok()?;
            Some(rseq)
        })
    }

    /// Returns the CPU that this thread runs on at the moment of the load.
    #[inline]
    pub fn cpu(self) -> u32 {
        let cpu;
        // SAFETY: `Rseq` exists only if glibc registered an area of at least 20 bytes for every thread, at
        // this offset from the thread pointer. A read of `cpu_id` (byte 4) touches nothing else.
        unsafe {
            asm!("mov {cpu:e}, dword ptr fs:[{offset} + 4]", cpu = lateout(reg) cpu, offset = in(reg) self.offset,
                options(nostack, preserves_flags, readonly));
        }
        cpu
    }
}

/// Returns the CPU that this thread runs on, by the cheapest available way, or 0 if it is unknown.
#[inline]
pub fn current_cpu() -> u32 {
    match Rseq::probe() {
        Some(rseq) => rseq.cpu(),
        // SAFETY: the call takes no arguments and touches no memory.
        None => u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0),
    }
}

fn membarrier(command: libc::c_int, flags: libc::c_uint, cpu: u32) -> io::Result<()> {
    // SAFETY: membarrier reads and writes no user memory.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, command, flags, cpu) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The fields of an area that a section reads. They are the same for every CPU.
#[derive(Debug)]
#[repr(C)]
struct Shape {
    base: u64,
    stride: u64,
    rseq_offset: i64,
    cpus: u64,
}

impl Shape {
    /// If sections do not work, `cpus` is 0. No CPU number is below 0, so each section then refuses to run.
    fn new(memory: &Reservation, stride: usize, cpus: usize) -> Self {
        let rseq = Rseq::probe();
        Self {
            base: memory.base().as_ptr().expose_provenance() as u64,
            stride: stride as u64,
            rseq_offset: rseq.map_or(0, |rseq| rseq.offset as i64),
            cpus: if rseq.is_some() { cpus as u64 } else { 0 },
        }
    }
}
