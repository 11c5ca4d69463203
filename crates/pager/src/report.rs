//! What a run reports to people: its figures, during the run and at its end, and what its time was spent on.

pub(crate) mod explain;
pub(crate) mod socket;
pub(crate) mod summary;
