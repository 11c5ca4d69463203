//! Pages on their way to the file, and the commit that drops them.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use octavo_platform::PAGE_BYTES;
use octavo_platform::pagemap::Pagemap;
use octavo_platform::process_memory::fill_from_process;
use octavo_stub::Call;

use crate::cleaner::View;
use crate::cleaner::runs::{LEAST_RUN, private_pages, runs};
use crate::mappings::{Mapping, What};
use crate::pages::{Aligned, Pages};
use crate::process::{Process, Shared};

const PAGE: u64 = PAGE_BYTES as u64;
/// How many threads write at a time.
const WRITERS: usize = 4;
/// How often the programs are looked after while they write.
const LOOK: Duration = Duration::from_millis(1);

/// How a run of pages gets to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// To fresh blocks, which are then mapped over it.
    Convert { offset: u64 },
    /// To its own blocks. Then its private copies are dropped.
    Clean { offset: u64 },
}

impl How {
    fn offset(self) -> u64 {
        let (Self::Convert { offset } | Self::Clean { offset }) = self;
        offset
    }
}

/// A run of private pages of a process.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) process: Arc<Process>,
    /// What it was when it was chosen.
    pub(crate) part: Mapping,
    pub(crate) how: How,
    pub(crate) changes: u64,
}

impl Piece {
    fn len(&self) -> u64 {
        self.part.end - self.part.start
    }

    fn range(&self) -> Range<u64> {
        self.part.start..self.part.end
    }

    /// The blocks that nobody maps yet.
    fn fresh_blocks(&self) -> Range<u64> {
        match self.how {
            How::Convert { offset } => offset..offset + self.len(),
            How::Clean { .. } => 0..0,
        }
    }
}

/// Pieces, and a copy of their bytes.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// Each with the offset of its bytes in the copy.
    pieces: Vec<(Piece, usize)>,
    copy: Option<Aligned>,
    bytes: u64,
}

/// What a commit has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) converted_bytes: u64,
    pub(crate) cleaned_bytes: u64,
    pub(crate) changed_bytes: u64,
}

impl Batch {
    pub(crate) fn add(&mut self, piece: Piece) {
        let at = self.bytes as usize;
        self.bytes += piece.len();
        self.pieces.push((piece, at));
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn forget(&mut self, pid: u32) {
        // Blocks that were taken for it are given back with the next look at all mappings.
        self.pieces.retain(|(piece, _)| piece.process.pid != pid);
    }

    /// Returns the blocks that must not be given to anybody else.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.pieces.iter().map(|(piece, _)| piece.fresh_blocks()).filter(|range| !range.is_empty())
    }

    /// Copies the bytes. The programs may run: a page that is torn, or that changes later, is not dropped.
    pub(crate) fn copy(&mut self, pages: &mut Pages, look: &mut dyn FnMut()) {
        let mut copy = Aligned::new(self.bytes as usize);
        self.pieces.retain(|(piece, at)| {
            look();
            let bytes = &mut copy.all_mut()[*at..*at + piece.len() as usize];
            // The program may have unmapped it.
            let is_there = fill_from_process(piece.process.pid, piece.part.start, bytes).is_ok();
            if !is_there {
                pages.give_back(piece.fresh_blocks());
            }
            is_there
        });
        self.copy = Some(copy);
    }

    /// Writes all, and waits until the disk has it. Calls `look` about once a millisecond. Returns the
    /// bytes that were written.
    ///
    /// # Errors
    /// Returns the kernel's error. The file must not be written any more.
    pub(crate) fn write(&self, pages: &Pages, look: &mut dyn FnMut()) -> io::Result<u64> {
        let copy = self.copy.as_ref().expect("the bytes were copied").all();
        let next = AtomicUsize::new(0);
        let write = || -> io::Result<u64> {
            let mut written = 0;
            while let Some((piece, at)) = self.pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                let bytes = &copy[*at..*at + piece.len() as usize];
                pages.write(bytes, piece.how.offset())?;
                written += bytes.len() as u64;
            }
            Ok(written)
        };
        let written = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS.min(self.len())).map(|_| scope.spawn(write)).collect();
            while !writers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                look();
                std::thread::sleep(LOOK);
            }
            let results = writers.into_iter().map(|writer| writer.join().expect("a writer does not panic"));
            results.sum::<io::Result<u64>>()
        })?;
        pages.flush()?;
        Ok(written)
    }

    /// Drops each page that has the bytes that are on disk. All processes stand still. `note` is told of each
    /// piece whether most of it had changed.
    pub(crate) fn commit(
        self,
        shared: &Shared,
        view: &View,
        pages: &mut Pages,
        note: &mut dyn FnMut(u32, u64, bool),
    ) -> Committed {
        let Some(copy) = &self.copy else { return Committed::default() };
        let mut done = Committed::default();
        let mut drops: BTreeMap<u32, Vec<Drop>> = BTreeMap::new();
        for (piece, at) in &self.pieces {
            let bytes = &copy.all()[*at..*at + piece.len() as usize];
            let same = unchanged(shared, view, piece, bytes);
            let kept: u64 = same.iter().map(|run| (run.end - run.start) * PAGE).sum();
            done.changed_bytes += piece.len() - kept;
            note(piece.process.pid, piece.part.start, kept < piece.len() / 2);
            let mut unused = piece.fresh_blocks().start;
            for run in same {
                let (from, to) = (run.start * PAGE, run.end * PAGE);
                let offset = piece.how.offset() + from;
                let part = piece.part.within(&(piece.part.start + from..piece.part.start + to));
                if let (How::Convert { .. }, true) = (piece.how, unused < offset) {
                    pages.give_back(unused..offset);
                }
                unused = offset + (to - from);
                drops.entry(piece.process.pid).or_default().push(Drop {
                    part: part.expect("the run is inside"),
                    how: piece.how,
                    offset,
                });
            }
            pages.give_back(unused.min(piece.fresh_blocks().end)..piece.fresh_blocks().end);
        }
        for (pid, drops) in drops {
            if let Some(process) = shared.get(pid) {
                make(&process, &drops, shared, pages, &mut done);
            }
        }
        done
    }
}

/// A run of pages to drop, or to map over.
#[derive(Debug)]
struct Drop {
    part: Mapping,
    how: How,
    offset: u64,
}

/// Has the mapper drop pages and map the file.
fn make(process: &Process, drops: &[Drop], shared: &Shared, pages: &mut Pages, done: &mut Committed) {
    let mut calls = Vec::new();
    for Drop { part, how, offset } in drops {
        let len = part.end - part.start;
        calls.push(match how {
            How::Clean { .. } => Call::new(libc::SYS_madvise, [part.start, len, libc::MADV_DONTNEED as u64]),
            How::Convert { .. } => {
                let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
                let file = process.mapper.file();
                Call::new(libc::SYS_mmap, [part.start, len, part.protection, flags, file, *offset])
            }
        });
    }
    if let Err(error) = process.call(&mut calls) {
        // Some of the calls may have been made. Each leaves the same bytes as before.
        if process.is_current() {
            shared.break_off(format!("the mapper of process {} does not answer: {error}", process.pid));
        }
        return;
    }
    let mut advice = Vec::new();
    for (Drop { part, how, offset }, call) in drops.iter().zip(&calls) {
        let len = part.end - part.start;
        match (how, call.result()) {
            (How::Clean { .. }, Ok(_)) => done.cleaned_bytes += len,
            (How::Convert { .. }, Ok(_)) => {
                done.converted_bytes += len;
                advice.push(Call::new(libc::SYS_madvise, [part.start, len, libc::MADV_RANDOM as u64]));
            }
            // The pages stay as they are: locked memory, or too many mappings.
            (How::Convert { .. }, Err(_)) => pages.give_back(*offset..*offset + len),
            (How::Clean { .. }, Err(_)) => {}
        }
    }
    // A refusal costs time only.
    let _ = process.call(&mut advice);
}

/// Returns the runs of pages of a piece, by their numbers in it, that may be dropped.
fn unchanged(shared: &Shared, view: &View, piece: &Piece, written: &[u8]) -> Vec<Range<u64>> {
    let pid = piece.process.pid;
    let is_current = shared.get(pid).is_some_and(|process| Arc::ptr_eq(&process, &piece.process));
    let is_same = match (view.part(pid, &piece.range()), piece.how) {
        (Some(part), How::Clean { offset }) => part.what == What::Ours(offset),
        // Its flags may have changed.
        (Some(part), How::Convert { .. }) => part == piece.part && piece.process.changes() == piece.changes,
        (None, _) => false,
    };
    if !is_current || !is_same || piece.process.is_pinned() || !piece.process.is_current() {
        return Vec::new();
    }
    let Ok(pagemap) = Pagemap::of(pid) else { return Vec::new() };
    let mut same = private_pages(&pagemap, &piece.part);
    let mut now = vec![0; written.len()];
    if same.len() * PAGE_BYTES != written.len() || fill_from_process(pid, piece.part.start, &mut now).is_err()
    {
        return Vec::new();
    }
    let pages = now.chunks_exact(PAGE_BYTES).zip(written.chunks_exact(PAGE_BYTES));
    same.iter_mut().zip(pages).for_each(|(is_same, (now, written))| *is_same &= now == written);
    let whole = piece.len();
    let least = match piece.how {
        How::Convert { .. } => LEAST_RUN.min(whole),
        How::Clean { .. } => PAGE,
    };
    runs(&same).into_iter().filter(|run| (run.end - run.start) * PAGE >= least).collect()
}
