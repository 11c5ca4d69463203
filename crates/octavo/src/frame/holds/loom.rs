//! Models of the hold word: the last drop against release and reuse, a store against a writeback, and the
//! threads that may list a parked frame.
//!
//! The hold words are the real ones. If a thread must have the bytes of a frame alone, a cell of the checker
//! stands for the bytes. If a copy races with stores, a relaxed word stands for them. A bit stands for an
//! entry. Tables, lists and devices are left out.

use super::*;
use crate::sync::{Arc, bounded, fence, thread};
use ::loom::cell::UnsafeCell;

/// A frame, and the one entry that leads to it (a bit that says "shown").
#[derive(Default)]
struct ModelFrame {
    shown: AtomicU32,
    holds: HoldWord,
    frees: AtomicU32,
    bytes: UnsafeCell<u32>,
}

impl ModelFrame {
    /// Frees the frame whose last hold is gone. The first time, the allocator hands the frame out again at
    /// once.
    fn freed(&self) {
        self.bytes.with_mut(|_| ());
        if self.frees.fetch_add(1, Ordering::Relaxed) == 0 {
            self.holds.begin(true);
            self.bytes.with_mut(|_| ());
            if self.holds.release() == Dropped::Last {
                self.freed();
            }
        }
    }

    fn drop_pin(&self) {
        if self.holds.drop_pin() == Dropped::Last {
            self.freed();
        }
    }

    fn pin_and_look(&self) {
        if self.shown.load(Ordering::Acquire) == 1 {
            self.holds.take_pin();
            if self.shown.load(Ordering::Relaxed) == 1 {
                self.bytes.with(|_| ());
            }
            self.drop_pin();
        }
    }
}

/// Two pinners against the owner, which unmaps and releases. One or both pinners may be too late. Each life
/// of the frame ends once. While a pinner that saw its entry unchanged keeps its pin, no thread has the bytes
/// alone.
#[test]
fn loom_the_last_hold_frees_once_and_late_pins_survive_reuse() {
    bounded(3, || {
        let frame = Arc::new(ModelFrame::default());
        frame.holds.begin(true);
        frame.shown.store(1, Ordering::Release);
        let pinners = [(); 2].map(|()| {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.pin_and_look())
        });
        frame.shown.swap(0, Ordering::AcqRel);
        if frame.holds.release() == Dropped::Last {
            frame.freed();
        }
        for pinner in pinners {
            pinner.join().unwrap();
        }
        assert_eq!(frame.frees.load(Ordering::Relaxed), 2, "each of the two lives ended once");
        assert_eq!(frame.holds.load(), Holds(0));
    });
}

/// A store, done as in `access::write_through`, against a reclaimer that writes the frame back and takes it.
fn store_against_writeback(dirty: bool, unmapped_first: bool) {
    ::loom::model(move || {
        let frame = Arc::new((AtomicU32::new(1), HoldWord::default(), AtomicU32::new(0)));
        frame.1.begin(dirty);
        frame.1.take_pin();
        let storing = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                let (shown, holds, bytes) = &*frame;
                let before = holds.take_pin();
                let stored = shown.load(Ordering::Relaxed) == 1;
                if stored {
                    fence(Ordering::Release);
                    bytes.store(1, Ordering::Relaxed);
                    if !before.is_dirty() {
                        holds.mark_dirty();
                    }
                }
                let _ = holds.drop_pin();
                stored
            })
        };
        let (shown, holds, bytes) = &*frame;
        // If the page is clean, the copy at another place counts as well.
        let (mut copy, mut reclaimed) = (0, false);
        if unmapped_first {
            shown.swap(0, Ordering::AcqRel);
        }
        let page = if holds.load().is_dirty() { PageIs::Dirty } else { PageIs::Clean };
        if holds.start_writeback(page) {
            copy = bytes.load(Ordering::Relaxed);
            holds.end_writeback(true);
        }
        if unmapped_first {
            reclaimed = holds.try_reclaim();
        }
        let stored = storing.join().unwrap();
        assert!(
            !stored || copy == 1 || !reclaimed && holds.load().is_dirty(),
            "the store is neither in the copy nor will it be copied"
        );
    });
}

#[test]
fn loom_a_store_is_in_the_copy_or_leaves_the_frame_dirty() {
    for dirty in [false, true] {
        for unmapped_first in [false, true] {
            store_against_writeback(dirty, unmapped_first);
        }
    }
}

/// A pin that is accounted and dropped, a recount, and a reclaimer that takes the frame. A frame that was
/// taken keeps no mark, whatever the other threads did.
#[test]
fn loom_a_frame_that_is_taken_is_not_accounted() {
    ::loom::model(|| {
        let frame = Arc::new((AtomicU32::new(1), HoldWord::default()));
        frame.1.begin(false);
        let pinner = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                let (shown, holds) = &*frame;
                let before = holds.take_pin();
                if shown.load(Ordering::Relaxed) == 1 && !before.is_accounted() {
                    holds.account();
                }
                let _ = holds.drop_pin();
            })
        };
        let recount = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                if frame.1.load().is_accounted() {
                    frame.1.account_anew();
                }
            })
        };
        let (shown, holds) = &*frame;
        holds.take_pin();
        shown.swap(0, Ordering::AcqRel);
        let taken = holds.try_reclaim();
        pinner.join().unwrap();
        recount.join().unwrap();
        assert!(!taken || holds.load() == Holds(0), "{:?}", holds.load());
    });
}

/// A frame that a reclaimer has isolated, and how often it was listed and freed.
#[derive(Default)]
struct Parking {
    holds: HoldWord,
    /// Only the thread that has the frame isolated may write its LRU data.
    hand: UnsafeCell<()>,
    listed: AtomicU32,
    freed: AtomicU32,
}

impl Parking {
    fn list(&self) {
        self.hand.with_mut(|_| ());
        self.listed.fetch_add(1, Ordering::Relaxed);
    }

    fn drop_pin(&self) {
        match self.holds.drop_pin() {
            Dropped::Kept => {}
            Dropped::Last => {
                self.freed.fetch_add(1, Ordering::Relaxed);
            }
            Dropped::ToBeListed => {
                self.list();
                self.drop_pin();
            }
        }
    }

    /// Takes and drops a pin on another thread.
    fn pass_by(frame: &Arc<Self>) -> thread::JoinHandle<()> {
        let frame = Arc::clone(frame);
        thread::spawn(move || {
            frame.holds.take_pin();
            frame.drop_pin();
        })
    }

    /// Releases the frame for its owner.
    fn let_go(&self) {
        if self.holds.release() == Dropped::Last {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Does what `Lru::decide` does with a frame that looked pinned.
    fn decide(&self) {
        self.hand.with_mut(|_| ());
        if !self.holds.park() {
            self.list();
        }
        self.drop_pin();
    }
}

/// A reclaimer parks a frame that only it holds, while another thread lists parked frames, a third takes and
/// drops a pin, and the owner may release the frame. The thread that lists the frame has it alone, and a
/// released frame is freed once.
#[test]
fn loom_a_frame_that_is_parked_alone_is_in_one_hand_or_none() {
    for released in [false, true] {
        bounded(3, move || {
            let frame = Arc::new(Parking::default());
            frame.holds.begin(true);
            frame.holds.take_pin();
            let reclaimer = {
                let frame = Arc::clone(&frame);
                thread::spawn(move || {
                    frame.hand.with_mut(|_| ());
                    if !frame.holds.park_alone() {
                        frame.list();
                        frame.drop_pin();
                    }
                })
            };
            let passer_by = Parking::pass_by(&frame);
            if frame.holds.take_parked() {
                frame.list();
                frame.drop_pin();
            }
            if released {
                frame.let_go();
            }
            reclaimer.join().unwrap();
            passer_by.join().unwrap();
            let (listed, freed) = (frame.listed.load(Ordering::Relaxed), frame.freed.load(Ordering::Relaxed));
            assert!(listed <= 1, "it is listed twice");
            if released {
                assert_eq!((freed, frame.holds.load()), (1, Holds(0)));
            } else {
                assert_eq!(
                    (freed, listed == 0, frame.holds.load().pins()),
                    (0, frame.holds.load().is_parked(), 0)
                );
            }
        });
    }
}

/// A reclaimer parks a frame while its holder drops the last pin, another thread takes and drops a pin, and
/// the owner may release the frame. A live frame is listed once. A released frame is freed once.
#[test]
fn loom_a_parked_frame_is_listed_by_one_thread() {
    for released in [false, true] {
        bounded(3, move || {
            let frame = Arc::new(Parking::default());
            frame.holds.begin(true);
            // One pin for the reclaimer, and one for the holder.
            frame.holds.take_pin();
            frame.holds.take_pin();
            let reclaimer = {
                let frame = Arc::clone(&frame);
                thread::spawn(move || frame.decide())
            };
            let passer_by = Parking::pass_by(&frame);
            frame.drop_pin();
            if released {
                frame.let_go();
            }
            reclaimer.join().unwrap();
            passer_by.join().unwrap();
            let (listed, freed) = (frame.listed.load(Ordering::Relaxed), frame.freed.load(Ordering::Relaxed));
            if released {
                assert_eq!((freed, frame.holds.load()), (1, Holds(0)));
                assert!(listed <= 1);
            } else {
                assert_eq!((listed, freed), (1, 0), "it is lost to reclaim, or listed twice");
                assert!(!frame.holds.load().is_parked() && frame.holds.load().pins() == 0);
            }
        });
    }
}
