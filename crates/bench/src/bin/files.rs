//! Files larger than memory: Octavo's page cache beside the kernel's, and beside the device alone.
//!
//! `cargo run --release -p octavo-bench --bin files [-- ROUNDS [DIRECTORY]]`, as root: the kernel's page
//! cache is limited by a control group.
//!
//! | side | what |
//! |---|---|
//! | device | `pread` and `pwrite` past the page cache, 4 KiB at random and 1 MiB in order |
//! | load, read | Octavo: a word of a mapping for each page, and `File::read_at` |
//! | tags, walk | Octavo: a sync that finds dirty pages by the tags, and one that looks at all pages in memory |
//! | mmap, pread | the kernel's page cache: the same, with `MADV_RANDOM` or `MADV_SEQUENTIAL` and `posix_fadvise` |
//!
//! Each measurement is a process of its own, in a group of 256 MiB. Octavo's budget is less by 24 MiB, for
//! the program itself. The file has 1 GiB.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use octavo::file::{FileOptions, Sharing};
use octavo::{AccessPattern, DirtyPages, Manager, Protection, RegionOptions};
use octavo_bench::jobs::ArrayPattern;
use octavo_bench::jobs::file_array::MappedFile;
use octavo_bench::{rounds_or, summary};
use octavo_measure::control_group::{ControlGroup, Hierarchy};
use octavo_measure::direct::{AlignedBytes, pass_the_page_cache, write_in_full};
use octavo_measure::random::Random;
use octavo_measure::rounds::measure_in_turns;
use octavo_measure::table::{markdown_header, markdown_row};
use octavo_measure::workers::steps;
use rustix::fs::{Advice, fadvise};

const PAGE: usize = 4096;
const FILE_BYTES: u64 = 1 << 30;
const MEMORY_BYTES: u64 = 256 << 20;
/// For the program itself, its threads, and what the kernel charges for them.
const OTHER_BYTES: u64 = 24 << 20;
const BLOCK: usize = 1 << 20;
/// Reads of all threads in one measurement at random.
const READS: usize = 24_000;
/// Bytes that are written in one measurement.
const WRITTEN_BYTES: u64 = 512 << 20;
/// What this program's child has to do: the work, the side, the threads and the file.
const WORK: &str = "OCTAVO_FILES_WORK";

fn octavo(path: &Path, write: bool) -> (Manager, octavo::file::File) {
    let manager = Manager::builder().budget_bytes(MEMORY_BYTES - OTHER_BYTES).build().expect("a manager");
    let file = manager.open(path, FileOptions::new().write(write)).expect("the file");
    (manager, file)
}

/// Measures thousands of random reads of a page a second.
fn at_random(side: &str, threads: usize, path: &Path) -> f64 {
    let run = |read: &(dyn Fn(&mut AlignedBytes, u64) + Sync)| {
        let reads = READS / threads;
        let ns = steps(threads, |barrier, thread| {
            let (mut random, mut buffer) = (Random::new(thread as u64 + 1), AlignedBytes::new(PAGE));
            let mut one = || read(&mut buffer, (random.below(FILE_BYTES as usize / PAGE) * PAGE) as u64);
            (0..reads / 4).for_each(|_| one());
            barrier.wait();
            let began = Instant::now();
            (0..reads).for_each(|_| one());
            (began, reads)
        });
        threads as f64 * 1e6 / ns
    };
    let plain = File::open(path).expect("the file");
    match side {
        "device" => {
            pass_the_page_cache(&plain).expect("a file system that can pass the page cache");
            run(&|buffer, at| plain.read_exact_at(buffer.as_mut_slice(), at).expect("a read"))
        }
        "load" => {
            let (manager, file) = octavo(path, false);
            let space = manager.space().expect("a space");
            let options = RegionOptions::new().protection(Protection::READ).pattern(AccessPattern::Random);
            let start = space.map_file(&file, 0, FILE_BYTES, Sharing::Shared, options).expect("addresses");
            run(&|_, at| _ = space.load::<u64>(start + at).expect("a load"))
        }
        "read" => {
            let (_manager, file) = octavo(path, false);
            run(&|buffer, at| _ = file.read_at(at, buffer.as_mut_slice()).expect("a read"))
        }
        "mmap" => {
            let map = MappedFile::new(&plain, ArrayPattern::AtRandom).expect("a mapping");
            run(&|_, at| _ = std::hint::black_box(map[at as usize]))
        }
        "pread" => {
            fadvise(&plain, 0, None, Advice::Random).expect("advice");
            run(&|buffer, at| plain.read_exact_at(buffer.as_mut_slice(), at).expect("a read"))
        }
        other => panic!("no side {other}"),
    }
}

/// Measures MiB a second of reading the whole file in order. Octavo's sides have their manager before.
fn in_order(side: &str, path: &Path) -> f64 {
    let plain = File::open(path).expect("the file");
    let opened = matches!(side, "load" | "read").then(|| octavo(path, false));
    let octavo = || opened.as_ref().expect("a side of Octavo");
    let mut buffer = AlignedBytes::new(BLOCK);
    let blocks = (0..FILE_BYTES).step_by(BLOCK);
    let began = Instant::now();
    match side {
        "device" => {
            pass_the_page_cache(&plain).expect("a file system that can pass the page cache");
            // Two threads keep two blocks under way.
            std::thread::scope(|scope| {
                for thread in 0..2 {
                    let (blocks, plain) = (blocks.clone().skip(thread).step_by(2), &plain);
                    scope.spawn(move || {
                        let mut buffer = AlignedBytes::new(BLOCK);
                        blocks.for_each(|at| plain.read_exact_at(buffer.as_mut_slice(), at).expect("a read"));
                    });
                }
            });
        }
        "load" => {
            let (manager, file) = octavo();
            let space = manager.space().expect("a space");
            let options =
                RegionOptions::new().protection(Protection::READ).pattern(AccessPattern::Sequential);
            let start = space.map_file(file, 0, FILE_BYTES, Sharing::Shared, options).expect("addresses");
            (0..FILE_BYTES).step_by(PAGE).for_each(|at| _ = space.load::<u64>(start + at).expect("a load"));
        }
        "read" => {
            let (_, file) = octavo();
            blocks.for_each(|at| _ = file.read_at(at, buffer.as_mut_slice()).expect("a read"));
        }
        "mmap" => {
            let map = MappedFile::new(&plain, ArrayPattern::InOrder).expect("a mapping");
            (0..FILE_BYTES as usize).step_by(PAGE).for_each(|at| _ = std::hint::black_box(map[at]));
        }
        "pread" => {
            fadvise(&plain, 0, None, Advice::Sequential).expect("advice");
            blocks.for_each(|at| plain.read_exact_at(buffer.as_mut_slice(), at).expect("a read"));
        }
        other => panic!("no side {other}"),
    }
    (FILE_BYTES >> 20) as f64 / began.elapsed().as_secs_f64()
}

/// Measures MiB a second of writing over a file in order, until everything is durable. Octavo's side
/// has its manager before.
fn written(side: &str, path: &Path) -> f64 {
    let plain = File::options().write(true).open(path).expect("the file");
    let opened = (side == "write").then(|| octavo(path, true));
    let mut buffer = AlignedBytes::new(BLOCK);
    buffer.as_mut_slice().fill(7);
    let blocks = (0..WRITTEN_BYTES).step_by(BLOCK);
    let began = Instant::now();
    match side {
        "device" | "pwrite" => {
            if side == "device" {
                pass_the_page_cache(&plain).expect("a file system that can pass the page cache");
            }
            blocks.for_each(|at| plain.write_all_at(buffer.as_slice(), at).expect("a write"));
            plain.sync_data().expect("a sync");
        }
        "write" => {
            let (_, file) = opened.as_ref().expect("a side of Octavo");
            blocks.for_each(|at| file.write_at(at, buffer.as_slice()).expect("a write"));
            file.sync().expect("a sync");
        }
        other => panic!("no side {other}"),
    }
    (WRITTEN_BYTES >> 20) as f64 / began.elapsed().as_secs_f64()
}

/// Measures the milliseconds of a sync of 1,000 pages that lie apart in a file with so many MiB in memory.
fn synced(side: &str, mib: usize, path: &Path) -> f64 {
    let (dirty, bytes) = (1000, mib << 20);
    let offsets: Vec<_> = (0..dirty).map(|number| (number * (bytes / dirty) / PAGE * PAGE) as u64).collect();
    let mut buffer = AlignedBytes::new(BLOCK);
    match side {
        "tags" | "walk" => {
            let search = if side == "walk" { DirtyPages::Walk } else { DirtyPages::Tags };
            let builder = Manager::builder().budget_bytes(2 << 30).dirty_pages(search);
            let manager = builder.build().expect("a manager");
            let file = manager.open(path, FileOptions::new().write(true)).expect("the file");
            (0..bytes).step_by(BLOCK).for_each(|at| {
                let read = file.read_at(at as u64, buffer.as_mut_slice()).expect("a read");
                assert_eq!(read, BLOCK);
            });
            file.sync().expect("a sync");
            offsets.iter().for_each(|at| file.write_at(*at, &[7]).expect("a write"));
            let began = Instant::now();
            file.sync().expect("a sync");
            began.elapsed().as_secs_f64() * 1e3
        }
        "kernel" => {
            let plain = File::options().read(true).write(true).open(path).expect("the file");
            (0..bytes).step_by(BLOCK).for_each(|at| {
                plain.read_exact_at(buffer.as_mut_slice(), at as u64).expect("a read");
            });
            plain.sync_data().expect("a sync");
            offsets.iter().for_each(|at| plain.write_all_at(&[7], *at).expect("a write"));
            let began = Instant::now();
            plain.sync_data().expect("a sync");
            began.elapsed().as_secs_f64() * 1e3
        }
        other => panic!("no side {other}"),
    }
}

/// Does the work in a process of its own, in a group with little memory, or in none.
fn in_group(group: Option<&ControlGroup>, work: &str) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    let mut child =
        command.env(WORK, work).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a child");
    if let Some(group) = group {
        fs::write(group.procs(), child.id().to_string()).expect("the child enters the group");
    }
    // The child begins when its standard input ends.
    drop(child.stdin.take());
    let mut told = String::new();
    child.stdout.take().expect("its output").read_to_string(&mut told).expect("its output");
    assert!(child.wait().expect("the child ends").success(), "{work} failed");
    told.trim().parse().expect("a figure")
}

fn do_work(work: &str) {
    std::io::stdin().read_to_string(&mut String::new()).expect("the end of input");
    let words: Vec<_> = work.splitn(4, ' ').collect();
    let path = Path::new(work.splitn(4, ' ').nth(3).expect("a path"));
    // What an earlier measurement left in the kernel's page cache is not charged to this one.
    let file = File::open(path).expect("the file");
    file.sync_all().expect("a sync");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advice");
    let (side, number) = (words[1], words[2].parse().expect("a number"));
    let figure = match words[0] {
        "random" => at_random(side, number, path),
        "order" => in_order(side, path),
        "written" => written(side, path),
        _ => synced(side, number, path),
    };
    println!("{figure}");
}

/// A group of little memory, which ends with this value.
struct Small(ControlGroup);

impl Small {
    fn new() -> Option<Self> {
        let hierarchy = Hierarchy::find().ok()??;
        let group = ControlGroup::new(&hierarchy, &format!("octavo-files-{}", std::process::id()));
        fs::create_dir(group.path()).ok()?;
        let small = Self(group);
        fs::write(small.0.limit(), MEMORY_BYTES.to_string()).ok()?;
        Some(small)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.path());
    }
}

/// Prints a row of the figures of all sides, taken in turns.
fn row(
    title: &str,
    rounds: usize,
    group: Option<&ControlGroup>,
    what: &str,
    sides: &[&str],
    number: usize,
    path: &Path,
) {
    let figures = measure_in_turns(rounds, sides.len(), |side| {
        in_group(group, &format!("{what} {} {number} {}", sides[side], path.display()))
    });
    print!("{}", markdown_row(title, figures.into_iter().map(summary)));
}

fn main() {
    if let Ok(work) = std::env::var(WORK) {
        return do_work(&work);
    }
    let rounds = rounds_or(5);
    let folder = std::env::args().nth(2).map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
    let folder = tempfile::tempdir_in(folder).expect("a folder");
    let path = folder.path().join("file");
    write_in_full(&File::create_new(&path).expect("a file"), FILE_BYTES).expect("room for it");
    let small = Small::new().expect("a control group: run this as root, where there are memory groups");
    let group = Some(&small.0);
    println!("Files of 1 GiB, memory of 256 MiB. Median (least) of {rounds} rounds.\n");
    println!("Thousands of random reads of 4 KiB a second; more is better:\n");
    print!("{}", markdown_header("threads | device | load | read | mmap | pread"));
    for threads in [1, 2, 8, 64] {
        let sides = ["device", "load", "read", "mmap", "pread"];
        row(&threads.to_string(), rounds, group, "random", &sides, threads, &path);
    }
    println!("\nMiB a second, in order; more is better:\n");
    print!("{}", markdown_header("what | device | load | read | mmap | pread"));
    row("read", rounds, group, "order", &["device", "load", "read", "mmap", "pread"], 1, &path);
    print!("\n{}", markdown_header("what | device | write | pwrite"));
    row("write and sync", rounds, group, "written", &["device", "write", "pwrite"], 1, &path);
    println!("\nMilliseconds of a sync of 1,000 pages apart, by the MiB in memory; less is better:\n");
    print!("{}", markdown_header("in memory | tags | walk | kernel"));
    for mib in [16, 64, 256, 1024] {
        row(&format!("{mib} MiB"), rounds, None, "synced", &["tags", "walk", "kernel"], mib, &path);
    }
}
