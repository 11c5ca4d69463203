//! The bugs, and which of them is on.

use std::cell::Cell;

/// A bug that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The mutant's name on command lines.
    pub name: &'static str,
    /// What is wrong while the bug is on.
    pub what: &'static str,
    /// The files that it changes, below the engine's source.
    pub files: &'static [&'static str],
}

/// All bugs.
pub const ALL: &[Mutant] = include!(concat!(env!("OUT_DIR"), "/engine/mutants.rs"));

thread_local! {
    static ON: Cell<&'static str> = const { Cell::new("") };
}

/// Calls `work` with a bug switched on, for this thread and the simulations that it runs.
pub fn with<T>(mutant: &Mutant, work: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ON.set("");
        }
    }
    let _off = Off;
    ON.set(mutant.name);
    work()
}

/// Returns whether the bug of this name is on.
pub(crate) fn is_on(name: &str) -> bool {
    ON.get() == name
}
