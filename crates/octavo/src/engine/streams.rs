//! Finds faults of a space that follow each other, and plans which pages to read ahead of them.
//!
//! A *stream* is a run of faults at one stride: forwards, backwards, or every n pages. Its window starts
//! small, when the stride was seen twice (between neighbours, once). It grows after each window whose pages
//! were wanted. It shrinks if one of its pages found no room, or was evicted before it was wanted. Evicted
//! pages are then asked for again. Otherwise, the next window is planned when half of the last one is left,
//! so that a steady reader never waits.
//!
//! ```text
//!      used            read ahead, not used yet
//! ────────────────┼───────────────┬──────────────┼──► stride
//!               last            half            ahead
//! ```
//!
//! **Order beats stride.** If a reader in order finds some pages in memory, the other pages may look like a
//! stride. So if a fault continues several streams, it belongs to the one of the least stride. A few faults
//! of neighbours in a row turn a stream of a longer stride into one in order.
//!
//! **Waste shuts the window.** A stream counts the pages that were read for it, and those that a fault then
//! wanted. If less than three quarters were wanted, the stream starts again without a window. The counts also
//! go into the account of their stretch of addresses ([`Stretches`]) when the next window is planned, and
//! when another stream takes the place of this one. In a stretch that does not pay, a window starts only
//! after [`LONG_RUN`] faults in a row, and is never longer than the run. So short ordered bursts inside a
//! random pattern read nothing ahead, and a reader in order soon has its full windows back. A region that the
//! user calls sequential is exempt.
//!
//! From Linux: in `mm/readahead.c`, the marker page does what the half of a window does here, and
//! `try_context_readahead` uses the length of a run as the window if nothing else is known. In
//! `mm/swap_state.c`, `swapin_nr_pages` sizes the next window by the hits of the last one.
//!
//! Locking: one lock per space, a leaf. Faults only try to take it. A fault that finds it taken reads its own
//! page and nothing else. If that page had been read ahead, the fault counts it outside the lock, for the
//! stream that missed it.

use std::cmp::Reverse;

use crate::engine::stretches::{Stretches, pays};
use crate::region::AccessPattern;
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::units::PageNumber;

/// The streams followed at once in a space. So at most this many tasks can read it in order at the same time.
const STREAMS: usize = 16;
/// The first window, and the least one after shrinking, in pages.
const FIRST_WINDOW: u32 = 8;
/// The factor by which a window grows.
const GROWTH: u32 = 4;
/// After more than this many faults of neighbours in a row, a stream of a longer stride becomes one in order.
const IN_ORDER: u32 = 3;
/// After this many faults in a row, a stream keeps its stride.
const SETTLED: u32 = 3;
/// Faults in a row after which a window starts, in a stretch where readahead did not pay.
const LONG_RUN: u32 = 8;
/// The most wanted pages that are in no stream's count yet. Pages of `prefetch`, which no stream claims,
/// count too, so there is a bound.
const MOST_UNSEEN: u32 = 8192;
/// The farthest apart two faults of a stream may be, in pages.
const MAX_STRIDE: u64 = 64;

/// How a fault found its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// Only on a device.
    None,
    /// Still on its way out.
    Cached,
    /// A read ahead had brought it, or was about to.
    ReadAhead,
}

/// Pages to be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadaheadWindow {
    pub(crate) first: PageNumber,
    pub(crate) count: u32,
    pub(crate) stride: i64,
    /// The place of its stream, and when the stream began.
    stream: (usize, u64),
}

impl ReadaheadWindow {
    /// The pages, in the order in which they will be wanted.
    pub(crate) fn pages(self) -> impl Iterator<Item = PageNumber> {
        (0..i64::from(self.count)).map_while(move |index| {
            let page = (self.first.0 as i64).checked_add(index * self.stride)?;
            (page >= 0).then_some(PageNumber(page as u64))
        })
    }

    /// The page after the first `pages` pages of the window.
    fn after(self, pages: u32) -> u64 {
        self.first.0.wrapping_add_signed(self.stride * i64::from(pages))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    /// 0 if only one fault has been seen.
    stride: i64,
    /// Faults in a row at this stride.
    run: u32,
    /// The window in pages. 0 if nothing is read ahead.
    window: u32,
    /// Pages that were read ahead and are in no account yet (`read`), and those that a fault wanted (`used`).
    read: u32,
    used: u32,
    /// The first page that has not been asked for.
    ahead: u64,
    began_at: u64,
    used_at: u64,
}

impl Stream {
    /// How many strides `page` lies beyond the last fault.
    fn steps_to(&self, page: u64) -> Option<i64> {
        let distance = page.wrapping_sub(self.last) as i64;
        (self.stride != 0 && distance % self.stride == 0).then(|| distance / self.stride)
    }

    /// How many pages beyond `page` have been asked for.
    fn left_after(&self, page: u64) -> i64 {
        (self.ahead.wrapping_sub(page) as i64) / self.stride - 1
    }

    fn continues_at(&self, page: u64) -> bool {
        // While the stride may still change, only the very next page continues it. Otherwise, a reader of
        // twice the stride would never get a stream of its own.
        let most = if self.may_turn() { 1 } else { i64::from(self.window).max(1) + 1 };
        self.steps_to(page).is_some_and(|steps| steps > 0 && steps <= most)
    }
}

/// Whether the pages that a stream read ahead and has passed were wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// There were no such pages.
    Unknown,
    Wanted,
    Waste,
}

/// Counts faults in a row, each at the neighbour of the one before, in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct Order {
    last: u64,
    step: i64,
    faults: u32,
}

impl Order {
    fn note(&mut self, page: u64) {
        let step = page.wrapping_sub(self.last) as i64;
        self.faults = match step {
            _ if step.abs() != 1 => 1,
            _ if step == self.step => self.faults.saturating_add(1),
            _ => 2,
        };
        (self.last, self.step) = (page, step);
    }
}

#[derive(Debug, Default)]
struct Followed {
    order: Order,
    streams: [Stream; STREAMS],
    stretches: Stretches,
    faults: u64,
}

/// The streams of a space.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Boxed, because spaces are moved while they are made, and stacks may be small.
    state: Mutex<Box<Followed>>,
    /// Pages that were read ahead and wanted by faults that found the lock taken.
    unseen: AtomicU32,
}

impl Streams {
    /// Called for a fault that wants a page that went out. Returns the pages to read ahead now, at most
    /// `most`.
    pub(crate) fn on_fault(
        &self,
        page: PageNumber,
        hit: Hit,
        pattern: AccessPattern,
        most: u32,
    ) -> Option<ReadaheadWindow> {
        if pattern == AccessPattern::Random || most == 0 {
            return None;
        }
        let Some(mut state) = self.state.try_lock() else {
            // Relaxed: the count orders nothing.
            if hit == Hit::ReadAhead && self.unseen.load(Ordering::Relaxed) < MOST_UNSEEN {
                self.unseen.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        };
        let at = state.follow(page.0, hit, pattern)?;
        let Followed { streams, stretches, .. } = &mut **state;
        let stream = &mut streams[at];
        if stream.read > 0 {
            stream.claim(page.0, &self.unseen);
        }
        let window = stream.plan(page.0, hit, pattern, most, stretches)?;
        Some(ReadaheadWindow { stream: (at, stream.began_at), ..window })
    }

    /// Returns whether the fault at `page` is of a reader in order, whose pages are read ahead.
    pub(crate) fn is_in_order(&self, page: PageNumber) -> bool {
        self.state.try_lock().is_some_and(|state| state.in_order_at(page.0).is_some())
    }

    /// Notes that the fault of a reader in order at `page` has also shown the next `pages` pages. They
    /// count as wanted.
    pub(crate) fn note_shown(&self, page: PageNumber, pages: u32) {
        if let Some(mut state) = self.state.try_lock()
            && let Some(at) = state.in_order_at(page.0)
        {
            let last = page.0 + u64::from(pages);
            let stream = &mut state.streams[at];
            stream.last = last;
            stream.run = stream.run.saturating_add(pages);
            stream.used += pages;
            if state.order.last == page.0 {
                state.order.last = last;
            }
        }
    }

    /// Notes that the first `reached` pages of the window were looked at. Of these, `pages` are being read.
    /// The others were in memory.
    pub(crate) fn note_read(&self, window: ReadaheadWindow, reached: u32, pages: u32) {
        if let Some(mut state) = self.state.try_lock() {
            let (at, began_at) = window.stream;
            let stream = &mut state.streams[at];
            // Another stream may have taken its place.
            if stream.began_at == began_at {
                stream.read += pages;
                if reached < window.count && stream.ahead == window.after(window.count) {
                    stream.cut(window.after(reached));
                }
            }
        }
    }
}

impl Followed {
    /// Returns the stream in order whose last fault was at `page`, if it has a window.
    fn in_order_at(&self, page: u64) -> Option<usize> {
        self.streams.iter().position(|stream| stream.last == page && stream.stride == 1 && stream.window > 0)
    }

    /// Returns the index of the stream that the fault belongs to, or begins. Returns `None`, and changes
    /// nothing, if a stream is at this page already: another thread wanted the page too, or a page that was
    /// wanted alone went out and came back.
    fn follow(&mut self, page: u64, hit: Hit, pattern: AccessPattern) -> Option<usize> {
        let streams = &mut self.streams;
        // Take the stream of the least stride, because a reader in order meets the pages of all strides.
        // Among these, take the nearest, because blocks of several readers may lie within each other's
        // windows. If two are at the same page, the reader is in the one that was used last.
        let continuing = (0..STREAMS).filter(|&at| streams[at].used_at > 0 && streams[at].continues_at(page));
        let found = continuing.min_by_key(|&at| {
            let Stream { stride, last, used_at, .. } = streams[at];
            (stride.unsigned_abs(), last.abs_diff(page), Reverse(used_at))
        });
        // But a reader may come to the page where another ended, or turn round at its own last page after
        // that page went out.
        let before = found.map_or(0, |at| streams[at].used_at);
        let is_here = |stream: &Stream| stream.used_at > before && stream.last == page;
        if streams.iter().any(|stream| is_here(stream) && (hit != Hit::None || stream.run == 1)) {
            return None;
        }
        self.faults += 1;
        self.order.note(page);
        let at = if let Some(at) = found
            && streams[at].stride.abs() > 1
            && self.order.faults > IN_ORDER
        {
            // What looked like a stride was a reader in order, some of whose pages were in memory.
            let Stream { last, read, used, .. } = streams[at];
            self.stretches.note(last, read, used + u32::from(hit == Hit::ReadAhead));
            let (stride, run) = (self.order.step, self.order.faults);
            streams[at] = Stream { stride, run, began_at: self.faults, ..Stream::default() };
            at
        } else if let Some(at) = found {
            streams[at].run = streams[at].run.saturating_add(1);
            if hit == Hit::ReadAhead && streams[at].window == 0 {
                // The stream was shut, and its pages are in the account already.
                self.stretches.note(page, 0, 1);
            } else {
                streams[at].used += u32::from(hit == Hit::ReadAhead);
            }
            at
        } else {
            if hit == Hit::ReadAhead {
                self.stretches.note(page, 0, 1);
            }
            // A fault near a stream whose stride is not settled sets that stride. Otherwise, a new stream
            // takes the place of the oldest.
            let turning = (0..STREAMS).filter(|&at| streams[at].may_turn_to(page));
            match turning.min_by_key(|&at| streams[at].last.abs_diff(page)) {
                Some(at) => {
                    streams[at].stride = page.wrapping_sub(streams[at].last) as i64;
                    streams[at].run = 2;
                    at
                }
                None => {
                    let oldest =
                        (0..STREAMS).min_by_key(|&at| streams[at].used_at).expect("there are streams");
                    let Stream { last, read, used, .. } = streams[oldest];
                    self.stretches.note(last, read, used);
                    let stride = if pattern == AccessPattern::Sequential { 1 } else { 0 };
                    let began_at = self.faults;
                    streams[oldest] = Stream { stride, run: 1, began_at, ..Stream::default() };
                    oldest
                }
            }
        };
        streams[at].last = page;
        streams[at].used_at = self.faults;
        Some(at)
    }
}

impl Stream {
    fn may_turn(&self) -> bool {
        self.window == 0 && self.run < SETTLED
    }

    /// Whether the stride may still change so that `page` comes next.
    fn may_turn_to(&self, page: u64) -> bool {
        self.used_at > 0 && self.may_turn() && self.last != page && self.last.abs_diff(page) <= MAX_STRIDE
    }

    fn plan(
        &mut self,
        page: u64,
        hit: Hit,
        pattern: AccessPattern,
        most: u32,
        stretches: &mut Stretches,
    ) -> Option<ReadaheadWindow> {
        let is_told = pattern == AccessPattern::Sequential;
        let next = page.wrapping_add_signed(self.stride);
        if self.window == 0 {
            // A stride between neighbours gets a window at once, other strides when they are seen twice.
            let enough = match self.stride.unsigned_abs() {
                0 => return None,
                _ if is_told => 0,
                _ if !stretches.pays(page) => LONG_RUN,
                1 => 2,
                _ => 3,
            };
            if self.run < enough {
                return None;
            }
            self.window = if is_told { most } else { FIRST_WINDOW.min(most) };
            self.ahead = next;
            return Some(self.ask());
        }
        let left = self.left_after(page);
        if left >= 0 && hit == Hit::None {
            // The page was read ahead and evicted: too much was read, or too early.
            self.shrink();
            let to_come = self.coming(left);
            if !is_told && !pays(self.read, self.used + to_come) {
                // Readahead would not pay even if all pages to come were wanted.
                self.settle(page, left, stretches);
                self.shut(page, stretches);
                return None;
            }
            let count = i64::from(self.window.min(most)).min(left) as u32;
            let again = count > 0 && (is_told || stretches.pays(page));
            return again.then(|| self.window_at(next, count));
        }
        if left < 0 {
            // The faults have overtaken readahead.
            self.ahead = next;
        } else if left > i64::from(self.window / 2) {
            return None;
        }
        let grown = self.window.saturating_mul(GROWTH).min(most);
        match self.settle(page, left, stretches) {
            Worth::Waste if !is_told => {
                self.shut(page, stretches);
                return None;
            }
            Worth::Unknown => {}
            _ if is_told || stretches.pays(page) => self.window = grown,
            _ => self.window = grown.min(self.run),
        }
        Some(self.ask())
    }

    /// Halves the window.
    fn shrink(&mut self) {
        self.window = (self.window / 2).max(FIRST_WINDOW.min(self.window));
    }

    /// Notes that there was no room for the page `at` and the pages after it, so they have yet to be asked
    /// for.
    fn cut(&mut self, at: u64) {
        self.ahead = at;
        // The next plan lets the window grow again, so halving alone would leave it too large.
        self.window = (self.window / (2 * GROWTH)).max(FIRST_WINDOW.min(self.window));
    }

    /// Closes the window. The pages to come go into the account as unwanted. Faults that still want one are
    /// entered one by one.
    fn shut(&mut self, page: u64, stretches: &mut Stretches) {
        stretches.note(page, self.read, 0);
        (self.window, self.run, self.read, self.used) = (0, 1, 0, 0);
    }

    /// Returns how many pages that were read ahead are still to come, if `left` of the pages asked for are
    /// still to come.
    fn coming(&self, left: i64) -> u32 {
        left.clamp(0, i64::from(self.read)) as u32
    }

    /// Takes from `unseen` as many pages as the stream has passed without seeing them wanted.
    fn claim(&mut self, page: u64, unseen: &AtomicU32) {
        let passed = self.read - self.coming(if self.window == 0 { 0 } else { self.left_after(page) });
        let (missing, found) = (passed.saturating_sub(self.used), unseen.load(Ordering::Relaxed));
        let claimed = missing.min(found);
        if claimed > 0 {
            // Relaxed: the count orders nothing. Only the holder of the lock takes from it.
            unseen.fetch_sub(claimed, Ordering::Relaxed);
            self.used += claimed;
        }
    }

    /// Enters the pages that the stream has passed into the account, and keeps the `left` ones to come.
    /// Returns what the passed pages were worth.
    fn settle(&mut self, page: u64, left: i64, stretches: &mut Stretches) -> Worth {
        let to_come = self.coming(left);
        let passed = self.read - to_come;
        let used = self.used.min(passed);
        stretches.note(page, passed, used);
        (self.read, self.used) = (to_come, 0);
        match passed {
            0 => Worth::Unknown,
            _ if pays(passed, used) => Worth::Wanted,
            _ => Worth::Waste,
        }
    }

    fn ask(&mut self) -> ReadaheadWindow {
        let window = self.window_at(self.ahead, self.window);
        self.ahead = window.after(window.count);
        window
    }

    /// Returns a window of this stream. The caller adds the stream's place.
    fn window_at(&self, first: u64, count: u32) -> ReadaheadWindow {
        let (first, stride) = (PageNumber(first), self.stride);
        ReadaheadWindow { first, count, stride, stream: (0, 0) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
