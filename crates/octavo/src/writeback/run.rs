//! Writes of neighbouring pages that stay in memory.
//!
//! Reclaim chains the frames of a transfer by the links of their words, which are free because the frames
//! are off the LRU. These frames stay on the LRU, so a run keeps their order itself. It is the host of its
//! transfer: the device asks it for the next frame, and tells it the end.

use std::io;

use octavo_platform::ArenaBytes;

use crate::engine::Engine;
use crate::frame::PinnedFrame;
use crate::io::{Direction, Host, Job, NO_QUEUE, Transfer, Urgency};
use crate::page_cache::Inode;
use crate::store::PageStore;
use crate::sync::{AtomicBool, AtomicU32, Ordering, Shared};
use crate::units::{FrameId, StoredPage};

/// Neighbouring pages of a file under WRITEBACK, pinned, on their way to the device.
pub(super) struct WriteRun {
    engine: Shared<Engine>,
    inode: Shared<Inode>,
    first: StoredPage,
    frames: Vec<FrameId>,
    /// For each frame that another follows, that other frame. Sorted.
    links: Vec<(FrameId, FrameId)>,
    /// The device's queue that has the transfer.
    queue: AtomicU32,
    is_ended: AtomicBool,
}

impl WriteRun {
    pub(super) fn new(
        engine: Shared<Engine>,
        inode: &Shared<Inode>,
        first: StoredPage,
        pins: Vec<PinnedFrame>,
    ) -> Shared<Self> {
        let frames: Vec<_> = pins.into_iter().map(PinnedFrame::into_frame).collect();
        let mut links: Vec<_> = frames.windows(2).map(|pair| (pair[0], pair[1])).collect();
        links.sort_unstable();
        engine.note_write_begun(frames.len() as u32);
        let (queue, is_ended) = (AtomicU32::new(NO_QUEUE), AtomicBool::new(false));
        Shared::new(Self { engine, inode: Shared::clone(inode), first, frames, links, queue, is_ended })
    }

    /// Hands the run to the device. Returns `false` if the device is full.
    pub(super) fn submit(self: &Shared<Self>, place: u64, urgency: Urgency) -> bool {
        let (head, count) = (self.frames[0], self.frames.len() as u32);
        let job = Job { direction: Direction::Write, first: self.first, count, head, bytes: head };
        let host: Shared<dyn Host> = Shared::<Self>::clone(self);
        self.inode.submit(Transfer::new(host, job, place as u32), urgency)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    pub(super) fn queue(&self) -> u32 {
        self.queue.load(Ordering::Relaxed)
    }
}

impl Host for WriteRun {
    fn arena(&self) -> &ArenaBytes {
        self.engine.frames.bytes()
    }

    fn chained(&self, frame: FrameId) -> FrameId {
        let at = self.links.binary_search_by_key(&frame, |(frame, _)| *frame).expect("a frame of the run");
        self.links[at].1
    }

    fn note_queue(&self, _frame: FrameId, queue: u32) {
        // Relaxed: a hint where to wait.
        self.queue.store(queue, Ordering::Relaxed);
    }

    fn ended(&self, job: Job, result: io::Result<()>) {
        let (engine, cache) = (&*self.engine, &self.engine.page_cache);
        self.inode.note_write(&result);
        cache.note_written(job.first, job.count, result.is_ok());
        for (index, frame) in (0..).zip(&self.frames) {
            if cache.end_write(&engine.frames, self.first.plus(index), *frame, result.is_ok()) {
                engine.wake_io(*frame);
            }
            engine.unpin(PinnedFrame::counted(*frame));
        }
        // SeqCst, as for all ends of transfers: first the end, then the look for waiters.
        self.is_ended.store(true, Ordering::SeqCst);
        engine.note_write_ended(job.count);
    }
}
