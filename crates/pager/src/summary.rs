//! What a run was like, in figures.

use std::collections::BTreeMap;
use std::fmt;

use octavo::{Counter, Manager};
use serde::Serialize;

use crate::managed::Managed;
use crate::tree::Tree;

/// Faults by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// At missing pages.
    pub missing: u64,
    /// First stores to clean pages.
    pub stores: u64,
    /// Pages that came along with a fault, without one of their own.
    pub along: u64,
    /// Faults that waited for a device or for room.
    pub waited: u64,
    /// Changes of mappings: unmapped, moved, dropped, forked.
    pub changes: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The most anonymous memory that the tree and the runner had together.
    pub peak_bytes: u64,
    /// The limit.
    pub budget_bytes: u64,
    /// The most anonymous memory that the tree had.
    pub anonymous_peak_bytes: u64,
    /// The most memory, present or out, that was managed.
    pub managed_peak_bytes: u64,
    /// The part of the anonymous memory of managed processes that is managed, when it was least of late.
    pub managed_share: f64,
    /// Pages that went out and came back, in bytes.
    pub swapped_out_bytes: u64,
    /// See `swapped_out_bytes`.
    pub swapped_in_bytes: u64,
    /// Faults.
    pub faults: Faults,
    /// How long faults waited for room.
    pub waited_seconds: f64,
    /// Pages compressed, and the bytes that they took.
    pub compression_ratio: Option<f64>,
    /// Processes that were seen.
    pub processes: u64,
    /// Processes that were managed at some time.
    pub managed_processes: u64,
    #[serde(skip)]
    pub(crate) peak_anonymous: u64,
    /// Swap traffic of processes that have ended, and of those that live.
    #[serde(skip)]
    ended: (u64, u64),
    #[serde(skip)]
    live: (u64, u64),
}

impl Summary {
    /// Takes note of the manager's figures.
    pub(crate) fn note(&mut self, manager: &Manager, managed: &BTreeMap<u32, Managed>, tree: &Tree) {
        let counters = manager.counters();
        self.waited_seconds = counters.get(Counter::StallNanoseconds) as f64 / 1e9;
        self.anonymous_peak_bytes = self.peak_anonymous;
        let (mut resident, mut swapped_out, mut swapped_in) = (0, 0, 0);
        for stats in managed.values().filter_map(|managed| managed.space.stats().ok()) {
            resident += stats.resident_bytes;
            swapped_out += stats.swapped_out_bytes;
            swapped_in += stats.swapped_in_bytes;
        }
        self.live = (swapped_out, swapped_in);
        let anonymous: u64 = managed
            .keys()
            .filter_map(|pid| tree.processes.get(pid))
            .map(|process| process.memory.anonymous)
            .sum();
        if let Ok(stats) = manager.stats() {
            let out = stats.swap_slots * octavo::PAGE_BYTES as u64;
            self.managed_peak_bytes = self.managed_peak_bytes.max(resident + out);
            if anonymous + out > 0 && out > 0 {
                self.managed_share = ((resident + out) as f64 / (anonymous + out) as f64).min(1.0);
            }
        }
        let (swapped_out, swapped_in) = self.live;
        self.swapped_out_bytes = self.ended.0 + swapped_out;
        self.swapped_in_bytes = self.ended.1 + swapped_in;
    }

    /// Adds a process that has ended.
    pub(crate) fn add(&mut self, managed: Managed) {
        if let Ok(stats) = managed.space.stats() {
            self.ended.0 += stats.swapped_out_bytes;
            self.ended.1 += stats.swapped_in_bytes;
        }
        let served = managed.end();
        self.faults.missing += served.missing;
        self.faults.stores += served.stores;
        self.faults.along += served.along;
        self.faults.waited += served.waited;
        self.faults.changes += served.changes;
        (self.swapped_out_bytes, self.swapped_in_bytes) = self.ended;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        writeln!(f, "octavo: peak {} of a budget of {}", mib(self.peak_bytes), mib(self.budget_bytes))?;
        writeln!(
            f,
            "octavo: {} of {} processes managed, {:.1} % of their anonymous memory",
            self.managed_processes,
            self.processes,
            100.0 * self.managed_share
        )?;
        writeln!(
            f,
            "octavo: faults: {} missing, {} first stores, {} waited; {} pages came along; {} changes of mappings",
            self.faults.missing,
            self.faults.stores,
            self.faults.waited,
            self.faults.along,
            self.faults.changes
        )?;
        write!(
            f,
            "octavo: {} went out, {} came back; {:.2} s spent on making room",
            mib(self.swapped_out_bytes),
            mib(self.swapped_in_bytes),
            self.waited_seconds
        )
    }
}
