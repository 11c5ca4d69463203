//! The break: a heap that grows and shrinks by `sbrk`.
//!
//! The break belongs to the allocator of the process. So the work happens in a forked child, whose only
//! thread allocates nothing while it moves the break. Memory that `sbrk` gave back must be zero when it
//! returns.

use crate::finding::{insist, last_error};
use crate::memory::PAGE;
use crate::process::fork;
use crate::random::mix;
use crate::work::{Team, WorkerState};

pub const OPERATIONS: &[&str] =
    &["growths", "pages grown", "shrinkings", "pages written", "pages read", "idle times"];

pub fn run(team: Team<'_>) {
    let mut work = WorkerState::new(team, 0);
    fork(|| torture(&mut work)).wait("the child that moves its break");
}

/// The most pages of a break.
const MOST_PAGES: usize = 1 << 18;

/// A heap with the key of each page's words. The key 0 is a page of zeros. The keys are in a mapping, so that
/// nothing here allocates.
struct BrkHeap {
    base: *mut u8,
    pages: usize,
    keys: crate::memory::OwnMapping,
}

fn torture(work: &mut WorkerState<'_>) {
    let most = (work.team.bytes / PAGE).clamp(16, MOST_PAGES);
    let keys = crate::memory::OwnMapping::anonymous(most * 8);
    let misaligned = sbrk(0) as usize % PAGE;
    sbrk(if misaligned == 0 { 0 } else { (PAGE - misaligned) as isize });
    let mut heap = BrkHeap { base: sbrk(0), pages: 0, keys };
    while work.goes_on() {
        match work.random.below(8) {
            0..2 if heap.pages < most => {
                let grown = 1 + work.random.below(most - heap.pages);
                let got = sbrk((grown * PAGE) as isize);
                insist!(
                    got == heap.base.wrapping_add(heap.pages * PAGE),
                    "the break was moved by another party."
                );
                for page in heap.pages..heap.pages + grown {
                    heap.set_key(page, 0);
                }
                heap.pages += grown;
                heap.check(work, heap.pages - grown, heap.pages, "after the break grew");
                work.count("growths");
                work.team.tally.add("pages grown", grown as u64);
            }
            2 if heap.pages > 0 => {
                let gone = 1 + work.random.below(heap.pages);
                sbrk(-((gone * PAGE) as isize));
                heap.pages -= gone;
                let last = heap.pages.saturating_sub(1);
                heap.check(work, last, heap.pages, "beside a break that shrank");
                work.count("shrinkings");
            }
            3 => {
                work.idle(30);
                work.count("idle times");
            }
            4..6 if heap.pages > 0 => {
                let run = work.random.run(heap.pages, 2048);
                for page in run {
                    heap.fill(work, page);
                }
            }
            _ if heap.pages > 0 => {
                let run = work.random.run(heap.pages, 4096);
                heap.check(work, run.start, run.end, "in the heap");
            }
            _ => {}
        }
    }
    heap.check(work, 0, heap.pages, "at the end");
}

impl BrkHeap {
    fn key(&self, page: usize) -> u64 {
        self.keys.word(page * 8).load(std::sync::atomic::Ordering::Relaxed)
    }

    fn set_key(&self, page: usize, key: u64) {
        self.keys.word(page * 8).store(key, std::sync::atomic::Ordering::Relaxed);
    }

    fn expected(&self, page: usize, index: usize) -> u64 {
        match self.key(page) {
            0 => 0,
            key => mix(key.wrapping_add(index as u64)) | 1,
        }
    }

    fn word(&self, page: usize, index: usize) -> *mut u64 {
        assert!(page < self.pages && index < PAGE / 8);
        self.base.wrapping_add(page * PAGE + index * 8).cast()
    }

    fn fill(&self, work: &mut WorkerState<'_>, page: usize) {
        self.set_key(page, mix(work.new_generation()) | 1);
        for index in 0..PAGE / 8 {
            // SAFETY: the word lies below the break, in memory that no other code of this process knows.
            unsafe { self.word(page, index).write_volatile(self.expected(page, index)) };
        }
        if work.spoils(crate::work::Sabotage::Flip) || work.spoils(crate::work::Sabotage::Zero) {
            // SAFETY: as above.
            unsafe { self.word(page, 1).write_volatile(0) };
        }
        work.count("pages written");
    }

    fn check(&self, work: &WorkerState<'_>, first: usize, end: usize, when: &str) {
        for page in first..end {
            for index in 0..PAGE / 8 {
                let at = self.word(page, index);
                // SAFETY: as in `fill`.
                let found = unsafe { at.read_volatile() };
                let expected = self.expected(page, index);
                insist!(
                    found == expected,
                    "{when}, the word at {at:p} is {found:#018x} and should be {expected:#018x}."
                );
            }
        }
        work.team.tally.add("pages read", (end - first) as u64);
    }
}

/// Moves the break, and returns where it was.
fn sbrk(by: isize) -> *mut u8 {
    // SAFETY: the process has one thread, which only gives back memory that it took here. The allocator finds
    // its own part untouched, and copes with a break that was moved elsewhere.
    let before = unsafe { libc::sbrk(by) };
    insist!(before as isize != -1, "sbrk by {by} was refused: {}", last_error());
    before.cast()
}
