//! vmcache's way to a page that is not in memory, after the paper named in `hits/vmcache.rs`. That file also
//! describes the words of the page states. The code follows the paper. It is not the authors' program, whose
//! figures may differ.
//!
//! Each page has its place in an anonymous mapping as large as the data. A thread that finds a page evicted
//! locks its state and makes room. Then it reads the page into its place by one blocking `pread` past the
//! page cache, and unlocks.
//!
//! A clock makes room, 64 pages at a time. The clock's hand marks unlocked pages, and evicts pages that still
//! have the mark when it comes again. A hit clears the mark. Evicted pages return to the kernel by
//! `madvise(MADV_DONTNEED)`, neighbours in one call. The bench writes nothing, so no page is ever written
//! out.
//!
//! The state of a page, and its page table entry in the kernel, exist whether the page is in memory or not.
//! Both count as memory, as they do in Octavo's budget.

use std::hint::spin_loop;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{DataFile, DataSet, Loads, PAGE_BYTES, PAGE_WORDS};
use crate::peers::mapping::{BenchMapping, HugePages};

/// Bytes kept for each page: a state and a page table entry.
const BYTES_KNOWN: u64 = 16;

/// Pages that are evicted at once.
const EVICTION_PAGES: usize = 64;

const STATE_SHIFT: u32 = 56;
const UNLOCKED: u64 = 0;
const LOCKED: u64 = 253;
const MARKED: u64 = 254;
const EVICTED: u64 = 255;

const fn state(word: u64) -> u64 {
    word >> STATE_SHIFT
}

const fn with_state(word: u64, state: u64) -> u64 {
    word & ((1 << STATE_SHIFT) - 1) | state << STATE_SHIFT
}

/// Returns the next version in this state, which the holder of the lock leaves.
const fn next_version(word: u64, state: u64) -> u64 {
    with_state(word.wrapping_add(1), state)
}

/// The pages, and the number of those in memory.
pub struct BufferPool {
    pages: BenchMapping,
    states: Vec<AtomicU64>,
    file: DataFile,
    used: AtomicU64,
    capacity: u64,
    hand: AtomicU64,
}

impl BufferPool {
    /// Writes the data, all of it evicted.
    pub fn new(data: &DataSet) -> io::Result<Self> {
        let states = (0..data.pages).map(|_| AtomicU64::new(with_state(0, EVICTED))).collect();
        Ok(Self {
            pages: BenchMapping::new(data.pages as usize * PAGE_BYTES, HugePages::Refused)?,
            states,
            file: DataFile::new(data)?,
            used: AtomicU64::new(0),
            capacity: data.memory_bytes.saturating_sub(data.pages * BYTES_KNOWN) / PAGE_BYTES as u64,
            hand: AtomicU64::new(0),
        })
    }

    /// This exchange both enters and leaves a state: acquire to enter, release to leave.
    fn exchange(&self, page: u64, from: u64, to: u64) -> bool {
        self.states[page as usize].compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Reads an evicted page into its place, unless another thread is reading it already.
    #[cold]
    fn fault(&self, page: u64, evicted: u64) {
        if !self.exchange(page, evicted, with_state(evicted, LOCKED)) {
            return;
        }
        if self.used.fetch_add(1, Ordering::Relaxed) >= self.capacity {
            self.evict();
        }
        let offset = page as usize * PAGE_BYTES;
        // SAFETY: the page lies inside the mapping (its state was indexed), which lives as long as `self`.
        // Only atomics access its bytes. Readers check the state again after a read, and discard a word that
        // they have read meanwhile.
        let read = unsafe {
            libc::pread(
                self.file.file().as_raw_fd(),
                self.pages.base().as_ptr().add(offset).cast(),
                PAGE_BYTES,
                offset as libc::off_t,
            )
        };
        assert_eq!(read, PAGE_BYTES as isize, "the device reads what it wrote");
        // Release: the bytes come before the state that shows them.
        self.states[page as usize].store(next_version(evicted, UNLOCKED), Ordering::Release);
    }

    /// Takes a batch of pages out of memory.
    fn evict(&self) {
        let mut taken = [0; EVICTION_PAGES];
        let mut count = 0;
        while count < EVICTION_PAGES {
            let page = self.hand.fetch_add(1, Ordering::Relaxed) % self.states.len() as u64;
            let word = self.states[page as usize].load(Ordering::Relaxed);
            match state(word) {
                UNLOCKED => drop(self.exchange(page, word, with_state(word, MARKED))),
                MARKED if self.exchange(page, word, with_state(word, LOCKED)) => {
                    taken[count] = page;
                    count += 1;
                }
                _ => {}
            }
        }
        for run in taken.chunk_by(|a, b| a + 1 == *b) {
            let offset = run[0] as usize * PAGE_BYTES;
            // SAFETY: the run lies inside the mapping and is locked. Only atomics access its bytes, and for
            // them this is a write of zeros.
            let gone = unsafe {
                libc::madvise(
                    self.pages.base().as_ptr().add(offset).cast(),
                    run.len() * PAGE_BYTES,
                    libc::MADV_DONTNEED,
                )
            };
            assert_eq!(gone, 0, "advice on our own mapping");
        }
        for page in taken {
            let locked = self.states[page as usize].load(Ordering::Relaxed);
            self.states[page as usize].store(next_version(locked, EVICTED), Ordering::Release);
        }
        self.used.fetch_sub(EVICTION_PAGES as u64, Ordering::Relaxed);
    }
}

impl Loads for BufferPool {
    type Scratch = ();

    fn scratch(&self) {}

    fn load(&self, _scratch: &mut (), page: u64, index: usize) -> u64 {
        let mut spins = 0u32;
        loop {
            // Acquire: the page is read after its state.
            let before = self.states[page as usize].load(Ordering::Acquire);
            match state(before) {
                // Another thread reads the page or evicts it. That takes as long as a transfer of the device.
                LOCKED if spins < 100 => {
                    spins += 1;
                    spin_loop();
                }
                LOCKED => std::thread::yield_now(),
                // The hit clears the mark first and starts again. Another hit may have cleared the mark
                // already.
                MARKED => drop(self.exchange(page, before, with_state(before, UNLOCKED))),
                EVICTED => self.fault(page, before),
                _ => {
                    let word = self.pages.words()[page as usize * PAGE_WORDS + index].load(Ordering::Relaxed);
                    // Acquire: the state is read again after the page.
                    fence(Ordering::Acquire);
                    let after = self.states[page as usize].load(Ordering::Relaxed);
                    if after == before {
                        return word;
                    }
                    if state(after) == MARKED && with_state(after, UNLOCKED) == before {
                        return word;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_pages_are_kept_than_there_is_room_for() {
        let memory_bytes = 512 * 4096 + 2048 * BYTES_KNOWN;
        let data = DataSet { pages: 2048, memory_bytes, folder: std::env::temp_dir() };
        let pool = BufferPool::new(&data).unwrap();
        for page in (0..2048).chain(0..2048) {
            assert_eq!(pool.load(&mut (), page, 7), super::super::word_of(page, 7));
            assert!(pool.used.load(Ordering::Relaxed) <= 512 + 1);
        }
        let resident =
            pool.states.iter().filter(|word| state(word.load(Ordering::Relaxed)) != EVICTED).count();
        assert_eq!(resident as u64, pool.used.load(Ordering::Relaxed));
    }
}
