//! Traces of a workload's accesses on Octavo's side (`--record`).
//!
//! The recorded run is an extra run, which is not timed. Its accesses go through a [`Recorded`] wrapper of
//! the workload's memory, so timed runs pay nothing. Each thread collects accesses to one page, and hands
//! them over when it accesses another page. So the file has the accesses of several threads in the order in
//! which they were handed over.

use std::cell::Cell;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use octavo_command::failure::Failure;
use octavo_trace::{Accesses, TraceError, TraceWriter};

use crate::table;

/// The file of a recorded run. It is opened before all runs, so that a wrong path fails at once.
#[derive(Debug)]
pub struct Recorder {
    name: String,
    next_page: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    writer: TraceWriter<BufWriter<File>>,
    /// The first failure. Nothing is written after it.
    failure: Option<TraceError>,
}

impl Recorder {
    /// Creates the file, or empties it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| cannot_write(&name, &error.into()))?;
        let writer = TraceWriter::new(BufWriter::new(file), octavo::PAGE_BYTES as u32)
            .map_err(|error| cannot_write(&name, &error))?;
        Ok(Self { name, next_page: AtomicU64::new(0), state: Mutex::new(State { writer, failure: None }) })
    }

    /// Makes the track of one thread of a task.
    pub fn track(&self, task: u32) -> Track<'_> {
        Track { recorder: self, task, open: Cell::new(None) }
    }

    /// Ends the file, and returns a summary of its contents.
    pub fn finish(self) -> Result<String, Failure> {
        let State { writer, failure } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let accesses = writer.accesses();
        let written = failure.map_or_else(|| writer.finish(), Err).and_then(|file| {
            let file = file.into_inner().map_err(|error| error.into_error())?;
            Ok(file.metadata()?.len())
        });
        let bytes = written.map_err(|error| cannot_write(&self.name, &error))?;
        Ok(format!(
            "recorded {} in {} ({})",
            table::counted(accesses, "access", "accesses"),
            self.name,
            table::bytes(bytes)
        ))
    }

    fn take(&self, accesses: Accesses) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.failure.is_none() {
            state.failure = state.writer.write(accesses).err();
        }
    }
}

fn cannot_write(name: &str, error: &TraceError) -> Failure {
    Failure::Said(format!("cannot write the trace to {name}: {error}"))
}

/// The accesses of one thread.
#[derive(Debug)]
pub struct Track<'a> {
    recorder: &'a Recorder,
    task: u32,
    /// Accesses to one page that are not handed over yet.
    open: Cell<Option<Accesses>>,
}

impl Track<'_> {
    /// Returns the first of `pages` new page numbers. Memory that is mapped in the place of other memory gets
    /// new numbers.
    pub fn new_pages(&self, pages: u64) -> u64 {
        // Relaxed: the numbers must differ, but order nothing.
        self.recorder.next_page.fetch_add(pages, Ordering::Relaxed)
    }

    /// Notes accesses to a page.
    pub fn note(&self, page: u64, is_write: bool, times: u64) {
        let next = Accesses { task: self.task, page, is_write, times };
        let joined = match self.open.get() {
            Some(open) if (open.page, open.is_write) == (page, is_write) => {
                Accesses { times: open.times + times, ..open }
            }
            open => {
                open.into_iter().for_each(|open| self.recorder.take(open));
                next
            }
        };
        self.open.set(Some(joined));
    }
}

impl Drop for Track<'_> {
    fn drop(&mut self) {
        self.open.take().into_iter().for_each(|open| self.recorder.take(open));
    }
}

/// A memory whose accesses are recorded.
#[derive(Debug)]
pub struct Recorded<'a, M> {
    pub memory: M,
    pub track: Track<'a>,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn accesses_to_one_page_are_kept_together_and_none_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let recorder = Recorder::open(&path).unwrap();
        let (one, two) = (recorder.track(1), recorder.track(2));
        for word in 0..1024 {
            one.note(16 + word / 512, true, 1);
            two.note(16, false, 2);
        }
        drop((two, one));
        let said = recorder.finish().unwrap();
        assert!(said.starts_with("recorded 3,072 accesses in "), "{said}");
        let bytes = fs::read(&path).unwrap();
        let all: Vec<_> = octavo_trace::TraceReader::new(&*bytes).unwrap().map(Result::unwrap).collect();
        let of = |task, page, is_write, times| Accesses { task, page, is_write, times };
        assert_eq!(all, [of(1, 16, true, 512), of(2, 16, false, 2048), of(1, 17, true, 512)]);
    }
}
