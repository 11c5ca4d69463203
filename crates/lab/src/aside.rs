//! Observers of a run on Octavo's side.

use std::sync::atomic::AtomicU64;

use crate::profile::Samples;
use crate::progress::TurnProgress;
use crate::record::Recorder;

/// The observers of a run. By default, there are none.
#[derive(Default)]
pub struct Aside<'a> {
    /// Counts accesses, if there is a progress bar.
    pub progress: Option<&'a AtomicU64>,
    /// Samples the timed part.
    pub samples: Option<&'a mut Samples>,
    /// Records all accesses.
    pub recorder: Option<&'a Recorder>,
}

impl<'a> Aside<'a> {
    /// A progress bar only.
    pub fn of(progress: &'a TurnProgress) -> Self {
        Self { progress: progress.counter(), ..Self::default() }
    }
}
