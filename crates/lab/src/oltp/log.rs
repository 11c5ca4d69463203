//! A write-ahead log: records in a ring, written by direct transfers from pinned pages, many commits at once.
//!
//! ```text
//!  file:    control │ control │ ring ─────────────────────────────────────────────
//!                                  ▲ start        ▲ redo       ▲ durable   ▲ end
//!                                  └ may be overwritten before └ in the buffer: a ring of its own, in a space
//!  record:  length, checksum │ words
//! ```
//!
//! A place in the log is a *sequence number* (LSN): the bytes that were ever appended before it. A record's
//! checksum covers its LSN and the *incarnation*, which each recovery raises. So what a former lap or a
//! former life has left in the ring never passes for a record.
//!
//! **Group commit.** A thread that needs its record durable becomes the leader, unless another thread is. The
//! leader writes everything that was appended so far, and flushes the device once. All others wait for its
//! end, and then one of those that are not durable yet leads.
//!
//! **Checkpoints.** Recovery begins at the control block's `redo`. A checkpoint moves it: first
//! [`Log::begin_checkpoint`], then all data that were changed before are made durable, then
//! [`Log::end_checkpoint`]. Two control blocks are written in turn, so a torn one leaves the other.
//!
//! Locking: `state` is held while a record is copied, never while a device works.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable, bytes_of, cast_slice, cast_slice_mut};
use octavo::file::{File, FileOptions};
use octavo::{Error, Manager, RegionOptions, Space};
use octavo_command::failure::Failure;
use octavo_measure::direct::write_in_full;

const BLOCK: u64 = 4096;
/// Where the ring begins, behind the control blocks.
const RING: u64 = 2 * BLOCK;
/// The buffer. The ring has a multiple of it.
pub const BUFFER: u64 = 1 << 20;
/// The most words of a record.
const MOST_WORDS: usize = 64 << 10 >> 1;
const MARK: u64 = u64::from_le_bytes(*b"oltplog1");

/// What recovery begins with.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Control {
    mark: u64,
    incarnation: u64,
    /// The number of the control block. The greater is the newer.
    number: u64,
    redo: u64,
    capacity: u64,
    /// A word of the owner.
    scale: u64,
    checksum: u64,
}

impl Control {
    fn sealed(mut self) -> Self {
        self.checksum = self.sum();
        self
    }

    fn sum(&self) -> u64 {
        crc32c::crc32c(bytes_of(&Self { checksum: 0, ..*self })).into()
    }
}

pub struct Log {
    file: File,
    space: Arc<Space>,
    /// Addresses of the buffer, and of a page for a control block behind it.
    buffer: u64,
    capacity: u64,
    incarnation: u64,
    pub scale: u64,
    state: Mutex<State>,
    /// Signalled when there may be room, and when a checkpoint is needed.
    changed: Condvar,
    /// Signalled when a flush has ended.
    flushed: Condvar,
    durable: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Records before it are needed no more.
    start: u64,
    /// Where the last checkpoint began.
    redo: u64,
    end: u64,
    /// The number of the last control block.
    control: u64,
    words: Vec<u64>,
    /// A thread flushes.
    is_led: bool,
    /// Nobody appends any more.
    has_ended: bool,
    failed: Option<Error>,
}

impl Log {
    /// Makes a log file of whole [`BUFFER`]s with its first control block. Only then is there a log.
    pub fn make(manager: &Manager, path: &Path, capacity: u64, scale: u64) -> Result<Self, Failure> {
        let system = |error: io::Error| Failure::system(format!("cannot make {}", path.display()), error);
        let file = std::fs::File::create(path).map_err(system)?;
        // All blocks are written once, so that later flushes write no metadata.
        write_in_full(&file, RING + capacity).map_err(system)?;
        let control =
            Control { mark: MARK, incarnation: 1, number: 0, redo: 0, capacity, scale, checksum: 0 };
        let log = Self::over(manager, path, control)?;
        log.write_control(0)?;
        Ok(log)
    }

    /// Opens a log, and hands its records to `redo`, with the LSN of each one's end. Returns `None` if there
    /// is no log. The caller makes the data durable, and then calls [`Log::end_recovery`].
    pub fn recover(
        manager: &Manager,
        path: &Path,
        mut redo: impl FnMut(u64, &[u64]) -> octavo::Result<()>,
    ) -> Result<Option<Self>, Failure> {
        let Some(control) = newest_control(path)? else { return Ok(None) };
        let mut log = Self::over(manager, path, control)?;
        let (mut at, mut loaded) = (control.redo, None);
        let mut words = Vec::new();
        while log.read_record(at, &mut words, &mut loaded)? {
            at += 8 * (1 + words.len()) as u64;
            redo(at, &words)?;
        }
        log.incarnation += 1;
        // The block of the end stays in the buffer: the next write begins with it.
        log.load(at, &mut None)?;
        *log.state() = State { start: at, redo: at, end: at, control: control.number, ..State::default() };
        log.durable.store(at, Ordering::Release);
        Ok(Some(log))
    }

    /// Ends a recovery: all that was done again is in the data for good.
    pub fn end_recovery(&self) -> octavo::Result<()> {
        let redo = self.state().redo;
        self.write_control(redo)
    }

    fn over(manager: &Manager, path: &Path, control: Control) -> Result<Self, Failure> {
        let file = manager.open(path, FileOptions::new().create(true))?;
        let space = Arc::new(manager.space_named("log")?);
        let buffer = space.map(BUFFER + BLOCK, RegionOptions::new())?;
        Ok(Self {
            file,
            space,
            buffer,
            capacity: control.capacity,
            incarnation: control.incarnation,
            scale: control.scale,
            state: Mutex::new(State { control: control.number, ..State::default() }),
            changed: Condvar::new(),
            flushed: Condvar::new(),
            durable: AtomicU64::new(control.redo),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A poisoned lock is usable: `end` moves last.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns up to where records are on the device for good.
    pub fn durable(&self) -> u64 {
        // Acquire: pairs with `flush`.
        self.durable.load(Ordering::Acquire)
    }

    // --- records ---

    /// Appends a record, and returns the LSN of its end. `make` adds its words, and gets the LSN at which the
    /// last checkpoint began; it may be called again. Waits while the buffer is full. If the log has failed,
    /// the record is lost, and no data of it ever become durable.
    pub fn append(&self, make: impl Fn(u64, &mut Vec<u64>)) -> u64 {
        let mut state = self.state();
        loop {
            let (at, mut words) = (state.end, std::mem::take(&mut state.words));
            words.clear();
            words.push(0);
            make(state.redo, &mut words);
            assert!(words.len() <= MOST_WORDS, "a record of {} words", words.len());
            words[0] = (words.len() as u64 - 1) << 32 | u64::from(self.checksum(at, &words[1..]));
            let end = at + 8 * words.len() as u64;
            let has_room = end <= block_of(self.durable()) + BUFFER;
            if has_room && state.failed.is_none() {
                self.copy(at, &words).unwrap_or_else(|error| state.failed = Some(error));
            }
            state.words = words;
            if has_room || state.failed.is_some() {
                state.end = end;
                return end;
            }
            drop(state);
            // A failure is kept in the state.
            let _ = self.flush(at);
            state = self.state();
        }
    }

    fn checksum(&self, at: u64, words: &[u64]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(cast_slice(&[self.incarnation, at])), cast_slice(words))
    }

    /// Copies words to the buffer, which is a ring.
    fn copy(&self, at: u64, words: &[u64]) -> octavo::Result<()> {
        let bytes: &[u8] = cast_slice(words);
        let (first, rest) = bytes.split_at(bytes.len().min((BUFFER - at % BUFFER) as usize));
        self.space.write(self.buffer + at % BUFFER, first)?;
        if rest.is_empty() { Ok(()) } else { self.space.write(self.buffer, rest) }
    }

    /// Makes the log durable up to an LSN, together with all that others have appended so far.
    ///
    /// # Errors
    /// That of the device, for every call from then on.
    pub fn flush(&self, to: u64) -> octavo::Result<()> {
        if self.durable() >= to {
            return Ok(());
        }
        let mut state = self.state();
        while state.is_led && self.durable() < to {
            state = self.flushed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if self.durable() >= to {
            return Ok(());
        }
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let end = state.end;
        state.is_led = true;
        drop(state);
        let written = self.write_ring(block_of(self.durable()), end.next_multiple_of(BLOCK));
        let written = written.and_then(|()| self.file.sync());
        let mut state = self.state();
        state.is_led = false;
        match &written {
            // Release: pairs with `durable`.
            Ok(()) => self.durable.store(end, Ordering::Release),
            Err(error) => {
                state.failed = Some(error.clone());
                self.changed.notify_all();
            }
        }
        drop(state);
        self.flushed.notify_all();
        written
    }

    fn write_ring(&self, from: u64, until: u64) -> octavo::Result<()> {
        let mut at = from;
        while at < until {
            let len = (until - at).min(BUFFER - at % BUFFER);
            let moved = self.file.direct_write(
                RING + at % self.capacity,
                &self.space,
                self.buffer + at % BUFFER,
                len as usize,
            )?;
            at += moved as u64;
        }
        Ok(())
    }

    // --- checkpoints ---

    /// Waits until the log has room for a transaction. Call it with no guard held: room comes by a
    /// checkpoint, which waits for guards.
    ///
    /// # Errors
    /// That of the device, if the log has failed.
    pub fn admit(&self) -> octavo::Result<()> {
        let mut state = self.state();
        // The last quarter is for transactions that have been admitted.
        while state.failed.is_none() && state.end - state.start > self.capacity / 4 * 3 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.end - state.start > self.capacity / 2 {
            self.changed.notify_all();
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until the log is half full. Returns `false` if it has ended or failed.
    pub fn needs_checkpoint(&self) -> bool {
        let mut state = self.state();
        while !state.has_ended && state.failed.is_none() && state.end - state.start <= self.capacity / 2 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.has_ended && state.failed.is_none()
    }

    /// Sets whether the log ends for those who wait for [`Log::needs_checkpoint`].
    pub fn set_ended(&self, has_ended: bool) {
        self.state().has_ended = has_ended;
        self.changed.notify_all();
    }

    /// Notes an error that leaves the data without checkpoints.
    pub fn fail(&self, error: Error) {
        self.state().failed = Some(error);
        self.changed.notify_all();
    }

    /// Begins a checkpoint. Data that records before the returned LSN have changed must be durable before it
    /// ends.
    pub fn begin_checkpoint(&self) -> u64 {
        let mut state = self.state();
        state.redo = state.end;
        state.redo
    }

    /// Ends a checkpoint that began at this LSN.
    ///
    /// # Errors
    /// That of the device.
    pub fn end_checkpoint(&self, redo: u64) -> octavo::Result<()> {
        self.write_control(redo)?;
        self.state().start = redo;
        self.changed.notify_all();
        Ok(())
    }

    fn write_control(&self, redo: u64) -> octavo::Result<()> {
        let number = {
            let mut state = self.state();
            state.control += 1;
            state.control
        };
        let (incarnation, capacity, scale) = (self.incarnation, self.capacity, self.scale);
        let control = Control { mark: MARK, incarnation, number, redo, capacity, scale, checksum: 0 };
        let page = self.buffer + BUFFER;
        self.space.write(page, bytes_of(&control.sealed()))?;
        self.file.direct_write(number % 2 * BLOCK, &self.space, page, BLOCK as usize)?;
        self.file.sync()
    }

    // --- recovery ---

    /// Has the part of the ring around an LSN in the buffer.
    fn load(&self, at: u64, loaded: &mut Option<u64>) -> octavo::Result<()> {
        let part = at / BUFFER;
        if loaded.replace(part) != Some(part) {
            let from = RING + part * BUFFER % self.capacity;
            let mut moved = 0;
            while moved < BUFFER {
                let (offset, len) = (from + moved, (BUFFER - moved) as usize);
                moved += self.file.direct_read(offset, &self.space, self.buffer + moved, len)? as u64;
            }
        }
        Ok(())
    }

    fn read(&self, at: u64, words: &mut [u64], loaded: &mut Option<u64>) -> octavo::Result<()> {
        let (mut at, mut rest): (u64, &mut [u8]) = (at, cast_slice_mut(words));
        while !rest.is_empty() {
            self.load(at, loaded)?;
            let (now, later) = rest.split_at_mut(rest.len().min((BUFFER - at % BUFFER) as usize));
            self.space.read(self.buffer + at % BUFFER, now)?;
            (at, rest) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    /// Reads the record at an LSN. Returns `false` if there is none: the log ends here.
    fn read_record(&self, at: u64, words: &mut Vec<u64>, loaded: &mut Option<u64>) -> octavo::Result<bool> {
        let mut head = [0];
        self.read(at, &mut head, loaded)?;
        let len = (head[0] >> 32) as usize;
        if len == 0 || len > MOST_WORDS {
            return Ok(false);
        }
        words.resize(len, 0);
        self.read(at + 8, words, loaded)?;
        Ok(u64::from(self.checksum(at, words)) == head[0] & u64::from(u32::MAX))
    }
}

/// The beginning of the block that has an LSN.
fn block_of(lsn: u64) -> u64 {
    lsn - lsn % BLOCK
}

/// Returns the newest whole control block of a log file.
fn newest_control(path: &Path) -> Result<Option<Control>, Failure> {
    let system = |error: io::Error| Failure::system(format!("cannot read {}", path.display()), error);
    let bytes = match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(opened.map_err(system)?, RING), &mut bytes)
                .map_err(system)?;
            bytes
        }
    };
    let controls = bytes
        .chunks_exact(BLOCK as usize)
        .map(|block| bytemuck::pod_read_unaligned::<Control>(&block[..size_of::<Control>()]));
    Ok(controls
        .filter(|control| control.mark == MARK && control.checksum == control.sum())
        .max_by_key(|control| control.number))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use super::*;

    /// Words of a record, so that records of all laps begin at the same places.
    const WORDS: u64 = 511;
    const RECORD_BYTES: u64 = 8 * (1 + WORDS);

    fn manager() -> Manager {
        Manager::builder().budget_bytes(16 << 20).background(false).build().unwrap()
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("log");
        (folder, path)
    }

    fn append(log: &Log, number: u64) {
        let end = log.append(|_, words| words.extend(std::iter::repeat_n(number, WORDS as usize)));
        log.flush(end).unwrap();
    }

    /// Recovers a log, and returns its records.
    fn recovered(manager: &Manager, path: &Path) -> (Log, Vec<u64>) {
        let mut numbers = Vec::new();
        let log = Log::recover(manager, path, |_, words| {
            assert!(words.len() as u64 == WORDS && words.iter().all(|word| *word == words[0]));
            numbers.push(words[0]);
            assert!(numbers.len() < 10_000, "the log has no end");
            Ok(())
        });
        (log.unwrap().unwrap(), numbers)
    }

    #[test]
    fn what_a_former_lap_has_left_is_no_record() {
        let ((_folder, path), manager) = (place(), manager());
        let log = Log::make(&manager, &path, 2 * BUFFER, 1).unwrap();
        let of_a_lap = 2 * BUFFER / RECORD_BYTES;
        for number in 0..2 * of_a_lap + 7 {
            append(&log, number);
            if number % 100 == 99 {
                log.end_checkpoint(log.begin_checkpoint()).unwrap();
            }
        }
        drop(log);
        let last = 2 * of_a_lap + 7;
        assert_eq!(recovered(&manager, &path).1, (last / 100 * 100..last).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_former_life_has_left_behind_a_torn_record_is_no_record() {
        let ((_folder, path), manager) = (place(), manager());
        let log = Log::make(&manager, &path, 2 * BUFFER, 1).unwrap();
        (0..10).for_each(|number| append(&log, number));
        drop(log);
        let torn = RING + 4 * RECORD_BYTES + 512;
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[0; 512], torn).unwrap();
        let (log, numbers) = recovered(&manager, &path);
        assert_eq!(numbers, [0, 1, 2, 3]);
        log.end_recovery().unwrap();
        append(&log, 77);
        drop(log);
        assert_eq!(recovered(&manager, &path).1, [77], "records 5 to 9 are still in the ring");
    }

    #[test]
    fn a_torn_control_block_leaves_the_one_before() {
        let ((_folder, path), manager) = (place(), manager());
        let log = Log::make(&manager, &path, 2 * BUFFER, 7).unwrap();
        append(&log, 1);
        log.end_checkpoint(log.begin_checkpoint()).unwrap();
        append(&log, 2);
        drop(log);
        assert_eq!(recovered(&manager, &path).1, [2]);
        // The second control block has an even number.
        std::fs::File::options().write(true).open(&path).unwrap().write_all_at(&[9; 8], 24).unwrap();
        let (log, numbers) = recovered(&manager, &path);
        assert_eq!((log.scale, numbers), (7, vec![1, 2]));
    }
}
