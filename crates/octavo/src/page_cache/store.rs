//! Files as a store of pages: the index is a page of a segment, and the entries of an evicted page become
//! empty.

use std::io;

use crate::counters::Counter;
use crate::error::{Error, ErrorKind};
use crate::frame::{Block, FrameAllocator, PinnedFrame};
use crate::io::{Direction, Host, Job, NO_QUEUE, Transfer, Urgency, Waited};
use crate::lru::IsolatedFrame;
use crate::mapping::{PageWord, Path};
use crate::page_cache::tags::zero_behind_end;
use crate::page_cache::{Inode, PageCache};
use crate::policy::Shadow;
use crate::sizes::WRITE_BATCH;
use crate::store::{Begun, Evicted, Frames, Leaving, Orphan, PageStore, PutAway, Reference, Unread};
use crate::sync::{Ordering, Shared};
use crate::table::entry::Entry;
use crate::units::{FrameId, PAGE_BYTES, StoredPage};

impl PageStore for PageCache {
    fn entry(&self, seen: Entry, _page: StoredPage) -> Entry {
        seen.to_empty()
    }

    fn is_led_to(&self, _page: StoredPage, _seen: Entry) -> bool {
        false
    }

    fn add_reference(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Option<Reference> {
        // Empty entries lead nowhere, so nothing is counted.
        (frames.words(frame).stored.page() == Some(page)).then(|| Reference::counted(page))
    }

    fn drop_reference(&self, _frames: &FrameAllocator, reference: Reference) -> Orphan {
        reference.into_page();
        Orphan::None
    }

    fn forget_orphan(&self, _frames: &FrameAllocator, _frame: FrameId) -> Orphan {
        // A page of a file stays, until reclaim wants its frame.
        Orphan::None
    }

    fn detach(&self, _frames: &FrameAllocator, _frame: FrameId) {}

    fn put_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, IsolatedFrame)],
        each: &mut dyn FnMut(PutAway),
    ) {
        for (page, frame) in batch {
            let frame = frame.frame();
            if !leaving.frames.words(frame).holds.load().is_dirty() {
                each(PutAway::Done { awaited: false });
                continue;
            }
            each(match self.place_of(*page) {
                Some((inode, at)) if self.begin_eviction(leaving.frames, &inode, (*page, frame)) => {
                    if self.may_go(leaving.frames, &inode, at, frame) {
                        PutAway::ToBeWritten
                    } else {
                        let awaited = self.end_write(leaving.frames, *page, frame, false);
                        PutAway::Refused { awaited }
                    }
                }
                _ => PutAway::Refused { awaited: false },
            });
        }
    }

    fn write_batch(&self) -> usize {
        WRITE_BATCH
    }

    fn stand_ins(&self, _frames: &FrameAllocator, _first: StoredPage, _run: &[FrameId]) -> Option<Frames> {
        None
    }

    fn give_stand_in_back(&self, _frame: FrameId) {
        unreachable!("pages of files are written as they are");
    }

    fn note_written(&self, first: StoredPage, count: u32, written: bool) {
        if let (true, Some((inode, at))) = (written, self.place_of(first)) {
            inode.note_backed((at + u64::from(count)) * PAGE_BYTES as u64);
            self.counters.add(Counter::FileWrite, u64::from(count));
        }
    }

    fn end_writeback(
        &self,
        frames: &FrameAllocator,
        page: StoredPage,
        frame: FrameId,
        written: bool,
    ) -> bool {
        self.end_write(frames, page, frame, written)
    }

    fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: &[(StoredPage, IsolatedFrame)],
        shadow: Shadow,
        each: &mut dyn FnMut(Evicted),
    ) {
        // The segment of the last page, locked, and its owner.
        let mut locked = None;
        for (page, frame) in run {
            let (segment, index) = self.segments.of(*page);
            if !locked.as_ref().is_some_and(|(last, _, _)| std::ptr::eq(*last, segment)) {
                drop(locked.take());
                let owner = segment.owner();
                locked = Some((segment, owner, segment.mapping.lock()));
            }
            let Some((_, owner, changes)) = &mut locked else { unreachable!("it was locked above") };
            let words = frames.words(frame.frame());
            let is_its = |path: &Path| changes.word(path).as_frame() == Some(frame.frame());
            let is_there = words.stored.page() == Some(*page);
            let path = changes.find(index).filter(|path| is_there && is_its(path));
            // An entry begins to show a frame under this lock, so the only use stays the only one.
            let (Some(path), Some(owner)) = (path, owner) else {
                each(Evicted::Kept);
                continue;
            };
            if words.uses.get() != 1 || !words.holds.try_reclaim() {
                each(Evicted::Kept);
                continue;
            }
            self.untag_dirty(changes, &path, &owner.inode);
            let left = self.may_leave_shadow().then_some(shadow);
            if left.is_some() {
                self.shadows.fetch_add(1, Ordering::Relaxed);
            }
            changes.remove(&path, PageWord::left(left));
            words.stored.set(None);
            let uses = words.uses.remove();
            debug_assert_eq!(uses, 0, "an entry shows a frame that was evicted");
            each(Evicted::Freed);
        }
    }

    fn leave(&self, _page: StoredPage, _shadow: Shadow) {
        unreachable!("a page of a file has its frame in the cache");
    }

    fn begin_read(&self, frames: &FrameAllocator, page: StoredPage, fresh: Block) -> Begun<Shadow> {
        match self.place_of(page) {
            Some((inode, _)) => self.begin_read_of(frames, &inode, page, fresh),
            None => Begun::Gone(fresh),
        }
    }

    fn note_read(&self, first: StoredPage, count: u32, result: io::Result<()>) -> Result<(), Error> {
        let Err(error) = result else {
            self.counters.add(Counter::FileRead, u64::from(count));
            return Ok(());
        };
        Err(self.read_error(first, &error))
    }

    fn check_read(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Result<(), Error> {
        if let Some((inode, at)) = self.place_of(page) {
            zero_behind_end(frames, &inode, Some(at), frame);
        }
        Ok(())
    }

    fn note_unread(&self, page: StoredPage, why: Unread) {
        self.read_failures.note(page, why);
    }

    fn why_unread(&self, page: StoredPage) -> Unread {
        let unknown = || self.read_error(page, &io::Error::other("another access met the failure"));
        self.read_failures.why(page).unwrap_or_else(|| Unread::Failed(unknown()))
    }

    fn timed_out(&self, page: StoredPage) -> Error {
        let name = self.place_of(page).map_or_else(|| "a file".into(), |(inode, _)| inode.name.clone());
        let message = format!(
            "{name}: its device did not answer in time; try again, or give it longer with io_timeout()"
        );
        Error::new(ErrorKind::TimedOut, message)
    }

    fn forget_failed(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        let words = frames.words(frame);
        let Some(path) = changes.find(index).filter(|_| words.stored.page() == Some(page)) else { return };
        changes.remove(&path, PageWord::NOTHING);
        words.stored.set(None);
        if words.uses.remove() == 0 {
            // The caller's pin keeps the frame.
            let _ = words.holds.release();
        }
    }

    fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool {
        let Some((inode, at)) = self.place_of(job.first) else {
            Transfer::new(host, job, 0).complete(Err(io::Error::other("the file is closed")));
            return true;
        };
        let mut transfer = Transfer::new(host, job, at as u32);
        if job.direction == Direction::Read {
            transfer = transfer.ending_in_zeros();
        }
        inode.submit(transfer, urgency)
    }

    fn note_end(&self, job: &Job, result: &io::Result<()>) {
        if let (Direction::Write, Some((inode, _))) = (job.direction, self.place_of(job.first)) {
            inode.note_write(result);
        }
    }

    fn has_devices(&self) -> bool {
        self.has_files()
    }

    fn flush(&self) {
        self.files().for_each(|inode| inode.backing.flush());
    }

    fn poll(&self) {
        self.files().for_each(|inode| inode.backing.poll());
    }

    fn serve(&self) {
        self.files().for_each(|inode| inode.backing.serve());
    }

    fn wait_for_any(&self, _still_waiting: &dyn Fn() -> bool) -> Waited {
        self.serve();
        Waited::Sleep
    }

    fn wait(&self, page: StoredPage, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.place_of(page).map_or(Waited::Progress, |(inode, _)| inode.backing.wait(queue, still_waiting))
    }
}

impl PageCache {
    /// Puts a fresh frame under READING for a page of this file, as [`PageStore::begin_read`] does.
    pub(crate) fn begin_read_of(
        &self,
        frames: &FrameAllocator,
        inode: &Inode,
        page: StoredPage,
        fresh: Block,
    ) -> Begun<Shadow> {
        let (segment, index) = self.segments.of(page);
        let mut changes = segment.mapping.lock();
        // A late caller has the number of a page of a file that is closed.
        let Some(at) = segment.place_of(index).filter(|_| segment.is_of(inode)) else {
            return Begun::Gone(fresh);
        };
        let word = changes.get(index);
        if let Some(frame) = word.as_frame() {
            return Begun::Cached(PinnedFrame::take(frame, frames.words(frame)).0, fresh);
        }
        if at >= inode.pages() {
            return Begun::Gone(fresh);
        }
        let frame = fresh.into_frame();
        let words = frames.words(frame);
        words.holds.begin_reading();
        words.uses.set_first();
        words.stored.set(Some(page));
        // Relaxed: the queue is a hint, and the lock orders it.
        words.prev.store(NO_QUEUE, Ordering::Relaxed);
        let (pin, _) = PinnedFrame::take(frame, words);
        self.note_shadow_taken(word);
        changes.set(index, PageWord::frame(frame));
        Begun::Reading(pin, word.as_shadow())
    }

    #[cold]
    fn read_error(&self, page: StoredPage, error: &io::Error) -> Error {
        let Some((inode, at)) = self.place_of(page) else {
            return Error::new(ErrorKind::FileRead, "the file of this page is closed");
        };
        let shorter = if error.kind() == io::ErrorKind::UnexpectedEof {
            ": the file is shorter than it was, another program has truncated it"
        } else {
            ""
        };
        inode.failed(
            ErrorKind::FileRead,
            &format!("read page {at} of"),
            &io::Error::other(format!("{error}{shorter}")),
        )
    }
}
