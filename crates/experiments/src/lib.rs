//! The experiments of the four Linux patches that Octavo started from (the output calls them *seeds*): on
//! simulated machines of many CPUs, on this machine, and beside the published figures.
//!
//! Each experiment is one piece of code, in `workloads/`. It is built twice: on the engine with its simulated
//! face, and on the engine as users have it.
//!
//! | module | what |
//! |---|---|
//! | [`zero_page`] | 72 tasks that read never-written memory: the count of the huge zero page |
//! | [`swap_cache`] | 8 tasks that write more than fits in memory: the lock of the swap cache |
//! | [`percpu_lists`] | messages that one CPU allocates and another frees: the lock of the page allocator |
//! | [`pin`] | 8 threads that pin pages of one process: the lock of its regions |
//! | [`scaling`] | each mechanism from one CPU to hundreds, and the cache lines that stop it |
//! | [`microbenchmarks`] | the figures that the machines' costs were fitted to, and those that test them |
//! | [`comparison`] | figures of three kinds of evidence, side by side |
//! | [`functions`] | places in the source, by function |
//! | `faces` | the two faces |
//!
//! Every text of this package says of each simulated figure that it is simulated.

#![allow(clippy::duplicate_mod, reason = "the experiments are built on two faces")]

pub mod comparison;
mod faces;
pub mod functions;
pub mod microbenchmarks;
pub mod percpu_lists;
pub mod pin;
pub mod scaling;
pub mod swap_cache;
pub mod zero_page;

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A form of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// Linux before the patch.
    Base,
    /// Linux with the patch.
    Patched,
    /// The best form known today.
    Best,
}

impl Form {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Base, Self::Patched, Self::Best];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Patched => "patched",
            Self::Best => "best",
        }
    }
}

/// Finds the plain work for which `simulate` gives `wanted`, to a thousandth. The result of `simulate` must
/// grow with the work. Returns zero if `simulate` gives at least `wanted` without plain work. The first guess
/// is `wanted` nanoseconds. From there, the method of false position in its Illinois form needs only a few
/// runs.
fn until_it_gives<E>(
    wanted: f64,
    mut simulate: impl FnMut(Duration) -> Result<f64, E>,
) -> Result<Duration, E> {
    let nanoseconds = |time: f64| Duration::from_secs_f64(time / 1e9);
    let mut give = |work: f64| Ok(simulate(nanoseconds(work))? - wanted);
    let (mut low, mut below) = (0.0, give(0.0)?);
    if below >= 0.0 {
        return Ok(Duration::ZERO);
    }
    let mut high = wanted;
    let mut above = give(high)?;
    while above < 0.0 && high < 1e12 {
        (low, below, high) = (high, above, 2.0 * high);
        above = give(high)?;
    }
    for _ in 0..24 {
        let middle = low + (high - low) * below / (below - above);
        let off = give(middle)?;
        if off.abs() < wanted * 1e-3 {
            return Ok(nanoseconds(middle));
        }
        if off < 0.0 {
            (low, below, above) = (middle, off, above / 2.0);
        } else {
            (high, above, below) = (middle, off, below / 2.0);
        }
    }
    Ok(nanoseconds(low + (high - low) / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_that_is_wanted_is_found() {
        let mut tries = 0;
        let simulate = |work: Duration| {
            tries += 1;
            Ok::<_, ()>(50.0 + 1.6 * work.as_nanos() as f64)
        };
        let work = until_it_gives(3900.0, simulate).unwrap();
        assert!((50.0 + 1.6 * work.as_nanos() as f64 - 3900.0).abs() < 4.0, "{work:?}");
        assert!(tries <= 5, "{tries}");
        assert_eq!(until_it_gives(10.0, |_| Ok::<_, ()>(50.0)), Ok(Duration::ZERO));
        // A solution far from the first guess, on a curve.
        let bent = |work: Duration| 1.0 + (work.as_nanos() as f64).sqrt() / 10.0;
        let work = until_it_gives(36.0, |work| Ok::<_, ()>(bent(work))).unwrap();
        assert!((bent(work) - 36.0).abs() < 0.05, "{work:?}");
        assert_eq!(until_it_gives(5.0, |_| Err(7)), Err(7));
    }
}
