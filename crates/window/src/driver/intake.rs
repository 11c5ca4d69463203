//! How the driver takes in changes of the target's mappings: forks, and memory that is dropped, unmapped or
//! moved.

use std::ops::Range;
use std::time::{Duration, Instant};

use octavo::ErrorKind;
use octavo::translation::TranslatedSpace;
use octavo_platform::userfaultfd::Event;

use super::Driver;
use crate::driver::listener::Listener;
use crate::reach::Reach;

/// How long a change waits for room, or for a pin to go.
const PATIENCE: Duration = Duration::from_secs(2);

impl<R: Reach, L: Listener> Driver<'_, R, L> {
    /// Takes in a change that was read, and the changes that have waited for it. If the change must wait
    /// itself, this only queues it.
    pub(super) fn take_change(&mut self, change: Event) {
        let began = Instant::now();
        self.served.changes += 1;
        self.beforehand = None;
        let is_mapped = |range: &Range<u64>| self.listener.is_mapped(range.start, range.end);
        if let Some(change) = self.changes.told(change, is_mapped) {
            self.take_in(change);
            self.take_waiting();
        }
        self.served.changing += began.elapsed();
    }

    /// Takes a change in.
    pub(super) fn take_in(&mut self, change: Event) {
        let result = match change {
            Event::Fork(child) => {
                self.listener.forked(child);
                // The fork may have taken long, and no fault was served meanwhile.
                self.served_at = Instant::now();
                Ok(())
            }
            Event::Remove { start, end } => {
                self.listener.changed(start, end);
                self.insist(|space| space.forget(start, end - start))
            }
            Event::Unmap { start, end } => {
                self.listener.changed(start, end);
                let forgotten = self.insist(|space| space.forget_mapping(start, end - start));
                self.listener.unmapped(start, end);
                forgotten
            }
            Event::Remap { from, to, len } => {
                self.window.move_dropped(from..from + len, to);
                self.listener.moved(from, len, to);
                self.space.relocate(from, len, to)
            }
            Event::Fault { .. } => unreachable!("it was served"),
        };
        if let Err(error) = result {
            self.listener.lost(error);
        }
    }

    /// Takes in the changes that have waited for others.
    fn take_waiting(&mut self) {
        while let Some(change) = self.changes.next(|range| self.listener.is_mapped(range.start, range.end)) {
            self.take_in(change);
        }
    }

    /// Settles all changes that the driver has taken, unless some still wait. While any change waits, all of
    /// their ranges stay unsettled.
    pub(super) fn settle(&mut self) {
        self.take_waiting();
        if self.changes.are_settled() && !self.window.gate().is_settled() {
            self.window.gate().settle();
        }
    }

    /// Changes the space. If there is no room, or a block is pinned for a moment, this retries for
    /// [`PATIENCE`].
    fn insist(&self, change: impl Fn(&TranslatedSpace) -> octavo::Result<()>) -> octavo::Result<()> {
        let began = Instant::now();
        loop {
            match change(self.space) {
                Err(error)
                    if matches!(error.kind(), ErrorKind::Busy | ErrorKind::OutOfMemory)
                        && began.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                done => return done,
            }
        }
    }
}
