//! The cost of one allocation and its free: nanoseconds a pair and thread, by pattern, order, and 1 and 2
//! threads.
//!
//! `cargo run --release -p octavo-bench --bin frames [-- ROUNDS [PATTERN [ORDER [SIDE]]]]`
//!
//! | pattern | one step |
//! |---|---|
//! | ping | allocate a block and free it |
//! | random | free a random block of a pool of 1024 live blocks a thread, and allocate another |
//! | bulk | allocate 4096 blocks and free them in random order; the time is divided by 4096 |
//!
//! The sides alternate within each round. A figure is the median over the rounds. The memory behind the
//! frames is never touched, so a block costs the same whatever its size.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use octavo::PercpuOrders;
use octavo::frame::{Backing, FrameAllocator, FrameConfig, FrameId, Order, PercpuForm};
use octavo_bench::{rounds_or, summary};
use octavo_measure::random::Random;
use octavo_measure::rounds::measure_in_turns;
use octavo_measure::table::{markdown_header, markdown_row};
use octavo_measure::workers::steps;

const POOL: usize = 1024;
const BULK: usize = 4096;
/// Pairs in one measurement of ping and random.
const STEPS: usize = 400_000;
const BULK_TURNS: usize = 24;

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Ping,
    Random,
    Bulk,
}

struct FrameSide {
    name: &'static str,
    frames: FrameAllocator,
}

fn side(name: &'static str, orders: PercpuOrders, form: PercpuForm) -> FrameSide {
    // Two threads of bulk hold 8192 blocks of 2 MiB.
    let bytes = (2 * BULK as u64 + 1024) << 21;
    let mut config = FrameConfig::one_zone(bytes, Backing::BasePages);
    (config.percpu_orders, config.form, config.populate) = (orders, form, false);
    let frames = FrameAllocator::standalone(&config, bytes * 2).expect("address space for the arena");
    FrameSide { name, frames }
}

fn measure(frames: &FrameAllocator, pattern: Pattern, order: Order, threads: usize) -> f64 {
    let alloc = || frames.alloc(order).expect("the arena is large enough").into_frame();
    let free = |frame: FrameId| frames.free(frame, order).expect("an allocated block");
    steps(threads, |barrier, thread| {
        let mut random = Random::new(thread as u64);
        match pattern {
            Pattern::Ping => {
                (0..1000).for_each(|_| free(alloc()));
                barrier.wait();
                let began = Instant::now();
                (0..STEPS).for_each(|_| free(black_box(alloc())));
                (began, STEPS)
            }
            Pattern::Random => {
                let mut pool: Vec<_> = (0..POOL).map(|_| alloc()).collect();
                barrier.wait();
                let began = Instant::now();
                for _ in 0..STEPS {
                    let place = &mut pool[random.below(POOL)];
                    free(*place);
                    *place = alloc();
                }
                let spent = began.elapsed();
                pool.into_iter().for_each(free);
                (Instant::now() - spent, STEPS)
            }
            Pattern::Bulk => {
                let mut blocks = Vec::with_capacity(BULK);
                // The order of the frees is drawn before the clock starts.
                let mut permutation: Vec<_> = (0..BULK).collect();
                random.shuffle(&mut permutation);
                let mut turn = || {
                    blocks.extend((0..BULK).map(|_| alloc()));
                    permutation.iter().for_each(|&index| free(blocks[index]));
                    blocks.clear();
                };
                (0..4).for_each(|_| turn());
                barrier.wait();
                let began = Instant::now();
                (0..BULK_TURNS).for_each(|_| turn());
                (began, BULK_TURNS * BULK)
            }
        }
    })
}

fn bare_atomic_add(threads: usize) -> f64 {
    steps(threads, |barrier, _| {
        let word = AtomicU64::new(0);
        barrier.wait();
        let began = Instant::now();
        for _ in 0..STEPS {
            black_box(&word).fetch_add(1, Ordering::Relaxed);
        }
        (began, STEPS)
    })
}

fn main() {
    let rounds = rounds_or(7);
    let mut arguments = std::env::args().skip(2);
    let only = arguments.next();
    let only_order: Option<usize> = arguments.next().and_then(|order| order.parse().ok());
    let only_side = arguments.next();
    let mut sides = vec![
        side("OrderZero", PercpuOrders::OrderZero, PercpuForm::Sections),
        side("Costly", PercpuOrders::Costly, PercpuForm::Sections),
        side("All", PercpuOrders::All, PercpuForm::Sections),
        side("All, trylock", PercpuOrders::All, PercpuForm::TryLock),
    ];
    sides.retain(|side| only_side.as_ref().is_none_or(|only| only == side.name));
    println!("ns for one allocation and free, each thread; medians of {rounds} rounds (and the least)\n");
    let names: String = sides.iter().map(|side| format!(" | {}", side.name)).collect();
    print!("{}", markdown_header(&format!("pattern, order, threads | atomic add{names}")));
    for (pattern, name) in [(Pattern::Ping, "ping"), (Pattern::Random, "random"), (Pattern::Bulk, "bulk")] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        for order in [0, 4, 9].map(|order| Order::new(order).expect("an order")) {
            if only_order.is_some_and(|only| only != order.index()) {
                continue;
            }
            for threads in [1, 2] {
                let figures = measure_in_turns(rounds, 1 + sides.len(), |side| match side {
                    0 => bare_atomic_add(threads),
                    side => measure(&sides[side - 1].frames, pattern, order, threads),
                });
                let title = format!("{name}, {order:?}, {threads}t");
                print!("{}", markdown_row(title, figures.into_iter().map(summary)));
            }
        }
    }
}
