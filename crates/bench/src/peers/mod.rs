//! Octavo beside its competitors, all sides in one run.
//!
//! Three programs: `frames_beside_peers` allocates and frees page blocks; `hits` reads or holds a page that
//! is in memory; `random_reads` loads pages that mostly are not. All three work the same way:
//!
//! - The sides of a group take turns, and each round begins one side further on ([`compare`]).
//! - A ratio is taken between two sides of the same round, never between two runs.
//! - The tables show the median of the rounds with its minimum and maximum ([`report`]).
//! - A peer that this machine lacks is a line that says what to install, not a failure.
//!
//! snmalloc and mimalloc take part only if the release profile builds its dependencies without debug
//! information (`CARGO_PROFILE_RELEASE_DEBUG=0`). Their build scripts take debug information for a wish for
//! assertions, and such figures would wrong them.
//!
//! Start at [`frames`], [`hits`] or [`misses`]; every peer has a file of its own there.
//!
//! Writing more than fits in memory is not measured here.

pub mod compare;
pub mod frames;
pub mod hits;
pub mod mapping;
pub mod misses;
pub mod options;
pub mod report;
pub mod versions;
