//! The engine with a bug switched on.

pub(crate) use octavo_mutants as octavo;

#[path = "../workloads/mod.rs"]
pub(crate) mod workloads;
