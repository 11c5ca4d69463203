//! Memory whose every word is known: a mapping, and the content of each of its pages.
//!
//! A page is zero, or its words are a function of two numbers: its address when it was written, and the
//! generation of the write. No two writes use the same words. So the check finds a page that comes back
//! stale, torn or zero, or with the words of another page.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::finding::report;
use crate::memory::{OwnMapping, PAGE, WORDS};
use crate::random::mix;
use crate::waits::PAGES;
use crate::work::WorkerState;

/// The content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageContent {
    Zero,
    /// Words that follow from this key.
    Words {
        key: u64,
    },
    /// The page was given to the kernel by `MADV_FREE`. It has these words, or all zeros if the kernel has
    /// taken it.
    Lent {
        key: u64,
    },
}

impl PageContent {
    fn written(address: usize, generation: u64) -> Self {
        Self::Words { key: mix(address as u64 ^ mix(generation)) }
    }

    /// Returns the word at an index of the page.
    pub fn word(self, index: usize) -> u64 {
        match self {
            Self::Zero => 0,
            // A pattern never contains zero, so that no word of a lost page looks like a word of a pattern.
            Self::Words { key } | Self::Lent { key } => mix(key.wrapping_add(index as u64)) | 1,
        }
    }
}

/// The first wrong word of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub address: usize,
    pub expected: u64,
    pub found: u64,
}

/// Pages with known content.
#[derive(Debug)]
pub struct Patterned {
    pub mapping: OwnMapping,
    contents: Vec<PageContent>,
}

impl Patterned {
    /// Maps fresh memory, all zero, of at least one page.
    pub fn new(bytes: usize) -> Self {
        Self::over(OwnMapping::anonymous(bytes.max(PAGE)))
    }

    /// Takes a mapping whose pages are all zero.
    pub fn over(mapping: OwnMapping) -> Self {
        let contents = vec![PageContent::Zero; mapping.pages()];
        Self { mapping, contents }
    }

    pub fn pages(&self) -> usize {
        self.contents.len()
    }

    pub fn content(&self, page: usize) -> PageContent {
        self.contents[page]
    }

    /// Writes a new generation to every word of the pages.
    pub fn fill(&mut self, work: &mut WorkerState<'_>, pages: Range<usize>) {
        let generation = work.new_generation();
        for page in pages.clone() {
            let content = PageContent::written(self.mapping.address() + page * PAGE, generation);
            let words = self.mapping.words(page * PAGE, PAGE);
            PAGES.of(|| {
                for (index, word) in words.iter().enumerate() {
                    word.store(content.word(index), Relaxed);
                }
            });
            self.contents[page] = content;
        }
        work.sabotage(&self.mapping, pages);
    }

    /// Fills all pages.
    pub fn fill_all(&mut self, work: &mut WorkerState<'_>) {
        self.fill(work, 0..self.pages());
    }

    /// Checks every word of the pages. The finding quotes `when`, the moment of the check.
    pub fn check(&mut self, pages: Range<usize>, when: &str) {
        for page in pages {
            self.check_page(page, when);
        }
    }

    pub fn check_all(&mut self, when: &str) {
        self.check(0..self.pages(), when);
    }

    fn check_page(&mut self, page: usize, when: &str) {
        let found = PAGES.of(|| self.wrong_word(page, self.contents[page]));
        let Some(wrong) = found else { return };
        // A page that was lent may have become zero, but only as a whole.
        if matches!(self.contents[page], PageContent::Lent { .. })
            && self.wrong_word(page, PageContent::Zero).is_none()
        {
            self.contents[page] = PageContent::Zero;
            return;
        }
        let Wrong { address, expected, found } = wrong;
        let shape = self.shape(page);
        report(format_args!(
            "{when}, the word at {address:#x} is {found:#018x} and should be {expected:#018x} ({shape})."
        ))
    }

    /// Returns the first word of the page that differs from this content.
    pub fn wrong_word(&self, page: usize, content: PageContent) -> Option<Wrong> {
        let words = self.mapping.words(page * PAGE, PAGE);
        words.iter().enumerate().find_map(|(index, word)| {
            let (expected, found) = (content.word(index), word.load(Relaxed));
            let address = self.mapping.address() + page * PAGE + index * 8;
            (expected != found).then_some(Wrong { address, expected, found })
        })
    }

    /// Describes how much of the page is wrong, so that a reader can distinguish a lost page from a lost
    /// word.
    fn shape(&self, page: usize) -> &'static str {
        let words = self.mapping.words(page * PAGE, PAGE);
        let zeros = words.iter().filter(|word| word.load(Relaxed) == 0).count();
        let right = (0..WORDS).filter(|&i| words[i].load(Relaxed) == self.contents[page].word(i)).count();
        match (zeros, right) {
            (WORDS, _) => "now the whole page is zero",
            (_, WORDS) => "now, at a second look, the page is right",
            (_, 0) => "no word of the page is right",
            _ => "other words of the page are right",
        }
    }

    /// Records that pages have become zero.
    pub fn set_zero(&mut self, pages: Range<usize>) {
        self.contents[pages].fill(PageContent::Zero);
    }

    /// Records that pages were lent to the kernel by `MADV_FREE`.
    pub fn set_lent(&mut self, pages: Range<usize>) {
        for content in &mut self.contents[pages] {
            if let PageContent::Words { key } = *content {
                *content = PageContent::Lent { key };
            }
        }
    }

    /// Records that a page has become a copy of a page with this content.
    pub fn set_copy(&mut self, page: usize, content: PageContent) {
        self.contents[page] = content;
    }

    /// Records the new length of the mapping. New pages are zero.
    pub fn follow_length(&mut self) {
        self.contents.resize(self.mapping.pages(), PageContent::Zero);
    }

    /// Returns the byte that should be at an offset.
    pub fn expected_byte(&self, offset: usize) -> u8 {
        let word = self.contents[offset / PAGE].word(offset % PAGE / 8);
        word.to_ne_bytes()[offset % 8]
    }

    /// Unmaps a run of pages, and returns what is left on both sides.
    pub fn without(self, pages: Range<usize>) -> [Patterned; 2] {
        let Patterned { mapping, mut contents } = self;
        let (head, rest) = mapping.split(pages.start);
        let (gone, tail) = rest.split(pages.len());
        drop(gone);
        let tail_contents = contents.split_off(pages.end);
        contents.truncate(pages.start);
        [Patterned { mapping: head, contents }, Patterned { mapping: tail, contents: tail_contents }]
    }
}
