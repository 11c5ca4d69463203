//! The figures of a run.

use std::collections::BTreeMap;
use std::fmt;

use octavo::{AreaStats, Counter, Latency, Manager, PAGE_BYTES, Quantiles, SpaceStats, bytes_for_people};
use octavo_platform::accessed::AccessedBits;
use octavo_window::Served;
use serde::Serialize;

use crate::managed::Managed;
use crate::managed::kinds::MemoryKind;
use crate::report::rungs::{Files, KernelPaging};
use crate::system::proc::Fixed;
use crate::tree::Tree;

/// With fewer pages than this, the pool's first block distorts the compression ratio.
const LEAST_PACKED: u64 = 2048;

/// A process is reported if it had this many bytes more than the peak. It may have had them between two
/// looks, or as pages of files.
const MUCH_OF_FILES: u64 = 32 << 20;

/// Smaller amounts of a kind that cannot be paged are not reported.
const LEAST_UNPAGED: u64 = 1 << 20;

/// Faults by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FaultsByKind {
    /// Faults at missing pages.
    pub missing: u64,
    /// First stores to clean pages.
    pub stores: u64,
    /// Pages that came along with another page's fault.
    pub along: u64,
    /// Faults that waited for a device or for room.
    pub waited: u64,
    /// Faults that were served on the CPU of the thread that met them.
    pub beside: u64,
    /// Changes of mappings (unmapped, moved, dropped, forked), and how long they took. Meanwhile, no fault of
    /// their process was served.
    pub changes: u64,
    /// See `changes`.
    pub changing_seconds: f64,
}

/// How long the program waited, in seconds. The waits of several threads, or processes, add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Waits {
    /// The waits for devices to read pages.
    pub device_seconds: f64,
    /// The waits for pages to be unpacked. One page in 64 is timed.
    pub unpacking_seconds: f64,
    /// The waits for room.
    pub room_seconds: f64,
    /// How long processes stood still: to be taken over, or to wait for their turns.
    pub stood_seconds: f64,
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// The most memory that the tree and the runner had together: anonymous memory, shared memory and page
    /// tables.
    pub peak_bytes: u64,
    /// The most memory that one process had at some moment, as the kernel counts it. The kernel's count
    /// includes moments between two looks, and pages of files. 0 if an earlier child of this process had
    /// more.
    pub largest_process_bytes: u64,
    /// The limit.
    pub budget_bytes: u64,
    /// The memory that the tree and the runner had at the last look, counted like `peak_bytes`.
    pub used_bytes: u64,
    /// The memory, present or out, that is managed now, and the part of it that is out.
    pub managed_bytes: u64,
    /// See `managed_bytes`.
    pub swapped_bytes: u64,
    /// The address space of the memory that is managed now. Until the program maps more, `managed_bytes`
    /// cannot exceed this.
    pub mapped_bytes: u64,
    /// The most anonymous memory that the tree had.
    pub anonymous_peak_bytes: u64,
    /// The most shared memory, and the most page tables, that the tree and the runner had. Neither can be
    /// paged.
    pub shared_peak_bytes: u64,
    /// See `shared_peak_bytes`.
    pub page_tables_peak_bytes: u64,
    /// The most memory of each kind that could not be paged. Private memory is counted only near the limit.
    pub unpaged_peak_bytes: BTreeMap<MemoryKind, u64>,
    /// The most memory, present or out, that was managed.
    pub managed_peak_bytes: u64,
    /// The part of the anonymous memory of managed processes that was managed, at that peak.
    pub managed_share: f64,
    /// Pages that went out, and pages that came back, in bytes.
    pub swapped_out_bytes: u64,
    /// See `swapped_out_bytes`.
    pub swapped_in_bytes: u64,
    /// Bytes that were written to devices, and read from them.
    pub written_bytes: u64,
    /// See `written_bytes`.
    pub read_bytes: u64,
    /// Pages that were packed in memory, and unpacked for faults, in bytes.
    pub packed_bytes: u64,
    /// See `packed_bytes`.
    pub unpacked_bytes: u64,
    /// Faults.
    pub faults: FaultsByKind,
    /// How long the run took.
    pub seconds: f64,
    /// The CPU time of the program's processes that have ended, including Octavo's helpers in them, and of
    /// the runner.
    pub program_cpu_seconds: f64,
    /// See `program_cpu_seconds`.
    pub own_cpu_seconds: f64,
    /// The part of the runner's CPU time that packing and writing pages in the background took.
    pub background_cpu_seconds: f64,
    /// How long the program waited.
    pub waits: Waits,
    /// With this much more memory, half of the pages that came back would have stayed.
    pub more_bytes_for_half: Option<u64>,
    /// With this much more memory, nine tenths of the pages that came back would have stayed.
    pub more_bytes_for_most: Option<u64>,
    /// How long faults took, by kind, and how long threads that made room were stalled.
    pub latencies: BTreeMap<&'static str, Quantiles>,
    /// The figures of each swap area.
    pub areas: Vec<AreaStats>,
    /// The size of the pages in the compressed pool, divided by the bytes that they took there, when the pool
    /// held most pages.
    pub compression_ratio: Option<f64>,
    /// Whether the processor's accessed bits showed which pages are in use. Otherwise, only faults show it.
    pub accessed_bits: bool,
    /// Processes that were seen.
    pub processes: u64,
    /// Processes that were managed at some time, and the most at one time.
    pub managed_processes: u64,
    /// See `managed_processes`.
    pub most_managed: u64,
    /// How many processes could not be managed, by reason.
    pub refused: BTreeMap<String, u64>,
    /// The names of these processes' programs, by reason.
    #[serde(skip)]
    pub(crate) refused_programs: BTreeMap<String, Vec<String>>,
    /// The most memory that could not be paged, of all kinds together, near the limit.
    pub unpaged_bytes: u64,
    /// What the file rung has done, if the run took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<Files>,
    /// What the kernel has done, if the run took the kernel rung.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelPaging>,
    /// The memory that the tree has without the runner, present or out, and the most that it had.
    #[serde(skip)]
    pub(crate) tree_bytes: u64,
    /// See `tree_bytes`.
    #[serde(skip)]
    pub(crate) tree_peak_bytes: u64,
    /// The part of `tree_bytes` that is present.
    #[serde(skip)]
    pub(crate) tree_present_bytes: u64,
    /// The swap area with the longest median time of a read, and this time in nanoseconds.
    #[serde(skip)]
    pub(crate) slowest: Option<(String, u64)>,
    /// Swap traffic and faults of processes that have ended.
    #[serde(skip)]
    pub(crate) ended: Traffic,
    /// Pages in the compressed pool when it held most of them.
    #[serde(skip)]
    pub(crate) pool_pages: u64,
}

/// Swap traffic and faults of some processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Traffic {
    out_bytes: u64,
    in_bytes: u64,
    faults: FaultsByKind,
}

impl Traffic {
    fn add(&mut self, stats: Option<SpaceStats>, served: Served) {
        if let Some(stats) = stats {
            self.out_bytes += stats.swapped_out_bytes;
            self.in_bytes += stats.swapped_in_bytes;
        }
        self.faults.missing += served.missing;
        self.faults.stores += served.stores;
        self.faults.along += served.along;
        self.faults.waited += served.waited;
        self.faults.beside += served.beside;
        self.faults.changes += served.changes;
        self.faults.changing_seconds += served.changing.as_secs_f64();
    }
}

impl Summary {
    /// Records how much memory the tree has.
    pub(crate) fn note_peaks(&mut self, anonymous: u64, fixed: Fixed) {
        self.tree_present_bytes = anonymous + fixed.shared + fixed.tables;
        self.anonymous_peak_bytes = self.anonymous_peak_bytes.max(anonymous);
        self.shared_peak_bytes = self.shared_peak_bytes.max(fixed.shared);
        self.page_tables_peak_bytes = self.page_tables_peak_bytes.max(fixed.tables);
        self.note_unpaged(MemoryKind::Shared, fixed.shared);
        self.note_unpaged(MemoryKind::PageTables, fixed.tables);
    }

    /// Records memory that cannot be paged.
    pub(crate) fn note_unpaged(&mut self, kind: MemoryKind, bytes: u64) {
        let most = self.unpaged_peak_bytes.entry(kind).or_default();
        *most = bytes.max(*most);
    }

    /// Records that a process could not be managed.
    pub(crate) fn note_refused(&mut self, why: &str, program: &str) {
        *self.refused.entry(why.into()).or_default() += 1;
        self.refused_programs.entry(why.into()).or_default().push(program.into());
    }

    /// Records that a process that could not be managed is managed now.
    pub(crate) fn forget_refused(&mut self, why: &str, program: &str) {
        let Some(programs) = self.refused_programs.get_mut(why) else { return };
        let Some(at) = programs.iter().position(|known| known == program) else { return };
        programs.remove(at);
        if let Some(processes) = self.refused.get_mut(why) {
            *processes -= 1;
        }
        self.refused.retain(|_, processes| *processes > 0);
    }

    /// Records the figures of the manager and of managed processes. The processes in `ending` have ended, and
    /// will be [added](Self::add) soon.
    pub(crate) fn note(
        &mut self,
        manager: &Manager,
        managed: &BTreeMap<u32, Managed>,
        ending: &[(u32, Managed)],
        tree: &Tree,
    ) {
        self.accessed_bits = AccessedBits::ready().is_some();
        let counters = manager.counters();
        let bytes = |counter| counters.get(counter) * PAGE_BYTES as u64;
        (self.written_bytes, self.read_bytes) = (bytes(Counter::SwapOut), bytes(Counter::SwapIn));
        (self.packed_bytes, self.unpacked_bytes) = (bytes(Counter::PoolSwapOut), bytes(Counter::PoolSwapIn));
        let (mut resident, mut mapped, mut anonymous, mut traffic) = (0, 0, 0, self.ended);
        for (pid, managed) in managed {
            let stats = managed.space.stats().ok();
            traffic.add(stats, managed.served());
            resident += stats.map_or(0, |stats| stats.resident_bytes);
            mapped += stats.map_or(0, |stats| stats.mapped_bytes);
            anonymous += tree.processes.get(pid).map_or(0, |process| process.memory.anonymous);
        }
        ending.iter().for_each(|(_, ended)| traffic.add(ended.space.stats().ok(), ended.served()));
        self.show(traffic);
        let Ok(stats) = manager.stats() else { return };
        // Neither bound is exact: present pages may keep their slots, and pages that were dropped while out
        // never come back.
        let slots_bytes = stats.swap_slots * PAGE_BYTES as u64;
        let out = slots_bytes.min(traffic.out_bytes.saturating_sub(traffic.in_bytes));
        (self.managed_bytes, self.swapped_bytes, self.mapped_bytes) = (resident + out, out, mapped);
        self.tree_bytes = self.tree_present_bytes + out;
        self.tree_peak_bytes = self.tree_peak_bytes.max(self.tree_bytes);
        if resident + out > self.managed_peak_bytes {
            self.managed_peak_bytes = resident + out;
            self.managed_share = ((resident + out) as f64 / (anonymous + out).max(1) as f64).min(1.0);
        }
        if stats.pool_pages > self.pool_pages.max(LEAST_PACKED) {
            self.pool_pages = stats.pool_pages;
            let ratio = (stats.pool_pages * PAGE_BYTES as u64) as f64 / stats.pool_bytes.max(1) as f64;
            self.compression_ratio = Some(ratio);
        }
    }

    /// Records how long the program waited for the manager, and the effect that more memory would have.
    pub(crate) fn note_waits(&mut self, manager: &Manager) {
        let waits: BTreeMap<_, _> = manager.latencies().iter().collect();
        let seconds = |latency: Latency| {
            let timed = &waits[&latency];
            (timed.count * latency.one_of()) as f64 * timed.mean_ns as f64 / 1e9
        };
        self.waits = Waits {
            device_seconds: seconds(Latency::Device),
            unpacking_seconds: seconds(Latency::Unpacked),
            room_seconds: manager.counters().get(Counter::StallNanoseconds) as f64 / 1e9,
            ..self.waits
        };
        // In a run, new pages come in batches, which are not timed.
        let told = waits.into_iter().filter(|(latency, _)| *latency != Latency::NewPage);
        self.latencies = told.map(|(latency, figures)| (latency.name(), figures)).collect();
        let refaults = manager.refaults();
        self.more_bytes_for_half = refaults.bytes_to_keep(0.5);
        self.more_bytes_for_most = refaults.bytes_to_keep(0.9);
        self.areas = manager.areas().unwrap_or_default();
        let read = self.areas.iter().filter(|area| area.waits.count > 0);
        let slowest = read.max_by_key(|area| area.waits.p50_ns);
        self.slowest = slowest.map(|area| (area.name.clone(), area.waits.p50_ns));
    }

    /// Adds a process that has ended.
    pub(crate) fn add(&mut self, managed: Managed) {
        let stats = managed.space.stats().ok();
        self.ended.add(stats, managed.end());
        self.show(self.ended);
    }

    fn show(&mut self, traffic: Traffic) {
        (self.swapped_out_bytes, self.swapped_in_bytes) = (traffic.out_bytes, traffic.in_bytes);
        self.faults = traffic.faults;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "octavo: peak {} of a limit of {}",
            bytes_for_people(self.peak_bytes),
            bytes_for_people(self.budget_bytes)
        )?;
        if self.largest_process_bytes > self.peak_bytes + MUCH_OF_FILES {
            let largest = bytes_for_people(self.largest_process_bytes);
            writeln!(f, "octavo: for a moment a process had {largest}, with its pages of files")?;
        }
        let unpaged = self.unpaged_peak_bytes.iter().filter(|(_, bytes)| **bytes >= LEAST_UNPAGED);
        let unpaged: Vec<_> = unpaged
            .map(|(kind, bytes)| format!("{} of {}", bytes_for_people(*bytes), kind.words()))
            .collect();
        if !unpaged.is_empty() {
            writeln!(f, "octavo: what cannot be paged, at the most: {}", unpaged.join(", "))?;
        }
        match (&self.files, &self.kernel) {
            (Some(files), _) => self.show_files(f, files),
            (_, Some(kernel)) => self.show_kernel(f, kernel),
            _ => self.show_pool(f),
        }
    }
}

impl Summary {
    fn show_pool(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "octavo: {} of {} processes managed, {:.1} % of their private memory",
            self.managed_processes,
            self.processes,
            100.0 * self.managed_share
        )?;
        writeln!(
            f,
            "octavo: {} went out, {} came back. {} written to swap, {} read; {} packed in memory",
            bytes_for_people(self.swapped_out_bytes),
            bytes_for_people(self.swapped_in_bytes),
            bytes_for_people(self.written_bytes),
            bytes_for_people(self.read_bytes),
            bytes_for_people(self.packed_bytes)
        )?;
        if let Some(ratio) = self.compression_ratio {
            writeln!(f, "octavo: packed pages took one part in {ratio:.1}")?;
        }
        write!(
            f,
            "octavo: {:.1} s. Its threads together waited {:.1} s for pages, and its processes together stood still for {:.1} s",
            self.seconds,
            self.waits.device_seconds + self.waits.unpacking_seconds + self.waits.room_seconds,
            self.waits.stood_seconds
        )
    }

    fn show_files(&self, f: &mut fmt::Formatter<'_>, files: &Files) -> fmt::Result {
        writeln!(f, "octavo: {} of {} processes managed", self.managed_processes, self.processes)?;
        writeln!(
            f,
            "octavo: {} went out, {} written to files; {} faults waited for a disk",
            bytes_for_people(self.swapped_out_bytes),
            bytes_for_people(self.written_bytes),
            files.disk_faults
        )?;
        writeln!(f, "octavo: {files}")?;
        write!(
            f,
            "octavo: {:.1} s. Its processes together stood still for {:.1} s. How long threads waited for pages is not measured",
            self.seconds, self.waits.stood_seconds
        )
    }

    fn show_kernel(&self, f: &mut fmt::Formatter<'_>, kernel: &KernelPaging) -> fmt::Result {
        writeln!(f, "octavo: {kernel}")?;
        match kernel.waited_seconds {
            Some(waited) => {
                write!(
                    f,
                    "octavo: {:.1} s. Some thread waited for memory for {waited:.1} s of it",
                    self.seconds
                )
            }
            None => {
                write!(f, "octavo: {:.1} s. How long threads waited for pages is not measured", self.seconds)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_managed_after_all_counts_no_more() {
        let mut summary = Summary::default();
        ["sh", "gdb"].iter().for_each(|program| summary.note_refused("it is traced", program));
        summary.forget_refused("it is traced", "other");
        assert_eq!(summary.refused["it is traced"], 2);
        summary.forget_refused("it is traced", "sh");
        assert_eq!(summary.refused["it is traced"], 1);
        assert!(summary.explain(None).contains("a process (gdb) was not managed: it is traced"));
        summary.forget_refused("it is traced", "gdb");
        assert!(summary.refused.is_empty() && !summary.explain(None).contains("not managed"));
    }

    #[test]
    fn each_rung_shows_only_what_it_measures() {
        let pool = Summary { processes: 3, managed_processes: 2, seconds: 2.7, ..Summary::default() };
        let told = pool.to_string();
        assert!(told.contains("octavo: 2 of 3 processes managed, 0.0 %"), "{told}");
        let waited = "2.7 s. Its threads together waited 0.0 s for pages, and its processes together stood still for 0.0 s";
        assert!(told.ends_with(waited), "{told}");
        let told = Summary { kernel: Some(KernelPaging::default()), ..Summary::default() }.to_string();
        assert!(!["managed", "went out", "waited 0.0"].iter().any(|words| told.contains(words)), "{told}");
        let told = Summary { files: Some(Files::default()), ..pool }.to_string();
        assert!(told.contains("octavo: 2 of 3 processes managed\n"), "{told}");
        assert!(!["%", "came back", "waited 0.0"].iter().any(|words| told.contains(words)), "{told}");
    }
}
