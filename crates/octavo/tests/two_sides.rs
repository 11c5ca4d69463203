//! Both sides of a translation at work at once: many faults on one thread, stores from both sides, and all
//! operations of both compared with a plain array.

mod common;

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use common::device::TestDevice;
use common::target::{Able, BUDGET, SLOTS, TranslatedPair, builder, pair_of};
use common::{MIB, PAGE, Random, SetOnDrop, Switches, Watchdog, assert_only_kept, seed_or};
use octavo::io::SwapArea;
use octavo::{Access, Advice, Compression, ErrorKind, HugePolicy, Manager, Order, Protection, RegionOptions};

/// A waker that adds its number to a list.
struct Woken(usize, Arc<Mutex<Vec<usize>>>);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.lock().unwrap().push(self.0);
    }
}

/// No poll may block, since the device answers only when this thread lets it answer.
#[test]
fn one_thread_drives_many_faults_at_once() {
    let _watchdog = Watchdog::new("many faults on one thread");
    const FAULTS: usize = 300;
    let device = TestDevice::new(SLOTS);
    let area = SwapArea::device(device.boxed());
    let builder =
        Manager::builder().budget_bytes(BUDGET).swap_area(area).background(false).readahead_bytes(0);
    let pair = pair_of(builder.compression(Compression::Off).huge(HugePolicy::Never), Able::ALL, 4 * MIB);
    (0..1024).for_each(|page| pair.store(page, page + 1));
    pair.evict_all();
    pair.target.refuse_one_in(5, 7);
    device.hold();
    let woken = Arc::new(Mutex::new((0..FAULTS).collect::<Vec<_>>()));
    let mut faults: Vec<_> = (0..FAULTS)
        .map(|index| Some(Box::pin(pair.space.fault_translated(pair.page(3 * index as u64), Access::Read))))
        .collect();
    let mut most_under_way = 0;
    while faults.iter().any(Option::is_some) {
        let ready = std::mem::take(&mut *woken.lock().unwrap());
        if ready.is_empty() {
            most_under_way = most_under_way.max(device.under_way());
            assert!(device.under_way() > 0, "nothing is under way, and nobody was woken");
            device.let_go();
            device.hold();
        }
        for index in ready {
            let Some(fault) = faults[index].as_mut() else { continue };
            let waker = Waker::from(Arc::new(Woken(index, Arc::clone(&woken))));
            if let Poll::Ready(done) = pin!(fault).as_mut().poll(&mut Context::from_waker(&waker)) {
                done.unwrap();
                faults[index] = None;
            }
        }
    }
    device.let_go();
    assert!(most_under_way > 64, "their reads were under way together: {most_under_way}");
    drop(faults);
    (0..1024).for_each(|page| assert_eq!(pair.load(page), page + 1));
    pair.end();
}

/// Each lane has a word of its own in every page. Lanes of both sides, reclaim, and changes of protection run
/// at the same time.
#[test]
fn no_store_is_lost_between_the_sides() {
    const PAGES: u64 = 64;
    const LANES: u64 = 4;
    const STORES: u64 = 1000;
    for (seed, able) in [
        (1, Able::ALL),
        (2, Able { watches: false, ..Able::ALL }),
        (3, Able { watches: false, harvests: false, shows_zeros: false, ..Able::ALL }),
    ] {
        let _watchdog = Watchdog::with_patience("stores of both sides", std::time::Duration::from_secs(300));
        let pair = &pair_of(builder().huge(HugePolicy::Never), able, PAGES * PAGE);
        pair.target.refuse_one_in(10, seed);
        let ended = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random::new(seed);
                while !ended.load(Ordering::Acquire) {
                    pair.manager.reclaim(random.below(32)).unwrap();
                    let page = pair.page(random.below(PAGES));
                    let narrow = random.pick(&[Protection::READ, Protection::NONE, Protection::READ_WRITE]);
                    pair.space.protect(page, PAGE, narrow).unwrap();
                    pair.space.protect(page, PAGE, Protection::READ_WRITE).unwrap();
                    thread::yield_now();
                }
            });
            let lanes: Vec<_> = (0..LANES)
                .map(|lane| {
                    scope.spawn(move || {
                        let mut random = Random::new(seed * 100 + lane);
                        let mut model = [0; PAGES as usize];
                        for value in 1..=STORES {
                            let page = random.below(PAGES);
                            let at = pair.page(page) + lane * 8;
                            let (away, write) = ((lane + value / 50) % 2 == 0, random.one_in(2));
                            // An access is tried again if the page is just being protected, or if the other
                            // side holds it for a long time. A target that cannot report first writes shows
                            // no read-only page.
                            let again = |kind| {
                                matches!(kind, ErrorKind::Protected | ErrorKind::Busy)
                                    || kind == ErrorKind::Unsupported && !able.watches
                            };
                            loop {
                                let done = match (away, write) {
                                    (true, true) => pair.target.store(&pair.space, at, value).map(|()| value),
                                    (true, false) => pair.target.load(&pair.space, at),
                                    (false, true) => pair.space.store(at, value).map(|()| value),
                                    (false, false) => pair.space.load(at),
                                };
                                match done {
                                    Ok(found) => {
                                        if write {
                                            model[page as usize] = value;
                                        }
                                        assert_eq!(
                                            found, model[page as usize],
                                            "seed {seed}, lane {lane}, page {page}, {away} {write}"
                                        );
                                        break;
                                    }
                                    Err(error) => assert!(again(error.kind()), "{error}"),
                                }
                                // The thread that protects the page may be waiting for this CPU.
                                thread::yield_now();
                            }
                        }
                        model
                    })
                })
                .collect();
            let _ended = SetOnDrop(ended);
            for (lane, model) in lanes.into_iter().enumerate() {
                let model = model.join().unwrap();
                for (page, expected) in model.into_iter().enumerate() {
                    let at = pair.page(page as u64) + lane as u64 * 8;
                    loop {
                        match pair.space.load::<u64>(at) {
                            Ok(found) => break assert_eq!(found, expected, "seed {seed}, lane {lane}"),
                            Err(error) => assert_eq!(error.kind(), ErrorKind::Protected),
                        }
                    }
                }
            }
        });
        pair.manager.validate();
    }
}

/// All operations of both sides are compared with a plain array.
#[test]
fn both_sides_agree_with_a_plain_array() {
    for seed in seed_or(0)..seed_or(0) + 24 {
        side_by_side(seed);
    }
}

fn side_by_side(seed: u64) {
    const PAGES: u64 = 1536;
    let mut random = Random::new(seed);
    let (able, switches) = (Able::random(&mut random), Switches::random(&mut random));
    let area = SwapArea::device(TestDevice::new(SLOTS).boxed());
    let builder = switches.builder().budget_bytes(BUDGET).swap_area(area).background(false);
    let pair = pair_of(builder, able, PAGES * PAGE);
    if random.one_in(2) {
        pair.target.refuse_one_in(20, seed);
    }
    // The remaining memory has room for only a part of the pages.
    let taken: Vec<_> = (0..4).filter_map(|_| pair.manager.alloc_block(Order::MAX).unwrap()).collect();
    let mut model = vec![Some(0_u64); PAGES as usize];
    for step in 0..4000 {
        let context = || format!("seed {seed}, step {step}, {able:?}, {switches:?}");
        let page = random.below(PAGES);
        let (at, index) = (pair.page(page), page as usize);
        match random.below(100) {
            0..30 => {
                let result = pair.target.store(&pair.space, at, step);
                expect(result.map(|()| step), model[index].map(|_| step), &context);
                model[index] = model[index].map(|_| step);
            }
            30..55 => expect(pair.target.load(&pair.space, at), model[index], &context),
            55..70 => {
                let result = pair.space.store(at, step);
                expect(result.map(|()| step), model[index].map(|_| step), &context);
                model[index] = model[index].map(|_| step);
            }
            70..85 => expect(pair.space.load(at), model[index], &context),
            85..90 => drop(pair.manager.reclaim(random.below(600)).unwrap()),
            kind => {
                let most = if random.one_in(4) { 700 } else { 20 };
                let len = (1 + random.below(most)).min(PAGES - page);
                let range = index..index + len as usize;
                let len = len * PAGE;
                let done = match kind {
                    90 => pair.space.unmap(at, len).map(|()| model[range].fill(None)),
                    91..94 => {
                        if model[range.clone()].iter().all(Option::is_none) {
                            pair.space.map_at(at, len, RegionOptions::default()).unwrap();
                            model[range].fill(Some(0));
                        }
                        Ok(())
                    }
                    94 => pair.space.advise(at, len, Advice::Free).map(|()| {
                        model[range].iter_mut().flatten().for_each(|word| *word = 0);
                    }),
                    95 => pair.space.advise(at, len, Advice::PageOut),
                    96 => pair.space.advise(at, len, Advice::WillNeed),
                    97 => pair.space.advise(at, len, Advice::Cold),
                    _ if model[range].iter().all(Option::is_some) => pair
                        .space
                        .protect(at, len, Protection::READ)
                        .and_then(|()| pair.space.protect(at, len, Protection::READ_WRITE)),
                    _ => Ok(()),
                };
                if let Err(error) = done {
                    assert_eq!(error.kind(), ErrorKind::Busy, "{}: {error}", context());
                }
            }
        }
        if step % 500 == 0 {
            pair.manager.validate();
        }
    }
    for (page, expected) in (0..).zip(&model) {
        expect(pair.space.load(pair.page(page)), *expected, &|| format!("seed {seed}, at the end, {able:?}"));
    }
    pair.manager.validate();
    taken.into_iter().for_each(|frame| pair.manager.free_block(frame, Order::MAX).unwrap());
    let TranslatedPair { manager, target, space, .. } = pair;
    drop(space);
    assert_eq!(target.pages(), (0, 0), "seed {seed}");
    assert_only_kept(&manager, switches.keeps_huge_zero(), switches.encrypt);
}

#[track_caller]
fn expect(found: octavo::Result<u64>, expected: Option<u64>, context: &dyn Fn() -> String) {
    match (found, expected) {
        (Ok(found), Some(expected)) => assert_eq!(found, expected, "{}", context()),
        (Err(error), None) => assert_eq!(error.kind(), ErrorKind::NotMapped, "{}", context()),
        (found, expected) => panic!("{}: found {found:?}, expected {expected:?}", context()),
    }
}
