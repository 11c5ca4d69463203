//! Full swap. Pages that are out can always be read: a page that comes in gives its slot to a page that goes
//! out. Only new pages find no room.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::device::TestDevice;
use common::{MIB, PAGE, Random, Watchdog, run_woken};
use octavo::io::SwapArea;
use octavo::{Access, Compression, ErrorKind, HugePolicy, Manager, ManagerBuilder, RegionOptions, Space};

const BUDGET: u64 = 16 * MIB;
/// The number of slots of the area.
const SLOTS: u32 = 4096;

fn builder(device: &TestDevice) -> ManagerBuilder {
    Manager::builder().budget_bytes(BUDGET).swap_area(SwapArea::device(device.boxed()))
}

/// Returns the word at `index` of a page, which is unique.
fn word(page: u64, index: u64) -> u64 {
    (page << 20 | index << 1 | 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn bytes_of(page: u64) -> Vec<u8> {
    (0..PAGE / 8).flat_map(|index| word(page, index).to_ne_bytes()).collect()
}

/// A space that was filled until no room was left.
struct FullSpace {
    manager: Manager,
    space: Space,
    at: u64,
    pages: u64,
}

impl FullSpace {
    fn new(builder: ManagerBuilder, quota_bytes: Option<u64>) -> Self {
        let manager = builder.build().unwrap();
        let space = manager.space().unwrap();
        space.set_quota(quota_bytes).unwrap();
        let at = space.map(4 * BUDGET, RegionOptions::default()).unwrap();
        let mut pages = 0;
        let error = loop {
            match space.write(at + pages * PAGE, &bytes_of(pages)) {
                Ok(()) => pages += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
        Self { manager, space, at, pages }
    }

    #[track_caller]
    fn read(&self, page: u64) {
        let mut found = vec![0; PAGE as usize];
        self.space
            .read(self.at + page * PAGE, &mut found)
            .unwrap_or_else(|error| panic!("page {page}: {error}"));
        assert!(found == bytes_of(page), "page {page} has other bytes");
    }

    /// Checks that new pages still find no room, and that they find room when others are freed.
    fn end(self) {
        let new = self.at + (self.pages + 100) * PAGE;
        let refused = (0..2048).find_map(|page| self.space.store(new + page * PAGE, 1_u64).err());
        assert_eq!(refused.expect("there is no room").kind(), ErrorKind::SwapFull);
        self.manager.validate();
        self.space.unmap(self.at, MIB).unwrap();
        (0..64).for_each(|page| self.space.store(new + (2048 + page) * PAGE, 1_u64).unwrap());
        (MIB / PAGE..self.pages).for_each(|page| self.read(page));
        self.manager.validate();
    }
}

/// Returns builders with each kind of compression, and with features that give a page another way out.
fn builders(device: &TestDevice) -> Vec<ManagerBuilder> {
    let plain = || builder(device).compression(Compression::Off);
    vec![
        plain(),
        plain().background(false),
        builder(device).compression(Compression::Lz4),
        plain().encrypt(true),
        plain().huge(HugePolicy::Always),
    ]
}

#[test]
fn all_that_is_out_can_be_read_in_order_and_at_random() {
    let _watchdog = Watchdog::new("reading at full swap");
    for builder in builders(&TestDevice::new(SLOTS)) {
        let full = FullSpace::new(builder, None);
        assert!(full.pages > u64::from(SLOTS), "memory and swap are filled");
        (0..3).for_each(|_| (0..full.pages).for_each(|page| full.read(page)));
        let mut random = Random::new(7);
        (0..2 * full.pages).for_each(|_| full.read(random.next() % full.pages));
        full.end();
    }
}

#[test]
fn words_pins_and_futures_bring_in_what_is_out() {
    let _watchdog = Watchdog::new("pins at full swap");
    for builder in builders(&TestDevice::new(SLOTS)) {
        let full = FullSpace::new(builder, None);
        let (space, mut random) = (&full.space, Random::new(3));
        for _ in 0..full.pages {
            let page = random.next() % full.pages;
            let at = full.at + page * PAGE;
            assert_eq!(space.load::<u64>(at + 8).unwrap(), word(page, 1));
            // A change of a page in place needs no new page.
            let page = random.next() % full.pages;
            space.store(full.at + page * PAGE, word(page, 0)).unwrap();
            let page = random.next() % full.pages;
            run_woken(space.fault_async(full.at + page * PAGE, Access::Write)).0.unwrap();
            let pin = space.pin_exact(full.at + page * PAGE, PAGE as usize, Access::Read).unwrap();
            assert_eq!(pin.len() as u64, PAGE);
        }
        // A pin may be long if the other pages still have memory.
        for first in (0..full.pages - 512).step_by(512) {
            let pin = space.pin_exact(full.at + first * PAGE, 512 * PAGE as usize, Access::Write).unwrap();
            assert_eq!(pin.len() as u64, 512 * PAGE);
        }
        // Overwriting whole pages needs no new pages.
        (0..full.pages).for_each(|page| space.write(full.at + page * PAGE, &bytes_of(page)).unwrap());
        full.end();
    }
}

#[test]
fn guards_lend_what_is_out() {
    let _watchdog = Watchdog::new("guards at full swap");
    let manager = builder(&TestDevice::new(SLOTS)).compression(Compression::Off).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(4 * BUDGET, RegionOptions::new().guarded(true)).unwrap();
    let words = (PAGE / 8) as usize;
    let mut pages = 0;
    let error = loop {
        let mut guard = match space.exclusive::<u64>(at + pages * PAGE, words) {
            Ok(guard) => guard,
            Err(error) => break error,
        };
        (0..).zip(guard.iter_mut()).for_each(|(index, found)| *found = word(pages, index));
        pages += 1;
    };
    assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
    let mut random = Random::new(5);
    for _ in 0..2 * pages {
        let page = random.next() % pages;
        let guard = space.shared::<u64>(at + page * PAGE, words).unwrap();
        assert!((0..).zip(guard.iter()).all(|(index, found)| *found == word(page, index)), "page {page}");
    }
}

#[test]
fn threads_read_what_is_out_while_others_ask_for_more() {
    let _watchdog = Watchdog::new("threads at full swap");
    for builder in builders(&TestDevice::new(SLOTS)) {
        let full = FullSpace::new(builder, None);
        let (new, next) = (full.at + (full.pages + 100) * PAGE, AtomicU64::new(0));
        thread::scope(|scope| {
            for seed in 0..4 {
                let full = &full;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for round in 0..full.pages {
                        full.read(if seed == 0 { round } else { random.next() % full.pages });
                    }
                });
            }
            for _ in 0..2 {
                let (full, next) = (&full, &next);
                scope.spawn(move || {
                    for _ in 0..64 {
                        let page = next.fetch_add(1, Ordering::Relaxed);
                        if let Err(error) = full.space.store(new + page * PAGE, 1_u64) {
                            assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
                        }
                    }
                });
            }
        });
        full.end();
    }
}

#[test]
fn a_space_at_its_quota_reads_what_is_out() {
    let _watchdog = Watchdog::new("a quota at full swap");
    let device = TestDevice::new(SLOTS);
    let full = FullSpace::new(builder(&device).compression(Compression::Off), Some(4 * MIB));
    let mut random = Random::new(11);
    for _ in 0..2 * full.pages {
        full.read(random.next() % full.pages);
        // Besides the budget, one page without a slot and one page that came in may be in memory.
        assert!(full.space.stats().unwrap().resident_bytes <= 4 * MIB + 2 * PAGE);
    }
    full.end();
}
