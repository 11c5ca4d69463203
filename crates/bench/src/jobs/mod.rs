//! Three jobs, written like the code of a user of Octavo. Each job has two forms: over slices, in plain
//! memory or in a mapped file, and over guards of a space. Both forms make the same steps on the same data,
//! and return the same answer.

pub mod aggregation;
pub mod file_array;
pub mod search;
pub mod sort;

use std::error::Error;
use std::ops::DerefMut;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use file_array::{FileArray, MappingAdvice};
use octavo::Space;

/// How a program goes over an array, for kernels that take advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayPattern {
    /// From the first word to the last, and perhaps again.
    InOrder,
    /// At random, in an array that is small enough to stay in memory.
    AtRandom,
}

/// The memory of the slices.
#[derive(Debug)]
pub enum Slices {
    /// Memory of the process, which the kernel swaps.
    Plain,
    /// Files in this folder, mapped shared.
    Mapped {
        /// Where the files are.
        folder: PathBuf,
        /// The advice that the kernel gets for the mappings.
        tuning: MappingAdvice,
    },
}

impl Slices {
    /// Makes an array of zeros.
    ///
    /// # Errors
    /// Fails if a file cannot be made or mapped.
    pub fn array(
        &self,
        words: usize,
        pattern: ArrayPattern,
    ) -> std::io::Result<Box<dyn DerefMut<Target = [u64]>>> {
        Ok(match self {
            Self::Plain => Box::new(vec![0; words]),
            Self::Mapped { folder, tuning } => Box::new(FileArray::new(folder, words, pattern, *tuning)?),
        })
    }
}

/// The result of a job.
#[derive(Clone, Copy, Debug)]
pub struct JobResult {
    /// A checksum of the result, equal on all sides.
    pub answer: u64,
    /// Seconds of the timed part of the job, after the data is made.
    pub seconds: f64,
}

/// One form of a job, on `bytes` bytes of data in this memory.
type JobForm<Memory> = fn(bytes: usize, memory: &Memory) -> Result<JobResult, Box<dyn Error>>;

/// A job in its two forms.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The job's name on the command line.
    pub name: &'static str,
    /// The form over slices.
    pub over_slices: JobForm<Slices>,
    /// The form over guards of a space.
    pub over_guards: JobForm<Arc<Space>>,
}

/// All jobs.
pub const ALL: [Job; 3] = [
    Job { name: "sort", over_slices: sort::over_slices, over_guards: sort::over_guards },
    Job { name: "aggregation", over_slices: aggregation::over_slices, over_guards: aggregation::over_guards },
    Job { name: "search", over_slices: search::over_slices, over_guards: search::over_guards },
];

/// Runs the timed part of a job.
fn timed<E>(work: impl FnOnce() -> Result<u64, E>) -> Result<JobResult, E> {
    let began = Instant::now();
    let answer = work()?;
    Ok(JobResult { answer, seconds: began.elapsed().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All sides have the same answer, with a quarter of the data in memory.
    #[test]
    fn all_sides_agree() {
        let bytes = 24 << 20;
        for job in ALL {
            let manager = octavo::Manager::builder().budget_bytes(16 << 20).build().unwrap();
            let space = Arc::new(manager.space().unwrap());
            let answer = (job.over_guards)(bytes, &space).unwrap().answer;
            let folder = std::env::temp_dir();
            let tuned = Slices::Mapped { folder: folder.clone(), tuning: MappingAdvice::Told };
            for slices in [Slices::Plain, Slices::Mapped { folder, tuning: MappingAdvice::Nothing }, tuned] {
                assert_eq!(
                    (job.over_slices)(bytes, &slices).unwrap().answer,
                    answer,
                    "{}: {slices:?}",
                    job.name
                );
            }
        }
    }
}
