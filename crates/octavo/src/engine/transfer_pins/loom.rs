//! A model of pages that transfers pin: nobody waits for ever, and there are never more than the most.

use super::*;
use crate::sync::{Arc, bounded, thread};

#[test]
fn loom_transfers_wait_for_each_others_pages_and_no_longer() {
    bounded(2, || {
        let shared = Arc::new((TransferPins::default(), WaitTable::new(), AtomicU32::new(0)));
        let transfer = |(pins, waits, pinned): &(TransferPins, WaitTable, AtomicU32)| {
            pins.take(2, 3, waits);
            assert_eq!(
                pinned.fetch_add(2, Ordering::Relaxed),
                0,
                "two transfers of two pages are more than three"
            );
            pinned.fetch_sub(2, Ordering::Relaxed);
            pins.give_back(2, waits);
        };
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || transfer(&other));
        transfer(&shared);
        thread.join().unwrap();
        assert_eq!(shared.0.0.load(Ordering::Relaxed) & !WAITERS, 0);
    });
}
