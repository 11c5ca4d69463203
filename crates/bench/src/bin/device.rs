//! How much of the disk's own speed the engines reach. Plain system calls measure that speed in the same run.
//!
//! `cargo run --release -p octavo-bench --bin device [-- ROUNDS [DIRECTORY [MIB]]]`
//!
//! | row | what |
//! |---|---|
//! | write, read | 1 MiB at a time, in order, eight in flight; MiB/s |
//! | random | single pages of the same file, 32 in flight; thousands a second |
//!
//! *Plain* runs as many threads as there are transfers in flight. Each calls `pread` or `pwrite` with
//! O_DIRECT. A thread for each CPU drives the engines, and starts new transfers as old ones end. *On the
//! spot* runs as many threads as plain, and each waits for the transfer that it asked the engine for. The
//! line below each row gives the processor time of one transfer. All sides use files that were written
//! before, and take turns.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use octavo::PAGE_BYTES;
use octavo::io::{Direction, Exercise, IoEngine, SwapArea, Urgency};
use octavo_bench::{rounds_or, summary};
use octavo_measure::random::Random;
use octavo_measure::rounds::turns;
use octavo_measure::statistics::{median, ratios};
use octavo_measure::table::{markdown_header, markdown_row};

const COLUMNS: &str =
    " | plain | io_uring | threads | on the spot | io_uring/plain | threads/plain | on the spot/plain";
const RUN_PAGES: u32 = 256;
const RUN_DEPTH: u32 = 8;
const RANDOM_DEPTH: u32 = 32;
const RANDOM_READS: u32 = 20_000;
const HUGE: usize = 2 << 20;
const O_DIRECT: i32 = 0o40000;

#[derive(Clone, Copy)]
enum DeviceLoad {
    Write,
    Read,
    Random,
}

impl DeviceLoad {
    fn depth(self) -> u32 {
        if matches!(self, Self::Random) { RANDOM_DEPTH } else { RUN_DEPTH }
    }

    fn pages(self) -> u32 {
        if matches!(self, Self::Random) { 1 } else { RUN_PAGES }
    }

    fn direction(self) -> Direction {
        if matches!(self, Self::Write) { Direction::Write } else { Direction::Read }
    }

    fn transfers(self, file_pages: u32) -> u32 {
        if matches!(self, Self::Random) { RANDOM_READS } else { file_pages / RUN_PAGES }
    }

    fn places(self, file_pages: u32) -> impl FnMut() -> u32 {
        let (mut random, mut next) = (Random::new(0x5eed), 0);
        move || match self {
            Self::Random => random.below(file_pages as usize) as u32,
            _ => {
                next += RUN_PAGES;
                next - RUN_PAGES
            }
        }
    }

    /// Returns MiB/s, or thousands of transfers a second.
    fn rate(self, file_pages: u32, began: Instant) -> f64 {
        let transfers = f64::from(self.transfers(file_pages)) / began.elapsed().as_secs_f64();
        if matches!(self, Self::Random) { transfers / 1000.0 } else { transfers }
    }
}

/// Makes the allocator ask for huge pages, since the arena has them, too. For the disk, 1 MiB in 256
/// scattered pages would be a different transfer. The allocator reads its tunables when the process starts,
/// so this process starts again.
fn with_huge_pages() {
    const TUNABLES: &str = "GLIBC_TUNABLES";
    if std::env::var_os(TUNABLES).is_none() {
        let mut command = Command::new("/proc/self/exe");
        command.args(std::env::args_os().skip(1)).env(TUNABLES, "glibc.malloc.hugetlb=1");
        panic!("cannot start again: {}", command.exec());
    }
}

/// Returns the processor time of this process so far, in microseconds.
fn processor_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let fields = stat.rsplit(") ").next().expect("a name in brackets").split(' ');
    // utime and stime, in hundredths of a second.
    fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().expect("a number") * 1e4).sum()
}

fn plain(file: &File, work: DeviceLoad, file_pages: u32) -> f64 {
    let transfers = work.transfers(file_pages);
    let mut places = work.places(file_pages);
    let places: Vec<u32> = (0..transfers).map(|_| places()).collect();
    let next = AtomicU32::new(0);
    let len = work.pages() as usize * PAGE_BYTES;
    let total = work.depth() as usize * len;
    let mut memory = vec![1; total + HUGE];
    let skip = memory.as_ptr().align_offset(HUGE);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for bytes in memory[skip..skip + total].chunks_mut(len) {
            let (next, places) = (&next, &places);
            scope.spawn(move || {
                while let Some(&place) = places.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let offset = u64::from(place) * PAGE_BYTES as u64;
                    match work.direction() {
                        Direction::Write => file.write_all_at(bytes, offset).expect("the disk"),
                        Direction::Read => file.read_exact_at(bytes, offset).expect("the disk"),
                    }
                }
            });
        }
    });
    work.rate(file_pages, began)
}

fn engine(exercise: &Exercise, work: DeviceLoad, file_pages: u32) -> f64 {
    let transfers = work.transfers(file_pages);
    let mut places = work.places(file_pages);
    let places: Vec<u32> = (0..transfers).map(|_| places()).collect();
    let drivers = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let next = AtomicU32::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for driver in 0..drivers as u32 {
            let (next, places) = (&next, &places);
            scope.spawn(move || drive(exercise, work, driver, work.depth() / drivers as u32, next, places));
        }
    });
    work.rate(file_pages, began)
}

/// Keeps `depth` transfers in flight, in frames of this thread's own. Starts new transfers as old ones end.
fn drive(exercise: &Exercise, work: DeviceLoad, driver: u32, depth: u32, next: &AtomicU32, places: &[u32]) {
    let pages = work.pages();
    let mut free: Vec<u32> = (0..depth).map(|slot| (driver * depth + slot) * pages).collect();
    let mut under_way = VecDeque::new();
    loop {
        while let Some(head) = free.pop() {
            let Some(&place) = places.get(next.fetch_add(1, Ordering::Relaxed) as usize) else { break };
            exercise.start(work.direction(), place, head..head + pages, Urgency::Queued);
            under_way.push_back(head);
        }
        exercise.flush();
        let Some(&oldest) = under_way.front() else { return };
        exercise.pull(oldest);
        under_way.retain(|&head| {
            let still = exercise.is_in_flight(head);
            if !still {
                exercise.wait(head).expect("the disk");
                free.push(head);
            }
            still
        });
    }
}

/// Runs as many threads as there are transfers in flight. Each thread waits for its own transfer.
fn in_place(exercise: &Exercise, work: DeviceLoad, file_pages: u32) -> f64 {
    let transfers = work.transfers(file_pages);
    let mut places = work.places(file_pages);
    let places: Vec<u32> = (0..transfers).map(|_| places()).collect();
    let next = AtomicU32::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..work.depth() {
            let (next, places) = (&next, &places);
            scope.spawn(move || {
                let frames = thread * work.pages()..(thread + 1) * work.pages();
                while let Some(&place) = places.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    exercise.start(work.direction(), place, frames.clone(), Urgency::Now);
                    exercise.wait(frames.start).expect("the disk");
                }
            });
        }
    });
    work.rate(file_pages, began)
}

fn main() {
    with_huge_pages();
    let rounds = rounds_or(7);
    let mut arguments = std::env::args().skip(2);
    let directory = arguments.next().unwrap_or_else(|| "/var/tmp".into());
    let mebibytes: u32 = arguments.next().and_then(|size| size.parse().ok()).unwrap_or(512);
    let file_pages = mebibytes.max(8) << 8;
    let path =
        |name: &str| Path::new(&directory).join(format!("octavo-device-{name}-{}", std::process::id()));
    let (plain_path, ring_path, pool_path) = (path("plain"), path("uring"), path("threads"));
    let open = |engine, path: &Path| Exercise::new(SwapArea::file(path), engine, RUN_DEPTH * RUN_PAGES);
    let plain_file = {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).custom_flags(O_DIRECT);
        options.open(&plain_path).expect("a place to write")
    };
    let (ring, pool) = (open(IoEngine::Uring, &ring_path), open(IoEngine::Threads, &pool_path));
    // Unlink the files, so that they leave nothing behind even if the process is killed from here on.
    for path in [&plain_path, &ring_path, &pool_path] {
        let _ = std::fs::remove_file(path);
    }
    let (ring, pool) = (ring.expect("io_uring"), pool.expect("threads"));
    for exercise in [&ring, &pool] {
        exercise.arena().store(0, 1u64);
        (0..RUN_DEPTH * RUN_PAGES).for_each(|frame| {
            exercise.arena().store(frame as usize * PAGE_BYTES, u64::from(frame) * 0x9E37_79B9)
        });
    }
    println!("{mebibytes} MiB in {directory}, {rounds} rounds: medians (and the least)\n");
    print!("{}", markdown_header(COLUMNS));
    // The first writes give the files their blocks.
    plain(&plain_file, DeviceLoad::Write, file_pages);
    engine(&ring, DeviceLoad::Write, file_pages);
    engine(&pool, DeviceLoad::Write, file_pages);
    for (name, work) in
        [("write", DeviceLoad::Write), ("read", DeviceLoad::Read), ("random", DeviceLoad::Random)]
    {
        let mut rates = [const { Vec::new() }; 4];
        let mut processor = [const { Vec::new() }; 4];
        for (_, side) in turns(rounds, 4) {
            let before = processor_us();
            rates[side].push(match side {
                0 => plain(&plain_file, work, file_pages),
                1 => engine(&ring, work, file_pages),
                2 => engine(&pool, work, file_pages),
                _ => in_place(&ring, work, file_pages),
            });
            processor[side].push((processor_us() - before) / f64::from(work.transfers(file_pages)));
        }
        let to_plain = [1, 2, 3].map(|side| format!("{:.2}", median(&ratios(&rates[side], &rates[0]))));
        print!("{}", markdown_row(name, rates.map(summary).into_iter().chain(to_plain)));
        let no_ratios = [const { String::new() }; 3];
        let cells = processor.map(summary).into_iter().chain(no_ratios);
        print!("{}", markdown_row(format!("{name}, processor us"), cells));
    }
}
