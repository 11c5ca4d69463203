//! Work of several threads on one manager. The threads know what they must find.
//!
//! | module | what |
//! |---|---|
//! | `device` | a device that takes virtual time, fails and stops answering |
//! | `lanes` | a whole manager: lanes of bytes under reclaim, and mappings that come and go |
//! | `family` | a program at the other side of a translation, which forks |
//! | `files` | a file whose pages go out and are synced, while its end moves |
//! | `guards` | pages of a guarded region, lent while they go out and are brought together |
//! | `other_side` | the other side of that translation |
//! | `pins` | pages that are written, also whole, while they are pinned |
//! | `pairs` | two or three threads that meet once |
//! | `small` | one page, the huge zero page, the first page of a space, and two ranges that take each other's table nodes |

mod device;
pub(crate) mod family;
pub(crate) mod files;
pub(crate) mod guards;
pub(crate) mod lanes;
mod other_side;
pub(crate) mod pairs;
pub(crate) mod pins;
pub(crate) mod small;

use std::time::Duration;

use octavo_sim::thread;

use crate::Workload;

use super::octavo::{Counter, Error, ErrorKind, Manager, Result};

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

/// Runs a workload with a seed.
pub(crate) fn run(workload: Workload, seed: u64) {
    match workload {
        Workload::OnePage => small::one_page(seed),
        Workload::ZeroPage => small::zero_page(seed),
        Workload::FirstPage => small::first_page(seed),
        Workload::Nodes => small::nodes(seed),
        Workload::Family => family::run(seed),
        Workload::Files => files::run(seed),
        Workload::Guards => guards::run(seed),
        Workload::Pins => pins::run(seed),
        Workload::Lanes => lanes::run(seed, lanes::LaneLoad::of_seed(seed)),
    }
}

fn named<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    thread::Builder::new().name(name.into()).spawn(work).expect("memory for a stack")
}

/// Returns whether an error is temporary and loses nothing.
fn is_passing(error: &Error, device_fails: bool) -> bool {
    match error.kind() {
        // A schedule may let any thread wait for any time, including the device's thread.
        ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::TimedOut => true,
        ErrorKind::SwapRead | ErrorKind::SwapWrite | ErrorKind::SwapFull => device_fails,
        ErrorKind::FileRead | ErrorKind::FileWrite => device_fails,
        _ => false,
    }
}

/// Tries again if there was no room or no answer, or if the device failed. After such an error, no data is
/// lost.
fn insist<T>(device_fails: bool, mut operation: impl FnMut() -> Result<T>) -> T {
    let mut last = None;
    for attempt in 0..2000 {
        match operation() {
            Ok(value) => return value,
            Err(error) => {
                assert!(is_passing(&error, device_fails), "unexpected: {:?}: {error}", error.kind());
                last = Some(error);
                thread::sleep(Duration::from_micros(20 << (attempt / 100).min(6)));
            }
        }
    }
    panic!("no success after 2000 attempts: {last:?}");
}

/// Checks a manager whose spaces are gone, and whose huge zero page is freed when nobody uses it.
fn assert_nothing_is_left(manager: &Manager) {
    assert_only_zero_pages_are_left(manager, false);
}

/// Checks a manager whose spaces are gone. The small zero page stays. If `keeps_huge_zero` is true, the huge
/// zero page stays as well. Deferred releases finish without a call.
fn assert_only_zero_pages_are_left(manager: &Manager, keeps_huge_zero: bool) {
    // No call has asked for slots yet. An unused slot must become free when its write ends, without a
    // reclaim.
    let has_slots = || manager.stats().expect("not a forked child").swap_slots > 0;
    let looks = (0..200).take_while(|_| has_slots()).map(|_| thread::sleep(Duration::from_millis(1))).count();
    assert!(looks < 200, "slots are in use by themselves: {:?}", manager.stats());
    let kept = 1 + 512 * i64::from(keeps_huge_zero);
    let mut owned = 0;
    for _ in 0..200 {
        // The huge zero page stays until somebody needs room.
        manager.reclaim(1).expect("reclaim gives no error of a device");
        let (stats, counters) = (manager.stats().expect("not a forked child"), manager.counters());
        let online = (counters.get(Counter::ChunkOnline) - counters.get(Counter::ChunkOffline)) * 512;
        owned = online as i64 - stats.free_frames as i64 - (stats.pool_bytes / PAGE) as i64;
        let left = (stats.swap_slots, stats.table_nodes, stats.lru_pages, stats.huge_zero_users);
        if left == (0, 0, (0, 0), 0) && owned == kept {
            return manager.validate();
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("{owned} frames are in use: {:?}", manager.stats());
}
