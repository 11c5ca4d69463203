//! The outcome of one run of one side.

use std::collections::BTreeMap;

use super::touch::TouchOutcome;
use crate::report::usemem_kb_per_s;
use crate::worker::Mismatch;

/// Outcomes by task and thread.
#[derive(Debug)]
pub struct SideOutcomes {
    pub outcomes: Vec<Vec<TouchOutcome>>,
    pub budget_bytes: Option<u64>,
    pub faults: u64,
    pub peak_rss_bytes: u64,
    pub counters: BTreeMap<String, u64>,
}

/// A thread's two lines, as usemem prints them.
#[derive(Clone, Copy, Debug)]
pub struct ThreadLines {
    pub bytes: u64,
    pub usecs: u64,
    pub kb_per_s: u64,
    pub free_usecs: u64,
}

impl SideOutcomes {
    fn threads(&self) -> impl Iterator<Item = &TouchOutcome> {
        self.outcomes.iter().flatten()
    }

    fn start_ns(&self) -> u64 {
        self.threads().map(|outcome| outcome.start_ns).min().unwrap_or(0)
    }

    /// Returns the seconds from the first task's start to the last one's end.
    pub fn seconds(&self) -> f64 {
        let end = self.threads().map(|outcome| outcome.end_ns).max().unwrap_or(0);
        // If the clock stood still, this avoids a division by zero.
        end.saturating_sub(self.start_ns()).max(1) as f64 / 1e9
    }

    /// Returns the bytes loaded or stored, counted at every access.
    pub fn touched_bytes(&self) -> u64 {
        self.threads().map(|outcome| outcome.touched_bytes).sum()
    }

    /// Returns the lines that usemem prints. Its clock starts for all tasks at once.
    pub fn lines(&self) -> impl Iterator<Item = ThreadLines> {
        let start_ns = self.start_ns();
        self.threads().map(move |outcome| {
            let usecs = (outcome.end_ns.saturating_sub(start_ns) / 1000).max(1);
            let bytes = outcome.usemem_bytes();
            ThreadLines {
                bytes,
                usecs,
                kb_per_s: usemem_kb_per_s(bytes, usecs),
                free_usecs: outcome.free_ns / 1000,
            }
        })
    }

    pub fn mismatches(&self) -> u64 {
        self.threads().map(|outcome| outcome.mismatches).sum()
    }

    pub fn first_mismatch(&self) -> Option<Mismatch> {
        self.threads().find_map(|outcome| outcome.first_mismatch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_from_the_first_start_to_the_last_end() {
        let outcome = |start_ns, end_ns| TouchOutcome {
            mapped_bytes: 8 << 20,
            touched_bytes: 1 << 20,
            start_ns,
            end_ns,
            ..TouchOutcome::default()
        };
        let side = SideOutcomes {
            outcomes: vec![vec![outcome(1_000, 501_000)], vec![outcome(2_000, 1_001_000)]],
            budget_bytes: None,
            faults: 0,
            peak_rss_bytes: 0,
            counters: BTreeMap::new(),
        };
        assert_eq!(side.seconds(), 0.001);
        let usecs: Vec<u64> = side.lines().map(|line| line.usecs).collect();
        assert_eq!(usecs, [500, 1000]);
        // usemem counts an eighth of each mapping on top.
        assert_eq!(side.touched_bytes(), 2 << 20);
        assert!(side.lines().all(|line| line.bytes == 2 << 20));
    }
}
