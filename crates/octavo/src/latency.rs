//! How long accesses waited: a histogram for each kind of wait.
//!
//! There are eight buckets for each doubling of the time, so a figure is off by at most 6 %. Each CPU has a
//! cell for each bucket, as for [counters](crate::counters), and a reader sums them.
//!
//! Short waits, of about a microsecond, are timed for one page in 64: reading a clock takes 20 to 50 ns, and
//! a write fault that finds a zeroed frame 75 ns. Faults that show zeros are not timed, nor are pages that
//! come in with another page's fault. All waits for a device and for room are timed, except for the few
//! faults whose page is taken away as soon as it has come in. A timed wait costs two clock reads and one
//! addition on a line that only this CPU writes.

use std::fmt;

use hdrhistogram::Histogram;

use crate::sync::Duration;
use crate::sync::percpu::PerCpuCells;
use crate::units::PageNumber;

/// log2 of the buckets of a doubling.
const PART_BITS: u32 = 3;
/// Waits of 2^37 ns, two minutes, and more are in the last bucket.
const MOST_BITS: u32 = 37;
pub(crate) const BUCKETS: usize = ((MOST_BITS - PART_BITS + 1) << PART_BITS) as usize;
/// log2 of `n`, for waits of which only one page in `n` is timed, because timing all would cost too much.
const SAMPLE_BITS: u32 = 6;

/// The reason for which an access waited. A [`LatencySnapshot`] has the figures of each reason, and so shows
/// what makes a program slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Latency {
    /// A write to a page, or a block of 2 MiB, that had no bytes yet. One in 64 is timed. Waits for room are
    /// included. Pages that [`TranslatedSpace::show`](crate::translation::TranslatedSpace::show) makes are
    /// left out.
    NewPage,
    /// A fault on a page that was compressed in memory, or that repeats one word. The time starts when the
    /// fault has room. One in 64 is timed.
    Unpacked,
    /// A fault that waited for a device. The time starts when the fault requests the page, or finds it
    /// requested. For a future, it includes the time until the executor polls again.
    Device,
    /// An access that made room, because it found none in the budget or because its thread had taken much
    /// memory while single pages were read. Making room under a quota is left out.
    Stall,
}

impl Latency {
    /// Every kind, in declaration order.
    pub const ALL: &[Self] = &[Self::NewPage, Self::Unpacked, Self::Device, Self::Stall];

    /// Returns the kind's name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::NewPage => "new_page",
            Self::Unpacked => "unpacked",
            Self::Device => "device",
            Self::Stall => "stall",
        }
    }

    /// Returns `n` if one in `n` waits of this kind is timed.
    pub fn one_of(self) -> u64 {
        match self {
            Self::NewPage | Self::Unpacked => 1 << SAMPLE_BITS,
            Self::Device | Self::Stall => 1,
        }
    }
}

/// Returns whether a fault on this page is timed, for kinds of which only some are timed. The timed pages are
/// scattered, since programs touch some pages more than others, such as the first of each block.
#[inline]
pub(crate) fn is_sampled(page: PageNumber) -> bool {
    page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - SAMPLE_BITS) == 0
}

/// The histograms of a manager.
#[derive(Debug)]
pub(crate) struct Latencies {
    cells: PerCpuCells,
}

impl Latencies {
    pub(crate) fn new(areas: usize) -> std::io::Result<Self> {
        Ok(Self { cells: PerCpuCells::new((Latency::ALL.len() + areas) * BUCKETS)? })
    }

    #[cold]
    pub(crate) fn note(&self, latency: Latency, took: Duration) {
        self.cells.add(latency as usize * BUCKETS + bucket_of(took.as_nanos() as u64), 1);
    }

    /// Notes a wait for the device of an area, by the area's index.
    #[cold]
    pub(crate) fn note_device(&self, area: usize, took: Duration) {
        self.note(Latency::Device, took);
        self.cells.add(Self::first_of_area(area) + bucket_of(took.as_nanos() as u64), 1);
    }

    fn first_of_area(area: usize) -> usize {
        (Latency::ALL.len() + area) * BUCKETS
    }

    /// Returns the figures of the waits for an area.
    pub(crate) fn of_area(&self, area: usize) -> Quantiles {
        let first = Self::first_of_area(area);
        quantiles_of(&histogram_of((first..first + BUCKETS).map(|at| self.cells.sum(at))))
    }

    pub(crate) fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot { counts: (0..Latency::ALL.len() * BUCKETS).map(|at| self.cells.sum(at)).collect() }
    }
}

/// How long accesses waited since the manager was built, by [`Latency`], from
/// [`Manager::latencies`](crate::Manager::latencies). For an interval, take two and call
/// [`LatencySnapshot::since`]. `{:?}` writes one line with the usual, rare and longest waits.
#[derive(Clone, PartialEq, Eq)]
pub struct LatencySnapshot {
    counts: Vec<u64>,
}

/// How long waits took, in nanoseconds: the usual wait, rare waits, and the longest wait. The figures are off
/// by at most 6 %. Waits of more than two minutes count as two minutes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Quantiles {
    /// How many waits were timed.
    pub count: u64,
    /// About half of them took no longer.
    pub p50_ns: u64,
    /// Of a hundred, 99 took no longer.
    pub p99_ns: u64,
    /// Of a thousand, 999 took no longer.
    pub p999_ns: u64,
    /// The longest wait.
    pub max_ns: u64,
    /// The arithmetic mean. Multiplied by `count`, it is the total time.
    pub mean_ns: u64,
}

impl LatencySnapshot {
    /// Returns the histogram of a kind, in nanoseconds, as exact as [`Quantiles`].
    pub fn histogram(&self, latency: Latency) -> Histogram<u64> {
        let first = latency as usize * BUCKETS;
        histogram_of(self.counts[first..first + BUCKETS].iter().copied())
    }

    /// Returns the most common figures of a kind.
    pub fn quantiles(&self, latency: Latency) -> Quantiles {
        quantiles_of(&self.histogram(latency))
    }

    /// Returns kinds and their figures, in declaration order.
    pub fn iter(&self) -> impl Iterator<Item = (Latency, Quantiles)> + '_ {
        Latency::ALL.iter().map(|&latency| (latency, self.quantiles(latency)))
    }

    /// Returns the waits since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts).map(|(now, then)| now.wrapping_sub(*then));
        Self { counts: counts.collect() }
    }
}

/// One line with the kinds that had waits.
impl fmt::Debug for LatencySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of_kind = |(latency, quantiles): (Latency, Quantiles)| {
            let time = Duration::from_nanos;
            (quantiles.count > 0).then(|| {
                format!(
                    "{}: {} timed, p50 {:.1?}, p99 {:.1?}, max {:.1?}",
                    latency.name(),
                    quantiles.count,
                    time(quantiles.p50_ns),
                    time(quantiles.p99_ns),
                    time(quantiles.max_ns)
                )
            })
        };
        let kinds: Vec<_> = self.iter().filter_map(of_kind).collect();
        let kinds = if kinds.is_empty() { "no waits".to_string() } else { kinds.join("; ") };
        write!(f, "LatencySnapshot({kinds})")
    }
}

/// A map from the kinds' names to their [`Quantiles`].
#[cfg(feature = "serde")]
impl serde::Serialize for LatencySnapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(latency, quantiles)| (latency.name(), quantiles)))
    }
}

/// Makes a histogram from the number of waits in each bucket.
pub(crate) fn histogram_of(counts: impl Iterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are allowed");
    for (bucket, count) in counts.enumerate().filter(|(_, count)| *count > 0) {
        histogram.record_n(middle_of(bucket), count).expect("a histogram that grows takes every figure");
    }
    histogram
}

fn quantiles_of(histogram: &Histogram<u64>) -> Quantiles {
    let at = |quantile| histogram.value_at_quantile(quantile);
    Quantiles {
        count: histogram.len(),
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: histogram.max(),
        mean_ns: histogram.mean() as u64,
    }
}

pub(crate) fn bucket_of(ns: u64) -> usize {
    if ns < 1 << PART_BITS {
        return ns as usize;
    }
    let doubling = ns.ilog2() - PART_BITS;
    let part = (ns >> doubling) & ((1 << PART_BITS) - 1);
    ((((doubling as usize) + 1) << PART_BITS) + part as usize).min(BUCKETS - 1)
}

/// Returns the middle of a bucket.
fn middle_of(bucket: usize) -> u64 {
    if bucket < 1 << PART_BITS {
        return bucket as u64;
    }
    let doubling = (bucket >> PART_BITS) - 1;
    let part = (bucket & ((1 << PART_BITS) - 1)) as u64;
    let (first, width) = (((1 << PART_BITS) + part) << doubling, 1_u64 << doubling);
    first + width / 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_within_an_eighth_of_what_is_in_it() {
        let mut last = 0;
        for ns in (0..4096)
            .chain((12..MOST_BITS).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) * 11 / 8]))
        {
            let bucket = bucket_of(ns);
            assert!(bucket >= last, "buckets follow each other: {ns}");
            last = bucket;
            assert!(middle_of(bucket).abs_diff(ns) <= ns / 16 + 1, "{ns} is taken for {}", middle_of(bucket));
        }
        assert_eq!(bucket_of(1 << MOST_BITS), BUCKETS - 1);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn figures_are_those_of_what_was_noted() {
        let latencies = Latencies::new(2).unwrap();
        let before = latencies.snapshot();
        (1..=1000).for_each(|us| latencies.note(Latency::Device, Duration::from_micros(us)));
        latencies.note(Latency::Stall, Duration::from_secs(100));
        let noted = latencies.snapshot();
        let near = |found: u64, expected: u64| {
            assert!(found.abs_diff(expected) <= expected / 12, "{found} for {expected}")
        };
        let device = noted.quantiles(Latency::Device);
        assert_eq!(device.count, 1000);
        near(device.p50_ns, 500_000);
        near(device.p99_ns, 990_000);
        near(device.p999_ns, 999_000);
        near(device.mean_ns, 500_500);
        near(noted.quantiles(Latency::Stall).max_ns, 100_000_000_000);
        assert_eq!(noted.quantiles(Latency::NewPage), Quantiles::default());
        latencies.note_device(1, Duration::from_micros(7));
        near(latencies.of_area(1).p50_ns, 7000);
        assert_eq!(
            (latencies.of_area(0).count, latencies.snapshot().quantiles(Latency::Device).count),
            (0, 1001)
        );
        assert_eq!(noted.since(&before), noted);
        assert_eq!(noted.since(&noted).quantiles(Latency::Device).count, 0);
    }
    #[test]
    fn waits_are_written_on_one_line() {
        let latencies = Latencies::new(0).unwrap();
        assert_eq!(format!("{:?}", latencies.snapshot()), "LatencySnapshot(no waits)");
        (0..99).for_each(|_| latencies.note(Latency::Device, Duration::from_nanos(6)));
        latencies.note(Latency::Device, Duration::from_nanos(7));
        latencies.note(Latency::Stall, Duration::from_nanos(2));
        let line = "LatencySnapshot(device: 100 timed, p50 6.0ns, p99 6.0ns, max 7.0ns; \
                    stall: 1 timed, p50 2.0ns, p99 2.0ns, max 2.0ns)";
        assert_eq!(format!("{:?}", latencies.snapshot()), line);
        assert_eq!(format!("{:#?}", latencies.snapshot()), line);
    }
}
