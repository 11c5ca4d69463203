//! Models of a page on its way in. Its entry stays Swapped, so other threads may change it meanwhile.
//!
//! One preemption finds every bug that was tried here. With two, the models take minutes.

use std::future::Future;
use std::pin::pin;
use std::task::Context;

use super::{Model, WordDevice, bounded, race};
use crate::engine::Waiter;
use crate::fault::{Via, prefetch, resolve_async};
use crate::reclaim::evict_batch;
use crate::sync::Arc;
use crate::sync::park::block_until;
use crate::table::{Access, PageNumberRange, Protection};
use crate::units::PageNumber;

/// Makes a page that holds 7 and is out. It and its neighbour are mapped.
fn page_that_is_out() -> Arc<Model> {
    page_out_on(WordDevice::new(4, false))
}

fn page_out_on(device: WordDevice) -> Arc<Model> {
    let shared = Model::on(device);
    shared.map(0, 0, 2);
    assert!(shared.store(0, 0, 7));
    shared.evict_all();
    shared
}

/// Asserts that the bytes survive another trip, and that everything is free afterwards.
fn assert_holds(shared: &Model, expected: u64) {
    shared.assert_bytes_are_somewhere();
    shared.evict_all();
    assert_eq!(shared.load(0, 0), Some(expected), "the bytes came back");
    shared.unmap(0, 0, 2);
    shared.assert_all_is_free();
}

/// Two faults on one page. One reads, both find the bytes, and the page is shown once.
#[test]
fn loom_two_faults_on_a_page_that_is_out() {
    for stores in [false, true] {
        bounded(1, move || {
            let shared = page_that_is_out();
            race(
                &shared,
                |model| assert!(matches!(model.load(0, 0), Some(7 | 8))),
                move |model| {
                    if stores {
                        assert!(model.store(0, 0, 8));
                    } else {
                        assert_eq!(model.load(0, 0), Some(7));
                    }
                },
            );
            assert_holds(&shared, if stores { 8 } else { 7 });
        });
    }
}

/// The page is unmapped during its read, and its range is mapped again. The fault ends with the old page, the
/// new one, or none, and the new range is empty.
#[test]
fn loom_a_swap_in_against_unmap_and_remap() {
    bounded(1, || {
        let shared = page_that_is_out();
        race(
            &shared,
            |model| assert!(matches!(model.load(0, 0), None | Some(0 | 7))),
            |model| {
                model.unmap(0, 0, 2);
                model.map(0, 0, 2);
            },
        );
        assert_eq!(shared.load(0, 0), Some(0), "what was unmapped does not come back");
        shared.unmap(0, 0, 2);
        shared.assert_all_is_free();
    });
}

/// A fault has looked up its region, and then the region is protected. The page is not shown with the old
/// permissions.
#[test]
fn loom_a_swap_in_against_protect() {
    for protection in [Protection::READ, Protection::NONE] {
        bounded(1, move || {
            let shared = page_that_is_out();
            race(
                &shared,
                |model| assert!(matches!(model.load(0, 0), None | Some(7))),
                move |model| model.protect(0, 0, 2, protection),
            );
            assert!(!shared.store(0, 0, 8), "the page may not be written");
            assert_eq!(shared.load(0, 0), protection.read.then_some(7));
            shared.unmap(0, 0, 2);
            shared.assert_all_is_free();
        });
    }
}

/// A page was read ahead, and its clean frame is about to be evicted when a fault wants it.
#[test]
fn loom_a_swap_in_against_the_eviction_of_the_page_just_read() {
    bounded(1, || {
        let shared = page_that_is_out();
        let range = PageNumberRange { start: PageNumber(0), end: PageNumber(2) };
        assert_eq!(prefetch(&shared.engine, &shared.spaces[0], range), 1);
        let batch = shared.isolate();
        assert_eq!(batch.len(), 1);
        race(
            &shared,
            |model| assert_eq!(model.load(0, 0), Some(7)),
            move |model| {
                evict_batch(&model.engine, batch);
            },
        );
        assert_holds(&shared, 7);
    });
}

/// A page is read ahead while a fault wants it. The fault waits for the frame, or reads the page itself.
#[test]
fn loom_a_swap_in_against_readahead() {
    bounded(1, || {
        let shared = page_that_is_out();
        race(
            &shared,
            |model| assert_eq!(model.load(0, 0), Some(7)),
            |model| {
                let range = PageNumberRange { start: PageNumber(0), end: PageNumber(2) };
                prefetch(&model.engine, &model.spaces[0], range);
            },
        );
        assert_holds(&shared, 7);
    });
}

/// A future wants a page after its read has begun and before the device has it, so it asks too early to be
/// served. The thread that starts the read asks again. (The checker reports a future that is never woken as a
/// deadlock.)
#[test]
fn loom_a_future_that_comes_before_the_device_has_the_read_is_woken() {
    bounded(1, || {
        let shared = page_out_on(WordDevice::new(4, true));
        race(
            &shared,
            |model| {
                let address = PageNumber(0).address();
                let mut fault = pin!(resolve_async(
                    Waiter::task(&model.engine),
                    &model.engine,
                    &model.spaces[0],
                    address,
                    Access::Read,
                    Via::Handle
                ));
                let outcome = block_until(|waker| fault.as_mut().poll(&mut Context::from_waker(waker)));
                assert!(outcome.is_ok());
            },
            |model| {
                let range = PageNumberRange { start: PageNumber(0), end: PageNumber(2) };
                prefetch(&model.engine, &model.spaces[0], range);
            },
        );
        assert_eq!(shared.load(0, 0), Some(7));
        shared.unmap(0, 0, 2);
        shared.assert_all_is_free();
    });
}
