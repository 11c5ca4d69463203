//! The figures of a side, from its outcome. Seconds of the job and MB/s come first. The bytes that each phase
//! moved to and from the device are separate.

use std::borrow::Cow;
use std::collections::BTreeMap;

use octavo::{AreaStats, LatencySnapshot};

use super::data::PAGE_BYTES;
use super::disk_side::DeviceWork;
use super::job::{Contender, SwapJob};
use super::plan::{Phase, TaskPattern, TaskPlan};
use super::side::{PhaseDone, SideRun};
use super::work::PhaseOutcome;
use crate::report::{ModeRun, failures, usemem_kb_per_s};

/// The measures of a phase, by their names in the report.
#[derive(Clone, Copy, Debug)]
pub struct PhaseMeasures {
    /// The rates to and from the device, over the whole phase.
    pub out: &'static str,
    pub in_: &'static str,
    /// The rate in the phase's direction, from the first moved page to the last. Absent if no page moved.
    pub device: &'static str,
}

/// The measures of the job.
pub const JOB: PhaseMeasures =
    PhaseMeasures { out: "swap_out_mb_per_s", in_: "swap_in_mb_per_s", device: "device_mb_per_s" };

/// The measures of the writes that fill memory and swap before the reads.
pub const FILL: PhaseMeasures =
    PhaseMeasures { out: "fill_out_mb_per_s", in_: "fill_in_mb_per_s", device: "fill_device_mb_per_s" };

pub const FILL_SECONDS: &str = "fill_seconds";

/// Makes the run of any side except the bare device.
pub fn of_side(job: &SwapJob, contender: Contender, side: &SideRun) -> ModeRun {
    let timed = side.phases.iter().find(|phase| phase.timed).expect("one phase is timed");
    let seconds = timed.seconds();
    let mut measures = of_phase(timed, JOB);
    if let Some(fill) = side.phases.iter().find(|phase| phase.phase == Phase::Write && !phase.timed) {
        measures.extend(of_phase(fill, FILL));
        measures.insert(FILL_SECONDS, fill.seconds());
    }
    measures.extend(of_loads(timed));
    measures.insert("peak_allowed_bytes", allowed_bytes(side) as f64);
    measures.extend(side.ram_device_bytes.map(|bytes| ("ram_device_bytes", bytes as f64)));
    measures.extend(side.huge_bytes.map(|bytes| ("huge_bytes", bytes as f64)));
    measures.extend(side.zram_bytes.map(|bytes| ("zram_bytes", bytes as f64)));
    let latencies = side.latencies.iter().flat_map(of_latencies);
    let areas = side.areas.iter().enumerate().flat_map(|(number, area)| of_area(number, area));
    ModeRun {
        mode: contender.name().into(),
        tasks: job.tasks.into(),
        budget_bytes: Some(side.budget_bytes),
        seconds,
        mb_per_s: job_bytes(timed) as f64 / seconds / 1e6,
        usemem_kb_per_s: (timed.phase == Phase::Write).then(|| as_usemem_counts(&job.plan, timed)),
        faults: side.faults,
        faults_per_s: side.faults as f64 / seconds,
        peak_rss_bytes: side.peak_bytes.saturating_sub(side.ram_device_bytes.unwrap_or(0)),
        counters: side.counters.clone(),
        measures: measures
            .into_iter()
            .map(|(name, value)| (name.into(), value))
            .chain(latencies)
            .chain(areas)
            .collect(),
        failures: failures(side.mismatch().is_some()),
        ..ModeRun::default()
    }
}

/// Returns how long accesses waited, for each kind that occurred.
fn of_latencies(latencies: &LatencySnapshot) -> impl Iterator<Item = (Cow<'static, str>, f64)> + '_ {
    let kinds = latencies.iter().filter(|(_, waits)| waits.count > 0);
    kinds.flat_map(|(latency, waits)| {
        let name = latency.name();
        let ns =
            [("p50", waits.p50_ns), ("p99", waits.p99_ns), ("p999", waits.p999_ns), ("max", waits.max_ns)];
        ns.map(|(quantile, ns)| (format!("{name}_{quantile}_ns").into(), ns as f64))
    })
}

/// Returns what an area did in all phases.
fn of_area(number: usize, area: &AreaStats) -> impl Iterator<Item = (Cow<'static, str>, f64)> + use<> {
    let figures = [
        ("used_bytes", area.used_bytes),
        ("reads", area.reads),
        ("read_bytes", area.read_bytes),
        ("writes", area.writes),
        ("written_bytes", area.written_bytes),
        ("read_errors", area.read_errors),
        ("write_errors", area.write_errors),
        ("wait_p50_ns", area.waits.p50_ns),
        ("wait_p99_ns", area.waits.p99_ns),
        ("wait_p999_ns", area.waits.p999_ns),
    ];
    figures.into_iter().map(move |(figure, value)| (format!("area{number}_{figure}").into(), value as f64))
}

/// Makes the run of the bare device.
pub fn of_disk(job: &SwapJob, moved: DeviceWork) -> ModeRun {
    let mb_per_s = moved.bytes as f64 / moved.seconds / 1e6;
    let measures = match job.plan.pattern {
        TaskPattern::ReadRandom => {
            let (loads, threads) = (moved.operations as f64, job.tasks * job.plan.threads);
            BTreeMap::from([
                ("loads_per_s", loads / moved.seconds),
                ("us_per_load", moved.seconds * f64::from(threads) * 1e6 / loads.max(1.0)),
                ("refaults_per_s", loads / moved.seconds),
            ])
        }
        _ => BTreeMap::from([("device_mb_per_s", mb_per_s)]),
    };
    ModeRun {
        mode: Contender::Disk.name().into(),
        tasks: job.tasks.into(),
        seconds: moved.seconds,
        mb_per_s,
        measures: measures.into_iter().map(|(name, value)| (name.into(), value)).collect(),
        ..ModeRun::default()
    }
}

/// Returns the bytes of memory that the job wrote or read in order. For random loads, returns the bytes of
/// the pages that came back for them.
fn job_bytes(timed: &PhaseDone) -> u64 {
    let pages = match timed.phase {
        Phase::Loads => pages_back(timed),
        Phase::Write | Phase::ReadBack => timed.outcomes().map(|outcome| outcome.accesses).sum(),
    };
    pages * PAGE_BYTES as u64
}

/// Returns the pages that came from the device and, with Octavo, from the compressed pool.
fn pages_back(phase: &PhaseDone) -> u64 {
    let moved = phase.seen.total();
    moved.in_pages + moved.pool_in_pages
}

fn of_phase(phase: &PhaseDone, names: PhaseMeasures) -> BTreeMap<&'static str, f64> {
    let (seconds, moved) = (phase.seconds(), phase.seen.total());
    let mb_per_s = |pages: u64| pages as f64 * PAGE_BYTES as f64 / seconds / 1e6;
    let steady = match phase.phase {
        Phase::Write => phase.seen.steady_bytes_per_s(|traffic| traffic.out_pages),
        Phase::ReadBack | Phase::Loads => phase.seen.steady_bytes_per_s(|traffic| traffic.in_pages),
    };
    let mut measures =
        BTreeMap::from([(names.out, mb_per_s(moved.out_pages)), (names.in_, mb_per_s(moved.in_pages))]);
    measures.extend(steady.map(|bytes| (names.device, bytes / 1e6)));
    measures
}

fn of_loads(timed: &PhaseDone) -> BTreeMap<&'static str, f64> {
    if timed.phase != Phase::Loads {
        return BTreeMap::new();
    }
    let (seconds, threads) = (timed.seconds(), timed.outcomes().count() as f64);
    let loads = timed.outcomes().map(|outcome| outcome.accesses).sum::<u64>() as f64;
    BTreeMap::from([
        ("loads_per_s", loads / seconds),
        ("us_per_load", seconds * threads * 1e6 / loads.max(1.0)),
        ("refaults_per_s", pages_back(timed) as f64 / seconds),
    ])
}

/// Returns usemem's KB/s, summed over all tasks. Each task counts by its own time, so a task that ends early
/// counts more.
fn as_usemem_counts(plan: &TaskPlan, phase: &PhaseDone) -> u64 {
    let start_ns = phase.start_ns();
    let of_task = |outcome: &PhaseOutcome| {
        let usecs = (outcome.end_ns.saturating_sub(start_ns) / 1000).max(1);
        usemem_kb_per_s(usemem_bytes(plan, outcome), usecs)
    };
    phase.outcomes().map(of_task).fold(0, u64::saturating_add)
}

/// Returns the bytes that usemem counts: an eighth of the mapping, and 8 for each word.
fn usemem_bytes(plan: &TaskPlan, outcome: &PhaseOutcome) -> u64 {
    plan.task_bytes / 8 + outcome.words * 8
}

/// Returns the allowed memory: the budget, plus 3 % and 16 MiB.
fn allowed_bytes(side: &SideRun) -> u64 {
    side.budget_bytes + side.budget_bytes * 3 / 100 + (16 << 20)
}

#[cfg(test)]
mod tests {
    use super::super::monitor::{DeviceTraffic, PhaseSamples};
    use super::super::plan::small;
    use super::*;

    fn done(phase: Phase, outcomes: Vec<PhaseOutcome>, moved: DeviceTraffic) -> PhaseDone {
        PhaseDone {
            phase,
            timed: true,
            outcomes: vec![outcomes],
            seen: PhaseSamples::of(DeviceTraffic::default(), moved),
        }
    }

    #[test]
    fn a_write_counts_as_usemem_counts_it() {
        let plan = small(TaskPattern::WriteSequential);
        let outcome = PhaseOutcome { words: 16 * 512, ..PhaseOutcome::default() };
        assert_eq!(usemem_bytes(&plan, &outcome), (64 << 10) / 8 + (64 << 10));
    }

    #[test]
    fn tasks_that_end_early_lift_usemems_figure_and_not_the_jobs() {
        let plan = small(TaskPattern::WriteSequential);
        let task = |end_ns| PhaseOutcome { accesses: 16, words: 16 * 512, end_ns, ..PhaseOutcome::default() };
        let even = done(Phase::Write, vec![task(4_000_000), task(4_000_000)], DeviceTraffic::default());
        let uneven = done(Phase::Write, vec![task(1_000_000), task(4_000_000)], DeviceTraffic::default());
        assert_eq!((even.seconds(), uneven.seconds()), (0.004, 0.004));
        assert_eq!((job_bytes(&even), job_bytes(&uneven)), (2 * 16 * 4096, 2 * 16 * 4096));
        let kb = |phase| as_usemem_counts(&plan, phase);
        assert!(kb(&uneven) > 2 * kb(&even));
    }

    #[test]
    fn loads_are_counted_by_all_threads_and_what_comes_back_from_the_pool_too() {
        let outcome = PhaseOutcome { accesses: 1000, end_ns: 500_000_000, ..PhaseOutcome::default() };
        let moved = DeviceTraffic { in_pages: 30, pool_in_pages: 20, out_pages: 500 };
        let loads = done(Phase::Loads, vec![outcome.clone(), outcome], moved);
        let rates = of_loads(&loads);
        assert_eq!((rates["loads_per_s"], rates["us_per_load"]), (4000.0, 500.0));
        assert_eq!(rates["refaults_per_s"], 100.0);
        assert_eq!(job_bytes(&loads), 50 * 4096);
        let phase = of_phase(&loads, JOB);
        let mb = |pages: f64| pages * 4096.0 / 0.5 / 1e6;
        assert_eq!((phase["swap_in_mb_per_s"], phase["swap_out_mb_per_s"]), (mb(30.0), mb(500.0)));
    }
}
