//! The kernel's side: the same accesses to plain mmap memory, by processes of their own.
//!
//! The program starts itself again for each task (`octavo-lab kernel-task`). A process says on its standard
//! output that it is ready, waits for its byte from a pipe that all share, touches its memory, and writes its
//! results as JSON. Each process measures its own time, from the byte to the last touch. So fork, exec and
//! exit are not timed.
//!
//! The memory is advised `MADV_NOHUGEPAGE` or `MADV_HUGEPAGE`, run by run. Many systems give huge pages on
//! advice only, and the workload of *thp: reduce usage of huge zero page's atomic counter* (Linux 4.9, commit
//! 6fcb52a56ff6) is about huge zero pages.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::process::Stdio;
use std::sync::atomic::AtomicBool;
use std::thread;

use octavo_command::failure::Failure;
use octavo_platform::{PlainMemory, usage};
use serde::{Deserialize, Serialize};

use super::side::SideOutcomes;
use super::touch::{TouchOutcome, TouchPlan, TouchedMemory, touch};
use crate::gate::StartGate;
use crate::huge_pages::KernelPages;
use crate::processes::{self, Processes, Usage, ready_and_told_to_go};
use crate::table;
use crate::worker::{Toucher, WorkerFlags};

/// The subcommand by which `octavo-lab` starts a process of this side.
pub const SUBCOMMAND: &str = "kernel-task";

const HUGE_BYTES: u64 = 2 << 20;
const PAGE_BYTES: u64 = octavo_platform::PAGE_BYTES as u64;

/// The order for a process.
#[derive(Debug, Serialize, Deserialize)]
struct ProcessOrder {
    task: u32,
    plan: TouchPlan,
    pages: KernelPages,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    outcomes: Vec<TouchOutcome>,
    minor_faults: u64,
    major_faults: u64,
    /// The peak growth of the resident set during the touching.
    grown_bytes: u64,
    /// Bytes of page tables at the end of the touching.
    page_table_bytes: u64,
}

/// Refuses a job that needs more memory than there is, so that the kernel would have to kill a process.
pub fn check_room(tasks: u32, plan: &TouchPlan) -> Result<(), Failure> {
    let room = available_bytes();
    let need = needed_bytes(tasks, plan);
    if need <= room {
        return Ok(());
    }
    Err(Failure::Said(format!(
        "the kernel's side would need {}, and {} are free here; give a smaller SIZE or fewer tasks, or leave out \
         --against kernel",
        table::bytes(need),
        table::bytes(room)
    )))
}

/// Returns the most bytes that all tasks hold together: each 2 MiB page that is written, and a table of 4 KiB
/// for each huge page, written or zero. The kernel reserves this table for splitting the page.
fn needed_bytes(tasks: u32, plan: &TouchPlan) -> u64 {
    let spread = HUGE_BYTES.max(plan.step_words.saturating_mul(8));
    let huge_pages = if plan.random {
        plan.bytes.div_ceil(HUGE_BYTES).min(plan.accesses())
    } else {
        plan.bytes.div_ceil(spread)
    };
    let each = if plan.readonly { PAGE_BYTES } else { HUGE_BYTES + PAGE_BYTES };
    huge_pages.saturating_mul(each).saturating_mul(u64::from(tasks) * u64::from(plan.threads))
}

fn available_bytes() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |field: &str| {
        meminfo
            .lines()
            .find_map(|line| line.strip_prefix(field)?.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let machine = (kib("MemAvailable:") + kib("SwapFree:")) << 10;
    usage::cgroup_memory_limit_bytes().map_or(machine, |limit| machine.min(limit))
}

/// Runs all tasks once and returns their outcome.
pub(super) fn run(tasks: u32, plan: &TouchPlan, pages: KernelPages) -> Result<SideOutcomes, Failure> {
    let cannot_pipe = |error| Failure::system("cannot make a pipe for the kernel's side", error);
    let (go_reader, mut go_writer) = io::pipe().map_err(cannot_pipe)?;
    let mut processes = Processes::default();
    for task in 0..tasks {
        let input = go_reader.try_clone().map_err(cannot_pipe)?;
        processes.start(SUBCOMMAND, &ProcessOrder { task, plan: plan.clone(), pages }, Stdio::from(input))?;
    }
    // Close this process's end of the pipe. Otherwise, the processes would wait for siblings that have died.
    drop(go_reader);
    processes.wait_until_ready()?;
    go_writer
        .write_all(&vec![b'g'; tasks as usize])
        .map_err(|error| Failure::system("cannot start the kernel's side", error))?;
    let done: Vec<Done> = processes.collect()?;
    Ok(SideOutcomes {
        budget_bytes: None,
        faults: done.iter().map(|done| done.minor_faults + done.major_faults).sum(),
        peak_rss_bytes: done.iter().map(|done| done.grown_bytes).sum(),
        counters: BTreeMap::from([
            ("pgfault".into(), done.iter().map(|done| done.minor_faults + done.major_faults).sum()),
            ("pgmajfault".into(), done.iter().map(|done| done.major_faults).sum()),
            ("page_table_bytes".into(), done.iter().map(|done| done.page_table_bytes).sum()),
        ]),
        outcomes: done.into_iter().map(|done| done.outcomes).collect(),
    })
}

/// Runs one process: ready, go, touch, answer.
pub fn task_main(order: &str) -> Result<(), Failure> {
    let order: ProcessOrder = serde_json::from_str(order).map_err(|_| {
        Failure::Said(format!("{SUBCOMMAND} is started by octavo-lab itself; use octavo-lab usemem"))
    })?;
    processes::answer(touch_all(&order))
}

fn touch_all(order: &ProcessOrder) -> Result<Option<Done>, Failure> {
    let before = Usage::now();
    usage::reset_peak_resident();
    let outcomes = match order.plan.threads {
        1 => touch_alone(order)?,
        threads => touch_together(order, threads)?,
    };
    let Some((outcomes, page_table_bytes)) = outcomes else { return Ok(None) };
    let after = Usage::now();
    Ok(Some(Done {
        outcomes,
        minor_faults: after.minor_faults - before.minor_faults,
        major_faults: after.major_faults - before.major_faults,
        grown_bytes: usage::peak_resident_bytes().saturating_sub(before.resident_bytes),
        page_table_bytes,
    }))
}

type Touched = Option<(Vec<TouchOutcome>, u64)>;

/// Touches in the process's first thread, as usemem does without `-t`.
fn touch_alone(order: &ProcessOrder) -> Result<Touched, Failure> {
    if !ready_and_told_to_go()? {
        return Ok(None);
    }
    let stop = AtomicBool::new(false);
    let mut page_table_bytes = 0;
    let toucher = Toucher { task: order.task, thread: 0 };
    let watch = WorkerFlags { stop: &stop, progress: None };
    let outcome = touch(&KernelMemory(order.pages), &order.plan, toucher, watch, || {
        page_table_bytes = present_page_table_bytes();
    });
    Ok(Some((vec![outcome.map_err(no_memory)?], page_table_bytes)))
}

fn touch_together(order: &ProcessOrder, threads: u32) -> Result<Touched, Failure> {
    let gate = StartGate::default();
    let stop = AtomicBool::new(false);
    let work = |thread| {
        let toucher = Toucher { task: order.task, thread };
        let mut page_table_bytes = 0;
        if !gate.pass() {
            return Ok((TouchOutcome::default(), 0));
        }
        touch(
            &KernelMemory(order.pages),
            &order.plan,
            toucher,
            WorkerFlags { stop: &stop, progress: None },
            || {
                page_table_bytes = present_page_table_bytes();
            },
        )
        .map(|outcome| (outcome, page_table_bytes))
    };
    thread::scope(|scope| {
        let work = &work;
        let mut handles = Vec::new();
        let mut go = Ok(true);
        for thread in 0..threads {
            match thread::Builder::new().spawn_scoped(scope, move || work(thread)) {
                Ok(handle) => handles.push(handle),
                Err(error) => go = Err(Failure::system("cannot start a thread of the kernel's side", error)),
            }
        }
        gate.wait_for(handles.len() as u32);
        let go = go.and_then(|_| ready_and_told_to_go());
        gate.open(matches!(go, Ok(true)));
        let joined: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        if !go? {
            return Ok(None);
        }
        let mut outcomes = Vec::with_capacity(joined.len());
        let mut most_tables = 0;
        for result in joined {
            let result = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (outcome, page_table_bytes) = result.map_err(no_memory)?;
            outcomes.push(outcome);
            most_tables = page_table_bytes.max(most_tables);
        }
        Ok(Some((outcomes, most_tables)))
    })
}

fn no_memory(error: io::Error) -> Failure {
    Failure::system("the kernel cannot map the memory", error)
}

fn present_page_table_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPTE:")?.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// The kernel's own memory.
struct KernelMemory(KernelPages);

impl TouchedMemory for KernelMemory {
    type Unit = PlainMemory;
    type Error = io::Error;

    fn map(&self, bytes: u64) -> io::Result<PlainMemory> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        PlainMemory::new(bytes, self.0.backing())
    }

    #[inline]
    fn load(&self, unit: &PlainMemory, index: u64) -> io::Result<u64> {
        Ok(unit.load(index as usize))
    }

    #[inline]
    fn store(&self, unit: &PlainMemory, index: u64, value: u64) -> io::Result<()> {
        unit.store(index as usize, value);
        Ok(())
    }

    fn unmap(&self, unit: PlainMemory) -> io::Result<()> {
        drop(unit);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use octavo_platform::Backing;

    use super::*;

    fn plan() -> TouchPlan {
        TouchPlan {
            bytes: 100 << 30,
            unit_bytes: 100 << 30,
            step_words: 1 << 18,
            repeats: 1,
            threads: 1,
            random: false,
            readonly: true,
            verify: false,
        }
    }

    #[test]
    fn room_is_asked_for_tables_when_reading_and_for_pages_when_writing() {
        assert_eq!(needed_bytes(72, &plan()), 51_200 * 72 * 4096);
        let writing = TouchPlan { readonly: false, ..plan() };
        assert_eq!(needed_bytes(1, &writing), 51_200 * (4096 + (2 << 20)));
        let sparse = TouchPlan { step_words: 1 << 27, ..writing };
        assert_eq!(needed_bytes(2, &sparse), 2 * 100 * (4096 + (2 << 20)));
        let impossible = TouchPlan { bytes: u64::MAX, ..plan() };
        assert!(check_room(u32::MAX, &TouchPlan { readonly: false, ..impossible }).is_err());
    }

    #[test]
    fn the_kernel_counts_our_faults() {
        let before = Usage::now();
        let memory = PlainMemory::new(64 * 4096, Backing::BasePages).unwrap();
        (0..64).for_each(|page| memory.store(page * 512, 1));
        assert!(Usage::now().minor_faults - before.minor_faults >= 64);
        assert!(present_page_table_bytes() > 0);
    }
}
