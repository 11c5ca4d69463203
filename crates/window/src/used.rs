//! Which pages of a process were used, by the processor's accessed bits.
//!
//! ```text
//!   look ──► used: forget ──► look at these again ──► still used, and shown by others too: tells nothing
//! ```
//!
//! The kernel does not clear the bits of a page that a fork shares, nor of a locked one. Such a page would look used for ever, so it
//! counts as unused. A page that was used again since it was forgotten is the process's alone, mostly, and counts as used.
//!
//! Costs: 0.2 µs a page, and three to ten system calls, all for pages that reclaim looks at.

use std::io;
use std::os::fd::BorrowedFd;

use octavo::PAGE_BYTES;
use octavo_platform::accessed::{self, AccessedBits, Seen};
use octavo_platform::pagemap::{EXCLUSIVE, Pagemap};

const PAGE: u64 = PAGE_BYTES as u64;

/// Asks which pages of a process were used, which the descriptor is for as well.
#[derive(Debug)]
pub(crate) struct Used<'a> {
    pub(crate) pid: u32,
    pub(crate) descriptor: BorrowedFd<'a>,
}

impl Used<'_> {
    /// Calls `used` for each page of the runs that was used since it was last asked about, and forgets it. A page that has come since
    /// looks used. `runs` have addresses and lengths in bytes, in order. The page map is of the same memory.
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
        let pages =
            runs.iter().flat_map(|(start, len)| (*start..start + len).step_by(PAGE as usize)).collect();
        let were_used = self.used_of(bits, pages)?;
        let mut tells_nothing = accessed::forget(self.descriptor, &were_used)?;
        let still_used = self.used_of(bits, were_used.clone())?;
        for range in accessed::ranges(&still_used) {
            match pagemap.entries(range[0], range.len()) {
                Ok(entries) => {
                    let shared = range.iter().zip(entries).filter(|(_, entry)| entry & EXCLUSIVE == 0);
                    tells_nothing.extend(shared.map(|(page, _)| *page));
                }
                Err(_) => tells_nothing.extend(range),
            }
        }
        tells_nothing.sort_unstable();
        were_used.into_iter().filter(|page| tells_nothing.binary_search(page).is_err()).for_each(used);
        Ok(())
    }

    /// Returns those of the pages that were used.
    fn used_of(&self, bits: &AccessedBits, mut pages: Vec<u64>) -> io::Result<Vec<u64>> {
        let mut seen = bits.look(self.pid, &pages)?.into_iter();
        pages.retain(|_| seen.next() == Some(Seen::Used));
        Ok(pages)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

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
            let process = accessed::open(pid).unwrap();
            let runs = [(start, 100 * PAGE), (start + 100 * PAGE, (PAGES as u64 - 100) * PAGE)];
            let mut note = |page: u64| found.push(((page - start) / PAGE) as usize);
            Used { pid, descriptor: process.as_fd() }.harvest(&pagemap, &runs, &mut note).unwrap();
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
        for used in [(0..PAGES).collect(), vec![3, 4, 99, 100, 150], vec![], vec![0]] {
            // The kernel may hold a page for a moment, and then it is told again. And another test's fork may share pages.
            let is_told = (0..500).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                asked();
                used.iter().for_each(|page| use_page(&range, *page));
                asked() == used
            });
            assert!(is_told, "{used:?}");
        }
    }

    #[test]
    fn pages_that_a_fork_shares_are_not_told() {
        let Some((range, asked)) = pages() else { return };
        asked();
        (0..PAGES).for_each(|page| use_page(&range, page));
        let ((mut began, begins), (ends, mut end)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        // The child shows the pages until the parent has asked.
        let child = std::thread::spawn(move || {
            run_in_forked_child(|| {
                (&begins).write_all(b"!").unwrap();
                (&ends).read_exact(&mut [0]).unwrap();
                0
            })
        });
        began.read_exact(&mut [0]).unwrap();
        let told = asked();
        end.write_all(b"!").unwrap();
        assert_eq!(child.join().unwrap().unwrap(), 0);
        assert!(told.len() <= PAGES / 20, "{told:?} of {PAGES}");
    }
}
