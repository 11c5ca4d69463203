//! The kinds of torture. Each is a module with the names of its operations and a function that runs its
//! workers.

mod brk;
mod direct;
mod fork;
mod io;
mod layout;
mod protect;
mod shared;
mod threads;
mod writers;

pub use fork::started_anew;

use crate::work::Team;

/// A kind of torture.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    /// The names of the operations that it counts.
    pub operations: &'static [&'static str],
    /// Runs until the team's end.
    pub run: fn(Team<'_>),
}

pub const ALL: [Kind; 11] = [
    Kind { name: "writers", operations: writers::OPERATIONS, run: writers::run },
    Kind { name: "layout", operations: layout::OPERATIONS, run: layout::run },
    Kind { name: "brk", operations: brk::OPERATIONS, run: brk::run },
    Kind { name: "protect", operations: protect::OPERATIONS, run: protect::run },
    Kind { name: "fork", operations: fork::OPERATIONS, run: fork::run },
    Kind { name: "orphans", operations: fork::ORPHANS, run: fork::run_orphans },
    Kind { name: "wiped", operations: fork::WIPED, run: fork::run_wiped },
    Kind { name: "io", operations: io::OPERATIONS, run: io::run },
    Kind { name: "direct", operations: direct::OPERATIONS, run: direct::run },
    Kind { name: "shared", operations: shared::OPERATIONS, run: shared::run },
    Kind { name: "threads", operations: threads::OPERATIONS, run: threads::run },
];

/// Returns the kind of this name.
pub fn named(name: &str) -> Option<Kind> {
    ALL.into_iter().find(|kind| kind.name == name)
}
