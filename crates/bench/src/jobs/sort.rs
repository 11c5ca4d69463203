//! Sorts random words in place.

use std::error::Error;
use std::sync::Arc;

use octavo::{Space, SpaceVec};
use octavo_measure::random;

use super::{ArrayPattern, JobResult, Slices, timed};

/// Adds a word to a sum that depends on the order of the words.
fn fold(sum: u64, word: u64) -> u64 {
    sum.rotate_left(1) ^ word
}

/// Sorts slices.
///
/// # Errors
/// Fails if the kernel does.
pub fn over_slices(bytes: usize, memory: &Slices) -> Result<JobResult, Box<dyn Error>> {
    let mut words = memory.array(bytes / 8, ArrayPattern::InOrder)?;
    words.iter_mut().zip(0..).for_each(|(word, number)| *word = random::word(number));
    timed(|| {
        words.sort_unstable();
        Ok(words.iter().copied().fold(0, fold))
    })
}

/// Sorts vectors in the space.
///
/// # Errors
/// Fails if the space does.
pub fn over_guards(bytes: usize, space: &Arc<Space>) -> Result<JobResult, Box<dyn Error>> {
    let mut words = SpaceVec::new(space);
    words.extend((0..bytes as u64 / 8).map(random::word))?;
    timed(|| {
        words.sort_unstable()?;
        let mut sum = 0;
        for run in words.runs(..)? {
            sum = run?.iter().copied().fold(sum, fold);
        }
        Ok(sum)
    })
}
