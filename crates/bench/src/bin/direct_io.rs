//! Reads of a file into pages of a space, beside plain reads: microseconds for a read.
//!
//! `cargo run --release -p octavo-bench --bin direct_io [-- ROUNDS [DIRECTORY]]`
//!
//! Each thread reads at random from a file of 1 GiB, past the page cache. All pages fit into memory.
//!
//! | side | what |
//! |---|---|
//! | plain | `pread` into a buffer of its own |
//! | lock-free, locked | `File::direct_read`, with either form of pins |
//! | copied | `pread` into a buffer, and `Space::write` from there |

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use octavo::file::FileOptions;
use octavo::{Manager, PinPath, RegionOptions, Space};
use octavo_bench::{rounds_or, summary};
use octavo_measure::direct::{AlignedBytes, pass_the_page_cache, write_in_full};
use octavo_measure::random::Random;
use octavo_measure::rounds::measure_in_turns;
use octavo_measure::table::{markdown_header, markdown_row};
use octavo_measure::workers::steps;

const FILE_BYTES: u64 = 1 << 30;
/// Bytes that each thread reads in one measurement: at least one read, and at most `MOST_READS`.
const BYTES: usize = 64 << 20;
const MOST_READS: usize = 4000;
const THREADS: usize = 8;

/// A space, and the address to which each thread reads.
struct ReadTarget {
    file: octavo::file::File,
    space: Arc<Space>,
    at: u64,
}

impl ReadTarget {
    fn new(path: &Path, pins: PinPath) -> Self {
        let manager = Manager::builder().budget_bytes(256 << 20).pin_path(pins).build().expect("a manager");
        let file = manager.open(path, FileOptions::new()).expect("the file");
        let space = Arc::new(manager.space().expect("a space"));
        let at = space.map((THREADS << 22) as u64, RegionOptions::default()).expect("addresses");
        Self { file, space, at }
    }
}

/// Measures the microseconds of a read of a given size. `read` does one read, for a thread and at an offset.
fn micros<B>(
    threads: usize,
    bytes: usize,
    make: impl Fn() -> B + Sync,
    read: impl Fn(&mut B, usize, u64) + Sync,
) -> f64 {
    let reads = (BYTES / bytes).clamp(1, MOST_READS);
    let ns = steps(threads, |barrier, thread| {
        let (mut buffer, mut random) = (make(), Random::new(thread as u64));
        let mut one = |buffer: &mut B| {
            let offset = random.below(FILE_BYTES as usize / bytes) * bytes;
            read(buffer, thread, offset as u64);
        };
        (0..reads / 8 + 1).for_each(|_| one(&mut buffer));
        barrier.wait();
        let began = Instant::now();
        (0..reads).for_each(|_| one(&mut buffer));
        (began, reads)
    });
    ns / 1000.0
}

fn main() {
    let rounds = rounds_or(5);
    let folder = std::env::args().nth(2).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let path = folder.path().join("file");
    write_in_full(&File::create_new(&path).expect("a file"), FILE_BYTES).expect("room for it");
    let plain = File::open(&path).expect("the file");
    pass_the_page_cache(&plain).expect("a file system that can pass the page cache");
    let [free, locked] = [PinPath::LockFree, PinPath::Locked].map(|pins| ReadTarget::new(&path, pins));
    println!("Microseconds of a read, median (least) of {rounds} rounds; less is better:\n");
    print!("{}", markdown_header("read, threads | plain | lock-free | locked | copied"));
    for bytes in [4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20] {
        for threads in [1, THREADS] {
            let buffer = || AlignedBytes::new(bytes);
            let direct = |target: &ReadTarget| {
                micros(
                    threads,
                    bytes,
                    || (),
                    |(), thread, offset| {
                        let at = target.at + (thread << 22) as u64;
                        let read = target.file.direct_read(offset, &target.space, at, bytes);
                        assert_eq!(read.expect("a read"), bytes);
                    },
                )
            };
            let figures = measure_in_turns(rounds, 4, |side| match side {
                0 => micros(threads, bytes, buffer, |buffer, _, offset| {
                    plain.read_exact_at(buffer.as_mut_slice(), offset).expect("a read");
                }),
                1 => direct(&free),
                2 => direct(&locked),
                _ => micros(threads, bytes, buffer, |buffer, thread, offset| {
                    plain.read_exact_at(buffer.as_mut_slice(), offset).expect("a read");
                    let at = free.at + (thread << 22) as u64;
                    free.space.write(at, buffer.as_slice()).expect("a write");
                }),
            });
            let title = format!("{} KiB, {threads}t", bytes >> 10);
            print!("{}", markdown_row(title, figures.into_iter().map(summary)));
        }
    }
}
