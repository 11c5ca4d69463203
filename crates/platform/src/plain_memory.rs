//! Memory paged by the kernel and accessed word by word, for comparisons.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Backing, PAGE_BYTES, Reservation};

/// A private anonymous mapping, all zero at first. The kernel handles its faults. Accesses are plain machine
/// loads and stores (relaxed atomics), and check their bounds.
#[derive(Debug)]
pub struct PlainMemory {
    memory: Reservation,
}

impl PlainMemory {
    /// Maps `len` bytes, rounded up to pages, and asks the kernel to back them as given. The mapping is
    /// aligned to 2 MiB if it is at least that long.
    ///
    /// Fails with the kernel's error if the address space is exhausted.
    pub fn new(len: usize, backing: Backing) -> io::Result<Self> {
        let align = if len < 2 << 20 { PAGE_BYTES } else { 2 << 20 };
        let memory = Reservation::new(len, align)?;
        memory.advise_backing(0..memory.len(), backing);
        Ok(Self { memory })
    }

    /// Returns the number of words.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a reservation is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len() / size_of::<u64>()
    }

    /// Loads a word.
    #[inline]
    pub fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Relaxed)
    }

    /// Stores a word.
    #[inline]
    pub fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Relaxed);
    }

    /// Tells the kernel that the pages of these words are needed soon. The kernel then starts to read them
    /// from swap. A refusal does no harm.
    pub fn will_need(&self, words: std::ops::Range<usize>) {
        self.memory.advise_will_need(words.start * size_of::<u64>()..words.end * size_of::<u64>());
    }

    /// Asks the kernel to write the pages of these words out to swap if it can.
    pub fn page_out(&self, words: std::ops::Range<usize>) {
        self.memory.advise_page_out(words.start * size_of::<u64>()..words.end * size_of::<u64>());
    }

    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len(), "word inside the mapping");
        // SAFETY: the reservation is readable and writable, at least page aligned, and holds the word (just
        // checked). It lives as long as the loan, and all accesses go through these atomics.
        unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().cast::<u64>().add(index)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_zero_and_keeps_what_is_stored() {
        let memory = PlainMemory::new(3 << 20, Backing::HugePages).unwrap();
        assert_eq!(memory.len(), (3 << 20) / 8);
        assert_eq!(memory.load(memory.len() - 1), 0);
        memory.store(5, 7);
        assert_eq!((memory.load(5), memory.load(6)), (7, 0));
        assert_eq!(PlainMemory::new(1, Backing::BasePages).unwrap().len(), PAGE_BYTES / 8);
    }

    #[test]
    #[should_panic(expected = "word inside the mapping")]
    fn a_word_outside_is_refused() {
        let memory = PlainMemory::new(1, Backing::BasePages).unwrap();
        memory.load(memory.len());
    }
}
