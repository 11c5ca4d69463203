//! A **mover**: a process that shares the memory of a running, unmodified program, and makes a few system
//! calls there for another process, the runner.
//!
//! The runner pages the program's memory from outside, by userfaultfd. Two things are impossible from
//! outside. A userfaultfd belongs to the memory of the task that makes it. And the kernel moves pages
//! (`UFFDIO_MOVE`) only for a task that runs in that memory. So a runner that needs such a task puts one
//! there: the mover.
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
//! - [`Mover::inject`] stops one thread of the program by ptrace, for the time of one `clone`. All further
//!   preparations happen in the new process. The program may be static, of another user, or stopped.
//! - [`Mover::call`] makes a batch of system calls. [`Mover::move_out`] takes pages out of the program.
//! - [`Still::hold`] stops the whole program, while the mover makes changes that the program must not see.
//! - [`Mover::end`] ends the process. It leaves its address range (untouched, without pages) in the program.
//!
//! A [`Mapper`] is a second kind of such a process: it needs no userfaultfd, and maps a file of the runner's.
//!
//! **What the program sees.** The mover is a process of its own, with neither the program's descriptors nor
//! its signals. The program's `wait` does not see it without `__WALL`. The program's number of threads stays
//! the same. If the stopped thread was waiting in a call, it continues to wait (`resume.rs` names the
//! exceptions).
//!
//! **What the mover may do.** It has no capabilities, and a filter leaves it `futex`, `ioctl`, `madvise`,
//! `mprotect`, `poll` and the calls that end it. The program could write into the page of requests, but could
//! make the mover do nothing that it may not do itself.
//!
//! **Who ends it.** The mover keeps the memory alive after the program has ended or run `execve`. The runner
//! watches the program and ends the mover. After each second without a request, the mover itself checks
//! whether runner and program live, and ends if one of them has ended. The mover does not notice an `execve`.
//! If the runner is the program's parent, the mover is a child of the runner and [`Mover::end`] reaps it.
//! Otherwise it is a child of the program, and stays a zombie until the program ends. A runner that is a
//! sub-reaper then gets it by `waitpid(-1, __WALL)`.
//!
//! **Waiting for children.** While [`Mover::inject`] runs, no other thread of the runner may wait for *any*
//! child without `__WNOTHREAD`: it would take the stops that the injection waits for.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("octavo-stub supports Linux on x86-64 only");

mod code;
mod confine;
mod error;
mod helper;
mod inject;
mod layout;
mod listen;
mod mailbox;
mod mapper;
mod message;
mod mover;
mod moves;
mod prepare;
mod reasons;
mod resume;
mod rights;
mod stacks;
mod still;
mod target;
mod tracee;

pub use error::{InjectError, InjectErrorKind, MoverError};
pub use inject::Injected;
pub use layout::OutgoingRun;
pub use mailbox::{CALLS, Call, UNREPORTED};
pub use mapper::{Interrupted, MAPPER_NAME, Mapper};
pub use message::Message;
pub use mover::Mover;
pub use moves::{Moved, RunMoved, Staging};
pub use prepare::Inherited;
pub use reasons::REASONS;
pub use rights::{look_for_rights, look_for_tracing, look_for_userfaultfd, may_trace};
pub use stacks::stack_pointers;
pub use still::Still;
pub use target::is_traced;
