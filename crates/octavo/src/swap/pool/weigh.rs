//! Whether a batch of pages should try the pool, or go straight to the area.
//!
//! Packing costs more time a page than a quick device does, so a stream that nobody comes back for is better off
//! without it. A page that comes back saves the wait for a device. How many pages shrink and come back, and how long that
//! takes, is measured, over all who share the [`Weights`]; what a device takes is what [`DeviceView`] says:
//!
//! ```text
//!   worth of trying one page =
//!       share kept x ( share that comes back x (wait for a device - unpacking)
//!                      + (device behind ? its time for a page : 0)
//!                      - share that does not x unpacking )             it will leave the pool again
//!     - time of a try
//! ```
//!
//! Where that is not positive pages go straight, but for a few probes, by which a change is noticed. Key types:
//! [`Weights`] (what is noted, by many threads), [`Weigher`] (the decision; pure).

use super::Stored;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::units::PAGE_BYTES;

/// Pages that go straight for each page that is tried nevertheless.
const PAGES_A_PROBE: u32 = 128;
/// Probes at once.
const PROBES: u32 = 8;
/// Tries after which what is older counts half.
const WINDOW: f64 = 512.0;
/// Tries that are taken for granted at first, and how many of them were kept and came back.
const ASSUMED: (f64, f64, f64) = (32.0, 32.0, 16.0);
const ASSUMED_TRY_NS: f64 = 5000.0;
/// What unpacking takes, until it is measured.
const ASSUMED_UNPACK_NS: f64 = 1500.0;

/// What a batch should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try the pool for every page.
    Pool,
    /// Try it for so many pages; the others go straight.
    Probe(u32),
    /// No page tries it.
    Straight,
}

/// How the device behind the pool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceView {
    /// Bytes submitted and not yet complete.
    pub(crate) in_flight_bytes: u64,
    /// As much as keeps it busy: with more in flight it is behind.
    pub(crate) busy_bytes: u64,
    /// Its time for a page of a long write.
    pub(crate) write_ns_per_page: u32,
    /// What a fault waits for a page from it, readahead included.
    pub(crate) read_ns_per_fault: u32,
}

impl DeviceView {
    fn is_behind(&self) -> bool {
        self.in_flight_bytes > self.busy_bytes
    }

    /// A disk that streams 2.2 GB/s and answers in 80 µs, idle: until something was measured.
    pub(crate) const UNMEASURED: Self = Self {
        in_flight_bytes: 0,
        busy_bytes: 4 << 20,
        write_ns_per_page: (PAGE_BYTES as f64 / 2.2) as u32,
        read_ns_per_fault: 80_000,
    };
}

/// What happened since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Noted {
    /// Pages that tried the pool, those of them that it kept, and pages that came back from it.
    pub(crate) tried: u32,
    pub(crate) kept: u32,
    pub(crate) came_back: u32,
    /// Sums over those tries and loads that were timed, and how many were.
    pub(crate) try_ns: u64,
    pub(crate) timed_tries: u32,
    pub(crate) unpack_ns: u64,
    pub(crate) timed_loads: u32,
}

/// The decision.
#[derive(Clone, Debug)]
pub(crate) struct Weigher {
    tried: f64,
    kept: f64,
    came_back: f64,
    try_ns: f64,
    unpack_ns: f64,
    /// Pages that went straight since the last probe.
    straight: u32,
}

impl Default for Weigher {
    fn default() -> Self {
        let (tried, kept, came_back) = ASSUMED;
        let (try_ns, unpack_ns) = (ASSUMED_TRY_NS, ASSUMED_UNPACK_NS);
        Self { tried, kept, came_back, try_ns, unpack_ns, straight: 0 }
    }
}

impl Weigher {
    /// Takes in what happened.
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
                *mean += (sum_ns as f64 / f64::from(n) - *mean) * weight;
            }
        };
        blend(&mut self.try_ns, noted.try_ns, noted.timed_tries);
        blend(&mut self.unpack_ns, noted.unpack_ns, noted.timed_loads);
    }

    /// What trying one page is worth, in nanoseconds.
    pub(crate) fn worth_ns(&self, device: &DeviceView) -> f64 {
        let kept = self.kept / self.tried;
        let back = (self.came_back / self.kept.max(1.0)).min(1.0);
        let saved = back * (f64::from(device.read_ns_per_fault) - self.unpack_ns);
        let relieved = if device.is_behind() { f64::from(device.write_ns_per_page) } else { 0.0 };
        kept * (saved + relieved - (1.0 - back) * self.unpack_ns) - self.try_ns
    }

    /// For a batch of so many pages.
    pub(crate) fn decide(&mut self, pages: u32, device: &DeviceView) -> Verdict {
        if self.worth_ns(device) > 0.0 {
            self.straight = 0;
            return Verdict::Pool;
        }
        self.straight += pages;
        if self.straight < PROBES * PAGES_A_PROBE {
            return Verdict::Straight;
        }
        self.straight = 0;
        Verdict::Probe(PROBES.min(pages))
    }
}

/// What is noted, from any thread, and the weigher.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    /// Pages kept in the upper, pages tried in the lower 32 bits.
    tries: AtomicU64,
    came_back: AtomicU32,
    /// Nanoseconds in the upper, how many in the lower 16 bits.
    try_ns: AtomicU64,
    unpack_ns: AtomicU64,
    weigher: Mutex<Weigher>,
}

/// Nanoseconds and their count, in one word.
const COUNT_BITS: u32 = 16;

impl Weights {
    pub(super) fn note_store(&self, stored: Stored, ns: Option<u64>) {
        let kept = u64::from(matches!(stored, Stored::Kept(_)));
        self.tries.fetch_add(kept << 32 | 1, Ordering::Relaxed);
        Self::add(&self.try_ns, ns);
    }

    pub(super) fn note_load(&self, ns: Option<u64>) {
        self.came_back.fetch_add(1, Ordering::Relaxed);
        Self::add(&self.unpack_ns, ns);
    }

    fn add(sum: &AtomicU64, ns: Option<u64>) {
        if let Some(ns) = ns {
            sum.fetch_add(ns << COUNT_BITS | 1, Ordering::Relaxed);
        }
    }

    fn taken(&self) -> Noted {
        let take = |word: &AtomicU64| word.swap(0, Ordering::Relaxed);
        let (pages, tries, loads) = (take(&self.tries), take(&self.try_ns), take(&self.unpack_ns));
        let count = |sum: u64| sum as u32 & ((1 << COUNT_BITS) - 1);
        Noted {
            tried: pages as u32,
            kept: (pages >> 32) as u32,
            came_back: self.came_back.swap(0, Ordering::Relaxed),
            try_ns: tries >> COUNT_BITS,
            timed_tries: count(tries),
            unpack_ns: loads >> COUNT_BITS,
            timed_loads: count(loads),
        }
    }

    /// For a batch of so many pages.
    pub(crate) fn decide(&self, pages: u32, device: &DeviceView) -> Verdict {
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

    /// Batches of 32 pages; `share_back` of those that are kept come back. Share of the last pages that tried.
    fn run(weigher: &mut Weigher, kept: bool, share_back: f64, device: DeviceView, batches: u32) -> f64 {
        let (mut tried, mut owed) = (0, 0.0);
        for batch in 0..batches {
            let n = match weigher.decide(32, &device) {
                Verdict::Pool => 32,
                Verdict::Probe(n) => n,
                Verdict::Straight => 0,
            };
            owed += if kept { f64::from(n) * share_back } else { 0.0 };
            let came_back = owed as u32;
            owed -= f64::from(came_back);
            let (kept, try_ns) = if kept { (n, 7000) } else { (0, 160) };
            let (try_ns, unpack_ns) = (try_ns * u64::from(n), 1500 * u64::from(came_back));
            let (timed_tries, timed_loads) = (n, came_back);
            weigher.note(Noted { tried: n, kept, came_back, try_ns, timed_tries, unpack_ns, timed_loads });
            tried += if batch >= batches / 2 { n } else { 0 };
        }
        f64::from(tried) / f64::from(32 * (batches - batches / 2))
    }

    #[test]
    fn a_stream_that_nobody_comes_back_for_soon_goes_straight() {
        let mut weigher = Weigher::default();
        assert_eq!(weigher.decide(32, &FAST_DISK), Verdict::Pool, "at first it is tried");
        let mut tried_at_all = 0;
        for _ in 0..100 {
            if weigher.decide(32, &FAST_DISK) == Verdict::Pool {
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
        assert_eq!(run(&mut weigher, true, 0.8, FAST_DISK, 200), 1.0);
        assert!(run(&mut weigher, true, 0.0, FAST_DISK, 2000) < 0.02);
        assert_eq!(run(&mut weigher, true, 0.8, FAST_DISK, 4000), 1.0, "probes bring it back");
    }

    #[test]
    fn what_does_not_shrink_is_only_probed() {
        let mut weigher = Weigher::default();
        assert!(run(&mut weigher, false, 0.0, FAST_DISK, 1000) < 0.02);
    }

    #[test]
    fn a_slow_device_that_is_behind_makes_packing_worth_it() {
        let slow = DeviceView { in_flight_bytes: 8 << 20, write_ns_per_page: 40_000, ..FAST_DISK };
        assert_eq!(run(&mut Weigher::default(), true, 0.0, slow, 200), 1.0);
        let keeps_up = DeviceView { in_flight_bytes: 0, ..slow };
        assert!(run(&mut Weigher::default(), true, 0.0, keeps_up, 1000) < 0.02);
        let fast = DeviceView { in_flight_bytes: 8 << 20, ..FAST_DISK };
        assert!(
            run(&mut Weigher::default(), true, 0.0, fast, 1000) < 0.02,
            "packing is slower than it still"
        );
    }

    #[test]
    fn what_is_noted_from_threads_is_taken_once() {
        let weights = Weights::default();
        weights.note_store(Stored::Full, Some(3000));
        weights.note_store(Stored::Incompressible, None);
        weights.note_load(Some(1000));
        let noted = weights.taken();
        assert_eq!((noted.tried, noted.kept, noted.came_back), (2, 0, 1));
        assert_eq!((noted.try_ns, noted.timed_tries, noted.unpack_ns, noted.timed_loads), (3000, 1, 1000, 1));
        assert_eq!(weights.taken(), Noted::default());
    }
}
