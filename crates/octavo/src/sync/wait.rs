//! Waiting for a word: a table of wakers by key. The words themselves are elsewhere.
//!
//! A word that threads may wait for has a WAITERS bit. A waiter takes the lock of the key's bucket. If the
//! word is still busy, the waiter sets the bit and leaves a waker. Another thread first changes the word. If
//! the old value had WAITERS, the thread then takes the bucket's lock and wakes every waker of the key. The
//! waiter sets the bit and leaves the waker under one lock. If the change comes before the bit, the waiter
//! finds the word no longer busy, and does not wait. If the change comes after, the changing thread finds the
//! bit, and under the lock the waker. So every waiter is woken, and a change without waiters takes no lock.
//!
//! A bucket has room for the threads that usually wait in it, so a wait does not allocate. Only many futures
//! at once take more room. A future cannot be asked to try again instead, since all other futures may wait
//! for the next poll of its thread.

use std::task::Waker;

use smallvec::SmallVec;

use crate::sizes::WAKER_BUCKETS as BUCKETS;
use crate::sync::{Mutex, face};

const WAKERS: usize = 64;

/// The outcome of [`WaitTable::register`]: whether the caller will be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The waker will be called once.
    Registered,
    /// The wait is already over: the caller reads the word again.
    Retry,
}

#[derive(Debug)]
struct RegisteredWaker {
    key: usize,
    waker: Waker,
}

/// Wakers by key. A key is the address of the word.
#[derive(Debug)]
pub(crate) struct WaitTable {
    buckets: Box<[Mutex<Vec<RegisteredWaker>>]>,
}

impl WaitTable {
    pub(crate) fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Mutex::new(Vec::with_capacity(WAKERS))).collect() }
    }

    fn bucket(&self, key: usize) -> &Mutex<Vec<RegisteredWaker>> {
        // Words are 8 or 32 bytes apart. A multiplicative hash spreads both kinds of words.
        &self.buckets[(key >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - 16) & (BUCKETS - 1)]
    }

    /// Calls `announce`, which sets the word's WAITERS bit if the word is busy. If so, leaves `waker` for
    /// `key`.
    pub(crate) fn register(&self, key: usize, waker: &Waker, announce: impl FnOnce() -> bool) -> Waiting {
        let mut waiters = self.bucket(key).lock();
        let known = waiters.iter().any(|waiter| waiter.key == key && waiter.waker.will_wake(waker));
        if !announce() {
            return Waiting::Retry;
        }
        if !known {
            waiters.push(RegisteredWaker { key, waker: waker.clone() });
        }
        Waiting::Registered
    }

    /// Wakes all waiters of `key`. Called by a thread that changed the word, if the old value had WAITERS.
    pub(crate) fn wake(&self, key: usize) {
        loop {
            // Takes only as many wakers as fit without an allocation. Calls them without the lock, since a
            // waker may do anything.
            let mut woken = SmallVec::<[Waker; 8]>::new();
            let mut waiters = self.bucket(key).lock();
            while woken.len() < woken.inline_size()
                && let Some(at) = waiters.iter().position(|waiter| waiter.key == key)
            {
                woken.push(waiters.swap_remove(at).waker);
            }
            drop(waiters);
            // Those who come later wait for the next change. A woken thread that waits again must not keep
            // this one here.
            let were_all = woken.len() < woken.inline_size();
            woken.into_iter().for_each(Waker::wake);
            if were_all {
                return;
            }
        }
    }
}

/// Returns the key of a word: its address.
pub(crate) fn key_of<T>(word: &T) -> usize {
    face::stable_address(std::ptr::from_ref(word).addr())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Weak};
    use std::task::Wake;

    use super::*;
    use crate::sync::Ordering;

    /// Waits again as soon as it is woken.
    struct Again {
        table: WaitTable,
        wakes: AtomicUsize,
        itself: Weak<Self>,
    }

    impl Wake for Again {
        fn wake(self: Arc<Self>) {
            assert!(self.wakes.fetch_add(1, Ordering::Relaxed) < 100, "the waker never gets away");
            let waker = Waker::from(self.itself.upgrade().unwrap());
            assert_eq!(self.table.register(8, &waker, || true), Waiting::Registered);
        }
    }

    #[test]
    fn a_waiter_that_waits_again_does_not_keep_the_thread_that_woke_it() {
        let again = Arc::new_cyclic(|itself| Again {
            table: WaitTable::new(),
            wakes: AtomicUsize::new(0),
            itself: Weak::clone(itself),
        });
        let _ = again.table.register(8, &Waker::from(Arc::clone(&again)), || true);
        again.table.wake(8);
        assert_eq!(again.wakes.load(Ordering::Relaxed), 1);
    }
}
