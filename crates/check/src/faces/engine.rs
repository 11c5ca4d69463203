//! Octavo's engine.

pub(crate) use octavo_simulated as octavo;

#[path = "../workloads/mod.rs"]
pub(crate) mod workloads;
