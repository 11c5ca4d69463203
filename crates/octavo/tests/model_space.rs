//! A space is compared with models of its bytes: an exact model with one thread, and lanes with several
//! threads.

mod common;
mod oracle;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{MIB, PAGE, Random, Switches, number_from, seed_or};
use octavo::io::IoEngine;
use octavo::{Access, Compression, Manager, PinPath, RegionOptions, SwapCache};
use oracle::exact::{self, OracleCase};
use oracle::lanes::{self, LaneLoad};
use proptest::prelude::*;

fn cases() -> impl Strategy<Value = OracleCase> {
    let raw = (any::<u8>(), any::<u16>(), any::<u16>(), any::<u8>());
    let ops = prop::collection::vec(raw, 1..250);
    (any::<u64>(), any::<bool>(), 64_u64..3000, ops).prop_map(|(switches, background, room_frames, ops)| {
        OracleCase { switches: Switches::random(&mut Random::new(switches)), background, room_frames, ops }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn one_thread_agrees_with_the_model_exactly(case in cases()) {
        exact::run(&case);
    }
}

/// Runs `runs` seeds. `OCTAVO_TEST_SEED` and `OCTAVO_TEST_RUNS` choose other seeds.
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
        exact::run(&OracleCase::random(&mut Random::new(seed), 3000));
    });
}

const LOAD: LaneLoad = LaneLoad {
    threads: 3,
    steps: 6000,
    pages: 24 * MIB / 4096,
    device_faults: false,
    other_spaces: true,
    budget_bytes: 16 * MIB,
    simulated: None,
};

#[test]
fn threads_find_their_lanes_as_they_left_them() {
    for_seeds(1, 6, |seed| lanes::run(seed, LOAD));
}

#[test]
fn threads_find_their_lanes_under_a_device_that_fails() {
    for_seeds(1, 4, |seed| lanes::run(seed, LaneLoad { device_faults: true, steps: 3000, ..LOAD }));
}

#[test]
fn threads_find_their_lanes_in_a_range_that_nearly_fits() {
    for_seeds(1, 4, |seed| lanes::run(seed, LaneLoad { pages: 3000, threads: 4, ..LOAD }));
}

/// Two pages take turns with one frame. One thread maps, writes and unmaps both pages. Meanwhile other
/// threads access the first page all the time, in every way. These never see or change the bytes of the
/// second page.
#[test]
fn accesses_to_a_page_that_comes_and_goes_never_reach_the_next_owner_of_its_frame() {
    const FIRST: u64 = 0x1111_1111_1111_1111;
    for pin_path in [PinPath::LockFree, PinPath::Locked] {
        // No frame is zeroed ahead, so the frame that was freed last is taken next.
        let builder = Manager::builder().budget_bytes(16 * MIB).pin_path(pin_path).background(false);
        let manager = builder.build().unwrap();
        let space = manager.space().unwrap();
        let (first, second) = (1 << 30, (1 << 30) + PAGE);
        let stop = AtomicBool::new(false);
        let is_firsts = |bytes: &[u8]| bytes.iter().all(|byte| [0, 0x11].contains(byte));
        std::thread::scope(|scope| {
            for kind in 0..2 {
                let (space, stop) = (&space, &stop);
                scope.spawn(move || {
                    let mut bytes = vec![0; PAGE as usize];
                    let mut random = Random::new(kind);
                    while !stop.load(Ordering::Relaxed) {
                        let at = first + random.below(512) * 8;
                        if kind == 0 {
                            if space.read(first, &mut bytes).is_ok() {
                                assert!(is_firsts(&bytes), "a read saw another page");
                            }
                            let word = space.load::<u64>(at).unwrap_or(0);
                            assert!([0, FIRST].contains(&word), "a load saw another page: {word:#x}");
                            let pin = if random.one_in(16) {
                                space.pin_prefix(first, 64, Access::Read).ok()
                            } else {
                                None
                            };
                            if let Some(pin) = pin {
                                pin.copy_out(0, &mut bytes[..64]).unwrap();
                                assert!(is_firsts(&bytes[..64]), "a pin saw another page");
                            }
                        } else {
                            let _ = space.store(at, FIRST);
                            let _ = space.write(first, &[0x11; PAGE as usize]);
                            if let Ok(pin) = space.pin_prefix(at, 8, Access::Write) {
                                pin.copy_in(0, &FIRST.to_le_bytes()).unwrap();
                            }
                        }
                    }
                });
            }
            // This thread takes pages off the LRU while they are freed.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    manager.reclaim(2).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            let _stop = common::SetOnDrop(&stop);
            let start = std::time::Instant::now();
            let (mut turns, mut bytes) = (0, vec![0; PAGE as usize]);
            while start.elapsed() < std::time::Duration::from_secs(2) {
                turns += 1;
                space.map_at(first, PAGE, RegionOptions::default()).unwrap();
                space.store(first, FIRST).unwrap();
                space.unmap(first, PAGE).unwrap();
                space.map_at(second, PAGE, RegionOptions::default()).unwrap();
                space.write(second, &[0x22; PAGE as usize]).unwrap();
                space.read(second, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0x22), "turn {turns}: the second page was changed");
                space.unmap(second, PAGE).unwrap();
            }
            println!("{turns} turns");
        });
        drop(space);
        common::assert_nothing_is_left(&manager);
    }
}

/// Each form of the swap cache runs with each engine on a real file, by lanes and with the exact model.
#[test]
fn every_form_of_the_swap_cache_agrees_with_every_engine() {
    for (index, swap_cache) in
        [SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table].into_iter().enumerate()
    {
        for io_engine in [IoEngine::Probe, IoEngine::Threads] {
            let mut random = Random::new(seed_or(1) + index as u64);
            // Every page goes through the engine.
            let compression = Compression::Off;
            let switches = Switches { swap_cache, io_engine, compression, ..Switches::random(&mut random) };
            println!("{switches:?}");
            lanes::run_on_file(seed_or(1), LaneLoad { steps: 2500, ..LOAD }, switches);
            let case = OracleCase::random(&mut random, 1500);
            exact::run(&OracleCase { switches, ..case });
        }
    }
}
