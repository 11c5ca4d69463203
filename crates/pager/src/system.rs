//! What the kernel says of processes, and what a run asks of it: priorities, CPUs, signals, limits.

pub(crate) mod affinity;
pub(crate) mod governor;
pub(crate) mod limits;
pub(crate) mod priority;
pub(crate) mod proc;
pub(crate) mod signals;
