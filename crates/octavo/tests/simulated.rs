//! The whole engine over the simulated device: late, reordered, failed, short and torn transfers, from a seed.
//!
//! `OCTAVO_SEEDS` says how many seeds, `OCTAVO_TEST_SEED` the first one; `cargo xtask soak --simulated` runs the same,
//! optimised.

mod common;

use common::{number_from, seed_or, simulation};

const SEEDS: u64 = 100;
/// Tests that share the seeds, so that they run at once.
const SHARES: u64 = 2;

fn seeds(share: u64) -> impl Iterator<Item = u64> {
    let first = seed_or(1);
    (first..first + number_from("OCTAVO_SEEDS").unwrap_or(SEEDS)).filter(move |seed| seed % SHARES == share)
}

#[test]
fn one_thread_agrees_with_the_model_whatever_the_device_does_first_half() {
    seeds(0).for_each(|seed| println!("{seed}: {:?}", simulation::run_driven(seed)));
}

#[test]
fn one_thread_agrees_with_the_model_whatever_the_device_does_second_half() {
    seeds(1).for_each(|seed| println!("{seed}: {:?}", simulation::run_driven(seed)));
}

#[test]
fn a_seed_is_repeated_exactly() {
    for seed in [7, 8, 9] {
        assert_eq!(simulation::run_driven(seed), simulation::run_driven(seed), "seed {seed}");
    }
}

#[test]
fn threads_find_their_lanes_whatever_the_device_does() {
    seeds(0).for_each(simulation::run_threaded);
}
