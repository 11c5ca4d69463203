//! Pages that transfers between files and spaces have pinned: one word for a manager.
//!
//! A pinned page cannot go out. Where many threads read and write files at once, their pins together could
//! hold all memory, and each would be told that nothing is left. So they share a part of the budget, and a
//! transfer that finds it used waits until others have ended. Nobody waits who has pages pinned himself: all
//! that are pinned are the device's, and come back.
//!
//! The word: pages in the lower bits, and WAITERS on top, where somebody waits for fewer. Orderings: Relaxed,
//! as the pins themselves order the bytes, and the lock of the waiters' bucket orders what they see. Cost:
//! two read-modify-writes of one line for each group of pages that moves.

#[cfg(all(test, loom))]
mod loom;

use std::task::Poll;

use crate::engine::Engine;
use crate::sync::park::block_until;
use crate::sync::wait::{WaitTable, Waiting, key_of};
use crate::sync::{AtomicU32, Ordering};

const WAITERS: u32 = 1 << 31;
/// Transfers may have one page of so many pinned.
const SHARE: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct TransferPins(AtomicU32);

impl TransferPins {
    /// Counts so many pages, if there are then at most so many. A transfer that is alone gets all it wants.
    fn try_take(&self, pages: u32, most: u32) -> bool {
        let take = |seen: u32| fits(seen, pages, most).then_some(seen + pages);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Counts so many pages, as soon as others have given enough back.
    fn take(&self, pages: u32, most: u32, waits: &WaitTable) {
        let announce = || {
            let mark = |seen: u32| (!fits(seen, pages, most)).then_some(seen | WAITERS);
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, mark).is_ok()
        };
        block_until(|waker| {
            loop {
                if self.try_take(pages, most) {
                    return Poll::Ready(());
                }
                if waits.register(key_of(&self.0), waker, announce) == Waiting::Registered {
                    return Poll::Pending;
                }
            }
        });
    }

    fn give_back(&self, pages: u32, waits: &WaitTable) {
        let give = |seen: u32| Some((seen & !WAITERS) - pages);
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
        // Those who go on waiting say so again.
        if before.is_ok_and(|before| before & WAITERS != 0) {
            waits.wake(key_of(&self.0));
        }
    }
}

fn fits(seen: u32, pages: u32, most: u32) -> bool {
    let taken = seen & !WAITERS;
    taken == 0 || taken + pages <= most
}

impl Engine {
    /// Waits until a transfer may pin so many pages. The caller has none pinned, and gives them back.
    pub(crate) fn take_transfer_pins(&self, pages: u32) {
        self.transfer_pins.take(pages, self.most_transfer_pins(), &self.waits);
    }

    /// Takes them if they can be had now.
    pub(crate) fn try_take_transfer_pins(&self, pages: u32) -> bool {
        self.transfer_pins.try_take(pages, self.most_transfer_pins())
    }

    /// Gives back what was taken, once the pins are dropped.
    pub(crate) fn give_transfer_pins_back(&self, pages: u32) {
        self.transfer_pins.give_back(pages, &self.waits);
    }

    fn most_transfer_pins(&self) -> u32 {
        (self.budget.limit_pages() / SHARE).min(u64::from(WAITERS / 2)) as u32
    }
}
