//! Writes a trace access by access.

use std::collections::HashMap;
use std::io::Write;

use crate::format::{
    DELTA_SHIFT, END, FURTHER, MAGIC, MOST_PAGES, TASK, VERSION, WRITE, distance, write_number,
};
use crate::{Accesses, TraceError};

/// A trace that is being written. It is complete once [`TraceWriter::finish`] has returned.
#[derive(Debug)]
pub struct TraceWriter<W> {
    to: W,
    /// The record that is not written yet, since the next accesses may belong to it.
    open: Option<Accesses>,
    task: u32,
    last_page: HashMap<u32, u64>,
    accesses: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace of pages of `page_bytes` bytes. `to` should have a buffer.
    ///
    /// # Errors
    /// Fails if `to` does.
    pub fn new(mut to: W, page_bytes: u32) -> Result<Self, TraceError> {
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&page_bytes.to_le_bytes())?;
        Ok(Self { to, open: None, task: 0, last_page: HashMap::new(), accesses: 0 })
    }

    /// Writes accesses. They share a record with the last ones if both have the same task, page and kind.
    ///
    /// # Errors
    /// Fails if `to` does.
    ///
    /// # Panics
    /// If there is no access, or no such page.
    pub fn write(&mut self, next: Accesses) -> Result<(), TraceError> {
        assert!(next.times > 0 && next.page < MOST_PAGES, "accesses to a page: {next:?}");
        self.accesses += next.times;
        if let Some(open) = &mut self.open {
            if (open.task, open.page, open.is_write) == (next.task, next.page, next.is_write) {
                open.times += next.times;
                return Ok(());
            }
            let full = *open;
            self.record(full)?;
        }
        self.open = Some(next);
        Ok(())
    }

    /// The accesses so far.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Ends the trace, and returns the file.
    ///
    /// # Errors
    /// Fails if `to` does.
    pub fn finish(mut self) -> Result<W, TraceError> {
        if let Some(open) = self.open.take() {
            self.record(open)?;
        }
        write_number(&mut self.to, END)?;
        self.to.write_all(&self.accesses.to_le_bytes())?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn record(&mut self, accesses: Accesses) -> Result<(), TraceError> {
        let Accesses { task, page, is_write, times } = accesses;
        let last_page = self.last_page.entry(task).or_default();
        let mut head = distance(*last_page, page) << DELTA_SHIFT;
        *last_page = page;
        for (flag, bit) in [(is_write, WRITE), (task != self.task, TASK), (times > 1, FURTHER)] {
            head |= if flag { bit } else { 0 };
        }
        write_number(&mut self.to, head + 1)?;
        if task != self.task {
            self.task = task;
            write_number(&mut self.to, task.into())?;
        }
        if times > 1 {
            write_number(&mut self.to, times - 1)?;
        }
        Ok(())
    }
}
