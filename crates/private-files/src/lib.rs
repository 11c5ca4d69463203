//! **Private files**: paging for a program whose runner has no privilege, and no userfaultfd.
//!
//! The runner copies a large anonymous range to an unlinked file, and has the file mapped over the range:
//! private, at the same addresses. From then on a page that the program does not store to is page cache. The
//! kernel drops it and reads it again, for system calls and devices as for the program's own loads. A store
//! makes a private copy. The runner *cleans* copies: it writes them to the file, and drops them. No fault
//! ever waits for the runner.
//!
//! ```text
//!   stop k        all processes stand still: the last batch is compared and dropped, the next one is chosen
//!   they run      the chosen pages are copied, written past the page cache, and flushed
//!   stop k + 1    each page that has the bytes that are on disk is dropped (cleaned) or mapped over
//! (converted)
//! ```
//!
//! # Rules
//!
//! `model` has a page with two processes, a device and a failing disk, and shows for each rule which byte is
//! lost without it.
//!
//! | rule | without it |
//! |---|---|
//! | **Compare.** At the stop, a page is dropped only if it has the bytes that were written | a store since
//! the copy is lost, whoever made it: thread, kernel or device |
//! | **Flush.** A page is dropped only after the disk has acknowledged the write and the flush | after a
//! write that failed, the program reads what was on disk before |
//! | **All stop.** Every process of the tree stands still, not the page's own alone | a store by
//! `process_vm_writev` between comparing and dropping is lost |
//! | **Alone.** A block is written only if, at a stop after the page got its copy, no other process maps it |
//! a fork's child that has not stored reads its parent's later store |
//! | **Copy first.** A block is written only while the page has a private copy | the program sees bytes that
//! come and go |
//! | **By value.** What the program says of converted memory (`MADV_DONTNEED`, `mremap` and others) is done
//! by the mapper, and answered | dropped memory shows the file's old bytes instead of zeros |
//! | **No pins.** A process in which a device may write without a call (io_uring, aio, RDMA) is left alone |
//! the device writes to a page that has been replaced |
//! | **Plain memory.** A range with other flags than those of plain memory is left alone | a child reads what
//! `MADV_WIPEONFORK` or `MADV_DONTFORK` keeps from it |
//!
//! **Why a call may go on.** The listener lets the kernel make a call on memory that is not converted. A
//! thread that was let go on is not stopped before its call has ended, and memory is converted only while all
//! threads are stopped. So such a call never meets memory that was converted meanwhile.
//!
//! | module | what it holds |
//! |---|---|
//! | `pages` | the file: which blocks are in use, writing, flushing, giving back |
//! | `mappings` | the mappings of a process, and which may be converted |
//! | `filter`, `asked` | the calls that the program's filter reports, and their answers |
//! | `process` | a process with a mapper |
//! | `stop` | stops the whole tree |
//! | `cleaner` | chooses, copies, writes, compares and drops |
//!
//! **Locking.** The listener's threads and the cleaner share the list of processes, behind a lock that is not
//! held while a process stops or answers. Everything else belongs to the cleaner.
//!
//! **What it does not do.** It decides neither when to clean nor how much: its user does.

mod asked;
mod cleaner;
mod filter;
mod mappings;
#[cfg(test)]
mod model;
mod pages;
mod process;
mod stop;

pub use cleaner::{Cleaner, Figures};
pub use process::Refusal;
