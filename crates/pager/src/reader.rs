//! Reads what processes tell, in place of drivers that are busy.
//!
//! A driver reads at each of its turns. A turn may take long: a fork may copy pages, and reclaim may wait for the mover of another
//! process. Until its event is read, a thread that unmaps, drops or forks stands still, and the kernel lets no page of its process go.
//! So one thread comes by every few milliseconds. Where a driver neither sleeps nor has begun a turn since, this thread reads, and
//! the driver takes in later what was read. While a batch of pages is on its way, nothing can be read: it is not waited for, as others are
//! to be looked after, and the thread that moves it reads by itself where it is refused.
//!
//! Costs: two loads for each driver and look. A lock and a system call for each that is busy. The thread is there while processes are
//! managed.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use octavo_window::{Bell, Target, Window};

use crate::priority;

/// Two looks take less than 10 ms.
const BETWEEN_LOOKS: Duration = Duration::from_millis(3);

/// The thread, and the drivers that it looks after.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reader(Arc<Mutex<Drivers>>);

#[derive(Debug, Default)]
struct Drivers {
    all: Vec<Driver>,
    /// The thread is there.
    is_running: bool,
}

#[derive(Debug)]
struct Driver {
    window: Weak<Window<Target>>,
    bell: Arc<Bell>,
    /// The turn in which it was at the last look, unless it slept.
    turn: Option<u32>,
}

impl Driver {
    /// Returns whether it is in the same turn as at the last look.
    fn is_late(&mut self) -> bool {
        let turn = self.bell.turn();
        let before = std::mem::replace(&mut self.turn, turn);
        turn.is_some() && before == turn
    }
}

impl Reader {
    /// Looks after a driver from here on, until its window is gone.
    ///
    /// # Errors
    /// The kernel's, where no thread can be started.
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
        drivers.all.push(Driver { window: Arc::downgrade(window), bell: Arc::clone(bell), turn: None });
        Ok(())
    }

    /// Reads for the drivers that are late. Returns false where none is left, and the thread is to end.
    fn look(&self) -> bool {
        let late: Vec<_> = {
            let mut drivers = self.0.lock().expect("nobody panics here");
            drivers.all.retain(|driver| driver.window.strong_count() > 0);
            drivers.is_running = !drivers.all.is_empty();
            if !drivers.is_running {
                return false;
            }
            let late = drivers.all.iter_mut().filter_map(|driver| driver.is_late().then_some(&driver.window));
            late.filter_map(Weak::upgrade).collect()
        };
        late.iter().for_each(|window| window.read_for_driver());
        true
    }
}
