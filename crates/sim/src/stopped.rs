//! Why a simulation stopped before its end.

use std::fmt;

use crate::memory::NoHeap;

/// Every thread of a simulation waits.
#[derive(Debug)]
pub struct Deadlock {
    /// The threads that wait, by name.
    pub waiting: Vec<String>,
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every thread of the simulation waits: {}", self.waiting.join(", "))
    }
}

impl std::error::Error for Deadlock {}

/// Why a simulation stopped before its end.
#[derive(Debug)]
pub enum Stopped {
    /// Every thread waits.
    Deadlock(Deadlock),
    /// A thread has panicked.
    Panicked {
        /// The thread's name.
        thread: String,
        /// The panic's message.
        message: String,
    },
    /// The run did not end within this many steps.
    TooLong(u64),
    /// The simulation has no memory of its own.
    NoHeap(NoHeap),
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadlock(deadlock) => deadlock.fmt(f),
            Self::Panicked { thread, message } => write!(f, "{thread}: {message}"),
            Self::NoHeap(reason) => reason.fmt(f),
            Self::TooLong(steps) => write!(f, "no end after {steps} operations on shared words"),
        }
    }
}

impl std::error::Error for Stopped {}

impl From<Deadlock> for Stopped {
    fn from(deadlock: Deadlock) -> Self {
        Self::Deadlock(deadlock)
    }
}

impl From<NoHeap> for Stopped {
    fn from(reason: NoHeap) -> Self {
        Self::NoHeap(reason)
    }
}
