//! The rungs: the ways in which a run can keep its limit, and which of them work here.

pub mod probes;

use std::fmt::{self, Display};

use clap::ValueEnum;

use crate::run::messages;

/// A way to keep a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Pages go to a compressed pool and to swap places of Octavo's own, by userfaultfd.
    Pool,
    /// Memory becomes private mappings of a file. Needs no privilege.
    File,
    /// Pages go to a swap file of the kernel's. Taken only on request.
    Kernel,
}

impl Rung {
    /// All rungs.
    pub const ALL: [Self; 3] = [Self::Pool, Self::File, Self::Kernel];
    /// Those that a run tries by itself, in this order.
    const TRIED: [Self; 1] = [Self::Pool];

    /// Returns whether it works here.
    ///
    /// # Errors
    /// Returns a sentence that says why not.
    pub fn probe(self) -> Result<(), String> {
        match self {
            Self::Pool => octavo_pager::look_for_rights().map_err(|error| error.to_string()),
            Self::File => look_for_file_rung(),
            Self::Kernel => octavo_pager::look_for_kernel_rung(),
        }
    }

    /// Returns what it is, in some words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Pool => "pages go to a compressed pool, and from there to disk",
            Self::File => "memory is mapped from a file on disk, and the kernel pages it",
            Self::Kernel => "the kernel swaps, in a control group and to a file of this run's own",
        }
    }
}

impl Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pool => "pool",
            Self::File => "file",
            Self::Kernel => "kernel",
        })
    }
}

/// Checks what the file rung needs from the kernel. Its folder is another matter.
fn look_for_file_rung() -> Result<(), String> {
    octavo_pager::look_for_tracing().map_err(|error| error.to_string())?;
    probes::listening().map_err(|error| messages::NO_LISTENING.with(&[("why", &error)]))
}

/// The rung of a run, as the command line names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum RungChoice {
    /// The first that works here
    #[default]
    Auto,
    /// A compressed pool, then disk; needs full userfaultfd
    Pool,
    /// Private mappings of a file on disk; needs no privilege
    File,
    /// A control group, and the kernel's own swap to a file of the run's; needs root
    Kernel,
}

impl RungChoice {
    /// Returns the rung that a run takes.
    ///
    /// # Errors
    /// Returns a sentence that says why none works, or not the one that was asked for. The first rung is the
    /// one that people expect, so its reason is given.
    pub fn take(self) -> Result<Rung, String> {
        let wanted = match self {
            Self::Auto => return first(Rung::probe),
            Self::Pool => Rung::Pool,
            Self::File => Rung::File,
            Self::Kernel => Rung::Kernel,
        };
        wanted.probe().map(|()| wanted)
    }
}

/// Returns the rung that a run takes by itself: the first that works, or the reason of the first.
pub fn first(probe: impl Fn(Rung) -> Result<(), String>) -> Result<Rung, String> {
    let mut reasons = Vec::new();
    for rung in Rung::TRIED {
        match probe(rung) {
            Ok(()) => return Ok(rung),
            Err(why) => reasons.push(why),
        }
    }
    Err(reasons.swap_remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rung_that_works_is_taken_and_otherwise_the_first_reason_is_given() {
        assert_eq!(first(|_| Ok(())), Ok(Rung::TRIED[0]));
        assert_eq!(first(|rung| Err(rung.to_string())), Err(Rung::TRIED[0].to_string()));
        for rung in Rung::TRIED {
            let only = |probed| if probed == rung { Ok(()) } else { Err("no".into()) };
            assert_eq!(first(only), Ok(rung));
        }
    }
}
