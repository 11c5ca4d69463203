//! Direct reads of up to 16 MiB, while other threads check the same pages and fork.
//!
//! No processor stores to these pages: the kernel pins them for each read, and devices write them. If a pager
//! protects such a page, and expects to learn of a change by the next store, it keeps old bytes.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use crate::finding::{insist, report};
use crate::memory::{PAGE, WORDS};
use crate::patterned::{PageContent, Patterned};
use crate::process::fork;
use crate::transfer::{ScratchFile, Slice};
use crate::work::{Team, WorkerState};

pub const OPERATIONS: &[&str] = &[
    "reads of many pages",
    "direct file access refused",
    "pages seen during a read",
    "forks during a read",
    "idle times",
];

/// The longest run of pages that one call reads.
const LONGEST_RUN: usize = 4096;
/// How many pages longer the file is, so that a page is read from many places of it.
const MORE_PAGES: usize = 1024;
/// How many pages are written to the file at once.
const PIECE_PAGES: usize = 256;
/// The longest run of pages that is checked at once during a read.
const LOOKED_AT: usize = 64;
/// How many words of a page are checked during a read.
const SEEN_WORDS: usize = 8;

pub fn run(team: Team<'_>) {
    team.run(|work| {
        let mut memory = Patterned::new(work.bytes);
        let source = SourceFile::new(work, memory.pages().min(LONGEST_RUN) + MORE_PAGES);
        for start in (0..memory.pages()).step_by(LONGEST_RUN) {
            let target = start..memory.pages().min(start + LONGEST_RUN);
            step(work, &source, &mut memory, target);
        }
        while work.goes_on() {
            let target = work.random.run(memory.pages(), LONGEST_RUN);
            step(work, &source, &mut memory, target);
            // By now, a pager may have sent out pages that the device has written.
            memory.check_all("some time after a direct read");
            if work.random.once_in(4) {
                work.idle(50);
                work.count("idle times");
            }
        }
    });
}

/// A file whose pages are known.
struct SourceFile {
    file: ScratchFile,
    contents: Vec<PageContent>,
}

impl SourceFile {
    fn new(work: &mut WorkerState<'_>, pages: usize) -> Self {
        let file = ScratchFile::direct(work.team.folder).unwrap_or_else(|| {
            work.count("direct file access refused");
            ScratchFile::new(work.team.folder)
        });
        let mut piece = Patterned::new(PIECE_PAGES * PAGE);
        let mut contents = Vec::with_capacity(pages + PIECE_PAGES);
        while contents.len() < pages {
            piece.fill_all(work);
            file.write(Slice::new(&piece.mapping, 0, piece.pages() * PAGE), contents.len() * PAGE);
            contents.extend((0..piece.pages()).map(|page| piece.content(page)));
        }
        Self { file, contents }
    }
}

/// Has a device write to the target pages, and checks what it has written.
fn step(work: &mut WorkerState<'_>, source: &SourceFile, memory: &mut Patterned, target: Range<usize>) {
    let first = work.random.below(source.contents.len() - target.len() + 1);
    let contents = &source.contents[first..first + target.len()];
    // Check the target pages first. Pages that come in for this check are clean when the device writes them.
    let before = work.random.run(target.len(), target.len());
    memory.check(target.start + before.start..target.start + before.end, "before a direct read");
    let forks = work.random.once_in(8);
    let mut looks = work.random.clone();
    let seen = thread::scope(|scope| {
        let to = Slice::new(&memory.mapping, target.start * PAGE, target.len() * PAGE);
        let reader = scope.spawn(move || source.file.read(to, first * PAGE));
        if forks {
            let child = fork(|| check_in_child(memory, &target));
            child.wait("a child that was forked during a direct read");
        }
        // Follow the device at first, and then check random runs.
        let (mut seen, mut run) = (0, 0..target.len());
        while !reader.is_finished() {
            let page = run.next().unwrap_or_else(|| {
                run = looks.run(target.len(), LOOKED_AT);
                run.start
            });
            see(memory, target.start + page, contents[page]);
            seen += 1;
        }
        seen
    });
    work.count("reads of many pages");
    work.team.tally.add("forks during a read", forks.into());
    work.team.tally.add("pages seen during a read", seen as u64);
    for (page, content) in target.clone().zip(contents) {
        memory.set_copy(page, *content);
    }
    work.sabotage(&memory.mapping, target.clone());
    memory.check(target, "after a direct read");
}

/// Checks words of a page that a device may be writing: each word must be the old one or the new one.
fn see(memory: &Patterned, page: usize, new: PageContent) {
    let old = memory.content(page);
    let words = memory.mapping.words(page * PAGE, PAGE);
    for (index, word) in words.iter().enumerate().step_by(WORDS / SEEN_WORDS) {
        let found = word.load(Relaxed);
        let address = memory.mapping.address() + page * PAGE + index * 8;
        insist!(
            [old.word(index), new.word(index)].contains(&found),
            "during a direct read, the word at {address:#x} is {found:#018x} and should be {:#018x} or {:#018x}.",
            old.word(index),
            new.word(index)
        );
    }
}

/// Checks all pages except those that a device is writing.
fn check_in_child(memory: &Patterned, target: &Range<usize>) {
    for page in (0..target.start).chain(target.end..memory.pages()) {
        if let Some(wrong) = memory.wrong_word(page, memory.content(page)) {
            report(format_args!(
                "in a child that was forked during a direct read, the word at {:#x} is {:#018x} and should be {:#018x}.",
                wrong.address, wrong.found, wrong.expected
            ));
        }
    }
}
