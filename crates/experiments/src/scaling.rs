//! How each mechanism scales with the number of CPUs, and which cache lines stop it.
//!
//! Every thread works on things of its own: a space, or blocks that only it holds. So anything that limits
//! scaling is in the engine. Nothing is calibrated, and no plain work is charged: only the engine's
//! operations on shared words count, which is the hardest test.

use std::time::Duration;

use octavo_sim::{MachineModel, Report, Stopped};
use serde::{Deserialize, Serialize};

use crate::faces::simulated;
use crate::functions::function_at;
use crate::{Form, pin, swap_cache, zero_page};

/// The mechanism that is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// Faults that map the huge zero page, in spaces of their own.
    ZeroPage,
    /// Single frames, allocated and freed.
    Frames,
    /// Blocks of order 3, allocated and freed.
    Blocks,
    /// Pins of a page, in spaces of their own.
    Pin,
    /// Pins of pages of their own in one space.
    PinShared,
    /// Pages that go through the swap cache and back, without reclaim and without a device.
    SwapCache,
    /// Writes of more pages than fit, in spaces of their own, so that each page sends another out.
    SwapOut,
}

/// Bytes of memory for each CPU of the machine, used or not.
const CPU_BYTES: u64 = 16 << 20;

/// Bytes of memory for each CPU with [`Mechanism::SwapOut`], whose tasks first fill all of it.
const SWAP_CPU_BYTES: u64 = 2 << 20;

/// Pages that a task sends out before its clock starts.
const SWAP_WARM_UP: u64 = 100;

/// The work of threads of [`Mechanism::Frames`] and [`Mechanism::Blocks`].
#[derive(Clone, Copy, Debug)]
pub struct FramesLoad {
    /// The number of threads.
    pub threads: usize,
    /// The blocks' order.
    pub order: u8,
    /// Blocks that a thread holds at a time.
    pub held: usize,
    /// How often a thread allocates and frees them.
    pub turns: u64,
    /// The memory of the whole machine.
    pub memory_bytes: u64,
}

/// The work of threads of [`Mechanism::SwapCache`].
#[derive(Clone, Copy, Debug)]
pub struct SlotsLoad {
    /// The number of threads.
    pub threads: usize,
    /// Pages that go out together.
    pub pages: u32,
    /// How often they go out before the clock starts.
    pub warm_up: u32,
    /// How often they go out after that.
    pub turns: u32,
    /// The memory of the whole machine, and the size of the device.
    pub memory_bytes: u64,
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::ZeroPage,
        Self::Frames,
        Self::Blocks,
        Self::Pin,
        Self::PinShared,
        Self::SwapCache,
        Self::SwapOut,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::ZeroPage => "zero-page",
            Self::Frames => "frames",
            Self::Blocks => "blocks",
            Self::Pin => "pin",
            Self::PinShared => "pin-shared",
            Self::SwapCache => "swap-cache",
            Self::SwapOut => "swap-out",
        }
    }

    /// Describes the mechanism for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::ZeroPage => "Faults that show the huge zero page, in spaces of their own",
            Self::Frames => "Single frames, allocated and freed",
            Self::Blocks => "Blocks of order 3, allocated and freed",
            Self::Pin => "Pins of a page, in spaces of their own",
            Self::PinShared => "Pins of pages of their own in one space",
            Self::SwapCache => "Pages that go through the swap cache and back, without reclaim or a device",
            Self::SwapOut => "Pages that go out for each page written, in spaces of their own",
        }
    }

    /// Runs it on `cpus` CPUs. Returns the operations a second of all threads, and how the time was spent.
    ///
    /// # Errors
    /// [`Stopped`] if all threads wait for each other, or the simulation has no memory.
    pub fn simulate(
        self,
        machine: &MachineModel,
        seed: u64,
        form: Form,
        cpus: usize,
    ) -> Result<(f64, Report), Stopped> {
        let beside = Duration::ZERO;
        let (throughput, profile) = match self {
            Self::ZeroPage => {
                let row = zero_page::simulate(
                    machine,
                    seed,
                    form,
                    zero_page::Load { tasks: cpus, steps: 2048, warm_up: 512, beside },
                )?;
                (row.throughput, row.profile)
            }
            Self::Frames | Self::Blocks => {
                let order = if self == Self::Blocks { 3 } else { 0 };
                let load = FramesLoad {
                    threads: cpus,
                    order,
                    held: 8,
                    turns: 200,
                    memory_bytes: u64::from(machine.cpus()) * CPU_BYTES,
                };
                let run = move || simulated::workloads::frames::run(form, load);
                let (outcome, _) = octavo_sim::run(machine, seed, run)?;
                let blocks = load.turns as f64 * load.held as f64;
                let rate = |time: &Duration| blocks / time.as_secs_f64();
                (outcome.tasks.iter().map(rate).sum(), Some(outcome.profile))
            }
            Self::Pin | Self::PinShared => {
                let is_shared = self == Self::PinShared;
                let load = pin::Load { threads: cpus, reads: 1000, pages: 1, is_shared, beside };
                let row = pin::simulate(machine, seed, form, load)?;
                (row.throughput, row.profile)
            }
            Self::SwapCache => {
                let memory_bytes = u64::from(machine.cpus()) * CPU_BYTES;
                let load = SlotsLoad { threads: cpus, pages: 32, warm_up: 20, turns: 40, memory_bytes };
                let run = move || simulated::workloads::slots::run(form, load);
                let (outcome, _) = octavo_sim::run(machine, seed, run)?;
                let rate = |(pages, time): &(u32, Duration)| f64::from(*pages) / time.as_secs_f64();
                (outcome.tasks.iter().map(rate).sum(), Some(outcome.profile))
            }
            Self::SwapOut => {
                // The memory is the same for each number of CPUs, so that the lists of a CPU always have the
                // same length.
                let budget_bytes = u64::from(machine.cpus()) * SWAP_CPU_BYTES;
                let warm_up = (budget_bytes / 4096).div_ceil(cpus as u64) + SWAP_WARM_UP;
                // Without a background thread, all points are comparable. With one, a single task would have
                // a whole extra CPU, but each of many tasks would have only a small part of it.
                let background = false;
                let load =
                    swap_cache::Load { tasks: cpus, warm_up, pages: 600, budget_bytes, background, beside };
                let row = swap_cache::simulate(machine, seed, form, load)?;
                assert!(row.out >= load.pages * cpus as u64, "each page sent another out: {}", row.out);
                (row.throughput, row.profile)
            }
        };
        Ok((throughput, profile.expect("simulated runs are profiled")))
    }
}

/// A form's throughput at each number of CPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// What was scaled.
    pub mechanism: Mechanism,
    /// The form of the mechanism.
    pub form: Form,
    /// The number of CPUs, and the operations a second of all of them.
    pub points: Vec<(usize, f64)>,
    /// The cache lines that cost most at the last point, the worst first.
    pub lines: Vec<Culprit>,
}

/// A cache line that keeps a mechanism from scaling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Culprit {
    /// The share of all threads' time spent waiting for it, or asleep on a lock in it.
    pub share: f64,
    /// How often it moved from one core to another.
    pub transfers: u64,
    /// The functions that wait for it, the most expensive first.
    pub functions: Vec<String>,
}

/// The most cache lines that a curve names.
const NAMED_LINES: usize = 5;

impl Curve {
    /// Simulates each number of CPUs.
    ///
    /// # Errors
    /// The errors of [`Mechanism::simulate`].
    pub fn simulate(
        machine: &MachineModel,
        seed: u64,
        mechanism: Mechanism,
        form: Form,
        cpus: &[usize],
    ) -> Result<Self, Stopped> {
        let (mut points, mut lines) = (Vec::new(), Vec::new());
        for &cpus in cpus {
            let (throughput, profile) = mechanism.simulate(machine, seed, form, cpus)?;
            points.push((cpus, throughput));
            lines = culprits(&profile);
        }
        Ok(Self { mechanism, form, points, lines })
    }

    /// Returns the throughput at each point, divided by linear growth from the first point: 1 is linear.
    pub fn linearity(&self) -> Vec<f64> {
        let Some(&(first, each)) = self.points.first() else { return Vec::new() };
        self.points.iter().map(|&(cpus, all)| all / (each * cpus as f64 / first as f64)).collect()
    }
}

fn culprits(profile: &Report) -> Vec<Culprit> {
    let all = profile.elapsed * profile.busy.iter().filter(|busy| **busy > 0.0).count() as f64;
    let name = |place: &str| {
        let (file, line) = place.rsplit_once(':')?;
        function_at(file, line.parse().ok()?)
    };
    let culprit = |line: &octavo_sim::LineReport| {
        let mut functions: Vec<_> = line.places.iter().filter_map(|(place, _)| name(place)).collect();
        functions.dedup();
        // No function of the engine touches the cache lines of the experiment itself, so leave these lines
        // out.
        (!functions.is_empty()).then(|| Culprit {
            share: (line.stalled + line.slept) / all,
            transfers: line.transfers,
            functions,
        })
    };
    profile.lines.iter().filter_map(culprit).take(NAMED_LINES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linearity_is_one_where_throughput_grows_as_cpus_do() {
        let points = vec![(1, 10.0), (2, 20.0), (8, 40.0)];
        let curve = Curve { mechanism: Mechanism::Pin, form: Form::Best, points, lines: Vec::new() };
        assert_eq!(curve.linearity(), [1.0, 1.0, 0.5]);
    }

    #[test]
    fn the_base_form_of_the_zero_page_stops_at_its_count_and_the_best_does_not() {
        let machine = MachineModel::named("haswell-ep").unwrap();
        let curve = |form| Curve::simulate(&machine, 1, Mechanism::ZeroPage, form, &[1, 16]).unwrap();
        let (base, best) = (curve(Form::Base), curve(Form::Best));
        assert!(base.linearity()[1] < 0.3, "{base:?}");
        assert!(base.lines[0].functions[0].starts_with("frame/zero_page"), "{base:?}");
        assert!(best.linearity()[1] > 0.7, "{best:?}");
    }

    #[test]
    fn the_swap_cache_is_linear_in_its_best_form() {
        let machine = MachineModel::named("haswell-ep").unwrap();
        let curve = |form| Curve::simulate(&machine, 1, Mechanism::SwapCache, form, &[1, 8]).unwrap();
        let (base, best) = (curve(Form::Base), curve(Form::Best));
        assert!(base.linearity()[1] < 0.3, "{base:?}");
        assert!(best.linearity()[1] > 0.9, "{best:?}");
    }
}
