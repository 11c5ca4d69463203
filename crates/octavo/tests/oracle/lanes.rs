//! A space under several threads. Each thread owns a lane: eight of every 64 bytes of a shared range. It has
//! an exact model of its lane. So neighbouring bytes of a page belong to different threads. One more thread
//! maps, protects and unmaps ranges of its own between the shared ranges, and another thread reclaims and
//! changes the budget.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use octavo::{Access, ErrorKind, Manager, Pin, Protection, RegionOptions, Result, Space};

use crate::common::device::{Manner, TestDevice, Whims};
use crate::common::futures::PendingFault;
use crate::common::{MIB, PAGE, Random, Switches, assert_only_kept, run_woken};

/// The size and the kind of a run.
#[derive(Clone, Copy, Debug)]
pub struct LaneLoad {
    pub threads: usize,
    /// The number of operations of each thread.
    pub steps: u64,
    /// The number of pages of the shared range.
    pub pages: u64,
    /// Whether the device is slow, and fails now and then.
    pub device_faults: bool,
    /// Whether other spaces are made and dropped meanwhile.
    pub other_spaces: bool,
    pub budget_bytes: u64,
    /// If set, the device delays transfers and ends them in any order. The manner says who completes them.
    pub simulated: Option<Manner>,
}

const LANES: u64 = 8;
const UNIT: u64 = 64;
/// The number of pages between the halves of the shared range. They are for the mapper's ranges.
const GAP_PAGES: u64 = 1024 + 300;

struct LaneContext<'a> {
    seed: u64,
    load: LaneLoad,
    switches: Switches,
    manager: &'a Manager,
    space: &'a Space,
    device: Option<&'a TestDevice>,
    first: u64,
    workers_left: AtomicUsize,
    stop: AtomicBool,
}

/// Runs one seed. If a thread reads something that it did not write, panics and names the seed.
pub fn run(seed: u64, load: LaneLoad) {
    let mut random = Random::new(seed);
    let switches = Switches::random(&mut random);
    // If failures are allowed, the device is small enough to be crowded, and sometimes full.
    let places = if load.device_faults { 3500 + random.below(4000) as u32 } else { 16384 };
    let manner = match load.simulated {
        None if load.device_faults || random.one_in(2) => Some(Manner::Inline),
        other => other,
    };
    let device = manner.map(|manner| TestDevice::simulated(places, seed, manner, Whims::default()));
    run_on(seed, load, switches, device, !random.one_in(4));
}

/// Like [`run`], but on a file, with the given switches.
pub fn run_on_file(seed: u64, load: LaneLoad, switches: Switches) {
    run_on(seed, load, switches, None, true);
}

fn run_on(seed: u64, load: LaneLoad, switches: Switches, device: Option<TestDevice>, background: bool) {
    let mut builder = switches
        .builder()
        .budget_bytes(load.budget_bytes)
        .max_budget_bytes(2 * load.budget_bytes)
        .background(background);
    if let Some(device) = &device {
        builder = builder.swap_device(device.boxed());
    }
    let manager = builder.build().unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| run_in(seed, load, switches, &manager, device.as_ref())));
    if let Err(panic) = result {
        eprintln!("failed: seed {seed}, {load:?}, {switches:?}");
        resume_unwind(panic);
    }
}

fn run_in(seed: u64, load: LaneLoad, switches: Switches, manager: &Manager, device: Option<&TestDevice>) {
    let space = manager.space().unwrap();
    let options = RegionOptions::new().huge(true);
    let first = 3 << 30;
    // The shared range has two halves, which are not aligned to blocks, with room between them.
    let half = load.pages / 2;
    space.map_at(first, half * PAGE, options).unwrap();
    space.map_at(first + (half + GAP_PAGES) * PAGE, (load.pages - half) * PAGE, options).unwrap();
    let shared = LaneContext {
        seed,
        load,
        switches,
        manager,
        space: &space,
        device,
        first,
        workers_left: AtomicUsize::new(load.threads),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let shared = &shared;
        for lane in 0..load.threads as u64 {
            scope.spawn(move || {
                let _stop = WorkerDone(shared);
                Worker::new(shared, lane).run();
            });
        }
        scope.spawn(move || shared.map_and_unmap());
        scope.spawn(move || shared.disturb());
    });
    manager.validate();
    drop(space);
    assert_only_kept(manager, switches.keeps_huge_zero(), switches.encrypt);
}

struct WorkerDone<'a>(&'a LaneContext<'a>);

impl Drop for WorkerDone<'_> {
    fn drop(&mut self) {
        if self.0.workers_left.fetch_sub(1, Ordering::AcqRel) == 1 || thread::panicking() {
            self.0.stop.store(true, Ordering::Release);
        }
    }
}

impl LaneContext<'_> {
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn address_of(&self, page: u64) -> u64 {
        let half = self.load.pages / 2;
        self.first + if page < half { page } else { page + GAP_PAGES } * PAGE
    }

    /// Repeats an operation that failed for lack of room, or because of the device. After such an error,
    /// nothing is lost.
    fn insist<T>(&self, mut op: impl FnMut() -> Result<T>) -> T {
        for attempt in 0..20_000 {
            match op() {
                Ok(value) => return value,
                Err(error) => {
                    let kind = error.kind();
                    let device_fault =
                        matches!(kind, ErrorKind::SwapRead | ErrorKind::SwapWrite | ErrorKind::SwapFull)
                            && self.load.device_faults;
                    // These errors are temporary: reclaim may hold a block for a moment, or the budget may be
                    // low while others have pins.
                    let passing = matches!(kind, ErrorKind::OutOfMemory | ErrorKind::Busy);
                    assert!(device_fault || passing, "unexpected: {kind:?}: {error}");
                    if attempt > 100 {
                        thread::sleep(Duration::from_micros(100));
                    }
                }
            }
        }
        panic!(
            "{:?}: still no room after 20,000 attempts: {:?}",
            self.switches,
            self.manager.stats().unwrap()
        );
    }

    /// Maps, writes, protects and partly unmaps the mapper's own ranges. They lie between the shared ranges,
    /// and partly in the same blocks.
    fn map_and_unmap(&self) {
        let mut random = Random::new(self.seed ^ 0x6D61_7073);
        let gap = self.first + self.load.pages / 2 * PAGE;
        while !self.stopped() {
            let start = random.below(GAP_PAGES - 1);
            let most = if random.one_in(3) { 900 } else { 40 };
            let count = (1 + random.below(most)).min(GAP_PAGES - start);
            let (address, len) = (gap + start * PAGE, count * PAGE);
            let options = RegionOptions::new().huge(random.one_in(2));
            self.space.map_at(address, len, options).unwrap();
            let stamp = random.next();
            let touched = random.below(count).min(100);
            for index in 0..touched {
                let page = index * (count / touched.max(1));
                let at = address + page * PAGE + 8 * (stamp % 512);
                assert_eq!(self.insist(|| self.space.load::<u64>(at)), 0, "seed {}: a fresh page", self.seed);
                self.insist(|| self.space.store(at, stamp ^ index));
            }
            let held =
                random.one_in(2).then(|| self.insist(|| self.space.pin_prefix(address, 5000, Access::Write)));
            if random.one_in(3) {
                self.insist(|| self.space.protect(address, len, Protection::READ));
                let error = self.space.store(address, 1_u64).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Protected);
            }
            for index in 0..touched {
                let page = index * (count / touched.max(1));
                let at = address + page * PAGE + 8 * (stamp % 512);
                assert_eq!(
                    self.insist(|| self.space.load::<u64>(at)),
                    stamp ^ index,
                    "seed {}: the mapper's page {page} of {count} at {address:#x}",
                    self.seed
                );
            }
            let middle = random.below(count);
            // A pinned block cannot be split, so the pin is dropped first if a block might be.
            let held = held.filter(|_| middle == 0);
            if middle > 0 {
                self.insist(|| self.space.unmap(address + middle * PAGE, len - middle * PAGE));
                let error = self.space.load::<u64>(address + len - PAGE).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotMapped);
                self.insist(|| self.space.unmap(address, middle * PAGE));
            } else {
                self.unmap_under(held, address, len, stamp);
            }
            assert_eq!(self.space.load::<u64>(address).unwrap_err().kind(), ErrorKind::NotMapped);
        }
    }

    /// Unmaps a range under a pin: pinned memory outlives its mapping.
    fn unmap_under(&self, held: Option<Pin<'_>>, address: u64, len: u64, stamp: u64) {
        let bytes = stamp.to_le_bytes().repeat(400);
        if let Some(pin) = &held {
            pin.copy_in(100, &bytes[..bytes.len().min(pin.len() - 100)]).unwrap();
        }
        // An edge of the range may cut a pinned block.
        let held = match self.space.unmap(address, len) {
            Ok(()) => held,
            Err(_) => {
                drop(held);
                self.insist(|| self.space.unmap(address, len));
                None
            }
        };
        if let Some(pin) = &held {
            thread::yield_now();
            let mut found = vec![0; bytes.len().min(pin.len() - 100)];
            pin.copy_out(100, &mut found).unwrap();
            assert!(found[..] == bytes[..found.len()], "seed {}: an unmapped pin changed", self.seed);
        }
    }

    /// Reclaims, changes the budget, breaks and repairs the device, makes and drops spaces.
    fn disturb(&self) {
        let mut random = Random::new(self.seed ^ 0x6469_7374);
        let budget = self.load.budget_bytes;
        while !self.stopped() {
            match random.below(16) {
                0..=6 => {
                    self.manager.reclaim(random.below(500)).unwrap();
                }
                7..=8 => {
                    let bytes = budget + random.below(budget / 4) - random.below(budget / 8);
                    let bytes = bytes.max(octavo::MIN_BUDGET_BYTES);
                    if let Err(error) = self.manager.set_budget(bytes) {
                        assert_eq!(error.kind(), ErrorKind::InvalidBudget, "{error}");
                    }
                }
                9 => {
                    self.space.stats().unwrap();
                    self.manager.counters();
                    self.manager.stats().unwrap();
                }
                10..=11 if self.load.other_spaces => self.use_another_space(&mut random),
                _ => self.trouble_device(&mut random),
            }
            thread::sleep(Duration::from_micros(random.below(300)));
        }
        if let Some(device) = self.device {
            device.heal();
        }
    }

    fn trouble_device(&self, random: &mut Random) {
        if let Some(device) = self.device {
            device.trouble(random, self.load.device_faults);
        }
    }

    /// Fills and drops another space with huge blocks, which causes compaction, splitting, and a busy
    /// allocator.
    fn use_another_space(&self, random: &mut Random) {
        let space = self.manager.space().unwrap();
        let len = 2 * MIB * (1 + random.below(2));
        let at = space.map(len, RegionOptions::new().huge(true)).unwrap();
        let step = PAGE * (1 + random.below(60));
        let stamp = random.next();
        for offset in (0..len).step_by(step as usize) {
            self.insist(|| space.store(at + offset, stamp ^ offset));
        }
        for offset in (0..len).step_by(step as usize) {
            let found = self.insist(|| space.load::<u64>(at + offset));
            assert_eq!(found, stamp ^ offset, "seed {}: the other space at {offset:#x}", self.seed);
        }
    }
}

/// The lane of one thread, and the words that it should hold.
struct Worker<'a> {
    shared: &'a LaneContext<'a>,
    lane: u64,
    random: Random,
    model: HashMap<(u64, u64), [u8; 8]>,
    step: u64,
}

impl<'a> Worker<'a> {
    fn new(shared: &'a LaneContext<'a>, lane: u64) -> Self {
        assert!(lane < LANES);
        Self { shared, lane, random: Random::new(shared.seed ^ (lane << 56)), model: HashMap::new(), step: 0 }
    }

    fn run(&mut self) {
        for step in 0..self.shared.load.steps {
            if self.shared.stopped() {
                return;
            }
            self.step = step;
            self.one_step();
        }
        for (page, unit) in self.model.keys().copied().collect::<Vec<_>>() {
            self.load(page, unit);
        }
    }

    fn one_step(&mut self) {
        // Half of the accesses go to an eighth of the pages.
        let pages = self.shared.load.pages;
        let among = if self.random.one_in(2) { pages } else { pages / 8 };
        let page = self.random.below(among);
        let unit = self.random.below(3) * 21;
        match self.random.below(32) {
            0..=9 => self.store(page, unit),
            10..=20 => self.load(page, unit),
            21..=23 => self.write_part(page, unit),
            24..=26 => self.read_pages(page),
            27..=30 => self.pin(page, unit),
            _ => self.fault(page),
        }
    }

    fn address(&self, page: u64, unit: u64) -> u64 {
        self.shared.address_of(page) + unit * UNIT + self.lane * 8
    }

    fn expected(&self, page: u64, unit: u64) -> [u8; 8] {
        self.model.get(&(page, unit)).copied().unwrap_or_default()
    }

    fn check(&self, page: u64, unit: u64, found: [u8; 8], how: &str) {
        let expected = self.expected(page, unit);
        assert!(
            found == expected,
            "seed {}, lane {}, step {}: {how} of page {page}, unit {unit} at {:#x} gave {found:02x?}, not {expected:02x?}",
            self.shared.seed,
            self.lane,
            self.step,
            self.address(page, unit),
        );
    }

    fn store(&mut self, page: u64, unit: u64) {
        let (address, value) = (self.address(page, unit), self.random.next());
        if self.random.one_in(3) {
            // The exchange happens exactly once, however often its fault is retried.
            let before = self.shared.insist(|| self.shared.space.swap(address, value));
            self.check(page, unit, before.to_le_bytes(), "swap");
        } else {
            self.shared.insist(|| self.shared.space.store(address, value));
        }
        self.model.insert((page, unit), value.to_le_bytes());
    }

    fn load(&self, page: u64, unit: u64) {
        let address = self.address(page, unit);
        let found = self.shared.insist(|| self.shared.space.load::<u64>(address));
        self.check(page, unit, found.to_le_bytes(), "load");
    }

    fn write_part(&mut self, page: u64, unit: u64) {
        let start = self.random.below(8) as usize;
        let len = 1 + self.random.below(8 - start as u64) as usize;
        let (address, bytes) = (self.address(page, unit), self.random.next().to_le_bytes());
        self.shared.insist(|| self.shared.space.write(address + start as u64, &bytes[..len]));
        let mut whole = self.expected(page, unit);
        whole[start..start + len].copy_from_slice(&bytes[..len]);
        self.model.insert((page, unit), whole);
    }

    fn read_pages(&self, page: u64) {
        let half = self.shared.load.pages / 2;
        let last = if page < half { half } else { self.shared.load.pages };
        let count = (last - page).min(3);
        let mut bytes = vec![0; (count * PAGE) as usize];
        self.shared.insist(|| self.shared.space.read(self.shared.address_of(page), &mut bytes));
        for page_index in 0..count {
            for unit in [0, 21, 42] {
                let at = (page_index * PAGE + unit * UNIT + self.lane * 8) as usize;
                let found = bytes[at..at + 8].try_into().unwrap();
                self.check(page + page_index, unit, found, "read");
            }
        }
    }

    fn pin(&mut self, page: u64, unit: u64) {
        let access = if self.random.one_in(2) { Access::Read } else { Access::Write };
        let (address, len) = (self.address(page, unit), if self.random.one_in(3) { 5000 } else { 8 });
        let pin = self.shared.insist(|| self.shared.space.pin_prefix(address, len, access));
        let mut found = [0; 8];
        pin.copy_out(0, &mut found).unwrap();
        self.check(page, unit, found, "pin");
        if access == Access::Write {
            let bytes = self.random.next().to_le_bytes();
            pin.copy_in(0, &bytes).unwrap();
            self.model.insert((page, unit), bytes);
            if self.random.one_in(4) {
                thread::yield_now();
                // A store to a pinned page is visible through the pin, and vice versa.
                self.store(page, unit);
                pin.copy_out(0, &mut found).unwrap();
                self.check(page, unit, found, "pin after a store");
            }
        }
        drop(pin);
    }

    fn fault(&mut self, page: u64) {
        let access = if self.random.one_in(2) { Access::Read } else { Access::Write };
        let address = self.shared.address_of(page);
        if self.random.one_in(2) {
            // Begins a fault, and drops it in any state.
            let mut fault = PendingFault::new(self.shared.space, address / PAGE, access);
            let _ = fault.poll();
            return;
        }
        self.shared.insist(|| run_woken(self.shared.space.fault_async(address, access)).0);
    }
}
