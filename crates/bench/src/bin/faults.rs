//! The cost of a fault: zero pages in the three ways of counting them, and frames for writers.
//!
//! `cargo run --release -p octavo-bench --bin faults [-- ROUNDS]`
//!
//! | fault | one step |
//! |---|---|
//! | huge zero | the first load in an aligned 2 MiB installs a huge zero leaf; the tables are there already |
//! | small zero | the first load of a page, in a region too small for a huge leaf |
//! | write, zeroing | `populate` makes a page writable; its frame was used before and is zeroed on the way |
//! | write, zeroed ahead | the same, with frames that were zeroed ahead, off the clock |
//! | and the store | the same by a store: the fault, and the store that then succeeds |
//! | write, 2 MiB | `populate` makes an aligned 2 MiB writable, on frames used before; the figure is for one base page (1/512) |
//!
//! Tasks are threads with a space of their own. More tasks than processors share them, and the figure is then
//! wall time times processors over faults.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use octavo::{Access, HugePolicy, Manager, RegionOptions, ZeroPage};
use octavo_bench::{rounds_or, row};
use octavo_measure::table::markdown_header;
use octavo_measure::workers::steps;

const HUGE: u64 = 2 << 20;
const HUGE_FAULTS: u64 = 8192;
/// The number of write faults. It equals the most frames that may be zeroed ahead under the bench's budget.
const WRITE_FAULTS: u64 = 2048;

/// Measures huge zero faults of `tasks` tasks: nanoseconds of processor time each.
fn huge_zero(mode: ZeroPage, tasks: usize) -> f64 {
    let manager = Manager::builder().zero_page(mode).budget_bytes(2 << 30).build().expect("a manager");
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(tasks);
    let (ready, go) = (Barrier::new(tasks + 1), Barrier::new(tasks + 1));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..tasks)
            .map(|_| {
                scope.spawn(|| {
                    let space = manager.space().expect("a space");
                    let at = space.map(HUGE_FAULTS * HUGE, RegionOptions::default()).expect("addresses");
                    // A small zero leaf in the first 2 MiB of each gigabyte makes the tables.
                    for gigabyte in (0..HUGE_FAULTS * HUGE).step_by(1 << 30) {
                        space.load::<u64>(at + gigabyte).expect("mapped");
                    }
                    ready.wait();
                    go.wait();
                    for huge in 0..HUGE_FAULTS {
                        space.load::<u64>(at + huge * HUGE).expect("mapped");
                    }
                    Instant::now()
                })
            })
            .collect();
        ready.wait();
        let began = Instant::now();
        go.wait();
        let ended = workers.into_iter().map(|worker| worker.join().expect("a task")).max().expect("a task");
        let faults = (HUGE_FAULTS - HUGE_FAULTS * HUGE / (1 << 30)) as f64 * tasks as f64;
        (ended - began).as_nanos() as f64 * processors as f64 / faults
    })
}

fn small_zero(threads: usize) -> f64 {
    let manager =
        Manager::builder().huge(HugePolicy::Never).budget_bytes(1 << 30).build().expect("a manager");
    let spaces: Vec<_> = (0..threads)
        .map(|_| {
            let space = manager.space().expect("a space");
            let at = space.map(WRITE_FAULTS * 4096, RegionOptions::default()).expect("addresses");
            for table in (0..WRITE_FAULTS).step_by(512) {
                space.load::<u64>(at + table * 4096).expect("mapped");
            }
            (space, at)
        })
        .collect();
    steps(threads, |barrier, thread| {
        let (space, at) = &spaces[thread];
        barrier.wait();
        let began = Instant::now();
        for page in 0..WRITE_FAULTS {
            black_box(space.load::<u64>(at + page * 4096).expect("mapped"));
        }
        (began, WRITE_FAULTS as usize)
    })
}

/// The kind of frames that a write fault finds, and the call that causes the fault.
#[derive(Clone, Copy, PartialEq)]
enum WriteFault {
    Zeroing,
    ZeroedAhead,
    ZeroedAheadAndStore,
    Huge,
}

/// Measures write faults on frames that were used before.
fn write(threads: usize, kind: WriteFault) -> f64 {
    let policy = if kind == WriteFault::Huge { HugePolicy::Always } else { HugePolicy::Never };
    let manager =
        Manager::builder().huge(policy).background(false).budget_bytes(1 << 30).build().expect("a manager");
    let len = WRITE_FAULTS * 4096;
    let spaces: Vec<_> = (0..threads)
        .map(|_| {
            let space = manager.space().expect("a space");
            let at = space.map(len, RegionOptions::default()).expect("addresses");
            (space, at)
        })
        .collect();
    let touch = |thread: usize| {
        let (space, at) = &spaces[thread];
        match kind {
            WriteFault::ZeroedAheadAndStore => {
                (0..WRITE_FAULTS).for_each(|page| space.store(at + page * 4096, page).expect("mapped"));
            }
            _ => space.populate(*at, len, Access::Write).expect("mapped"),
        }
    };
    let clear = |thread: usize| {
        let (space, at) = &spaces[thread];
        space.unmap(*at, len).expect("mapped");
        space.map_at(*at, len, RegionOptions::default()).expect("free");
        // The space has its tables, as a space in use would.
        if kind != WriteFault::Huge {
            (0..WRITE_FAULTS).step_by(512).for_each(|page| drop(space.load::<u64>(at + page * 4096)));
        }
    };
    // The loop runs twice. In the second pass, the frames and their words are those of the first pass.
    for _ in 0..2 {
        (0..threads).for_each(&touch);
        (0..threads).for_each(&clear);
    }
    if matches!(kind, WriteFault::ZeroedAhead | WriteFault::ZeroedAheadAndStore) {
        // Move the frames from the per-CPU lists to the reserve. On the lists, they would be used again
        // without being zeroed ahead.
        let zeroed = manager.zero_ahead(usize::MAX).expect("this process");
        assert!(zeroed as u64 >= WRITE_FAULTS * threads as u64, "only {zeroed} frames were zeroed ahead");
    }
    steps(threads, |barrier, thread| {
        barrier.wait();
        let began = Instant::now();
        touch(thread);
        (began, WRITE_FAULTS as usize)
    })
}

fn main() {
    let rounds = rounds_or(7);
    println!("ns for one fault; medians of {rounds} rounds (and the least)\n");
    print!("{}", markdown_header("huge zero, tasks | base: PerUse | patched: PerSpace | best: Persistent"));
    for tasks in [1, 2, 72] {
        row(
            &format!("{tasks}"),
            rounds,
            &mut [
                &mut || huge_zero(ZeroPage::PerUse, tasks),
                &mut || huge_zero(ZeroPage::PerSpace, tasks),
                &mut || huge_zero(ZeroPage::Persistent, tasks),
            ],
        );
    }
    let kinds = "threads | small zero | write, zeroing | zeroed ahead | and the store | write, 2 MiB";
    print!("\n{}", markdown_header(kinds));
    for threads in [1, 2] {
        row(
            &format!("{threads}"),
            rounds,
            &mut [
                &mut || small_zero(threads),
                &mut || write(threads, WriteFault::Zeroing),
                &mut || write(threads, WriteFault::ZeroedAhead),
                &mut || write(threads, WriteFault::ZeroedAheadAndStore),
                &mut || write(threads, WriteFault::Huge),
            ],
        );
    }
}
