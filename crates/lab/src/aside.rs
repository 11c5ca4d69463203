//! What goes on beside a run on Octavo's side.

use std::sync::atomic::AtomicU64;

use crate::profile::Samples;
use crate::progress::Progress;
use crate::record::Recorder;

/// What goes on beside a run. By default nothing does.
#[derive(Default)]
pub struct Aside<'a> {
    /// Counts accesses, where a bar watches.
    pub progress: Option<&'a AtomicU64>,
    /// Watches what is timed.
    pub samples: Option<&'a mut Samples>,
    /// Notes all accesses.
    pub recorder: Option<&'a Recorder>,
}

impl<'a> Aside<'a> {
    /// A bar, and no more.
    pub fn of(progress: &'a Progress) -> Self {
        Self { progress: progress.counter(), ..Self::default() }
    }
}
