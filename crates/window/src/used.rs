//! Which pages of a process were used, by the processor's accessed bits.
//!
//! ```text
//!   look ──► used: forget ──► look at these again ──► still used, and shown by others too: tells nothing
//! ```
//!
//! The kernel does not clear the bits of a page that a fork shares. Such a page would look used for ever, so it counts as unused.
//! A page that was used again since it was forgotten is the process's alone, mostly, and counts as used.
//!
//! Costs: 0.2 µs a page, and three to ten system calls, all for pages that reclaim looks at.

use std::io;
use std::os::fd::OwnedFd;

use octavo::PAGE_BYTES;
use octavo_platform::accessed::{self, AccessedBits, Seen};
use octavo_platform::pagemap::{EXCLUSIVE, Pagemap};

const PAGE: u64 = PAGE_BYTES as u64;

/// Asks which pages of a process were used.
#[derive(Debug)]
pub(crate) struct Used {
    pid: u32,
    descriptor: OwnedFd,
}

impl Used {
    /// Asks about a process.
    ///
    /// # Errors
    /// The kernel's: there is no such process.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self { pid, descriptor: accessed::open(pid)? })
    }

    /// Calls `used` for each page of the runs that was used since it came or was last asked about, and forgets it. `runs` have
    /// addresses and lengths in bytes, in order. The page map is of the same memory.
    ///
    /// # Errors
    /// Unsupported where nobody has [prepared](AccessedBits::prepare) the bits; the kernel's.
    pub(crate) fn harvest(
        &self,
        pagemap: &Pagemap,
        runs: &[(u64, u64)],
        used: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let bits = AccessedBits::ready().ok_or(io::ErrorKind::Unsupported)?;
        let pages = runs.iter().flat_map(|(start, len)| (*start..start + len).step_by(PAGE as usize));
        let were_used = self.look(bits, pages)?;
        let ranges: Vec<_> = runs_of(&were_used).collect();
        // What it does not forget is asked about.
        let _ = accessed::forget(&self.descriptor, &ranges);
        let still_used = self.look(bits, were_used.iter().copied())?;
        let mut tells_nothing = Vec::new();
        for (start, len) in runs_of(&still_used) {
            let entries = pagemap.entries(start, (len / PAGE) as usize)?;
            let pages = (start..start + len).step_by(PAGE as usize).zip(entries);
            tells_nothing.extend(pages.filter(|(_, entry)| entry & EXCLUSIVE == 0).map(|(page, _)| page));
        }
        were_used.into_iter().filter(|page| tells_nothing.binary_search(page).is_err()).for_each(used);
        Ok(())
    }

    /// Returns the pages that were used, in the order in which they are asked about.
    fn look(&self, bits: &AccessedBits, pages: impl IntoIterator<Item = u64>) -> io::Result<Vec<u64>> {
        let mut used = Vec::new();
        bits.look(self.pid, pages, |page, seen| {
            if seen == Seen::Used {
                used.push(page);
            }
        })?;
        Ok(used)
    }
}

/// Returns the runs of pages that lie together, by their addresses and lengths in bytes.
fn runs_of(pages: &[u64]) -> impl Iterator<Item = (u64, u64)> {
    pages.chunk_by(|a, b| a + PAGE == *b).map(|run| (run[0], run.len() as u64 * PAGE))
}

#[cfg(test)]
mod tests {
    use octavo_platform::{Backing, Reservation, run_in_forked_child};

    use super::*;

    const PAGES: usize = 200;

    /// Pages of this process that are there, and a question about them. `None` where accessed bits cannot be read.
    fn pages() -> Option<(Reservation, impl Fn() -> Vec<usize>)> {
        if let Err(why) = AccessedBits::prepare() {
            assert!(!rustix::process::geteuid().is_root(), "{why}");
            println!("skipped: {why}");
            return None;
        }
        let range = Reservation::new(PAGES * PAGE_BYTES, PAGE_BYTES).unwrap();
        range.advise_backing(0..range.len(), Backing::BasePages);
        range.populate(0..range.len()).unwrap();
        let (pid, start) = (std::process::id(), range.base().as_ptr() as u64);
        let asked = move || {
            let (pagemap, mut found) = (Pagemap::of(pid).unwrap(), Vec::new());
            let runs = [(start, 100 * PAGE), (start + 100 * PAGE, (PAGES as u64 - 100) * PAGE)];
            let mut note = |page: u64| found.push(((page - start) / PAGE) as usize);
            Used::of(pid).unwrap().harvest(&pagemap, &runs, &mut note).unwrap();
            found
        };
        Some((range, asked))
    }

    fn use_page(range: &Reservation, page: usize) {
        // SAFETY: the page is there, and the range lives.
        unsafe { range.base().as_ptr().add(page * PAGE_BYTES).cast_const().read_volatile() };
    }

    #[test]
    fn a_page_is_told_once_for_each_time_that_it_was_used() {
        let Some((range, asked)) = pages() else { return };
        assert_eq!(asked(), (0..PAGES).collect::<Vec<_>>());
        for used in [vec![3, 4, 99, 100, 150], vec![], vec![0]] {
            used.iter().for_each(|page| use_page(&range, *page));
            // The kernel may hold a page for a moment, and then it is told again.
            let found = asked();
            assert!(used.iter().all(|page| found.contains(page)), "{used:?} were used, and {found:?} told");
            assert!(found.len() <= used.len() + PAGES / 20, "{used:?} were used, and {found:?} told");
        }
    }

    #[test]
    fn pages_that_a_fork_shares_are_not_told() {
        let Some((range, asked)) = pages() else { return };
        asked();
        (0..PAGES).for_each(|page| use_page(&range, page));
        let parent = std::process::id();
        // The child asks about its parent, while it shares the pages.
        let told = run_in_forked_child(|| {
            assert_ne!(std::process::id(), parent);
            asked().len().min(100) as u8
        });
        assert!(told.unwrap() as usize <= PAGES / 20);
    }
}
