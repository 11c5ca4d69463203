//! The choices of the command line, as types that all commands of the lab share. Nothing here depends on a
//! command.

use clap::ValueEnum;
use octavo::ReclaimPolicy;
use octavo::io::IoEngine;
pub use octavo_command::choices::{CompressionChoice, JsonTarget, Size};

/// A form of the four mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    Base,
    Patched,
    Best,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Patched => "patched",
            Self::Best => "best",
        }
    }
}

/// `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeChoice {
    Base,
    Patched,
    Best,
    All,
}

impl ModeChoice {
    /// Returns the chosen modes.
    pub fn modes(self) -> Vec<Mode> {
        match self {
            Self::Base => vec![Mode::Base],
            Self::Patched => vec![Mode::Patched],
            Self::Best => vec![Mode::Best],
            Self::All => vec![Mode::Base, Mode::Patched, Mode::Best],
        }
    }
}

/// Chooses the pages that go when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PolicyChoice {
    /// By reuse distances: resists scans and loops
    #[default]
    Reuse,
    /// By how soon pages come back: for pages whose use shows only in faults
    Returns,
    /// Four generations, like Linux's multi-generational LRU
    Generations,
    /// A small queue for newcomers, and a main clock
    #[value(name = "s3-fifo")]
    S3Fifo,
    /// A clock whose survivors keep their place
    Sieve,
    /// Second chance
    Clock,
    /// First in, first out
    Fifo,
}

impl PolicyChoice {
    pub fn policy(self) -> ReclaimPolicy {
        match self {
            Self::Reuse => ReclaimPolicy::Reuse,
            Self::Returns => ReclaimPolicy::Returns,
            Self::Generations => ReclaimPolicy::Generations,
            Self::S3Fifo => ReclaimPolicy::S3Fifo,
            Self::Sieve => ReclaimPolicy::Sieve,
            Self::Clock => ReclaimPolicy::Clock,
            Self::Fifo => ReclaimPolicy::Fifo,
        }
    }
}

/// The way in which files and block devices are read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// io_uring where it works, else threads
    #[default]
    Probe,
    /// io_uring, or an error
    Uring,
    /// Threads that call preadv and pwritev
    Threads,
}

impl EngineChoice {
    pub fn engine(self) -> IoEngine {
        match self {
            Self::Probe => IoEngine::Probe,
            Self::Uring => IoEngine::Uring,
            Self::Threads => IoEngine::Threads,
        }
    }
}

/// Returns the name that a choice has on the command line.
pub fn name_of(choice: impl ValueEnum) -> String {
    choice.to_possible_value().map_or_else(String::new, |value| value.get_name().to_string())
}
