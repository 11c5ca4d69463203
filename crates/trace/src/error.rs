//! Why a file is not a trace, as one sentence for people.

use std::fmt;
use std::io;

use crate::format::VERSION;

/// A reason why a trace cannot be read or written.
#[derive(Debug)]
pub enum TraceError {
    /// The file could not be read or written.
    Io(io::Error),
    /// The file holds no accesses.
    Empty,
    /// The file does not begin as Octavo's traces do.
    NotATrace,
    /// The file has a newer version than this reader knows.
    NewerVersion(u16),
    /// The file ends too early.
    Truncated {
        /// The accesses before its end.
        accesses: u64,
    },
    /// The file says something that no writer writes.
    Malformed {
        /// The accesses before the problem.
        accesses: u64,
        /// The problem.
        problem: &'static str,
    },
    /// A line of a file of keys has no key.
    NoKey {
        /// The line, counted from 1.
        line: u64,
    },
    /// A line of a file of keys has an opening quote without a closing one.
    OpenQuote {
        /// The line, counted from 1.
        line: u64,
    },
    /// The file is compressed.
    Compressed,
    /// The format cannot be told from the file.
    UnknownFormat,
    /// There are more pages than a replay has numbers for.
    TooManyPages,
    /// There are more accesses than any recording has. The file may be damaged.
    TooManyAccesses,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Empty => f.write_str("it has no access"),
            Self::NotATrace => f.write_str("it does not begin as a trace of Octavo's does"),
            Self::NewerVersion(version) => write!(
                f,
                "it is a trace of version {version}, and this program reads versions up to {VERSION}; take a newer octavo"
            ),
            Self::Truncated { accesses } => {
                write!(
                    f,
                    "it ends too early, behind {accesses} accesses; its recording did not end well, or a part is missing"
                )
            }
            Self::Malformed { accesses, problem } => {
                write!(f, "it is damaged behind {accesses} accesses: {problem}")
            }
            Self::NoKey { line } => write!(f, "line {line} has no key in its first column"),
            Self::OpenQuote { line } => {
                write!(f, "the key in line {line} has an opening quote and no closing one")
            }
            Self::Compressed => f.write_str("it is compressed; unpack it first"),
            Self::UnknownFormat => f.write_str("its format cannot be told; name the format"),
            Self::TooManyAccesses => {
                f.write_str("it has more than 2^40 accesses, which nobody has recorded; it may be damaged")
            }
            Self::TooManyPages => {
                f.write_str("it has more than 2^31 pages, and no replay has numbers for so many")
            }
        }
    }
}

impl std::error::Error for TraceError {}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
