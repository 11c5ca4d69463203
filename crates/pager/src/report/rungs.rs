//! The figures of the file rung and of the kernel rung.

use std::fmt;

use octavo::bytes_for_people;
use serde::Serialize;

use crate::kernel::group::GroupFigures;

/// What the file rung has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Files {
    /// How often all processes were stopped for a moment, and how often that did not succeed.
    pub stops: u64,
    /// See `stops`.
    pub failed_stops: u64,
    /// The longest stop.
    pub longest_stop_seconds: f64,
    /// Memory that was mapped from the file, private copies that were dropped, and bytes that were written in
    /// vain, since the program stored to them meanwhile.
    pub converted_bytes: u64,
    /// See `converted_bytes`.
    pub cleaned_bytes: u64,
    /// See `converted_bytes`.
    pub changed_bytes: u64,
    /// Faults that waited for a disk, to read pages or any file, of the processes that have ended.
    pub disk_faults: u64,
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} mapped from files, {} of copies dropped, {} written in vain; {} stops of all processes, the longest {:.0} ms, {} failed",
            bytes_for_people(self.converted_bytes),
            bytes_for_people(self.cleaned_bytes),
            bytes_for_people(self.changed_bytes),
            self.stops,
            1e3 * self.longest_stop_seconds,
            self.failed_stops
        )
    }
}

/// What the kernel has done for the kernel rung, by the figures of the run's control group. A figure is
/// missing if this kernel does not count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KernelPaging {
    /// The most memory that was in swap at a look.
    pub swap_peak_bytes: Option<u64>,
    /// Pages that came back from swap.
    pub came_back_bytes: Option<u64>,
    /// Faults that waited for a disk, to read swap or a file.
    pub disk_faults: Option<u64>,
    /// For how long at least one thread waited for memory. Only control groups of version 2 count it.
    pub waited_seconds: Option<f64>,
}

impl KernelPaging {
    /// Records what the group shows at a look.
    pub(crate) fn note(&mut self, now: GroupFigures) {
        self.swap_peak_bytes = self.swap_peak_bytes.max(now.swap_bytes);
        self.came_back_bytes = self.came_back_bytes.max(now.came_back_bytes);
        self.disk_faults = self.disk_faults.max(now.disk_faults);
    }
}

impl fmt::Display for KernelPaging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.swap_peak_bytes.map(|bytes| format!("at most {} in swap", bytes_for_people(bytes))),
            self.came_back_bytes.map(|bytes| format!("{} came back", bytes_for_people(bytes))),
            self.disk_faults.map(|faults| format!("{faults} faults waited for a disk")),
        ];
        let told: Vec<_> = parts.into_iter().flatten().collect();
        if told.is_empty() {
            return f.write_str("this kernel does not tell what it paged");
        }
        write!(f, "the kernel paged: {}", told.join(", "))
    }
}
