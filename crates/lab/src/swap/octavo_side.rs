//! Octavo's side: a task is a thread with a space of its own, or `--threads` threads if it loads at random.
//!
//! A thread makes a page in a buffer and stores it by one [`Space::write`], the natural form for bulk data.
//! With `--words`, it stores and loads word by word instead.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use octavo::io::SwapArea;
use octavo::{Advice, Counter, Manager, RegionOptions, Space};
use octavo_command::failure::Failure;
use octavo_platform::usage;

use super::data::{PAGE_BYTES, PAGE_WORDS, PageWords};
use super::device::DeviceChoice;
use super::job::{Choices, SwapJob};
use super::monitor::{self, DeviceTraffic};
use super::plan::TaskPlan;
use super::side::{PhaseDone, SideRun};
use super::work::{PagedMemory, work};
use crate::aside::Aside;
use crate::choices::Mode;
use crate::gate::all_at_once;
use crate::manager::{named, with_forms_of};
use crate::record::Recorded;
use crate::worker::{Toucher, WorkerFlags};

/// Runs all tasks once under a manager of their own, and returns their outcome. It samples the timed phase,
/// and records all phases.
pub(super) fn run(mode: Mode, job: &SwapJob, plan: &TaskPlan, aside: Aside<'_>) -> Result<SideRun, Failure> {
    let Aside { progress, mut samples, recorder } = aside;
    usage::reset_peak_resident();
    let (tasks, choices) = (job.tasks, &job.choices);
    let _file = MadeFile::of(&choices.device);
    let manager = build(mode, job.memory.bytes, choices)?;
    let memories =
        (0..tasks).map(|task| SpaceMemory::new(&manager, task, plan)).collect::<Result<Vec<_>, _>>()?;
    let before = manager.counters();
    let (mut phases, mut latencies) = (Vec::new(), None);
    let traffic = || {
        let counters = manager.counters();
        DeviceTraffic {
            out_pages: counters.get(Counter::SwapOut),
            in_pages: counters.get(Counter::SwapIn),
            pool_in_pages: counters.get(Counter::PoolSwapIn),
        }
    };
    let mut most_slots = 0;
    for (phase, timed) in plan.phases() {
        let stop = AtomicBool::new(false);
        let one = |toucher: Toucher| {
            let memory = BufferedMemory::new(&memories[toucher.task as usize]);
            let watch = WorkerFlags { stop: &stop, progress };
            let outcome = match recorder.map(|recorder| recorder.track(toucher.task)) {
                None => work(&memory, plan, phase, toucher, watch),
                Some(track) => work(&Recorded { memory, track }, plan, phase, toucher, watch),
            };
            Ok(outcome.inspect_err(|_| stop.store(true, Ordering::Relaxed))?)
        };
        let threads = plan.threads_in(phase);
        let touchers = (0..tasks).flat_map(|task| (0..threads).map(move |thread| Toucher { task, thread }));
        let samples = samples.as_deref_mut().filter(|_| timed);
        let waits_before = timed.then(|| manager.latencies());
        let (outcomes, seen) = monitor::during(traffic, || all_at_once(touchers, one, samples));
        let outcomes = outcomes?.chunks(threads as usize).map(<[_]>::to_vec).collect();
        latencies = waits_before.map(|before| manager.latencies().since(&before)).or(latencies);
        phases.push(PhaseDone { phase, timed, outcomes, seen });
        most_slots = most_slots.max(manager.stats()?.swap_slots);
    }
    let budget_bytes = manager.stats()?.budget_bytes;
    let peak_bytes = usage::peak_resident_bytes();
    let areas = manager.areas()?;
    drop(memories);
    let counted = manager.counters().since(&before);
    manager.shutdown().map_err(octavo::ShutdownRefused::into_error)?;
    Ok(SideRun {
        phases,
        budget_bytes,
        faults: counted.get(Counter::PageFault),
        peak_bytes,
        ram_device_bytes: (choices.device == DeviceChoice::Ram).then_some(most_slots * PAGE_BYTES as u64),
        huge_bytes: None,
        zram_bytes: None,
        counters: named(&counted),
        latencies,
        areas,
    })
}

fn build(mode: Mode, budget_bytes: u64, choices: &Choices) -> octavo::Result<Manager> {
    let mut builder = with_forms_of(mode, Manager::builder())
        .budget_bytes(budget_bytes)
        .reclaim_policy(choices.policy.policy())
        .swap_area(area_of(choices))
        .io_engine(choices.engine.engine())
        .compression(choices.compression.compression())
        .encrypt(choices.encrypt);
    if let Some(bytes) = choices.readahead_bytes {
        builder = builder.readahead_bytes(bytes);
    }
    builder.build()
}

fn area_of(choices: &Choices) -> SwapArea {
    let area = match &choices.device {
        DeviceChoice::TemporaryIn(folder) => SwapArea::temporary(folder),
        DeviceChoice::File(path) => SwapArea::file(path),
        // The sides take turns on these files and devices. The checks at the start have made sure that data
        // there may be lost.
        DeviceChoice::Written { path, .. } => SwapArea::file(path).overwrite(true),
        DeviceChoice::Block(path) => SwapArea::block_device(path).overwrite(true),
        DeviceChoice::Ram => SwapArea::ram(choices.swap_bytes),
    };
    area.limit_bytes(choices.swap_bytes)
}

/// A named swap file, which is removed after the run.
struct MadeFile(PathBuf);

impl MadeFile {
    fn of(device: &DeviceChoice) -> Option<Self> {
        match device {
            DeviceChoice::File(path) => Some(Self(path.clone())),
            _ => None,
        }
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        // The call fails if the file was never made.
        let _ = fs::remove_file(&self.0);
    }
}

/// The memory of a task.
struct SpaceMemory {
    space: Space,
    address: u64,
    by_the_word: bool,
}

impl SpaceMemory {
    fn new(manager: &Manager, task: u32, plan: &TaskPlan) -> octavo::Result<Self> {
        let space = manager.space_named(format!("task {task}"))?;
        let address = space.map(plan.task_bytes, RegionOptions::default().huge(plan.huge))?;
        Ok(Self { space, address, by_the_word: plan.words })
    }
}

/// A thread's view of the memory of its task, through a page of its own.
struct BufferedMemory<'a> {
    memory: &'a SpaceMemory,
    page: RefCell<Box<[[u8; 8]; PAGE_WORDS]>>,
}

impl<'a> BufferedMemory<'a> {
    fn new(memory: &'a SpaceMemory) -> Self {
        Self { memory, page: RefCell::new(Box::new([[0; 8]; PAGE_WORDS])) }
    }

    fn address(&self, page: u64) -> u64 {
        self.memory.address + page * PAGE_BYTES as u64
    }
}

impl PagedMemory for BufferedMemory<'_> {
    type Error = octavo::Error;

    #[inline]
    fn write_page(&self, page: u64, words: &PageWords<'_>) -> octavo::Result<()> {
        let (space, address) = (&self.memory.space, self.address(page));
        if self.memory.by_the_word {
            let mut stored = Ok(());
            words.each(|index, word| {
                if stored.is_ok() {
                    stored = space.store(address + index as u64 * 8, word);
                }
            });
            return stored;
        }
        let mut buffer = self.page.borrow_mut();
        words.each(|index, word| buffer[index] = word.to_le_bytes());
        space.write(address, buffer.as_flattened())
    }

    #[inline]
    fn read_page(&self, page: u64, mut take: impl FnMut(usize, u64)) -> octavo::Result<()> {
        let (space, address) = (&self.memory.space, self.address(page));
        if self.memory.by_the_word {
            for index in 0..PAGE_WORDS {
                take(index, space.load(address + index as u64 * 8)?);
            }
            return Ok(());
        }
        let mut buffer = self.page.borrow_mut();
        space.read(address, buffer.as_flattened_mut())?;
        buffer.iter().enumerate().for_each(|(index, word)| take(index, u64::from_le_bytes(*word)));
        Ok(())
    }

    #[inline]
    fn load(&self, page: u64, word: usize) -> octavo::Result<u64> {
        self.memory.space.load(self.address(page) + word as u64 * 8)
    }

    fn push_out(&self, pages: u64) -> octavo::Result<()> {
        self.memory.space.advise(self.memory.address, pages * PAGE_BYTES as u64, Advice::PageOut)
    }

    fn prefetch(&self, page: u64) -> octavo::Result<()> {
        self.memory.space.prefetch(self.address(page), PAGE_BYTES as u64).map(|_| ())
    }
}

impl Recorded<'_, BufferedMemory<'_>> {
    /// Returns the number of accesses that write or read a whole page.
    fn times_of_a_page(&self) -> u64 {
        if self.memory.memory.by_the_word { PAGE_WORDS as u64 } else { 1 }
    }
}

impl PagedMemory for Recorded<'_, BufferedMemory<'_>> {
    type Error = octavo::Error;

    fn write_page(&self, page: u64, words: &PageWords<'_>) -> octavo::Result<()> {
        self.track.note(page, true, self.times_of_a_page());
        self.memory.write_page(page, words)
    }

    fn read_page(&self, page: u64, take: impl FnMut(usize, u64)) -> octavo::Result<()> {
        self.track.note(page, false, self.times_of_a_page());
        self.memory.read_page(page, take)
    }

    fn load(&self, page: u64, word: usize) -> octavo::Result<u64> {
        self.track.note(page, false, 1);
        self.memory.load(page, word)
    }

    fn push_out(&self, pages: u64) -> octavo::Result<()> {
        self.memory.push_out(pages)
    }

    fn prefetch(&self, page: u64) -> octavo::Result<()> {
        self.memory.prefetch(page)
    }
}
