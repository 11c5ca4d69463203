//! Engines: ways to move the bytes of transfers between one file and the arena.
//!
//! | engine | a transfer | completions | full |
//! |---|---|---|---|
//! | `uring` | is queued in the ring of the CPU, and sent with the others at `flush` | are pulled: see `uring.rs` | when every ring has as many transfers in flight as it can hold |
//! | `threads` | waits for one of a few threads, which does it by one system call | come from those threads | when as many transfers wait as the queue can hold |
//!
//! With both engines, the calling thread does a transfer of [`Urgency::Now`](super::Urgency::Now) itself,
//! since it would have to sleep anyway. This is the fastest way: the kernel wakes the thread for its own
//! transfer.
//!
//! To an engine, all places exist that can be numbered. The code that opens the file knows which of them
//! really exist.

use std::fs::File;

use super::device::Device;
use super::threads::ThreadsEngine;
use super::uring::UringEngine;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::Shared;

/// How swap files and disks are read and written, for
/// [`ManagerBuilder::io_engine`](crate::ManagerBuilder::io_engine). The default falls back to threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring if it works, otherwise threads.
    #[default]
    Probe,
    /// io_uring. If it does not work, building the manager is an error.
    Uring,
    /// Threads that call `preadv` and `pwritev`.
    Threads,
}

/// An engine that runs, and its description.
pub(crate) struct StartedEngine {
    pub(crate) engine: Box<dyn Device>,
    pub(crate) description: String,
}

/// Starts an engine of the chosen kind on `file`.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if io_uring was chosen and does not work. [`ErrorKind::System`] if no thread
/// can be started.
pub(crate) fn start(choice: IoEngine, file: &Shared<File>) -> Result<StartedEngine> {
    let why_threads = match choice {
        IoEngine::Threads => None,
        IoEngine::Probe | IoEngine::Uring => match UringEngine::start(file) {
            Ok(engine) => {
                let description = engine.describe();
                return Ok(StartedEngine { engine: Box::new(engine), description });
            }
            Err(error) if choice == IoEngine::Uring => {
                let message = format!("{error}; choose threads, or let the engine be probed");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            Err(error) => Some(error),
        },
    };
    let engine =
        ThreadsEngine::start(file).map_err(|error| Error::system("cannot start I/O threads", &error))?;
    let description = match why_threads {
        Some(why) => format!("{why}: {}", engine.describe()),
        None => engine.describe(),
    };
    Ok(StartedEngine { engine: Box::new(engine), description })
}
