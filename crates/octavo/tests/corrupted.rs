//! A device that lies: it returns Ok for reads of wrong bytes, and for writes that never happened. The access
//! gets an error of a kind of its own, sees no wrong byte, and damages no other page.

mod common;

use common::device::{Manner, TestDevice, Whims};
use common::{MIB, PAGE, Random, Watchdog, assert_only_kept};
use octavo::{Compression, Counter, ErrorKind, Manager, RegionOptions, Space, SwapCache};

const PAGES: u64 = 6000;

fn bytes_of(page: u64, version: u64) -> Vec<u8> {
    let mut random = Random::new(page << 8 | version);
    (0..PAGE / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

fn with_a_liar(seed: u64, encrypt: bool, test: impl FnOnce(&TestDevice, &Manager, &Space, u64)) {
    let _watchdog = Watchdog::new(format!("a device that lies, seed {seed}"));
    let mut random = Random::new(seed);
    let device = TestDevice::simulated(16384, seed, Manner::Driven, Whims { delay: 5, ..Whims::default() });
    let manager = Manager::builder()
        .budget_bytes(16 * MIB)
        .background(false)
        .compression(Compression::Off)
        .swap_cache(random.pick(&[SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table]))
        .encrypt(encrypt)
        .swap_device(device.boxed())
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = space.map(PAGES * PAGE, RegionOptions::default()).unwrap();
    test(&device, &manager, &space, at);
    device.drain();
    manager.validate();
    drop(space);
    device.drain();
    assert_only_kept(&manager, true, encrypt);
}

/// Reads a page and checks its bytes. Returns whether the access reported corruption instead.
fn is_corrupt(space: &Space, at: u64, page: u64, version: u64) -> bool {
    let mut found = vec![0; PAGE as usize];
    match space.read(at + page * PAGE, &mut found) {
        Ok(()) => {
            assert!(found == bytes_of(page, version), "page {page} has other bytes");
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            true
        }
    }
}

#[test]
fn a_read_that_brings_other_bytes_is_an_error_of_that_access_and_a_later_one_gets_the_page() {
    for (seed, encrypt) in [(1, false), (2, true), (3, false), (4, false)] {
        with_a_liar(seed, encrypt, |device, manager, space, at| {
            (0..PAGES).for_each(|page| space.write(at + page * PAGE, &bytes_of(page, 0)).unwrap());
            device.set_whims(Whims { lying_reads: 300, ..device.whims() });
            let corrupt = (0..PAGES).filter(|page| is_corrupt(space, at, *page, 0)).count() as u64;
            assert!(corrupt > 0 && device.happened().lies > 0, "{corrupt} of {:?}", device.happened());
            assert!(corrupt <= device.happened().lies, "one lie, one page");
            assert_eq!(manager.counters().get(Counter::SwapReadError), 0, "no read failed");
            device.heal();
            assert!((0..PAGES).all(|page| !is_corrupt(space, at, page, 0)), "all is there");
        });
    }
}

#[test]
fn a_write_that_never_was_is_found_out_and_costs_that_page_only() {
    for (seed, encrypt) in [(5, false), (6, true), (7, false)] {
        with_a_liar(seed, encrypt, |device, _, space, at| {
            (0..PAGES).for_each(|page| space.write(at + page * PAGE, &bytes_of(page, 0)).unwrap());
            device.set_whims(Whims { lost_writes: 500, ..device.whims() });
            // Pages that are written again go to places with older contents.
            (0..PAGES).for_each(|page| space.write(at + page * PAGE, &bytes_of(page, 1)).unwrap());
            let lies = device.happened().lies;
            device.heal();
            let corrupt: Vec<_> = (0..PAGES).filter(|page| is_corrupt(space, at, *page, 1)).collect();
            assert!(!corrupt.is_empty() && corrupt.len() as u64 <= lies, "{} of {lies}", corrupt.len());
            // The error stays, since a write to a part of the page would have to bring in the rest. After a
            // new mapping, the page is usable.
            let page = corrupt[0];
            assert_eq!(space.store(at + page * PAGE, 1_u64).unwrap_err().kind(), ErrorKind::Corrupt);
            space.unmap(at + page * PAGE, PAGE).unwrap();
            space.map_at(at + page * PAGE, PAGE, RegionOptions::default()).unwrap();
            assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), 0);
            space.write(at + page * PAGE, &bytes_of(page, 1)).unwrap();
            assert!(!is_corrupt(space, at, page, 1));
        });
    }
}
