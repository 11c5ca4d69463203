//! A whole manager under several threads. Each worker owns a lane of each shared page and knows every byte of
//! the lane, so neighbouring bytes belong to different threads. Another thread reclaims all the time.
//! Depending on the seed, more threads run:
//!
//! | thread | what |
//! |---|---|
//! | mapper | maps, writes, protects and unmaps pages, and checks the words that it wrote |
//! | intruder | stores and pins at the mapper's addresses, whether something is mapped there or not. If such a store came too late, a worker would find it in its lane |
//! | two readers | read huge regions that nobody writes, so that the huge zero page comes and goes |
//! | newcomer | makes spaces, and unmaps or protects their first page while another thread writes it |

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::{Random, thread};

use super::super::octavo::{
    Access, Advice, Compression, Error, ErrorKind, HugePolicy, HugeZeroWrite, MIN_BUDGET_BYTES, Manager,
    PercpuOrders, PinPath, Protection, RegionOptions, Result, Space, SwapCache, ZeroPage,
};
use super::device::{Manners, SlowDevice};
use super::{HUGE, PAGE, assert_only_zero_pages_are_left, insist, is_passing, named};

/// The addresses of the shared pages and of the mapper's pages.
const SHARED: u64 = 1 << 30;
const OWN: u64 = 3 << 30;

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneLoad {
    pub workers: u64,
    /// Operations of a worker.
    pub steps: u64,
    /// Rounds of the disturbing threads. Some run several times as many.
    pub rounds: u64,
    /// Shared pages.
    pub pages: u64,
    /// Whether the device fails and falls silent.
    pub has_faults: bool,
    pub has_mapper: bool,
    pub has_readers: bool,
    pub has_newcomer: bool,
}

impl LaneLoad {
    /// Returns the load that a seed chooses.
    pub(crate) fn of_seed(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6c6f_6164);
        Self {
            workers: 2 + random.below(2),
            steps: 30 + random.below(70),
            rounds: 10 + random.below(20),
            pages: 1 + random.below(6),
            has_faults: random.below(2) == 0,
            has_mapper: random.below(2) == 0,
            has_readers: random.below(3) == 0,
            has_newcomer: random.below(3) == 0,
        }
    }
}

struct LaneState {
    load: LaneLoad,
    manager: Manager,
    space: Space,
    workers_left: AtomicU64,
}

/// Runs a seed, as the first thread of an exploration. Panics if a thread finds wrong bytes.
pub(crate) fn run(seed: u64, load: LaneLoad) {
    let mut random = Random::new(seed);
    let manners = Manners {
        places: 2048,
        latency: Duration::from_micros(random.below(200)),
        page: Duration::from_micros(random.below(4)),
        inline: if random.below(3) == 0 { 200 } else { 0 },
        failed: if load.has_faults { random.below(100) } else { 0 },
        silent: if load.has_faults { random.below(60) } else { 0 },
        wrong: 0,
        silence: Duration::from_millis(40),
    };
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
        .io_timeout(Duration::from_millis(10))
        .swap_device(Box::new(device.clone()));
    let manager = builder.build().expect("a manager");
    let space = manager.space().expect("a space");
    space.map_at(SHARED, load.pages * PAGE, RegionOptions::new()).expect("room for a region");
    let workers_left = AtomicU64::new(load.workers);
    let common = Arc::new(LaneState { load, manager, space, workers_left });
    let mut threads: Vec<_> = (0..load.workers)
        .map(|lane| {
            start(&common, &format!("worker {lane}"), move |common| Worker::new(common, lane, seed).run())
        })
        .collect();
    threads.push(start(&common, "reclaimer", move |common| common.reclaim(seed)));
    if load.has_mapper {
        threads.push(start(&common, "mapper", move |common| common.map_and_unmap(seed)));
        threads.push(start(&common, "intruder", move |common| common.intrude(seed)));
    }
    if load.has_readers {
        for number in 0..2 {
            let read = move |common: &LaneState| common.read_zeros(seed, number);
            threads.push(start(&common, &format!("reader {number}"), read));
        }
    }
    if load.has_newcomer {
        let common = Arc::clone(&common);
        threads.push(named("newcomer", move || newcomer(&common, seed)));
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    device.heal();
    let common = Arc::into_inner(common).expect("all threads have ended");
    common.manager.validate();
    drop(common.space);
    let keeps_huge_zero = zero_page == ZeroPage::Persistent && huge != HugePolicy::Never;
    assert_only_zero_pages_are_left(&common.manager, keeps_huge_zero);
    drop(common.manager);
    device.end();
    serving.join().expect("no panic");
}

fn start(
    common: &Arc<LaneState>,
    name: &str,
    work: impl FnOnce(&LaneState) + Send + 'static,
) -> thread::JoinHandle<()> {
    let common = Arc::clone(common);
    named(name, move || work(&common))
}

impl LaneState {
    fn is_over(&self) -> bool {
        self.workers_left.load(Ordering::Acquire) == 0
    }

    /// Returns the rounds of a disturbing thread: at most `times`, since a schedule need not be fair, and no
    /// more after the workers are done.
    fn rounds(&self, times: u64) -> impl Iterator<Item = u64> {
        (0..times * self.load.rounds).take_while(|_| !self.is_over())
    }

    fn is_passing(&self, error: &Error) -> bool {
        is_passing(error, self.load.has_faults)
    }

    fn insist<T>(&self, operation: impl FnMut() -> Result<T>) -> T {
        insist(self.load.has_faults, operation)
    }

    fn reclaim(&self, seed: u64) {
        let mut random = Random::new(seed ^ 0x7265_636c);
        for _ in self.rounds(4) {
            let count = 1 + random.below(self.load.pages);
            if random.below(2) == 0 {
                self.manager.reclaim(count).expect("reclaim gives no error of a device");
            } else {
                let first = random.below(self.load.pages);
                let len = (self.load.pages - first).min(count) * PAGE;
                let at =
                    if self.load.has_mapper && random.below(2) == 0 { OWN } else { SHARED + first * PAGE };
                let advised = self.space.advise(at, len, Advice::PageOut);
                advised.expect("advice that can be followed or left");
            }
            thread::sleep(Duration::from_nanos(random.below(3000)));
        }
    }

    /// Maps, writes, protects and unmaps the mapper's own pages, which lie side by side with holes.
    fn map_and_unmap(&self, seed: u64) {
        let mut random = Random::new(seed ^ 0x6d61_7073);
        for _ in self.rounds(1) {
            let (count, stamp) = (1 + random.below(4), 1 + random.number() / 2);
            // Some ranges cover a whole node of the table. Unmapping such a range frees the node, and other
            // ranges get it.
            let covers_node = random.below(3) == 0;
            let address = if covers_node { OWN } else { OWN + random.below(4) * PAGE };
            let len = if covers_node { HUGE } else { count * PAGE };
            self.insist(|| self.space.map_at(address, len, RegionOptions::new()));
            for page in 0..count {
                let at = address + page * PAGE;
                assert_eq!(self.insist(|| self.space.load::<u64>(at)), 0, "a fresh page");
                self.insist(|| self.space.store(at, stamp + page));
            }
            if random.below(3) == 0 {
                self.insist(|| self.space.protect(address, len, Protection::READ));
                let refused = self.space.store(address, 1_u64).expect_err("a page that may only be read");
                assert_eq!(refused.kind(), ErrorKind::Protected);
            }
            for page in 0..count {
                let found = self.insist(|| self.space.load::<u64>(address + page * PAGE));
                assert_eq!(found, stamp + page, "the mapper's page {page} of {count}");
            }
            self.insist(|| self.space.unmap(address, len));
            let gone = self.space.load::<u64>(address).expect_err("a page that is not mapped");
            assert_eq!(gone.kind(), ErrorKind::NotMapped);
        }
    }

    /// Writes to the mapper's pages, at bytes that the mapper does not check. About half of the writes are
    /// refused.
    fn intrude(&self, seed: u64) {
        let mut random = Random::new(seed ^ 0x696e_7472);
        for _ in self.rounds(4) {
            let at = OWN + random.below(5) * PAGE + 8;
            let refused = match random.below(3) {
                0 => self.space.store(at, u64::MAX).err(),
                1 => self.space.load::<u64>(at).err(),
                _ => match self.space.pin_exact(at, 8, Access::Write) {
                    Ok(pin) => pin.copy_in(0, &[0xFF; 8]).err(),
                    Err(error) => Some(error),
                },
            };
            if let Some(error) = refused {
                let is_known = matches!(error.kind(), ErrorKind::NotMapped | ErrorKind::Protected)
                    || self.is_passing(&error);
                assert!(is_known, "unexpected: {:?}: {error}", error.kind());
            }
        }
    }

    /// Maps huge regions, and reads them.
    fn read_zeros(&self, seed: u64, number: u64) {
        let mut random = Random::new(seed ^ (0x7a65_726f + number));
        let mine = OWN + HUGE * (2 + 4 * number);
        for _ in self.rounds(1) {
            self.insist(|| self.space.map_at(mine, HUGE, RegionOptions::new().huge(true)));
            for _ in 0..1 + random.below(2) {
                let at = mine + random.below(HUGE / 8) * 8;
                assert_eq!(self.insist(|| self.space.load::<u64>(at)), 0, "nobody has written it");
            }
            self.insist(|| self.space.unmap(mine, HUGE));
        }
    }
}

/// Writes the first page of a space while another thread unmaps or protects it.
fn newcomer(common: &Arc<LaneState>, seed: u64) {
    let mut random = Random::new(seed ^ 0x6e65_7773);
    for _ in common.rounds(1) {
        let space = Arc::new(common.insist(|| common.manager.space()));
        let at = [0, 1 << 20, 1 << 33][random.below(3) as usize];
        common.insist(|| space.map_at(at, 2 * PAGE, RegionOptions::new()));
        let is_unmapped = random.below(2) == 0;
        let writing = Arc::clone(&space);
        let write = move |common: &LaneState| {
            for _ in 0..3 {
                if let Err(error) = writing.store(at, 7_u64) {
                    let is_known = matches!(error.kind(), ErrorKind::NotMapped | ErrorKind::Protected);
                    assert!(is_known || common.is_passing(&error), "unexpected: {error}");
                }
            }
        };
        let writer = start(common, "writer", write);
        if is_unmapped {
            common.insist(|| space.unmap(at, 2 * PAGE));
            let gone = space.load::<u64>(at).expect_err("a page that is not mapped");
            assert_eq!(gone.kind(), ErrorKind::NotMapped);
            common.insist(|| space.map_at(at, 2 * PAGE, RegionOptions::new().protection(Protection::READ)));
            assert_eq!(common.insist(|| space.load::<u64>(at)), 0, "a fresh page");
        } else {
            common.insist(|| space.protect(at, 2 * PAGE, Protection::READ));
            let refused = space.store(at, 8_u64).expect_err("a page that may only be read");
            assert_eq!(refused.kind(), ErrorKind::Protected);
        }
        writer.join().expect("no panic");
    }
}

/// One thread's lane, and its expected bytes. Each value is larger than all that the thread has written
/// before.
struct Worker<'a> {
    common: &'a LaneState,
    lane: u64,
    random: Random,
    count: u64,
    held: Vec<u64>,
}

impl<'a> Worker<'a> {
    fn new(common: &'a LaneState, lane: u64, seed: u64) -> Self {
        let held = vec![0; common.load.pages as usize];
        Self { common, lane, random: Random::new(seed ^ (lane + 1) << 32), count: 0, held }
    }

    fn run(&mut self) {
        for _ in 0..self.common.load.steps {
            let page = self.random.below(self.common.load.pages);
            match self.random.below(8) {
                0..=2 => self.store(page),
                3..=4 => self.load(page),
                5 => self.read(page),
                6 => self.write(page),
                _ => self.pin(page),
            }
            thread::sleep(Duration::from_nanos(self.random.below(4000)));
        }
        (0..self.common.load.pages).for_each(|page| self.load(page));
        self.common.workers_left.fetch_sub(1, Ordering::AcqRel);
    }

    fn address(&self, page: u64) -> u64 {
        SHARED + page * PAGE + 8 * self.lane
    }

    fn next(&mut self, page: u64) -> u64 {
        self.count += 1;
        self.held[page as usize] = self.count;
        self.count
    }

    fn check(&self, page: u64, found: u64, how: &str) {
        let expected = self.held[page as usize];
        assert_eq!(found, expected, "worker {}: {how} of page {page}", self.lane);
    }

    fn store(&mut self, page: u64) {
        let (at, value) = (self.address(page), self.next(page));
        self.common.insist(|| self.common.space.store(at, value));
    }

    fn write(&mut self, page: u64) {
        let (at, value) = (self.address(page), self.next(page));
        self.common.insist(|| self.common.space.write(at, &value.to_le_bytes()));
    }

    fn load(&self, page: u64) {
        let found = self.common.insist(|| self.common.space.load::<u64>(self.address(page)));
        self.check(page, found, "load");
    }

    fn read(&self, page: u64) {
        let pages = (self.common.load.pages - page).min(2);
        let mut bytes = vec![0; (pages * PAGE) as usize];
        self.common.insist(|| self.common.space.read(SHARED + page * PAGE, &mut bytes));
        for index in 0..pages {
            let at = (index * PAGE + 8 * self.lane) as usize;
            let word = bytes[at..at + 8].try_into().expect("eight bytes");
            self.check(page + index, u64::from_le_bytes(word), "read");
        }
    }

    fn pin(&mut self, page: u64) {
        let access = if self.random.below(2) == 0 { Access::Read } else { Access::Write };
        let at = self.address(page);
        let pin = self.common.insist(|| self.common.space.pin_prefix(at, 8, access));
        let mut word = [0; 8];
        pin.copy_out(0, &mut word).expect("within the pin");
        self.check(page, u64::from_le_bytes(word), "pin");
        if access == Access::Write {
            let value = self.next(page);
            pin.copy_in(0, &value.to_le_bytes()).expect("within the pin");
            thread::yield_now();
            pin.copy_out(0, &mut word).expect("within the pin");
            self.check(page, u64::from_le_bytes(word), "pin that was written");
            drop(pin);
        }
    }
}
