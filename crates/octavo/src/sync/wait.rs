//! Waiting for a word: a table of wakers by key, beside the words themselves.
//!
//! A word that may be waited for has a WAITERS bit. To wait: under the key's bucket lock, set the bit if the
//! word is still busy, and leave a waker. To wake: change the word first; whoever finds WAITERS in what it
//! replaced takes the bucket lock and wakes every waker of the key. The bit is set and the waker stored under
//! one lock, so a change either happens before (the bit is refused, no wait) or finds the bit and, behind the
//! lock, the waker. Nobody waits without being woken, and a change that nobody waits for takes no lock.
//!
//! A bucket has room for as many threads as will wait in it, so that waiting does not allocate. Only crowds of futures take
//! more: none may be told to try again, since its thread may be the one whose next poll everybody waits for.

use std::task::Waker;

use smallvec::SmallVec;

use crate::sizes::WAKER_BUCKETS as BUCKETS;
use crate::sync::Mutex;

const WAKERS: usize = 64;

/// Whether the caller will be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The waker will be called once.
    Registered,
    /// There is nothing to wait for any more: look again.
    Retry,
}

#[derive(Debug)]
struct Waiter {
    key: usize,
    waker: Waker,
}

/// Wakers by key. A key is the address of the word waited for.
#[derive(Debug)]
pub(crate) struct WaitTable {
    buckets: Box<[Mutex<Vec<Waiter>>]>,
}

impl WaitTable {
    pub(crate) fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| Mutex::new(Vec::with_capacity(WAKERS))).collect() }
    }

    fn bucket(&self, key: usize) -> &Mutex<Vec<Waiter>> {
        // Words are 8 or 32 bytes apart: a multiplicative hash spreads either.
        &self.buckets[(key >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - 16) & (BUCKETS - 1)]
    }

    /// Leaves `waker` for `key` if `announce`, which sets the word's WAITERS bit, says there is something to
    /// wait for.
    pub(crate) fn register(&self, key: usize, waker: &Waker, announce: impl FnOnce() -> bool) -> Waiting {
        let mut waiters = self.bucket(key).lock();
        let known = waiters.iter().any(|waiter| waiter.key == key && waiter.waker.will_wake(waker));
        if !announce() {
            return Waiting::Retry;
        }
        if !known {
            waiters.push(Waiter { key, waker: waker.clone() });
        }
        Waiting::Registered
    }

    /// Wakes everyone who waits for `key`. Called after the word was changed and WAITERS found in it.
    pub(crate) fn wake(&self, key: usize) {
        loop {
            // As many as fit, so that nothing is allocated; outside the lock, as a waker may do anything.
            let mut woken = SmallVec::<[Waker; 8]>::new();
            let mut waiters = self.bucket(key).lock();
            while woken.len() < woken.inline_size()
                && let Some(at) = waiters.iter().position(|waiter| waiter.key == key)
            {
                woken.push(waiters.swap_remove(at).waker);
            }
            drop(waiters);
            if woken.is_empty() {
                return;
            }
            woken.into_iter().for_each(Waker::wake);
        }
    }
}

/// The key of a word: its address.
pub(crate) fn key_of<T>(word: &T) -> usize {
    std::ptr::from_ref(word).addr()
}
