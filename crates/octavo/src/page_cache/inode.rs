//! A file of the page cache: where its bytes are kept, how long it is, and which segments have its pages.
//!
//! There is one inode for each file of a manager, however often it is open. Its length is what the manager's
//! programs see. The backing may be shorter (a write at the end has not gone out yet) or, if it takes whole
//! pages only, longer by a part of a page. A sync makes the two agree.
//!
//! Locking: `resizing` is held by who changes the length, over the whole change. `segments` is a leaf.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;

use crate::error::{Error, ErrorKind, Result};
use crate::io::{Direction, FileBacking, Submitted, Transfer, Urgency};
use crate::page_cache::{ErrorSequence, SEGMENT_PAGES};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Duration, Instant, Mutex, Ordering, RwLock, Shared};
use crate::units::{FileId, PAGE_BYTES};

/// Tells one file of the system from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

/// Implement this to hold dirty pages of a file back until their log is durable, as write-ahead logging
/// needs. For [`File::set_write_gate`](crate::file::File::set_write_gate).
///
/// `may_write` is called by any thread that makes room, by the flusher, and by syncs. It must not wait, nor
/// use the manager. `make_writable` is called by syncs and by the end of the file's last use. It may use
/// the manager for direct transfers of *another* file, such as the log, and must not open or close files.
pub trait WriteGate: Send + Sync {
    /// Returns whether the page at this offset may go to the device now, with these bytes. Nobody with an
    /// exclusive guard changes the page before it is written. A page that is held back stays dirty, and
    /// other pages go.
    fn may_write(&self, offset: u64, page: &[u8]) -> bool;

    /// Makes it so that the page may be written, for a sync that found it held back: for example, flushes
    /// the log. The page is asked about again then. Exclusive guards wait for it meanwhile, so it has the
    /// same bytes. The call must not wait for such a guard, nor for a thread that may wait for one.
    fn make_writable(&self, offset: u64, page: &[u8]);
}

/// How programs reach the pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Guards = 1,
    Others = 2,
}

/// Nobody has reached the pages yet.
const NO_WAY: u32 = 0;

/// A file.
pub(crate) struct Inode {
    pub(crate) id: FileId,
    pub(super) identity: Option<Identity>,
    pub(crate) backing: Box<dyn FileBacking>,
    pub(crate) name: String,
    /// The segments in use, by their place in the file.
    pub(super) segments: RwLock<BTreeMap<u64, u32>>,
    len_bytes: AtomicU64,
    /// The backing has bytes up to here, as far as the manager knows.
    backed_bytes: AtomicU64,
    /// The length that the backing was told last.
    backing_len: AtomicU64,
    pub(crate) resizing: Mutex<()>,
    pub(crate) errors: ErrorSequence,
    /// The last write failed. Reclaim sends no more pages, until a sync has written one.
    is_failing: AtomicBool,
    dirty_pages: AtomicU64,
    /// Pages that were dirtied since a thread looked at the limits.
    dirtied: AtomicU64,
    /// When the first of the dirty pages was dirtied, in a look of the flusher.
    dirty_since: Mutex<Option<Instant>>,
    /// Where the next flush begins.
    pub(crate) flush_from: AtomicU64,
    /// Pages a second that the device writes, as the bits of a float.
    speed: AtomicU64,
    /// How programs reach the pages: [`NO_WAY`], or the way of the first who did.
    way: AtomicU32,
    gate: RwLock<Option<Shared<dyn WriteGate>>>,
    /// Open files and mappings.
    pub(super) users: AtomicU64,
}

impl Inode {
    pub(super) fn new(
        id: FileId,
        identity: Option<Identity>,
        backing: Box<dyn FileBacking>,
        name: String,
        len_bytes: u64,
    ) -> Self {
        Self {
            id,
            identity,
            backing,
            name,
            segments: RwLock::new(BTreeMap::new()),
            len_bytes: AtomicU64::new(len_bytes),
            backed_bytes: AtomicU64::new(len_bytes),
            backing_len: AtomicU64::new(len_bytes),
            resizing: Mutex::new(()),
            errors: ErrorSequence::default(),
            is_failing: AtomicBool::new(false),
            dirty_pages: AtomicU64::new(0),
            dirtied: AtomicU64::new(0),
            dirty_since: Mutex::new(None),
            flush_from: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            way: AtomicU32::new(NO_WAY),
            gate: RwLock::new(None),
            users: AtomicU64::new(1),
        }
    }

    /// The length that programs see.
    pub(crate) fn len_bytes(&self) -> u64 {
        // Acquire: pairs with `set_len_bytes`.
        self.len_bytes.load(Ordering::Acquire)
    }

    /// Returns whether nobody has the file open or mapped any more.
    pub(crate) fn is_closed(&self) -> bool {
        // Acquire: pairs with the end of the last use.
        self.users.load(Ordering::Acquire) == 0
    }

    /// Pages of the file. The last may be part of a page.
    pub(crate) fn pages(&self) -> u64 {
        self.len_bytes().div_ceil(PAGE_BYTES as u64)
    }

    /// Changes the length that programs see. The caller holds `resizing`.
    pub(crate) fn set_len_bytes(&self, bytes: u64) {
        self.len_bytes.store(bytes, Ordering::Release);
    }

    /// Returns up to where the backing has bytes. Pages behind are zeros that no device has to be asked for.
    pub(crate) fn backed_bytes(&self) -> u64 {
        self.backed_bytes.load(Ordering::Acquire)
    }

    /// Notes that pages up to this byte were written.
    pub(crate) fn note_backed(&self, bytes: u64) {
        self.backed_bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Notes that the backing has nothing behind this byte. The caller holds `resizing`.
    pub(crate) fn cut_backed(&self, bytes: u64) {
        // Not a load and a store: a write of a page in front may end in between.
        self.backed_bytes.fetch_min(bytes, Ordering::AcqRel);
    }

    /// The length of the backing: what it was told, or where the last page that was written ends. The caller
    /// holds `resizing`.
    pub(crate) fn backing_len(&self) -> u64 {
        self.backing_len.load(Ordering::Relaxed).max(self.backed_bytes())
    }

    /// Notes the length that the backing was told. The caller holds `resizing`.
    pub(crate) fn set_backing_len(&self, bytes: u64) {
        self.backing_len.store(bytes, Ordering::Relaxed);
    }

    /// Dirty pages.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed)
    }

    pub(super) fn count_dirty(&self, pages: i64) {
        // Relaxed: a figure, which nothing is ordered by.
        self.dirty_pages.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Counts a page that was dirtied. Returns whether so many were since the last `true`.
    pub(crate) fn dirtied_since_balance(&self, pages: u64) -> bool {
        // Relaxed: a figure.
        self.dirtied.fetch_add(1, Ordering::Relaxed) % pages == pages - 1
    }

    /// Returns whether the file has been dirty for so long, as far as the flusher's looks tell.
    pub(crate) fn is_dirty_for(&self, now: Instant, age: Duration) -> bool {
        let since = *self.dirty_since.lock().get_or_insert(now);
        now.saturating_duration_since(since) >= age
    }

    /// Notes that what was dirty has been written.
    pub(crate) fn note_flushed(&self) {
        *self.dirty_since.lock() = None;
    }

    /// Pages a second that the device has written lately, or 0.
    pub(crate) fn speed(&self) -> f64 {
        f64::from_bits(self.speed.load(Ordering::Relaxed))
    }

    /// Notes how long the write of some pages took.
    pub(crate) fn note_speed(&self, pages: u64, took: Duration) {
        if pages == 0 || took.is_zero() {
            return;
        }
        let (now, before) = (pages as f64 / took.as_secs_f64(), self.speed());
        let mean = if before == 0.0 { now } else { before + (now - before) / 8.0 };
        self.speed.store(mean.to_bits(), Ordering::Relaxed);
    }

    /// Notes that pages are lent by guards, or reached in other ways, until the file is closed. Guards lend
    /// slices, so nothing else may change their bytes: not even the zeros behind the end of the file.
    ///
    /// # Errors
    /// `Unsupported` if the file is used in the other way. `InvalidRange` for guards if the file ends
    /// inside a page.
    pub(crate) fn reach(&self, way: Reach) -> Result<()> {
        // The length stays while the way is chosen.
        let _resizing = self.resizing.lock();
        if way == Reach::Guards && self.whole_pages(self.len_bytes()) != self.len_bytes() {
            let message = format!(
                "{} has {} bytes; guards lend whole pages: make its length a multiple of {PAGE_BYTES}",
                self.name,
                self.len_bytes()
            );
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        let before = self.way.compare_exchange(NO_WAY, way as u32, Ordering::AcqRel, Ordering::Acquire);
        if before.is_err_and(|before| before != way as u32) {
            let what = match way {
                Reach::Guards => "is read, written or mapped without guards, and cannot be mapped with them",
                Reach::Others => "is mapped with guards, and cannot be read, written or mapped without them",
            };
            let message = format!("{} {what} before it is closed", self.name);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    fn whole_pages(&self, bytes: u64) -> u64 {
        bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64
    }

    fn is_lent(&self) -> bool {
        self.way.load(Ordering::Acquire) == Reach::Guards as u32
    }

    /// Returns a length, or the whole pages of it if guards lend the file's pages.
    pub(crate) fn whole_if_lent(&self, bytes: u64) -> u64 {
        if self.is_lent() { self.whole_pages(bytes) } else { bytes }
    }

    /// Checks that the file may have this length. The caller holds `resizing`.
    ///
    /// # Errors
    /// `InvalidRange` if it is beyond the device's end, or inside a page of a file whose pages guards lend.
    pub(crate) fn check_len(&self, bytes: u64) -> Result<()> {
        let most = u64::from(self.backing.capacity_pages()) * PAGE_BYTES as u64;
        if bytes > most {
            let message = format!("{} can have {most} bytes, and not {bytes}", self.name);
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        if self.whole_if_lent(bytes) != bytes {
            let message = format!(
                "{} is mapped with guards, which lend whole pages; give a multiple of {PAGE_BYTES} bytes",
                self.name
            );
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        Ok(())
    }

    /// Sets who holds pages back.
    pub(crate) fn set_gate(&self, gate: Option<Shared<dyn WriteGate>>) {
        *self.gate.write() = gate;
    }

    /// Returns who holds pages back.
    pub(crate) fn gate(&self) -> Option<Shared<dyn WriteGate>> {
        self.gate.read().clone()
    }

    /// Hands a transfer of pages to the device. Returns `false` if the device is full: the transfer
    /// has not begun then, and its host gets no report of its end.
    pub(crate) fn submit(&self, mut transfer: Transfer, urgency: Urgency) -> bool {
        if let (Direction::Write, Some(part)) = (transfer.direction(), self.part_of_last(&transfer)) {
            transfer = transfer.ending_at(part);
        }
        match self.backing.submit(transfer, urgency) {
            Submitted::Accepted => true,
            Submitted::Full(transfer) => {
                transfer.take_back();
                false
            }
        }
    }

    /// Returns how many bytes of the last page of a transfer lie in front of the end of the file, if the file
    /// ends inside that page. The end stays there while the page is under WRITEBACK, or moves to the front.
    fn part_of_last(&self, transfer: &Transfer) -> Option<usize> {
        let last = u64::from(transfer.place()) + transfer.len() as u64 - 1;
        let inside = self.len_bytes().checked_sub(last * PAGE_BYTES as u64)? as usize;
        (1..PAGE_BYTES).contains(&inside).then_some(inside)
    }

    /// Returns whether the last write failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Relaxed)
    }

    /// Notes how a write of pages ended.
    pub(crate) fn note_write(&self, result: &io::Result<()>) {
        if let Err(error) = result {
            self.errors.note(error);
        }
        if self.is_failing() != result.is_err() {
            self.is_failing.store(result.is_err(), Ordering::Relaxed);
        }
    }

    /// Goes through the segments that have pages of a range of the file: the place of each in the file, and
    /// its number. No lock is held between two of them.
    pub(super) fn segments_in(&self, pages: &Range<u64>) -> impl Iterator<Item = (u64, u32)> + use<'_> {
        let mut places = pages.start / SEGMENT_PAGES..pages.end.div_ceil(SEGMENT_PAGES);
        std::iter::from_fn(move || {
            if places.is_empty() {
                return None;
            }
            let (place, number) =
                self.segments.read().range(places.clone()).next().map(|(place, number)| (*place, *number))?;
            places.start = place + 1;
            Some((place, number))
        })
    }

    /// Makes the error for a call that the backing refused.
    #[cold]
    pub(crate) fn failed(&self, kind: ErrorKind, what: &str, error: &io::Error) -> Error {
        Error::new(kind, format!("cannot {what} {}: {error}", self.name))
    }

    /// Makes the error for an access behind the end.
    #[cold]
    pub(crate) fn beyond_end(&self, page: u64) -> Error {
        let message = format!(
            "page {page} is behind the end of {}, which has {} bytes; make the file longer with set_len_bytes()",
            self.name,
            self.len_bytes()
        );
        Error::new(ErrorKind::BeyondEnd, message)
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inode({}, {:?})", self.name, self.id)
    }
}
