//! The two faces on which the experiments run. Their code in `workloads/` is built once on each.
//!
//! A face has `octavo`, the engine; `thread`, `AtomicU64` and `now`; `work`, which charges plain work where
//! time is simulated; and `begin` and `end`, which bound what is profiled.

pub(crate) mod measured;
pub(crate) mod simulated;
