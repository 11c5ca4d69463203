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
pub struct TortureKind {
    pub name: &'static str,
    /// The names of the operations that it counts.
    pub operations: &'static [&'static str],
    /// Runs until the team's end.
    pub run: fn(Team<'_>),
}

pub const ALL: [TortureKind; 11] = [
    TortureKind { name: "writers", operations: writers::OPERATIONS, run: writers::run },
    TortureKind { name: "layout", operations: layout::OPERATIONS, run: layout::run },
    TortureKind { name: "brk", operations: brk::OPERATIONS, run: brk::run },
    TortureKind { name: "protect", operations: protect::OPERATIONS, run: protect::run },
    TortureKind { name: "fork", operations: fork::OPERATIONS, run: fork::run },
    TortureKind { name: "orphans", operations: fork::ORPHANS, run: fork::run_orphans },
    TortureKind { name: "wiped", operations: fork::WIPED, run: fork::run_wiped },
    TortureKind { name: "io", operations: io::OPERATIONS, run: io::run },
    TortureKind { name: "direct", operations: direct::OPERATIONS, run: direct::run },
    TortureKind { name: "shared", operations: shared::OPERATIONS, run: shared::run },
    TortureKind { name: "threads", operations: threads::OPERATIONS, run: threads::run },
];

/// Returns the kind of this name.
pub fn named(name: &str) -> Option<TortureKind> {
    ALL.into_iter().find(|kind| kind.name == name)
}
