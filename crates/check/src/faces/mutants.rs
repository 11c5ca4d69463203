//! The engine in which one thing is broken.

pub(crate) use octavo_mutants as octavo;

#[path = "../workloads/mod.rs"]
pub(crate) mod workloads;
