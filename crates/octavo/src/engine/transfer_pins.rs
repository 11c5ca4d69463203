//! Pages that transfers between files and spaces have pinned: one word for a manager, and a queue.
//!
//! A pinned page cannot go out. If many threads read and write files at once, their pins could hold all
//! memory, and each thread would be told that none is left. So transfers share a part of the budget, and a
//! transfer that finds it used up waits until others have ended. A transfer waits only while it has no pages
//! counted. So all counted pages belong to transfers that are not waiting, and come back. A transfer that has
//! some pages takes no more while others wait.
//!
//! The word: pages in the lower bits, and WAITERS on top while the queue has somebody. A thread sets WAITERS
//! under the queue's lock, in the step in which it finds that its pages do not fit. A thread that gives pages
//! back learns in one step whether there are WAITERS. It then takes the lock, and counts pages for those in
//! front as long as they fit. So no waiter is forgotten, each is woken once, and the first comes first.
//!
//! Orderings: Relaxed for the word, since the pins themselves order the bytes; Release and Acquire for the
//! grant. Lock: the queue, a leaf. Cost: two read-modify-writes of one line for each group of pages that
//! moves.

#[cfg(all(test, loom))]
mod loom;

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use crate::engine::Engine;
use crate::sync::park::block_until;
use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering};

const WAITERS: u32 = 1 << 31;
/// Transfers may pin this part of the budget.
const SHARE: u64 = 4;

#[derive(Debug, Default)]
pub(crate) struct TransferPins {
    word: AtomicU32,
    queue: Mutex<VecDeque<Waiter>>,
}

#[derive(Debug)]
struct Waiter {
    pages: u32,
    is_granted: Arc<AtomicBool>,
    waker: Waker,
}

impl TransferPins {
    /// Counts so many pages if there are then at most `most`, and if nobody waits.
    fn try_take(&self, pages: u32, most: u32) -> bool {
        let take = |seen: u32| (seen & WAITERS == 0 && fits(seen, pages, most)).then_some(seen + pages);
        self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    /// Counts so many pages as soon as others have given enough back.
    fn take(&self, pages: u32, most: u32) {
        if self.try_take(pages, most) {
            return;
        }
        let mut granted = None;
        block_until(|waker| {
            let is_granted = granted.get_or_insert_with(|| self.stand_in_line(pages, most, waker));
            if is_granted.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
        });
    }

    /// Joins the queue, or counts the pages at once if they fit by now. Returns a flag that is set once they
    /// are counted.
    fn stand_in_line(&self, pages: u32, most: u32, waker: &Waker) -> Arc<AtomicBool> {
        let mut queue = self.queue.lock();
        let is_alone = queue.is_empty();
        let step =
            |seen: u32| Some(if is_alone && fits(seen, pages, most) { seen + pages } else { seen | WAITERS });
        let before = self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or_default();
        let is_granted = Arc::new(AtomicBool::new(is_alone && fits(before, pages, most)));
        if !is_granted.load(Ordering::Relaxed) {
            queue.push_back(Waiter { pages, is_granted: Arc::clone(&is_granted), waker: waker.clone() });
        }
        is_granted
    }

    fn give_back(&self, pages: u32, most: u32) {
        let before = self.word.fetch_sub(pages, Ordering::Relaxed);
        if before & WAITERS != 0 {
            self.grant(most);
        }
    }

    /// Counts pages for the first in the queue, and wakes them.
    #[cold]
    fn grant(&self, most: u32) {
        let mut queue = self.queue.lock();
        while let Some(first) = queue.front() {
            let take = |seen: u32| fits(seen, first.pages, most).then_some(seen + first.pages);
            if self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
                return;
            }
            let first = queue.pop_front().expect("it was there");
            first.is_granted.store(true, Ordering::Release);
            first.waker.wake();
        }
        self.word.fetch_and(!WAITERS, Ordering::Relaxed);
    }
}

/// Returns whether so many pages may be added. A transfer that is alone gets all it wants.
fn fits(seen: u32, pages: u32, most: u32) -> bool {
    let taken = seen & !WAITERS;
    taken == 0 || taken + pages <= most
}

impl Engine {
    /// Waits until a transfer may pin so many pages. The caller has none pinned yet, and later gives these
    /// back.
    pub(crate) fn take_transfer_pins(&self, pages: u32) {
        self.transfer_pins.take(pages, self.most_transfer_pins());
    }

    /// Takes more pages for a transfer that has some, if they can be had now and nobody waits.
    pub(crate) fn try_take_transfer_pins(&self, pages: u32) -> bool {
        self.transfer_pins.try_take(pages, self.most_transfer_pins())
    }

    /// Gives back what was taken, once the pins are dropped.
    pub(crate) fn give_transfer_pins_back(&self, pages: u32) {
        self.transfer_pins.give_back(pages, self.most_transfer_pins());
    }

    /// Returns how many pages all transfers together may pin.
    pub(crate) fn most_transfer_pins(&self) -> u32 {
        (self.budget.limit_pages() / SHARE).min(u64::from(WAITERS / 2)) as u32
    }
}
