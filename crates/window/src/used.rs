//! Finds which pages of a process were used, by the processor's accessed bits.
//!
//! ```text
//!   a page is asked about ──► reported if it was used since the last sweep and is not reported yet
//!   enough are asked about ──► a sweep of the next blocks: reports the other used pages, clears their bits
//! ```
//!
//! Clearing the bit of a page interrupts every CPU that runs the process. In a virtual machine that takes
//! longer than bringing the page back: 40 µs on the CPU that clears the bit, and 25 µs on the other CPU. It
//! takes hardly longer for many adjacent pages. So a query does not clear the bit. *Sweeps* do: they go round
//! the memory in which pages are asked about, one block of 2 MiB after another. A sweep also reports used
//! pages that nobody has asked about. Between two sweeps of its block, a page is reported at most once. A use
//! during a sweep may go unreported.
//!
//! The kernel does not clear the bit of a page that a fork shares, nor of a locked page. Such a page would
//! look used for ever, so it counts as unused. If a page was used again after its bit was cleared, it mostly
//! belongs to the process alone, and counts as used.
//!
//! A page that came in since the last sweep looks used: the kernel has set its bit.
//!
//! Costs: up to 0.1 µs per page that is asked about. A sweep of four blocks takes about 100 µs, and comes
//! after 128 queried pages. The program loses about 80 µs for each sweep, and half a microsecond at the next
//! use of each page. If the blocks are not adjacent, or consist of several mappings, there are several
//! interruptions. A block takes about 200 bytes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use octavo::PAGE_BYTES;
use octavo_platform::accessed::{self, AccessedBits, Forgotten, PageUse};
use octavo_platform::pagemap::{EXCLUSIVE, Pagemap};

const PAGE: u64 = PAGE_BYTES as u64;
const BLOCK_PAGES: u64 = 512;
const BLOCK: u64 = BLOCK_PAGES * PAGE;
/// With four blocks or more, one block is swept per this many queried pages.
const ASKED_FOR_A_SWEEP: u64 = 32;
/// Blocks of one sweep. Adjacent blocks take one interruption.
const SWEPT_TOGETHER: usize = 4;
/// Adjacent blocks are swept as one range if at most this many bytes between them were never asked about.
const LARGEST_GAP: u64 = 64 * PAGE;
/// If there are more blocks than this, all are forgotten.
const MOST_BLOCKS: usize = 1 << 17;
/// The most calls to find the pages that the kernel refuses. After these, the rest count as refused.
const MOST_CALLS: u32 = 128;

/// One bit for each page of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bits([u64; 8]);

impl Bits {
    fn place(page: u64) -> (usize, u64) {
        let index = page / PAGE % BLOCK_PAGES;
        ((index / 64) as usize, 1 << (index % 64))
    }

    fn has(&self, page: u64) -> bool {
        let (word, bit) = Self::place(page);
        self.0[word] & bit != 0
    }

    fn remove(&mut self, page: u64) {
        let (word, bit) = Self::place(page);
        self.0[word] &= !bit;
    }

    /// Sets the bit of a page. Returns whether it was clear.
    fn add(&mut self, page: u64) -> bool {
        let (word, bit) = Self::place(page);
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }
}

/// The state of a block.
#[derive(Clone, Copy, Debug)]
struct BlockState {
    /// Pages that were reported since the last sweep.
    told: Bits,
    /// Pages whose bits the last sweep could not clear. The bits of these pages mean nothing.
    stuck: Bits,
    /// The first and the last page that was asked about. Pages outside may not be Octavo's.
    first: u64,
    last: u64,
}

impl BlockState {
    fn new(page: u64) -> Self {
        Self { told: Bits::default(), stuck: Bits::default(), first: page, last: page }
    }

    /// Notes that a page's accessed bit is set. Returns whether to report the page.
    fn tells(&mut self, page: u64) -> bool {
        !self.stuck.has(page) && self.told.add(page)
    }
}

/// A process whose pages are asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedProcess<'a> {
    pub(crate) pid: u32,
    /// A pidfd of a process with that memory. The page map is of the same memory.
    pub(crate) descriptor: BorrowedFd<'a>,
    pub(crate) pagemap: &'a Pagemap,
}

/// Remembers which pages of a process were reported.
#[derive(Debug, Default)]
pub(crate) struct Used {
    /// The blocks by their addresses.
    blocks: BTreeMap<u64, BlockState>,
    /// The next sweep begins here.
    hand: u64,
    /// Pages that were asked about since the last sweep.
    asked: u64,
}

impl Used {
    /// Calls `used` for each page that is known to have been used since it was last reported: those of the
    /// runs, and possibly others. `runs` hold addresses and lengths in bytes, in order.
    ///
    /// # Errors
    /// `Unsupported` if nobody has [prepared](AccessedBits::prepare) the bits; otherwise the kernel's error.
    pub(crate) fn harvest(
        &mut self,
        of: AskedProcess<'_>,
        runs: &[(u64, u64)],
        used: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let bits = AccessedBits::ready().ok_or(io::ErrorKind::Unsupported)?;
        let pages: Vec<_> =
            runs.iter().flat_map(|(start, len)| (*start..start + len).step_by(PAGE as usize)).collect();
        if self.blocks.len() > MOST_BLOCKS {
            // Blocks that are asked about again are added again.
            self.blocks.clear();
        }
        for (page, seen) in pages.iter().zip(bits.look(of.pid, &pages)?) {
            let block = self.blocks.entry(block_start(*page)).or_insert(BlockState::new(*page));
            (block.first, block.last) = (block.first.min(*page), block.last.max(*page));
            if !seen.is_used() {
                // If the bit could not be cleared before, the page has been replaced since then, or has
                // become the process's own.
                block.stuck.remove(*page);
            } else if block.tells(*page) {
                used(*page);
            }
        }
        self.asked += pages.len() as u64;
        // One call sweeps each block at most once.
        let for_a_sweep = SWEPT_TOGETHER as u64 * ASKED_FOR_A_SWEEP;
        let due = self.asked / for_a_sweep;
        self.asked %= for_a_sweep;
        for _ in 0..due.min(self.blocks.len().div_ceil(SWEPT_TOGETHER) as u64) {
            self.sweep(bits, of, used)?;
        }
        Ok(())
    }

    /// Reports the used pages of the next blocks, and clears their bits.
    fn sweep(
        &mut self,
        bits: &AccessedBits,
        of: AskedProcess<'_>,
        used: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let round = self.blocks.range(self.hand..).chain(self.blocks.range(..self.hand));
        let starts: Vec<u64> = round.take(SWEPT_TOGETHER).map(|(start, _)| *start).collect();
        self.hand = starts.last().map_or(0, |last| last + BLOCK);
        let blocks = &self.blocks;
        let meet = |a: &u64, b: &u64| a + BLOCK == *b && blocks[b].first - blocks[a].last <= LARGEST_GAP;
        let ranges: Vec<_> = starts.chunk_by(meet).map(<[u64]>::to_vec).collect();
        for together in ranges {
            let (first, last) = (together[0], together[together.len() - 1]);
            let (first, last) = (self.blocks[&first].first, self.blocks[&last].last);
            let pages: Vec<_> = (first..=last).step_by(PAGE as usize).collect();
            let seen = bits.look(of.pid, &pages)?;
            let is_unwritable = seen.contains(&PageUse::UsedUnwritable);
            let were_used = used_ones(&pages, &seen);
            for page in &were_used {
                if self.block(*page).is_some_and(|block| block.tells(*page)) {
                    used(*page);
                }
            }
            let stuck = forget(bits, of, &were_used, is_unwritable)?;
            for start in &together {
                let is_missing = |(page, seen): (&u64, &PageUse)| {
                    block_start(*page) != *start || *seen == PageUse::Unknown
                };
                if pages.iter().zip(&seen).all(is_missing) {
                    // When the block is asked about again, it is added again.
                    self.blocks.remove(start);
                } else if let Some(block) = self.block(*start) {
                    (block.told, block.stuck) = (Bits::default(), Bits::default());
                }
            }
            for page in stuck {
                if let Some(block) = self.block(page) {
                    block.stuck.add(page);
                }
            }
        }
        Ok(())
    }

    fn block(&mut self, page: u64) -> Option<&mut BlockState> {
        self.blocks.get_mut(&block_start(page))
    }
}

fn block_start(page: u64) -> u64 {
    page & !(BLOCK - 1)
}

/// Forgets that pages, and those in between, were used. If a fork may share some (`shared`), this asks the
/// kernel which. Returns the pages whose bits stay.
fn forget(bits: &AccessedBits, of: AskedProcess<'_>, pages: &[u64], shared: bool) -> io::Result<Vec<u64>> {
    let ([first, ..], [.., last]) = (pages, pages) else { return Ok(Vec::new()) };
    if !shared {
        return forget_own(bits, of, pages);
    }
    let entries = of.pagemap.entries(*first, ((last - first) / PAGE) as usize + 1).unwrap_or_default();
    let is_own = |page: &u64| {
        entries.get(((page - first) / PAGE) as usize).is_some_and(|entry| entry & EXCLUSIVE != 0)
    };
    let (own, mut stuck): (Vec<u64>, Vec<u64>) = pages.iter().partition(|page| is_own(page));
    stuck.extend(forget_own(bits, of, &own)?);
    Ok(stuck)
}

/// Like [`forget`], for pages that are probably not shared.
fn forget_own(bits: &AccessedBits, of: AskedProcess<'_>, pages: &[u64]) -> io::Result<Vec<u64>> {
    let (mut parts, mut refused, mut calls) = (vec![pages], Vec::new(), 0);
    while let Some(part) = parts.pop() {
        let ([first, ..], [.., last]) = (part, part) else { continue };
        calls += 1;
        if calls > MOST_CALLS {
            refused.extend(part);
        } else if accessed::forget_range(of.descriptor, *first, *last)? == Forgotten::Part {
            match part {
                [page] => refused.push(*page),
                _ => {
                    let (left, right) = part.split_at(part.len() / 2);
                    parts.extend([right, left]);
                }
            }
        }
    }
    let still = used_ones(pages, &bits.look(of.pid, pages)?);
    let mut stuck = Vec::new();
    for range in accessed::ranges(&still) {
        let entries = of.pagemap.entries(range[0], range.len()).unwrap_or_default();
        let is_own = |index| entries.get(index).is_some_and(|entry| entry & EXCLUSIVE != 0);
        let stays = |(index, page): (usize, &u64)| !is_own(index) || refused.binary_search(page).is_ok();
        stuck.extend(range.iter().enumerate().filter(|of| stays(*of)).map(|(_, page)| *page));
    }
    Ok(stuck)
}

/// Returns the pages that look used.
fn used_ones(pages: &[u64], seen: &[PageUse]) -> Vec<u64> {
    let is_used = |(page, seen): (&u64, &PageUse)| seen.is_used().then_some(*page);
    pages.iter().zip(seen).filter_map(is_used).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::time::Duration;

    use octavo_platform::{Backing, Reservation, run_in_forked_child};

    use super::*;

    /// Fewer than the queried pages that cause a sweep.
    const PAGES: usize = 120;

    /// Pages of this process that are there.
    struct PresentPages {
        range: Reservation,
        descriptor: OwnedFd,
        pagemap: Pagemap,
        used: Used,
    }

    impl PresentPages {
        /// Returns `None` if accessed bits cannot be read.
        fn new() -> Option<Self> {
            if let Err(why) = AccessedBits::prepare() {
                assert!(!rustix::process::geteuid().is_root(), "{why}");
                println!("skipped: {why}");
                return None;
            }
            let range = Reservation::new(PAGES * PAGE_BYTES, PAGE_BYTES).unwrap();
            range.advise_backing(0..range.len(), Backing::BasePages);
            // Otherwise another test's child would share them while it lives.
            range.exclude_from_fork().unwrap();
            range.populate(0..range.len()).unwrap();
            let (pid, used) = (std::process::id(), Used::default());
            let (descriptor, pagemap) = (accessed::open(pid).unwrap(), Pagemap::of(pid).unwrap());
            Some(Self { range, descriptor, pagemap, used })
        }

        fn start(&self) -> u64 {
            self.range.base().as_ptr() as u64
        }

        fn tell(&mut self, ask: impl FnOnce(&mut Used, AskedProcess<'_>, &mut dyn FnMut(u64))) -> Vec<usize> {
            let (start, mut told) = (self.start(), Vec::new());
            let (descriptor, pagemap) = (self.descriptor.as_fd(), &self.pagemap);
            let asked = AskedProcess { pid: std::process::id(), descriptor, pagemap };
            let own = start..start + self.range.len() as u64;
            // Another test's pages may lie in the same block.
            let mut note = |page| {
                if own.contains(&page) {
                    told.push(((page - start) / PAGE) as usize);
                }
            };
            ask(&mut self.used, asked, &mut note);
            told
        }

        /// Asks, without a sweep.
        fn ask(&mut self, pages: std::ops::Range<usize>) -> Vec<usize> {
            self.used.asked = 0;
            self.ask_on(pages)
        }

        fn ask_on(&mut self, pages: std::ops::Range<usize>) -> Vec<usize> {
            let run = (self.start() + pages.start as u64 * PAGE, pages.len() as u64 * PAGE);
            self.tell(|used, asked, note| used.harvest(asked, &[run], note).unwrap())
        }

        fn sweep(&mut self) -> Vec<usize> {
            let bits = AccessedBits::ready().unwrap();
            self.tell(|used, asked, note| {
                used.hand = 0;
                used.sweep(bits, asked, note).unwrap();
            })
        }

        fn touch(&self, page: usize) {
            assert!(page < PAGES);
            // SAFETY: the page is there, and the range lives.
            unsafe { self.range.base().as_ptr().add(page * PAGE_BYTES).cast_const().read_volatile() };
        }
    }

    /// Tries again for a while: the kernel may hold a page for a moment, and another test's fork may share
    /// pages.
    fn eventually(mut holds: impl FnMut() -> bool) -> bool {
        (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            holds()
        })
    }

    #[test]
    fn a_page_is_told_once_between_two_sweeps() {
        let Some(mut pages) = PresentPages::new() else { return };
        for used in [(0..PAGES).collect(), vec![3, 4, 99, 100, 110], vec![], vec![0]] {
            let is_told = eventually(|| {
                pages.ask(0..PAGES);
                pages.sweep();
                used.iter().for_each(|page| pages.touch(*page));
                let told = pages.ask(0..PAGES);
                used.iter().for_each(|page| pages.touch(*page));
                told == used && pages.ask(0..PAGES).is_empty() && pages.sweep().is_empty()
            });
            assert!(is_told, "{used:?}");
        }
    }

    #[test]
    fn a_sweep_tells_of_pages_that_nobody_has_asked_about() {
        let sweeps_tell = |pages: &mut PresentPages| {
            eventually(|| {
                // Ask about both blocks, if there are two.
                pages.ask(0..1);
                pages.ask(PAGES - 1..PAGES);
                pages.sweep();
                [7, 50, 110].iter().for_each(|page| pages.touch(*page));
                let asked = pages.ask(50..51);
                let told = pages.sweep();
                (asked, told) == (vec![50], vec![7, 110]) && pages.ask(0..PAGES).is_empty()
            })
        };
        // Another user of the machine may clear the same bits, at some places for long. So each try uses
        // another place.
        let mut tried = Vec::new();
        let is_told = (0..12).any(|_| {
            let Some(mut pages) = PresentPages::new() else { return true };
            let told = sweeps_tell(&mut pages);
            tried.push(pages);
            told
        });
        assert!(is_told);
    }

    #[test]
    fn a_sweep_comes_when_enough_was_asked_about() {
        let Some(mut pages) = PresentPages::new() else { return };
        let least = SWEPT_TOGETHER * ASKED_FOR_A_SWEEP as usize;
        let comes = eventually(|| {
            pages.touch(0);
            pages.ask(0..1);
            let mut asked = |touches: bool| {
                if touches {
                    pages.touch(0);
                }
                !pages.ask_on(0..1).is_empty()
            };
            // After the sweep, an unused page is not reported.
            (2..least + 1).all(|_| !asked(true)) && !asked(false) && asked(true)
        });
        assert!(comes);
    }

    #[test]
    fn locked_pages_silence_no_other() {
        for locked in [vec![60], (20..52).collect::<Vec<_>>()] {
            let Some(mut pages) = PresentPages::new() else { return };
            let (first, len) = (pages.start() + locked[0] as u64 * PAGE, locked.len() * PAGE_BYTES);
            // SAFETY: the pages are in the reservation, and their bytes stay.
            unsafe { rustix::mm::mlock(first as *mut _, len).unwrap() };
            let is_told = eventually(|| {
                pages.ask(0..PAGES);
                (0..PAGES).for_each(|page| pages.touch(page));
                pages.sweep();
                let untouched = pages.ask(0..PAGES);
                (0..PAGES).for_each(|page| pages.touch(page));
                let touched = pages.ask(0..PAGES);
                untouched.is_empty()
                    && touched.len() == PAGES - locked.len()
                    && !locked.iter().any(|page| touched.contains(page))
            });
            assert!(is_told, "{locked:?}");
        }
    }

    #[test]
    fn sweeps_go_round() {
        let Some(mut pages) = PresentPages::new() else { return };
        let blocks = [1, 2, 3, 5, 8].map(|block| block * BLOCK);
        let all = |pages: &mut PresentPages| {
            pages.used.blocks = blocks.iter().map(|start| (*start, BlockState::new(*start))).collect();
        };
        let hand = |pages: &mut PresentPages| {
            let bits = AccessedBits::ready().unwrap();
            pages.tell(|used, asked, note| used.sweep(bits, asked, note).unwrap());
            (pages.used.hand / BLOCK, pages.used.blocks.len())
        };
        all(&mut pages);
        assert_eq!(hand(&mut pages), (6, 1), "nothing is mapped there");
        all(&mut pages);
        assert_eq!(hand(&mut pages), (4, 1), "of 8, 1, 2 and 3 the last");
    }

    #[test]
    fn blocks_without_pages_are_forgotten() {
        let Some(mut pages) = PresentPages::new() else { return };
        pages.ask(0..PAGES);
        // Nothing is mapped there.
        let far = 1 << 46;
        let told = pages.tell(|used, asked, note| used.harvest(asked, &[(far, PAGE)], note).unwrap());
        assert_eq!((told, pages.used.blocks.contains_key(&far)), (vec![], true));
        pages.sweep();
        assert!(!pages.used.blocks.contains_key(&far) && !pages.used.blocks.is_empty());
    }

    #[test]
    fn pages_that_a_fork_shares_are_not_told_after_a_sweep() {
        let Some(mut pages) = PresentPages::new() else { return };
        pages.ask(0..PAGES);
        (0..PAGES).for_each(|page| pages.touch(page));
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
        pages.sweep();
        let told = pages.ask(0..PAGES);
        end.write_all(b"!").unwrap();
        assert_eq!(child.join().unwrap().unwrap(), 0);
        assert!(told.len() <= PAGES / 20, "{told:?} of {PAGES}");
    }

    #[test]
    fn a_page_whose_bit_stays_tells_nothing() {
        let mut block = BlockState::new(0);
        block.stuck.add(511 * PAGE);
        assert_eq!([511, 510, 510, 0].map(|page| block.tells(page * PAGE)), [false, true, false, true]);
        assert!(block.told.has(510 * PAGE) && !block.told.has(509 * PAGE));
    }
}
