//! Reads the events of processes whose drivers are busy.
//!
//! A driver reads at the start of each turn. A turn may take long: a fork may copy pages, and reclaim may
//! wait for the mover of another process. Until its event is read, a thread that unmaps, drops or forks is
//! blocked, and the kernel lets no page of its process go out. So one thread checks all drivers every few
//! milliseconds. If a driver has begun no turn since the last check, and is awake or has events to read, this
//! thread reads the events for the driver. (A woken driver still counts as asleep until it gets a CPU.) The
//! driver later takes in the events that were read. While a batch of pages of a process is in transit, its
//! events cannot be read. This thread does not wait for the batch, since it serves other drivers too. If the
//! kernel refuses the batch, the thread that moves it reads the events.
//!
//! Each check costs two loads for each driver, one system call that asks about the events of all drivers, and
//! a lock and a system call for each late driver. The thread exists while processes are managed.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use octavo_window::{Bell, Lateness, Target, Window};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::system::priority;

/// The time between two checks. Two such times are less than 10 ms.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

/// The thread, and the drivers for which it reads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader(Arc<Mutex<Drivers>>);

#[derive(Debug, Default)]
struct Drivers {
    all: Vec<ReadingDriver>,
    /// Whether the thread exists.
    is_running: bool,
}

#[derive(Debug)]
struct ReadingDriver {
    window: Weak<Window<Target>>,
    bell: Arc<Bell>,
    lateness: Lateness,
}

impl Reader {
    /// Reads for a driver from now on, until its window is dropped.
    ///
    /// # Errors
    /// Returns the kernel's error if no thread can be started.
    pub(crate) fn look_after(&self, window: &Arc<Window<Target>>, bell: &Arc<Bell>) -> std::io::Result<()> {
        let mut drivers = self.0.lock().expect("nobody panics here");
        if !drivers.is_running {
            let reader = self.clone();
            let thread = std::thread::Builder::new().name("octavo-read".into()).stack_size(128 << 10);
            thread.spawn(move || {
                priority::lower();
                while reader.look() {
                    std::thread::sleep(BETWEEN_LOOKS);
                }
            })?;
            drivers.is_running = true;
        }
        drivers.all.push(ReadingDriver {
            window: Arc::downgrade(window),
            bell: Arc::clone(bell),
            lateness: Lateness::default(),
        });
        Ok(())
    }

    /// Reads for the drivers that are late. Returns `false` if no driver is left, so that the thread ends.
    fn look(&self) -> bool {
        let late = {
            let mut drivers = self.0.lock().expect("nobody panics here");
            drivers.all.retain(|driver| driver.window.strong_count() > 0);
            drivers.is_running = !drivers.all.is_empty();
            if !drivers.is_running {
                return false;
            }
            let windows: Vec<_> = drivers.all.iter().map(|driver| driver.window.upgrade()).collect();
            let mut late = Vec::new();
            for ((driver, has_events), window) in
                drivers.all.iter_mut().zip(have_events(&windows)).zip(windows)
            {
                if driver.lateness.look(&driver.bell, has_events) {
                    late.extend(window);
                }
            }
            late
        };
        late.iter().for_each(|window| window.read_for_driver());
        true
    }
}

/// Asks the kernel for all windows at once whether events can be read.
fn have_events(windows: &[Option<Arc<Window<Target>>>]) -> Vec<bool> {
    let there = windows.iter().flatten().map(|window| window.reach().events());
    let mut polled: Vec<_> = there.map(|events| PollFd::new(events, PollFlags::IN)).collect();
    // After an error, nothing is known, and the next check asks again.
    let _ = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    let mut polled = polled.iter();
    let mut next = || polled.next().is_some_and(|events| !events.revents().is_empty());
    windows.iter().map(|window| window.is_some() && next()).collect()
}
