//! Waiting for a word: a table of wakers by key, beside the words themselves.
//!
//! A word that threads may wait for has a WAITERS bit. A waiter takes the lock of the key's bucket. It sets
//! the bit if the word is still busy, and leaves a waker. A thread that changes the word does so first. If it
//! finds WAITERS in the old value, it then takes the bucket's lock and wakes every waker of the key. The
//! waiter sets the bit and stores the waker under one lock. So a change either comes before (the bit is
//! refused, and there is no wait), or finds the bit and, behind the lock, the waker. Every waiter is woken,
//! and a change without waiters takes no lock.
//!
//! A bucket has room for as many threads as will wait in it, so a wait does not allocate. Only a crowd of
//! futures takes more room. A future cannot be told to try again, since all others may wait for the next poll
//! of its thread.

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
    /// The wait is over already: look again.
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
        // Words are 8 or 32 bytes apart: a multiplicative hash spreads either.
        &self.buckets[(key >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - 16) & (BUCKETS - 1)]
    }

    /// Leaves `waker` for `key` if `announce`, which sets the word's WAITERS bit, says that the word is busy.
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

    /// Wakes all waiters of `key`. Called by a thread that changed the word and found WAITERS in it.
    pub(crate) fn wake(&self, key: usize) {
        loop {
            // Takes as many as fit, so that no allocation is needed. Wakes them outside the lock, since a
            // waker may do anything.
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

/// Returns the key of a word: its address.
pub(crate) fn key_of<T>(word: &T) -> usize {
    face::stable_address(std::ptr::from_ref(word).addr())
}
