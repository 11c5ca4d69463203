//! The outcome of one run of one side.

use std::collections::BTreeMap;

use octavo::{AreaStats, LatencySnapshot};

use super::monitor::PhaseSamples;
use super::plan::Phase;
use super::work::PhaseOutcome;
use crate::worker::Mismatch;

/// A finished phase: outcomes by task and thread.
#[derive(Debug)]
pub struct PhaseDone {
    pub phase: Phase,
    pub timed: bool,
    pub outcomes: Vec<Vec<PhaseOutcome>>,
    pub seen: PhaseSamples,
}

impl PhaseDone {
    pub fn outcomes(&self) -> impl Iterator<Item = &PhaseOutcome> {
        self.outcomes.iter().flatten()
    }

    pub fn start_ns(&self) -> u64 {
        self.outcomes().map(|outcome| outcome.start_ns).min().unwrap_or(0)
    }

    /// Returns the seconds from the first task's start to the last one's end.
    pub fn seconds(&self) -> f64 {
        let end_ns = self.outcomes().map(|outcome| outcome.end_ns).max().unwrap_or(0);
        // If the clock stood still, this avoids a division by zero.
        end_ns.saturating_sub(self.start_ns()).max(1) as f64 / 1e9
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub struct SideRun {
    pub phases: Vec<PhaseDone>,
    pub budget_bytes: u64,
    pub faults: u64,
    /// The peak of Octavo's resident set, or of the charges to the kernel's control group.
    pub peak_bytes: u64,
    /// The part of the peak that was the device in memory.
    pub ram_device_bytes: Option<u64>,
    /// The most bytes of the charges that were seen in the kernel's huge pages at once.
    pub huge_bytes: Option<u64>,
    /// The most memory of zram, which is not charged to the control group.
    pub zram_bytes: Option<u64>,
    pub counters: BTreeMap<String, u64>,
    /// How long Octavo's accesses waited in the timed phase.
    pub latencies: Option<LatencySnapshot>,
    /// What Octavo's swap areas did in all phases.
    pub areas: Vec<AreaStats>,
}

impl SideRun {
    fn outcomes(&self) -> impl Iterator<Item = &PhaseOutcome> {
        self.phases.iter().flat_map(PhaseDone::outcomes)
    }

    /// Returns the number of wrong words, and the first of them.
    pub fn mismatch(&self) -> Option<(u64, Mismatch)> {
        let first = self.outcomes().find_map(|outcome| outcome.first_mismatch)?;
        Some((self.outcomes().map(|outcome| outcome.mismatches).sum(), first))
    }
}
