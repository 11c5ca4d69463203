//! The decision whether a batch of pages tries the pool, or goes straight to the area.
//!
//! To pack a page costs more time than a quick device takes for it. So a stream that nobody comes back for goes
//! straight. A page that comes back saves the wait for a device. Octavo measures over all who share the [`Weights`]
//! how many pages shrink and come back, how long that takes, and how long faults wait for pages on an area.
//! [`DeviceView`] says how the devices keep up with writes, over all areas:
//!
//! ```text
//!   worth of trying one page =
//!       share kept x ( share that comes back x (wait for a device - unpacking)
//!                      + (device behind ? its time for a page : 0)
//!                      - share that does not x unpacking )             it will leave the pool again
//!     - time of a try
//! ```
//!
//! If that is not positive, pages go straight, except for a few probes, which notice a change. If it is positive, a
//! few pages go straight nevertheless, so that the wait for a device stays known. Key types: [`Weights`] (the
//! notes, by many threads), [`Weigher`] (the decision; pure).

use super::Stored;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::units::PAGE_BYTES;

/// Pages that go straight for each probe.
const PAGES_A_PROBE: u32 = 128;
/// Probes at once.
const PROBES: u32 = 8;
/// Pages that try the pool for each that goes straight nevertheless. The second number holds while few waits for a
/// device were seen.
const PAGES_A_STRAIGHT: u32 = 512;
const PAGES_A_FIRST_STRAIGHT: u32 = 64;
/// Tries after which older ones count half.
const WINDOW: f64 = 512.0;
/// Tries that are assumed at first, and how many of them were kept and came back.
const ASSUMED: (f64, f64, f64) = (32.0, 32.0, 16.0);
const ASSUMED_TRY_NS: f64 = 5000.0;
/// The time of unpacking, until it is measured.
const ASSUMED_UNPACK_NS: f64 = 1500.0;
/// The wait of a fault for a page from an area, until it is measured: that of a disk.
const ASSUMED_WAIT_NS: f64 = 80_000.0;
/// Waits after which older ones count less and less.
const WAITS: f64 = 64.0;

/// The state of the devices behind the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceView {
    /// Bytes submitted and not yet complete.
    pub(crate) in_flight_bytes: u64,
    /// The bytes in flight that keep it busy. With more in flight it is behind.
    pub(crate) busy_bytes: u64,
    /// Its time for a page of a long write.
    pub(crate) write_ns_per_page: u32,
}

impl DeviceView {
    fn is_behind(&self) -> bool {
        self.in_flight_bytes > self.busy_bytes
    }

    /// A disk that streams 2.2 GB/s and is idle, until something is measured.
    pub(crate) const UNMEASURED: Self =
        Self { in_flight_bytes: 0, busy_bytes: 4 << 20, write_ns_per_page: (PAGE_BYTES as f64 / 2.2) as u32 };
}

/// The events since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Noted {
    /// Pages that tried the pool, those of them that it kept, and pages that came back from it.
    pub(crate) tried: u32,
    pub(crate) kept: u32,
    pub(crate) came_back: u32,
    /// Sums over those tries and loads that were timed, and their number.
    pub(crate) try_ns: u64,
    pub(crate) timed_tries: u32,
    pub(crate) unpack_ns: u64,
    pub(crate) timed_loads: u32,
    /// Of faults that were timed, on pages that lay on an area.
    pub(crate) wait_ns: u64,
    pub(crate) timed_waits: u32,
}

/// The decision.
#[derive(Clone, Debug)]
pub(crate) struct Weigher {
    tried: f64,
    kept: f64,
    came_back: f64,
    try_ns: f64,
    unpack_ns: f64,
    wait_ns: f64,
    /// The number of waits that `wait_ns` rests on, as far as they count.
    waits: f64,
    /// Pages that went straight since the last probe.
    straight: u32,
    /// Pages that tried it since one went straight nevertheless.
    packed: u32,
}

impl Default for Weigher {
    fn default() -> Self {
        let (tried, kept, came_back) = ASSUMED;
        let (try_ns, unpack_ns) = (ASSUMED_TRY_NS, ASSUMED_UNPACK_NS);
        let wait_ns = ASSUMED_WAIT_NS;
        Self { tried, kept, came_back, try_ns, unpack_ns, wait_ns, waits: 0.0, straight: 0, packed: 0 }
    }
}

impl Weigher {
    /// Takes the events in.
    pub(crate) fn note(&mut self, noted: Noted) {
        self.tried += f64::from(noted.tried);
        self.kept += f64::from(noted.kept);
        self.came_back += f64::from(noted.came_back);
        while self.tried > WINDOW {
            self.tried /= 2.0;
            self.kept /= 2.0;
            self.came_back /= 2.0;
        }
        let blend = |mean: &mut f64, sum_ns: u64, n: u32| {
            if n > 0 {
                let weight = (f64::from(n) / 16.0).min(0.5);
                // No event more than doubles the figure, since the thread may not have run, and the first ones touch
                // fresh memory.
                let ns = (sum_ns as f64 / f64::from(n)).min(*mean * 2.0);
                *mean += (ns - *mean) * weight;
            }
        };
        blend(&mut self.try_ns, noted.try_ns, noted.timed_tries);
        blend(&mut self.unpack_ns, noted.unpack_ns, noted.timed_loads);
        if noted.timed_waits > 0 {
            // The first measured wait replaces the assumption: devices differ a thousandfold.
            let n = f64::from(noted.timed_waits);
            let waited_ns = (noted.wait_ns as f64 / n).min(self.wait_ns * 2.0);
            self.wait_ns += (waited_ns - self.wait_ns) * n / (n + self.waits);
            self.waits = (self.waits + n).min(WAITS);
        }
    }

    /// The worth of a try with one page, in nanoseconds.
    pub(crate) fn worth_ns(&self, device: &DeviceView) -> f64 {
        let kept = self.kept / self.tried;
        let back = (self.came_back / self.kept.max(1.0)).min(1.0);
        let saved = back * (self.wait_ns - self.unpack_ns);
        let relieved = if device.is_behind() { f64::from(device.write_ns_per_page) } else { 0.0 };
        kept * (saved + relieved - (1.0 - back) * self.unpack_ns) - self.try_ns
    }

    /// Returns how many of the pages of a batch should try the pool. The others go straight.
    pub(crate) fn decide(&mut self, pages: u32, device: &DeviceView) -> u32 {
        if self.worth_ns(device) > 0.0 {
            self.straight = 0;
            self.packed += pages;
            let a_straight = if self.waits >= WAITS { PAGES_A_STRAIGHT } else { PAGES_A_FIRST_STRAIGHT };
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

/// The notes, from any thread, and the weigher.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// Pages kept in the upper 32 bits, pages tried in the lower.
    tries: AtomicU64,
    came_back: AtomicU32,
    /// Nanoseconds in the upper bits, their number in the lower 16.
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
            // The thread did not run: that says nothing of the page.
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

    /// Notes how long a fault waited for a page that lay on an area, read ahead or not.
    pub(crate) fn note_wait(&self, ns: u64) {
        Self::add(&self.wait_ns, Some(ns));
    }

    fn add(sum: &AtomicU64, ns: Option<u64>) {
        if let Some(ns) = ns {
            sum.fetch_add(ns << COUNT_BITS | 1, Ordering::Relaxed);
        }
    }

    fn taken(&self) -> Noted {
        let take = |word: &AtomicU64| word.swap(0, Ordering::Relaxed);
        let (pages, tries, loads) = (take(&self.tries), take(&self.try_ns), take(&self.unpack_ns));
        let waits = take(&self.wait_ns);
        let count = |sum: u64| sum as u32 & ((1 << COUNT_BITS) - 1);
        Noted {
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

    /// Returns how many pages of a batch should try the pool.
    pub(crate) fn decide(&self, pages: u32, device: &DeviceView) -> u32 {
        let noted = self.taken();
        let mut weigher = self.weigher.lock();
        weigher.note(noted);
        weigher.decide(pages, device)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FAST_DISK: DeviceView = DeviceView::UNMEASURED;
    const ALMOST_ALL: f64 = 0.98;

    /// Batches of 32 pages; `share_back` of those that are kept come back. Share of the last pages that tried.
    fn run(weigher: &mut Weigher, kept: bool, share_back: f64, device: DeviceView, batches: u32) -> f64 {
        let (mut tried, mut owed) = (0, 0.0);
        for batch in 0..batches {
            let n = weigher.decide(32, &device);
            owed += if kept { f64::from(n) * share_back } else { 0.0 };
            let came_back = owed as u32;
            owed -= f64::from(came_back);
            let (kept, try_ns) = if kept { (n, 7000) } else { (0, 160) };
            let (try_ns, unpack_ns) = (try_ns * u64::from(n), 1500 * u64::from(came_back));
            let (timed_tries, timed_loads) = (n, came_back);
            let noted = Noted { tried: n, kept, came_back, ..Noted::default() };
            weigher.note(Noted { try_ns, timed_tries, unpack_ns, timed_loads, ..noted });
            tried += if batch >= batches / 2 { n } else { 0 };
        }
        f64::from(tried) / f64::from(32 * (batches - batches / 2))
    }

    #[test]
    fn a_stream_that_nobody_comes_back_for_soon_goes_straight() {
        let mut weigher = Weigher::default();
        assert_eq!(weigher.decide(32, &FAST_DISK), 32, "at first it is tried");
        let mut tried_at_all = 0;
        for _ in 0..100 {
            if weigher.decide(32, &FAST_DISK) > PROBES {
                weigher.note(Noted {
                    tried: 32,
                    kept: 32,
                    try_ns: 7000 * 32,
                    timed_tries: 32,
                    ..Noted::default()
                });
                tried_at_all += 32;
            }
        }
        assert!(tried_at_all < 1000, "{tried_at_all} pages");
        assert!(run(&mut weigher, true, 0.0, FAST_DISK, 1000) < 0.02);
    }

    #[test]
    fn pages_that_come_back_are_kept_and_the_change_is_noticed() {
        let mut weigher = Weigher::default();
        assert!(run(&mut weigher, true, 0.8, FAST_DISK, 200) > ALMOST_ALL);
        assert!(run(&mut weigher, true, 0.0, FAST_DISK, 2000) < 0.02);
        assert!(run(&mut weigher, true, 0.8, FAST_DISK, 4000) > ALMOST_ALL, "probes bring it back");
    }

    #[test]
    fn what_does_not_shrink_is_only_probed() {
        let mut weigher = Weigher::default();
        assert!(run(&mut weigher, false, 0.0, FAST_DISK, 1000) < 0.02);
    }

    #[test]
    fn a_slow_device_that_is_behind_makes_packing_worth_it() {
        let slow = DeviceView { in_flight_bytes: 8 << 20, write_ns_per_page: 40_000, ..FAST_DISK };
        assert!(run(&mut Weigher::default(), true, 0.0, slow, 200) > ALMOST_ALL);
        let keeps_up = DeviceView { in_flight_bytes: 0, ..slow };
        assert!(run(&mut Weigher::default(), true, 0.0, keeps_up, 1000) < 0.02);
        let fast = DeviceView { in_flight_bytes: 8 << 20, ..FAST_DISK };
        assert!(
            run(&mut Weigher::default(), true, 0.0, fast, 1000) < 0.02,
            "packing is slower than it still"
        );
    }

    #[test]
    fn a_device_as_quick_as_unpacking_leaves_the_pool_nothing_to_save() {
        let mut weigher = Weigher::default();
        assert!(run(&mut weigher, true, 1.0, FAST_DISK, 50) > ALMOST_ALL);
        weigher.note(Noted { wait_ns: 700, timed_waits: 1, ..Noted::default() });
        assert_eq!(weigher.decide(32, &FAST_DISK), 0, "one is enough");
        assert!(run(&mut weigher, true, 1.0, FAST_DISK, 1000) < 0.02);
        for _ in 0..200 {
            weigher.note(Noted { wait_ns: 90_000, timed_waits: 1, ..Noted::default() });
        }
        assert!(
            run(&mut weigher, true, 1.0, FAST_DISK, 50) > ALMOST_ALL,
            "a slow one is worth sparing again"
        );
    }

    #[test]
    fn some_pages_go_straight_so_that_the_device_is_known() {
        let mut weigher = Weigher::default();
        let straight =
            |weigher: &mut Weigher| (0..64).map(|_| 32 - weigher.decide(32, &FAST_DISK)).sum::<u32>();
        assert_eq!(straight(&mut weigher), 32);
        weigher.note(Noted { wait_ns: WAITS as u64 * 80_000, timed_waits: WAITS as u32, ..Noted::default() });
        assert_eq!(straight(&mut weigher), 4, "fewer when it is");
    }

    #[test]
    fn one_long_wait_among_short_ones_is_one_of_many() {
        let mut weigher = Weigher::default();
        for wait_ns in [900; 40].into_iter().chain([5_000_000]).chain([900; 20]) {
            weigher.note(Noted { wait_ns, timed_waits: 1, ..Noted::default() });
        }
        assert!(weigher.wait_ns < 1000.0, "{}", weigher.wait_ns);
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
        assert_eq!(weights.taken(), Noted::default());
    }
}
