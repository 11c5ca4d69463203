//! Robust mutexes that a program's threads hold. Their pages stay in memory.
//!
//! When a thread ends, the kernel goes through the thread's list of robust mutexes, and marks those that it holds still, so that the
//! next owner learns of it. It does not wait for a missing page there, nor for a protected one: such a mutex stays locked for ever.
//!
//! ```text
//!   pages are to go ─► look: what do the threads hold? ─► those pages are refused, as if a device had them
//!   a page is held that was not at the last look ─► the driver makes it usable: it may have gone in between, or be protected
//! ```
//!
//! A mutex that was locked after the last look may go for a moment. So one may stay locked whose thread ends right after it has locked
//! it: within a few milliseconds, or later on a machine that is busy.
//!
//! A process of one thread is not looked at: whoever would get the mutex ends with it.
//!
//! Costs of a look: for one thread, one system call (0.4 µs). For more, about 5 µs and 1 µs a thread, once a millisecond, or for a
//! fiftieth of the time where that is less.
//!
//! Source: `Documentation/locking/robust-futexes.rst` and `exit_robust_list` in `kernel/futex/core.c` of Linux.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use octavo_platform::threads::{of_process, robust_list};

const PAGE: u64 = octavo::PAGE_BYTES as u64;
/// The kernel marks no more mutexes of one thread.
const MOST_HELD: usize = 2048;
/// The lowest bit of an address in a list tells mutexes that inherit priorities.
const KIND_BIT: u64 = 1;
/// A look may take one in so many parts of the time, but the next one is not put off for longer than this.
const TIME_SHARE: u32 = 50;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// The links of a folder that are none of a thread's: the two of an empty one.
const OWN_LINKS: u64 = 2;

/// What the threads of one process hold.
#[derive(Debug)]
pub(crate) struct RobustMutexes {
    pid: u32,
    tasks: File,
    memory: File,
    /// There was more than one at the last look.
    has_threads: bool,
    /// When the next look may be.
    next: Instant,
    /// Pages of held mutexes, in order.
    pages: Vec<u64>,
    /// Those of them that nobody has made usable since they were found.
    found: Vec<u64>,
}

/// The head of a thread's list, as the kernel defines it.
#[derive(Clone, Copy, Debug)]
struct Head {
    first: u64,
    /// From an entry to the word of its mutex.
    word_offset: u64,
    /// A mutex that is being locked or unlocked.
    pending: u64,
}

impl RobustMutexes {
    /// # Errors
    /// The kernel's: the process has ended, or may not be looked at.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let tasks = File::open(format!("/proc/{pid}/task"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let (next, pages, found) = (Instant::now(), Vec::new(), Vec::new());
        Ok(Self { pid, tasks, memory, has_threads: false, next, pages, found })
    }

    /// Looks, unless the last look was a moment ago. Returns whether it did.
    pub(crate) fn look(&mut self) -> bool {
        let began = Instant::now();
        if began < self.next {
            return false;
        }
        let pages = self.held();
        self.note(pages);
        let now = Instant::now();
        self.next = now + ((now - began) * (TIME_SHARE - 1)).min(LONGEST_PAUSE);
        true
    }

    fn held(&mut self) -> Vec<u64> {
        let mut pages = Vec::new();
        // A process that has ended has no threads.
        self.has_threads = self.tasks.metadata().is_ok_and(|tasks| tasks.nlink() > OWN_LINKS + 1);
        if self.has_threads {
            let threads = of_process(self.pid).unwrap_or_default();
            threads.into_iter().filter_map(robust_list).for_each(|head| self.add_held(head, &mut pages));
        }
        pages
    }

    fn note(&mut self, mut pages: Vec<u64>) {
        pages.sort_unstable();
        pages.dedup();
        self.found.retain(|page| pages.binary_search(page).is_ok());
        self.found.extend(pages.iter().filter(|page| self.pages.binary_search(page).is_err()));
        self.pages = pages;
    }

    /// Returns whether the process had more than one thread at the last look.
    pub(crate) fn has_threads(&self) -> bool {
        self.has_threads
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.pages.is_empty()
    }

    /// Returns how many bytes of a run may go: those before the first page with a held mutex.
    pub(crate) fn may_go(&self, start: u64, len: u64) -> u64 {
        let first = self.pages.partition_point(|page| *page < start);
        self.pages.get(first).map_or(len, |page| (page - start).min(len))
    }

    /// Adds the pages that were found to be held since the last call.
    pub(crate) fn take_found(&mut self, pages: &mut Vec<u64>) {
        pages.append(&mut self.found);
    }

    fn add_held(&self, at: u64, pages: &mut Vec<u64>) {
        // A thread notes a mutex as pending, locks it, lists it, and clears the note. So the note is read before the list. The other way
        // round it unlists the mutex first, and so the note is read after the list as well.
        let Some(before) = self.head(at) else { return };
        let Some(Head { first, word_offset, pending }) = self.head(at) else { return };
        let mut add = |entry: u64| {
            for address in [entry, entry.wrapping_add(word_offset)] {
                // Also where the end of a word is the next page's.
                pages.extend([address, address.wrapping_add(7)].map(|byte| byte & !(PAGE - 1)));
            }
        };
        for pending in [before.pending, pending] {
            if pending & !KIND_BIT != 0 {
                add(pending & !KIND_BIT);
            }
        }
        let mut entry = first;
        for _ in 0..MOST_HELD {
            if entry & !KIND_BIT == at {
                break;
            }
            add(entry & !KIND_BIT);
            // A page that is out is an error, and nobody waits for it. The rest is found when it is back.
            let Some(next) = self.word(entry & !KIND_BIT) else { break };
            entry = next;
        }
    }

    fn head(&self, at: u64) -> Option<Head> {
        let mut bytes = [0; 24];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        let [first, word_offset, pending] = [0, 8, 16]
            .map(|offset| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes")));
        Some(Head { first, word_offset, pending })
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Three pages of words, of which the first is the head's.
    #[repr(align(4096))]
    struct Words([AtomicU64; 3 * 512]);

    static WORDS: Words = Words([const { AtomicU64::new(0) }; 3 * 512]);

    fn at(word: usize) -> u64 {
        WORDS.0[word].as_ptr() as u64
    }

    fn set(words: &[(usize, u64)]) {
        words.iter().for_each(|(word, value)| WORDS.0[*word].store(*value, Ordering::SeqCst));
    }

    #[test]
    fn pages_of_what_a_thread_holds_or_is_about_to_lock_stay_and_each_is_told_once() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        let (page, second, third) = (at(0), at(512), at(1024));
        let mut check = |held: &[u64], news: &[u64]| {
            let mut pages = Vec::new();
            mutexes.add_held(page, &mut pages);
            mutexes.note(pages);
            assert_eq!((mutexes.pages.as_slice(), mutexes.has_any()), (held, !held.is_empty()));
            let mut told = Vec::new();
            mutexes.take_found(&mut told);
            assert_eq!(told, news);
            (mutexes.may_go(page, 3 * PAGE), mutexes.may_go(second, PAGE), mutexes.may_go(third, PAGE))
        };
        // An empty list leads to itself.
        set(&[(0, at(0))]);
        assert_eq!(check(&[], &[]), (3 * PAGE, PAGE, PAGE));
        // One mutex in the list, whose word lies before its entry.
        set(&[(0, at(512 + 2)), (1, (-16_i64) as u64), (512 + 2, at(0))]);
        assert_eq!(check(&[second], &[second]), (PAGE, 0, PAGE));
        assert_eq!(check(&[second], &[]), (PAGE, 0, PAGE));
        // Another one is about to be locked. The lowest bit says of what kind it is.
        set(&[(2, at(1024 + 2) | KIND_BIT)]);
        assert_eq!(check(&[second, third], &[third]), (PAGE, 0, 0));
        // It is locked, and the list goes on at an address that cannot be read.
        set(&[(2, 0), (0, at(1024 + 2)), (1024 + 2, at(512 + 2)), (512 + 2, (64 << 46) + 32)]);
        assert_eq!(check(&[second, third, 64 << 46], &[64 << 46]), (PAGE, 0, 0));
        // A list that leads nowhere ends.
        set(&[(512 + 2, at(512 + 2))]);
        assert_eq!(check(&[second, third], &[]), (PAGE, 0, 0));
        set(&[(0, at(0))]);
        assert_eq!(check(&[], &[]), (3 * PAGE, PAGE, PAGE));
    }

    #[test]
    fn what_was_let_go_before_it_was_told_is_not_told() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        let mut told = Vec::new();
        mutexes.note(vec![3 * PAGE, PAGE, PAGE]);
        mutexes.note(vec![PAGE, 5 * PAGE]);
        mutexes.take_found(&mut told);
        assert_eq!(told, [PAGE, 5 * PAGE]);
    }

    #[test]
    fn there_is_no_look_before_its_time() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        assert!(mutexes.look());
        mutexes.next = Instant::now() + Duration::from_secs(60);
        assert!(!mutexes.look());
    }
}
