//! The toll: a thread that takes much memory makes room before there is none.
//!
//! A thread that fills new pages as fast as it can uses up all frames as soon as they are free. Others, which take one now and then, find none as often as
//! it does, and wait for a write each time. So while single pages are read, and less memory is free than should be, a thread pays for every
//! [`EVERY`] pages that it took, if they are more than its share: it sends as many out. A reclaimer begins no write while enough are under way, so the
//! thread goes on at the pace at which pages go out, and what the background thread frees is left for the others. Linux holds back who dirties
//! pages by the same thought (`balance_dirty_pages`).
//!
//! A thread's share is an eighth of the pages that go through memory meanwhile: those that are read, and those that are freed by writes.
//!
//! The account is a thread's own. So it is no protocol, and a model or a simulation, where threads have none, goes on without tolls: who finds no
//! frame makes room ([`make_room`](super::make_room)).
//!
//! Cost: three words of the thread's own for a page that it takes, and for every 32 pages some words that others write.

use crate::counters::Counter;
use crate::engine::{Engine, Waiter};
use crate::latency::Latency;
use crate::reclaim::scan::{Reclaimer, reclaim};
use crate::sync::with_own_words;

/// Pages that a thread takes between two looks at its account, at least.
const EVERY: u64 = 32;
/// A thread's share is one in so many pages.
const SHARE: u64 = 8;
/// The most pages that a thread pays for at once. A huge page counts as many small ones, and pages may have been few for long.
const MOST_OWED: u64 = 512;

/// Notes that this thread took so many pages for a program's new bytes.
pub(crate) fn note_taken(engine: &Engine, pages: u32) {
    with_own_words(|words| Account(words).take(identity(engine), || flow(engine), u64::from(pages)));
}

/// Returns how many pages this thread owes, and settles its account.
pub(crate) fn owed(engine: &Engine) -> u64 {
    let owed = with_own_words(|words| Account(words).settle(identity(engine), || flow(engine)));
    owed.filter(|owed| *owed > 0 && is_due(engine)).unwrap_or(0)
}

/// Sends out as many pages as are owed, or begins to, as far as that can be done.
pub(crate) async fn pay(engine: &Engine, owed: u64, waiter: &mut Waiter<'_>) {
    engine.counters.count(Counter::AllocationToll);
    let start = engine.machine.clock.now();
    reclaim(engine, owed, Reclaimer::Direct, waiter).await;
    // The stalls by which the watermarks are raised are those of accesses that find no frame: this one need not.
    engine.latencies.note(Latency::Stall, engine.machine.clock.since(start));
}

/// Pages that went through memory so far.
fn flow(engine: &Engine) -> u64 {
    engine.transfers.freed_pages() + engine.transfers.read_pages()
}

/// Whose account it is: a thread may use several engines in turn.
fn identity(engine: &Engine) -> u64 {
    std::ptr::from_ref(engine).addr() as u64
}

/// Whether memory is short, others read, and room can be made.
#[cold]
fn is_due(engine: &Engine) -> bool {
    engine.swap.goes_out_gently()
        && !engine.swap.is_failing()
        && !engine.swap.is_silent()
        && engine.frames.available_frames() < engine.frames.watermarks().high_frames
}

/// What a thread has taken of an engine: the engine, the pages, and the flow when it began to count.
struct Account<'w>(&'w mut [u64; 3]);

impl Account<'_> {
    #[inline]
    fn take(self, engine: u64, flow: impl FnOnce() -> u64, pages: u64) {
        let [of, taken, since] = self.0;
        if *of != engine {
            (*of, *taken, *since) = (engine, 0, flow());
        }
        *taken += pages;
    }

    #[inline]
    fn settle(self, engine: u64, flow: impl FnOnce() -> u64) -> u64 {
        let [of, taken, since] = self.0;
        if *of != engine || *taken < EVERY {
            return 0;
        }
        let flow = flow();
        let share = flow.saturating_sub(*since) / SHARE;
        let owed = if *taken > share { (*taken).min(MOST_OWED) } else { 0 };
        (*taken, *since) = (0, flow);
        owed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_takes_more_than_its_share_owes_what_it_took() {
        let mut words = [0; 3];
        let take = |words: &mut _, flow, pages| Account(words).take(7, || flow, pages);
        take(&mut words, 1000, EVERY - 1);
        assert_eq!(Account(&mut words).settle(7, || 1000), 0, "few pages are free");
        take(&mut words, 1000, 1);
        assert_eq!(Account(&mut words).settle(8, || 1000), 0, "nothing is owed to another engine");
        assert_eq!(Account(&mut words).settle(7, || 1000 + SHARE * (EVERY - 1)), EVERY);
        assert_eq!(Account(&mut words).settle(7, || 2000), 0, "it was settled");
        take(&mut words, 2000, EVERY);
        assert_eq!(Account(&mut words).settle(7, || 5000), 0, "others took much more");
        take(&mut words, 5000, 1 << 20);
        assert_eq!(Account(&mut words).settle(7, || 6000), MOST_OWED);
        Account(&mut words).take(8, || 1, EVERY);
        assert_eq!(Account(&mut words).settle(8, || 1), EVERY, "another engine's account begins anew");
    }
}
