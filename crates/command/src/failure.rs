//! Why the program stops, as one sentence for people.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::output::tell;

/// A reason to stop with exit code 1.
#[derive(Debug)]
pub enum Failure {
    /// The engine's error, in its own words.
    Engine(octavo::Error),
    /// An error of the operating system, and the attempt that failed.
    System {
        /// What was tried.
        attempt: String,
        /// The error.
        error: io::Error,
    },
    /// Any other reason, as a sentence.
    Said(String),
    /// The reader of standard output closed it: the program stops quietly.
    OutputClosed,
}

impl Failure {
    /// A failure of the operating system while doing `attempt`.
    pub fn system(attempt: impl Into<String>, error: io::Error) -> Self {
        Self::System { attempt: attempt.into(), error }
    }
}

/// Returns the exit code of a program. Says why the program stops if it failed.
#[must_use]
pub fn exit_code(program: &str, done: Result<u8, Failure>) -> ExitCode {
    match done {
        Ok(code) => ExitCode::from(code),
        // The reader has closed the output, so it needs no more.
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(format_args!("{program}: {failure}"));
            ExitCode::FAILURE
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Engine(error) => error.fmt(f),
            Self::System { attempt, error } => write!(f, "{attempt}: {error}"),
            Self::Said(sentence) => f.write_str(sentence),
            Self::OutputClosed => f.write_str("standard output was closed"),
        }
    }
}

impl std::error::Error for Failure {}

impl From<octavo::Error> for Failure {
    fn from(error: octavo::Error) -> Self {
        Self::Engine(error)
    }
}
