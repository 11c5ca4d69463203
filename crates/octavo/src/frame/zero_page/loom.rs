//! Models of the huge zero page: users against the shrinker, with a count for each use and for each space.
//!
//! The page's count, frame number and lock are the real ones. The allocator is a few cells. Users of a page
//! read its cell, and the thread that frees the page writes the cell. So the checker reports a race if a page
//! is freed in use.

use super::*;
use crate::sync::{bounded, thread};
use ::loom::cell::UnsafeCell;

const PAGES: usize = 4;

#[derive(Default)]
struct Source {
    next: AtomicU32,
    live: AtomicU32,
    pages: [UnsafeCell<()>; PAGES],
}

impl ZeroSource for Source {
    fn allocate_zeroed(&self) -> Option<FrameId> {
        self.live.fetch_add(1, Ordering::Relaxed);
        Some(FrameId(self.next.fetch_add(1, Ordering::Relaxed)))
    }

    fn free(&self, block: FrameId) {
        self.pages[block.index()].with_mut(|_| ());
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Model {
    zero: HugeZero,
    source: Source,
    used: UsedHugeZero,
}

impl Model {
    fn new(mode: ZeroPage) -> Arc<Self> {
        let source = Source::default();
        let zero = HugeZero::new(mode, Arc::new(Counters::new().unwrap()));
        Arc::new(Self { zero, source, used: UsedHugeZero::default() })
    }

    /// Installs a leaf, looks at the page, removes the leaf.
    fn use_once(&self) {
        assert!(self.zero.get(&self.used, &self.source));
        let frame = self.zero.frame().expect("a page that is referred to has its frame number");
        self.source.pages[frame.index()].with(|_| ());
        assert_eq!(self.zero.frame(), Some(frame), "and keeps it");
        self.zero.put(1);
    }

    /// Checks, after all users are done, that at most one page is live, and that it can be freed.
    fn finish(&self) {
        self.zero.put_space(&self.used);
        let live = self.source.live.load(Ordering::Relaxed);
        assert!(live <= 1, "{live} huge zero pages live");
        assert_eq!(self.zero.shrink(&self.source), live * Order::MAX.frames());
        assert_eq!((self.source.live.load(Ordering::Relaxed), self.zero.frame()), (0, None));
    }
}

fn users_against_the_shrinker(mode: ZeroPage) {
    bounded(2, move || {
        let shared = Model::new(mode);
        let users = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.use_once())
        });
        shared.zero.shrink(&shared.source);
        for user in users {
            user.join().unwrap();
        }
        shared.finish();
    });
}

#[test]
fn loom_zero_page_counted_for_each_use() {
    users_against_the_shrinker(ZeroPage::PerUse);
}

#[test]
fn loom_zero_page_counted_for_each_space() {
    users_against_the_shrinker(ZeroPage::PerSpace);
}

/// Forces the huge_zero_pfn race. The getter starts after the shrinker has taken the count to zero, and
/// perhaps before the shrinker has wiped the frame number. The getter then publishes its own page.
#[test]
fn loom_zero_page_published_while_the_shrinker_tears_down_keeps_its_number() {
    ::loom::model(|| {
        let shared = Model::new(ZeroPage::PerUse);
        shared.use_once();
        let shrinker = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || assert_eq!(shared.zero.shrink(&shared.source), Order::MAX.frames()))
        };
        while shared.zero.references.load(Ordering::Relaxed) != 0 {
            thread::yield_now();
        }
        shared.use_once();
        assert!(shared.zero.get_reference(&shared.source));
        shrinker.join().unwrap();
        assert!(shared.zero.frame().is_some(), "the shrinker wiped the number of another page");
        shared.zero.put(1);
        shared.finish();
    });
}
