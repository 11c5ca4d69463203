//! Pages that are written in every way while they are pinned and asked to go out. Each thread has pages of
//! its own, in a small region and in a huge one, and knows what they hold. A pin for writing always shows
//! what its page holds, however it was written.
//!
//! The seed chooses the manager's switches. The device may fail, or return wrong bytes. If a page is lost in
//! this way, it is written whole, since that does not need the old bytes.

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::{Random, thread};

use super::super::octavo::{
    Access, Advice, Compression, ErrorKind, HugePolicy, HugeZeroWrite, MIN_BUDGET_BYTES, Manager,
    PercpuOrders, Pin, PinPath, RegionOptions, Result, Space, SwapCache, ZeroPage,
};
use super::device::{Manners, SlowDevice};
use super::{HUGE, PAGE, assert_only_zero_pages_are_left, is_passing, named};

const WORKERS: u64 = 2;
/// Pages of a thread, in each of its two regions.
const PAGES: u64 = 2;
/// Pins that a thread holds at once.
const HELD: usize = 3;
const STEPS: u64 = 80;
/// The offsets of the words that are checked in a page.
const WORDS: [usize; 3] = [0, 2048, 4088];

/// The words that a page should hold, or `None` once the page is lost.
type ExpectedWords = Option<[u64; WORDS.len()]>;

struct Worker<'s> {
    space: &'s Space,
    random: Random,
    pages: Vec<(u64, ExpectedWords)>,
    pins: Vec<(usize, Pin<'s>)>,
    count: u64,
}

impl<'s> Worker<'s> {
    fn new(space: &'s Space, random: Random) -> Self {
        let first = |page: u64| if page < PAGES { PAGE * (1 + page) } else { HUGE + PAGE * page };
        let pages = (0..2 * PAGES).map(|page| (first(page), Some([0; WORDS.len()]))).collect();
        Self { space, random, pages, pins: Vec::new(), count: 0 }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Does something to a page. Returns `None` if the page is lost.
    fn on_page<T>(&mut self, page: usize, mut operation: impl FnMut(&'s Space) -> Result<T>) -> Option<T> {
        for attempt in 0..2000 {
            match operation(self.space) {
                Ok(done) => return Some(done),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let is_pinned = self.pins.iter().any(|(pinned, _)| *pinned == page);
                    assert!(!is_pinned, "the bytes of a page that is pinned are not read");
                    self.pages[page].1 = None;
                    return None;
                }
                Err(error) => assert!(is_passing(&error, true), "unexpected: {:?}: {error}", error.kind()),
            }
            thread::sleep(Duration::from_micros(20 << (attempt / 100).min(6)));
        }
        panic!("no success after 2000 attempts");
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            let page = self.random.below(2 * PAGES) as usize;
            let at = self.pages[page].0;
            match self.random.below(8) {
                _ if self.pages[page].1.is_none() => self.overwrite(page),
                0..=1 => self.overwrite(page),
                2 => {
                    let (word, value) = (self.random.below(3) as usize, self.next());
                    let stored = self.on_page(page, |space| space.store(at + WORDS[word] as u64, value));
                    if let (Some(()), Some(held)) = (stored, &mut self.pages[page].1) {
                        held[word] = value;
                    }
                }
                3..=4 if self.pins.len() < HELD => {
                    let pinned =
                        self.on_page(page, |space| space.pin_exact(at, PAGE as usize, Access::Write));
                    self.pins.extend(pinned.map(|pin| (page, pin)));
                }
                5 if !self.pins.is_empty() => {
                    let (word, value) = (self.random.below(3) as usize, self.next());
                    let (page, pin) = &self.pins[self.random.below(self.pins.len() as u64) as usize];
                    pin.store(WORDS[word], value).expect("a word of the pin");
                    self.pages[*page].1.as_mut().expect("a page that is pinned is there")[word] = value;
                }
                6 if !self.pins.is_empty() => {
                    let index = self.random.below(self.pins.len() as u64) as usize;
                    drop(self.pins.swap_remove(index));
                }
                _ => self.look(page),
            }
            self.look_through_pins();
            thread::sleep(Duration::from_nanos(self.random.below(6000)));
        }
        self.pins.clear();
        (0..self.pages.len()).for_each(|page| self.look(page));
    }

    /// Writes the page whole. Succeeds even if the page is lost.
    fn overwrite(&mut self, page: usize) {
        let (mut bytes, mut held) = ([0; PAGE as usize], [0; WORDS.len()]);
        for (word, offset) in WORDS.into_iter().enumerate() {
            held[word] = self.next();
            bytes[offset..offset + 8].copy_from_slice(&held[word].to_ne_bytes());
        }
        let at = self.pages[page].0;
        self.on_page(page, |space| space.write(at, &bytes)).expect("what a page held is not asked for");
        self.pages[page].1 = Some(held);
    }

    fn look(&mut self, page: usize) {
        let (at, _) = self.pages[page];
        let word = |space: &Space, word: usize| space.load::<u64>(at + word as u64);
        let found = self.on_page(page, |space| {
            Ok([word(space, WORDS[0])?, word(space, WORDS[1])?, word(space, WORDS[2])?])
        });
        if let (Some(found), Some(held)) = (found, self.pages[page].1) {
            self.insist_on(found == held, || format!("the page at {at:#x} has {found:?} and not {held:?}"));
        }
    }

    fn look_through_pins(&mut self) {
        let words = |pin: &Pin| WORDS.map(|word| pin.load::<u64>(word).expect("a word of the pin"));
        let found: Vec<_> = self.pins.iter().map(|(page, pin)| (*page, words(pin))).collect();
        for (page, found) in found {
            let (at, held) = self.pages[page];
            self.insist_on(Some(found) == held, || {
                format!("a pin of the page at {at:#x} has {found:?} and not {held:?}")
            });
        }
    }

    /// Panics unless `condition` holds. Drops the pins before a panic: dropping a pin may wait, and a
    /// panicking thread must not wait.
    fn insist_on(&mut self, condition: bool, what: impl FnOnce() -> String) {
        if !condition {
            self.pins.clear();
            panic!("{}", what());
        }
    }
}

pub(crate) fn run(seed: u64) {
    let mut random = Random::new(seed);
    let manners =
        Manners { wrong: [0, 0, 50][random.below(3) as usize], ..Manners::for_few_pages(&mut random) };
    let (device, serving) = SlowDevice::new(manners, seed);
    let mut of = |count: u64| random.below(count) as usize;
    let zero_page = [ZeroPage::PerUse, ZeroPage::PerSpace, ZeroPage::Persistent][of(3)];
    let huge = [HugePolicy::Always, HugePolicy::Advised, HugePolicy::Never][of(3)];
    let builder = Manager::builder()
        .budget_bytes(MIN_BUDGET_BYTES)
        .huge(huge)
        .huge_zero_write([HugeZeroWrite::Split, HugeZeroWrite::Allocate][of(2)])
        .zero_page(zero_page)
        .pin_path([PinPath::Locked, PinPath::LockFree][of(2)])
        .percpu_orders([PercpuOrders::OrderZero, PercpuOrders::Costly, PercpuOrders::All][of(3)])
        .swap_cache([SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table][of(3)])
        .compression([Compression::Off, Compression::Lz4][of(2)])
        .background(of(2) == 0)
        .swap_device(Box::new(device.clone()));
    let manager = Arc::new(builder.build().expect("a manager"));
    let spaces: Vec<_> = (0..WORKERS).map(|_| Arc::new(manager.space().expect("a space"))).collect();
    let left = Arc::new(AtomicU64::new(WORKERS));
    let mut threads = Vec::new();
    for (number, space) in (0..).zip(&spaces) {
        space.map_at(PAGE, PAGES * PAGE, RegionOptions::new()).expect("room for a region");
        space.map_at(HUGE, HUGE, RegionOptions::new().huge(true)).expect("room for a region");
        let (space, left) = (Arc::clone(space), Arc::clone(&left));
        let random = Random::new(seed ^ (number + 1) << 32);
        threads.push(named(&format!("worker {number}"), move || {
            Worker::new(&space, random).run();
            left.fetch_sub(1, Ordering::AcqRel);
        }));
    }
    let (evicting, asked) = (Arc::clone(&manager), spaces.clone());
    threads.push(named("evictor", move || {
        for round in 0..2000 {
            let space = &asked[round % asked.len()];
            match random.below(4) {
                0 => drop(evicting.reclaim(2).expect("reclaim gives no error of a device")),
                1 => space.advise(HUGE, HUGE, Advice::PageOut).expect("advice"),
                _ => space.advise(PAGE, PAGES * PAGE, Advice::PageOut).expect("advice"),
            }
            if left.load(Ordering::Acquire) == 0 {
                break;
            }
        }
    }));
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    device.heal();
    manager.validate();
    drop(spaces);
    let keeps_huge_zero = zero_page == ZeroPage::Persistent && huge != HugePolicy::Never;
    assert_only_zero_pages_are_left(&manager, keeps_huge_zero);
    drop(manager);
    device.end();
    serving.join().expect("no panic");
}
