//! A simulated machine of many CPUs.
//!
//! Code whose atomics, locks and threads are the ones of this crate runs on any [`Machine`], on one real CPU,
//! and the same way each time. Each operation on a shared word pays what its cache line costs there. [`run`]
//! runs it, and its [`Report`] says where the time went.
//!
//! Octavo's engine is such code: its facade over atomics and threads has a face that names this crate
//! (`sync/sim`).
//!
//! | module | what |
//! |---|---|
//! | `machine` | what a machine is, and what each step costs there |
//! | `simulation` | what threads ask of it, one at a time |
//! | `state`, `task` | its CPUs, its threads, and what happens next |
//! | `stopped` | why it stopped before its end |
//! | `explorer` | schedules that are chosen, and not timed: random, by priorities, all of them |
//! | `line` | cache lines, and who waits for them |
//! | [`atomic`], [`lock`], [`thread`] | words, locks and threads, with the standard library's faces |
//! | `profile` | where the time went |
//! | `coroutine` | stacks that stop and go on |
//! | `memory` | an allocator by which a simulation's memory lies at the same places in every run |
//! | `random` | seeded random numbers |
//!
//! **What is not modelled**: the capacity of caches, prefetching, store buffers, the bandwidth of links, weak
//! memory orders, and reference counts of the standard library. Times are simulated times, and each figure
//! made of them is to be called so.
//!
//! Cost: about 0.1 µs of real time for an operation on a shared word.
//!
//! ```
//! use octavo_sim::atomic::{AtomicU64, Ordering};
//! use octavo_sim::{Machine, thread};
//! use std::sync::Arc;
//!
//! let machine = Machine::named("haswell-ep").expect("it comes along");
//! let (sum, report) = octavo_sim::run(&machine, 1, || {
//!     let word = Arc::new(AtomicU64::new(0));
//!     let threads: Vec<_> = (0..72)
//!         .map(|cpu| {
//!             let word = Arc::clone(&word);
//!             let add = move || (0..100).for_each(|_| _ = word.fetch_add(1, Ordering::Relaxed));
//!             thread::Builder::new().cpu(cpu).spawn(add).expect("memory for a stack")
//!         })
//!         .collect();
//!     threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
//!     word.load(Ordering::Relaxed)
//! })?;
//! assert_eq!(sum, 7200);
//! assert!(report.elapsed > 0.0);
//! # Ok::<(), octavo_sim::Stopped>(())
//! ```

pub mod atomic;
mod coroutine;
mod explorer;
mod line;
pub mod lock;
mod machine;
mod memory;
mod profile;
mod random;
mod simulation;
mod state;
mod stopped;
mod task;
pub mod thread;

pub use explorer::{Choice, Schedule, Step, interleaving};
pub use machine::{BadMachine, Costs, MOST_CPUS, Machine, Processors};
pub use memory::{Memory, NoHeap};
pub use profile::{LineReport, PlaceReport, Report};
pub use random::Random;
pub use simulation::{
    Exploration, Explored, current_cpu, explore, explore_all, fill_random, in_section, is_in_section, now,
    possible_cpus, profile, reach_bytes, restart_profile, run, spin_hint, stable_address, work,
};
pub use stopped::{Deadlock, Stopped};
