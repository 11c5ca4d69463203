//! Finds the robust mutexes that a program's threads hold. Their pages stay in memory.
//!
//! When a thread ends, the kernel walks the thread's list of robust mutexes, and marks those that the thread
//! still holds, so that the next owner of the mutex learns that its thread has ended. The kernel does not
//! wait for a missing or protected page: a mutex there stays locked for ever.
//!
//! ```text
//!   pages are to go ─► look: what do the threads hold? ─► those pages are refused, as if a device had them
//!   a page is newly held ─► the driver makes it usable: it may be out since the last look, or protected
//! ```
//!
//! The page of a mutex that was locked after the last look may go for a moment. So a mutex may stay locked if
//! its thread ends right after locking it: within a few milliseconds, or later on a busy machine.
//!
//! **A look may miss a mutex.** A thread that unlocks a mutex takes the entry out of its list. A walk over
//! the list at that moment may lead nowhere. A thread that ends while the kernel lists the threads may hide
//! another one. So a page stays if this look or the one before has found it. After pages have gone, there are
//! at least two looks. A look that was cut short drops none of the earlier pages, up to [`MOST_KEPT`], and
//! requires another look. The same holds if a walk does not return to its start: an entry that was handed
//! over to another thread leads the walk into that thread's list.
//!
//! The page of a list's head stays too. The C library keeps the head in the thread's descriptor. When the
//! thread ends, the kernel also clears the thread's number there, and other threads may wait for that.
//!
//! A look costs about 5 µs, plus 1 to 2 µs per thread. There is about one look per millisecond. Looks take at
//! most a fiftieth of the looking thread's time, or a tenth with hundreds of threads. A process with one
//! thread that holds nothing is also looked at after each batch.
//!
//! Source: `Documentation/locking/robust-futexes.rst` and `exit_robust_list` in `kernel/futex/core.c` of
//! Linux.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use octavo_platform::threads::{of_process, robust_list};
use rustix::time::{ClockId, clock_gettime};

const PAGE: u64 = octavo::PAGE_BYTES as u64;
/// The kernel marks no more mutexes of one thread.
const MOST_HELD: usize = 2048;
/// The lowest bit of an address in a list marks mutexes with priority inheritance.
const KIND_BIT: u64 = 1;
/// Looks may take one part in `TIME_SHARE` of the time. But the next look is delayed by no more than
/// `LONGEST_PAUSE`, or by `LONGEST_PAUSE_LOOKS` times the CPU time of the last look if that is longer.
const TIME_SHARE: u32 = 50;
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE_LOOKS: u32 = 9;
/// A list that was cut short for this long counts as whole, since it may lead nowhere for ever. A page in
/// transit may take seconds.
const LONGEST_CUT: Duration = Duration::from_secs(30);
/// Looks that were cut short keep at most about this many pages besides those that they have found.
const MOST_KEPT: usize = 4096;
/// The pause is at least as long as the look took, up to this limit: others wait for the program's pages
/// during a look.
const LONGEST_EVEN_PAUSE: Duration = Duration::from_millis(20);
/// A page that could not be made usable is left alone for this long.
const BETWEEN_TRIES: Duration = Duration::from_millis(20);
/// Addresses of programs are below this, and not in the first page.
const ADDRESSES: u64 = 1 << 56;
/// The links of a folder that do not belong to threads: the two of an empty folder.
const OWN_LINKS: u64 = 2;

/// The mutexes that the threads of one process hold.
#[derive(Debug)]
pub(crate) struct RobustMutexes {
    pid: u32,
    tasks: File,
    memory: File,
    /// Whether there were several threads at the last look, or a thread held something.
    may_hold: bool,
    /// The earliest time of the next look.
    next: Instant,
    /// Pages that the last look has found, in order. If the look was cut short, the pages that were found
    /// before it are among them.
    seen: Vec<u64>,
    /// The pages that stay, in order: those of the last two looks, and those kept for looks that were cut
    /// short.
    pages: Vec<u64>,
    /// The pages that have not been made usable since they were found.
    found: Vec<u64>,
    /// The pages that could not be made usable. A search after `again_at` finds them again.
    again: Vec<u64>,
    again_at: Instant,
    /// The lists that were cut short at the last look, by address, and since when.
    cut: Vec<(u64, Instant)>,
    /// Whole looks in a row since pages have gone.
    whole_looks: u32,
}

/// The findings of a look.
#[derive(Debug, Default)]
struct ListFindings {
    pages: Vec<u64>,
    /// The lists that could not be read to their ends, or 0 if the threads could not be listed.
    cut: Vec<u64>,
}

/// The head of a thread's list, as the kernel defines it.
#[derive(Clone, Copy, Debug)]
struct RobustHead {
    first: u64,
    /// The offset from an entry to the word of its mutex.
    word_offset: u64,
    /// A mutex that is being locked or unlocked.
    pending: u64,
}

impl RobustMutexes {
    /// # Errors
    /// The kernel's error if the process has ended, or may not be inspected.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let tasks = File::open(format!("/proc/{pid}/task"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let (may_hold, next, again_at) = (false, Instant::now(), Instant::now());
        let (seen, pages, found, again, cut) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ok(Self {
            pid,
            tasks,
            memory,
            may_hold,
            next,
            seen,
            pages,
            found,
            again,
            again_at,
            cut,
            whole_looks: 0,
        })
    }

    /// Looks, unless the last look was a moment ago. Returns true if no other look is needed: this one and
    /// the one before were whole, and no page must be found again.
    pub(crate) fn look(&mut self) -> bool {
        let began = Instant::now();
        if began < self.next {
            return false;
        }
        let cpu_began = cpu_time();
        let look = self.held();
        let is_whole = self.note(look, began);
        // Other threads may have had the CPU meanwhile, so measure this thread's CPU time.
        let took = cpu_time().saturating_sub(cpu_began);
        let longest = LONGEST_PAUSE.max(took * LONGEST_PAUSE_LOOKS);
        let even = began.elapsed().min(LONGEST_EVEN_PAUSE);
        self.next = Instant::now() + (took * (TIME_SHARE - 1)).min(longest).max(even);
        self.whole_looks = if is_whole { self.whole_looks.saturating_add(1) } else { 0 };
        self.whole_looks > 1 && self.again.is_empty()
    }

    fn held(&mut self) -> ListFindings {
        let mut look = ListFindings::default();
        // An ended process has no threads.
        let has_threads = self.tasks.metadata().is_ok_and(|tasks| tasks.nlink() > OWN_LINKS + 1);
        let threads = if has_threads { of_process(self.pid) } else { Ok(vec![self.pid]) };
        if threads.is_err() {
            look.cut.push(0);
        }
        let lists = threads.into_iter().flatten().filter_map(robust_list);
        let holds = lists.map(|at| self.add_held(at, &mut look)).fold(false, |any, holds| any | holds);
        self.may_hold = has_threads || holds;
        look
    }

    /// Stores a look. Returns whether it counts as whole.
    fn note(&mut self, ListFindings { pages: mut seen, mut cut }: ListFindings, now: Instant) -> bool {
        cut.sort_unstable();
        let since = |at: u64| {
            let before = self.cut.binary_search_by_key(&at, |(list, _)| *list);
            before.map_or(now, |index| self.cut[index].1)
        };
        self.cut = cut.into_iter().map(|at| (at, since(at))).collect();
        let is_whole = self.cut.iter().all(|(_, since)| now - *since > LONGEST_CUT);
        put_in_order(&mut seen);
        let keeps = !is_whole && self.pages.len() <= seen.len() + MOST_KEPT;
        if keeps {
            seen.extend(&self.seen);
            put_in_order(&mut seen);
        }
        let mut pages = std::mem::replace(&mut self.seen, seen);
        pages.extend(&self.seen);
        if keeps {
            // Keep the pages that the last look has missed, too.
            pages.extend(&self.pages);
        }
        put_in_order(&mut pages);
        if now >= self.again_at {
            self.found.append(&mut self.again);
        }
        self.found.retain(|page| pages.binary_search(page).is_ok());
        self.found.extend(pages.iter().filter(|page| self.pages.binary_search(page).is_err()));
        self.pages = pages;
        is_whole
    }

    /// Notes that a page could not be made usable. A look soon finds it again, if it is still held.
    pub(crate) fn is_not_usable(&mut self, page: u64) {
        if self.again.is_empty() {
            self.again_at = Instant::now() + BETWEEN_TRIES;
        }
        self.again.push(page);
    }

    /// Returns whether pages that have gone may hold mutexes: at the last look, or at an extra look now, the
    /// process had several threads or held a mutex.
    pub(crate) fn may_hold(&mut self) -> bool {
        self.whole_looks = 0;
        if !self.may_hold {
            let look = self.held();
            self.note(look, Instant::now());
        }
        self.may_hold
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

    /// Adds the pages of what a thread holds, by the address of its list. Returns whether it may hold
    /// anything.
    fn add_held(&self, at: u64, look: &mut ListFindings) -> bool {
        add(&mut look.pages, at);
        // To lock, a thread notes a mutex as pending, locks it, lists it, and clears the note. So the note is
        // read before the list. To unlock, it unlists the mutex before it clears the note. So the note is
        // read after the list too.
        let (Some(before), Some(RobustHead { first, word_offset, pending })) = (self.head(at), self.head(at))
        else {
            look.cut.push(at);
            return true;
        };
        let mut add_entry = |entry: u64| {
            add(&mut look.pages, entry);
            add(&mut look.pages, entry.wrapping_add(word_offset));
        };
        let mut entry = first & !KIND_BIT;
        for _ in 0..MOST_HELD {
            if entry == at {
                break;
            }
            add_entry(entry);
            // A page that is out gives an error, without a wait. A look finds the rest when the page is back.
            let Some(next) = self.word(entry) else { break };
            entry = next & !KIND_BIT;
        }
        let after = self.head(at);
        if entry != at || after.is_none() {
            look.cut.push(at);
        }
        let after = after.map_or(0, |head| head.pending);
        let mut holds = first & !KIND_BIT != at;
        for pending in [before.pending, pending, after].map(|pending| pending & !KIND_BIT) {
            if pending != 0 {
                add_entry(pending);
                holds = true;
            }
        }
        holds
    }

    fn head(&self, at: u64) -> Option<RobustHead> {
        let mut bytes = [0; 24];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        let [first, word_offset, pending] = [0, 8, 16]
            .map(|offset| u64::from_ne_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes")));
        Some(RobustHead { first, word_offset, pending })
    }

    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }
}

fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Sorts pages, and removes duplicates.
fn put_in_order(pages: &mut Vec<u64>) {
    pages.sort_unstable();
    pages.dedup();
}

/// Adds the page of a word, and the next page if the word reaches into it.
fn add(pages: &mut Vec<u64>, address: u64) {
    if (PAGE..ADDRESSES).contains(&address) {
        pages.extend([address, address + 7].map(|byte| byte & !(PAGE - 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    use octavo_platform::run_in_forked_child;

    /// Three pages of words, of which the first is the head's.
    #[repr(align(4096))]
    struct ListWords([AtomicU64; 3 * 512]);

    static WORDS: ListWords = ListWords([const { AtomicU64::new(0) }; 3 * 512]);

    fn at(word: usize) -> u64 {
        WORDS.0[word].as_ptr() as u64
    }

    fn set(words: &[(usize, u64)]) {
        words.iter().for_each(|(word, value)| WORDS.0[*word].store(*value, Ordering::SeqCst));
    }

    fn list_at(words: &[(usize, u64)]) -> (ListFindings, bool) {
        set(words);
        let (mutexes, mut look) = (RobustMutexes::of(std::process::id()).unwrap(), ListFindings::default());
        let holds = mutexes.add_held(at(0), &mut look);
        put_in_order(&mut look.pages);
        (look, holds)
    }

    #[test]
    fn pages_of_what_a_thread_holds_or_is_about_to_lock_stay() {
        let (page, second, third) = (at(0), at(512), at(1024));
        let check = |words: &[(usize, u64)], held: &[u64], is_cut, holds| {
            let (look, found) = list_at(words);
            let others: Vec<_> = look.pages.iter().copied().filter(|other| *other != page).collect();
            assert!(look.pages.contains(&page), "the page of the head stays");
            assert_eq!((others.as_slice(), look.cut == [at(0)], found), (held, is_cut, holds));
        };
        // An empty list leads to itself.
        check(&[(0, at(0))], &[], false, false);
        // One mutex in the list, whose word lies before its entry.
        check(&[(0, at(512 + 2)), (1, (-16_i64) as u64), (512 + 2, at(0))], &[second], false, true);
        // Another mutex is about to be locked. The lowest bit gives its kind.
        check(&[(2, at(1024 + 2) | KIND_BIT)], &[second, third], false, true);
        // The mutex is locked, and the list continues at an address that cannot be read.
        let (far, unreadable) = (64 << 46, (64 << 46) + 32);
        let entries = [(2, 0), (0, at(1024 + 2)), (1024 + 2, at(512 + 2)), (512 + 2, unreadable)];
        check(&entries, &[second, third, far], true, true);
        // The list leads nowhere, like the list of a thread that is taking this entry out.
        check(&[(512 + 2, 0)], &[second, third], true, true);
        // The list circles in another thread's list, since an entry was handed over to that thread.
        check(&[(512 + 2, at(512 + 2))], &[second, third], true, true);
        check(&[(0, at(0))], &[], false, false);
    }

    fn noted(mutexes: &mut RobustMutexes, pages: &[u64], is_cut: bool) -> Vec<u64> {
        noted_at(mutexes, pages, is_cut, Instant::now())
    }

    fn noted_at(mutexes: &mut RobustMutexes, pages: &[u64], is_cut: bool, now: Instant) -> Vec<u64> {
        let cut = if is_cut { vec![at(0)] } else { vec![] };
        mutexes.note(ListFindings { pages: pages.iter().map(|page| page * PAGE).collect(), cut }, now);
        mutexes.pages.iter().map(|page| page / PAGE).collect()
    }

    fn told(mutexes: &mut RobustMutexes) -> Vec<u64> {
        let mut told = Vec::new();
        mutexes.take_found(&mut told);
        told.into_iter().map(|page| page / PAGE).collect()
    }

    #[test]
    fn a_page_stays_that_one_look_has_missed() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        assert_eq!(noted(&mut mutexes, &[7, 3, 3], false), [3, 7]);
        assert_eq!(noted(&mut mutexes, &[3], false), [3, 7]);
        assert_eq!(noted(&mut mutexes, &[3, 7], false), [3, 7]);
        assert_eq!(told(&mut mutexes), [3, 7]);
        assert_eq!(noted(&mut mutexes, &[3], false), [3, 7]);
        assert_eq!(noted(&mut mutexes, &[3], false), [3]);
        assert_eq!((mutexes.may_go(0, 9 * PAGE), mutexes.may_go(3 * PAGE, PAGE)), (3 * PAGE, 0));
        assert_eq!((mutexes.may_go(4 * PAGE, PAGE), mutexes.has_any()), (PAGE, true));
        assert_eq!(told(&mut mutexes), [0; 0], "each is told once");
    }

    #[test]
    fn a_look_that_was_cut_short_drops_nothing_and_is_not_the_last() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        assert_eq!(noted(&mut mutexes, &[3, 7, 9], false), [3, 7, 9]);
        assert_eq!(noted(&mut mutexes, &[3, 7], false), [3, 7, 9], "9 was missed once");
        let cut = || ListFindings { pages: vec![3 * PAGE], cut: vec![at(0)] };
        let began = Instant::now();
        for looks in 0..100 {
            assert!(!mutexes.note(cut(), began + LONGEST_CUT / 100 * looks));
            assert_eq!(mutexes.pages, [3 * PAGE, 7 * PAGE, 9 * PAGE]);
        }
        // A list that leads nowhere for ever.
        assert!(mutexes.note(cut(), began + LONGEST_CUT * 2));
        assert!(mutexes.note(cut(), began + LONGEST_CUT * 2));
        assert_eq!(mutexes.pages, [3 * PAGE]);
        // In one look, another list is cut short as well. In the next look, only the first list is.
        let both = ListFindings { pages: vec![3 * PAGE], cut: vec![at(512), at(0)] };
        assert!(!mutexes.note(both, began + LONGEST_CUT * 2));
        assert!(mutexes.note(cut(), began + LONGEST_CUT * 2));
        // The list was whole for a look, and is cut short anew.
        assert!(mutexes.note(ListFindings { pages: vec![5 * PAGE], cut: vec![] }, began + LONGEST_CUT * 2));
        assert!(!mutexes.note(cut(), began + LONGEST_CUT * 2));
    }

    #[test]
    fn looks_that_are_cut_short_for_long_keep_no_more_than_so_many_pages() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        let (now, page) = (Instant::now(), |look: usize| [1 + look as u64]);
        (0..3 * MOST_KEPT).for_each(|look| drop(noted_at(&mut mutexes, &page(look), true, now)));
        assert!((MOST_KEPT / 2..=MOST_KEPT + 2).contains(&mutexes.pages.len()), "{}", mutexes.pages.len());
        assert_eq!(mutexes.may_go(page(3 * MOST_KEPT - 1)[0] * PAGE, PAGE), 0, "the last stays");
    }

    #[test]
    fn a_page_that_could_not_be_made_usable_stays_and_is_told_by_a_later_look() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        noted(&mut mutexes, &[3, 7], false);
        assert_eq!(told(&mut mutexes), [3, 7]);
        let again = |mutexes: &mut RobustMutexes, pages: &[u64]| {
            mutexes.is_not_usable(7 * PAGE);
            assert_eq!((mutexes.may_go(7 * PAGE, PAGE), told(mutexes)), (0, vec![]));
            mutexes.again_at = Instant::now() + Duration::from_secs(60);
            noted(mutexes, &[3, 7], false);
            assert_eq!(told(mutexes), [0; 0], "it is too soon");
            mutexes.again_at = Instant::now();
            noted(mutexes, pages, false);
            told(mutexes)
        };
        assert_eq!(again(&mut mutexes, &[3, 7]), [7]);
        assert_eq!(again(&mut mutexes, &[3]), [7], "one look may miss it");
        noted(&mut mutexes, &[3], false);
        mutexes.is_not_usable(7 * PAGE);
        mutexes.again_at = Instant::now();
        noted(&mut mutexes, &[3], false);
        assert_eq!((told(&mut mutexes), mutexes.again.len()), (vec![], 0), "it was let go");
    }

    #[test]
    fn what_was_let_go_before_it_was_told_is_not_told() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        noted(&mut mutexes, &[3, 1, 1], false);
        noted(&mut mutexes, &[1, 5], false);
        noted(&mut mutexes, &[1, 5], false);
        assert_eq!(told(&mut mutexes), [1, 5]);
    }

    #[test]
    fn a_thread_that_holds_something_is_looked_after_also_where_it_is_the_only_one() {
        let child = std::thread::spawn(|| {
            run_in_forked_child(|| {
                let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
                mutexes.look();
                let before = mutexes.may_hold;
                let head = robust_list(std::process::id()).unwrap() as *const AtomicU64;
                // SAFETY: the head is this thread's, and its third word says which mutex it is about to lock.
                let pending = unsafe { &*head.add(2) };
                pending.store(at(512), Ordering::SeqCst);
                // The next look is not due yet.
                mutexes.next = Instant::now() + Duration::from_secs(60);
                let after = mutexes.may_hold();
                pending.store(0, Ordering::SeqCst);
                u8::from(before || !after || mutexes.may_go(at(512), PAGE) != 0)
            })
        });
        assert_eq!(child.join().unwrap().unwrap(), 0);
    }

    #[test]
    fn two_looks_follow_after_pages_have_gone() {
        let child = run_in_forked_child(|| {
            let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
            let mut look = || {
                mutexes.next = Instant::now();
                mutexes.look()
            };
            let mut looks = vec![look(), look(), look()];
            mutexes.may_hold();
            for _ in 0..2 {
                mutexes.next = Instant::now();
                looks.push(mutexes.look());
            }
            u8::from(looks != [false, true, true, false, true])
        });
        assert_eq!(child.unwrap(), 0);
    }

    #[test]
    fn there_is_no_look_before_its_time() {
        let mut mutexes = RobustMutexes::of(std::process::id()).unwrap();
        mutexes.next = Instant::now() + Duration::from_secs(60);
        mutexes.may_hold = false;
        let _other = std::thread::spawn(|| std::thread::sleep(Duration::from_secs(1)));
        assert!(!mutexes.look() && !mutexes.may_hold);
        mutexes.next = Instant::now();
        mutexes.look();
        assert!(mutexes.may_hold);
    }
}
