//! A space against models of its bytes: exact with one thread, by lanes with several.

mod common;

use common::lanes::{self, Load};
use common::model::{self, Case};
use common::{MIB, Random, Switches, number_from, seed_or};
use proptest::prelude::*;

fn cases() -> impl Strategy<Value = Case> {
    let raw = (any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>());
    let ops = prop::collection::vec(raw, 1..250);
    (any::<u64>(), any::<bool>(), 64_u64..3000, ops).prop_map(|(switches, background, room_frames, ops)| {
        Case { switches: Switches::random(&mut Random::new(switches)), background, room_frames, ops }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn one_thread_agrees_with_the_model_exactly(case in cases()) {
        model::run(&case);
    }
}

/// `OCTAVO_TEST_SEED` and `OCTAVO_TEST_RUNS` choose others.
fn for_seeds(first: u64, runs: u64, run: impl Fn(u64)) {
    let first = seed_or(first);
    for seed in first..first + number_from("OCTAVO_TEST_RUNS").unwrap_or(runs) {
        run(seed);
    }
}

#[test]
fn long_runs_of_one_thread_agree_with_the_model() {
    for_seeds(1, 8, |seed| {
        println!("seed {seed}");
        model::run(&Case::random(&mut Random::new(seed), 3000));
    });
}

const LOAD: Load = Load {
    threads: 3,
    steps: 6000,
    pages: 24 * MIB / 4096,
    device_faults: false,
    other_spaces: true,
    budget_bytes: 16 * MIB,
};

#[test]
fn threads_find_their_lanes_as_they_left_them() {
    for_seeds(1, 6, |seed| lanes::run(seed, LOAD));
}

#[test]
fn threads_find_their_lanes_under_a_device_that_fails() {
    for_seeds(1, 4, |seed| lanes::run(seed, Load { device_faults: true, steps: 3000, ..LOAD }));
}

#[test]
fn threads_find_their_lanes_in_a_range_that_nearly_fits() {
    for_seeds(1, 4, |seed| lanes::run(seed, Load { pages: 3000, threads: 4, ..LOAD }));
}
