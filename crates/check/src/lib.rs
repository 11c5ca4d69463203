//! Runs Octavo's whole engine under chosen schedules.
//!
//! A run is a function of its seed: the seed chooses the manager's switches, the device's behaviour, the work
//! of each thread, and the schedule. The seed repeats a failed run and shows its interleaving.
//!
//! | module | what |
//! |---|---|
//! | `workloads` | the work: threads that know what they must find |
//! | `faces` | the engines under test: Octavo's, and one in which a bug can be switched on |

#[allow(clippy::duplicate_mod, reason = "one workload on two engines")]
mod faces;

use clap::ValueEnum;
use octavo_mutants::mutant;
pub use octavo_mutants::mutant::Mutant;
use octavo_sim::{Exploration, Explored, Random, Schedule, explore, explore_all};

pub use octavo_mutants::mutant::ALL as MUTANTS;

/// If a run makes more operations on shared words than this, it counts as endless.
pub const MOST_STEPS: u64 = 20_000_000;

/// What the threads of a run do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// A whole manager: lanes of bytes, mappings that come and go, strangers
    Lanes,
    /// One page that goes out and comes back all the time
    OnePage,
    /// The huge zero page
    ZeroPage,
    /// The first page of a space
    FirstPage,
    /// Two ranges that take each other's table nodes
    Nodes,
    /// A program at the other side of a translation, which forks
    Family,
    /// A file whose pages go out and are synced, while its end moves. No seed chooses it by itself
    Files,
    /// Pages that are lent as slices. No seed chooses it by itself
    Guards,
    /// Pages that are written while they are pinned. No seed chooses it by itself
    Pins,
}

impl Workload {
    /// Returns about how many operations on shared words a run has.
    fn steps(self) -> u64 {
        match self {
            Self::Lanes => 63_000,
            Self::OnePage => 120_000,
            Self::ZeroPage => 29_000,
            Self::FirstPage => 15_000,
            Self::Family => 98_000,
            Self::Nodes => 92_000,
            Self::Files => 100_000,
            Self::Guards => 30_000,
            Self::Pins => 180_000,
        }
    }

    /// Returns the workload that a seed chooses.
    pub fn of_seed(seed: u64) -> Self {
        let all = [
            Self::OnePage,
            Self::ZeroPage,
            Self::FirstPage,
            Self::Lanes,
            Self::Lanes,
            Self::Family,
            Self::Nodes,
        ];
        all[(seed % all.len() as u64) as usize]
    }
}

/// Threads that meet once. All schedules of such a meeting with few preemptions can be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pair {
    /// A store, and the page goes out
    StoreAndPageOut,
    /// The first store to a clean page, and the page goes out
    StoreToCleanAndPageOut,
    /// A store to a page that is out, and goes out again
    StoreAndReturn,
    /// A pin that writes, and the page goes out
    PinAndPageOut,
    /// A pin that writes a clean page, and the page goes out
    PinOfCleanAndPageOut,
    /// A page is written whole under a pin that writes, and has gone out meanwhile
    OverwriteUnderPin,
    /// A load, and the page goes out and leaves its frame to another
    LoadAndReuse,
    /// Two threads want a page that is out
    TwoReturns,
    /// A page is unmapped while it goes out
    UnmapAndPageOut,
    /// A page that is out is unmapped while it is wanted
    UnmapAndReturn,
    /// A page that is out may only be read from now on, while it is wanted
    ProtectAndReturn,
    /// The first store to a space, and the page is unmapped
    FirstStoreAndUnmap,
    /// Like `FirstStoreAndUnmap`, but at a high address, where the table is tall
    FirstStoreFarAndUnmap,
    /// The first stores of two threads to one page
    TwoFirstStores,
    /// The last user of the huge zero page, the next one, and the shrinker
    ZeroPageAndShrinker,
    /// A process that forks while its other thread stores
    ForkAndFault,
    /// A page that a fork shares: one process unmaps it, the other wants it, and it goes out
    SharedPageAndUnmap,
}

/// The outcome of all schedules of a meeting.
#[derive(Debug)]
pub struct Exhausted {
    /// The number of schedules tried.
    pub tried: u64,
    /// Whether these were all schedules with at most the allowed preemptions.
    pub are_all: bool,
    /// The first schedule that failed.
    pub failed: Option<Explored<()>>,
}

/// Tries the schedules of a meeting with at most `preemptions` preemptions, up to the first that fails.
pub fn exhaust(
    pair: Pair,
    mutant: Option<&'static Mutant>,
    preemptions: u32,
    most_schedules: u64,
) -> Exhausted {
    let schedule = Schedule::Given { path: Vec::new(), preemptions };
    let exploration = Exploration { cpus: 2, schedule, seed: 1, most_steps: MOST_STEPS, is_traced: false };
    let (tried, are_all, failed) = match mutant {
        None => explore_all(&exploration, preemptions, most_schedules, || {
            move || faces::engine::workloads::pairs::run(pair)
        }),
        Some(mutant) => on_a_thread(|| {
            mutant::with(mutant, || {
                explore_all(&exploration, preemptions, most_schedules, || {
                    move || faces::mutants::workloads::pairs::run(pair)
                })
            })
        }),
    };
    Exhausted { tried, are_all, failed }
}

/// A run to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The seed, which names the case.
    pub seed: u64,
    /// What the threads do. `None` lets the seed choose.
    pub workload: Option<Workload>,
    /// The bug to switch on.
    pub mutant: Option<&'static Mutant>,
}

/// Runs a case, and keeps its steps if `is_traced`.
pub fn run(case: Case, is_traced: bool) -> Explored<()> {
    let (seed, workload) = (case.seed, case.workload.unwrap_or_else(|| Workload::of_seed(case.seed)));
    let mut random = Random::new(seed ^ 0x6361_7365);
    let cpus = [1, 2, 4, 8][random.below(4) as usize];
    let schedule = match random.below(8) {
        0 => Schedule::Random,
        1..=6 => Schedule::Delays { places: 1 << random.below(6), rarely: 1 << (1 + random.below(5)) },
        _ => Schedule::Priorities { changes: 2 + random.below(8) as u32, steps: workload.steps() },
    };
    let exploration = Exploration { cpus, schedule, seed, most_steps: MOST_STEPS, is_traced };
    match case.mutant {
        None => explore(&exploration, move || faces::engine::workloads::run(workload, seed)),
        Some(mutant) => on_a_thread(|| {
            mutant::with(mutant, || {
                explore(&exploration, move || faces::mutants::workloads::run(workload, seed))
            })
        }),
    }
}

/// Calls `work` on a thread of its own: after a panic, the thread may be unable to run another simulation.
fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(done) => done,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
