//! What a run tells people: its figures at the end and meanwhile, and what its time went on.

pub(crate) mod explain;
pub(crate) mod socket;
pub(crate) mod summary;
