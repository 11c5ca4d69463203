//! The cost of a hit: load, store, pin and drop, guards and drop, beside the least that the machine needs for
//! such an access.
//!
//! `cargo run --release -p octavo-bench --bin access [-- ROUNDS]`
//!
//! A hit touches one 8-byte word of a page, at an offset that differs from page to page. Pages come in a
//! random order, drawn before the clock starts. "checked array" is a plain array with a version that is read
//! before and after the word. No optimistic read can cost less. "counted array" is an array with an atomic
//! add before and after the word. No pin can cost less. The versions and counts of both arrays lie together,
//! as entries do.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Instant;

use octavo::{Access, Manager, RegionOptions, Space};
use octavo_bench::{rounds_or, row};
use octavo_measure::random::Random;
use octavo_measure::table::markdown_header;
use octavo_measure::workers::steps;

const COLUMNS: &str = "pages, threads | checked array | load | counted array | pin + drop | pin, load, drop | store | read_guarded | shared guard | exclusive guard";
const STEPS: usize = 1 << 20;
const PAGE_BYTES: u64 = 4096;

struct AccessPages {
    order: Vec<u64>,
    data: Vec<AtomicU64>,
    versions: Vec<AtomicU64>,
    counts: Vec<AtomicU32>,
    space: Space,
    base: u64,
    /// A guarded region with the same number of pages.
    guarded: u64,
}

impl AccessPages {
    fn new(pages: u64) -> octavo::Result<Self> {
        let manager = Manager::builder().budget_bytes(4 * pages * PAGE_BYTES + (128 << 20)).build()?;
        let space = manager.space()?;
        let base = space.map(pages * PAGE_BYTES, RegionOptions::default())?;
        let mut random = Random::new(42);
        let order: Vec<u64> = (0..STEPS).map(|_| random.below(pages as usize) as u64).collect();
        let words = |n: u64| (0..n).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let guarded = space.map(pages * PAGE_BYTES, RegionOptions::new().guarded(true))?;
        for page in 0..pages {
            space.store(base + page * PAGE_BYTES + offset(page), page)?;
            space.exclusive::<u64>(guarded + page * PAGE_BYTES + offset(page), 1)?[0] = page;
        }
        Ok(Self {
            order,
            data: words(pages * PAGE_BYTES / 8),
            versions: words(pages),
            counts: (0..pages).map(|_| AtomicU32::new(0)).collect(),
            space,
            base,
            guarded,
        })
    }

    /// Times `hit` on each thread, over the whole order from a place of the thread's own. The threads sum up
    /// the words that they read, since a program would use them.
    #[inline(always)]
    fn measure(&self, threads: usize, hit: impl Fn(u64) -> u64 + Sync) -> f64 {
        steps(threads, |barrier, thread| {
            let (late, early) = self.order.split_at(STEPS / threads * thread);
            let run = || {
                let mut sum = 0u64;
                for part in [early, late] {
                    for &page in part {
                        sum = sum.wrapping_add(hit(page));
                    }
                }
                black_box(sum);
            };
            run();
            barrier.wait();
            let began = Instant::now();
            run();
            (began, STEPS)
        })
    }
}

/// Returns the offset of the word in its page. It differs from page to page, so that the words lie in
/// different cache sets.
fn offset(page: u64) -> u64 {
    page.wrapping_mul(0x9E37_79B9) % 512 * 8
}

fn main() -> octavo::Result<()> {
    let rounds = rounds_or(7);
    println!("ns for one hit, each thread; medians of {rounds} rounds (and the least)\n");
    print!("{}", markdown_header(COLUMNS));
    for pages in [1, 1024, 65_536] {
        let all = AccessPages::new(pages)?;
        let at = |page: u64| all.base + page * PAGE_BYTES + offset(page);
        let guarded = |page: u64| all.guarded + page * PAGE_BYTES + offset(page);
        let word = |page: u64| &all.data[(page * PAGE_BYTES + offset(page)) as usize / 8];
        for threads in [1, 2] {
            row(
                &format!("{pages}, {threads}t"),
                rounds,
                &mut [
                    &mut || {
                        all.measure(threads, |page| {
                            let version = &all.versions[page as usize];
                            let before = version.load(Ordering::Acquire);
                            let value = word(page).load(Ordering::Relaxed);
                            fence(Ordering::Acquire);
                            assert_eq!(version.load(Ordering::Relaxed), before);
                            value
                        })
                    },
                    &mut || all.measure(threads, |page| all.space.load(at(page)).expect("mapped")),
                    &mut || {
                        all.measure(threads, |page| {
                            let count = &all.counts[page as usize];
                            count.fetch_add(1, Ordering::Acquire);
                            let value = word(page).load(Ordering::Relaxed);
                            count.fetch_sub(1, Ordering::Release);
                            value
                        })
                    },
                    &mut || {
                        all.measure(threads, |page| {
                            let pin = all.space.pin_exact(at(page), 8, Access::Read).expect("mapped");
                            pin.len() as u64
                        })
                    },
                    &mut || {
                        all.measure(threads, |page| {
                            let pin = all.space.pin_exact(at(page), 8, Access::Read).expect("mapped");
                            pin.load(0).expect("pinned")
                        })
                    },
                    &mut || {
                        all.measure(threads, |page| {
                            all.space.store(at(page), page).expect("mapped");
                            page
                        })
                    },
                    &mut || {
                        all.measure(threads, |page| {
                            let mut word = [0; 8];
                            all.space.read_guarded(guarded(page), &mut word).expect("mapped");
                            u64::from_ne_bytes(word)
                        })
                    },
                    &mut || {
                        all.measure(threads, |page| {
                            all.space.shared::<u64>(guarded(page), 1).expect("mapped")[0]
                        })
                    },
                    &mut || {
                        all.measure(threads, |page| {
                            let mut guard = all.space.exclusive::<u64>(guarded(page), 1).expect("mapped");
                            guard[0] = page;
                            page
                        })
                    },
                ],
            );
        }
    }
    Ok(())
}
