//! A simulated machine of many CPUs.
//!
//! Code that uses this crate's atomics, locks and threads runs on any [`MachineModel`], on one real CPU, and
//! runs in the same way each time. Each operation on a shared word costs what its cache line costs on that
//! machine. [`run`] runs the code, and its [`Report`] says where the time went.
//!
//! Octavo's engine is such code: its facade over atomics and threads has a face for this crate (`sync/sim`).
//!
//! | module | what |
//! |---|---|
//! | `machine` | what a machine is, and what each step costs there |
//! | `simulation` | what threads ask of a machine, one at a time |
//! | `state`, `task` | its CPUs, its threads, and what happens next |
//! | `stopped` | why a simulation stopped before its end |
//! | `explorer` | schedules that are chosen, not timed: random, by priorities, all of them |
//! | `line` | cache lines, and who waits for them |
//! | [`atomic`], [`lock`], [`thread`] | words, locks and threads, with the standard library's interfaces |
//! | `profile` | where the time went |
//! | `coroutine` | functions that stop anywhere and continue later |
//! | `memory` | an allocator that gives a simulation's memory the same places in every run |
//! | `random` | seeded random numbers |
//!
//! **What is not modelled**: the capacity of caches, prefetching, store buffers, the bandwidth of links, weak
//! memory orders, and reference counts of the standard library. Times are simulated times. Wherever you show
//! a figure that is made of them, say that it is simulated.
//!
//! Cost: about 0.1 µs of real time for an operation on a shared word.
//!
//! ```
//! use octavo_sim::atomic::{AtomicU64, Ordering};
//! use octavo_sim::{MachineModel, thread};
//! use std::sync::Arc;
//!
//! let machine = MachineModel::named("haswell-ep").expect("it comes along");
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

pub use explorer::{Schedule, Step, ThreadChoice, interleaving};
pub use machine::{BadMachine, Costs, MOST_CPUS, MachineModel, Processors};
pub use memory::{NoHeap, SimAllocator};
pub use profile::{LineReport, PlaceReport, Report};
pub use random::Random;
pub use simulation::{
    Exploration, Explored, current_cpu, explore, explore_all, fill_random, in_section, is_in_section, now,
    possible_cpus, profile, reach_bytes, restart_profile, run, spin_hint, stable_address, work,
};
pub use stopped::{Deadlock, Stopped};
