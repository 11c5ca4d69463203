//! The job.

use std::path::PathBuf;
use std::time::Duration;

use crate::choices::{JsonTarget, Mode};

/// What the options ask for.
#[derive(Clone, Debug)]
pub struct Job {
    pub workload: String,
    pub scale: u64,
    pub memory_bytes: u64,
    pub time: Duration,
    pub threads: u32,
    pub modes: Vec<Mode>,
    pub rounds: u32,
    pub folder: PathBuf,
    pub keep: bool,
    pub commits: Option<PathBuf>,
    pub log_bytes: u64,
    pub profile: bool,
    pub json: Option<JsonTarget>,
}
