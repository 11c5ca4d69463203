//! Traces of page accesses: a compact file format, imports of cache traces, and Belady's optimum.
//!
//! | module | what it holds |
//! |---|---|
//! | `format` | the file format: its layout, and the numbers in it |
//! | `writer`, `reader` | a file, written and read access by access |
//! | `import` | other formats (a column of keys, libCacheSim's oracleGeneral), and the detection of a file's format |
//! | `trace` | a whole trace in memory, its pages numbered by their first uses |
//! | `optimum` | Belady's optimum on a trace |
//! | `published` | LRU, SIEVE and S3-FIFO as published: they see each hit |
//! | `error` | the reasons why a file is not a trace |
//!
//! `docs/traces.md` describes traces for users.

mod error;
mod format;
mod import;
mod optimum;
pub mod published;
mod reader;
mod trace;
mod writer;

pub use error::TraceError;
pub use format::{MOST_PAGES, VERSION};
pub use import::{Format, read};
pub use optimum::{ReplayOutcome, optimum};
pub use reader::TraceReader;
pub use trace::{Numbering, Step, Trace};
pub use writer::TraceWriter;

/// Accesses of one task to one page, with none to another page in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// The task. Each task has pages of its own.
    pub task: u32,
    /// The number of the page in the task's memory, below [`MOST_PAGES`].
    pub page: u64,
    /// Whether the accesses write.
    pub is_write: bool,
    /// The number of accesses: at least one.
    pub times: u64,
}
