//! Octavo beside its competitors, all sides in one run.
//!
//! Three programs: `frames_beside_peers` allocates and frees page blocks; `hits` reads or holds a page that
//! is in memory; `random_reads` loads pages that are mostly not in memory. All three work the same way:
//!
//! - The sides of a group take turns, and each round begins one side further on ([`compare`]).
//! - A ratio compares two sides in the same round, never two runs of a program.
//! - The tables show the median of the rounds with its minimum and maximum ([`report`]).
//! - A peer that this machine lacks gives a line that says what to install, not a failure.
//!
//! snmalloc and mimalloc take part only if the release profile builds its dependencies without debug
//! information (`CARGO_PROFILE_RELEASE_DEBUG=0`). With debug information, their build scripts enable
//! assertions, and such figures would be unfair.
//!
//! Start at [`frames`], [`hits`] or [`misses`]; every peer has a file of its own there.
//!
//! These programs do not write more than fits in memory.

pub mod compare;
pub mod frames;
pub mod hits;
pub mod mapping;
pub mod misses;
pub mod options;
pub mod report;
pub mod versions;
