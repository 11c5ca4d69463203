//! A program at the other side of a translation, which forks. Every process knows every word of its pages. It
//! has two threads, which store to pages of their own and load from all. So two threads may need one page at
//! the same time, for different accesses.
//!
//! Parents and children run side by side, and write the pages that they share. Meanwhile, pages go out all
//! the time. Now and then, a thread drops pages and tells Octavo afterwards.

use std::sync::Arc;
use std::time::Duration;

use octavo_sim::atomic::{AtomicU64, Ordering};
use octavo_sim::lock::Mutex;
use octavo_sim::{Random, thread};

use super::super::octavo::translation::{InPlace, TranslatedSpace};
use super::super::octavo::{
    Access, Compression, ErrorKind, HugePolicy, MIN_BUDGET_BYTES, Manager, Protection, RegionOptions, Result,
    SwapCache,
};
use super::device::{Manners, SlowDevice};
use super::other_side::{OtherSide, wait_for};
use super::{PAGE, assert_nothing_is_left, insist, named};

/// Where the program's pages lie.
const START: u64 = 1 << 30;
/// Pages of each of a process's two threads.
const PAGES: u64 = 4;
/// Forks of all processes together.
const FORKS: u64 = 3;

struct Family {
    manager: Manager,
    device_fails: bool,
    steps: u64,
    forks_left: AtomicU64,
    running: AtomicU64,
    seed: u64,
}

/// A process.
struct FamilyMember {
    family: Arc<Family>,
    space: TranslatedSpace,
    other_side: Arc<OtherSide>,
    /// Locked while a page is dropped, and while the process forks. Without this lock, it would be unknown
    /// whether the child has the page.
    changing: Mutex<()>,
    number: u64,
}

/// Runs a seed. Panics if a thread finds a wrong word.
pub(crate) fn run(seed: u64) {
    let mut random = Random::new(seed);
    let device_fails = random.below(2) == 0;
    let manners = Manners {
        places: 1024,
        latency: Duration::from_micros(random.below(100)),
        page: Duration::from_micros(random.below(3)),
        inline: [0, 300][random.below(2) as usize],
        failed: if device_fails { random.below(300) } else { 0 },
        silent: 0,
        wrong: 0,
        silence: Duration::ZERO,
    };
    let (device, serving) = SlowDevice::new(manners, seed);
    let builder = Manager::builder()
        .budget_bytes(MIN_BUDGET_BYTES)
        .huge(HugePolicy::Never)
        .swap_cache([SwapCache::TaggedTree, SwapCache::Tree, SwapCache::Table][random.below(3) as usize])
        .compression([Compression::Off, Compression::Lz4][random.below(2) as usize])
        .background(false)
        .swap_device(Box::new(device.clone()));
    let family = Arc::new(Family {
        manager: builder.build().expect("a manager"),
        device_fails,
        steps: 20 + random.below(40),
        forks_left: AtomicU64::new(random.below(FORKS + 1)),
        running: AtomicU64::new(1),
        seed,
    });
    // Two answers in this many are refusals. With a very large number, there are no refusals.
    let other_side = OtherSide::new(seed, [10, 40, u64::MAX][random.below(3) as usize]);
    let space = family.manager.translated_space("parent", other_side.clone()).expect("a space");
    space.map_at(START, 2 * PAGES * PAGE, RegionOptions::new()).expect("room for a region");
    let first =
        FamilyMember { family: Arc::clone(&family), space, other_side, changing: Mutex::new(()), number: 0 };
    let first = named("process 0", move || FamilyMember::live(first));
    let reclaiming = Arc::clone(&family);
    let reclaimer = named("reclaimer", move || reclaiming.reclaim());
    for thread in [first, reclaimer] {
        thread.join().expect("no panic");
    }
    device.heal();
    let family = Arc::into_inner(family).expect("all threads have ended");
    family.manager.validate();
    assert_nothing_is_left(&family.manager);
    drop(family);
    device.end();
    serving.join().expect("no panic");
}

impl Family {
    fn insist<T>(&self, operation: impl FnMut() -> Result<T>) -> T {
        insist(self.device_fails, operation)
    }

    fn reclaim(&self) {
        let mut random = Random::new(self.seed ^ 0x7265_636c);
        for _ in 0..8 * self.steps {
            if self.running.load(Ordering::Acquire) == 0 {
                break;
            }
            self.manager.reclaim(1 + random.below(2 * PAGES)).expect("reclaim gives no error of a device");
            thread::sleep(Duration::from_nanos(random.below(4000)));
        }
    }
}

impl FamilyMember {
    /// Runs the process until it and all its children have ended.
    fn live(self) {
        let process = Arc::new(self);
        let of_thread = |lane: u64| {
            let process = Arc::clone(&process);
            let name = format!("thread {lane} of process {}", process.number);
            named(&name, move || process.work(lane))
        };
        let threads = [of_thread(0), of_thread(1)];
        let children: Vec<_> =
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
        let process = Arc::into_inner(process).expect("its threads have ended");
        let family = Arc::clone(&process.family);
        drop(process);
        children.into_iter().for_each(|child| child.join().expect("no panic"));
        family.running.fetch_sub(1, Ordering::AcqRel);
    }

    /// Does one thread's work on pages of its own. Returns the children that it has made.
    fn work(&self, lane: u64) -> Vec<thread::JoinHandle<()>> {
        let mut random = Random::new(self.family.seed ^ (2 * self.number + lane + 1) << 24);
        let mut children = Vec::new();
        for step in 0..self.family.steps {
            let at = START + (lane * PAGES + random.below(PAGES)) * PAGE;
            match random.below(10) {
                0..=3 => {
                    let value = 1 + step + (lane << 32) + (self.number << 40);
                    self.family.insist(|| self.other_side.store(&self.space, at, value));
                }
                4..=6 => {
                    let any = START + random.below(2 * PAGES) * PAGE;
                    self.family.insist(|| self.other_side.load(&self.space, any));
                }
                7 => {
                    let _changing = self.changing.lock();
                    self.other_side.drop_page(at);
                    self.family.insist(|| self.space.forget(at, PAGE));
                    self.other_side.has_dropped();
                }
                8 => drop(self.family.insist(|| self.space.show(at, PAGE, Access::Read))),
                _ => children.extend(self.fork(&mut random)),
            }
            thread::sleep(Duration::from_nanos(random.below(4000)));
        }
        for page in 0..PAGES {
            let at = START + (lane * PAGES + page) * PAGE;
            self.family.insist(|| self.other_side.load(&self.space, at));
        }
        children
    }

    /// Makes a child, if there are forks left.
    fn fork(&self, random: &mut Random) -> Option<thread::JoinHandle<()>> {
        let take = |left: u64| left.checked_sub(1);
        let left = self.family.forks_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        let number = FORKS + 1 - left;
        let family = Arc::clone(&self.family);
        family.running.fetch_add(1, Ordering::AcqRel);
        let _changing = self.changing.lock();
        let other_side = self.other_side.fork(random.number());
        let space = family.insist(|| family.manager.translated_space("child", other_side.clone()));
        // If there is no room, a call may do a part, and the next call the rest.
        family.insist(|| space.fork_from(&self.space));
        self.other_side.has_forked();
        let is_adopted = random.below(2) == 0;
        let child = Self { family, space, other_side, changing: Mutex::new(()), number };
        Some(named(&format!("process {number}"), move || {
            if is_adopted {
                child.adopt();
            }
            child.live();
        }))
    }

    /// Adopts the pages that the process shares with its parent, so that they can go out.
    fn adopt(&self) {
        for at in self.other_side.pages() {
            self.family.insist(|| {
                loop {
                    match self.space.adopt(at, PAGE, InPlace::Pages(Protection::READ_WRITE)) {
                        Err(error) if error.kind() == ErrorKind::AlreadyMapped => return Ok(()),
                        Ok(0) => wait_for(self.space.make_room(PAGE))?,
                        adopted => return adopted.map(drop),
                    }
                }
            });
        }
    }
}
