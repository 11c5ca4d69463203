//! Pace: the time that the devices of all areas together take for a page of a long write.
//!
//! ```text
//!   look: ended = e0, in flight = u0          look: ended = e1
//!   ──────┼─────────────────────────────────────┼──────►   e1 - e0 < u0: pages of before are still in flight, so the
//!         t0                                    t1          devices were never idle: (t1 - t0) / (e1 - e0) is their time
//! ```
//!
//! Reclaim takes a sample once for each batch, and transfers have no cost. If writes end faster than reclaim
//! takes samples, or if too few pages are in flight, nothing is measured: then the devices are fast enough.
//! The time of reads between the writes counts as write time, as does the time of threads that complete
//! writes. Key type: [`WritePace`].

use crate::sync::{AtomicU32, Duration, Instant, Mutex, Ordering};

/// The pages that must end before a measurement counts: two long transfers.
const SPAN_PAGES: u64 = 512;
/// A new measurement counts as one part in this many.
const BLEND: f64 = 4.0;

/// One sample of the pages that are being written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteSample {
    /// The number of pages whose write has ended since the start.
    pub(super) ended_pages: u64,
    /// The number of pages that are being written. It is read after `ended_pages`.
    pub(super) under_way_pages: u32,
    pub(super) at: Instant,
}

/// The devices' time for a page.
#[derive(Debug, Default)]
pub(super) struct WritePace {
    since: Mutex<Option<WriteSample>>,
    /// The time for a page, or 0 if not known.
    ns_per_page: AtomicU32,
}

impl WritePace {
    /// The time for a page of a long write, in nanoseconds, if it is known.
    pub(super) fn ns_per_page(&self) -> Option<u32> {
        Some(self.ns_per_page.load(Ordering::Relaxed)).filter(|ns| *ns != 0)
    }

    /// Takes a sample. If several threads do so at the same time, one sample counts.
    pub(super) fn take(&self, now: WriteSample) {
        let Some(mut since) = self.since.try_lock() else { return };
        let Some(before) = *since else {
            *since = tells(&now).then_some(now);
            return;
        };
        let ended = now.ended_pages.saturating_sub(before.ended_pages);
        if ended >= u64::from(before.under_way_pages) {
            *since = tells(&now).then_some(now);
        } else if ended >= SPAN_PAGES {
            self.blend(now.at.saturating_duration_since(before.at), ended);
            *since = tells(&now).then_some(now);
        }
    }

    fn blend(&self, span: Duration, pages: u64) {
        let measured = span.as_nanos() as f64 / pages as f64;
        let before = self.ns_per_page().map_or(measured, f64::from);
        let blended = before + (measured - before) / BLEND;
        self.ns_per_page.store(blended.clamp(1.0, f64::from(u32::MAX)) as u32, Ordering::Relaxed);
    }
}

fn tells(sample: &WriteSample) -> bool {
    u64::from(sample.under_way_pages) > SPAN_PAGES
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Simulates a device that takes `ns` for a page, with up to `queue` pages in flight. Takes a sample each
    /// time `every` pages have ended.
    fn measured(pace: &WritePace, ns: u64, queue: u64, every: u64, idle: Duration) {
        let (mut at, mut ended) = (crate::sync::Clock::default().now(), 0);
        for _ in 0..200 {
            pace.take(WriteSample { ended_pages: ended, under_way_pages: queue as u32, at });
            at += Duration::from_nanos(ns * every) + idle;
            ended += every;
        }
    }

    #[test]
    fn a_busy_device_is_timed_and_a_change_noticed() {
        let pace = WritePace::default();
        assert_eq!(pace.ns_per_page(), None);
        measured(&pace, 40_000, 2048, 32, Duration::ZERO);
        assert_eq!(pace.ns_per_page(), Some(40_000));
        measured(&pace, 2000, 2048, 100, Duration::ZERO);
        let ns = pace.ns_per_page().unwrap();
        assert!((2000..2100).contains(&ns), "{ns}");
    }

    #[test]
    fn a_device_that_may_have_been_idle_is_not_timed() {
        let pace = WritePace::default();
        measured(&pace, 2000, 600, 600, Duration::from_millis(20));
        measured(&pace, 2000, 256, 32, Duration::ZERO);
        assert_eq!(pace.ns_per_page(), None);
    }
}
