//! Models of whole operations against each other: faults, unmap, protect, evictions, stores and loads.

use super::{Model, bounded, race};
use crate::access::{Cover, pin};
use crate::fault::{prefetch, resolve};
use crate::frame::PinnedFrame;
use crate::reclaim::evict_batch;
use crate::sync::Arc;
use crate::table::{Access, PageNumberRange, Protection};
use crate::units::PageNumber;

fn fault(model: &Model, space: usize, page: u64, access: Access) -> bool {
    resolve(&model.engine, &model.spaces[space], PageNumber(page).address(), access).is_ok()
}

/// A fault has walked to an entry. Then the range is unmapped, the node goes to another space, and a new
/// region is mapped at the old place. The fault changes nothing in the other space.
#[test]
fn loom_a_late_fault_never_reaches_the_next_owner_of_its_node() {
    bounded(1, || {
        let shared = Model::new(1);
        shared.map(0, 0, 2);
        shared.map(1, 0, 4);
        assert!(fault(&shared, 0, 0, Access::Read) && fault(&shared, 1, 2, Access::Read));
        race(
            &shared,
            |model| {
                fault(model, 0, 1, Access::Read);
            },
            |model| {
                let node_of = |space: usize| {
                    let walk = model.engine.table.walk(model.spaces[space].id, PageNumber(0));
                    std::ptr::from_ref(walk.word())
                };
                let node = node_of(0);
                model.unmap(0, 0, 2);
                assert!(fault(model, 1, 0, Access::Read));
                assert_eq!(node_of(1), node, "the node was recycled");
                model.map(0, 0, 2);
            },
        );
        assert_eq!(shared.leaves(1), [0, 2], "the other space has what it faulted in, and nothing else");
        assert!(shared.leaves(0).is_empty() || shared.leaves(0) == [1]);
    });
}

/// A load or store is on its way to a page whose node goes to another space. It neither reads nor writes
/// there.
#[test]
fn loom_a_late_access_never_reaches_the_next_owner_of_its_node() {
    let accesses: [fn(&Model); 2] = [
        |model| assert!(model.load(0, 0).is_none_or(|value| value == 7)),
        |model| {
            model.store(0, 0, 8);
        },
    ];
    for access in accesses {
        bounded(2, move || {
            let shared = Model::new(1);
            shared.map(0, 0, 2);
            shared.map(1, 0, 4);
            assert!(shared.store(0, 0, 7) && fault(&shared, 1, 2, Access::Read));
            // The frame is kept from reuse, because the checker does not see its bytes and could not order
            // them.
            let ours = shared.frame_of(0, 0);
            shared.engine.frames.words(ours).holds.take_pin();
            race(&shared, access, |model| {
                model.unmap(0, 0, 2);
                assert!(model.store(1, 0, 9));
            });
            shared.engine.unpin(PinnedFrame::counted(ours));
            assert_eq!(shared.load(1, 0), Some(9));
        });
    }
}

/// A fault gives the table its root, or a taller one, during an unmap of its range. It leaves no page behind.
#[test]
fn loom_an_unmap_finds_what_a_new_root_brought() {
    for (had_root, page) in [(true, 4), (false, 0)] {
        bounded(1, move || {
            let shared = root_about_to_grow(had_root);
            race(
                &shared,
                move |model| {
                    fault(model, 0, page, Access::Read);
                },
                move |model| model.unmap(0, page, page + 2),
            );
            assert!(!shared.leaves(0).contains(&page), "a page is mapped where no region is");
        });
    }
}

/// The same for protect: no entry allows more than its region does.
#[test]
fn loom_a_protection_finds_what_a_new_root_brought() {
    for (had_root, page) in [(true, 4), (false, 0)] {
        bounded(1, move || {
            let shared = root_about_to_grow(had_root);
            race(
                &shared,
                move |model| {
                    fault(model, 0, page, Access::Read);
                },
                move |model| model.protect(0, page, page + 2, Protection::NONE),
            );
            assert!(!shared.leaves(0).contains(&page), "a page may be read, its region not");
        });
    }
}

/// Maps two regions. If there was a root, it reaches only the first.
fn root_about_to_grow(had_root: bool) -> Arc<Model> {
    let shared = Model::new(1);
    shared.map(0, 0, 2);
    shared.map(0, 4, 6);
    assert!(!had_root || fault(&shared, 0, 0, Access::Read));
    shared
}

/// An eviction against the unmap of its page. Slot and frame are freed once.
#[test]
fn loom_eviction_against_unmap_frees_slot_and_frame_once() {
    bounded(2, || {
        let shared = Model::new(2);
        shared.map(0, 0, 2);
        assert!(shared.store(0, 0, 7));
        let batch = shared.isolate();
        assert_eq!(batch.len(), 1);
        race(
            &shared,
            move |model| {
                evict_batch(&model.engine, batch);
            },
            |model| model.unmap(0, 0, 2),
        );
        shared.assert_all_is_free();
    });
}

/// An eviction against an access to its page, in an area that has room, or in one so crowded that a fault
/// takes the page's slot away. The bytes are right at once, and again after another trip.
fn eviction_against(slots: u32, access: fn(&Model), expected: u64) {
    bounded(2, move || {
        let shared = Model::new(slots);
        shared.map(0, 0, 2);
        assert!(shared.store(0, 0, 7));
        let batch = shared.isolate();
        race(
            &shared,
            move |model| {
                evict_batch(&model.engine, batch);
            },
            access,
        );
        shared.assert_bytes_are_somewhere();
        shared.evict_all();
        assert_eq!(shared.load(0, 0), Some(expected), "the bytes came back");
        shared.unmap(0, 0, 2);
        shared.assert_all_is_free();
    });
}

#[test]
fn loom_eviction_against_a_load() {
    eviction_against(4, |model| assert_eq!(model.load(0, 0), Some(7)), 7);
}

#[test]
fn loom_eviction_against_a_load_in_a_crowded_area() {
    eviction_against(1, |model| assert_eq!(model.load(0, 0), Some(7)), 7);
}

#[test]
fn loom_eviction_against_a_store() {
    eviction_against(4, |model| assert!(model.store(0, 0, 8)), 8);
}

#[test]
fn loom_eviction_against_a_write_of_the_whole_page() {
    eviction_against(4, |model| assert!(model.overwrite(0, 0, 8)), 8);
}

/// The pin shows what is written: the page keeps the pinned frame.
#[test]
fn loom_eviction_against_a_pin_and_a_write_of_the_whole_page() {
    let write = |model: &Model| {
        let (space, at) = (&model.spaces[0], PageNumber(0).address());
        let pin = pin(&model.engine, space, at, 8, Access::Write, Cover::All).unwrap();
        assert!(model.overwrite(0, 0, 8));
        assert_eq!(pin.load::<u64>(0).unwrap(), 8);
    };
    eviction_against(4, write, 8);
}

/// A thread writes a whole page that is out, while another loads it, reads it ahead, or unmaps it. The page
/// has the old bytes or the new ones, and its slot and frames are freed once.
#[test]
fn loom_a_page_that_is_out_is_overwritten_against_others() {
    let others: [fn(&Model); 3] = [
        |model| assert!(matches!(model.load(0, 0), Some(7 | 8))),
        |model| {
            let range = PageNumberRange { start: PageNumber(0), end: PageNumber(2) };
            prefetch(&model.engine, &model.spaces[0], range);
        },
        |model| model.unmap(0, 0, 2),
    ];
    for (which, other) in others.into_iter().enumerate() {
        bounded(2, move || {
            let shared = Model::new(4);
            shared.map(0, 0, 2);
            assert!(shared.store(0, 0, 7));
            shared.evict_all();
            race(
                &shared,
                |model| {
                    model.overwrite(0, 0, 8);
                },
                other,
            );
            if which < 2 {
                assert_eq!(shared.load(0, 0), Some(8), "what was written stands");
                shared.assert_bytes_are_somewhere();
                shared.unmap(0, 0, 2);
            }
            shared.assert_all_is_free();
        });
    }
}

/// A page is unmapped during its write, and the slot's next page is written. The second write begins after
/// the first has ended.
#[test]
fn loom_a_slot_is_not_reused_while_it_is_written() {
    bounded(1, || {
        let shared = Model::new(1);
        shared.map(0, 0, 2);
        shared.map(0, 2, 4);
        assert!(shared.store(0, 0, 7));
        let first = shared.isolate();
        assert!(shared.store(0, 2, 9));
        let second = shared.isolate();
        assert_eq!((first.len(), second.len()), (1, 1));
        race(
            &shared,
            move |model| {
                evict_batch(&model.engine, first);
            },
            move |model| {
                model.unmap(0, 0, 2);
                evict_batch(&model.engine, second);
            },
        );
        assert_eq!(shared.load(0, 2), Some(9));
        shared.unmap(0, 2, 4);
        shared.assert_all_is_free();
    });
}
