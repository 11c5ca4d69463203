//! Octavo's side: a task is a thread (or `-t` of them) with a space of its own.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use octavo::{Counter, CounterSnapshot, Manager, PercpuOrders, PinPath, RegionOptions, Space, ZeroPage};
use octavo_platform::usage;

use super::gate::Gate;
use super::touch::{Memory, Outcome, Plan, Toucher, Watch, touch};
use super::{Mode, Side};
use crate::failure::Failure;
use crate::profile::Samples;

/// Threads wait at a gate and touch memory: the depth of a call stack is known and small.
const STACK_BYTES: usize = 256 << 10;
const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;

/// Runs all tasks once under a manager of their own, and says what they did. `samples` takes note of what runs
/// from the opening of the gate to the end of the last thread.
pub(super) fn run(
    mode: Mode,
    tasks: u32,
    plan: &Plan,
    budget_bytes: Option<u64>,
    progress: Option<&AtomicU64>,
    samples: Option<&mut Samples>,
) -> Result<Side, Failure> {
    usage::reset_peak_resident();
    let manager = build(mode, budget_bytes)?;
    let spaces =
        (0..tasks).map(|task| manager.space_named(format!("task {task}"))).collect::<Result<Vec<_>, _>>()?;
    let budget_bytes = manager.stats()?.budget_bytes;
    let before = manager.counters();
    let outcomes = run_threads(&spaces, plan, progress, samples)?;
    drop(spaces);
    let counted = manager.counters().since(&before);
    manager.shutdown()?;
    Ok(Side {
        outcomes,
        budget_bytes: Some(budget_bytes),
        faults: counted.get(Counter::PageFault),
        peak_rss_bytes: usage::peak_resident_bytes(),
        counters: named(&counted),
    })
}

/// A manager whose switches are set as the mode says; everything else is the same.
fn build(mode: Mode, budget_bytes: Option<u64>) -> octavo::Result<Manager> {
    let mut builder = Manager::builder();
    if let Some(bytes) = budget_bytes {
        builder = builder.budget_bytes(bytes);
    }
    match mode {
        Mode::Base => builder
            .zero_page(ZeroPage::PerUse)
            .percpu_orders(PercpuOrders::OrderZero)
            .pin_path(PinPath::Locked)
            .build(),
        Mode::Patched => builder
            .zero_page(ZeroPage::PerSpace)
            .percpu_orders(PercpuOrders::Costly)
            .pin_path(PinPath::LockFree)
            .build(),
        Mode::Best => builder.build(),
    }
}

fn run_threads(
    spaces: &[Space],
    plan: &Plan,
    progress: Option<&AtomicU64>,
    samples: Option<&mut Samples>,
) -> Result<Vec<Vec<Outcome>>, Failure> {
    let gate = Gate::default();
    let stop = AtomicBool::new(false);
    let watch = Watch { stop: &stop, progress };
    let work = |toucher: Toucher| {
        if !gate.pass() {
            return Ok(Outcome::default());
        }
        let memory = SpaceMemory(&spaces[toucher.task as usize]);
        touch(&memory, plan, toucher, watch, || ()).inspect_err(|_| stop.store(true, Ordering::Relaxed))
    };
    thread::scope(|scope| {
        let work = &work;
        let mut handles = Vec::new();
        let mut refused = None;
        'start: for task in 0..spaces.len() as u32 {
            for thread in 0..plan.threads {
                let toucher = Toucher { task, thread };
                let named = thread::Builder::new().name(format!("task {task}.{thread}"));
                match named.stack_size(STACK_BYTES).spawn_scoped(scope, move || work(toucher)) {
                    Ok(handle) => handles.push(handle),
                    Err(error) => {
                        refused = Some(Failure::system(format!("cannot start task {task}"), error));
                        break 'start;
                    }
                }
            }
        }
        gate.wait_for(handles.len() as u32);
        let finish = || {
            gate.open(refused.is_none());
            handles.into_iter().map(|handle| handle.join()).collect::<Vec<_>>()
        };
        let joined = match samples {
            Some(samples) => samples.during(finish),
            None => finish(),
        };
        if let Some(refused) = refused {
            return Err(refused);
        }
        let mut outcomes = Vec::with_capacity(joined.len());
        for result in joined {
            outcomes.push(result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(outcomes.chunks(plan.threads as usize).map(<[Outcome]>::to_vec).collect())
    })
}

/// Every counter by its name.
fn named(counted: &CounterSnapshot) -> std::collections::BTreeMap<String, u64> {
    counted.iter().map(|(counter, value)| (counter.name().to_string(), value)).collect()
}

/// A space, to be touched by the word.
struct SpaceMemory<'a>(&'a Space);

/// A piece of a space.
struct Piece {
    address: u64,
    bytes: u64,
}

impl Memory for SpaceMemory<'_> {
    type Unit = Piece;
    type Error = octavo::Error;

    fn map(&self, bytes: u64) -> octavo::Result<Piece> {
        // As mmap does, and as the kernel's side is advised.
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
        let address = self.0.map(bytes, RegionOptions::default().huge(true))?;
        Ok(Piece { address, bytes })
    }

    #[inline]
    fn load(&self, unit: &Piece, index: u64) -> octavo::Result<u64> {
        self.0.load::<u64>(unit.address + index * 8)
    }

    #[inline]
    fn store(&self, unit: &Piece, index: u64, value: u64) -> octavo::Result<()> {
        self.0.store::<u64>(unit.address + index * 8, value)
    }

    fn unmap(&self, unit: Piece) -> octavo::Result<()> {
        self.0.unmap(unit.address, unit.bytes)
    }
}
