//! Whole runs of the engine over the test device. The seed decides each run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use octavo::{Compression, Machine};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::exact::{self, OracleCase};
use super::lanes::{self, LaneLoad};
use crate::common::device::{Happened, Manner, TestDevice, Whims};
use crate::common::{MIB, PAGE, Random, Switches, Watchdog, assert_only_kept};

/// Returns whether the seed's run depends on the seed alone. The compressed pool also depends on measured
/// times.
pub fn repeats_exactly(seed: u64) -> bool {
    Switches::random(&mut Random::new(seed)).compression == Compression::Off
}

/// Runs a seed on one thread, which also does the device's part, so the same seed gives the same run. Returns
/// what happened at the device.
pub fn run_driven(seed: u64) -> Happened {
    let _watchdog = Watchdog::new(repeat(seed, "driven"));
    let mut random = Random::new(seed);
    let _cpu = OneCpu::new(seed);
    let switches = Switches::random(&mut random);
    // Some capacities are so small that clean pages give up their places.
    let capacity = random.pick(&[700, 1500, 3000, 16384]);
    let device = TestDevice::simulated(capacity, random.next(), Manner::Driven, Whims::random(&mut random));
    let builder = switches.builder().budget_bytes(16 * MIB).background(false).machine(counted_time());
    let manager = builder.swap_device(device.boxed()).build().unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        // The spaces come one after the other. Each space meets the transfers that the previous space left
        // under way.
        for _ in 0..1 + random.below(3) {
            let steps = 200 + random.below(2500);
            let mut case = OracleCase::random(&mut random, steps);
            case.room_frames = 64 + random.below(600);
            exact::run_in(&case, &manager, Some(&device));
        }
        device.drain();
        assert_only_kept(&manager, switches.keeps_huge_zero(), switches.encrypt);
    }));
    if let Err(panic) = result {
        eprintln!("failed: {}, {switches:?}, {:?}", repeat(seed, "driven"), device.whims());
        resume_unwind(panic);
    }
    device.happened()
}

/// Returns a machine whose clock advances with each reading. So actions that depend on time, like retrying a
/// failing device, also repeat exactly, however busy the real machine is.
fn counted_time() -> Machine {
    let readings = AtomicU64::new(0);
    Machine::real().with_clock(move || Duration::from_millis(readings.fetch_add(1, Ordering::Relaxed)))
}

/// Keeps the thread on one CPU: each CPU has its own lists, so a run that changes between CPUs does not
/// repeat exactly. If the kernel refuses, the run is still correct.
struct OneCpu(Option<CpuSet>);

impl OneCpu {
    fn new(seed: u64) -> Self {
        let before = sched_getaffinity(None).ok();
        if let Some(all) = &before {
            let ours: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
            let mut one = CpuSet::new();
            one.set(ours[seed as usize % ours.len()]);
            let _ = sched_setaffinity(None, &one);
        }
        Self(before)
    }
}

impl Drop for OneCpu {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}

/// Runs several threads on their lanes of one space. They must drive the device, or the device has threads of
/// its own.
pub fn run_threaded(seed: u64) {
    let _watchdog = Watchdog::new(repeat(seed, "threaded"));
    let mut random = Random::new(seed ^ 0x7468_7264);
    let manner = random.pick(&[Manner::Served, Manner::Served, Manner::Threads(1), Manner::Threads(3)]);
    let load = LaneLoad {
        threads: 1 + random.below(4) as usize,
        steps: 300 + random.below(1500),
        pages: 16 * MIB / PAGE * (4 + random.below(4)) / 4,
        device_faults: random.one_in(2),
        other_spaces: random.one_in(2),
        budget_bytes: 16 * MIB,
        simulated: Some(manner),
    };
    if let Err(panic) = catch_unwind(|| lanes::run(seed, load)) {
        eprintln!("failed: {}", repeat(seed, "threaded"));
        resume_unwind(panic);
    }
}

fn repeat(seed: u64, how: &str) -> String {
    format!("seed {seed}, {how}; again: cargo xtask soak --simulated --seeds 1 --seed {seed}")
}
