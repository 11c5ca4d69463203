//! The seeds' experiments on simulated machines.

pub mod microbenchmarks;
