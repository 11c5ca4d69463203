//! The seam between a run and the ways in which it can keep its limit.
//!
//! The run starts the program, passes signals on and reaps children. A backing watches the memory of the
//! tree, and keeps it within the limit.

use std::time::Duration;

use crate::monitor::{Failed, Monitor};
use crate::report::summary::Summary;

/// A way to keep the limit of a run.
pub(crate) trait Backing {
    /// Prepares what takes too long later, before the program starts.
    ///
    /// # Errors
    /// Returns the reason why the run cannot begin.
    fn prepare_early(&mut self) -> Result<(), Failed>;

    /// Looks at the tree and does what is due. Returns the time until the next look.
    ///
    /// # Errors
    /// Returns the reason why the tree has to end.
    fn turn(&mut self) -> Result<Duration, Failed>;

    /// Records that a child of the runner has ended.
    fn note_end(&mut self, pid: u32);

    /// Returns whether processes are left that need the runner.
    fn is_needed(&self) -> bool;

    /// Tells a user at a terminal that the program does little but wait, if that is so.
    fn tell_progress(&mut self);

    /// Kills every process of the tree.
    fn kill_all(&mut self);

    /// Returns the figures up to now.
    fn figures(&mut self) -> &Summary;
}

impl Backing for Monitor {
    fn prepare_early(&mut self) -> Result<(), Failed> {
        self.guard_early()
    }

    fn turn(&mut self) -> Result<Duration, Failed> {
        Self::turn(self)
    }

    fn note_end(&mut self, pid: u32) {
        Self::note_end(self, pid);
    }

    fn is_needed(&self) -> bool {
        self.has_managed()
    }

    fn tell_progress(&mut self) {
        Self::tell_progress(self);
    }

    fn kill_all(&mut self) {
        Self::kill_all(self);
    }

    fn figures(&mut self) -> &Summary {
        Self::figures(self)
    }
}
