//! The throttle: a thread that takes much memory makes room before there is none.
//!
//! A thread that fills new pages as fast as it can uses up all frames as soon as they are free. Other threads
//! take a frame only now and then. But each time, they are as likely to find none as that thread is, and then
//! they wait for a write. So while single pages are read and memory is short, a thread that takes more than
//! its share is throttled: for every 32 pages that it took for new bytes, it sends 32 out. A reclaimer begins
//! no write while enough are under way. So the thread continues at the pace at which pages go out, and the
//! background thread frees frames for the others. Linux throttles threads that dirty pages for the same
//! reason (`balance_dirty_pages`).
//!
//! A thread's share is an eighth of the pages that go out meanwhile. If more than eight threads take equally
//! much, none is throttled. Pages whose memory is at the other side of a translation are not counted.
//!
//! Each thread has its own account, so this is no protocol. Threads of a model or a simulation have no
//! account: they only make room when they find no frame ([`make_room`](super::make_room)).
//!
//! Cost: three words of the thread's own for each page that it takes, and some words that other threads
//! write for every 32 pages.

use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::latency::Latency;
use crate::reclaim::scan::{Reclaimer, reclaim};
use crate::sync::with_own_words;

/// The fewest pages that a thread takes between two looks at its account, and the pages that a throttle
/// sends out.
const EVERY: u64 = 32;
/// A thread's share is one in so many pages.
const SHARE: u64 = 8;

/// Forgets this thread's account: a new engine may lie at the address of the one that the account is for.
pub(super) fn forget_account() {
    with_own_words(|words| *words = [0; 3]);
}

/// Notes that this thread took `pages` pages for a program's new bytes.
#[inline]
pub(crate) fn note_taken(engine: &Engine, pages: u32) {
    with_own_words(|words| Account(words).take(identity(engine), u64::from(pages)));
}

/// Returns whether this thread is throttled, and settles its account.
#[inline]
pub(crate) fn must_throttle(engine: &Engine) -> bool {
    let gone = || is_due(engine).then(|| pages_gone(engine));
    with_own_words(|words| Account(words).settle(identity(engine), gone)).unwrap_or(false)
}

/// Sends pages out, or begins to, as far as possible. This takes nothing off the access's own time limit.
pub(crate) async fn throttle(engine: &Engine, waiter: &Waiter<'_>) {
    engine.counters.count(Counter::AllocationThrottle);
    let start = engine.machine.clock.now();
    reclaim(engine, EVERY, Reclaimer::Direct, &mut waiter.anew()).await;
    // This is no stall that raises the watermarks: only accesses that found no frame count there.
    engine.latencies.note(Latency::Stall, engine.machine.clock.since(start));
}

/// Returns the pages that have gone out so far, to any place.
fn pages_gone(engine: &Engine) -> u64 {
    [Counter::StealDirect, Counter::StealBackground].map(|counter| engine.counters.get(counter)).iter().sum()
}

/// Returns the number that stands for the engine in an account. A thread may use several engines.
fn identity(engine: &Engine) -> u64 {
    std::ptr::from_ref(engine).addr() as u64
}

/// Returns whether single pages are read, memory is short, and room can be made.
#[cold]
fn is_due(engine: &Engine) -> bool {
    engine.swap.goes_out_gently()
        && engine.frames.available_frames() + engine.coming_pages() < engine.frames.watermarks().low_frames
        && !engine.swap.is_failing()
        && !engine.swap.slots.is_full()
}

/// A thread's account: the engine, the pages taken, and 1 more than the pages that had gone out when
/// counting began, or 0 if no throttle was due then.
struct Account<'w>(&'w mut [u64; 3]);

impl Account<'_> {
    #[inline]
    fn take(self, engine: u64, pages: u64) {
        let [of, taken, since] = self.0;
        if *of != engine {
            (*of, *taken, *since) = (engine, 0, 0);
        }
        *taken += pages;
    }

    #[inline]
    fn settle(self, engine: u64, gone: impl FnOnce() -> Option<u64>) -> bool {
        let [of, taken, since] = self.0;
        if *of != engine || *taken < EVERY {
            return false;
        }
        let taken = std::mem::take(taken);
        let now = gone().map_or(0, |gone| gone + 1);
        let before = std::mem::replace(since, now);
        before > 0 && now > 0 && taken > now.saturating_sub(before) / SHARE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_takes_more_than_its_share_is_throttled() {
        let mut words = [0; 3];
        let take = |words: &mut _, pages| Account(words).take(7, pages);
        let settle = |words: &mut _, gone| Account(words).settle(7, || gone);
        take(&mut words, EVERY - 1);
        assert!(!settle(&mut words, Some(0)) && words[1] > 0, "few pages are not looked at");
        take(&mut words, 1);
        assert!(!Account(&mut words).settle(8, || Some(0)), "nothing is owed to another engine");
        assert!(!settle(&mut words, Some(0)), "it is not known what went out meanwhile");
        take(&mut words, EVERY);
        assert!(settle(&mut words, Some(SHARE * (EVERY - 1))));
        assert!(!settle(&mut words, Some(1000)), "it was settled");
        take(&mut words, EVERY);
        assert!(!settle(&mut words, Some(1000)), "others took much more");
        take(&mut words, 512);
        assert!(settle(&mut words, Some(1512)), "a huge page");
        take(&mut words, EVERY);
        assert!(!settle(&mut words, None), "memory is not short");
        take(&mut words, EVERY);
        assert!(!settle(&mut words, Some(1512)));
        take(&mut words, EVERY);
        assert!(settle(&mut words, Some(1512)));
        Account(&mut words).take(8, EVERY);
        assert!(!Account(&mut words).settle(8, || Some(9)), "another engine's account begins anew");
    }
}
