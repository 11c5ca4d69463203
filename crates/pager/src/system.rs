//! Calls to the kernel: facts about processes, and a run's requests for priorities, CPUs, signals and limits.

pub(crate) mod affinity;
pub(crate) mod governor;
pub(crate) mod limits;
pub(crate) mod priority;
pub(crate) mod proc;
pub(crate) mod signals;
