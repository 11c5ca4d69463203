//! Models of the latch: holders against each other, optimistic readers against a writer, and waiters against
//! releases. The latch and the table of waiters are the real ones. If a holder borrows the bytes, a cell of
//! the checker stands for the bytes. If a reader copies the bytes, relaxed words stand for them.

use std::task::Poll;

use super::*;
use crate::sync::park::block_until;
use crate::sync::wait::{WaitTable, Waiting, key_of};
use crate::sync::{Arc, bounded, fence, thread};
use ::loom::cell::UnsafeCell;

struct LatchedPage {
    latch: Latch,
    waits: WaitTable,
    bytes: UnsafeCell<u32>,
    /// Two words that a writer keeps equal.
    words: [AtomicU64; 2],
}

impl LatchedPage {
    fn new() -> Arc<Self> {
        let (latch, waits, bytes) = (Latch::default(), WaitTable::new(), UnsafeCell::new(0));
        Arc::new(Self { latch, waits, bytes, words: Default::default() })
    }

    /// Takes the latch as `access::guard` does for a page in memory.
    fn take(&self, hold: Hold) {
        block_until(|waker| match self.latch.try_take(hold, true) {
            Ok(()) => Poll::Ready(()),
            Err(_) => {
                let key = key_of(&self.latch);
                match self.waits.register(key, waker, || self.latch.announce_waiter(hold)) {
                    Waiting::Registered => Poll::Pending,
                    Waiting::Retry => {
                        waker.wake_by_ref();
                        Poll::Pending
                    }
                }
            }
        });
    }

    fn release(&self, hold: Hold) {
        if self.latch.release(hold) {
            self.waits.wake(key_of(&self.latch));
        }
    }

    fn write(&self) {
        self.take(Hold::Exclusive);
        self.bytes.with_mut(|_| ());
        self.release(Hold::Exclusive);
    }

    fn read(&self) {
        self.take(Hold::Shared);
        self.bytes.with(|_| ());
        self.release(Hold::Shared);
    }
}

/// Two writers and a reader. Each gets the latch in the end, and a writer always has it alone.
#[test]
fn loom_a_writer_is_alone_and_everybody_is_woken() {
    bounded(3, || {
        let page = LatchedPage::new();
        let others = [LatchedPage::write, LatchedPage::read].map(|work| {
            let page = Arc::clone(&page);
            thread::spawn(move || work(&page))
        });
        page.write();
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(page.latch.0.load(Ordering::Relaxed) & (VERSION_ONE - 1), 0, "it is free in the end");
    });
}

/// A writer downgrades, while a reader and another writer wait.
#[test]
fn loom_a_downgrade_lets_readers_in_and_loses_no_writer() {
    bounded(3, || {
        let page = LatchedPage::new();
        let others = [LatchedPage::write, LatchedPage::read].map(|work| {
            let page = Arc::clone(&page);
            thread::spawn(move || work(&page))
        });
        page.take(Hold::Exclusive);
        page.bytes.with_mut(|_| ());
        if page.latch.downgrade() {
            page.waits.wake(key_of(&page.latch));
        }
        page.bytes.with(|_| ());
        page.release(Hold::Shared);
        for other in others {
            other.join().unwrap();
        }
    });
}

/// A reader without the latch never accepts a torn copy.
#[test]
fn loom_an_optimistic_copy_that_validates_is_whole() {
    bounded(3, || {
        let page = LatchedPage::new();
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                for value in 1..3 {
                    page.latch.try_take(Hold::Exclusive, true).unwrap();
                    fence(Ordering::Release);
                    page.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
                    assert!(!page.latch.release(Hold::Exclusive));
                }
            })
        };
        if let Some(begun) = page.latch.begin_read() {
            let copy = [0, 1].map(|index: usize| page.words[index].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if page.latch.is_still(begun) {
                assert_eq!(copy[0], copy[1]);
            }
        }
        writer.join().unwrap();
    });
}
