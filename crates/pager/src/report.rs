//! The reports of a run: its figures, during the run and at its end, and an explanation of its time.

pub(crate) mod explain;
mod measured;
pub(crate) mod progress;
pub(crate) mod rungs;
pub(crate) mod socket;
pub(crate) mod summary;
