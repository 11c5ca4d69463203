//! A **mover**: a process that shares the memory of a running, unmodified program, and makes a few system
//! calls there on the orders of another process, the runner.
//!
//! The runner pages the program's memory from outside, by userfaultfd. Two things cannot be done from
//! outside. A userfaultfd belongs to the memory of the task that makes it. And the kernel moves pages
//! (`UFFDIO_MOVE`) only for a task that has the memory as its own. So the runner puts a task there, when it
//! needs one.
//!
//! ```text
//!    runner                         the program's memory
//!   ┌───────────────┐   page of    ┌──────────────────────────────┐
//!   │ Mover ────────┼── requests ──┼─▶ mover: waits, calls, answers│
//!   │ descriptors A,│              │   staging 1 (A), staging 2 (B)│
//!   │ B             │              │ program's own threads         │
//!   └───────────────┘              └──────────────────────────────┘
//! ```
//!
//! - [`Mover::inject`] stops one thread of the program for the time of one `clone`, by ptrace. All further
//!   preparations happen in the new process. The program may be static, of another user, or stopped.
//! - [`Mover::call`] makes a batch of system calls. [`Mover::move_out`] takes pages out of the program.
//! - [`Still::hold`] has the program stand still, while the mover changes what the program may not see.
//! - [`Mover::end`] ends the process. It leaves its address range (untouched, without pages) in the program.
//!
//! **What the program sees.** The mover is a process of its own, with neither the program's descriptors nor
//! its signals. The program's `wait` does not see it without `__WALL`. The program's number of threads stays.
//! A call that was waiting in the stopped thread goes on waiting (`resume.rs` names the exceptions).
//!
//! **What the mover may do.** It has no capabilities, and a filter leaves it `futex`, `ioctl`, `madvise`,
//! `mprotect`, `poll` and its end. The program could write into the page of requests, and would gain nothing
//! that it may not do itself.
//!
//! **Who ends it.** The mover keeps the memory alive after the program ended or ran `execve`. The runner
//! watches the program and ends the mover. Once a second the mover itself looks whether runner and program
//! live, and ends with either; an `execve` it does not see. Where the runner is the program's parent, the
//! mover is a child of the runner and is reaped by [`Mover::end`]. Elsewhere it is a child of the program,
//! and stays a zombie until the program ends. A runner that is a sub-reaper then gets it by `waitpid(-1,
//! __WALL)`.
//!
//! **Waiting for children.** While [`Mover::inject`] runs, no other thread of the runner may wait for *any*
//! child without `__WNOTHREAD`: it would take the stops that the injection waits for.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("octavo-stub supports Linux on x86-64 only");

mod code;
mod confine;
mod error;
mod inject;
mod layout;
mod mailbox;
mod message;
mod mover;
mod moves;
mod prepare;
mod reasons;
mod resume;
mod rights;
mod still;
mod target;
mod tracee;

pub use error::{InjectError, InjectErrorKind, MoverError};
pub use inject::Injected;
pub use layout::Run;
pub use mailbox::{CALLS, Call};
pub use message::Message;
pub use mover::Mover;
pub use moves::{Moved, RunMoved, Staging};
pub use prepare::Inherited;
pub use reasons::REASONS;
pub use rights::look_for_rights;
pub use still::Still;
pub use target::is_traced;
