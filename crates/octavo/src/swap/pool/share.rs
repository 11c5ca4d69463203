//! The pool's share of memory while a program mostly waits for pages. A smaller pool lets more pages stay in
//! memory, which need no fault at all.
//!
//! A frame of the pool holds several pages, which need no device when they return. In its place, one page
//! could stay in memory. Which of the two saves more time follows from the *distances* of returns. A distance
//! is the number of evictions between a page's eviction and its return. The page's shadow gives this number.
//!
//! ```text
//!   pages that are out, the young first:       ├──────── in the pool ────────┤── on devices ──
//!   with `d` frames less for the pool, which
//!   has `k` pages a frame                      ├─ d ─┤           ├── (k-1)d ──┤
//!                                              in memory         on a device
//! ```
//!
//! So a smaller pool saves the faults on the `d` youngest pages that are out, and makes the returns of its
//! `(k-1)d` oldest wait for a device. A larger pool does the opposite. But even a larger pool does not take
//! pages that do not shrink, or that went straight to a device. So it is assumed to get the same fraction of
//! the old pages that return as the pool had of the young pages. The larger pool pushes pages out of memory,
//! whose returns are not known. They are assumed to be one and a half times the returns of the youngest pages
//! that are out.
//!
//! A page's *place* among the pages that are out is less than its distance, since other pages have returned
//! meanwhile. The place is the sum, over all younger evictions, of the fraction that is still out (a life
//! table). Among the youngest pages, only pages that return count: the policy first evicts pages that no
//! access needs again, and the pool does not know which pages these are.
//!
//! However, not all pages that a larger pool would hold are old. Returns leave holes that new pages fill, and
//! a span leaves as a whole. And a page that is also on a device does not enter a crowded pool. So a second
//! estimate counts the pages that returned from a device without having gone straight there. By Little's law,
//! it estimates how many such pages are out. A larger pool has room for more pages than it takes from memory.
//! The surplus is the number of such pages that it would hold, with their returns. The larger of the two
//! estimates decides. With it, the pool may grow to several times its [worth](super::Pool), which depends
//! only on how much pages shrink. Frames that hold two pages each have little worth in this sense. But if a
//! program needs just more than its memory, and its pages are all alike, a good pool holds nearly all pages
//! that are out.
//!
//! **When.** The estimate may be wrong by a factor of two in either direction. So the pool shrinks only if
//! returns have taken most of the time, for as long as the exchange of half of memory takes. And it gives up
//! at most half: the program may have begun something new, about which the returns so far say nothing. (A
//! Python program that fills a dict and then looks its strings up took 60 to 70 s if its pool shrank at once
//! to the least size during the fill, and 44 to 51 s if the pool did not shrink.) Each later turn judges
//! again, and the pool grows again if waiting for devices has become the greater loss. After each such
//! change, the counts start from zero, since all distances change. After the pool has shrunk, it does not
//! grow for a number of turns. This number doubles each time the pool shrinks, and halves each time the pool
//! grows. A program of one thread that mostly computes keeps the largest pool that pays. The time that
//! returns take is the sum over all threads.
//!
//! **What returns cost.** Faults note how long they waited for a device, and the pool notes how long packing
//! and unpacking took. The means are over all spaces. A fault on a page that another thread's read brings in
//! counts neither as a return nor as a wait.
//!
//! The notes leave out pages that return by readahead and pages that repeat one word. They also leave out how
//! long a page was in the pool before the shrinker sent it on.
//!
//! Linux's `mm/workingset.c` also judges the worth of more memory by distances. Key types: [`Share`] (the
//! notes, from many threads), [`Times`] (the times of returns).
//!
//! Cost: one relaxed atomic addition for each return, a lock for each batch that goes out, and about ten
//! thousand floating-point operations at a turn's end, after thousands of evictions.

mod costs;
#[cfg(all(test, not(loom)))]
mod model;

use crate::policy::Shadow;
use crate::sync::{AtomicU32, AtomicU64, Clock, Instant, Mutex, Ordering};
use costs::{Means, ReturnCosts, Times};

/// Bins of distances, in units of shadows: four linear ones, then four for each doubling.
const BINS: usize = 88;
/// The evictions of a turn: this many times a part of the limit, and at least the second number.
const TURN_PARTS: u64 = 4;
const LEAST_TURN: u64 = 2048;
/// The longest turn. Shadows wrap, so if two shadows lie farther apart, the later one counts as the earlier.
/// Turns do not become so long, since each batch with pages at home checks the turn.
const LONGEST_TURN: u64 = 1 << 27;
/// Half of memory is exchanged when this many parts of the limit have been evicted. (The limit is about a
/// quarter of memory.)
const EXCHANGED_PARTS: f64 = 32.0;
/// If returns take more than this fraction of a turn's time, the program mostly waits.
const MOSTLY: f64 = 0.7;
/// A change must save this part of the time of returns: one in the first number for a larger pool, and one in
/// the second number for a smaller pool, whose gain is less certain.
const WORTHWHILE: f64 = 64.0;
const SURELY_WORTHWHILE: f64 = 16.0;
/// The fewest returns for a decision.
const FEW_RETURNS: f64 = 64.0;
/// The fewest parts of the limit to which a pool shrinks. The memory of a smaller pool would be lost in
/// blocks that are not full.
const LEAST_PARTS: u32 = 3;
/// The time to send a page of the pool on to a device, without unpacking.
const SEND_NS: f64 = 5_000.0;
/// After this many turns, all turns so far count half.
const MOST_TURNS: u32 = 64;
/// The most turns in which the pool does not grow after it has shrunk.
const MOST_SHY: u32 = 32;

/// The pool at the end of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolSize {
    /// The pages in the pool, the frames that the pool uses, and the pages that a full frame holds.
    pub(super) pages: u64,
    pub(super) frames: u64,
    pub(super) packs: f64,
    /// The number of frames of a block that the pool gets.
    pub(super) block_frames: u64,
    /// The frames of a part of the limit, the parts that the pool may use, and the most parts that it may
    /// grow to.
    pub(super) part_frames: u64,
    pub(super) parts: u32,
    pub(super) most: u32,
    /// The number of frames that do not go to pages, of the frames that the pool gives up.
    pub(super) kept_frames: u64,
}

/// Returns by their distances.
type ReturnsByDistance<T> = [T; BINS];

/// Notes on returns.
#[derive(Debug)]
pub(crate) struct Share {
    clock: Clock,
    from_pool: ReturnsByDistance<AtomicU32>,
    from_device: ReturnsByDistance<AtomicU32>,
    /// The number of pages that went straight to a device, and would have done so even with a larger pool.
    straight: AtomicU64,
    times: Times,
    past: Mutex<Past>,
}

/// The turns since the last change.
#[derive(Debug)]
struct Past {
    began: Option<(Shadow, Instant)>,
    means: Means,
    turns: u32,
    evictions: f64,
    straight: f64,
    pool: ReturnsByDistance<f64>,
    device: ReturnsByDistance<f64>,
    /// Whether the program mostly waited in these turns.
    waits: bool,
    /// The turns left in which the pool does not grow, and the number of such turns after the last shrinking.
    shy: u32,
    last_shy: u32,
}

/// Returns the bin of a distance.
fn bin_of(distance: u64) -> usize {
    let units = distance / Shadow::UNIT;
    if units < 4 {
        return units as usize;
    }
    let doubling = units.ilog2();
    let quarter = units >> (doubling - 2) & 3;
    ((doubling as usize - 1) * 4 + quarter as usize).min(BINS - 1)
}

/// Returns the width of a bin, in pages.
fn width(bin: usize) -> f64 {
    (Shadow::UNIT << (bin / 4).saturating_sub(1)) as f64
}

/// The returns at a range of places.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    /// The places among all pages that are out.
    all: (f64, f64),
    /// The places among the pages that return.
    returning: (f64, f64),
    pool: f64,
    device: f64,
}

/// Returns the part of a stretch that lies between two places.
fn part((from, to): (f64, f64), low: f64, high: f64) -> f64 {
    let covered = to.min(high) - from.max(low);
    if covered <= 0.0 { 0.0 } else { (covered / (to - from)).min(1.0) }
}

/// The pages on devices that a larger pool would have, and their returns.
#[derive(Clone, Copy, Debug)]
struct CrowdedOut {
    pages: f64,
    returns: f64,
}

impl CrowdedOut {
    /// Returns how many of the returns belong to `pages` of the pages.
    fn returns_of(self, pages: f64) -> f64 {
        self.returns * (pages / self.pages.max(1.0)).min(1.0)
    }
}

impl Share {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            from_pool: std::array::from_fn(|_| AtomicU32::new(0)),
            from_device: std::array::from_fn(|_| AtomicU32::new(0)),
            straight: AtomicU64::new(0),
            times: Times::default(),
            past: Mutex::new(Past::default()),
        }
    }

    /// The notes on the times of returns.
    pub(crate) fn times(&self) -> &Times {
        &self.times
    }

    /// Notes the return of a page that left this shadow.
    pub(crate) fn note(&self, shadow: Shadow, now: Shadow, is_on_device: bool) {
        let bins = if is_on_device { &self.from_device } else { &self.from_pool };
        // Relaxed: a figure.
        bins[bin_of(shadow.until(now))].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes pages that did not try the pool, or did not shrink.
    pub(super) fn note_straight(&self, pages: u64) {
        // Relaxed: a figure.
        self.straight.fetch_add(pages, Ordering::Relaxed);
    }

    /// Returns how many returns were noted, and whether a turn has begun.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn noted(&self) -> (u64, bool) {
        let past = self.past.lock();
        let noted =
            self.from_pool.iter().chain(&self.from_device).map(|bin| u64::from(bin.load(Ordering::Relaxed)));
        (noted.sum::<u64>() + past.returned() as u64, past.began.is_some())
    }

    /// Judges the turn that has ended, if one has. A fault takes `fault_ns`, without the time to fetch its
    /// page. Returns how many parts the pool should use from now on, or `None` if the number does not change.
    pub(super) fn judge(&self, now: Shadow, fault_ns: f64, size: PoolSize) -> Option<u32> {
        let mut past = self.past.lock();
        let Some((began, began_at)) = past.began else {
            past.began = Some((now, self.clock.now()));
            return None;
        };
        let evictions = began.until(now);
        // A slow thread may have a shadow from before the beginning of the turn.
        if evictions < (TURN_PARTS * size.part_frames).max(LEAST_TURN) || evictions > LONGEST_TURN {
            return None;
        }
        let at = self.clock.now();
        past.began = Some((now, at));
        let take = |bins: &ReturnsByDistance<AtomicU32>| -> ReturnsByDistance<f64> {
            std::array::from_fn(|bin| f64::from(bins[bin].swap(0, Ordering::Relaxed)))
        };
        let (pool, device) = (take(&self.from_pool), take(&self.from_device));
        let straight = self.straight.swap(0, Ordering::Relaxed) as f64;
        let turn_ns = at.saturating_duration_since(began_at).as_nanos() as f64;
        past.means.add(&self.times);
        let costs = past.means.costs(fault_ns);
        past.add(pool, device, evictions, turn_ns, costs);
        past.straight += straight;
        let decided = past.decide(costs, size);
        past.end(decided, size);
        decided
    }
}

impl Default for Past {
    fn default() -> Self {
        Self {
            began: None,
            means: Means::default(),
            turns: 0,
            evictions: 0.0,
            straight: 0.0,
            pool: [0.0; BINS],
            device: [0.0; BINS],
            waits: false,
            shy: 0,
            last_shy: 1,
        }
    }
}

impl Past {
    /// Adds a turn. Turns in which the program mostly waits are never added to turns in which it does not.
    fn add(
        &mut self,
        pool: ReturnsByDistance<f64>,
        device: ReturnsByDistance<f64>,
        evictions: u64,
        turn_ns: f64,
        costs: ReturnCosts,
    ) {
        let (whole, sum) = (costs.whole(), |bins: &ReturnsByDistance<f64>| bins.iter().sum::<f64>());
        let waits = sum(&pool) * whole.0 + sum(&device) * whole.1 > MOSTLY * turn_ns;
        if waits != self.waits {
            self.keep(0.0);
        }
        self.waits = waits;
        self.turns += 1;
        self.evictions += evictions as f64;
        let add = |to: &mut ReturnsByDistance<f64>, from: ReturnsByDistance<f64>| {
            to.iter_mut().zip(from).for_each(|(to, n)| *to += n)
        };
        add(&mut self.pool, pool);
        add(&mut self.device, device);
    }

    fn keep(&mut self, share: f64) {
        self.turns = (f64::from(self.turns) * share) as u32;
        self.evictions *= share;
        self.straight *= share;
        self.pool.iter_mut().chain(&mut self.device).for_each(|n| *n *= share);
    }

    fn end(&mut self, decided: Option<u32>, size: PoolSize) {
        match decided {
            Some(parts) if parts < size.parts => {
                self.last_shy = (2 * self.last_shy).min(MOST_SHY);
                self.shy = self.last_shy;
            }
            Some(_) => self.last_shy = (self.last_shy / 2).max(1),
            None => self.shy = self.shy.saturating_sub(1),
        }
        if decided.is_some() {
            self.keep(0.0);
        } else if self.turns >= MOST_TURNS {
            self.keep(0.5);
        }
    }

    fn returned(&self) -> f64 {
        self.pool.iter().chain(&self.device).sum()
    }

    /// The returns, by their places.
    fn stretches(&self) -> impl Iterator<Item = Stretch> + Clone + '_ {
        let never = (1.0 - self.returned() / self.evictions).max(0.0);
        let (mut out, mut all, mut returning) = (1.0_f64, 0.0, 0.0);
        (0..BINS).map(move |bin| {
            let (pool, device) = (self.pool[bin], self.device[bin]);
            let before = (all, returning);
            let left = (out - (pool + device) / self.evictions).max(0.0);
            let mean = (out + left) / 2.0;
            // Every stretch has a length above zero.
            all += (width(bin) * mean).max(1e-3);
            returning += (width(bin) * (mean - never)).max(1e-3);
            out = left;
            Stretch { all: (before.0, all), returning: (before.1, returning), pool, device }
        })
    }

    /// Returns the pages that the pool had no room for. If pages return at all ages, the oldest pages of the
    /// pool are not much older than its other pages: returns leave holes that new pages fill, and a span
    /// leaves as a whole. And pages that are also on a device do not enter a crowded pool. So a page that a
    /// larger pool would have held may return at any place.
    fn crowded_out(&self) -> CrowdedOut {
        let returned: f64 = self.device.iter().sum();
        let sent = (self.evictions - self.pool.iter().sum::<f64>()).max(1.0);
        let share = (1.0 - self.straight / sent).max(0.0);
        let returns = share * returned;
        // The pages that went straight are assumed to have returned soonest.
        let (mut distances, mut left, mut high) = (0.0, returns, (0..BINS).map(width).sum::<f64>());
        for bin in (0..BINS).rev() {
            let counted = self.device[bin].min(left);
            distances += counted * (high - width(bin) / 2.0);
            left -= counted;
            high -= width(bin);
        }
        // Little's law: the number of pages that are out is their rate per eviction, times the evictions
        // during which each page stays out.
        let pages = share * sent / self.evictions * distances / returns.max(1.0);
        CrowdedOut { pages, returns }
    }

    /// Returns the number of parts that saves the most time, if it saves enough.
    fn decide(&self, costs: ReturnCosts, size: PoolSize) -> Option<u32> {
        if self.returned() < FEW_RETURNS || size.frames == 0 {
            return None;
        }
        let (whole, stretches) = (costs.whole(), self.stretches());
        let sum = |of: &dyn Fn(Stretch) -> f64| -> f64 { stretches.clone().map(of).sum() };
        // The time of the returns of the youngest `n` pages. `whole` is the time of a return from the pool
        // and from a device.
        let youngest = |n: f64, whole: (f64, f64)| {
            sum(&|at| (at.pool * whole.0 + at.device * whole.1) * part(at.returning, 0.0, n))
        };
        let youngest_ns = |n: f64| youngest(n, whole);
        let from_pool = |low: f64, high: f64| sum(&|at| at.pool * part(at.all, low, high));
        let from_device = |low: f64, high: f64| sum(&|at| at.device * part(at.all, low, high));
        let wait_ns = (costs.wait_ns - costs.unpack_ns).max(0.0);
        let (pages, frames) = (size.pages as f64, size.frames as f64);
        // Young pages that return from a device were never in the pool, and a larger pool would not hold such
        // pages either.
        let (young_pool, young_device) = (from_pool(0.0, pages), from_device(0.0, pages));
        let had = if young_device > 0.0 { young_pool / (young_pool + young_device) } else { 1.0 };
        let more = (size.packs - 1.0).max(0.0);
        let crowded_out = self.crowded_out();
        // A larger pool pushes pages out of memory, which go into the pool or straight to a device.
        let pushed_ns = whole.0 + (whole.1 - whole.0) * (self.straight / self.evictions).min(1.0);
        let saved_ns = |parts: u32| {
            let fewer = frames - f64::from(parts) * size.part_frames as f64;
            let end = pages - more * fewer;
            if fewer >= 0.0 {
                let sent = (more + 1.0) * fewer;
                youngest_ns(fewer - size.kept_frames as f64)
                    - from_pool(end, f64::INFINITY) * wait_ns
                    - sent * (SEND_NS + costs.unpack_ns)
            } else {
                let returns = (had * from_device(pages, end)).max(crowded_out.returns_of(-more * fewer));
                returns * wait_ns - 1.5 * youngest(-fewer, (pushed_ns, pushed_ns)) + fewer * whole.0
            }
        };
        let is_exchanged = self.evictions >= EXCHANGED_PARTS * size.part_frames as f64;
        let half = size.parts.div_ceil(2).max(LEAST_PARTS).min(size.parts);
        let least = if self.waits && is_exchanged { half } else { size.parts };
        // A pool that is not full needs no more parts. A pool counts as full if it has no room for another
        // block: smaller blocks may not be available.
        let wanted_frames = u64::from(size.parts) * size.part_frames;
        let is_full =
            16 * size.frames >= 15 * wanted_frames || size.frames + size.block_frames > wanted_frames;
        let most = if self.shy == 0 && is_full { 2 * size.parts } else { size.parts }.min(size.most);
        let best = (least..=most).map(|parts| (saved_ns(parts), parts)).max_by(|a, b| a.0.total_cmp(&b.0))?;
        let worthwhile = if best.1 < size.parts { SURELY_WORTHWHILE } else { WORTHWHILE };
        // What the present parts already save is no gain. If the present parts lose time, the loss is not
        // counted: it would come from growth, and the returns for which a pool grows come last.
        let gained_ns = best.0 - saved_ns(size.parts).max(0.0);
        (best.1 != size.parts && gained_ns * worthwhile > youngest_ns(f64::INFINITY)).then_some(best.1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const COSTS: ReturnCosts =
        ReturnCosts { fault_ns: 25_000.0, try_ns: 10_000.0, unpack_ns: 5_000.0, wait_ns: 100_000.0 };
    const SIZE: PoolSize = PoolSize {
        pages: 8000,
        frames: 1600,
        packs: 5.0,
        block_frames: 8,
        part_frames: 100,
        parts: 16,
        most: 16,
        kept_frames: 0,
    };
    const EXCHANGED: u64 = EXCHANGED_PARTS as u64 * SIZE.part_frames;

    /// Makes turns of a program that only waits, or that also computes for a hundred times as long.
    fn past(evictions: u64, returns: &[(u64, f64, f64)], waits: bool) -> Past {
        let (mut past, mut pool, mut device) = (Past::default(), [0.0; BINS], [0.0; BINS]);
        for &(distance, from_pool, from_device) in returns {
            pool[bin_of(distance)] += from_pool;
            device[bin_of(distance)] += from_device;
        }
        let (of_pool, of_device) = COSTS.whole();
        let returns_ns = pool.iter().sum::<f64>() * of_pool + device.iter().sum::<f64>() * of_device;
        past.add(pool, device, evictions, returns_ns * if waits { 1.0 } else { 100.0 }, COSTS);
        past
    }

    #[test]
    fn bins_follow_each_other_without_gaps() {
        let mut from = 0.0;
        for bin in 0..BINS {
            assert_eq!((bin_of(from as u64), bin_of((from + width(bin)) as u64 - 1)), (bin, bin));
            from += width(bin);
        }
        assert_eq!(bin_of(u64::MAX), BINS - 1);
    }

    /// Simulates accesses to random pages of `pages` pages. The `resident` pages that were used last stay in
    /// memory.
    fn faults(pages: u64, resident: usize, accesses: u64) -> (u64, Vec<u64>) {
        let (mut lru, mut gone) = (Vec::new(), vec![None; pages as usize]);
        let (mut evictions, mut distances, mut random) = (0, Vec::new(), 1_u64);
        for _ in 0..accesses {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let page = (random >> 33) % pages;
            if let Some(at) = lru.iter().position(|&other| other == page) {
                lru.remove(at);
            } else if let Some(then) = gone[page as usize].take() {
                distances.push(evictions - then);
            }
            lru.push(page);
            if lru.len() > resident {
                gone[lru.remove(0) as usize] = Some(evictions);
                evictions += 1;
            }
        }
        (evictions, distances)
    }

    #[test]
    fn places_tell_how_many_faults_more_frames_save() {
        let (evictions, distances) = faults(2000, 1000, 40_000);
        let returns: Vec<_> = distances.iter().map(|&distance| (distance, 1.0, 0.0)).collect();
        let past = past(evictions, &returns, true);
        let saved: f64 = past.stretches().map(|at| at.pool * part(at.returning, 0.0, 400.0)).sum();
        let truly_saved = distances.len() - faults(2000, 1400, 40_000).1.len();
        let ratio = saved / truly_saved as f64;
        assert!((0.8..1.25).contains(&ratio), "{saved} of {}, and truly {truly_saved}", distances.len());
    }

    #[test]
    fn a_pool_shrinks_where_the_program_waits_for_pages_that_would_fit_without_it() {
        let just_gone = [(600, EXCHANGED as f64 * 0.9, 0.0)];
        let parts = past(EXCHANGED, &just_gone, true).decide(COSTS, SIZE).unwrap();
        assert!((8..=10).contains(&parts), "{parts}: 600 frames are enough");
        let kept = PoolSize { kept_frames: 1300, ..SIZE };
        assert_eq!(past(EXCHANGED, &just_gone, true).decide(COSTS, kept), None, "others get the frames");
        assert_eq!(past(EXCHANGED, &just_gone, false).decide(COSTS, SIZE), None, "it computes");
        assert_eq!(past(EXCHANGED / 2, &just_gone, true).decide(COSTS, SIZE), None, "it waits only just now");
    }

    #[test]
    fn a_pool_stays_whose_old_pages_return() {
        let old = [(7000, EXCHANGED as f64 * 0.9, 0.0)];
        assert_eq!(past(2 * EXCHANGED, &old, true).decide(COSTS, SIZE), None);
    }

    #[test]
    fn a_pool_on_its_way_to_its_parts_is_not_sent_elsewhere_for_a_trifle() {
        let evictions = 8.0 * EXCHANGED as f64;
        let shrinks =
            past(8 * EXCHANGED, &[(700, 0.9 * evictions, 0.0), (4000, 0.05 * evictions, 0.0)], true);
        assert_eq!(
            shrinks.decide(COSTS, SIZE),
            Some(9),
            "half at the most, though 900 frames are enough for nearly all"
        );
        assert_eq!(
            shrinks.decide(COSTS, PoolSize { parts: 8, ..SIZE }),
            None,
            "800 of them will be free anyway"
        );
        let (on_device, small) = (EXCHANGED as f64, PoolSize { pages: 5000, frames: 1000, ..SIZE });
        let grows = past(2 * EXCHANGED, &[(16, 20.0, 0.0), (5800, 0.0, on_device)], true);
        assert_eq!(grows.decide(COSTS, small), None, "600 more frames are more than enough");
        let most = grows.decide(COSTS, PoolSize { parts: 10, ..small }).unwrap();
        assert!((11..=13).contains(&most), "{most}");
    }

    #[test]
    fn a_small_pool_grows_where_devices_are_the_greater_loss_but_not_just_after_it_shrank() {
        let small = PoolSize { pages: 1500, frames: 300, parts: 3, ..SIZE };
        let returns = [(16, 20.0, 0.0), (1650, 0.0, 500.0), (2500, 0.0, 1500.0)];
        let mut grows = past(EXCHANGED, &returns, false);
        let parts = grows.decide(COSTS, small).unwrap();
        assert!((5..=6).contains(&parts), "{parts}: as many as reach those pages");
        assert_eq!(grows.decide(COSTS, PoolSize { frames: 200, ..small }), None, "it is not full");
        assert_eq!(grows.decide(COSTS, PoolSize { most: 4, ..small }), Some(4), "no more pay");
        let in_blocks = PoolSize { frames: 200, pages: 1000, block_frames: 128, ..small };
        assert_eq!(grows.decide(COSTS, in_blocks), Some(6), "no second block fits");
        grows.end(Some(3), SIZE);
        assert_eq!((grows.evictions, grows.shy), (0.0, 2), "the count begins anew");
        let shy = Past { shy: 1, ..past(EXCHANGED, &returns, false) };
        assert_eq!(shy.decide(COSTS, small), None);
    }

    #[test]
    fn a_turn_ends_after_its_evictions_and_is_counted_once() {
        let share = Share::new(Clock::default());
        let (begin, size) = (Shadow::at(1 << 20), PoolSize { parts: 3, frames: 300, pages: 1500, ..SIZE });
        let judge = |now: Shadow| share.judge(now, COSTS.fault_ns, size);
        assert_eq!(judge(begin), None);
        for _ in 0..5000 {
            share.note(begin, Shadow::at((1 << 20) + 2500), true);
        }
        assert_eq!(judge(Shadow::at((1 << 20) + LEAST_TURN / 2)), None, "the turn goes on");
        assert_eq!(judge(Shadow::at((1 << 20) - 64)), None, "a thread that comes late");
        assert_eq!(judge(Shadow::at((1 << 20) + 5008)), Some(6), "twice as many, at the most");
        assert_eq!(judge(Shadow::at((1 << 20) + 12_000)), None, "nothing has returned since");
    }
}
