//! A model of a program with one thread, and of its pool. The tests check how [`Share`] judges the pool's
//! size.
//!
//! The program touches hot and cold pages at random, and memory evicts by strict LRU. Evicted pages that
//! compress go into the pool, and the others straight to a device. A pool that is too large sends its oldest
//! pages on to the device. In a *mixed* program, the pool sends pages of any age, as if new pages had filled
//! the holes of old spans, and a full pool takes no page that has been on a device. The clock adds up the
//! times of all these steps.

use super::{PoolSize, ReturnCosts, SEND_NS, Share};
use crate::policy::Shadow;
use crate::sync::{Arc, AtomicU64, Duration, Machine, Ordering};

const BUDGET_PAGES: u64 = 8192;
const MOST_PARTS: u32 = 16;
const PART_FRAMES: u64 = BUDGET_PAGES * 7 / 25 / MOST_PARTS as u64;
const COSTS: ReturnCosts =
    ReturnCosts { fault_ns: 25_000.0, try_ns: 10_000.0, unpack_ns: 5_000.0, wait_ns: 100_000.0 };
const HIT_NS: f64 = 100.0;

/// The pages of a program. The cold ones compress.
#[derive(Clone, Copy)]
struct ModelProgram {
    hot: u32,
    cold: u32,
    /// The percentage of accesses that go to hot pages.
    hot_percent: u64,
    /// Whether the hot pages compress too.
    hot_shrink: bool,
    /// Whether pages of any age leave the pool, while pages that were on a device do not enter a full pool.
    mixed: bool,
    /// How many pages a frame of the pool holds.
    packs: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PagePlace {
    Nowhere,
    Memory,
    Pool,
    Device,
}

/// Two lists of pages: the pages in memory, and the pages in the pool, both in the order of arrival. Each
/// page is on at most one list.
struct PageLists(Vec<(u32, u32)>);

impl PageLists {
    fn remove(&mut self, page: u32) {
        let (older, younger) = self.0[page as usize];
        self.0[older as usize].1 = younger;
        self.0[younger as usize].0 = older;
    }

    fn push(&mut self, list: u32, page: u32) {
        let (youngest, _) = self.0[list as usize];
        self.0[page as usize] = (youngest, list);
        self.0[youngest as usize].1 = page;
        self.0[list as usize].0 = page;
    }

    fn take_oldest(&mut self, list: u32) -> u32 {
        let (_, oldest) = self.0[list as usize];
        self.remove(oldest);
        oldest
    }
}

struct Model {
    program: ModelProgram,
    /// Where each page is, and the count of evictions when it was last evicted.
    pages: Vec<(PagePlace, u64)>,
    was_on_device: Vec<bool>,
    lists: PageLists,
    in_memory: u64,
    in_pool: u64,
    evictions: u64,
    now_ns: Arc<AtomicU64>,
    random: u64,
    share: Option<Share>,
    /// The parts that the pool may use: at the start, and after each change.
    parts: Vec<u32>,
}

impl Model {
    fn new(program: ModelProgram, parts: u32) -> Self {
        let pages = program.hot + program.cold;
        Self {
            program,
            pages: vec![(PagePlace::Nowhere, 0); pages as usize],
            was_on_device: vec![false; pages as usize],
            // The links of the list heads come after the links of the pages.
            lists: PageLists((0..pages + 2).map(|at| (at, at)).collect()),
            in_memory: 0,
            in_pool: 0,
            evictions: 0,
            now_ns: Arc::default(),
            random: 1,
            share: None,
            parts: vec![parts],
        }
    }

    fn judged(program: ModelProgram, parts: u32) -> Self {
        let model = Self::new(program, parts);
        let now_ns = Arc::clone(&model.now_ns);
        let machine =
            Machine::real().with_clock(move || Duration::from_nanos(now_ns.load(Ordering::Relaxed)));
        Self { share: Some(Share::new(machine.clock.clone())), ..model }
    }

    fn parts(&self) -> u32 {
        *self.parts.last().unwrap()
    }

    fn memory(&self) -> u32 {
        self.pages.len() as u32
    }

    fn pool(&self) -> u32 {
        self.memory() + 1
    }

    fn spend(&self, ns: f64) {
        self.now_ns.fetch_add(ns as u64, Ordering::Relaxed);
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// Makes `accesses` accesses, and returns the nanoseconds that they take.
    fn run(&mut self, accesses: u32) -> u64 {
        let began_ns = self.now_ns.load(Ordering::Relaxed);
        for _ in 0..accesses {
            let ModelProgram { hot, cold, hot_percent, .. } = self.program;
            let page = match self.random(100) < hot_percent {
                true => self.random(u64::from(hot)) as u32,
                false => hot + self.random(u64::from(cold)) as u32,
            };
            self.touch(page);
        }
        self.now_ns.load(Ordering::Relaxed) - began_ns
    }

    fn touch(&mut self, page: u32) {
        let (place, gone) = self.pages[page as usize];
        let whole = COSTS.whole();
        self.spend(match place {
            PagePlace::Nowhere | PagePlace::Memory => HIT_NS,
            PagePlace::Pool => whole.0,
            PagePlace::Device => whole.1,
        });
        if let (Some(share), PagePlace::Pool | PagePlace::Device) = (&self.share, place) {
            share.note(Shadow::at(gone), Shadow::at(self.evictions), place == PagePlace::Device);
            let times = share.times();
            times.tries.note(COSTS.try_ns as u64);
            match place {
                PagePlace::Device => times.waits.note(COSTS.wait_ns as u64),
                _ => times.unpacks.note(COSTS.unpack_ns as u64),
            }
        }
        if let PagePlace::Memory | PagePlace::Pool = place {
            self.lists.remove(page);
        }
        self.in_pool -= u64::from(place == PagePlace::Pool);
        self.in_memory += u64::from(place != PagePlace::Memory);
        self.pages[page as usize].0 = PagePlace::Memory;
        self.lists.push(self.memory(), page);
        while self.in_memory + self.pool_frames() > BUDGET_PAGES {
            self.evict();
        }
    }

    fn any_in_pool(&mut self) -> u32 {
        loop {
            let page = self.random(self.pages.len() as u64) as u32;
            if self.pages[page as usize].0 == PagePlace::Pool {
                self.lists.remove(page);
                return page;
            }
        }
    }

    fn pool_frames(&self) -> u64 {
        self.in_pool.div_ceil(self.program.packs)
    }

    fn evict(&mut self) {
        let page = self.lists.take_oldest(self.memory());
        self.in_memory -= 1;
        self.evictions += 1;
        let shrinks = page >= self.program.hot || self.program.hot_shrink;
        let is_full = self.pool_frames() >= u64::from(self.parts()) * PART_FRAMES;
        let stays_out = self.program.mixed && is_full && self.was_on_device[page as usize];
        let goes_in = shrinks && !stays_out;
        self.pages[page as usize] =
            (if goes_in { PagePlace::Pool } else { PagePlace::Device }, self.evictions);
        if goes_in {
            self.lists.push(self.pool(), page);
            self.in_pool += 1;
        } else if let Some(share) = self.share.as_ref().filter(|_| !shrinks) {
            share.note_straight(1);
        }
        self.judge();
        while self.pool_frames() > u64::from(self.parts()) * PART_FRAMES {
            let leaves = match self.program.mixed {
                true => self.any_in_pool(),
                false => self.lists.take_oldest(self.pool()),
            };
            self.pages[leaves as usize].0 = PagePlace::Device;
            self.was_on_device[leaves as usize] = true;
            self.in_pool -= 1;
            self.spend(SEND_NS + COSTS.unpack_ns);
        }
    }

    fn judge(&mut self) {
        let size = PoolSize {
            pages: self.in_pool,
            frames: self.pool_frames(),
            packs: self.program.packs as f64,
            block_frames: 8,
            part_frames: PART_FRAMES,
            parts: self.parts(),
            most: MOST_PARTS,
            kept_frames: 0,
        };
        let (share, now) = (self.share.as_ref(), Shadow::at(self.evictions));
        self.parts.extend(share.and_then(|share| share.judge(now, COSTS.fault_ns, size)));
    }
}

/// The number of accesses in which the pool settles, and the number of measured accesses after them.
const SETTLED: u32 = 300_000;
const MEASURED: u32 = 300_000;

/// Returns the sizes, in parts, of a pool that is judged, and the ratio of its time to the time of a pool
/// with `best` parts.
fn compared(program: ModelProgram, parts: u32, best: u32) -> (Vec<u32>, f64) {
    let (mut judged, mut fixed) = (Model::judged(program, parts), Model::new(program, best));
    let [judged_ns, fixed_ns] = [&mut judged, &mut fixed].map(|model| {
        model.run(SETTLED);
        model.run(MEASURED) as f64
    });
    (judged.parts, judged_ns / fixed_ns)
}

#[test]
fn a_pool_does_not_grow_for_pages_that_never_enter_it() {
    for hot_percent in [90, 98] {
        let program =
            ModelProgram { hot: 9000, cold: 20_000, hot_percent, hot_shrink: false, mixed: false, packs: 5 };
        for parts in [3, MOST_PARTS] {
            let (parts, ratio) = compared(program, parts, 3);
            assert!(parts.len() <= 4 && parts.is_sorted_by(|a, b| a > b), "{hot_percent} %: {parts:?}");
            assert!(ratio < 1.25, "{hot_percent} %: {ratio} of the time that the smallest takes");
        }
    }
}

#[test]
fn a_pool_grows_where_its_pages_return_from_devices() {
    let program =
        ModelProgram { hot: 12_000, cold: 30_000, hot_percent: 95, hot_shrink: true, mixed: false, packs: 5 };
    let (parts, ratio) = compared(program, 3, 13);
    assert!(parts.is_sorted() && ratio < 1.1, "{parts:?}: {ratio} of the time that 13 parts take");
}

/// The program needs a little more than memory, and all of its pages are alike. Then devices have pages of
/// all ages, and the pool could have held any of them.
#[test]
fn a_pool_grows_until_all_that_does_not_fit_is_in_it() {
    for mixed in [false, true] {
        let program =
            ModelProgram { hot: 4700, cold: 4700, hot_percent: 50, hot_shrink: true, mixed, packs: 2 };
        let (parts, ratio) = compared(program, 3, 10);
        assert!(
            parts.is_sorted() && ratio < 1.1,
            "{mixed}, {parts:?}: {ratio} of the time that 10 parts take"
        );
    }
}

#[test]
fn a_pool_shrinks_where_hot_pages_fit_without_it_and_stays_so() {
    let program =
        ModelProgram { hot: 9000, cold: 20_000, hot_percent: 98, hot_shrink: true, mixed: false, packs: 5 };
    let (parts, ratio) = compared(program, MOST_PARTS, 3);
    assert!(parts.len() <= 3 && ratio < 1.05, "{parts:?}: {ratio} of the time that 3 parts take");
}
