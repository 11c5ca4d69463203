//! A range whose edge cuts a pinned block of 2 MiB. Unmap, protect and free wait a moment, and then report
//! the pinned block.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use common::MIB;
use octavo::{Access, Advice, ErrorKind, Machine, Manager, Pin, Protection, RegionOptions, Result, Space};

/// A change waits at most 20 ms for a pin, and reads the clock a few more times.
const MOST_MILLIS: u64 = 25;

type RangeChange = fn(&Space, u64, u64) -> Result<()>;

const CHANGES: [(&str, RangeChange); 3] = [
    ("unmap", |space, at, len| space.unmap(at, len)),
    ("protect", |space, at, len| space.protect(at, len, Protection::READ)),
    ("free", |space, at, len| space.advise(at, len, Advice::Free)),
];

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).background(false).build().unwrap()
}

/// Makes a pinned block, and a range that begins in the middle of it.
fn pinned_block(space: &Space) -> (Pin<'_>, u64, u64) {
    let at = space.map(4 * MIB, RegionOptions::new().huge(true)).unwrap();
    space.store(at, 7_u64).unwrap();
    (space.pin_exact(at, 8, Access::Write).unwrap(), at + MIB, 2 * MIB)
}

/// Each reading of the clock advances time by a millisecond.
#[test]
fn a_pinned_block_is_said_to_be_pinned_soon_by_the_managers_clock() {
    let millis = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&millis);
    let machine =
        Machine::real().with_clock(move || Duration::from_millis(clock.fetch_add(1, Ordering::Relaxed)));
    let manager =
        Manager::builder().budget_bytes(16 * MIB).background(false).machine(machine).build().unwrap();
    let space = manager.space().unwrap();
    let (pin, at, len) = pinned_block(&space);
    for (name, change) in CHANGES {
        let start = millis.load(Ordering::Relaxed);
        assert_eq!(change(&space, at, len).unwrap_err().kind(), ErrorKind::Busy, "{name}");
        let took = millis.load(Ordering::Relaxed) - start;
        assert!((2..=MOST_MILLIS).contains(&took), "{name}: {took} ms");
    }
    drop(pin);
    CHANGES.iter().rev().for_each(|(_, change)| change(&space, at, len).unwrap());
    manager.validate();
}

#[test]
fn a_pin_that_is_dropped_in_time_is_no_obstacle() {
    let manager = manager();
    for (name, change) in CHANGES {
        let space = manager.space().unwrap();
        let (pin, at, len) = pinned_block(&space);
        thread::scope(|scope| {
            // The thread tries until a change succeeds. The pin may be dropped before or after a try.
            let waiting = scope.spawn(|| (0..1000).any(|_| change(&space, at, len).is_ok()));
            thread::sleep(Duration::from_millis(5));
            drop(pin);
            assert!(waiting.join().unwrap(), "{name}");
        });
        assert_eq!(space.load::<u64>(at - MIB).unwrap(), 7, "{name}: outside the range nothing has changed");
        manager.validate();
    }
}
