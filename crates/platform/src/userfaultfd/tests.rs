//! Faults, copies, moves and events of this process's own memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Backing, PAGE_BYTES, Reservation};

const PAGE: u64 = PAGE_BYTES as u64;
const FULL: RegisterMode = RegisterMode { missing: true, write_protect: true };

/// A registered range of missing pages.
struct Paged {
    // The descriptor is dropped before the range. In the other order, unmapping the range would raise an
    // event, and would wait for its reader.
    faults: Userfaultfd,
    range: Reservation,
}

impl Paged {
    fn new(pages: usize, features: Features) -> Self {
        let range = Reservation::new(pages * PAGE_BYTES, PAGE_BYTES).unwrap();
        range.advise_backing(0..range.len(), Backing::BasePages);
        let faults = Userfaultfd::of_this_process(features).unwrap();
        let paged = Self { range, faults };
        // SAFETY: the range is the test's own, and only atomics and system calls access it.
        unsafe { paged.faults.register(paged.at(0), (pages * PAGE_BYTES) as u64, FULL) }.unwrap();
        paged
    }

    fn at(&self, page: u64) -> u64 {
        self.range.base().as_ptr() as u64 + page * PAGE
    }

    fn word(&self, page: u64) -> &AtomicU64 {
        // SAFETY: the word is inside the range and aligned, and only atomics access it.
        unsafe { &*(self.at(page) as *const AtomicU64) }
    }

    fn copy(&self, page: u64, from: &[u64], protected: bool) -> CallProgress {
        let len = size_of_val(from) as u64;
        // SAFETY: the source is a live slice.
        unsafe { self.faults.copy(self.at(page), from.as_ptr().cast(), len, protected, true) }
    }

    fn next_events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        while self.faults.read(&mut events).unwrap() == 0 {
            std::thread::yield_now();
        }
        events
    }
}

#[test]
fn a_missing_page_is_a_fault_that_a_copy_answers() {
    let paged = Paged::new(4, Features::WRITE_PROTECT | Features::THREAD_ID);
    assert_eq!(paged.faults.read(&mut Vec::new()).unwrap(), 0);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            (paged.word(2).load(Ordering::Relaxed), thread)
        });
        let events = paged.next_events();
        let [Event::Fault { address, write: false, protected: false, thread }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(address, paged.at(2));
        assert_eq!(paged.copy(2, &[77; 512], false), CallProgress { done_bytes: PAGE, error: None });
        let (value, reader) = reader.join().unwrap();
        assert_eq!((value, thread), (77, Some(reader)));
    });
}

#[test]
fn a_copy_stops_at_a_page_that_is_there_and_tells_the_part() {
    let paged = Paged::new(4, Features::WRITE_PROTECT);
    assert!(paged.copy(1, &[5; 512], false).is_whole());
    let part = paged.copy(0, &[6; 1024], false);
    assert_eq!(part, CallProgress { done_bytes: PAGE, error: Some(Errno::AGAIN) });
    assert_eq!(paged.copy(1, &[6; 512], false), CallProgress { done_bytes: 0, error: Some(Errno::EXIST) });
    assert_eq!(paged.word(0).load(Ordering::Relaxed), 6);
    assert_eq!(paged.word(1).load(Ordering::Relaxed), 5);
    assert!(paged.faults.zero(paged.at(2), 2 * PAGE, false).is_whole());
    assert_eq!(paged.word(3).load(Ordering::Relaxed), 0);
}

#[test]
fn a_store_to_a_protected_page_waits_until_it_is_let_through() {
    let paged = Paged::new(1, Features::WRITE_PROTECT);
    assert!(paged.copy(0, &[1; 512], true).is_whole());
    std::thread::scope(|scope| {
        scope.spawn(|| paged.word(0).store(2, Ordering::Relaxed));
        let events = paged.next_events();
        let [Event::Fault { write: true, protected: true, thread: None, .. }] = events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(paged.word(0).load(Ordering::Relaxed), 1);
        paged.faults.write_protect(paged.at(0), PAGE, false).unwrap();
    });
    assert_eq!(paged.word(0).load(Ordering::Relaxed), 2);
}

#[test]
fn a_waiter_sleeps_on_when_its_page_comes_without_waking() {
    let paged = Paged::new(1, Features::WRITE_PROTECT);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| paged.word(0).load(Ordering::Relaxed));
        paged.next_events();
        assert!(paged.faults.zero(paged.at(0), PAGE, false).is_whole());
        paged.word(0).store(9, Ordering::Relaxed);
        paged.faults.wake(paged.at(0), PAGE).unwrap();
        assert_eq!(reader.join().unwrap(), 9);
    });
}

#[test]
fn pages_move_and_leave_holes_behind() {
    let from = Paged::new(2, Features::WRITE_PROTECT | Features::MOVE);
    let to = Paged::new(2, Features::WRITE_PROTECT | Features::MOVE);
    assert!(from.copy(0, &[3; 512], false).is_whole());
    // SAFETY: both ranges are the test's own.
    let moved = unsafe { to.faults.move_pages(to.at(0), from.at(0), 2 * PAGE) };
    assert_eq!(moved, CallProgress { done_bytes: 2 * PAGE, error: None }, "a hole counts as moved");
    assert!(to.copy(1, &[5; 512], false).is_whole(), "it is a hole at the new place too");
    assert_eq!(to.word(0).load(Ordering::Relaxed), 3);
    // The page is missing at its old place, so that it can be filled there again.
    assert!(from.copy(0, &[4; 512], false).is_whole());
}

#[test]
fn pages_given_back_and_ranges_moved_or_unmapped_are_events() {
    // The target is declared first, so that it lives longer than the descriptor: it will hold a page that is
    // registered there.
    let target = Reservation::new(PAGE_BYTES, PAGE_BYTES).unwrap();
    let features = Features::EVENT_REMOVE | Features::EVENT_UNMAP | Features::EVENT_REMAP;
    let paged = Paged::new(8, features | Features::WRITE_PROTECT);
    let at = |page| paged.at(page) as *mut libc::c_void;
    std::thread::scope(|scope| {
        let range = &paged.range;
        scope.spawn(|| range.discard(PAGE_BYTES..2 * PAGE_BYTES).unwrap());
        let events = paged.next_events();
        let [Event::Remove { start, end }] = events[..] else { panic!("{events:?}") };
        assert_eq!((start, end), (paged.at(1), paged.at(2)));
    });
    let (old, new) = (at(4) as u64, target.base().as_ptr() as u64);
    std::thread::scope(|scope| {
        let mover = scope.spawn(move || {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: both pages are the test's own, and nobody uses them.
            let moved = unsafe {
                libc::mremap(old as *mut _, PAGE_BYTES, PAGE_BYTES, flags, new as *mut libc::c_void)
            };
            assert_eq!(moved as u64, new);
        });
        // The kernel may report the unmapping of the old address by a second event. The call waits until that
        // event is read, too.
        let mut events = Vec::new();
        while !mover.is_finished() {
            paged.faults.read(&mut events).unwrap();
        }
        let is_ours = |event: &Event| matches!(event, Event::Remap { from, to, len: PAGE } if (*from, *to) == (old, new));
        assert!(events.iter().any(is_ours), "{events:?}");
    });
    std::thread::scope(|scope| {
        let old = at(6) as u64;
        scope.spawn(move || {
            // SAFETY: the page is the test's own, and is not used again.
            unsafe { libc::munmap(old as *mut libc::c_void, PAGE_BYTES) };
        });
        let events = paged.next_events();
        assert!(
            matches!(events[..], [Event::Unmap { start, end }] if (start, end) == (paged.at(6), paged.at(7)))
        );
    });
}

#[test]
fn a_second_handshake_and_a_feature_unknown_to_the_kernel_are_errors() {
    let faults = Userfaultfd::of_this_process(Features::NONE).unwrap();
    let again = faults.as_fd().try_clone_to_owned().unwrap();
    assert!(Userfaultfd::from_descriptor(again, Features::NONE).is_err());
    let error = Userfaultfd::of_this_process(Features(1 << 62)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    let no_descriptor = std::fs::File::open("/dev/null").unwrap();
    assert!(Userfaultfd::from_descriptor(no_descriptor.into(), Features::NONE).is_err());
}

#[test]
fn a_fork_hands_over_the_descriptor_of_the_child() {
    let code = crate::run_in_forked_child(|| {
        let paged = Paged::new(1, Features::EVENT_FORK);
        let child = std::thread::scope(|scope| {
            // SAFETY: the child ends at once.
            let forked = scope.spawn(|| unsafe {
                match libc::fork() {
                    0 => libc::_exit(0),
                    pid => pid,
                }
            });
            let events = paged.next_events();
            let is_fork = matches!(events[..], [Event::Fork(_)]);
            (forked.join().unwrap(), is_fork)
        });
        // SAFETY: the child is ours.
        unsafe { libc::waitpid(child.0, std::ptr::null_mut(), 0) };
        u8::from(!child.1)
    });
    assert_eq!(code.unwrap(), 0);
}
