//! Samples counters (pages out, pages in) during the work. A device moves nothing at first, while memory is
//! free. So its rate counts from the first page that it moves.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::data::PAGE_BYTES;
use crate::worker::now_ns;

const INTERVAL: Duration = Duration::from_millis(20);

/// Pages that went to the device and came from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTraffic {
    pub out_pages: u64,
    pub in_pages: u64,
    /// Pages that came back from Octavo's compressed pool, in front of the device.
    pub pool_in_pages: u64,
}

/// The samples of a phase.
#[derive(Clone, Debug, Default)]
pub struct PhaseSamples {
    looks: Vec<(u64, DeviceTraffic)>,
}

/// Runs `work`, and calls `read` before it, during it and after it.
pub fn during<T>(read: impl Fn() -> DeviceTraffic + Sync, work: impl FnOnce() -> T) -> (T, PhaseSamples) {
    let look = || (now_ns(), read());
    let look = &look;
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let mut looks = vec![look()];
        let looker = thread::Builder::new().name("monitor".into()).spawn_scoped(scope, move || {
            let mut looks = Vec::new();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                looks.push(look());
            }
            looks
        });
        let result = work();
        drop(stop);
        // If the thread cannot be started, the first and the last sample have to suffice.
        looks.extend(looker.ok().and_then(|looker| looker.join().ok()).unwrap_or_default());
        looks.push(look());
        (result, PhaseSamples { looks })
    })
}

impl PhaseSamples {
    #[cfg(test)]
    pub fn of(first: DeviceTraffic, last: DeviceTraffic) -> Self {
        Self { looks: vec![(0, first), (1, last)] }
    }

    /// Returns the pages moved in total.
    pub fn total(&self) -> DeviceTraffic {
        let (Some((_, first)), Some((_, last))) = (self.looks.first(), self.looks.last()) else {
            return DeviceTraffic::default();
        };
        DeviceTraffic {
            out_pages: last.out_pages.wrapping_sub(first.out_pages),
            in_pages: last.in_pages.wrapping_sub(first.in_pages),
            pool_in_pages: last.pool_in_pages.wrapping_sub(first.pool_in_pages),
        }
    }

    /// Returns the bytes a second in one direction, from the first movement to the last, or `None` if nothing
    /// moved.
    pub fn steady_bytes_per_s(&self, pages: fn(&DeviceTraffic) -> u64) -> Option<f64> {
        let first = self.looks.windows(2).position(|pair| pages(&pair[0].1) != pages(&pair[1].1))?;
        let last = self.looks.windows(2).rposition(|pair| pages(&pair[0].1) != pages(&pair[1].1))? + 1;
        // The first interval with movement is left out if there are others, since the device moved pages in
        // only a part of it.
        let first = if last > first + 3 { first + 1 } else { first };
        let ((from_ns, from), (to_ns, to)) = (&self.looks[first], &self.looks[last]);
        let moved = pages(to).wrapping_sub(pages(from)) * PAGE_BYTES as u64;
        Some(moved as f64 * 1e9 / to_ns.saturating_sub(*from_ns).max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn out(pages: &DeviceTraffic) -> u64 {
        pages.out_pages
    }

    #[test]
    fn the_steady_rate_leaves_out_the_time_before_and_after() {
        let at =
            |ms: u64, out_pages| (ms * 1_000_000, DeviceTraffic { out_pages, ..DeviceTraffic::default() });
        let looks = vec![
            at(0, 5),
            at(1000, 5),
            at(1100, 55),
            at(1200, 155),
            at(1300, 255),
            at(1400, 355),
            at(9000, 355),
        ];
        let seen = PhaseSamples { looks };
        assert_eq!(seen.total().out_pages, 350);
        let rate = seen.steady_bytes_per_s(out).unwrap();
        assert!((rate - 1000.0 * 4096.0).abs() < 1.0, "{rate}");
        assert_eq!(seen.steady_bytes_per_s(|traffic| traffic.in_pages), None);
    }

    #[test]
    fn work_is_looked_at_while_it_goes_on() {
        let pages = AtomicU64::new(0);
        let read = || DeviceTraffic { out_pages: pages.load(Ordering::Relaxed), ..DeviceTraffic::default() };
        let (answer, seen) = during(read, || {
            for _ in 0..10 {
                thread::sleep(INTERVAL);
                pages.fetch_add(7, Ordering::Relaxed);
            }
            3
        });
        assert_eq!((answer, seen.total().out_pages), (3, 70));
        assert!(seen.looks.len() > 4);
    }
}
