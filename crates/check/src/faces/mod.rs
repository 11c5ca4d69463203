//! The engines that are checked. Each builds the same workloads.

pub(crate) mod engine;
pub(crate) mod mutants;
