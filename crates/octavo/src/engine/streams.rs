//! Which faults of a space follow each other, and which pages should therefore be read ahead of them.
//!
//! A *stream* is a run of faults at one stride: forwards, backwards, or every so many pages. A window starts small when
//! the stride was seen twice (between neighbours, once). It grows with every window whose pages were wanted. It shrinks when
//! a page of it found no room, or was gone before it was wanted; what was gone is then asked for again. Otherwise the next
//! window is planned when half of the last one is left, so that a steady reader never waits.
//!
//! ```text
//!      used            read ahead, not used yet
//! ────────────────┼───────────────┬──────────────┼──► stride
//!               last            half            ahead
//! ```
//!
//! **Waste shuts the window.** A stream counts the pages that were read for it, and those that a fault then wanted. When less
//! than three quarters were wanted, the stream starts again without a window. The counts also go into the account of their
//! stretch of addresses ([`Stretches`]), when the next window is planned, and when another stream takes the place of this one.
//! In a stretch that does not pay, a window starts only after [`LONG_RUN`] faults in a row, and is never longer than the run.
//! So short bursts in order inside a random pattern read nothing ahead, and a reader in order soon has its full windows back.
//! A region that the user calls sequential is not judged.
//!
//! From Linux: `mm/readahead.c`, whose marker page is the half of a window, and whose `try_context_readahead` takes the length
//! of a run for the window where nothing else is known; `swapin_nr_pages` in `mm/swap_state.c`, where the hits of the last
//! window decide on the next.
//!
//! Locking: one lock a space, only tried. A fault that finds it taken reads its own page and nothing else. If that page had
//! been read ahead, the fault counts it beside the lock, for the streams that miss it. A leaf.

use crate::engine::stretches::{Stretches, pays};
use crate::region::AccessPattern;
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::units::PageNumber;

/// Streams followed at once in a space: the tasks that read it in order.
const STREAMS: usize = 16;
/// The first window, and the least that a shrinking one comes to.
const FIRST_WINDOW: u32 = 8;
/// How much a window grows.
const GROWTH: u32 = 4;
/// Faults in a row that are believed to go on where readahead did not pay.
const LONG_RUN: u32 = 8;
/// Pages that were wanted and are in no stream's count, at most. Pages of `prefetch` count too, so the number has a bound.
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
    /// A read had brought it, or was about to.
    ReadAhead,
}

/// Pages to be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) first: PageNumber,
    pub(crate) count: u32,
    pub(crate) stride: i64,
    /// The place of its stream, and when the stream began.
    stream: usize,
    began_at: u64,
}

impl Window {
    /// The pages, in the order in which they will be wanted.
    pub(crate) fn pages(self) -> impl Iterator<Item = PageNumber> {
        (0..i64::from(self.count)).map_while(move |index| {
            let page = (self.first.0 as i64).checked_add(index * self.stride)?;
            (page >= 0).then_some(PageNumber(page as u64))
        })
    }

    /// The page after so many of the window's.
    fn after(self, pages: u32) -> u64 {
        self.first.0.wrapping_add_signed(self.stride * i64::from(pages))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    /// 0: one fault has been seen.
    stride: i64,
    /// Faults in a row at this stride.
    run: u32,
    /// Pages; 0: nothing is read ahead.
    window: u32,
    /// Pages that were read ahead and are in no account yet; and those of them that a fault wanted.
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

    /// Pages asked for beyond `page`.
    fn left_after(&self, page: u64) -> i64 {
        (self.ahead.wrapping_sub(page) as i64) / self.stride - 1
    }

    fn continues_at(&self, page: u64) -> bool {
        // With nothing read ahead only the very next page will do.
        self.steps_to(page).is_some_and(|steps| steps > 0 && steps <= i64::from(self.window).max(1) + 1)
    }
}

/// What the pages were worth that a stream read ahead and has passed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worth {
    /// There were none.
    Unknown,
    Wanted,
    Waste,
}

#[derive(Debug, Default)]
struct State {
    streams: [Stream; STREAMS],
    stretches: Stretches,
    faults: u64,
}

/// The streams of a space.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
    /// Pages that were read ahead and wanted by faults that found the lock taken.
    unseen: AtomicU32,
}

impl Streams {
    /// A fault wants a page that went out. Says which pages to read ahead now, at most `most`.
    pub(crate) fn on_fault(
        &self,
        page: PageNumber,
        hit: Hit,
        pattern: AccessPattern,
        most: u32,
    ) -> Option<Window> {
        if pattern == AccessPattern::Random || most == 0 {
            return None;
        }
        let Some(mut state) = self.state.try_lock() else {
            // Relaxed: a number that orders nothing.
            if hit == Hit::ReadAhead && self.unseen.load(Ordering::Relaxed) < MOST_UNSEEN {
                self.unseen.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        };
        let at = state.follow(page.0, hit, pattern);
        let State { streams, stretches, .. } = &mut *state;
        let stream = &mut streams[at];
        if stream.read > 0 {
            stream.claim(page.0, &self.unseen);
        }
        let window = stream.plan(page.0, hit, pattern, most, stretches)?;
        Some(Window { stream: at, began_at: stream.began_at, ..window })
    }

    /// The reader came to the first `reached` pages of the window. Of these, `pages` are being read; the others were in memory.
    pub(crate) fn note_read(&self, window: Window, reached: u32, pages: u32) {
        if let Some(mut state) = self.state.try_lock() {
            let stream = &mut state.streams[window.stream];
            // By now another stream may have its place.
            if stream.began_at == window.began_at {
                stream.read += pages;
                if reached < window.count && stream.ahead == window.after(window.count) {
                    stream.cut(window.after(reached));
                }
            }
        }
    }
}

impl State {
    /// The place of the stream that the fault belongs to, or begins.
    fn follow(&mut self, page: u64, hit: Hit, pattern: AccessPattern) -> usize {
        self.faults += 1;
        let streams = &mut self.streams;
        let at = if let Some(at) =
            streams.iter().position(|stream| stream.used_at > 0 && stream.continues_at(page))
        {
            streams[at].run = streams[at].run.saturating_add(1);
            if hit == Hit::ReadAhead && streams[at].window == 0 {
                // The stream was shut, and its pages went into the account then.
                self.stretches.note(page, 0, 1);
            } else {
                streams[at].used += u32::from(hit == Hit::ReadAhead);
            }
            at
        } else {
            if hit == Hit::ReadAhead {
                self.stretches.note(page, 0, 1);
            }
            // The page after one fault fixes the stride of its stream; else a new one takes the place of the oldest.
            match streams.iter().position(|stream| stream.may_turn_to(page)) {
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
        at
    }
}

impl Stream {
    /// Whether its stride may still be the one to `page`.
    fn may_turn_to(&self, page: u64) -> bool {
        self.used_at > 0
            && self.window == 0
            && self.run < 3
            && self.last != page
            && self.last.abs_diff(page) <= MAX_STRIDE
    }

    fn plan(
        &mut self,
        page: u64,
        hit: Hit,
        pattern: AccessPattern,
        most: u32,
        stretches: &mut Stretches,
    ) -> Option<Window> {
        let is_told = pattern == AccessPattern::Sequential;
        let next = page.wrapping_add_signed(self.stride);
        if self.window == 0 {
            // Neighbours are worth a window at once, other strides when they come a second time.
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
            // The page was read ahead and is gone: too much, or too early.
            self.shrink();
            let to_come = self.coming(left);
            if !is_told && !pays(self.read, self.used + to_come) {
                // It would be waste even if all pages to come were wanted.
                self.settle(page, left, stretches);
                self.shut(page, stretches);
                return None;
            }
            let count = i64::from(self.window.min(most)).min(left) as u32;
            let again = count > 0 && (is_told || stretches.pays(page));
            return again.then(|| self.window_at(next, count));
        }
        if left < 0 {
            // The stream overtook what was read ahead.
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

    /// Half of the window is enough.
    fn shrink(&mut self) {
        self.window = (self.window / 2).max(FIRST_WINDOW.min(self.window));
    }

    /// There was no room for the page `at` and those behind it, so they are yet to be asked for.
    fn cut(&mut self, at: u64) {
        self.ahead = at;
        // The next plan lets it grow, which would keep it large.
        self.window = (self.window / (2 * GROWTH)).max(FIRST_WINDOW.min(self.window));
    }

    /// Closes the window. The pages to come go into the account unwanted; faults that want them still are entered singly.
    fn shut(&mut self, page: u64, stretches: &mut Stretches) {
        stretches.note(page, self.read, 0);
        (self.window, self.run, self.read, self.used) = (0, 1, 0, 0);
    }

    /// The pages that were read ahead and are not passed, when `left` of those asked for are.
    fn coming(&self, left: i64) -> u32 {
        left.clamp(0, i64::from(self.read)) as u32
    }

    /// Takes from `unseen` the pages that the stream has passed and did not see wanted.
    fn claim(&mut self, page: u64, unseen: &AtomicU32) {
        let passed = self.read - self.coming(if self.window == 0 { 0 } else { self.left_after(page) });
        let (missing, found) = (passed.saturating_sub(self.used), unseen.load(Ordering::Relaxed));
        let claimed = missing.min(found);
        if claimed > 0 {
            // Relaxed: a number that orders nothing. Only the holder of the lock takes from it.
            unseen.fetch_sub(claimed, Ordering::Relaxed);
            self.used += claimed;
        }
    }

    /// Enters into the account the pages that the stream has passed, and keeps the `left` ones before it. Says what the
    /// passed ones were worth.
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

    fn ask(&mut self) -> Window {
        let window = self.window_at(self.ahead, self.window);
        self.ahead = window.after(window.count);
        window
    }

    /// A window of this stream. The caller adds the place.
    fn window_at(&self, first: u64, count: u32) -> Window {
        Window { first: PageNumber(first), count, stride: self.stride, stream: 0, began_at: 0 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MOST: u32 = 512;

    /// Faults on `pages` in turn, with every page asked for read at once; says what was asked for, and how many pages had
    /// not been.
    fn run_on(
        streams: &Streams,
        pages: impl IntoIterator<Item = u64>,
        pattern: AccessPattern,
    ) -> (Vec<Window>, u32) {
        let mut ahead = std::collections::HashSet::new();
        let (mut windows, mut misses) = (Vec::new(), 0);
        for page in pages {
            let hit = if ahead.remove(&page) { Hit::ReadAhead } else { Hit::None };
            misses += u32::from(hit == Hit::None);
            if let Some(window) = streams.on_fault(PageNumber(page), hit, pattern, MOST) {
                let before = ahead.len();
                ahead.extend(window.pages().map(|page| page.0));
                streams.note_read(window, window.count, (ahead.len() - before) as u32);
                windows.push(window);
            }
        }
        (windows, misses)
    }

    fn run(pages: impl IntoIterator<Item = u64>, pattern: AccessPattern) -> (Vec<Window>, u32) {
        run_on(&Streams::default(), pages, pattern)
    }

    fn place(window: Window) -> (u64, u32, i64) {
        (window.first.0, window.count, window.stride)
    }

    #[test]
    fn windows_grow_to_the_limit_and_a_steady_reader_never_misses_again() {
        for (pages, stride) in [
            ((1000..9000).collect::<Vec<_>>(), 1),
            ((1000..9000).rev().collect(), -1),
            ((0..3000).map(|index| 1000 + 7 * index).collect(), 7),
        ] {
            let (windows, misses) = run(pages, AccessPattern::Normal);
            assert!(windows.iter().all(|window| window.stride == stride), "{stride}: {windows:?}");
            assert_eq!(windows.iter().map(|window| window.count).max(), Some(MOST));
            assert!(windows[0].count < windows[1].count, "{windows:?}");
            assert!(misses <= 3, "stride {stride}: {misses} misses");
        }
    }

    #[test]
    fn each_page_is_asked_for_once() {
        let (windows, _) = run(0..5000, AccessPattern::Normal);
        let mut pages: Vec<_> = windows.iter().flat_map(|window| window.pages()).collect();
        let count = pages.len();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), count);
    }

    #[test]
    fn a_window_is_asked_for_with_half_of_the_last_one_left() {
        let (streams, mut last) = (Streams::default(), None::<Window>);
        for page in 0..4000 {
            let hit = if last.is_some() { Hit::ReadAhead } else { Hit::None };
            let window = streams.on_fault(PageNumber(page), hit, AccessPattern::Normal, MOST);
            if let (Some(last), Some(_)) = (last, window) {
                let left = last.first.0 + u64::from(last.count) - (page + 1);
                assert_eq!(left, u64::from(last.count / 2), "at page {page} of {last:?}");
            }
            last = window.or(last);
        }
    }

    #[test]
    fn a_stream_that_overtakes_its_window_is_read_ahead_of_where_it_is() {
        let streams = Streams::default();
        let fault = |page| streams.on_fault(PageNumber(page), Hit::None, AccessPattern::Normal, MOST);
        assert_eq!(fault(0), None);
        assert_eq!(fault(1).map(place), Some((2, FIRST_WINDOW, 1)));
        let beyond = 2 + u64::from(FIRST_WINDOW);
        assert_eq!(fault(beyond).map(|window| window.first), Some(PageNumber(beyond + 1)));
    }

    #[test]
    fn faults_in_no_order_read_nothing_ahead() {
        let mut page = 1_u64;
        let pages = (0..5000).map(|_| {
            page = page.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            page >> 30
        });
        let (windows, _) = run(pages.collect::<Vec<_>>(), AccessPattern::Normal);
        assert!(windows.len() < 10, "{windows:?}");
        assert!(run(0..100, AccessPattern::Random).0.is_empty());
    }

    /// Bursts of `length` neighbours at random places, far apart, whose stretches share the first one's account.
    fn bursts(count: u64, length: u64) -> Vec<u64> {
        let mut place = 1_u64;
        let mut next = || {
            place = place.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
            ((place >> 33) % 4000) + ((place >> 45) << 19)
        };
        (0..count).map(|_| next()).flat_map(|page| page..page + length).collect()
    }

    #[test]
    fn short_bursts_in_no_order_shut_the_window() {
        for length in 2..=5 {
            let pages = bursts(5000, length);
            let wanted = pages.len() as u32;
            let asked: u32 = run(pages, AccessPattern::Normal).0.iter().map(|window| window.count).sum();
            assert!(asked < wanted / 5, "bursts of {length}: {asked} pages asked for, {wanted} wanted");
        }
    }

    #[test]
    fn a_window_is_no_longer_than_its_run_where_readahead_did_not_pay() {
        let streams = Streams::default();
        run_on(&streams, bursts(1000, 2), AccessPattern::Normal);
        let (windows, misses) = run_on(&streams, 0..64, AccessPattern::Normal);
        assert_eq!(misses, LONG_RUN, "{windows:?}");
        assert!(windows.iter().all(|window| u64::from(window.count) <= window.first.0), "{windows:?}");
    }

    #[test]
    fn a_long_reader_gets_its_windows_back_among_bursts() {
        let streams = Streams::default();
        run_on(&streams, bursts(1000, 2), AccessPattern::Normal);
        let (windows, misses) = run_on(&streams, 0..4000, AccessPattern::Normal);
        assert_eq!(windows.iter().map(|window| window.count).max(), Some(MOST));
        assert!(misses <= LONG_RUN, "{misses}");
        // And so does each that reads there afterwards.
        let (_, misses) = run_on(&streams, (0..4000).rev(), AccessPattern::Normal);
        assert!(misses <= 2, "{misses}");
    }

    #[test]
    fn another_fault_nearby_does_not_end_a_run() {
        let streams = Streams::default();
        run_on(&streams, bursts(1000, 2), AccessPattern::Normal);
        let (windows, _) = run_on(&streams, [0, 1, 2, 13, 3, 4, 5, 6, 7], AccessPattern::Normal);
        assert_eq!(windows.into_iter().map(place).collect::<Vec<_>>(), [(8, FIRST_WINDOW, 1)]);
    }

    #[test]
    fn a_stream_that_passes_its_pages_over_is_shut() {
        let (windows, _) = run([0, 1, 6, 12], AccessPattern::Normal);
        assert_eq!(windows.into_iter().map(place).collect::<Vec<_>>(), [(2, FIRST_WINDOW, 1)]);
    }

    #[test]
    fn pages_that_are_wanted_after_their_stream_is_gone_count() {
        let later = (0..100_u64).flat_map(|turn| {
            let at = turn << 19;
            let elsewhere = (1..=STREAMS as u64).map(move |stretch| at + (stretch << 12));
            // Too far from each other for a stream.
            let wanted = (0..u64::from(FIRST_WINDOW)).map(move |index| at + 2 + index * 3 % 8);
            [at, at + 1].into_iter().chain(elsewhere.clone()).chain(wanted.flat_map(move |page| {
                std::iter::once(page).chain(elsewhere.clone().map(move |other| other + page % 8 * 100))
            }))
        });
        let (windows, _) = run(later, AccessPattern::Normal);
        assert!(windows.len() >= 100, "{}", windows.len());
    }

    #[test]
    fn a_region_read_in_order_is_not_judged() {
        let streams = Streams::default();
        run_on(&streams, bursts(1000, 2), AccessPattern::Normal);
        let (windows, _) = run_on(&streams, 4000..4002, AccessPattern::Sequential);
        assert_eq!(windows.first().map(|window| window.count), Some(MOST));
    }

    #[test]
    fn several_tasks_in_one_space_are_followed_apart() {
        let pages = (0..2000_u64).flat_map(|index| (0..8).map(move |task| (task << 30) + index));
        let (_, misses) = run(pages.collect::<Vec<_>>(), AccessPattern::Normal);
        assert!(misses <= 8 * 3, "{misses}");
    }

    #[test]
    fn pages_gone_before_they_were_used_shrink_the_window() {
        let streams = Streams::default();
        let mut last = 0;
        for page in 0..3000 {
            let window = streams.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST);
            if let Some(window) = window {
                streams.note_read(window, window.count, window.count);
                last = window.count;
            }
        }
        assert_eq!(last, MOST);
        let shrunk: Vec<_> = (3000..4600)
            .filter_map(|page| streams.on_fault(PageNumber(page), Hit::None, AccessPattern::Normal, MOST))
            .collect();
        assert!(shrunk.iter().any(|window| window.count < MOST), "{shrunk:?}");
    }

    #[test]
    fn a_region_read_in_order_begins_with_the_largest_window() {
        let (windows, _) = run([5, 6], AccessPattern::Sequential);
        assert_eq!(place(windows[0]), (6, MOST, 1));
    }

    /// Reads `pages` in order, with all that is asked for read at once, until the stream has its largest window. Returns
    /// that window.
    fn warm(streams: &Streams, pages: std::ops::Range<u64>) -> Window {
        pages
            .into_iter()
            .find_map(|page| {
                let window =
                    streams.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST)?;
                streams.note_read(window, window.count, window.count);
                (window.count == MOST).then_some(window)
            })
            .expect("the window grows")
    }

    #[test]
    fn pages_wanted_by_faults_that_found_the_lock_taken_are_no_waste() {
        let streams = Streams::default();
        let fault = |page| streams.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST);
        let mut asked = 0;
        for page in 0..8000 {
            // Every second fault comes while another thread has the lock.
            let held = (page > 3 && page % 2 == 0).then(|| streams.state.lock());
            let window = fault(page);
            drop(held);
            if let Some(window) = window {
                streams.note_read(window, window.count, window.count);
                asked += window.count;
            }
        }
        assert!(asked >= 8000, "{asked}");
        assert!(streams.state.lock().stretches.pays(7999));
    }

    #[test]
    fn pages_wanted_unseen_do_not_grow_without_bound() {
        let streams = Streams::default();
        let held = streams.state.lock();
        for page in 0..u64::from(MOST_UNSEEN) * 2 {
            streams.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST);
        }
        drop(held);
        assert_eq!(streams.unseen.load(Ordering::Relaxed), MOST_UNSEEN);
    }

    #[test]
    fn one_page_gone_early_does_not_condemn_the_pages_to_come() {
        let streams = Streams::default();
        let window = warm(&streams, 0..2000);
        let gone = window.first.0 - u64::from(MOST) / 8;
        let again = streams.on_fault(PageNumber(gone), Hit::None, AccessPattern::Normal, MOST);
        // It is asked for what may be gone with it, and no page is asked for twice later.
        assert_eq!(again.map(place), Some((gone + 1, MOST / 2, 1)));
        streams.note_read(again.unwrap(), MOST / 2, 0);
        assert!(streams.state.lock().stretches.pays(gone));
        let next = (gone + 1..gone + 2000)
            .find_map(|page| streams.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST));
        assert_eq!(next.map(|next| next.first.0), Some(window.after(window.count)));
    }

    #[test]
    fn pages_that_are_all_gone_early_shut_the_window() {
        let streams = Streams::default();
        let window = warm(&streams, 0..2000);
        let mut asked = 0;
        for page in window.first.0..window.after(window.count) {
            if let Some(window) = streams.on_fault(PageNumber(page), Hit::None, AccessPattern::Normal, MOST) {
                streams.note_read(window, window.count, window.count);
                asked += window.count;
            }
        }
        assert!(asked < 2 * MOST, "{asked}");
        assert!(!streams.state.lock().stretches.pays(window.first.0));
    }

    #[test]
    fn pages_without_room_are_asked_for_again_in_a_smaller_window() {
        let streams = Streams::default();
        let fault = |page| streams.on_fault(PageNumber(page), Hit::None, AccessPattern::Normal, MOST);
        fault(0);
        let window = fault(1).unwrap();
        streams.note_read(window, 3, 3);
        // Two of the three pages that found room are used.
        for page in 2..4 {
            let hit = Hit::ReadAhead;
            if let Some(next) = streams.on_fault(PageNumber(page), hit, AccessPattern::Normal, MOST) {
                assert_eq!(next.first.0, window.first.0 + 3);
                return;
            }
        }
        panic!("nothing is asked for behind the pages that found room");
    }

    #[test]
    fn pages_read_for_a_stream_that_is_gone_are_not_charged_to_the_one_in_its_place() {
        let streams = Streams::default();
        let fault = |page| streams.on_fault(PageNumber(page), Hit::None, AccessPattern::Normal, MOST);
        fault(0);
        let window = fault(1).unwrap();
        // Others take all places.
        for other in 1..=STREAMS as u64 {
            fault(other << 20);
        }
        streams.note_read(window, 0, 7);
        let state = streams.state.lock();
        assert!(state.streams.iter().all(|stream| stream.read == 0 && stream.window == 0));
    }
}
