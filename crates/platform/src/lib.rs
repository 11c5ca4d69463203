//! The unsafe floor of Octavo.
//!
//! Everything here that can be misused is behind a safe function whose conditions are checked, or a
//! type that makes the misuse impossible; `docs/soundness.md` argues the whole once. Two rules come first:
//!
//! 1. **Bytes that another thread may write are never borrowed as `&[u8]`.** They are read and written by
//!    relaxed atomics or by string instructions in assembly, always as copies ([`ArenaBytes`]).
//! 2. **Memory handed out by reference is only ever atomics, and stays mapped** as long as its owner lives
//!    ([`ZeroedArray`]).
//!
//! | module | what |
//! |---|---|
//! | `reservation` | address space taken once; pages come and go inside it |
//! | `zeroed_array` | a reserved array of atomics, zero until written |
//! | `arena_bytes` | copies in and out of memory that others may write, and direct I/O on it |
//! | `uring` | transfers between a file and arenas through io_uring |
//! | `fork` | a word that reads zero in a forked child |
//! | `seccomp` | system calls forbidden to a thread, for tests |
//! | `kernel_swap` | the kernel's own swap, switched on and off, to compare with |
//! | `rseq` | restartable sequences: per-CPU stacks and cells without atomics |
//! | `page_crc` | the checksum of a page in such memory |
//! | `plain_memory` | the kernel's own memory, word by word, to compare with |
//! | `secret` | a value locked in memory and out of core dumps |
//! | `usage` | what the kernel says this process and machine use |

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("octavo-platform supports Linux on x86-64 only");

mod arena_bytes;
mod fork;
pub mod kernel_swap;
mod page_crc;
mod plain_memory;
mod reservation;
pub mod rseq;
mod seccomp;
mod secret;
pub mod uring;
pub mod usage;
mod zeroed_array;

pub use arena_bytes::{ArenaBytes, Direction, TRANSFER_VECTORS, Word};
pub use fork::{ForkCanary, run_in_forked_child};
pub use plain_memory::PlainMemory;
pub use reservation::{Backing, Reservation};
pub use seccomp::forbid_io_uring;
pub use secret::Secret;
pub use zeroed_array::ZeroedArray;

/// The kernel's page size on x86-64, and the size of a frame.
pub const PAGE_BYTES: usize = 4096;
