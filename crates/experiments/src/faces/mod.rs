//! The two faces on which the experiments run. The code in `workloads/` is built once for each.
//!
//! A face has `octavo`, the engine; `thread`, `AtomicU64` and `now`; `work`, which charges plain work if time
//! is simulated; and `begin` and `end`, which bound the profiled part.

pub(crate) mod measured;
pub(crate) mod simulated;
