//! The decision whether a batch of pages tries the pool or goes straight to the area.
//!
//! Packing a page takes longer than a quick device takes to write it. So a stream of pages that do not come
//! back goes straight to the area. If a page comes back from the pool, its fault does not wait for a device.
//! For all spaces with the same [`Weights`], Octavo measures how many pages shrink and come back, how long
//! packing and unpacking take, and how long faults wait for pages on an area.
//!
//! A page that is still in the pool does not count yet. It counts when it comes back, or when it leaves for a
//! device. The pool does not note to which spaces the leaving pages belong: each space is assumed to lose the
//! same fraction of its pages in the pool. Neither does the pool note to which spaces the unmapped pages
//! belong. So the assumed numbers of all spaces together may exceed the number of pages in the pool. In this
//! case, each space is assumed to lose a smaller fraction. As a result, a program that first only writes, and
//! reads later, finds as many of its pages in the pool as there is room for. Without a background thread,
//! pages leave the pool only if the budget is lowered, or if nothing else makes room.
//!
//! [`DeviceView`] describes the devices of all areas together, and whether they keep up with writes:
//!
//! ```text
//!   worth of trying one page =
//!       share kept x ( share that comes back x (wait for a device - unpacking)
//!                      + (device behind ? its time for a page : 0)
//!                      - share that does not x unpacking )             it will leave the pool again
//!     - time of a try
//! ```
//!
//! If the worth is not positive, pages go straight, except for a few probes, which detect a change. If the
//! worth is positive, a few pages still go straight, so that the wait for a device stays known. Key types:
//! [`Weights`] (the notes, from many threads), [`Weigher`] (the decision, a pure computation).

use super::Stored;
use super::mean::{MOST_EVENTS, Mean};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::units::PAGE_BYTES;

/// The number of pages that go straight for each probe.
const PAGES_A_PROBE: u32 = 128;
/// The number of pages that probe together.
const PROBES: u32 = 8;
/// The number of pages that try the pool for each page that still goes straight. The second number applies
/// while few waits for a device have been measured.
const PAGES_A_STRAIGHT: u32 = 512;
const PAGES_A_FIRST_STRAIGHT: u32 = 64;
/// After this many tries, older tries count half. The same number applies to pages that came back or left.
const WINDOW: f64 = 512.0;
/// The number of tries that are assumed at the start, all of which the pool kept, and the number of these
/// pages that came back. The other pages left.
const ASSUMED: f64 = 32.0;
const ASSUMED_BACK: f64 = 16.0;
pub(super) const ASSUMED_TRY_NS: f64 = 5000.0;
/// The time of unpacking, until it is measured.
pub(super) const ASSUMED_UNPACK_NS: f64 = 1500.0;
/// The wait of a fault for a page from an area, until it is measured. This is the wait for a disk.
pub(super) const ASSUMED_WAIT_NS: f64 = 80_000.0;

/// The state of the devices behind the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceView {
    /// Bytes submitted and not yet written.
    pub(crate) in_flight_bytes: u64,
    /// The bytes in flight that keep the devices busy. If more bytes are in flight, the devices are behind.
    pub(crate) busy_bytes: u64,
    /// The devices' time for a page of a long write.
    pub(crate) write_ns_per_page: u32,
}

impl DeviceView {
    fn is_behind(&self) -> bool {
        self.in_flight_bytes > self.busy_bytes
    }

    /// An idle disk that streams 2.2 GB/s, until anything is measured.
    pub(crate) const UNMEASURED: Self =
        Self { in_flight_bytes: 0, busy_bytes: 4 << 20, write_ns_per_page: (PAGE_BYTES as f64 / 2.2) as u32 };
}

/// The pages in the pool, and the pages that have left the pool for a device since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Turnover {
    pub(crate) pages: u64,
    /// The packed bytes of the pages in the pool.
    pub(crate) packed_bytes: u64,
    pub(crate) left: u64,
    /// The number of pages in the pool, as all weighers together assume.
    pub(crate) inside: f64,
}

/// The number of pages that all weighers together assume in the pool, in parts of a page.
#[derive(Debug, Default)]
pub(crate) struct PoolPages(AtomicU64);

impl PoolPages {
    const PARTS: f64 = 256.0;

    pub(super) fn pages(&self) -> f64 {
        // Relaxed: a figure.
        self.0.load(Ordering::Relaxed) as f64 / Self::PARTS
    }

    /// Changes the sum for one weigher. It later subtracts exactly the parts that it added.
    fn change(&self, before: f64, after: f64) {
        let parts = |pages: f64| (pages * Self::PARTS) as u64;
        self.0.fetch_add(parts(after).wrapping_sub(parts(before)), Ordering::Relaxed);
    }
}

/// The events since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EventCounts {
    /// The pages that tried the pool, the pages of these that the pool kept, and the pages that came back
    /// from the pool.
    pub(crate) tried: u32,
    pub(crate) kept: u32,
    pub(crate) came_back: u32,
    /// The times of all tries and loads that were timed, and the numbers of these tries and loads.
    pub(crate) try_ns: u64,
    pub(crate) timed_tries: u32,
    pub(crate) unpack_ns: u64,
    pub(crate) timed_loads: u32,
    /// The times of all timed faults on pages that lay on an area, and the number of these faults.
    pub(crate) wait_ns: u64,
    pub(crate) timed_waits: u32,
}

/// The decision.
#[derive(Clone, Debug)]
pub(crate) struct Weigher {
    tried: f64,
    kept: f64,
    /// The assumed number of pages in the pool.
    inside: f64,
    came_back: f64,
    left: f64,
    /// [`Turnover::left`] at the last decision.
    all_left: Option<u64>,
    try_ns: f64,
    unpack_ns: f64,
    wait: Mean,
    /// The number of pages that went straight since the last probe.
    straight: u32,
    /// The number of pages that tried the pool since a page last went straight.
    packed: u32,
}

impl Default for Weigher {
    fn default() -> Self {
        Self {
            tried: ASSUMED,
            kept: ASSUMED,
            inside: 0.0,
            came_back: ASSUMED_BACK,
            left: ASSUMED - ASSUMED_BACK,
            all_left: None,
            try_ns: ASSUMED_TRY_NS,
            unpack_ns: ASSUMED_UNPACK_NS,
            wait: Mean::assumed(ASSUMED_WAIT_NS),
            straight: 0,
            packed: 0,
        }
    }
}

impl Weigher {
    /// Adds the events since the last decision.
    pub(crate) fn note(&mut self, noted: EventCounts, turnover: Turnover) {
        self.tried += f64::from(noted.tried);
        self.kept += f64::from(noted.kept);
        while self.tried > WINDOW {
            self.tried /= 2.0;
            self.kept /= 2.0;
        }
        // Pages that left before the first decision do not count.
        let seen_left = self.all_left.unwrap_or(turnover.left);
        let left = turnover.left.saturating_sub(seen_left);
        // Another thread may have noted a higher number meanwhile.
        self.all_left = Some(seen_left.max(turnover.left));
        let before = self.inside;
        let inside = before + f64::from(noted.kept) - f64::from(noted.came_back);
        // Unmapped pages are no longer in the pool, so the sum has an upper limit.
        let most = (turnover.pages + left) as f64;
        self.inside = inside.clamp(0.0, most);
        // Pages that came since the last decision may have come after the other pages left.
        let all = turnover.inside.max(most).max(1.0);
        let left = self.inside.min(before) * left as f64 / all;
        self.inside -= left;
        self.came_back += f64::from(noted.came_back);
        self.left += left;
        while self.came_back + self.left > WINDOW {
            self.came_back /= 2.0;
            self.left /= 2.0;
        }
        let blend = |mean: &mut f64, sum_ns: u64, n: u32| {
            if n > 0 {
                let weight = (f64::from(n) / 16.0).min(0.5);
                // No event more than doubles the mean: the thread may have been preempted, and the first
                // events touch fresh memory.
                let ns = (sum_ns as f64 / f64::from(n)).min(*mean * 2.0);
                *mean += (ns - *mean) * weight;
            }
        };
        blend(&mut self.try_ns, noted.try_ns, noted.timed_tries);
        blend(&mut self.unpack_ns, noted.unpack_ns, noted.timed_loads);
        self.wait.add((noted.wait_ns as f64, f64::from(noted.timed_waits)));
    }

    /// The worth of a try with one page, in nanoseconds.
    pub(crate) fn worth_ns(&self, device: &DeviceView) -> f64 {
        let kept = self.kept / self.tried;
        let back = self.came_back / (self.came_back + self.left);
        let saved = back * (self.wait.ns - self.unpack_ns);
        let relieved = if device.is_behind() { f64::from(device.write_ns_per_page) } else { 0.0 };
        kept * (saved + relieved - (1.0 - back) * self.unpack_ns) - self.try_ns
    }

    /// Returns how many of the pages of a batch should try the pool. The others go straight.
    pub(crate) fn decide(&mut self, pages: u32, device: &DeviceView) -> u32 {
        if self.worth_ns(device) > 0.0 {
            self.straight = 0;
            self.packed += pages;
            let a_straight =
                if self.wait.events >= MOST_EVENTS { PAGES_A_STRAIGHT } else { PAGES_A_FIRST_STRAIGHT };
            let straight = (self.packed / a_straight).min(pages);
            self.packed %= a_straight;
            return pages - straight;
        }
        self.straight += pages;
        if self.straight < PROBES * PAGES_A_PROBE {
            return 0;
        }
        self.straight = 0;
        PROBES.min(pages)
    }
}

/// The notes of all threads, and the weigher.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// The pages kept, in the upper 32 bits, and the pages tried, in the lower 32 bits.
    tries: AtomicU64,
    came_back: AtomicU32,
    /// Nanoseconds in the upper bits, and the number of events in the lower 16 bits.
    try_ns: AtomicU64,
    unpack_ns: AtomicU64,
    wait_ns: AtomicU64,
    weigher: Mutex<Weigher>,
}

/// Nanoseconds and their count, in one word.
const COUNT_BITS: u32 = 16;

impl Weights {
    pub(super) fn note_store(&self, stored: Stored, ns: Option<u64>) {
        if stored == Stored::Full {
            // There was no room, so the result says nothing about the page.
            return;
        }
        let kept = u64::from(matches!(stored, Stored::Kept(_)));
        self.tries.fetch_add(kept << 32 | 1, Ordering::Relaxed);
        Self::add(&self.try_ns, ns);
    }

    pub(super) fn note_load(&self, ns: Option<u64>) {
        self.came_back.fetch_add(1, Ordering::Relaxed);
        Self::add(&self.unpack_ns, ns);
    }

    /// Notes how long a fault waited for a page that was on an area, read ahead or not.
    pub(crate) fn note_wait(&self, ns: u64) {
        Self::add(&self.wait_ns, Some(ns));
    }

    fn add(sum: &AtomicU64, ns: Option<u64>) {
        if let Some(ns) = ns {
            sum.fetch_add(ns << COUNT_BITS | 1, Ordering::Relaxed);
        }
    }

    fn taken(&self) -> EventCounts {
        let take = |word: &AtomicU64| word.swap(0, Ordering::Relaxed);
        let (pages, tries, loads) = (take(&self.tries), take(&self.try_ns), take(&self.unpack_ns));
        let waits = take(&self.wait_ns);
        let count = |sum: u64| sum as u32 & ((1 << COUNT_BITS) - 1);
        EventCounts {
            tried: pages as u32,
            kept: (pages >> 32) as u32,
            came_back: self.came_back.swap(0, Ordering::Relaxed),
            try_ns: tries >> COUNT_BITS,
            timed_tries: count(tries),
            unpack_ns: loads >> COUNT_BITS,
            timed_loads: count(loads),
            wait_ns: waits >> COUNT_BITS,
            timed_waits: count(waits),
        }
    }

    /// Returns how many pages of a batch should try the pool. `all` is the sum over all weighers of the pool.
    pub(super) fn decide(&self, pages: u32, device: &DeviceView, turnover: Turnover, all: &PoolPages) -> u32 {
        let noted = self.taken();
        let mut weigher = self.weigher.lock();
        let before = weigher.inside;
        weigher.note(noted, turnover);
        all.change(before, weigher.inside);
        weigher.decide(pages, device)
    }

    /// Forgets everything, for another space.
    pub(super) fn reset(&self, all: &PoolPages) {
        let mut weigher = self.weigher.lock();
        self.taken();
        all.change(weigher.inside, 0.0);
        *weigher = Weigher::default();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FAST_DISK: DeviceView = DeviceView::UNMEASURED;
    const ALMOST_ALL: f64 = 0.98;

    /// A weigher with its pool. The pool is small, so that each page soon comes back or leaves.
    #[derive(Default)]
    struct Trial {
        weigher: Weigher,
        turnover: Turnover,
        owed: f64,
    }

    impl Trial {
        /// A batch of 32 pages goes out. Of the pages that are kept, the fraction `share_back` comes back,
        /// and the others leave when the pool holds `most` pages. Returns how many pages tried the pool.
        fn batch(&mut self, kept: bool, share_back: f64, device: DeviceView, most: u64) -> u32 {
            let n = self.weigher.decide(32, &device);
            let kept_pages = if kept { n } else { 0 };
            self.owed += f64::from(kept_pages) * share_back;
            let came_back = (self.owed as u32).min(self.turnover.pages as u32 + kept_pages);
            self.owed -= f64::from(came_back);
            let (try_ns, unpack_ns) = (if kept { 7000 } else { 160 }, 1500);
            let noted = EventCounts {
                tried: n,
                kept: kept_pages,
                came_back,
                try_ns: try_ns * u64::from(n),
                timed_tries: n,
                unpack_ns: unpack_ns * u64::from(came_back),
                timed_loads: came_back,
                ..EventCounts::default()
            };
            self.turnover.pages += u64::from(kept_pages) - u64::from(came_back);
            let left = self.turnover.pages.saturating_sub(most);
            self.turnover.left += left;
            self.turnover.pages -= left;
            self.weigher.note(noted, self.turnover);
            n
        }

        /// Returns the fraction of pages that tried the pool, in the second half of the batches.
        fn share(&mut self, kept: bool, share_back: f64, device: DeviceView, batches: u32) -> f64 {
            let tried: Vec<u32> = (0..batches).map(|_| self.batch(kept, share_back, device, 64)).collect();
            let later = &tried[tried.len() / 2..];
            f64::from(later.iter().sum::<u32>()) / (32 * later.len()) as f64
        }

        fn waits(&mut self, wait_ns: u64) {
            self.weigher
                .note(EventCounts { wait_ns, timed_waits: 1, ..EventCounts::default() }, self.turnover);
        }
    }

    #[test]
    fn a_stream_that_nobody_comes_back_for_goes_straight_once_its_pages_have_left() {
        let mut run = Trial::default();
        assert_eq!(run.weigher.decide(32, &FAST_DISK), 32, "at first it is tried");
        let tried: u32 = (0..200).map(|_| run.batch(true, 0.0, FAST_DISK, 320)).sum();
        assert!((320..1300).contains(&tried), "{tried} pages");
        assert!(run.share(true, 0.0, FAST_DISK, 1000) < 0.02);
    }

    #[test]
    fn pages_that_are_still_in_the_pool_say_nothing() {
        let mut run = Trial::default();
        let tried: u32 = (0..10_000).map(|_| run.batch(true, 0.0, FAST_DISK, u64::MAX)).sum();
        assert!(tried > 310_000, "nothing has left: {tried} pages");
    }

    #[test]
    fn who_has_most_pages_in_the_pool_loses_most() {
        let mut weighers = [Weigher::default(), Weigher::default()];
        let kept = [900, 100];
        for (weigher, kept) in weighers.iter_mut().zip(kept) {
            let turnover = Turnover { pages: 1000, ..Turnover::default() };
            weigher.note(EventCounts { tried: kept, kept, ..EventCounts::default() }, turnover);
            weigher.note(
                EventCounts::default(),
                Turnover { pages: 800, left: 200, inside: 1000.0, ..Turnover::default() },
            );
        }
        assert_eq!(weighers.map(|weigher| charged(&weigher)), [180.0, 20.0]);
    }

    /// The pages that a new weigher was charged with.
    fn charged(weigher: &Weigher) -> f64 {
        (weigher.left - ASSUMED + ASSUMED_BACK).round()
    }

    fn keep(weights: &Weights, pages: u32) {
        let tried = u64::from(pages) << 32 | u64::from(pages);
        weights.tries.fetch_add(tried, Ordering::Relaxed);
    }

    #[test]
    fn each_page_that_leaves_is_charged_once_though_pages_were_unmapped() {
        let (inside, all) = (PoolPages::default(), [Weights::default(), Weights::default()]);
        let look = |weights: &Weights, pages, left| {
            let turnover = Turnover { pages, left, inside: inside.pages(), ..Turnover::default() };
            weights.decide(1, &FAST_DISK, turnover, &inside);
        };
        for (weights, pages) in all.iter().zip([400, 800]) {
            keep(weights, 400);
            look(weights, pages, 0);
        }
        // The first space unmaps its pages. Half of the other pages leave.
        all.iter().for_each(|weights| look(weights, 200, 200));
        let charged: f64 = all.iter().map(|weights| charged(&weights.weigher.lock())).sum();
        assert!((190.0..=215.0).contains(&charged), "{charged} of 200 pages");
    }

    #[test]
    fn a_space_that_gets_the_number_of_another_begins_anew() {
        let (inside, weights) = (PoolPages::default(), Weights::default());
        keep(&weights, 400);
        let look = |left| {
            let turnover = Turnover { pages: 1000, left, inside: inside.pages(), ..Turnover::default() };
            weights.decide(32, &FAST_DISK, turnover, &inside);
        };
        look(0);
        look(100);
        weights.note_load(None);
        assert!(inside.pages() > 300.0, "{inside:?}");
        weights.reset(&inside);
        assert_eq!((inside.pages(), weights.taken()), (0.0, EventCounts::default()));
        keep(&weights, 100);
        look(10_000);
        assert_eq!(charged(&weights.weigher.lock()), 0.0, "others left before");
        look(10_100);
        assert_eq!(charged(&weights.weigher.lock()), 9.0);
    }

    #[test]
    fn pages_that_come_back_are_kept_and_the_change_is_noticed() {
        let mut run = Trial::default();
        assert!(run.share(true, 0.8, FAST_DISK, 200) > ALMOST_ALL);
        assert!(run.share(true, 0.0, FAST_DISK, 2000) < 0.02);
        assert!(run.share(true, 0.8, FAST_DISK, 4000) > ALMOST_ALL, "probes bring it back");
    }

    #[test]
    fn what_does_not_shrink_is_only_probed() {
        assert!(Trial::default().share(false, 0.0, FAST_DISK, 1000) < 0.02);
    }

    #[test]
    fn a_slow_device_that_is_behind_makes_packing_worth_it() {
        let slow = DeviceView { in_flight_bytes: 8 << 20, write_ns_per_page: 40_000, ..FAST_DISK };
        assert!(Trial::default().share(true, 0.0, slow, 200) > ALMOST_ALL);
        let keeps_up = DeviceView { in_flight_bytes: 0, ..slow };
        assert!(Trial::default().share(true, 0.0, keeps_up, 1000) < 0.02);
        let fast = DeviceView { in_flight_bytes: 8 << 20, ..FAST_DISK };
        assert!(Trial::default().share(true, 0.0, fast, 1000) < 0.02, "packing is slower than it still");
    }

    #[test]
    fn a_device_as_quick_as_unpacking_leaves_the_pool_nothing_to_save() {
        let mut run = Trial::default();
        assert!(run.share(true, 1.0, FAST_DISK, 50) > ALMOST_ALL);
        run.waits(700);
        assert_eq!(run.weigher.decide(32, &FAST_DISK), 0, "one is enough");
        assert!(run.share(true, 1.0, FAST_DISK, 1000) < 0.02);
        (0..200).for_each(|_| run.waits(90_000));
        assert!(run.share(true, 1.0, FAST_DISK, 50) > ALMOST_ALL, "a slow one is worth sparing again");
    }

    #[test]
    fn some_pages_go_straight_so_that_the_device_is_known() {
        let mut run = Trial::default();
        let straight =
            |run: &mut Trial| (0..64).map(|_| 32 - run.weigher.decide(32, &FAST_DISK)).sum::<u32>();
        assert_eq!(straight(&mut run), 32);
        (0..MOST_EVENTS as u32).for_each(|_| run.waits(80_000));
        assert_eq!(straight(&mut run), 4, "fewer when it is");
    }

    #[test]
    fn one_long_wait_among_short_ones_is_one_of_many() {
        let mut run = Trial::default();
        [900; 40].into_iter().chain([5_000_000]).chain([900; 20]).for_each(|wait_ns| run.waits(wait_ns));
        assert!(run.weigher.wait.ns < 1000.0, "{}", run.weigher.wait.ns);
    }

    #[test]
    fn what_is_noted_from_threads_is_taken_once() {
        let weights = Weights::default();
        weights.note_store(Stored::Incompressible, Some(3000));
        weights.note_store(Stored::Incompressible, None);
        weights.note_store(Stored::Full, Some(100));
        weights.note_load(Some(1000));
        weights.note_wait(70_000);
        weights.note_wait(90_000);
        let noted = weights.taken();
        assert_eq!((noted.tried, noted.kept, noted.came_back), (2, 0, 1));
        assert_eq!((noted.try_ns, noted.timed_tries, noted.unpack_ns, noted.timed_loads), (3000, 1, 1000, 1));
        assert_eq!((noted.wait_ns, noted.timed_waits), (160_000, 2));
        assert_eq!(weights.taken(), EventCounts::default());
    }
}
