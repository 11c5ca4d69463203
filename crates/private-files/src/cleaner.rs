//! The cleaner: chooses pages, copies and writes them, and drops those that did not change.
//!
//! One batch is under way at most. A stop commits the batch that was written, and chooses the next one. In
//! between the programs run, and the batch is copied, written and flushed. When memory is short, everything
//! happens within one stop.

mod batch;
mod choice;
mod runs;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use octavo_platform::proc_text;
use octavo_platform::seccomp_listener::Listener;
use rangemap::RangeSet;

use crate::asked::{self, FILTERS};
use crate::cleaner::batch::Batch;
use crate::cleaner::choice::Choice;
use crate::filter;
use crate::mappings::{self, Mapping, What};
use crate::pages::Pages;
use crate::process::{Refusal, Shared};
use crate::stop::Stop;

/// Room is given back to the disk once in this many stops.
const STOPS_BETWEEN_HOLES: u64 = 64;

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Stops of the whole tree, their time in all, and the longest.
    pub stops: u64,
    /// See `stops`.
    pub stopped: Duration,
    /// See `stops`.
    pub longest_stop: Duration,
    /// Stops that did not succeed, since a thread did not stop in time.
    pub failed_stops: u64,
    /// Memory that was mapped over, and private copies that were dropped.
    pub converted_bytes: u64,
    /// See `converted_bytes`.
    pub cleaned_bytes: u64,
    /// Bytes that were written to the file.
    pub written_bytes: u64,
    /// Bytes that were written in vain, since the program stored to them meanwhile.
    pub changed_bytes: u64,
    /// Bytes of the file that were in use when that was last looked at.
    pub file_bytes: u64,
}

/// Lists the processes of the tree, without mappers.
pub type List<'a> = dyn FnMut() -> io::Result<Vec<u32>> + 'a;

/// Pages the memory of a tree by a file. See the [crate](crate).
#[derive(Debug)]
pub struct Cleaner {
    shared: Arc<Shared>,
    pages: Pages,
    choice: Choice,
    /// The batch that is on disk.
    written: Batch,
    figures: Figures,
    /// Why nothing is cleaned any more.
    failed: Option<String>,
}

impl Cleaner {
    /// Makes a cleaner with a file in a folder.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub fn in_folder(folder: &Path) -> io::Result<Self> {
        let pages = Pages::in_folder(folder)?;
        let shared = Shared::new(pages.file().try_clone()?, pages.name().to_owned());
        Ok(Self {
            shared: Arc::new(shared),
            pages,
            choice: Choice::default(),
            written: Batch::default(),
            figures: Figures::default(),
            failed: None,
        })
    }

    /// Takes a process in. `may_have_filter` says that a process that was taken in may have forked it.
    /// Returns the number of its mapper.
    ///
    /// # Errors
    /// Returns a sentence that says why its memory is not managed.
    pub fn engage(&mut self, pid: u32, may_have_filter: bool) -> Result<u32, Refusal> {
        if let Some(why) = mappings::why_not(pid) {
            return Err(Refusal(why.into()));
        }
        let filters = if may_have_filter { FILTERS } else { 0 };
        let process = self.shared.engage(pid, filters, Box::new(|_| {}))?;
        let listened = self.listen(pid);
        if let Err(refusal) = listened {
            self.shared.forget(pid);
            return Err(refusal);
        }
        Ok(process.mapper.pid())
    }

    /// Makes sure that a process has the filter.
    fn listen(&self, pid: u32) -> Result<(), Refusal> {
        let Some(process) = self.shared.get(pid) else { return Ok(()) };
        let refused = |error: octavo_stub::InjectError| Refusal(error.to_string());
        let _tracing = self.shared.tracing();
        let question = [asked::QUESTION, 0, libc::MADV_DONTNEED as u64, 0, 0, 0];
        if process.mapper.ask_thread(libc::SYS_madvise, question).map_err(refused)? == asked::OURS {
            return Ok(());
        }
        let listener = Arc::new(Listener::from(process.mapper.listen(&filter::program()).map_err(refused)?));
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("octavo-asked".into());
        // Without a listener the calls of the program fail.
        thread
            .spawn(move || asked::serve(&listener, &shared))
            .map(drop)
            .map_err(|error| Refusal(format!("a thread cannot be started: {error}")))
    }

    /// Returns the processes whose memory is managed, each with its mapper.
    pub fn managed(&self) -> Vec<(u32, u32)> {
        self.shared.all().iter().map(|process| (process.pid, process.mapper.pid())).collect()
    }

    /// Forgets processes that have ended, or that run another program now. Returns their numbers.
    pub fn forget_ended(&mut self) -> Vec<u32> {
        let ended: Vec<_> = self
            .shared
            .all()
            .iter()
            .filter(|process| !process.is_current())
            .map(|process| process.pid)
            .collect();
        for pid in &ended {
            self.shared.forget(*pid);
            self.written.forget(*pid);
        }
        ended
    }

    /// Returns the processes whose memory a device may write at any time, so that nothing of it is dropped.
    pub fn pinned(&self) -> Vec<u32> {
        self.shared.all().iter().filter(|process| process.is_pinned()).map(|process| process.pid).collect()
    }

    /// Returns why the tree has to end: bytes of a program would not be right any more.
    pub fn why_broken(&self) -> Option<String> {
        self.shared.why_broken()
    }

    /// Returns why nothing is cleaned any more, if the disk failed.
    pub fn why_failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Returns whether pages are on disk that the next stop may drop.
    pub fn has_written(&self) -> bool {
        !self.written.is_empty()
    }

    /// Returns the figures up to now.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Frees memory: commits what is on disk, and writes up to `bytes` more. The tree is stopped for a
    /// moment. While it runs, `look` is called about once a millisecond.
    ///
    /// Returns the bytes that were freed, or `None` if the tree could not be stopped for now.
    ///
    /// # Errors
    /// Returns the error of `list`.
    pub fn clean(
        &mut self,
        bytes: u64,
        list: &mut List<'_>,
        look: &mut dyn FnMut(),
    ) -> io::Result<Option<u64>> {
        if self.failed.is_some() {
            return Ok(Some(0));
        }
        self.choice.prepare(&self.shared, bytes, look);
        let Some((freed, batch)) = self.stop(list, |cleaner, view| {
            let freed = cleaner.commit(view);
            (freed, cleaner.choose(view, bytes))
        })?
        else {
            return Ok(None);
        };
        if let Some(batch) = self.copied(batch, look) {
            let written = batch.write(&self.pages, look);
            self.take_written(batch, written);
        }
        Ok(Some(freed))
    }

    /// Frees memory within one stop, until `bytes` are free or nothing is left to write. Returns the bytes
    /// that were freed, or `None` if the tree could not be stopped for now.
    ///
    /// # Errors
    /// Returns the error of `list`.
    pub fn clean_at_once(&mut self, bytes: u64, most: u64, list: &mut List<'_>) -> io::Result<Option<u64>> {
        if self.failed.is_some() {
            return Ok(Some(0));
        }
        self.stop(list, |cleaner, view| {
            let mut freed = cleaner.commit(view);
            while freed < bytes && cleaner.failed.is_none() {
                let wanted = (bytes - freed).min(most);
                cleaner.choice.prepare(&cleaner.shared, wanted, &mut || {});
                let batch = cleaner.choose(view, wanted);
                let Some(batch) = cleaner.copied(batch, &mut || {}) else { break };
                let written = batch.write(&cleaner.pages, &mut || {});
                cleaner.take_written(batch, written);
                let more = cleaner.commit(&view.again(cleaner.pages.name()));
                if more == 0 {
                    break;
                }
                freed += more;
            }
            freed
        })
    }

    /// Stops the tree for `work`.
    fn stop<T>(
        &mut self,
        list: &mut List<'_>,
        work: impl FnOnce(&mut Self, &View) -> T,
    ) -> io::Result<Option<T>> {
        let shared = Arc::clone(&self.shared);
        let _tracing = shared.tracing();
        let began = Instant::now();
        let Some(stop) = Stop::all(list, &shared)? else {
            self.figures.failed_stops += 1;
            return Ok(None);
        };
        let view = View::of(&stop, self.pages.name());
        if self.figures.stops.is_multiple_of(STOPS_BETWEEN_HOLES) && view.knows_all {
            let mut mapped = view.mapped.clone();
            self.written.blocks().for_each(|range| mapped.insert(range));
            self.figures.file_bytes = self.pages.keep_only(mapped);
        }
        let done = work(self, &view);
        drop(stop);
        self.note_stop(began);
        Ok(Some(done))
    }

    fn note_stop(&mut self, began: Instant) {
        let took = began.elapsed();
        self.figures.stops += 1;
        self.figures.stopped += took;
        self.figures.longest_stop = self.figures.longest_stop.max(took);
    }

    /// Chooses pages to write, and takes room for them.
    fn choose(&mut self, view: &View, bytes: u64) -> Batch {
        self.choice.choose(&self.shared, view, &mut self.pages, bytes)
    }

    /// Copies the pages of a batch. Returns `None` if there is nothing to write.
    fn copied(&mut self, mut batch: Batch, look: &mut dyn FnMut()) -> Option<Batch> {
        batch.copy(&mut self.pages, look);
        (!batch.is_empty()).then_some(batch)
    }

    /// Takes a batch whose writes have ended.
    fn take_written(&mut self, batch: Batch, written: io::Result<u64>) {
        match written {
            Ok(bytes) => {
                self.figures.written_bytes += bytes;
                self.written = batch;
            }
            // All copies are still there, so nothing is lost. What the disk has is not known any more.
            Err(error) => self.failed = Some(format!("pages cannot be written: {error}")),
        }
    }

    /// Drops what is on disk and has not changed. Returns the bytes that were freed.
    fn commit(&mut self, view: &View) -> u64 {
        let batch = std::mem::take(&mut self.written);
        let choice = &mut self.choice;
        let mut note = |pid, address, has_changed| choice.note(pid, address, has_changed);
        let done = batch.commit(&self.shared, view, &mut self.pages, &mut note);
        self.figures.converted_bytes += done.converted_bytes;
        self.figures.cleaned_bytes += done.cleaned_bytes;
        self.figures.changed_bytes += done.changed_bytes;
        done.converted_bytes + done.cleaned_bytes
    }
}

/// What all processes map, while they stand still.
#[derive(Debug)]
pub(crate) struct View {
    pids: Vec<u32>,
    of: BTreeMap<u32, Vec<Mapping>>,
    /// The blocks that are mapped, and those that are mapped more than once.
    mapped: RangeSet<u64>,
    shared: RangeSet<u64>,
    /// Whether all mappings could be read. If not, any block may be mapped elsewhere.
    knows_all: bool,
}

impl View {
    fn of(stop: &Stop, ours: &str) -> Self {
        Self::look(stop.pids(), stop.strangers.is_empty(), ours)
    }

    fn look(pids: Vec<u32>, mut knows_all: bool, ours: &str) -> Self {
        let mut of = BTreeMap::new();
        for pid in &pids {
            match mappings::of(*pid, ours) {
                Ok(found) => drop(of.insert(*pid, found)),
                Err(_) if proc_text::read(*pid, "maps").is_ok_and(|maps| maps.is_empty()) => {}
                Err(_) => knows_all = false,
            }
        }
        let (mut mapped, mut shared) = (RangeSet::new(), RangeSet::new());
        for mapping in of.values().flatten() {
            if let What::Ours(offset) = mapping.what {
                let blocks = offset..offset + (mapping.end - mapping.start);
                let twice: Vec<_> = mapped
                    .overlapping(&blocks)
                    .map(|known: &std::ops::Range<u64>| {
                        known.start.max(blocks.start)..known.end.min(blocks.end)
                    })
                    .collect();
                shared.extend(twice);
                mapped.insert(blocks);
            }
        }
        Self { pids, of, mapped, shared, knows_all }
    }

    /// Looks again, while the processes still stand still.
    fn again(&self, ours: &str) -> Self {
        Self::look(self.pids.clone(), self.knows_all, ours)
    }

    /// Returns the part of the mapping of a process that holds a whole range.
    pub(crate) fn part(&self, pid: u32, range: &std::ops::Range<u64>) -> Option<Mapping> {
        let all = self.of.get(&pid)?;
        let index = all.partition_point(|mapping| mapping.end <= range.start);
        let mapping = all.get(index)?;
        if mapping.start <= range.start && range.end <= mapping.end { mapping.within(range) } else { None }
    }

    /// Returns whether nothing else maps these blocks.
    pub(crate) fn is_alone(&self, blocks: &std::ops::Range<u64>) -> bool {
        self.knows_all && !self.shared.overlaps(blocks)
    }

    /// Returns how many mappings a process has.
    pub(crate) fn mappings(&self, pid: u32) -> usize {
        self.of.get(&pid).map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests;
