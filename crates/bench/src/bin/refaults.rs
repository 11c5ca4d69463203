//! The cost of a refault on top of the operation below it: the device, a copy, or unpacking. One thread.
//!
//! `cargo run --release -p octavo-bench --bin refaults [-- ROUNDS [DIRECTORY]]`
//!
//! | table | the operation below | a load of a word of a page that is out |
//! |---|---|---|
//! | device | 4 KiB by `pread` with O_DIRECT, of a file of its own that was written in full | from a temporary swap file in the same directory |
//! | memory | a copy of the page out of an array | from `SwapArea::ram`: software alone |
//! | pool | plain LZ4 decompression of the same page | from the compressed pool |
//!
//! The operation below and the load take turns, and each is timed alone. So a change in the machine's speed
//! affects both. Pages are loaded in a random order, each once before any is loaded again. Nothing is read
//! ahead. If a load found its page in memory, which shows in a counter of the manager, neither the load nor
//! the operation beside it counts. Every word is checked.
//!
//! On the device and in memory, the data is eight times the budget. So a fault also has to find a frame, and
//! takes it from a clean page. For the pool, the bench sends pages out untimed: it writes a page again and
//! sends it out so early that 2048 others go to the pool before the page is loaded.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use lz4_flex::block::{compress, decompress_into};
use octavo::io::SwapArea;
use octavo::{AccessPattern, Advice, Compression, Counter, Manager, PAGE_BYTES, RegionOptions, Space};
use octavo_bench::pages::pages;
use octavo_bench::rounds_or;
use octavo_measure::direct::{AlignedBytes, nameless_file, pass_the_page_cache};
use octavo_measure::random::Random;
use octavo_measure::statistics::{Spread, mean, median};
use octavo_measure::table::{markdown_header, markdown_row};

const BUDGET_BYTES: u64 = 64 << 20;
const DATA_PAGES: usize = (512 << 20) / PAGE_BYTES;
/// Pages of the data. `POOL_PAGES` of them fit into the pool, but not into the processor's first caches.
const POOL_DATA_PAGES: usize = 4096;
const POOL_PAGES: usize = 2048;
/// Operations of each kind in a round.
const OPERATIONS: usize = 4000;
/// Managers that a round of the pool tries before it gives up.
const MANAGERS: usize = 20;
const BLOCK_PAGES: usize = 256;

/// Writes the pages to a file without a name, past the page cache.
fn file_of(pages: &[Vec<u8>], directory: &Path) -> File {
    let file = nameless_file(directory).expect("a place to write");
    pass_the_page_cache(&file).expect("a disk");
    let mut block = AlignedBytes::new(BLOCK_PAGES * PAGE_BYTES);
    for (number, pages) in pages.chunks(BLOCK_PAGES).enumerate() {
        let bytes = &mut block.as_mut_slice()[..pages.len() * PAGE_BYTES];
        bytes.copy_from_slice(&pages.concat());
        file.write_all_at(bytes, (number * BLOCK_PAGES * PAGE_BYTES) as u64).expect("the disk");
    }
    file.sync_all().expect("the disk");
    file
}

/// The pages in a space that has no room for all of them.
struct Swapped<'a> {
    manager: Manager,
    space: Space,
    at: u64,
    pages: &'a [Vec<u8>],
    /// The pages, in the order in which they are loaded.
    order: Vec<usize>,
    /// A counter that rises when a page comes back.
    came_back: Counter,
}

impl<'a> Swapped<'a> {
    fn new(pages: &'a [Vec<u8>], area: SwapArea, compression: Compression) -> Self {
        let len = (pages.len() * PAGE_BYTES) as u64;
        // The area is twice as large as the data, so that clean pages keep their slots.
        let builder = Manager::builder().budget_bytes(BUDGET_BYTES).swap_area(area.limit_bytes(2 * len));
        let manager = builder.compression(compression).build().expect("a manager");
        let space = manager.space().expect("a space");
        let options = RegionOptions::new().pattern(AccessPattern::Random);
        let at = space.map(len, options).expect("addresses");
        for (number, page) in pages.iter().enumerate() {
            space.write(at + (number * PAGE_BYTES) as u64, page).expect("mapped");
        }
        let came_back = match compression {
            Compression::Off => {
                // All pages go out now, so that nothing is written while faults are timed.
                space.advise(at, len, Advice::PageOut).expect("mapped");
                Counter::MajorFault
            }
            Compression::Lz4 | Compression::Zstd => Counter::PoolSwapIn,
        };
        let mut order: Vec<usize> = (0..pages.len()).collect();
        Random::new(0x5eed).shuffle(&mut order);
        Self { manager, space, at, pages, order, came_back }
    }

    /// Writes a page again and sends it out.
    fn send_out(&self, page: usize) {
        let address = self.at + (page * PAGE_BYTES) as u64;
        self.space.write(address, &self.pages[page]).expect("mapped");
        self.space.advise(address, PAGE_BYTES as u64, Advice::PageOut).expect("mapped");
    }

    /// Repeats the order endlessly, and sends each page out some turns before it is loaded. The number of
    /// turns is small at first, because the pool does not pack pages that do not come back soon.
    fn order_by_the_pool(&self) -> impl Iterator<Item = usize> {
        let page = |number: usize| self.order[number % self.order.len()];
        let mut sent = 0;
        (0..).map(move |number| {
            while sent < (2 * number + 16).min(number + POOL_PAGES) {
                self.send_out(page(sent));
                sent += 1;
            }
            page(number)
        })
    }

    /// Times a load in nanoseconds. Returns `None` if the page was in memory.
    fn load(&self, page: usize) -> Option<f64> {
        let before = self.manager.counters().get(self.came_back);
        let address = self.at + (page * PAGE_BYTES) as u64;
        let began = Instant::now();
        let word = self.space.load::<u64>(address).expect("mapped");
        let spent = began.elapsed();
        assert_eq!(word.to_le_bytes(), self.pages[page][..8], "page {page}");
        (self.manager.counters().get(self.came_back) > before).then_some(spent.as_nanos() as f64)
    }
}

/// Medians and means of the operation below, of the load, and of their difference, in microseconds.
type Figures = [f64; 6];

fn figures(below: Vec<f64>, loads: Vec<f64>) -> Figures {
    let us = |ns: Vec<f64>| (median(&ns) / 1000.0, mean(&ns) / 1000.0);
    let ((below, below_mean), (load, load_mean)) = (us(below), us(loads));
    [below, load, load - below, below_mean, load_mean, load_mean - below_mean]
}

/// Runs one round: for each page, it does `below` and a load. The two take turns in coming first. Returns
/// `None` if fewer than half of the loads had to bring their page back.
fn round(
    swapped: &Swapped<'_>,
    order: &mut impl Iterator<Item = usize>,
    below: &mut impl FnMut(usize),
) -> Option<Figures> {
    let (mut belows, mut loads) = (Vec::new(), Vec::new());
    let mut timed_below = |page| {
        let began = Instant::now();
        below(page);
        began.elapsed().as_nanos() as f64
    };
    for (turn, page) in order.take(2 * OPERATIONS).enumerate() {
        let (ns, load) = if turn % 2 == 0 {
            let ns = timed_below(page);
            (ns, swapped.load(page))
        } else {
            let load = swapped.load(page);
            (timed_below(page), load)
        };
        if let Some(load) = load {
            belows.push(ns);
            loads.push(load);
        }
        if loads.len() == OPERATIONS {
            return Some(figures(belows, loads));
        }
    }
    None
}

fn table(name: &str, rounds: usize, mut one: impl FnMut() -> Figures) {
    let columns = format!("{name}, round | below, median | load | more | below, mean | load | more");
    print!("{}", markdown_header(&columns));
    let mut all = [const { Vec::new() }; 6];
    for number in 1..=rounds {
        let figures = one();
        all.iter_mut().zip(figures).for_each(|(all, figure)| all.push(figure));
        print!("{}", markdown_row(number, figures.map(|figure| format!("{figure:.2}"))));
    }
    let spread = |figures| {
        let Spread { median, min, max } = Spread::of(figures).expect("there is a round at least");
        format!("{median:.2} ({min:.2} to {max:.2})")
    };
    println!("{}", markdown_row("**median (range)**", all.map(spread)));
}

/// Prints the table for pages that reclaim only drops from memory, because the device has their bytes.
fn table_of_clean(name: &str, rounds: usize, swapped: &Swapped<'_>, mut below: impl FnMut(usize)) {
    let mut order = swapped.order.iter().copied().cycle();
    let mut one = || round(swapped, &mut order, &mut below).expect("pages come back");
    // The first uses do not count.
    one();
    table(name, rounds, one);
}

/// Prints the table of the pool. Each round has a manager of its own. If a manager once finds that packing is
/// slow, as on a busy machine, it packs few pages for a long time. In that case, the round starts again with
/// another manager.
fn table_of_pool(kind: &str, rounds: usize, directory: &Path) {
    let pages = pages(kind, POOL_DATA_PAGES);
    let packed: Vec<Vec<u8>> = pages.iter().map(|page| compress(page)).collect();
    let mut buffer = AlignedBytes::new(PAGE_BYTES);
    let mut below = |page: usize| {
        black_box(decompress_into(&packed[page], buffer.as_mut_slice()).expect("a page"));
    };
    let one = || {
        let mut attempts = (0..MANAGERS).filter_map(|_| {
            let swapped = Swapped::new(&pages, SwapArea::temporary(directory), Compression::Lz4);
            let mut order = swapped.order_by_the_pool();
            round(&swapped, &mut order, &mut below)?;
            round(&swapped, &mut order, &mut below)
        });
        attempts.next().expect("pages come back from the pool")
    };
    table(&format!("pool, {kind}"), rounds, one);
}

fn main() {
    let rounds = rounds_or(7);
    let directory = std::env::args().nth(2).unwrap_or_else(|| "/var/tmp".into());
    let directory = Path::new(&directory);
    let began = Instant::now();
    (0..OPERATIONS).for_each(|_| _ = black_box(Instant::now().elapsed()));
    let clock_ns = began.elapsed().as_nanos() / OPERATIONS as u128;
    println!(
        "us; {rounds} rounds of {OPERATIONS} operations of each kind; each includes {clock_ns} ns for the clock\n"
    );

    let random = pages("random", DATA_PAGES);
    let mut buffer = AlignedBytes::new(PAGE_BYTES);
    {
        let file = file_of(&random, directory);
        let swapped = Swapped::new(&random, SwapArea::temporary(directory), Compression::Off);
        table_of_clean("device", rounds, &swapped, |page| {
            let offset = (page * PAGE_BYTES) as u64;
            file.read_exact_at(buffer.as_mut_slice(), offset).expect("the disk");
        });
    }
    {
        let area = SwapArea::ram(2 * (DATA_PAGES * PAGE_BYTES) as u64);
        let swapped = Swapped::new(&random, area, Compression::Off);
        // The copies come from another array, because the check reads the first.
        let array = random.clone();
        table_of_clean("memory", rounds, &swapped, |page| {
            black_box(buffer.as_mut_slice()).copy_from_slice(&array[page]);
        });
    }
    drop(random);
    for kind in ["text", "half"] {
        table_of_pool(kind, rounds, directory);
    }
}
