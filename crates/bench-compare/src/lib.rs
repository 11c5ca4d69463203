//! Octavo beside its competitors, all sides in one run.
//!
//! Three programs: `frames` (allocating and freeing page blocks), `hits` (reading or holding a page that is in
//! memory) and `random_reads` (pages that mostly are not). All go the same way:
//!
//! - the sides of a group take turns, and which side begins moves on by one every round ([`compare`]);
//! - a ratio is taken between two sides of the same round, never between two runs;
//! - the median of the rounds is shown with its minimum and maximum ([`stats`], [`report`]);
//! - a peer that this machine lacks is a line that says what to install, not a failure.
//!
//! The release profile must build its dependencies without debug information for snmalloc and mimalloc to take part: their
//! build scripts take that for a wish for assertions, and such figures would wrong them
//! (`CARGO_PROFILE_RELEASE_DEBUG=0`).
//!
//! Start at [`frames`], [`hits`] or [`misses`]; every peer has a file of its own there.
//!
//! What is not here: writing more than fits in memory. The engine's own micro-benchmarks, without peers, are elsewhere.

pub mod compare;
pub mod frames;
pub mod hits;
pub mod mapping;
pub mod misses;
pub mod options;
pub mod random;
pub mod report;
pub mod stats;
pub mod versions;
pub mod worker;
