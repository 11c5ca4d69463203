//! Which faults of a space follow each other, and what should therefore be read ahead of them.
//!
//! A *stream* is a run of faults at one stride: forwards, backwards, or every so many pages. Its window begins small when
//! the stride was seen twice (between neighbours, once), grows with every window that was used, and shrinks when pages read
//! ahead were gone before they were used. The next window is planned when half of the last one is left, so that a steady
//! reader never waits.
//! (Linux: `mm/readahead.c`, whose marker page is the half, and `swap_vma_readahead`.)
//!
//! ```text
//!      used            read ahead, not used yet
//! ────────────────┼───────────────┬──────────────┼──► stride
//!               last            half            ahead
//! ```
//!
//! Locking: one lock a space, only tried: a fault that finds it taken reads its own page and nothing else. A leaf.

use crate::region::AccessPattern;
use crate::sync::Mutex;
use crate::units::PageNumber;

/// Streams followed at once in a space: the tasks that read it in order.
const STREAMS: usize = 16;
/// The first window, and the least that a shrinking one comes to.
const FIRST_WINDOW: u32 = 8;
/// How much a window grows.
const GROWTH: u32 = 4;
/// The farthest apart two faults of a stream may be, in pages.
const MAX_STRIDE: u64 = 64;

/// Pages to be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) first: PageNumber,
    pub(crate) count: u32,
    pub(crate) stride: i64,
}

impl Window {
    /// The pages, in the order in which they will be wanted.
    pub(crate) fn pages(self) -> impl Iterator<Item = PageNumber> {
        (0..i64::from(self.count)).map_while(move |index| {
            let page = (self.first.0 as i64).checked_add(index * self.stride)?;
            (page >= 0).then_some(PageNumber(page as u64))
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    last: u64,
    /// 0: one fault has been seen.
    stride: i64,
    /// Pages; 0: nothing has been read ahead yet.
    window: u32,
    /// The first page that has not been asked for.
    ahead: u64,
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

#[derive(Debug, Default)]
struct State {
    streams: [Stream; STREAMS],
    faults: u64,
}

/// The streams of a space.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    state: Mutex<State>,
}

impl Streams {
    /// A fault wants a page that went out. `hit`: it had been read already. Says what to read ahead now, at most
    /// `most` pages.
    pub(crate) fn on_fault(
        &self,
        page: PageNumber,
        hit: bool,
        pattern: AccessPattern,
        most: u32,
    ) -> Option<Window> {
        if pattern == AccessPattern::Random || most == 0 {
            return None;
        }
        let mut state = self.state.try_lock()?;
        state.faults += 1;
        let now = state.faults;
        let streams = &mut state.streams;
        let known = streams.iter().position(|stream| stream.used_at > 0 && stream.continues_at(page.0));
        let at = known.unwrap_or_else(|| {
            // The page after one fault fixes the stride of its stream; else a new one takes the place of the oldest.
            let near = |stream: &Stream| {
                stream.used_at > 0
                    && stream.window == 0
                    && stream.last != page.0
                    && stream.last.abs_diff(page.0) <= MAX_STRIDE
            };
            match streams.iter().position(near) {
                Some(at) => {
                    streams[at].stride = page.0.wrapping_sub(streams[at].last) as i64;
                    streams[at].last = page.0;
                    at
                }
                None => {
                    let oldest =
                        (0..STREAMS).min_by_key(|&at| streams[at].used_at).expect("there are streams");
                    let stride = if pattern == AccessPattern::Sequential { 1 } else { 0 };
                    streams[oldest] = Stream { last: page.0, stride, ..Stream::default() };
                    oldest
                }
            }
        });
        let stream = &mut streams[at];
        stream.used_at = now;
        if known.is_some() {
            stream.last = page.0;
        }
        stream.plan(page.0, known.is_some(), hit, pattern, most)
    }
}

impl Stream {
    fn plan(
        &mut self,
        page: u64,
        known: bool,
        hit: bool,
        pattern: AccessPattern,
        most: u32,
    ) -> Option<Window> {
        let next = page.wrapping_add_signed(self.stride);
        if self.window == 0 {
            // Neighbours are worth a window at once, other strides when they come a second time.
            let sure = self.stride.unsigned_abs() == 1 || known;
            if self.stride == 0 || !sure {
                return None;
            }
            self.window = if pattern == AccessPattern::Sequential { most } else { FIRST_WINDOW.min(most) };
            self.ahead = next;
            return Some(self.ask());
        }
        let left = self.left_after(page);
        if left >= 0 && !hit {
            // It was read ahead and is gone: too much, or too early.
            self.window = (self.window / 2).max(FIRST_WINDOW).min(most);
            return None;
        }
        if left < 0 {
            // It overtook what was read ahead.
            self.ahead = next;
        } else if left > i64::from(self.window / 2) {
            return None;
        }
        self.window = self.window.saturating_mul(GROWTH).min(most);
        Some(self.ask())
    }

    fn ask(&mut self) -> Window {
        let window = Window { first: PageNumber(self.ahead), count: self.window, stride: self.stride };
        self.ahead = self.ahead.wrapping_add_signed(self.stride * i64::from(self.window));
        window
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MOST: u32 = 512;

    /// Faults on `pages` in turn, with every page asked for read at once; says what was asked for.
    fn run(pages: impl IntoIterator<Item = u64>, pattern: AccessPattern) -> (Vec<Window>, u32) {
        let (streams, mut read) = (Streams::default(), std::collections::HashSet::new());
        let (mut windows, mut misses) = (Vec::new(), 0);
        for page in pages {
            let hit = read.contains(&page);
            misses += u32::from(!hit);
            if let Some(window) = streams.on_fault(PageNumber(page), hit, pattern, MOST) {
                read.extend(window.pages().map(|page| page.0));
                windows.push(window);
            }
        }
        (windows, misses)
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
            let window = streams.on_fault(PageNumber(page), last.is_some(), AccessPattern::Normal, MOST);
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
        let fault = |page| streams.on_fault(PageNumber(page), false, AccessPattern::Normal, MOST);
        assert_eq!(fault(0), None);
        assert_eq!(fault(1), Some(Window { first: PageNumber(2), count: FIRST_WINDOW, stride: 1 }));
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
            let window = streams.on_fault(PageNumber(page), true, AccessPattern::Normal, MOST);
            last = window.map_or(last, |window| window.count);
        }
        assert_eq!(last, MOST);
        let shrunk: Vec<_> = (3000..4600)
            .filter_map(|page| streams.on_fault(PageNumber(page), false, AccessPattern::Normal, MOST))
            .collect();
        assert!(shrunk.iter().any(|window| window.count < MOST), "{shrunk:?}");
    }

    #[test]
    fn a_region_read_in_order_begins_with_the_largest_window() {
        let (windows, _) = run([5, 6], AccessPattern::Sequential);
        assert_eq!(windows[0], Window { first: PageNumber(6), count: MOST, stride: 1 });
    }
}
