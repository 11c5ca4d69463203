//! Streams and windows, without an engine.

use super::*;

const MOST: u32 = 512;

/// Faults on `pages` in order. Every page asked for is read at once. Returns the pages asked for, and how
/// many faults found their page not read.
fn run_on(
    streams: &Streams,
    pages: impl IntoIterator<Item = u64>,
    pattern: AccessPattern,
) -> (Vec<ReadaheadWindow>, u32) {
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

fn run(pages: impl IntoIterator<Item = u64>, pattern: AccessPattern) -> (Vec<ReadaheadWindow>, u32) {
    run_on(&Streams::default(), pages, pattern)
}

fn place(window: ReadaheadWindow) -> (u64, u32, i64) {
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
    let (streams, mut last) = (Streams::default(), None::<ReadaheadWindow>);
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

/// Returns bursts of `length` neighbours at random places, far apart, whose stretches share the first one's
/// account.
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
    // So does each reader that comes there afterwards.
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
        // Too far apart for a stream.
        let wanted = (0..u64::from(FIRST_WINDOW)).map(move |index| at + 2 + index * 3 % 8);
        [at, at + 1].into_iter().chain(elsewhere.clone()).chain(wanted.flat_map(move |page| {
            std::iter::once(page).chain(elsewhere.clone().map(move |other| other + page % 8 * 100))
        }))
    });
    let (windows, _) = run(later, AccessPattern::Normal);
    assert!(windows.len() >= 100, "{}", windows.len());
}

/// Some pages of a reader in order are in memory, so the others look as if they had a stride. Streams of such
/// strides must not keep the reader's pages.
#[test]
fn a_reader_in_order_takes_over_from_the_strides_that_its_pages_showed() {
    for strides in [&[2][..], &[2, 4], &[4, 5, 35], &[3, 2, 10, 32]] {
        let mut start = 1000;
        let mut pages = Vec::new();
        for stride in strides {
            // Streams of one stride each, next to each other and long enough to be settled.
            pages.extend((0..40).map(|index| start + index * stride));
            start += 40;
        }
        let streams = Streams::default();
        run_on(&streams, pages, AccessPattern::Normal);
        let (windows, misses) = run_on(&streams, start..start + 20_000, AccessPattern::Normal);
        assert!(misses < 200, "{strides:?}: {misses} misses");
        let last = windows.last().unwrap();
        assert_eq!((last.stride, last.count), (1, MOST), "{strides:?}");
    }
}

/// The window of the first stride is shut for waste. After that, its stream must not claim each page of the
/// new stride.
#[test]
fn a_reader_that_doubles_its_stride_is_followed() {
    for stride in [1, 3, -2] {
        let first = [1_000_000_i64, 1_000_000 + stride];
        let twice = (1..4000).map(|index| 1_000_000 + stride * (1 + 2 * index));
        let pages = first.into_iter().chain(twice).map(|page| page as u64);
        let (windows, misses) = run(pages, AccessPattern::Normal);
        assert!(misses < 20, "stride {stride}: {misses} misses");
        let last = windows.last().unwrap();
        assert_eq!((last.stride, last.count), (2 * stride, MOST));
    }
}

/// A page of a stream without a window may be in memory. The run continues after it.
#[test]
fn one_page_passed_over_does_not_end_a_long_run() {
    let streams = Streams::default();
    run_on(&streams, bursts(1000, 2), AccessPattern::Normal);
    let (windows, _) = run_on(&streams, [0, 1, 2, 4, 5, 7, 8, 9], AccessPattern::Normal);
    assert_eq!(windows.into_iter().map(place).collect::<Vec<_>>(), [(10, FIRST_WINDOW, 1)]);
}

#[test]
fn a_stride_beside_a_reader_in_order_is_still_followed() {
    let in_order = 0..4000_u64;
    let pages = in_order.flat_map(|index| [index, 1_000_000 + 7 * index]);
    let (windows, misses) = run(pages, AccessPattern::Normal);
    assert!(misses < 20, "{misses} misses");
    for stride in [1, 7] {
        assert!(windows.iter().any(|window| (window.stride, window.count) == (stride, MOST)), "{stride}");
    }
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

/// Returns the last page, the faults and the stride of each stream in use.
fn in_use(streams: &Streams) -> Vec<(u64, u32, i64)> {
    let state = streams.state.lock();
    let used = state.streams.iter().filter(|stream| stream.used_at > 0);
    used.map(|stream| (stream.last, stream.run, stream.stride)).collect()
}

#[test]
fn readers_within_each_others_windows_keep_their_streams() {
    const PAGES: u32 = 250;
    let starts = [0, 300, 600, 900_u64];
    let streams = Streams::default();
    let pages = (0..u64::from(PAGES)).flat_map(|index| starts.map(|start| start + index));
    let (windows, _) = run_on(&streams, pages, AccessPattern::Normal);
    assert!(windows.iter().any(|window| u64::from(window.count) > starts[1]), "{windows:?}");
    assert_eq!(in_use(&streams), starts.map(|start| (start + u64::from(PAGES) - 1, PAGES, 1)));
}

#[test]
fn a_reader_keeps_its_stream_where_another_ended() {
    let streams = Streams::default();
    run_on(&streams, [100, 101].into_iter().chain(0..200), AccessPattern::Normal);
    assert_eq!(in_use(&streams), [(101, 2, 1), (199, 200, 1)]);
}

#[test]
fn a_second_fault_on_a_page_changes_nothing() {
    let twice = Streams::default();
    // In order, at a stride, and with no stride. If a second fault began a stream, it would push out another.
    let pages = |base: u64| {
        (0..5).map(move |index| base + index).chain((0..5).map(move |index| base + 1000 + 7 * index))
    };
    let pages: Vec<_> = pages(0).chain((1..30).map(|stretch| stretch << 20)).chain(pages(5000)).collect();
    let mut second = Vec::new();
    let windows: Vec<_> = pages
        .iter()
        .filter_map(|&page| {
            let first = twice.on_fault(PageNumber(page), Hit::None, AccessPattern::Normal, MOST);
            second.extend(twice.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST));
            first
        })
        .collect();
    let once = Streams::default();
    let expected = |page: &u64| once.on_fault(PageNumber(*page), Hit::None, AccessPattern::Normal, MOST);
    assert_eq!(windows, pages.iter().filter_map(expected).collect::<Vec<_>>());
    assert_eq!(second, []);
    assert_eq!(in_use(&twice), in_use(&once));
    assert!(windows.iter().any(|window| window.stride == 7), "{windows:?}");
}

#[test]
fn a_second_fault_on_a_page_moves_no_reader_whose_window_reaches_there() {
    let streams = Streams::default();
    run_on(&streams, [300, 301], AccessPattern::Normal);
    warm(&streams, 0..300);
    let (reader, _, _) = in_use(&streams)[1];
    for hit in [Hit::None, Hit::ReadAhead] {
        streams.on_fault(PageNumber(302), hit, AccessPattern::Normal, MOST);
    }
    assert_eq!(in_use(&streams).into_iter().map(|(last, ..)| last).collect::<Vec<_>>(), [302, reader]);
}

#[test]
fn a_page_that_goes_out_again_and_again_takes_one_place() {
    let streams = Streams::default();
    run_on(&streams, [0, 1, 2].into_iter().chain([500; 2 * STREAMS]), AccessPattern::Normal);
    assert_eq!(in_use(&streams), [(2, 3, 1), (500, 1, 0)]);
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

/// Faults on `pages` in order, and reads all pages asked for at once, until the stream has its largest
/// window. Returns that window.
fn warm(streams: &Streams, pages: std::ops::Range<u64>) -> ReadaheadWindow {
    pages
        .into_iter()
        .find_map(|page| {
            let window = streams.on_fault(PageNumber(page), Hit::ReadAhead, AccessPattern::Normal, MOST)?;
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
        // Another thread holds the lock during every second fault.
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
    // The pages that may have been evicted with it are asked for again, and no page is asked for twice later.
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
    // Other streams take all places.
    for other in 1..=STREAMS as u64 {
        fault(other << 20);
    }
    streams.note_read(window, 0, 7);
    let state = streams.state.lock();
    assert!(state.streams.iter().all(|stream| stream.read == 0 && stream.window == 0));
}
