//! Replays a trace in the engine: one thread accesses the pages of one space, and the manager has the policy
//! and the budget.
//!
//! | in the trace | in the engine |
//! |---|---|
//! | a page's first use, if a read | a store of zero: a fault that takes a frame, but leaves the page zero, so no device has to keep it |
//! | a later read | a load |
//! | a write | a store of a word that is not zero |
//!
//! A page that was only read holds zeros. So it is evicted without a write, like a clean page of a file. The
//! swap area is memory, so transfers complete at once, and only the replay's thread reclaims. So the result
//! of a replay does not depend on time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use octavo::io::SwapArea;
use octavo::{CHUNK_FRAMES, Compression, Counter, CounterSnapshot, Manager, RegionOptions};
use octavo_command::failure::Failure;
use octavo_trace::{ReplayOutcome, Step, Trace};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

use crate::choices::PolicyChoice;

const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;
/// Steps between two looks at the number of frames online.
const BATCH: usize = 256;
/// Swap slots in addition to two for each page. With two, clean pages in memory can keep their slots.
const SPARE_PAGES: u64 = 1 << 16;

/// The result of a policy on a trace.
#[derive(Clone, Copy, Debug)]
pub struct Replayed {
    pub outcome: ReplayOutcome,
    /// The most frames that were available for pages. The policy cannot have had more pages in memory.
    pub frames: u64,
}

/// Replays a trace under a policy of the engine, with a budget in bytes. `progress` counts steps.
pub fn replay(
    trace: &Trace,
    policy: PolicyChoice,
    memory_bytes: u64,
    progress: Option<&AtomicU64>,
) -> Result<Replayed, Failure> {
    thread::scope(|scope| {
        let named = thread::Builder::new().name("replay".into());
        let replay = named.spawn_scoped(scope, || {
            stay_on_this_cpu();
            let manager = build(trace, policy, memory_bytes)?;
            let replayed = run(&manager, trace, progress)?;
            manager.shutdown().map_err(octavo::ShutdownRefused::into_error)?;
            Ok(replayed)
        });
        let replay = replay.map_err(|error| Failure::system("cannot start the replay's thread", error))?;
        replay.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Keeps this thread on its CPU, since each CPU keeps some free frames to itself. If the kernel refuses, only
/// few frames are affected.
fn stay_on_this_cpu() {
    let mut only = CpuSet::new();
    only.set(sched_getcpu());
    let _ = sched_setaffinity(None, &only);
}

fn build(trace: &Trace, policy: PolicyChoice, memory_bytes: u64) -> octavo::Result<Manager> {
    let slots = u64::from(trace.pages()) * 2 + SPARE_PAGES;
    Manager::builder()
        .budget_bytes(memory_bytes)
        .reclaim_policy(policy.policy())
        .swap_area(SwapArea::ram(slots * PAGE_BYTES))
        .compression(Compression::Off)
        .readahead_bytes(0)
        .background(false)
        .build()
}

fn run(manager: &Manager, trace: &Trace, progress: Option<&AtomicU64>) -> Result<Replayed, Failure> {
    let space = manager.space_named("trace")?;
    let base = space.map(u64::from(trace.pages()) * PAGE_BYTES, RegionOptions::default())?;
    let mut frames = 0;
    let mut used_pages = 0;
    // A bit for each page that was written.
    let mut written = vec![0_u64; trace.pages().div_ceil(64) as usize];
    for batch in trace.steps().chunks(BATCH) {
        for step in batch {
            let (address, word) = (base + u64::from(step.page()) * PAGE_BYTES, u64::from(step.page()) + 1);
            let is_first_use = step.page() == used_pages;
            used_pages += u32::from(is_first_use);
            if is_first_use && !step.is_write() {
                space.store(address, 0_u64)?;
            }
            let (at, bit) = (step.page() as usize / 64, 1_u64 << (step.page() % 64));
            if step.is_write() {
                written[at] |= bit;
            }
            let held = if written[at] & bit == 0 { 0 } else { word };
            for _ in u32::from(is_first_use && !step.is_write())..step.times() {
                match step.is_write() {
                    true => space.store(address, word)?,
                    false => check(*step, held, space.load::<u64>(address)?)?,
                }
            }
        }
        frames = frames.max(frames_online(&manager.counters()));
        if let Some(progress) = progress {
            // Relaxed: the counter orders nothing.
            progress.fetch_add(batch.len() as u64, Ordering::Relaxed);
        }
    }
    let counters = manager.counters();
    let came_back = counters.get(Counter::SwapIn) + counters.get(Counter::ZeroSwapIn);
    let misses = u64::from(trace.pages()) + came_back;
    let outcome = ReplayOutcome {
        hits: trace.accesses() - misses,
        misses,
        write_backs: counters.get(Counter::SwapOut),
    };
    Ok(Replayed { outcome, frames })
}

/// Checks a load: a page holds its word after its first write, and zero before.
fn check(step: Step, held: u64, found: u64) -> Result<(), Failure> {
    match found == held {
        true => Ok(()),
        false => Err(Failure::Said(format!(
            "page {} held {found:#x}, and not {held:#x}, which was written there last; please report this",
            step.page()
        ))),
    }
}

fn frames_online(counters: &CounterSnapshot) -> u64 {
    let chunks = counters.get(Counter::ChunkOnline) - counters.get(Counter::ChunkOffline);
    chunks * u64::from(CHUNK_FRAMES)
}
