//! Writes the dirty pages of a range of a file.
//!
//! ```text
//!  sync: DIRTY, WRITEBACK ─► TOWRITE over the range     from here on, new stores are not waited for
//!          │
//!          ▼
//!  take the pages with TOWRITE, in order; neighbours form a run of at most 1 MiB
//!          │ under I/O by others: hand over what is collected, wait, look again
//!          │ lent to an exclusive guard: the same
//!          ▼
//!  up to 64 runs under way ─► the length ─► the device's flush
//! ```
//!
//! Cost: a search in the tree for each tagged page, which skips nodes without one. So a sync costs by the
//! dirty pages, not by the pages in memory.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::task::Poll;

use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::frame::PinnedFrame;
use crate::frame::latch::Hold;
use crate::io::Urgency;
use crate::mapping::Tag;
use crate::page_cache::{Begin, Inode, Why};
use crate::sizes::WRITE_BATCH;
use crate::sync::park::block_until;
use crate::sync::wait::Waiting;
use crate::sync::{Shared, thread};
use crate::units::{FrameId, StoredPage};
use crate::writeback::run::WriteRun;
use crate::writeback::truncate::match_backing;

/// The most runs under way for one sync.
const MOST_RUNS: usize = 64;
/// The most pages under way for one sync: 8 MiB.
const MOST_PAGES: usize = 2048;

/// How often the gate is asked to let a page go before a sync gives it up.
const MOST_ROUNDS: u32 = 16;

/// Makes the pages of a range durable, as far as the device keeps its promise. Errors are noted with the
/// file, for all who have it open.
pub(crate) fn sync_pages(engine: &Engine, inode: &Shared<Inode>, pages: Range<u64>) {
    engine.counters.count(Counter::FileSync);
    write_back(engine, inode, pages, Why::Sync);
    let synced = match_backing(inode).and_then(|()| inode.backing.sync());
    if let Err(error) = synced {
        inode.errors.note(&error);
    }
}

/// Writes the pages of a range that are dirty now, and waits until they are written. Pages that could not be
/// written stay dirty, and their errors are noted with the file.
pub(crate) fn write_back(engine: &Engine, inode: &Shared<Inode>, pages: Range<u64>, why: Why) {
    engine.page_cache.tag_to_write(&engine.frames, inode, &pages, engine.policy.dirty_pages);
    let mut writer = Writer::new(engine, inode);
    writer.write_tagged(pages, Tag::ToWrite, why, u64::MAX);
    writer.end();
}

/// Collects pages into runs, and keeps several runs under way.
pub(super) struct Writer<'e> {
    engine: &'e Engine,
    inode: &'e Shared<Inode>,
    under_way: VecDeque<(Shared<WriteRun>, usize)>,
    pages_under_way: usize,
    written_pages: u64,
    /// The run that is collected: the place of its first page in the file, that page, and the frames.
    collected: Option<(u64, StoredPage, Vec<PinnedFrame>)>,
}

impl<'e> Writer<'e> {
    pub(super) fn new(engine: &'e Engine, inode: &'e Shared<Inode>) -> Self {
        let under_way = VecDeque::new();
        Self { engine, inode, under_way, pages_under_way: 0, written_pages: 0, collected: None }
    }

    /// Pages whose write has begun.
    pub(super) fn written_pages(&self) -> u64 {
        self.written_pages
    }

    /// Begins to write the pages of a range that have a tag, up to `most`. Returns where it stopped, or
    /// `None` at the end of the range.
    pub(super) fn write_tagged(&mut self, pages: Range<u64>, tag: Tag, why: Why, most: u64) -> Option<u64> {
        let enough = self.written_pages.saturating_add(most);
        let (engine, inode) = (self.engine, self.inode);
        let cache = &engine.page_cache;
        let mut from = pages.start;
        let mut found = SmallVec::<[(u64, StoredPage, PinnedFrame); 32]>::new();
        loop {
            cache.tagged(&engine.frames, inode, from..pages.end, tag, &mut found);
            if found.is_empty() {
                return None;
            }
            for (at, page, pin) in found.drain(..) {
                self.write(at, page, pin, why);
                from = at + 1;
            }
            if self.written_pages >= enough {
                return Some(from);
            }
        }
    }

    /// Begins to write a page, if it has to be written.
    fn write(&mut self, at: u64, page: StoredPage, pin: PinnedFrame, why: Why) {
        let (engine, frame) = (self.engine, pin.frame());
        let cache = &engine.page_cache;
        let mut shut = 0;
        loop {
            let begin =
                |is_latched| cache.begin_write(&engine.frames, self.inode, (page, frame), why, is_latched);
            let begun = match begin(false) {
                // The last use of a file may end in the thread that has the guard.
                Begin::Pinned if why == Why::Close => begin(true),
                Begin::Pinned if engine.latches[frame].try_take(Hold::Shared, true).is_ok() => {
                    let begun = begin(true);
                    engine.unlatch(frame, Hold::Shared);
                    begun
                }
                other => other,
            };
            match begun {
                Begin::Begun if cache.may_go(&engine.frames, self.inode, at, frame) => {
                    return self.collect(at, page, pin);
                }
                Begin::Begun => {
                    if why != Why::Flush {
                        // Whoever opens the gate may wait for a page that is collected.
                        self.send();
                        // The page stays under WRITEBACK, so that no guard changes it meanwhile. It would be
                        // held back for its new bytes, and a page that changes often would never be written.
                        cache.open_gate(&engine.frames, self.inode, at, frame);
                        if cache.may_go(&engine.frames, self.inode, at, frame) {
                            return self.collect(at, page, pin);
                        }
                    }
                    if cache.end_write(&engine.frames, page, frame, false) {
                        engine.wake_io(frame);
                    }
                    shut += 1;
                    if why != Why::Flush && shut < MOST_ROUNDS {
                        // Stores without guards may have changed the page meanwhile.
                        continue;
                    }
                    if why != Why::Flush {
                        self.inode.errors.note(&io::Error::other("its write gate stays shut"));
                    }
                    return engine.unpin(pin);
                }
                Begin::Nothing => return engine.unpin(pin),
                // Who has the page may wait for one that is collected.
                Begin::UnderIo => {
                    self.send();
                    engine.wait_for_frame(frame);
                }
                // An exclusive guard has it.
                Begin::Pinned => {
                    self.send();
                    self.inode.backing.flush();
                    wait_for_latch(engine, frame);
                }
            }
        }
    }

    /// Adds a page under WRITEBACK to the run, or to a new one.
    fn collect(&mut self, at: u64, page: StoredPage, pin: PinnedFrame) {
        if let Some((first_at, first, pins)) = &mut self.collected {
            let last = first.plus(pins.len() as u32 - 1);
            if *first_at + pins.len() as u64 == at && last.is_followed_by(page) && pins.len() < WRITE_BATCH {
                return pins.push(pin);
            }
            self.send();
        }
        self.collected = Some((at, page, vec![pin]));
    }

    /// Hands the collected run to the device.
    fn send(&mut self) {
        let Some((at, first, pins)) = self.collected.take() else { return };
        let pages = pins.len();
        self.written_pages += pages as u64;
        while self.under_way.len() >= MOST_RUNS
            || self.pages_under_way > 0 && self.pages_under_way + pages > MOST_PAGES
        {
            self.wait_for_oldest();
        }
        let run = WriteRun::new(self.engine.shared(), self.inode, first, pins);
        while !run.submit(at, Urgency::Queued) {
            if self.under_way.is_empty() {
                // Others fill the device. This thread does the transfer, or lets them go on.
                if run.submit(at, Urgency::Now) {
                    break;
                }
                self.inode.backing.flush();
                self.engine.poll_transfers();
                thread::yield_now();
            } else {
                self.wait_for_oldest();
            }
        }
        self.pages_under_way += pages;
        self.under_way.push_back((run, pages));
    }

    fn wait_for_oldest(&mut self) {
        let Some((run, pages)) = self.under_way.pop_front() else { return };
        let backing = &self.inode.backing;
        backing.flush();
        let waits = || !run.is_ended();
        self.engine.wait_for_end_in(&waits, &|waits| backing.wait(run.queue(), waits));
        self.pages_under_way -= pages;
    }

    /// Waits until everything is written. Returns how many pages were.
    pub(super) fn end(mut self) -> u64 {
        self.send();
        while !self.under_way.is_empty() {
            self.wait_for_oldest();
        }
        self.written_pages
    }
}

/// Waits until no exclusive guard has the page of a frame.
fn wait_for_latch(engine: &Engine, frame: FrameId) {
    block_until(|waker| match engine.wait_for_latch(frame, Hold::Shared, waker) {
        Waiting::Registered => Poll::Pending,
        Waiting::Retry => Poll::Ready(()),
    });
}
