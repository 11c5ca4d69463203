//! The end of a manager. It waits for all work that ends by itself. If something does not end, it gives
//! the manager back.

use std::fmt;

use super::Manager;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{Duration, pause};

/// The time that devices and the background thread have to end their work.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time that a frame without a page may stay pinned before its pin counts as leaked. Another thread may
/// be making room, by a clone of the manager.
const MOMENT: Duration = Duration::from_millis(100);

/// Reports that a part of the manager is still in use, from [`Manager::shutdown`]. It holds the manager,
/// which works as before.
pub struct ShutdownRefused {
    manager: Manager,
    error: Error,
}

impl ShutdownRefused {
    /// Returns the manager.
    pub fn into_manager(self) -> Manager {
        self.manager
    }

    /// Drops the manager, and returns the error of [`error`](Self::error):
    /// `manager.shutdown().map_err(ShutdownRefused::into_error)?`. There is no conversion by `?` alone. It
    /// would make `?` ambiguous in a closure whose error type is left open.
    pub fn into_error(self) -> Error {
        self.error
    }

    /// Returns the error, which says which part is in use and what to do about it.
    pub fn error(&self) -> &Error {
        &self.error
    }
}

impl fmt::Debug for ShutdownRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownRefused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl fmt::Display for ShutdownRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ShutdownRefused {}

impl Manager {
    /// Drops this manager, and reports if a part of it is still in use, which a plain drop does not. Waits
    /// for devices and for the background thread. Other clones keep the manager alive, so call this on the
    /// last one.
    ///
    /// # Errors
    /// Each error holds the manager. `Busy` if spaces are left, files are open, or leaked pins still hold
    /// frames. `TimedOut` if a device does not end its transfers within 10 s. `ForkedChild` in a forked
    /// child.
    pub fn shutdown(self) -> Result<(), ShutdownRefused> {
        match self.check_unused() {
            Ok(()) => Ok(()),
            Err(error) => Err(ShutdownRefused { manager: self, error }),
        }
    }

    fn check_unused(&self) -> Result<()> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        let files = engine.open_files();
        if files > 0 {
            let message = format!("{files} files are open; drop them first");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let spaces = engine.spaces.lock().values().map(|record| record.name.clone()).collect::<Vec<_>>();
        if !spaces.is_empty() {
            let names = spaces.join(", ");
            let message =
                format!("{} spaces are in use ({names}); drop them and their pins first", spaces.len());
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let clock = &engine.machine.clock;
        let until = clock.now() + PATIENCE;
        let left = || until.saturating_duration_since(clock.now());
        // The background thread pins the frames that it works on, those of dropped spaces among them.
        let pinned = self
            .running
            .at_rest(until, || engine.wait_for_transfers(left()).then(|| pinned_for_long(engine)));
        match pinned.flatten() {
            Some(0) => Ok(()),
            Some(frames) => {
                let message = format!("pins hold {frames} frames of dropped spaces; drop the pins first");
                Err(Error::new(ErrorKind::Busy, message))
            }
            None => Err(engine.swap.areas.timed_out()),
        }
    }
}

/// Returns how many frames only pins hold, for longer than a moment.
fn pinned_for_long(engine: &Engine) -> u64 {
    let clock = &engine.machine.clock;
    let until = clock.now() + MOMENT;
    loop {
        let pinned = engine.outlived_by_pins();
        if pinned == 0 || clock.now() >= until {
            return pinned;
        }
        pause(Duration::from_millis(1));
    }
}
