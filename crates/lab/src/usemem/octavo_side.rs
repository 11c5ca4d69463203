//! Octavo's side: a task is a thread (or `-t` threads) with a space of its own.

use std::sync::atomic::{AtomicBool, Ordering};

use octavo::{Counter, Manager, RegionOptions, Space};
use octavo_command::failure::Failure;
use octavo_platform::usage;

use super::job::UsememJob;
use super::side::SideOutcomes;
use super::touch::{TouchOutcome, TouchPlan, TouchedMemory, touch};
use crate::aside::Aside;
use crate::choices::Mode;
use crate::gate::all_at_once;
use crate::manager::{named, with_forms_of};
use crate::record::Recorded;
use crate::worker::{Toucher, WorkerFlags};

const PAGE_BYTES: u64 = octavo::PAGE_BYTES as u64;

/// Runs all tasks once under a manager of their own, and returns their outcome. The samples are from the
/// opening of the gate to the end of the last thread.
pub(super) fn run(mode: Mode, job: &UsememJob, aside: Aside<'_>) -> Result<SideOutcomes, Failure> {
    usage::reset_peak_resident();
    let manager = build(mode, job.budget.as_ref().map(|budget| budget.bytes))?;
    let spaces = (0..job.tasks)
        .map(|task| manager.space_named(format!("task {task}")))
        .collect::<Result<Vec<_>, _>>()?;
    let budget_bytes = manager.stats()?.budget_bytes;
    let before = manager.counters();
    let outcomes = run_threads(&spaces, &job.plan, aside)?;
    drop(spaces);
    let counted = manager.counters().since(&before);
    manager.shutdown().map_err(octavo::ShutdownRefused::into_error)?;
    Ok(SideOutcomes {
        outcomes,
        budget_bytes: Some(budget_bytes),
        faults: counted.get(Counter::PageFault),
        peak_rss_bytes: usage::peak_resident_bytes(),
        counters: named(&counted),
    })
}

/// Makes a manager with the switches of the mode. Everything else is the same in all modes.
fn build(mode: Mode, budget_bytes: Option<u64>) -> octavo::Result<Manager> {
    let mut builder = with_forms_of(mode, Manager::builder());
    if let Some(bytes) = budget_bytes {
        builder = builder.budget_bytes(bytes);
    }
    builder.build()
}

fn run_threads(
    spaces: &[Space],
    plan: &TouchPlan,
    aside: Aside<'_>,
) -> Result<Vec<Vec<TouchOutcome>>, Failure> {
    let stop = AtomicBool::new(false);
    let Aside { progress, samples, recorder } = aside;
    let watch = WorkerFlags { stop: &stop, progress };
    let work = |toucher: Toucher| {
        let memory = SpaceMemory(&spaces[toucher.task as usize]);
        let touched = match recorder.map(|recorder| recorder.track(toucher.task)) {
            None => touch(&memory, plan, toucher, watch, || ()),
            Some(track) => touch(&Recorded { memory, track }, plan, toucher, watch, || ()),
        };
        Ok(touched.inspect_err(|_| stop.store(true, Ordering::Relaxed))?)
    };
    let tasks = 0..spaces.len() as u32;
    let touchers = tasks.flat_map(|task| (0..plan.threads).map(move |thread| Toucher { task, thread }));
    let outcomes = all_at_once(touchers, work, samples)?;
    Ok(outcomes.chunks(plan.threads as usize).map(<[TouchOutcome]>::to_vec).collect())
}

/// A space, touched by the word.
struct SpaceMemory<'a>(&'a Space);

/// A piece of a space.
struct SpacePiece {
    address: u64,
    bytes: u64,
}

impl TouchedMemory for SpaceMemory<'_> {
    type Unit = SpacePiece;
    type Error = octavo::Error;

    fn map(&self, bytes: u64) -> octavo::Result<SpacePiece> {
        // The size is rounded up as by mmap, and huge pages are allowed as on the kernel's side.
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
        let address = self.0.map(bytes, RegionOptions::default().huge(true))?;
        Ok(SpacePiece { address, bytes })
    }

    #[inline]
    fn load(&self, unit: &SpacePiece, index: u64) -> octavo::Result<u64> {
        self.0.load::<u64>(unit.address + index * 8)
    }

    #[inline]
    fn store(&self, unit: &SpacePiece, index: u64, value: u64) -> octavo::Result<()> {
        self.0.store::<u64>(unit.address + index * 8, value)
    }

    fn unmap(&self, unit: SpacePiece) -> octavo::Result<()> {
        self.0.unmap(unit.address, unit.bytes)
    }
}

/// A piece, and the number of its first page in the trace.
struct RecordedPiece {
    piece: SpacePiece,
    first_page: u64,
}

impl RecordedPiece {
    fn page_of(&self, index: u64) -> u64 {
        self.first_page + index * 8 / PAGE_BYTES
    }
}

impl TouchedMemory for Recorded<'_, SpaceMemory<'_>> {
    type Unit = RecordedPiece;
    type Error = octavo::Error;

    fn map(&self, bytes: u64) -> octavo::Result<RecordedPiece> {
        let piece = self.memory.map(bytes)?;
        let first_page = self.track.new_pages(piece.bytes / PAGE_BYTES);
        Ok(RecordedPiece { piece, first_page })
    }

    fn load(&self, unit: &RecordedPiece, index: u64) -> octavo::Result<u64> {
        self.track.note(unit.page_of(index), false, 1);
        self.memory.load(&unit.piece, index)
    }

    fn store(&self, unit: &RecordedPiece, index: u64, value: u64) -> octavo::Result<()> {
        self.track.note(unit.page_of(index), true, 1);
        self.memory.store(&unit.piece, index, value)
    }

    fn unmap(&self, unit: RecordedPiece) -> octavo::Result<()> {
        self.memory.unmap(unit.piece)
    }
}
