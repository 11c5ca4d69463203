//! A file against a model of its bytes: what programs see, and what a crash may leave.

mod common;
#[path = "oracle/file.rs"]
mod file;

use common::{Random, Switches, number_from, seed_or};
use file::Case;
use proptest::prelude::*;

fn cases() -> impl Strategy<Value = Case> {
    let raw = (any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>());
    let ops = prop::collection::vec(raw, 1..250);
    (any::<u64>(), any::<u8>(), 64_u64..600, ops).prop_map(|(switches, flags, room_frames, ops)| Case {
        switches: Switches::random(&mut Random::new(switches)),
        background: flags & 1 != 0,
        crashes: flags & 2 != 0,
        direct: flags & 4 != 0,
        stores_behind_end: flags & 8 != 0,
        guards: flags & 48 == 0,
        walks: flags & 192 == 0,
        room_frames,
        ops,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_file_agrees_with_its_model(case in cases()) {
        file::run(&case);
    }
}

/// `OCTAVO_TEST_SEED` and `OCTAVO_TEST_RUNS` choose other seeds.
#[test]
fn long_runs_agree_with_the_model() {
    let first = seed_or(1);
    for seed in first..first + number_from("OCTAVO_TEST_RUNS").unwrap_or(6) {
        println!("seed {seed}");
        file::run(&Case::random(&mut Random::new(seed), 2000));
    }
}
