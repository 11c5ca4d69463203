//! The job of a replay, as its options describe it.

use std::path::PathBuf;

use octavo_trace::Format;
use serde::{Deserialize, Serialize};

use crate::choices::{JsonTarget, PolicyChoice, Size};

/// One side of the comparison: it chooses which pages leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A policy of the engine.
    Policy(PolicyChoice),
    /// Belady's optimum, which knows the future.
    Belady,
}

/// A trace to replay with each contender in each size of memory.
#[derive(Clone, Debug)]
pub struct ReplayJob {
    pub file: PathBuf,
    pub contenders: Vec<Contender>,
    pub memories: Vec<Size>,
    /// If `None`, the first bytes of the file tell the format.
    pub format: Option<Format>,
    pub costs: EventCosts,
    pub json: Option<JsonTarget>,
}

/// The assumed time of each event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventCosts {
    pub hit_ns: u64,
    pub miss_ns: u64,
    pub write_back_ns: u64,
}
