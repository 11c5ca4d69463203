//! The cost of the compressed pool beside plain LZ4 of the same pages: nanoseconds a page and thread.
//!
//! `cargo run --release -p octavo-bench --bin pool [-- ROUNDS]`
//!
//! The sides alternate within each round. Plain compression has its table and buffers ready, and plain
//! decompression has its packed page. The pool also copies between arena and stack, looks at a sample,
//! computes checksums, finds a place in a span, and takes locks. A second table shows the other steps of a
//! page on its way.

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use octavo::{Compression, FrameId, PAGE_BYTES, PoolProbe};
use octavo_bench::pages::pages;
use octavo_bench::{rounds_or, row};
use octavo_measure::table::markdown_header;
use octavo_measure::workers::steps;

const COLUMNS: &str =
    "pages, threads | lz4 | pool store | lz4 back | pool load | pool free | zstd store | zstd load";
const COLUMNS_OF_STEPS: &str = "a page of text, 1 thread | copy | checksum of a copy | checksum in place | same? | same? zeros | seal | open";
/// The number of pages of each kind and thread. They have 4 MiB, so that neither side fits in the first-level
/// caches.
const PAGES: usize = 1024;
const THREADS: usize = 2;

/// Times `step` over a thread's pages. `after` restores the state, untimed.
fn over_pages(threads: usize, step: impl Fn(usize) + Sync, after: impl Fn(usize) + Sync) -> f64 {
    steps(threads, |barrier: &Barrier, thread| {
        let mine = thread * PAGES..(thread + 1) * PAGES;
        barrier.wait();
        let began = Instant::now();
        mine.clone().for_each(&step);
        let spent = began.elapsed();
        barrier.wait();
        mine.for_each(&after);
        (Instant::now() - spent, PAGES)
    })
}

thread_local! {
    static PLAIN: RefCell<(CompressTable, [u8; 2 * PAGE_BYTES])> =
        RefCell::new((CompressTable::small(), [0; 2 * PAGE_BYTES]));
}

fn main() {
    let rounds = rounds_or(9);
    println!("ns a page, each thread; medians of {rounds} rounds (and the least)\n");
    print!("{}", markdown_header(COLUMNS));
    let mut kept = Vec::new();
    for kind in ["text", "half", "random", "floats"] {
        let pages = pages(kind, THREADS * PAGES);
        let lz4 = PoolProbe::new(Compression::Lz4, 128 << 20).expect("address space");
        let zstd = PoolProbe::new(Compression::Zstd, 128 << 20).expect("address space");
        let packed: Vec<_> = pages.iter().map(|page| lz4_flex::block::compress(page)).collect();
        let pools = [&lz4, &zstd].map(|pool| {
            let frames: Vec<FrameId> = pages.iter().map(|page| pool.frame(page)).collect();
            let to: Vec<FrameId> = (0..THREADS * 8).map(|_| pool.frame(&[0; PAGE_BYTES])).collect();
            let handles: Vec<_> = frames.iter().map(|_| std::sync::Mutex::new(None)).collect();
            (pool, frames, to, handles)
        });
        let fill = |side: usize| {
            let (pool, frames, _, handles) = &pools[side];
            for (slot, frame) in frames.iter().enumerate() {
                *handles[slot].lock().unwrap() = pool.store(slot as u32, *frame);
            }
        };
        let free = |side: usize, slot: usize| {
            if let Some(handle) = pools[side].3[slot].lock().unwrap().take() {
                pools[side].0.free(handle);
            }
        };
        let store = |side: usize, threads| {
            let (pool, frames, _, handles) = &pools[side];
            let step = |slot: usize| *handles[slot].lock().unwrap() = pool.store(slot as u32, frames[slot]);
            over_pages(threads, step, |slot| free(side, slot))
        };
        let load = |side: usize, threads| {
            let (pool, _, to, handles) = &pools[side];
            fill(side);
            let step = |slot: usize| {
                let to = to[slot / PAGES * 8 + slot % 8];
                if let Some(handle) = *handles[slot].lock().unwrap() {
                    assert!(pool.load(slot as u32, handle, to), "a page that was stored");
                }
            };
            over_pages(threads, step, |slot| free(side, slot)).max(0.0)
        };
        let compress = |slot: usize| {
            PLAIN.with_borrow_mut(|(table, out)| {
                black_box(compress_into_with_table(&pages[slot], out, table).expect("room"));
            });
        };
        let decompress = |slot: usize| {
            PLAIN.with_borrow_mut(|(_, out)| {
                black_box(decompress_into(&packed[slot], &mut out[..PAGE_BYTES]).expect("a page"));
            });
        };
        for threads in [1, THREADS] {
            row(
                &format!("{kind}, {threads}t"),
                rounds,
                &mut [
                    &mut || over_pages(threads, compress, |_| ()),
                    &mut || store(0, threads),
                    &mut || over_pages(threads, decompress, |_| ()),
                    &mut || load(0, threads),
                    &mut || {
                        fill(0);
                        let ns = over_pages(threads, |slot| free(0, slot), |_| ());
                        (0..THREADS * PAGES).for_each(|slot| free(0, slot));
                        ns
                    },
                    &mut || store(1, threads),
                    &mut || load(1, threads),
                ],
            );
        }
        for (side, name) in ["lz4", "zstd"].into_iter().enumerate() {
            fill(side);
            let (count, packed, used) = pools[side].0.stats();
            if count > 0 {
                let bytes = (count * PAGE_BYTES as u64) as f64;
                let (plain, whole) = (bytes / packed as f64, bytes / used as f64);
                kept.push(format!(
                    "{kind}, {name}: {plain:.2} packed, {whole:.2} with all that is lost in blocks"
                ));
            }
        }
    }
    println!("\nfactors by which pages shrink:\n  {}\n", kept.join("\n  "));
    other_steps(rounds);
}

fn other_steps(rounds: usize) {
    let probe = PoolProbe::new(Compression::Lz4, 64 << 20).expect("address space");
    let frames: Vec<_> = pages("text", THREADS * PAGES).iter().map(|page| probe.frame(page)).collect();
    let zeros: Vec<_> = (0..THREADS * PAGES).map(|_| probe.frame(&[0; PAGE_BYTES])).collect();
    let to = probe.frame(&[0; PAGE_BYTES]);
    let nothing = |_| ();
    print!("{}", markdown_header(COLUMNS_OF_STEPS));
    row(
        "",
        rounds,
        &mut [
            &mut || over_pages(1, |slot| probe.copy(frames[slot], to), nothing),
            &mut || over_pages(1, |slot| _ = black_box(probe.page_crc_of_copy(frames[slot])), nothing),
            &mut || over_pages(1, |slot| _ = black_box(probe.page_crc(frames[slot])), nothing),
            &mut || over_pages(1, |slot| _ = black_box(probe.same_filled(frames[slot])), nothing),
            &mut || over_pages(1, |slot| _ = black_box(probe.same_filled(zeros[slot])), nothing),
            &mut || over_pages(1, |slot| probe.seal(slot as u32, frames[slot], to), nothing),
            &mut || {
                (0..PAGES).for_each(|slot| probe.seal(slot as u32, frames[slot], zeros[slot]));
                let ns = over_pages(1, |slot| assert!(probe.open(slot as u32, zeros[slot])), nothing);
                (0..PAGES).for_each(|slot| probe.copy(zeros[PAGES + slot], zeros[slot]));
                ns
            },
        ],
    );
}
