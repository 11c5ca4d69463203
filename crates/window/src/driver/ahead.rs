//! Decides how many pages a fault brings along: adjacent faults show that the program uses its memory in
//! order.
//!
//! A fault that continues a run brings twice as many pages as the run's last fault, up to [`LONGEST`]. Any
//! other fault brings its own page only. Many runs are followed at once, since threads and arrays alternate.
//! Each event that waits behind a fault halves what the fault brings along, down to [`LEAST_OF_MANY`] pages.
//! While another thread often needs single pages, a run brings at most [`LONGEST_BESIDE_OTHERS`]: that thread
//! then waits for a quarter of a millisecond instead of two, and the run pushes out fewer of that thread's
//! pages. The run also leaves the last room to that thread ([`FaultAdvice::has_others`]).
//!
//! A run whose pages are stored to after they were shown for reading brings its next pages for writing. Each
//! of these pages then costs one fault and not two.

/// The number of runs that are followed at once. It suffices for a few threads, each with a region of memory
/// for each size of its objects. A look at all runs takes a hundredth of a fault's time.
const RUNS: usize = 64;
/// The most pages that a fault brings along.
const LONGEST: u64 = 256;
/// A run brings at least this many pages, even if many events wait behind it. The pages cost less than the
/// thread's next fault.
const LEAST_OF_MANY: u64 = 16;

const LONGEST_BESIDE_OTHERS: u64 = 32;
/// Single pages are needed often if more than one in `OFTEN` recent faults is single. In that average, the
/// latest fault has a weight of one in `SINGLE_MEMORY`.
const OFTEN: u32 = 32;
const SINGLE_MEMORY: u32 = 16;
const SINGLE_SCALE: u32 = 1024;

/// After this many pages shown for reading, older counts are halved.
const MEMORY: u32 = 256;
/// One fault in this many brings its pages for reading anyway, to learn whether they are stored to.
const SAMPLE: u64 = 16;

/// The direction of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Way {
    /// Unknown: one fault has been seen.
    #[default]
    Either,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug, Default)]
struct FaultRun {
    /// The pages that the last fault of the run brought.
    start: u64,
    end: u64,
    pages: u64,
    way: Way,
    /// Whether the program stores to the pages of this run.
    writes: bool,
    used_at: u64,
}

impl FaultRun {
    /// Returns the direction in which a fault at `page` continues the run, if it does.
    fn way_to(&self, page: u64) -> Option<Way> {
        if self.pages == 0 {
            None
        } else if page == self.end && self.way != Way::Down {
            Some(Way::Up)
        } else if page + 1 == self.start && self.way != Way::Up {
            Some(Way::Down)
        } else {
            None
        }
    }
}

/// The runs of one program.
#[derive(Debug)]
pub(crate) struct Ahead {
    runs: Box<[FaultRun; RUNS]>,
    now: u64,
    /// The share of faults that continue no run, in `SINGLE_SCALE`ths, and the thread of the last one.
    singles: u32,
    single_of: Option<u32>,
    /// The pages shown for reading lately, and how many of them were stored to.
    read: u32,
    stored: u32,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            runs: Box::new([FaultRun::default(); RUNS]),
            now: 0,
            singles: 0,
            single_of: None,
            read: 0,
            stored: 0,
        }
    }
}

/// The advice for a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultAdvice {
    pub(crate) run: usize,
    /// The first of the pages to bring. The page of the fault is the first or the last of them.
    pub(crate) first: u64,
    pub(crate) pages: u64,
    /// Whether the program will probably store to the pages.
    pub(crate) writes: bool,
    /// Whether another thread often wants single pages, and needs room for them.
    pub(crate) has_others: bool,
}

impl FaultAdvice {
    /// Limits the advice for a fault at `page` to `spare` pages, if others need room. The fault's own page
    /// comes in any case.
    pub(crate) fn within(self, page: u64, spare: impl Fn() -> u64) -> Self {
        if !self.has_others || self.pages == 1 {
            return self;
        }
        let pages = self.pages.min(spare()).max(1);
        let first = if self.first < page { page + 1 - pages } else { page };
        Self { first, pages, ..self }
    }
}

impl Ahead {
    /// Advises on a thread's fault at `page`. The page is missing or, if `protected`, present for reading.
    /// `behind` is the number of events that wait behind the fault.
    pub(crate) fn advise(
        &mut self,
        page: u64,
        protected: bool,
        behind: usize,
        thread: Option<u32>,
    ) -> FaultAdvice {
        self.now += 1;
        if protected {
            self.stored += 1;
            if let Some(run) = self.runs.iter_mut().find(|run| run.start <= page && page < run.end) {
                run.writes = true;
            }
        }
        let found = self.runs.iter().enumerate().find_map(|(index, run)| Some((index, run.way_to(page)?)));
        let (index, way) = found.unwrap_or_else(|| {
            let oldest = self.runs.iter().enumerate().min_by_key(|(_, run)| run.used_at);
            let (index, _) = oldest.expect("there are runs");
            self.runs[index] = FaultRun::default();
            (index, Way::Either)
        });
        self.singles -= self.singles / SINGLE_MEMORY;
        if found.is_none() && !protected {
            self.singles += SINGLE_SCALE / SINGLE_MEMORY;
            self.single_of = thread;
        }
        let has_others = self.singles * OFTEN > SINGLE_SCALE && self.single_of != thread;
        let stores_follow = self.stores_follow();
        let run = &mut self.runs[index];
        run.used_at = self.now;
        run.way = way;
        let longest = if has_others { LONGEST_BESIDE_OTHERS } else { LONGEST };
        let longest = (longest >> behind.min(LONGEST.ilog2() as usize)).max(LEAST_OF_MANY);
        run.pages = if found.is_some() { (run.pages * 2).min(longest) } else { 1 };
        let (pages, first) = match way {
            Way::Down => (run.pages.min(page + 1), page + 1 - run.pages.min(page + 1)),
            Way::Up | Way::Either => (run.pages, page),
        };
        let writes = run.writes || stores_follow && !self.now.is_multiple_of(SAMPLE);
        FaultAdvice { run: index, first, pages, writes, has_others }
    }

    /// Returns whether most pages that were shown for reading lately were stored to.
    fn stores_follow(&self) -> bool {
        self.read >= MEMORY / 8 && self.stored * 2 > self.read
    }

    /// Notes pages that came beforehand from `first` on, after those that came for a fault.
    pub(crate) fn came_beforehand(&mut self, advice: FaultAdvice, first: u64, pages: u64) {
        let run = &mut self.runs[advice.run];
        // Meanwhile the run may have continued, or another one may have taken its place.
        if run.end == first {
            run.end += pages;
        }
    }

    /// Notes the pages that came for a fault, its own included, and whether they are open to stores.
    pub(crate) fn came(&mut self, advice: FaultAdvice, first: u64, pages: u64, open: bool) {
        let run = &mut self.runs[advice.run];
        (run.start, run.end) = (first, first + pages);
        if !open {
            self.read += pages as u32;
        }
        if self.read > MEMORY {
            self.read /= 2;
            self.stored /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(ahead: &mut Ahead, page: u64) -> (u64, u64) {
        let advice = ahead.advise(page, false, 0, None);
        ahead.came(advice, advice.first, advice.pages, advice.writes);
        (advice.first, advice.pages)
    }

    #[test]
    fn a_run_brings_less_along_while_others_wait_behind_it() {
        let mut ahead = Ahead::default();
        let mut next = 0;
        let mut brings = |behind| {
            let advice = ahead.advise(next, false, behind, None);
            ahead.came(advice, advice.first, advice.pages, true);
            next += advice.pages;
            advice.pages
        };
        let alone: Vec<_> = (0..9).map(|_| brings(0)).collect();
        assert_eq!(alone.last(), Some(&LONGEST));
        assert_eq!([1, 3, 100].map(&mut brings), [LONGEST / 2, LONGEST / 8, LEAST_OF_MANY]);
        assert_eq!(brings(0), 2 * LEAST_OF_MANY, "it grows again");
    }

    #[test]
    fn a_run_brings_less_along_while_another_thread_often_wants_single_pages() {
        let brought = |single_of: u32, every: u64| {
            let (mut ahead, mut next, mut pages) = (Ahead::default(), 0, 0);
            for turn in 0..200_u64 {
                let advice = ahead.advise(next, false, 0, Some(1));
                ahead.came(advice, next, advice.pages, true);
                (next, pages) = (next + advice.pages, advice.pages);
                if turn % every == 0 {
                    let single = (1 << 40) + 1000 * turn;
                    let advice = ahead.advise(single, false, 0, Some(single_of));
                    ahead.came(advice, single, 1, true);
                }
            }
            pages
        };
        assert_eq!(brought(2, 2), LONGEST_BESIDE_OTHERS);
        assert_eq!([brought(1, 2), brought(2, 50)], [LONGEST; 2], "its own, and seldom");
    }

    #[test]
    fn a_run_leaves_room_to_another_thread_that_wants_single_pages() {
        let advice = FaultAdvice { run: 0, first: 100, pages: 16, writes: false, has_others: true };
        let brings = |advice: FaultAdvice, page, spare| {
            let advice = advice.within(page, || spare);
            (advice.first, advice.pages)
        };
        assert_eq!(brings(advice, 100, 100), (100, 16));
        assert_eq!(brings(advice, 100, 5), (100, 5));
        assert_eq!(brings(advice, 100, 0), (100, 1), "its own page comes");
        assert_eq!(brings(advice, 115, 5), (111, 5), "backwards");
        assert_eq!(brings(FaultAdvice { has_others: false, ..advice }, 100, 0), (100, 16));
    }

    #[test]
    fn runs_in_order_grow_and_others_do_not() {
        let mut ahead = Ahead::default();
        let (mut up, mut down, mut all) = (100_000, 90_000, Vec::new());
        for turn in 0..12 {
            let (first, pages) = fault(&mut ahead, up);
            assert_eq!(first, up);
            up += pages;
            all.push(pages);
            let (first, back) = fault(&mut ahead, down);
            assert_eq!((first + back, back), (down + 1, pages), "backwards");
            down = first - 1;
            assert_eq!(fault(&mut ahead, 1_000_000 - 7 * turn).1, 1, "elsewhere");
        }
        assert_eq!(all, [1, 2, 4, 8, 16, 32, 64, 128, 256, 256, 256, 256]);
    }

    #[test]
    fn many_runs_are_followed_among_faults_in_no_order() {
        let mut ahead = Ahead::default();
        let mut ends: Vec<u64> = (1..RUNS as u64 / 2).map(|run| run << 20).collect();
        let mut brought = 0;
        for turn in 0..8 {
            for (index, end) in (0..).zip(&mut ends) {
                let (first, pages) = fault(&mut ahead, *end);
                assert_eq!(first, *end);
                *end += pages;
                brought = pages;
                assert_eq!(fault(&mut ahead, (1 << 40) + 1000 * (64 * turn + index)).1, 1);
            }
        }
        assert_eq!(brought, 128);
    }

    #[test]
    fn a_run_backwards_ends_at_the_first_page_of_all() {
        let mut ahead = Ahead::default();
        assert_eq!([2, 1].map(|page| fault(&mut ahead, page)), [(2, 1), (0, 2)]);
    }

    #[test]
    fn stores_to_a_run_that_was_shown_for_reading_make_the_next_one_for_writing() {
        let mut ahead = Ahead::default();
        let advice = ahead.advise(10, false, 0, None);
        assert!(!advice.writes);
        ahead.came(advice, 10, 4, false);
        ahead.advise(11, true, 0, None);
        let next = ahead.advise(14, false, 0, None);
        assert!(next.writes && next.pages == 2, "{next:?}");
    }

    #[test]
    fn where_most_pages_are_stored_to_pages_come_for_writing() {
        let mut ahead = Ahead::default();
        let mut writes = 0;
        for turn in 0..400_u64 {
            let page = 1000 * turn;
            let advice = ahead.advise(page, false, 0, None);
            ahead.came(advice, page, 1, advice.writes);
            writes += u64::from(advice.writes);
            if !advice.writes {
                let advice = ahead.advise(page, true, 0, None);
                ahead.came(advice, page, 1, true);
            }
        }
        assert!(writes > 300, "{writes}");
        // From here on, the program no longer stores to its pages.
        let mut reads = 0;
        for turn in 0..4000_u64 {
            let advice = ahead.advise(1000 * turn + 500, false, 0, None);
            ahead.came(advice, advice.first, 1, advice.writes);
            reads += u64::from(!advice.writes);
        }
        assert!(reads > 2000, "{reads}");
    }
}
