//! The unsafe floor of Octavo.
//!
//! Every operation that could be misused stands behind a safe function that checks its conditions, or behind
//! a type that rules the misuse out. `docs/soundness.md` argues why all of it is sound. Two rules come first:
//!
//! 1. **Bytes that another thread may write are never borrowed as `&[u8]`.** [`ArenaBytes`] copies such bytes
//!    in and out, by relaxed atomics or by string instructions in assembly.
//! 2. **References lead only to atomics, and their memory stays mapped** as long as its owner lives
//!    ([`ZeroedArray`]).
//!
//! | module | what it holds |
//! |---|---|
//! | `reservation` | a range of addresses, reserved once, whose pages come and go |
//! | `zeroed_array` | a reserved array of atomics, zero until written |
//! | `accessed` | the processor's accessed bits of the pages of a process |
//! | `arena_bytes` | copies in and out of memory that others may write, and direct I/O on it |
//! | `words` | plain data of up to 16 bytes, by atomics |
//! | `uring` | transfers between a file and arenas through io_uring |
//! | `fork` | a word that reads zero in a forked child |
//! | `heir` | processes that keep this one's descriptors when it dies |
//! | `inside` | whether a thread is inside the engine, for allocators |
//! | `seccomp` | a filter that forbids system calls to a thread, for tests |
//! | `seccomp_listener` | the system calls of other processes, received and answered |
//! | `kernel_swap` | a switch for the kernel's own swap |
//! | `rseq` | restartable sequences: per-CPU stacks and cells without atomics |
//! | `page_cache` | which pages of a file the kernel has in memory |
//! | `page_crc` | the checksum of a page of the arena |
//! | `plain_memory` | memory paged by the kernel, accessed word by word, for comparisons |
//! | `secret` | a value locked in memory and kept out of core dumps |
//! | `size_limit` | makes the process's limit on file sizes an error, not a signal |
//! | `usage` | the memory and the CPUs that the kernel reports |
//! | `userfaultfd` | the memory of a process, this or another, paged through a descriptor |
//! | `pagemap` | what the kernel knows about each page of a process |
//! | `smaps` | the flags of a process's mappings |
//! | `proc_text` | the text files about a process in `/proc` |
//! | `process_memory` | copies between this process's memory and another's |
//! | `refusal` | the kernel's refusals, in words that name the limit behind them |
//! | `threads` | threads of other processes: signals to them, and their lists of robust mutexes |

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("octavo-platform supports Linux on x86-64 only");

pub mod accessed;
mod arena_bytes;
mod fork;
pub mod heir;
mod inside;
pub mod kernel_swap;
pub mod page_cache;
mod page_crc;
pub mod pagemap;
mod plain_memory;
pub mod proc_text;
pub mod process_memory;
pub mod refusal;
mod reservation;
pub mod rseq;
mod seccomp;
pub mod seccomp_listener;
mod secret;
mod size_limit;
pub mod smaps;
pub mod threads;
pub mod uring;
pub mod usage;
pub mod userfaultfd;
mod words;
mod zeroed_array;

pub use arena_bytes::{ArenaBytes, Direction, TRANSFER_VECTORS};
pub use fork::{ForkCanary, run_in_forked_child};
pub use inside::Inside;
pub use plain_memory::PlainMemory;
pub use reservation::{Backing, Reservation};
pub use seccomp::forbid_io_uring;
pub use secret::Secret;
pub use size_limit::without_size_signal;
pub use words::{Change, Integer, Word, cell_bytes};
pub use zeroed_array::ZeroedArray;

/// The kernel's page size on x86-64, and the size of a frame.
pub const PAGE_BYTES: usize = 4096;
