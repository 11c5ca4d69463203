//! The job of a replay.

use std::path::PathBuf;

use octavo_trace::Format;
use serde::{Deserialize, Serialize};

use crate::choices::{JsonTarget, PolicyChoice, Size};

/// Chooses the pages that go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A policy of the engine's.
    Policy(PolicyChoice),
    /// The optimum.
    Belady,
}

/// The job.
#[derive(Clone, Debug)]
pub struct Job {
    pub file: PathBuf,
    pub contenders: Vec<Contender>,
    pub memories: Vec<Size>,
    /// Told by the file where it is not given.
    pub format: Option<Format>,
    pub costs: Costs,
    pub json: Option<JsonTarget>,
}

/// The cost of each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    pub hit_ns: u64,
    pub miss_ns: u64,
    pub write_back_ns: u64,
}
