//! A model of pages that transfers pin: no transfer waits for ever, and the limit is never exceeded.

use super::*;
use crate::sync::{bounded, thread};

#[test]
fn loom_transfers_wait_for_each_others_pages_and_no_longer() {
    bounded(2, || {
        let shared = Arc::new((TransferPins::default(), AtomicU32::new(0)));
        let transfer: fn(&(TransferPins, AtomicU32)) = |(pins, pinned)| {
            pins.take(2, 3);
            assert_eq!(pinned.fetch_add(2, Ordering::Relaxed), 0, "two pages and two are more than three");
            pinned.fetch_sub(2, Ordering::Relaxed);
            pins.give_back(2, 3);
        };
        let threads = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || transfer(&shared))
        });
        transfer(&shared);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(shared.0.word.load(Ordering::Relaxed), 0);
    });
}
