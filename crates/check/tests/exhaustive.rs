//! All schedules of small meetings with one preemption, and the bugs that they show.
//!
//! Random schedules may miss a bug. These meetings are checked under all schedules.

use clap::ValueEnum;
use octavo_check::{MUTANTS, Pair, exhaust};

#[global_allocator]
static MEMORY: octavo_sim::SimAllocator = octavo_sim::SimAllocator;

/// More than the schedules of a meeting of two threads.
const ENOUGH: u64 = 4000;
/// Meetings of three threads have too many schedules for a test; `octavo-lab exhaust` tries them all.
const OF_THREE: u64 = 1500;

#[test]
fn meetings_go_well_in_every_schedule_with_one_preemption() {
    for pair in Pair::value_variants() {
        let has_three = matches!(pair, Pair::ZeroPageAndShrinker | Pair::SharedPageAndUnmap);
        let exhausted = exhaust(*pair, None, 1, if has_three { OF_THREE } else { ENOUGH });
        if let Some(failed) = exhausted.failed {
            let stopped = failed.result.expect_err("it failed");
            panic!("{pair:?}: the {}th schedule: {stopped}", exhausted.tried);
        }
        assert!(exhausted.are_all || has_three, "{pair:?}: there are more than {ENOUGH}");
        assert!(exhausted.tried > 100, "{pair:?}: {} schedules, so the threads hardly meet", exhausted.tried);
    }
}

#[track_caller]
fn is_shown(name: &str, pair: Pair, preemptions: u32) {
    let mutant = MUTANTS.iter().find(|mutant| mutant.name == name).expect("it is in the list");
    let exhausted = exhaust(pair, Some(mutant), preemptions, ENOUGH);
    assert!(exhausted.failed.is_some(), "{name}: {} schedules went well", exhausted.tried);
}

#[test]
fn accesses_that_do_not_look_again_are_shown_by_one_preemption() {
    is_shown("pin-without-second-look", Pair::PinAndPageOut, 1);
    is_shown("store-without-second-look", Pair::StoreToCleanAndPageOut, 1);
    is_shown("load-without-second-look", Pair::LoadAndReuse, 1);
}

#[test]
fn a_page_that_gets_another_frame_beside_its_pin_is_shown_by_one_preemption() {
    is_shown("overwritten-beside-its-pin", Pair::OverwriteUnderPin, 1);
}

#[test]
fn uses_and_references_that_are_kept_are_shown_by_one_preemption() {
    is_shown("reference-kept-for-a-changed-entry", Pair::StoreToCleanAndPageOut, 1);
}

#[test]
fn what_changes_a_page_that_comes_back_and_leaves_it_as_it_is_is_shown_by_one_preemption() {
    is_shown("protect-leaves-swapped-entries", Pair::ProtectAndReturn, 1);
    is_shown("read-of-a-slot-that-nothing-leads-to", Pair::UnmapAndReturn, 1);
}

#[test]
fn the_huge_zero_pages_bugs_are_shown_by_one_preemption() {
    is_shown("zero-page-torn-down-without-its-lock", Pair::ZeroPageAndShrinker, 1);
    is_shown("zero-page-wiped-late", Pair::ZeroPageAndShrinker, 1);
}

#[test]
fn a_waiter_that_announces_itself_without_the_lock_takes_two_preemptions() {
    is_shown("waiter-announced-without-the-lock", Pair::TwoReturns, 2);
}
