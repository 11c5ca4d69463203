//! Models of what a program does to its mappings, against the driver that reads the events and against
//! eviction.
//!
//! The [`Gate`] is the real one. `world` has a small kernel with the window's calls on it; `entry` has an
//! entry for each page, and `sides` the three sides that work on it: the program, the driver and the evictor.
//! Each of the [`Rules`] can be left out. A model then finds the loss that the rule prevents.

mod entry;
mod rules;
mod sides;
mod world;

use self::entry::DIRTY;
use self::entry::ModelEntry::{self, Away, Empty, Out};
use self::rules::{ALL, Rules};
use self::world::{ModelPage, World};
use ::loom::sync::Arc;
use ::loom::thread;

/// A page that is watched and present.
fn there(value: u8) -> ModelPage {
    ModelPage { is_registered: true, value: Some(value), ..ModelPage::default() }
}

/// A page that is watched and missing.
const MISSING: ModelPage =
    ModelPage { is_registered: true, value: None, is_protected: false, is_shared: false, is_pinned: false };

/// A thread of a model.
type ModelThread = fn(&World);

/// Explores a model of two pages. The last of the program's threads runs on the model's own thread.
fn check(
    rules: Rules,
    pages: [(ModelPage, ModelEntry); 2],
    program: &'static [ModelThread],
    evictor: Option<ModelThread>,
    after: fn(&World),
) {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 10_000;
    builder.check(move || {
        let world = Arc::new(World::new(rules, pages, program.len()));
        let start = |side: ModelThread, is_program: bool| {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                side(&world);
                if is_program {
                    world.end();
                }
            })
        };
        let (last, others) = program.split_last().expect("a program has a thread");
        let mut sides = vec![start(World::drive, false)];
        sides.extend(evictor.map(|evictor| start(evictor, false)));
        sides.extend(others.iter().map(|side| start(*side, true)));
        last(&world);
        world.end();
        sides.into_iter().for_each(|side| side.join().unwrap());
        after(&world);
    });
}

fn evict(world: &World) {
    world.evict(0);
}

fn evict_twice(world: &World) {
    world.evict(0);
    world.evict(0);
}

/// Evicts a page. If the page is refused, reads for the driver and tries again.
fn evict_or_read(world: &World) {
    world.evict_or_read(0);
    world.evict(0);
}

/// Checks nothing more.
fn nothing(_: &World) {}

// --- mappings that are replaced ---

/// The program unmaps a page, maps another there and stores to it, while the page is being taken out.
fn replaced(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.unmap(0);
        world.store(0, 2);
        assert_eq!(world.load(0), 2, "the new mapping lost its page");
    }];
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], program, Some(evict), |world| {
        assert_eq!(world.now(0), 2, "the new mapping lost its page");
    });
}

#[test]
fn loom_a_new_mapping_keeps_its_page() {
    replaced(ALL);
}

#[test]
#[should_panic(expected = "the new mapping lost its page")]
fn loom_without_the_gate_over_a_move_a_new_mapping_loses_its_page() {
    replaced(Rules { holds_the_gate: false, ..ALL });
}

#[test]
#[should_panic(expected = "the new mapping lost its page")]
fn loom_where_the_mover_tries_again_a_new_mapping_loses_its_page() {
    replaced(Rules { hands_back: false, ..ALL });
}

#[test]
#[should_panic(expected = "the new mapping lost its page")]
fn loom_where_unsettled_pages_are_taken_a_new_mapping_loses_its_page() {
    replaced(Rules { refuses_unsettled: false, ..ALL });
}

/// One thread unmaps a range. Before its event comes, another thread moves a page there.
fn reused(rules: Rules) {
    let program: &[ModelThread] = &[
        |world| world.unmap(0),
        |world| {
            // The kernel hands out addresses that are free.
            if world.relocate_if_free(1, 0) {
                assert_eq!(world.load(0), 5, "a page that moved was forgotten");
            }
        },
    ];
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Out(5))], program, None, nothing);
}

#[test]
fn loom_a_range_that_moves_to_addresses_just_given_back_keeps_its_pages() {
    reused(ALL);
}

#[test]
#[should_panic(expected = "a page that moved was forgotten")]
fn loom_where_late_events_are_not_waited_for_a_range_that_moved_is_forgotten() {
    reused(Rules { waits_for_late_events: false, ..ALL });
}

/// Like [`replaced`], but the side whose page is refused reads the change in place of the driver.
fn replaced_and_read_by_others(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.unmap(1);
        world.unmap(0);
        world.store(0, 2);
        assert_eq!(world.load(0), 2, "the new mapping lost its page");
    }];
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], program, Some(evict_or_read), |world| {
        assert_eq!(world.now(0), 2, "the new mapping lost its page");
    });
}

#[test]
fn loom_a_new_mapping_keeps_its_page_whoever_reads() {
    replaced_and_read_by_others(ALL);
}

#[test]
#[should_panic(expected = "the new mapping lost its page")]
fn loom_where_all_settles_before_what_others_have_read_a_new_mapping_loses_its_page() {
    replaced_and_read_by_others(Rules { settles_last: false, ..ALL });
}

// --- pages that are dropped ---

/// A page reads as zeros once it is dropped.
fn drop_it(world: &World) {
    world.drop_pages(0);
    assert_eq!(world.load(0), 0, "dropped bytes came back");
}

fn dropped(rules: Rules) {
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], &[drop_it], Some(evict), nothing);
}

#[test]
fn loom_dropped_bytes_stay_away() {
    dropped(ALL);
    check(ALL, [(there(1), Away(DIRTY)), (MISSING, Empty)], &[drop_it], Some(evict_or_read), nothing);
    check(ALL, [(MISSING, Out(1)), (MISSING, Empty)], &[drop_it], Some(evict), nothing);
}

#[test]
#[should_panic(expected = "dropped bytes came back")]
fn loom_where_a_dropped_page_counts_as_there_its_bytes_come_back() {
    dropped(Rules { dropped_is_empty: false, ..ALL });
}

/// A fault of another thread is read together with the event.
fn dropped_during_a_fault(rules: Rules) {
    let program: &[ModelThread] = &[|world| assert!(world.load(0) <= 1), drop_it];
    check(rules, [(MISSING, Out(1)), (MISSING, Empty)], program, None, nothing);
}

#[test]
fn loom_a_fault_brings_no_dropped_bytes_back() {
    dropped_during_a_fault(ALL);
}

#[test]
#[should_panic(expected = "dropped bytes came back")]
fn loom_where_unsettled_pages_are_shown_a_fault_brings_dropped_bytes_back() {
    dropped_during_a_fault(Rules { refuses_unsettled: false, ..ALL });
}

/// A page is about to be dropped. A fault at the page beside it brings it along, before the program's call
/// has dropped it.
fn dropped_and_brought_along(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.fault_of_another(1);
        drop_it(world);
    }];
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], program, Some(evict), nothing);
}

#[test]
fn loom_a_dropped_page_that_is_brought_along_stays_away() {
    dropped_and_brought_along(ALL);
}

#[test]
#[should_panic(expected = "dropped bytes came back")]
fn loom_where_a_page_that_is_found_there_is_taken_dropped_bytes_come_back() {
    dropped_and_brought_along(Rules { leaves_what_it_finds: false, ..ALL });
}

// --- clean pages ---

/// The program reads a page that was out, and stores to it.
fn stored_when_clean(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        assert_eq!(world.load(0), 1);
        world.store(0, 2);
        assert_eq!(world.load(0), 2, "a store was lost");
    }];
    check(rules, [(MISSING, Out(1)), (MISSING, Empty)], program, Some(evict_twice), |world| {
        assert_eq!(world.now(0), 2, "a store was lost");
    });
}

#[test]
fn loom_a_store_to_a_clean_page_is_kept() {
    stored_when_clean(ALL);
}

#[test]
#[should_panic(expected = "a store was lost")]
fn loom_where_clean_pages_are_not_protected_a_store_is_lost() {
    stored_when_clean(Rules { protects_clean: false, ..ALL });
}

/// The program stores to a page that an evictor would rather have clean.
fn stored_when_dirty(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.store(0, 2);
        assert_eq!(world.load(0), 2, "a store was lost");
    }];
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], program, Some(evict_twice), |world| {
        assert_eq!(world.now(0), 2, "a store was lost");
    });
}

#[test]
fn loom_a_store_to_a_dirty_page_is_kept() {
    stored_when_dirty(ALL);
}

#[test]
#[should_panic(expected = "a store was lost")]
fn loom_where_pages_are_made_clean_in_place_a_store_is_lost() {
    stored_when_dirty(Rules { never_cleans: false, ..ALL });
}

// --- pages that devices write ---

/// A device writes to a page, beside other threads of the program. No fault reports such a write.
fn written_by_a_device(rules: Rules, page: (ModelPage, ModelEntry), program: &'static [ModelThread]) {
    let evictor = if program.len() > 1 { evict } else { evict_twice };
    check(rules, [page, (MISSING, Empty)], program, Some(evictor), |world| {
        assert_eq!(world.now(0), 2, "what a device wrote was lost");
    });
}

const READ: ModelThread = |world| world.read_directly(0, 2);
const LOOK: ModelThread = |world| assert!([1, 2].contains(&world.load(0)));

#[test]
fn loom_what_a_device_writes_is_kept() {
    written_by_a_device(ALL, (there(1), Away(DIRTY)), &[READ]);
    written_by_a_device(ALL, (MISSING, Out(1)), &[READ]);
    written_by_a_device(ALL, (MISSING, Out(1)), &[LOOK, READ]);
    written_by_a_device(ALL, (there(1), Away(DIRTY)), &[World::fork, READ]);
}

#[test]
#[should_panic(expected = "what a device wrote was lost")]
fn loom_where_pages_are_protected_and_made_clean_in_place_what_a_device_writes_is_lost() {
    let rules = Rules { never_cleans_protected: false, ..ALL };
    // Without the rule, the program's own stores are not lost.
    stored_when_dirty(rules);
    written_by_a_device(rules, (there(1), Away(DIRTY)), &[READ]);
}

#[test]
#[should_panic(expected = "what a device wrote was lost")]
fn loom_where_pages_are_shown_before_they_are_protected_what_a_device_writes_is_lost() {
    let rules = Rules { shows_in_one_call: false, ..ALL };
    written_by_a_device(rules, (MISSING, Out(1)), &[LOOK, READ]);
}

// --- memory that is taken over ---

/// The program stores to memory that is being taken over.
fn taken_over(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.store(0, 2);
        assert_eq!(world.load(0), 2, "a store was lost");
    }];
    let unwatched = ModelPage { is_registered: false, ..there(1) };
    let evictor: ModelThread = |world| {
        world.take_over(0);
        world.evict(0);
    };
    check(rules, [(unwatched, Empty), (MISSING, Empty)], program, Some(evictor), |world| {
        assert_eq!(world.now(0), 2, "a store was lost");
    });
}

#[test]
fn loom_memory_that_is_taken_over_keeps_its_bytes() {
    taken_over(ALL);
}

#[test]
#[should_panic(expected = "a store was lost")]
fn loom_where_pages_are_taken_before_they_are_watched_a_store_is_lost() {
    taken_over(Rules { registers_first: false, ..ALL });
}

// --- forks ---

/// A child has what the parent had, in one place.
fn child_has(world: &World, expected: u8) {
    assert_eq!(world.child(0), Some(expected), "the child has its page twice, or another one");
}

/// The program forks, and stores afterwards, while pages go out.
fn forked(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.fork();
        world.store(0, 2);
    }];
    let after = |world: &World| {
        child_has(world, 1);
        assert_eq!(world.now(0), 2, "a store was lost");
    };
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], program, Some(evict), after);
}

/// A fault of another thread is read together with the fork.
fn forked_during_a_fault(rules: Rules) {
    let program: &[ModelThread] = &[|world| assert_eq!(world.load(0), 1), World::fork];
    check(rules, [(MISSING, Out(1)), (MISSING, Empty)], program, None, |world| child_has(world, 1));
}

#[test]
fn loom_a_child_has_what_its_parent_had() {
    forked(ALL);
    forked_during_a_fault(ALL);
}

#[test]
#[should_panic(expected = "the child has its page twice")]
fn loom_where_pages_go_out_during_a_fork_the_child_has_another_page() {
    forked(Rules { forks_concern_all: false, ..ALL });
}

#[test]
#[should_panic(expected = "the child has its page twice")]
fn loom_where_pages_are_shown_during_a_fork_the_child_has_none() {
    forked_during_a_fault(Rules { forks_concern_all: false, ..ALL });
}

/// The program reads a page that was out, and forks. It stores to the page while the page is being taken out.
/// For that, the page is first made the program's own.
fn stored_when_shared(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        assert_eq!(world.load(0), 1);
        world.fork();
        world.store(0, 2);
        assert_eq!(world.load(0), 2, "a store was lost");
    }];
    check(rules, [(MISSING, Out(1)), (MISSING, Empty)], program, Some(evict_twice), |world| {
        assert_eq!(world.now(0), 2, "a store was lost");
    });
}

#[test]
fn loom_a_store_to_a_clean_page_that_a_fork_shares_is_kept() {
    stored_when_shared(ALL);
}

#[test]
#[should_panic(expected = "a store was lost")]
fn loom_where_clean_pages_that_a_fork_shares_are_opened_a_store_is_lost() {
    stored_when_shared(Rules { keeps_clean_closed: false, ..ALL });
}

// --- pages that are adopted ---

/// A range is searched for pages to adopt, while a page that was adopted before goes out.
fn adopted_again(rules: Rules) {
    let adopter: &[ModelThread] = &[|world| world.adopt(0)];
    check(rules, [(there(1), Away(DIRTY)), (MISSING, Empty)], adopter, Some(evict), |world| {
        assert_eq!(world.now(0), 1, "the page got zeros in place of its bytes");
    });
}

#[test]
fn loom_a_page_that_goes_out_beside_adoption_keeps_its_bytes() {
    adopted_again(ALL);
}

#[test]
#[should_panic(expected = "the page got zeros in place of its bytes")]
fn loom_where_a_page_goes_out_between_the_look_and_the_question_it_gets_zeros() {
    adopted_again(Rules { looks_alone: false, ..ALL });
}

/// A page is out when the program forks. Then something else is mapped in its place, and is searched for
/// pages to adopt.
fn forked_and_adopted(rules: Rules) {
    let program: &[ModelThread] = &[|world| {
        world.fork();
        world.unmap(0);
        world.store(0, 2);
    }];
    let adopter: ModelThread = |world| {
        world.read_for_driver();
        world.read_for_driver();
        world.adopt(0);
    };
    check(rules, [(MISSING, Out(1)), (MISSING, Empty)], program, Some(adopter), |world| child_has(world, 1));
}

#[test]
fn loom_a_child_keeps_pages_in_whose_place_its_parent_has_others() {
    forked_and_adopted(ALL);
}

#[test]
#[should_panic(expected = "the child has its page twice, or another one")]
fn loom_where_an_unsettled_range_is_looked_at_a_child_loses_its_page() {
    forked_and_adopted(Rules { adopts_settled: false, ..ALL });
}
