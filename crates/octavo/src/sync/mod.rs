//! The one facade over atomics, locks, threads and per-CPU sections.
//!
//! Two faces behind the same names: `real`, and `model` under `--cfg loom`. All storage of atomic words is taken from
//! here ([`WordArray`]), so that each face can place and watch it.
//!
//! Nothing outside `sync/` names `std::sync::atomic`, a lock, a thread or a per-CPU section.

#[cfg(loom)]
mod model;
pub(crate) mod park;
pub(crate) mod percpu;
#[cfg(not(loom))]
mod real;
pub(crate) mod wait;

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub(crate) use real::*;
