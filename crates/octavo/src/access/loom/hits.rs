//! Models of hits against eviction and reuse: an entry, a frame's hold word, and bytes that race.
//!
//! Entry and hold words are the real ones, and each step is copied from `access`, `reclaim::evict` or
//! `fault`, with its ordering. A frame's bytes are one relaxed word, or a cell if only a holder may look. The
//! models leave out the table above the entry, the swap cache, and the allocator. The allocator's hand-over
//! would order more.

use ::loom::cell::UnsafeCell;

use super::bounded;
use crate::frame::Dropped;
use crate::frame::holds::HoldWord;
use crate::sync::{Arc, AtomicU64, Ordering, fence, thread};
use crate::table::Protection;
use crate::table::entry::EntryWord;
use crate::units::{FrameId, SwapSlot};

/// The bytes of a page's first owner, and of its second.
const OURS: u64 = 1;
const THEIRS: u64 = 2;
const FRAME: FrameId = FrameId(7);

#[derive(Default)]
struct Words {
    ours: EntryWord,
    theirs: EntryWord,
    holds: HoldWord,
    bytes: AtomicU64,
    /// A holder of the frame reads it, and a thread that has the frame alone writes it.
    held: UnsafeCell<()>,
}

impl Words {
    /// A frame that our entry shows.
    fn shown() -> Arc<Self> {
        let words = Self::default();
        words.holds.begin(false);
        words.bytes.store(OURS, Ordering::Relaxed);
        let empty = words.ours.load();
        words.ours.change(empty, empty.to_present(FRAME, Protection::READ_WRITE)).unwrap();
        Arc::new(words)
    }

    /// As `access::load`. Returns `None` if a fault would follow.
    fn load(&self, entry: &EntryWord) -> Option<u64> {
        let seen = entry.load();
        seen.readable_at_home()?;
        let value = self.bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        entry.still_is(seen).then_some(value)
    }

    /// As `access::write_through`.
    fn store(&self, entry: &EntryWord, value: u64) {
        let seen = entry.load();
        if seen.readable_at_home().is_none() {
            return;
        }
        let before = self.holds.take_pin();
        if entry.still_is(seen) {
            self.held.with(|_| ());
            fence(Ordering::Release);
            self.bytes.store(value, Ordering::Relaxed);
            if !before.is_dirty() {
                self.holds.mark_dirty();
            }
            entry.mark_accessed(seen);
        }
        self.drop_pin();
    }

    fn drop_pin(&self) {
        if self.holds.drop_pin() == Dropped::Last {
            self.held.with_mut(|_| ());
        }
    }

    /// As `evict_batch` for a clean frame, which only one entry shows. Returns `true` if the frame is free.
    fn evict(&self) -> bool {
        self.holds.take_pin();
        let seen = self.ours.load();
        let freed = self.ours.change(seen, seen.to_swapped(SwapSlot(0))).is_ok() && self.holds.try_reclaim();
        if freed {
            self.held.with_mut(|_| ());
        } else {
            self.drop_pin();
        }
        freed
    }

    /// As a write fault of the second owner, which zeroes the frame and shows it.
    fn reuse(&self) {
        let empty = self.theirs.load();
        let busy = empty.to_busy();
        self.theirs.change(empty, busy).unwrap();
        self.held.with_mut(|_| ());
        // As `ArenaBytes::zero`.
        fence(Ordering::Release);
        self.bytes.store(0, Ordering::Relaxed);
        self.holds.begin(true);
        assert!(!self.theirs.publish(busy.to_present(FRAME, Protection::READ_WRITE)));
    }
}

/// An optimistic load that validates has our bytes, and never zeros or bytes of the frame's next owner. That
/// owner's load never has ours.
#[test]
fn loom_a_load_never_returns_bytes_of_another_owner() {
    bounded(3, || {
        let words = Words::shown();
        let ours = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let value = words.load(&words.ours);
                assert!(value.is_none_or(|value| value == OURS), "our page had {value:?}");
            })
        };
        let theirs = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let value = words.load(&words.theirs);
                assert!(value.is_none_or(|value| value != OURS), "their page had {value:?}");
                words.store(&words.theirs, THEIRS);
            })
        };
        assert!(words.evict());
        words.reuse();
        ours.join().unwrap();
        theirs.join().unwrap();
    });
}

/// A store that validates holds the frame. An eviction does not free it meanwhile, and the bytes are neither
/// lost nor written into the next owner's page.
#[test]
fn loom_a_store_holds_its_frame_against_eviction_and_reuse() {
    bounded(3, || {
        let words = Words::shown();
        let storing = {
            let words = Arc::clone(&words);
            thread::spawn(move || words.store(&words.ours, 3))
        };
        let evicted = words.evict();
        if evicted {
            words.reuse();
            assert_eq!(words.load(&words.theirs), Some(0), "their page is zero");
        }
        storing.join().unwrap();
        let value = words.bytes.load(Ordering::Relaxed);
        assert!(if evicted { value == 0 } else { [OURS, 3].contains(&value) });
        assert!(value != 3 || words.holds.load().is_dirty());
        assert_eq!(words.holds.load().pins(), 0);
    });
}

/// A page that may move from its first frame to its second.
#[derive(Default)]
struct Page {
    entry: EntryWord,
    frames: [(HoldWord, AtomicU64); 2],
}

impl Page {
    fn shown() -> Self {
        let page = Self::default();
        page.frames[0].0.begin(false);
        let empty = page.entry.load();
        page.entry.change(empty, empty.to_present(FrameId(0), Protection::READ_WRITE)).unwrap();
        page
    }

    /// As `access::load`. Returns `None` if a fault would follow.
    fn load(&self) -> Option<u64> {
        let seen = self.entry.load();
        let frame = seen.readable_at_home()?;
        let value = self.frames[frame.0 as usize].1.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        self.entry.still_is(seen).then_some(value)
    }

    /// As `access::on_word`, once. Returns `None` if a fault would follow.
    fn on_word<R>(&self, run: impl FnOnce(&AtomicU64) -> R) -> Option<R> {
        let seen = self.entry.load();
        let (holds, bytes) = &self.frames[seen.readable_at_home()?.0 as usize];
        holds.take_pin();
        let done = self.entry.still_is(seen).then(|| {
            fence(Ordering::Release);
            let done = run(bytes);
            holds.mark_dirty();
            done
        });
        assert_eq!(holds.drop_pin(), Dropped::Kept);
        done
    }

    fn store(&self, value: u64) -> Option<()> {
        self.on_word(|bytes| bytes.store(value, Ordering::Relaxed))
    }

    fn swap(&self, value: u64) -> Option<u64> {
        self.on_word(|bytes| bytes.swap(value, Ordering::SeqCst))
    }

    fn add(&self, value: u64) -> Option<u64> {
        self.on_word(|bytes| bytes.fetch_add(value, Ordering::SeqCst))
    }

    /// As `reclaim::migrate`, up to the release of the first frame.
    fn migrate(&self) {
        let [(holds, bytes), (fresh_holds, fresh_bytes)] = &self.frames;
        holds.take_pin();
        let seen = self.entry.load();
        let busy = seen.to_busy();
        if self.entry.change(seen, busy).is_ok() {
            let to = if holds.pinned_by_others(1) {
                busy.to_what_was(seen)
            } else {
                // As `ArenaBytes::copy_within`.
                fence(Ordering::Release);
                fresh_bytes.store(bytes.load(Ordering::Relaxed), Ordering::Relaxed);
                fresh_holds.begin(holds.load().is_dirty());
                busy.to_present_as(seen, FrameId(1))
            };
            assert!(!self.entry.publish(to));
        }
        assert_eq!(holds.drop_pin(), Dropped::Kept);
    }
}

/// A thread that loads what another has stored also sees what that thread stored before, even if either page
/// moves meanwhile.
#[test]
fn loom_a_load_acquires_what_a_store_releases() {
    for moves_message in [true, false] {
        bounded(3, move || {
            let pages = Arc::new([Page::shown(), Page::shown()]);
            let writing = {
                let pages = Arc::clone(&pages);
                thread::spawn(move || {
                    let [message, flag] = &*pages;
                    let _ = message.store(1).and_then(|()| flag.store(1));
                })
            };
            let moving = {
                let pages = Arc::clone(&pages);
                thread::spawn(move || {
                    let [message, flag] = &*pages;
                    if moves_message { message } else { flag }.migrate();
                })
            };
            let [message, flag] = &*pages;
            if flag.load() == Some(1) {
                let value = message.load();
                assert!(value.is_none_or(|value| value == 1), "the message had {value:?}");
            }
            writing.join().unwrap();
            moving.join().unwrap();
        });
    }
}

/// Changes of a word come one after the other, and none is lost, even if the page moves meanwhile.
#[test]
fn loom_no_change_of_a_word_is_lost_while_its_page_moves() {
    bounded(3, || {
        let page = Arc::new(Page::shown());
        let adding = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.add(1))
        };
        let moving = {
            let page = Arc::clone(&page);
            thread::spawn(move || page.migrate())
        };
        let own = page.add(1);
        let others = adding.join().unwrap();
        moving.join().unwrap();
        let done = own.is_some() as u64 + others.is_some() as u64;
        assert_eq!(page.load(), Some(done), "one found {own:?}, and the other {others:?}");
        assert!(own.is_none() || own != others, "both found {own:?}");
    });
}

/// Two threads each change a word of their own, and then read the other's word by a change. At least one sees
/// the other's change, because changes have one order for all threads.
#[test]
fn loom_changes_of_two_words_are_in_one_order_for_all() {
    bounded(3, || {
        let pages = Arc::new([Page::shown(), Page::shown()]);
        let other = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages[1].swap(1).and_then(|_| pages[0].add(0)))
        };
        let moving = {
            let pages = Arc::clone(&pages);
            thread::spawn(move || pages[0].migrate())
        };
        let seen = pages[0].swap(1).and_then(|_| pages[1].add(0));
        let others = other.join().unwrap();
        moving.join().unwrap();
        assert!(seen != Some(0) || others != Some(0), "neither saw the other's");
    });
}
