//! What the engines leave of the disk's own speed, against plain system calls in the same run.
//!
//! `cargo run --release -p octavo-bench --bin device [-- ROUNDS [DIRECTORY [MIB]]]`
//!
//! | row | what |
//! |---|---|
//! | write, read | 1 MiB at a time, in order, eight under way; MiB/s |
//! | random | single pages of the same file; thousands a second |
//!
//! *Plain* is as many threads as transfers under way, each by `pread` and `pwrite` with O_DIRECT. The engines are driven by one
//! thread, which waits for the oldest and starts the next. All sides use files that were written before, and take turns.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use octavo::PAGE_BYTES;
use octavo::io::{Direction, Exercise, IoEngine, SwapArea, Urgency};
use octavo_bench::{Random, summary};

const RUN_PAGES: u32 = 256;
const RUN_DEPTH: u32 = 8;
const RANDOM_DEPTH: u32 = 32;
const RANDOM_READS: u32 = 20_000;
const O_DIRECT: i32 = 0o40000;

#[derive(Clone, Copy)]
enum Work {
    Write,
    Read,
    Random,
}

impl Work {
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
        let (mut random, mut next) = (Random(0x5eed), 0);
        move || match self {
            Self::Random => random.below(file_pages as usize) as u32,
            _ => {
                next += RUN_PAGES;
                next - RUN_PAGES
            }
        }
    }

    /// MiB/s, or thousands of transfers a second.
    fn rate(self, file_pages: u32, began: Instant) -> f64 {
        let transfers = f64::from(self.transfers(file_pages)) / began.elapsed().as_secs_f64();
        if matches!(self, Self::Random) { transfers / 1000.0 } else { transfers }
    }
}

/// Memory aligned for O_DIRECT.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(bytes: usize) -> Self {
        Self((0..bytes + PAGE_BYTES).map(|at| (at * 31) as u8).collect())
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        let skip = self.0.as_ptr().align_offset(PAGE_BYTES);
        &mut self.0[skip..skip + len]
    }
}

fn plain(file: &File, work: Work, file_pages: u32) -> f64 {
    let transfers = work.transfers(file_pages);
    let mut places = work.places(file_pages);
    let places: Vec<u32> = (0..transfers).map(|_| places()).collect();
    let next = AtomicU32::new(0);
    let len = work.pages() as usize * PAGE_BYTES;
    let mut buffers: Vec<_> = (0..work.depth()).map(|_| Aligned::new(len)).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for buffer in &mut buffers {
            let (next, places) = (&next, &places);
            scope.spawn(move || {
                let bytes = buffer.bytes(len);
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

fn engine(exercise: &Exercise, work: Work, file_pages: u32) -> f64 {
    let (depth, pages, transfers) = (work.depth(), work.pages(), work.transfers(file_pages));
    let mut places = work.places(file_pages);
    let head = |number: u32| number % depth * pages;
    let began = Instant::now();
    for number in 0..transfers {
        if number >= depth {
            exercise.wait(head(number)).expect("the disk");
        }
        let frames = head(number)..head(number) + pages;
        exercise.start(work.direction(), places(), frames, Urgency::Queued);
        // What goes on its way together: a run at once, single pages as many as have ended.
        if pages > 1
            || number + 1 == transfers
            || number + 1 >= depth && exercise.is_under_way(head(number + 1))
        {
            exercise.flush();
        }
    }
    for number in transfers.saturating_sub(depth)..transfers {
        exercise.wait(head(number)).expect("the disk");
    }
    work.rate(file_pages, began)
}

/// As many threads as transfers under way, each of which waits for its own.
fn in_place(exercise: &Exercise, work: Work, file_pages: u32) -> f64 {
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
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().and_then(|rounds| rounds.parse().ok()).unwrap_or(7);
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
    // Nothing is left behind, even if this is killed from here on.
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
    println!(
        "| | plain | io_uring | threads | on the spot | io_uring/plain | threads/plain | on the spot/plain |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    // Gives the files their blocks.
    plain(&plain_file, Work::Write, file_pages);
    engine(&ring, Work::Write, file_pages);
    engine(&pool, Work::Write, file_pages);
    for (name, work) in [("write", Work::Write), ("read", Work::Read), ("random", Work::Random)] {
        let mut rates = [const { Vec::new() }; 4];
        let mut ratios = [const { Vec::new() }; 3];
        for round in 0..rounds {
            let mut figures = [0.0; 4];
            for turn in 0..4 {
                let side = (turn + round) % 4;
                figures[side] = match side {
                    0 => plain(&plain_file, work, file_pages),
                    1 => engine(&ring, work, file_pages),
                    2 => engine(&pool, work, file_pages),
                    _ => in_place(&ring, work, file_pages),
                };
            }
            rates.iter_mut().zip(figures).for_each(|(rates, figure)| rates.push(figure));
            (ratios.iter_mut().zip(&figures[1..]))
                .for_each(|(ratios, figure)| ratios.push(figure / figures[0]));
        }
        print!("| {name} |");
        rates.into_iter().for_each(|rates| print!(" {} |", summary(rates)));
        for mut ratios in ratios {
            ratios.sort_by(f64::total_cmp);
            print!(" {:.2} |", ratios[ratios.len() / 2]);
        }
        println!();
    }
}
