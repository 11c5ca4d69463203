//! The job of `octavo-lab usemem`, and its sides, which take turns.

use std::path::PathBuf;

use super::touch::TouchPlan;
use crate::choices::{JsonTarget, Mode, Size};
use crate::huge_pages::KernelPages;

/// The job.
#[derive(Clone, Debug)]
pub struct UsememJob {
    pub workload: String,
    pub plan: TouchPlan,
    pub tasks: u32,
    pub modes: Vec<Mode>,
    pub against_kernel: bool,
    pub size: Size,
    pub budget: Option<Size>,
    pub rounds: u32,
    pub profile: bool,
    /// The file that records an extra run.
    pub record: Option<PathBuf>,
    pub json: Option<JsonTarget>,
}

impl UsememJob {
    /// Returns the accesses of all threads in one run.
    pub fn accesses(&self) -> u64 {
        let threads = u64::from(self.tasks) * u64::from(self.plan.threads);
        self.plan.accesses().saturating_mul(threads)
    }
}

/// A side: the owner of the touched memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Kernel(KernelPages),
    Octavo(Mode),
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel(KernelPages::Base) => "kernel",
            Self::Kernel(KernelPages::Huge) => "kernel-huge",
            Self::Octavo(mode) => mode.name(),
        }
    }
}
