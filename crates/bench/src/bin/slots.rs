//! The cost of a swap slot: nanoseconds for its allocation and its free, by length of run, fill and threads.
//!
//! `cargo run --release -p octavo-bench --bin slots [-- ROUNDS]`
//!
//! Each thread allocates runs of up to a given length, holds 2048 slots, and frees the oldest. The brackets
//! hold the least time over the rounds, and the number of slots in an allocated run. An area has 256 MiB:
//!
//! | fill | state before the clock starts |
//! |---|---|
//! | empty | every slot is free |
//! | half | the area was full, then every slot was freed with probability 1/2 |
//! | 95 % | the area was full, then every slot was freed with probability 1/20 |

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use octavo::StandaloneSlots;
use octavo_bench::{rounds_or, summary};
use octavo_measure::random::Random;
use octavo_measure::statistics::mean;
use octavo_measure::table::{markdown_header, markdown_row};
use octavo_measure::workers::steps;

const PAGES: u32 = 1 << 16;
const HELD: u32 = 2048;
const SLOTS: usize = 400_000;

/// Makes an area in which one slot in `free_one_in` is free. 1 means all.
fn filled(free_one_in: usize) -> StandaloneSlots {
    let slots = StandaloneSlots::new(PAGES).expect("address space");
    if free_one_in > 1 {
        while slots.allocate(512).is_some() {}
        let mut random = Random::new(1);
        (0..PAGES).filter(|_| random.below(free_one_in) == 0).for_each(|slot| slots.free(slot, 1));
    }
    slots
}

/// Measures the nanoseconds of a slot, and the slots of a run.
fn measure(free_one_in: usize, count: u32, threads: usize) -> (f64, f64) {
    let slots = filled(free_one_in);
    // Fewer slots may be free than two threads would hold.
    let held_most = HELD.min(PAGES / free_one_in as u32 / 4);
    let (all_runs, all_slots) = (AtomicU64::new(0), AtomicU64::new(0));
    let ns = steps(threads, |barrier, _| {
        let mut held = VecDeque::with_capacity(HELD as usize + 1);
        let (mut held_slots, mut runs, mut done) = (0, 0, 0);
        let mut step = |done: &mut usize| {
            let (first, len) = slots.allocate(count).expect("room for what is held");
            held.push_back((first, len));
            held_slots += len;
            *done += len as usize;
            runs += 1;
            while held_slots > held_most {
                let (first, len) = held.pop_front().expect("what is held");
                slots.free(first, len);
                held_slots -= len;
            }
        };
        let mut warm = 0;
        while warm < SLOTS / 4 {
            step(&mut warm);
        }
        barrier.wait();
        let began = Instant::now();
        while done < SLOTS {
            step(&mut done);
        }
        let spent = began.elapsed();
        all_runs.fetch_add(runs, Ordering::Relaxed);
        all_slots.fetch_add((warm + done) as u64, Ordering::Relaxed);
        (Instant::now() - spent, done)
    });
    (ns, all_slots.into_inner() as f64 / all_runs.into_inner() as f64)
}

fn main() {
    let rounds = rounds_or(7);
    println!(
        "ns a slot, allocated and freed, each thread; medians of {rounds} rounds (least; slots a run)\n"
    );
    print!("{}", markdown_header("asked, threads | empty | half | 95 %"));
    for count in [1, 32, 256] {
        for threads in [1, 2] {
            let cell = |free_one_in| {
                let (ns, slots): (Vec<_>, Vec<_>) =
                    (0..rounds).map(|_| measure(free_one_in, count, threads)).unzip();
                format!("{}, {:.1} a run", summary(ns), mean(&slots))
            };
            print!("{}", markdown_row(format!("{count}, {threads}t"), [1, 2, 20].map(cell)));
        }
    }
}
