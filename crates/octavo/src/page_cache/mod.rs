//! The page cache: pages of files in memory, as a store of pages beside swap.
//!
//! ```text
//!  region: file, first page ──► Inode ──► segment ──► tree: frame, or shadow; tags DIRTY, TOWRITE, WRITEBACK
//!                                           ▲
//!  frame's word: StoredPage ────────────────┘
//! ```
//!
//! | file | what it has |
//! |---|---|
//! | `mod` | the files that are open, and the frames of their pages |
//! | `inode` | one file |
//! | `limits` | how many pages may be dirty, and how long threads wait |
//! | `segment` | runs of 64 MiB, which give pages their numbers |
//! | `errors` | errors of writes, reported to each opener once |
//! | `tags` | which pages have to be written, and who writes them |
//! | `store` | what eviction and transfers ask of a store |
//! | `validate` | checks for tests |
//!
//! **A page and its frame.** The tree of a segment names the frame that has a page, and the frame's word
//! names the page. Both change under the segment's lock. While the cache has a frame, it holds one use of
//! it. So a page stays in memory when no entry shows it, until reclaim wants the frame. An entry begins to
//! show a frame under the lock as well, and only while the file is long enough: truncation makes the file
//! shorter, and then takes the pages one by one under the same lock.
//!
//! **Which pages are dirty.** All stores come through the engine: a store pins the frame, and looks whether
//! it is dirty. If it is not, [`PageCache::note_dirty`] sets the tag DIRTY, and then the frame's flag is
//! set. So a frame with the flag has the tag. A page's write begins by clearing the flag, which fails while
//! others have pins, and then clears the tag, under the lock. So no store is missed. A page that others
//! have pinned for long is written as it is, and stays dirty.
//!
//! Locking: a segment's lock, then `rmap`'s and counters'. `opening` is held over a whole open or close, and
//! nothing is held when it is taken. `files` is a leaf.
//!
//! Cost: a page in memory costs what an anonymous page costs, and five bytes in the tree. The first store
//! to a clean page takes the segment's lock once.

mod errors;
mod inode;
mod limits;
mod segment;
mod store;
mod tags;
mod validate;

use std::collections::BTreeMap;
use std::ops::Range;

pub(crate) use errors::{ErrorSequence, SeenErrors};
pub use inode::WriteGate;
pub(crate) use inode::{Identity, Inode, Reach};
pub(crate) use limits::DirtyLimits;
pub(crate) use segment::SEGMENT_PAGES;
use segment::{Segment, SegmentOwner, Segments, page_of};
pub(crate) use tags::{Begin, Why};

use crate::budget::Budget;
use crate::counters::Counters;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::holds::Holds;
use crate::frame::{FrameAllocator, PinnedFrame};
use crate::io::FileBacking;
use crate::mapping::{PageWord, Tag};
use crate::store::{Found, ReadFailures};
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, OnceLock, Ordering, RwLock, Shared};
use crate::units::{FileId, FrameId, PAGE_BYTES, StoredPage};

/// All files of a manager.
pub(crate) struct PageCache {
    segments: Segments,
    /// Held while a file is opened or closed.
    opening: Mutex<BTreeMap<Identity, FileId>>,
    files: RwLock<Vec<Option<Shared<Inode>>>>,
    /// The number of files. Read without a lock by those who look whether there are any.
    count: AtomicUsize,
    dirty_pages: AtomicU64,
    /// How the flusher is woken, once there is one.
    wake_flusher: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Pages that left a shadow in a tree.
    shadows: AtomicU64,
    read_failures: ReadFailures,
    budget: Arc<Budget>,
    counters: Arc<Counters>,
}

impl PageCache {
    pub(crate) fn new(budget: &Arc<Budget>, counters: &Arc<Counters>) -> Self {
        Self {
            segments: Segments::new(Arc::clone(budget)),
            opening: Mutex::new(BTreeMap::new()),
            files: RwLock::new(Vec::new()),
            count: AtomicUsize::new(0),
            dirty_pages: AtomicU64::new(0),
            wake_flusher: OnceLock::new(),
            shadows: AtomicU64::new(0),
            read_failures: ReadFailures::default(),
            budget: Arc::clone(budget),
            counters: Arc::clone(counters),
        }
    }

    // --- files ---

    /// Returns the inode of a file, and counts one more user. Makes the inode if the file is not open yet.
    ///
    /// # Errors
    /// That of `backing`.
    pub(crate) fn open(
        &self,
        identity: Option<Identity>,
        name: &str,
        backing: impl FnOnce() -> Result<Box<dyn FileBacking>>,
    ) -> Result<Shared<Inode>> {
        let mut opening = self.opening.lock();
        let known = identity.and_then(|identity| opening.get(&identity)).and_then(|id| self.file(*id));
        if let Some(inode) = known {
            inode.users.fetch_add(1, Ordering::Relaxed);
            return Ok(inode);
        }
        let backing = backing()?;
        let refused = |error| {
            let message = format!("cannot tell the length of {name}: {error}");
            Error::new(ErrorKind::FileUnavailable, message)
        };
        let len_bytes = backing.len_bytes().map_err(refused)?;
        let mut files = self.files.write();
        let free = files.iter().position(Option::is_none).unwrap_or_else(|| {
            files.push(None);
            files.len() - 1
        });
        let id = FileId(free as u32);
        let inode = Shared::new(Inode::new(id, identity, backing, name.into(), len_bytes));
        files[free] = Some(Shared::clone(&inode));
        drop(files);
        self.count.fetch_add(1, Ordering::Release);
        opening.extend(identity.map(|identity| (identity, id)));
        Ok(inode)
    }

    /// Counts one more user of a file that is open.
    pub(crate) fn use_again(&self, inode: &Inode) {
        inode.users.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one user less. After the last, `empty` is called to write and drop the file's pages, and the
    /// inode ends. Nobody opens or closes a file meanwhile. A late fault may still find the inode, so `empty`
    /// makes the file end at 0 before it drops pages: none comes back then.
    pub(crate) fn close(&self, inode: &Shared<Inode>, empty: impl FnOnce()) {
        let mut opening = self.opening.lock();
        if inode.users.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        empty();
        for number in std::mem::take(&mut *inode.segments.write()).into_values() {
            let shadows = self.segments.give_back(number);
            self.shadows.fetch_sub(shadows, Ordering::Relaxed);
        }
        if let Some(identity) = inode.identity {
            opening.remove(&identity);
        }
        self.count.fetch_sub(1, Ordering::Release);
        self.files.write()[inode.id.0 as usize] = None;
    }

    /// Returns a file by its number, or `None` if it is closed.
    pub(crate) fn file(&self, id: FileId) -> Option<Shared<Inode>> {
        self.files.read().get(id.0 as usize)?.clone()
    }

    /// Goes through the open files. No lock is held between two of them.
    pub(crate) fn files(&self) -> impl Iterator<Item = Shared<Inode>> + '_ {
        let places = if self.has_files() { self.files.read().len() as u32 } else { 0 };
        (0..places).filter_map(|place| self.file(FileId(place)))
    }

    /// Returns whether any file is open.
    fn has_files(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Sets how the flusher is woken.
    pub(crate) fn set_flusher(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.wake_flusher.get_or_init(|| Box::new(wake));
    }

    pub(crate) fn has_flusher(&self) -> bool {
        self.wake_flusher.get().is_some()
    }

    pub(crate) fn wake_flusher(&self) {
        if let Some(wake) = self.wake_flusher.get() {
            wake();
        }
    }

    /// Dirty pages of all files.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty_pages.load(Ordering::Relaxed)
    }

    // --- pages ---

    /// Returns the number of a page of a file.
    ///
    /// # Errors
    /// `InvalidRange` for a page beyond 8 TiB. `System` if all numbers are in use.
    pub(crate) fn number(&self, inode: &Shared<Inode>, page: u64) -> Result<StoredPage> {
        if page >= u64::from(StoredPage::MOST) {
            let message = format!("page {page} of {}: files reach up to 8 TiB here", inode.name);
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        let (place, index) = (page / SEGMENT_PAGES, page % SEGMENT_PAGES);
        if let Some(number) = inode.segments.read().get(&place) {
            return Ok(page_of(*number, index));
        }
        let mut segments = inode.segments.write();
        if let Some(number) = segments.get(&place) {
            return Ok(page_of(*number, index));
        }
        if inode.is_closed() {
            let message = format!("the range that showed {} was unmapped meanwhile", inode.name);
            return Err(Error::new(ErrorKind::NotMapped, message));
        }
        let owner = SegmentOwner { inode: Shared::clone(inode), first: place * SEGMENT_PAGES };
        let number = self.segments.take(owner)?;
        segments.insert(place, number);
        Ok(page_of(number, index))
    }

    /// Returns the file of a page, and the page's place in the file. `None` if the file is closed.
    pub(crate) fn place_of(&self, page: StoredPage) -> Option<(Shared<Inode>, u64)> {
        let (segment, index) = self.segments.of(page);
        let owner = segment.owner()?;
        Some((owner.inode, owner.first + index))
    }

    /// Returns the frame that has a page, without a lock.
    pub(crate) fn look_up(&self, frames: &FrameAllocator, page: StoredPage) -> Found {
        let (segment, index) = self.segments.of(page);
        let seen = segment.mapping.peek(index);
        let Some((frame, words)) =
            seen.as_frame().and_then(|frame| Some((frame, frames.words_if_any(frame)?)))
        else {
            return Found::Nothing;
        };
        let (pin, _) = PinnedFrame::take(frame, words);
        if words.stored.page() == Some(page) { Found::Frame(pin) } else { Found::Moved(pin) }
    }

    /// Calls `show` under the page's lock, to make an entry show a frame that the caller has pinned. Returns
    /// `None` if the frame no longer has the page, or the file is too short.
    pub(crate) fn while_cached<R>(
        &self,
        frames: &FrameAllocator,
        (inode, at): (&Inode, u64),
        (page, frame): (StoredPage, FrameId),
        show: impl FnOnce() -> R,
    ) -> Option<R> {
        let (segment, _) = self.segments.of(page);
        let _lock = segment.mapping.lock();
        let is_cached = frames.words(frame).stored.page() == Some(page) && at < inode.pages();
        is_cached.then(show)
    }

    /// Calls `show` under the lock of `page` for up to `most` pages behind it, while these are of the same
    /// segment, have a frame with their bytes, and are not behind the end. `show` gets the frame, and ends
    /// this if it refuses.
    pub(crate) fn while_cached_behind(
        &self,
        frames: &FrameAllocator,
        (inode, at): (&Inode, u64),
        page: StoredPage,
        most: u64,
        mut show: impl FnMut(FrameId) -> bool,
    ) {
        let (segment, index) = self.segments.of(page);
        let most = most.min(SEGMENT_PAGES - 1 - index).min(inode.pages().saturating_sub(at + 1));
        let changes = segment.mapping.lock();
        let is_there = |holds: Holds| holds.is_live() && !holds.is_reading() && !holds.was_read_in_vain();
        for behind in 1..=most {
            let frame = changes.get(index + behind).as_frame();
            let Some(frame) = frame.filter(|frame| is_there(frames.words(*frame).holds.load())) else {
                return;
            };
            if at + behind >= inode.pages() || !show(frame) {
                return;
            }
        }
    }

    /// Puts a fresh frame, which is dirty and has one use, into the cache for a page that has none. `show`
    /// makes an entry show the frame, or refuses. Returns whether it did. If it did not, nothing has changed.
    pub(crate) fn insert(
        &self,
        frames: &FrameAllocator,
        (inode, at): (&Inode, u64),
        (page, frame): (StoredPage, FrameId),
        show: impl FnOnce() -> bool,
    ) -> bool {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        if changes.get(index).as_frame().is_some() || at >= inode.pages() {
            return false;
        }
        let words = frames.words(frame);
        words.stored.set(Some(page));
        let added = words.uses.try_add();
        debug_assert!(added, "the caller has a use of the frame");
        if !show() {
            words.stored.set(None);
            let left = words.uses.remove();
            debug_assert!(left != 0, "the caller has a use of the frame");
            return false;
        }
        let before = changes.set(index, PageWord::frame(frame));
        self.note_shadow_taken(before);
        if let Some(path) = changes.find(index) {
            self.tag_dirty(&mut changes, &path, inode);
        }
        true
    }

    /// Changes the length that programs see, and zeroes what the page in which the old length, or the new one
    /// if it is less, lies has behind that. Returns the page's frame if a device has it: wait, and try again.
    ///
    /// Both happen under the page's lock. A write of the page begins under it too, and zeroes by the length
    /// that it finds there. So it never zeroes what a program stores behind the old end.
    pub(crate) fn move_end(
        &self,
        frames: &FrameAllocator,
        inode: &Shared<Inode>,
        bytes: u64,
    ) -> Option<PinnedFrame> {
        let end = bytes.min(inode.len_bytes());
        let (place, inside) = (end / PAGE_BYTES as u64, end as usize % PAGE_BYTES);
        let Some(page) = (inside != 0).then(|| self.number(inode, place).ok()).flatten() else {
            inode.set_len_bytes(bytes);
            return None;
        };
        let (segment, index) = self.segments.of(page);
        let changes = segment.mapping.lock();
        if let Some(frame) = changes.get(index).as_frame() {
            if frames.words(frame).holds.load().is_under_io() {
                return Some(PinnedFrame::take(frame, frames.words(frame)).0);
            }
            frames.bytes().zero(frame.home_offset() + inside, PAGE_BYTES - inside);
        }
        inode.set_len_bytes(bytes);
        None
    }

    /// Gives a page another frame. `is_alone` says whether nobody but the caller has the old one, and
    /// `fill` makes the other frame ready. Both are called under the page's lock, under which all others
    /// who look for the page's frame pin it, or look again. Returns whether the page has the other frame
    /// now.
    pub(crate) fn move_page(
        &self,
        frames: &FrameAllocator,
        (page, from): (StoredPage, FrameId),
        to: FrameId,
        is_alone: impl FnOnce() -> bool,
        fill: impl FnOnce(),
    ) -> bool {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        let words = frames.words(from);
        let Some(path) = changes.find(index).filter(|path| changes.word(path).as_frame() == Some(from))
        else {
            return false;
        };
        if words.stored.page() != Some(page) || words.holds.load().is_under_io() || !is_alone() {
            return false;
        }
        fill();
        frames.words(to).stored.set(Some(page));
        changes.replace(&path, PageWord::frame(to));
        words.stored.set(None);
        true
    }

    /// Takes a page that a truncation drops from the cache. The caller has pinned its frame, and no entry
    /// shows it.
    pub(crate) fn drop_page(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        (page, frame): (StoredPage, FrameId),
        what: Droppable,
    ) -> Dropping {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        let words = frames.words(frame);
        let Some(path) = changes.find(index).filter(|_| words.stored.page() == Some(page)) else {
            return Dropping::Gone;
        };
        if words.holds.load().is_under_io() {
            return Dropping::UnderIo;
        }
        if words.uses.get() != 1 {
            return Dropping::Shown;
        }
        // A store that is under way has its pin, and has perhaps not marked the page yet.
        if what == Droppable::Clean && words.holds.pinned_by_others(1) {
            return Dropping::Pinned;
        }
        if what == Droppable::Clean && (words.holds.load().is_dirty() || changes.has_tag(&path, Tag::Dirty)) {
            return Dropping::Gone;
        }
        self.untag_dirty(&mut changes, &path, inode);
        changes.remove(&path, PageWord::NOTHING);
        words.stored.set(None);
        Dropping::Dropped
    }

    /// Returns the first page at or after `from` in a range of the file that has a frame.
    pub(crate) fn next_cached(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        pages: Range<u64>,
    ) -> Option<(u64, StoredPage, PinnedFrame)> {
        for Part { segment, number, first, mut from } in self.parts(inode, &pages) {
            let changes = segment.mapping.lock();
            if !segment.is_of(inode) {
                continue;
            }
            while let Some((index, word)) = changes.next_word(from) {
                if first + index >= pages.end {
                    return None;
                }
                if let Some(frame) = word.as_frame() {
                    let (pin, _) = PinnedFrame::take(frame, frames.words(frame));
                    return Some((first + index, page_of(number, index), pin));
                }
                from = index + 1;
            }
        }
        None
    }

    /// Goes through the parts of a range of a file that have segments. Each may be another file's by the time
    /// it is locked.
    fn parts(&self, inode: &Inode, pages: &Range<u64>) -> impl Iterator<Item = Part<'_>> {
        let start = pages.start;
        inode.segments_in(pages).map(move |(place, number)| {
            let first = place * SEGMENT_PAGES;
            let (segment, _) = self.segments.of(page_of(number, 0));
            Part { segment, number, first, from: start.saturating_sub(first) }
        })
    }

    /// Returns whether the cache has, or may have, pages of the file.
    pub(crate) fn has_pages(&self, inode: &Inode) -> bool {
        !inode.segments.read().is_empty()
    }

    fn note_shadow_taken(&self, before: PageWord) {
        if before.as_shadow().is_some() {
            self.shadows.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns whether a page may leave a shadow: there are not many more than the budget has pages.
    fn may_leave_shadow(&self) -> bool {
        self.shadows.load(Ordering::Relaxed) < 4 * self.budget.limit_pages()
    }
}

/// The part of a range of a file that lies in one segment.
struct Part<'c> {
    segment: &'c Segment,
    number: u32,
    /// The page of the file at which the segment begins.
    first: u64,
    /// The index in the segment at which the range begins.
    from: u64,
}

/// The pages that may be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Droppable {
    All,
    /// Pages whose bytes the device has.
    Clean,
}

/// What became of a page that was to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a dropped page has a use that the caller ends"]
pub(crate) enum Dropping {
    /// The cache has forgotten the page. The caller ends the use that the cache had.
    Dropped,
    /// The frame no longer has the page, or the page stays because it is dirty.
    Gone,
    /// A device reads or writes the frame.
    UnderIo,
    /// An entry shows the frame again.
    Shown,
    /// The page is clean, but others have pinned it: for a moment, or for long.
    Pinned,
}

#[cfg(all(test, loom))]
mod loom;
