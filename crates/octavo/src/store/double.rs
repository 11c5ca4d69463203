//! A second store, for tests: pages of four devices by an index of the test's choice, and no slots.
//!
//! It keeps its pages as a store of files will. Their entries become empty, count no references, and lead
//! nowhere. A test asks for a page by its index. The store knows a page while it is in memory, even if no
//! entry shows it.

use std::collections::BTreeMap;
use std::io;

use crate::error::{Error, ErrorKind};
use crate::frame::{Block, FrameAllocator, PageIs, PinnedFrame};
use crate::io::test_device::{Manner, TestDevice};
use crate::io::{Device, Host, Job, Submitted, Transfer, Urgency, Waited};
use crate::lru::IsolatedFrame;
use crate::policy::Shadow;
use crate::store::{Begun, Evicted, Frames, Leaving, Orphan, PageStore, PutAway, Reference, Unread};
use crate::sync::{Mutex, Shared};
use crate::table::entry::Entry;
use crate::units::{FrameId, StoreId, StoredPage};

/// Places of each device.
const CAPACITY: u32 = 64;
/// How each device completes transfers.
const MANNERS: [Manner; 4] = [Manner::Inline, Manner::AtFlush, Manner::Served, Manner::Driven];

/// The store.
#[derive(Default)]
pub(crate) struct Double {
    /// The devices that a test has used, by their position in [`MANNERS`].
    devices: Mutex<BTreeMap<usize, TestDevice>>,
    pages: Mutex<BTreeMap<StoredPage, Kept>>,
}

/// What the store knows of a page.
#[derive(Clone, Copy, Debug)]
enum Kept {
    Frame(FrameId),
    Shadow(Shadow),
}

impl Double {
    /// A page of the device that completes its transfers in this manner.
    pub(crate) fn page(manner: Manner, index: u32) -> StoredPage {
        let device = MANNERS.iter().position(|other| *other == manner).expect("a device of this manner");
        StoredPage::new(StoreId::Double, device as u32 * CAPACITY + index)
    }

    /// The device that has a page.
    pub(crate) fn device_of(&self, page: StoredPage) -> TestDevice {
        let index = (page.index() / CAPACITY) as usize;
        let open = || TestDevice::with_manner(CAPACITY, MANNERS[index]).named("the second store");
        self.devices.lock().entry(index).or_insert_with(open).clone()
    }

    /// The devices that are open. No device is called under the lock.
    fn devices(&self) -> Vec<TestDevice> {
        self.devices.lock().values().cloned().collect()
    }

    /// Pages that have a frame.
    pub(crate) fn in_memory(&self) -> usize {
        self.pages.lock().values().filter(|kept| matches!(kept, Kept::Frame(_))).count()
    }

    /// Whether the page left a shadow when its frame went.
    pub(crate) fn has_shadow(&self, page: StoredPage) -> bool {
        matches!(self.pages.lock().get(&page), Some(Kept::Shadow(_)))
    }
}

impl PageStore for Double {
    fn entry(&self, seen: Entry, _page: StoredPage) -> Entry {
        seen.to_empty()
    }

    fn is_led_to(&self, _page: StoredPage, _seen: Entry) -> bool {
        false
    }

    fn add_reference(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) -> Option<Reference> {
        let _pages = self.pages.lock();
        (frames.words(frame).stored.page() == Some(page)).then(|| Reference::counted(page))
    }

    fn drop_reference(&self, _frames: &FrameAllocator, reference: Reference) -> Orphan {
        reference.into_page();
        Orphan::None
    }

    fn forget_orphan(&self, _frames: &FrameAllocator, _frame: FrameId) -> Orphan {
        Orphan::None
    }

    fn detach(&self, _frames: &FrameAllocator, _frame: FrameId) {}

    fn put_away(
        &self,
        leaving: &Leaving<'_>,
        batch: &[(StoredPage, IsolatedFrame)],
        each: &mut dyn FnMut(PutAway),
    ) {
        for (_, frame) in batch {
            let holds = &leaving.frames.words(frame.frame()).holds;
            let put = match holds.load().is_dirty() {
                false => PutAway::Done { awaited: false },
                true if holds.start_writeback(PageIs::Dirty) => PutAway::ToBeWritten,
                true => PutAway::Refused { awaited: false },
            };
            each(put);
        }
    }

    fn write_batch(&self) -> usize {
        4
    }

    fn stand_ins(&self, _frames: &FrameAllocator, _first: StoredPage, _run: &[FrameId]) -> Option<Frames> {
        None
    }

    fn give_stand_in_back(&self, _frame: FrameId) {
        unreachable!("pages are written as they are");
    }

    fn note_written(&self, _first: StoredPage, _count: u32, _written: bool) {}

    fn end_writeback(&self, frames: &FrameAllocator, _: StoredPage, frame: FrameId, written: bool) -> bool {
        frames.words(frame).holds.end_writeback(written)
    }

    fn evict_run(
        &self,
        frames: &FrameAllocator,
        run: &[(StoredPage, IsolatedFrame)],
        shadow: Shadow,
        each: &mut dyn FnMut(Evicted),
    ) {
        let mut pages = self.pages.lock();
        for (page, frame) in run {
            let words = frames.words(frame.frame());
            if words.stored.page() != Some(*page) || words.uses.get() != 1 || !words.holds.try_reclaim() {
                each(Evicted::Kept);
                continue;
            }
            pages.insert(*page, Kept::Shadow(shadow));
            words.stored.set(None);
            assert_eq!(words.uses.remove(), 0, "an entry shows a frame that was evicted");
            each(Evicted::Freed);
        }
    }

    fn leave(&self, page: StoredPage, shadow: Shadow) {
        if let Some(Kept::Shadow(kept)) = self.pages.lock().get_mut(&page) {
            *kept = shadow;
        }
    }

    fn begin_read(&self, frames: &FrameAllocator, page: StoredPage, fresh: Block) -> Begun<Shadow> {
        let mut pages = self.pages.lock();
        let shadow = match pages.get(&page) {
            Some(&Kept::Frame(frame)) => {
                return Begun::Cached(PinnedFrame::take(frame, frames.words(frame)).0, fresh);
            }
            Some(&Kept::Shadow(shadow)) => Some(shadow),
            None => None,
        };
        let frame = fresh.into_frame();
        let words = frames.words(frame);
        words.holds.begin_reading();
        words.uses.set_first();
        words.stored.set(Some(page));
        pages.insert(page, Kept::Frame(frame));
        Begun::Reading(PinnedFrame::take(frame, words).0, shadow)
    }

    fn note_read(&self, _first: StoredPage, _count: u32, result: io::Result<()>) -> Result<(), Error> {
        let message = |why: &dyn std::fmt::Display| format!("the second store does not give the page: {why}");
        result.map_err(|why| Error::new(ErrorKind::SwapRead, message(&why)))
    }

    fn check_read(&self, _: &FrameAllocator, _: StoredPage, _: FrameId) -> Result<(), Error> {
        Ok(())
    }

    fn note_unread(&self, _page: StoredPage, _why: Unread) {}

    fn forget_failed(&self, frames: &FrameAllocator, page: StoredPage, frame: FrameId) {
        let mut pages = self.pages.lock();
        let words = frames.words(frame);
        if words.stored.page() == Some(page) {
            pages.remove(&page);
            words.stored.set(None);
            if words.uses.remove() == 0 {
                let _ = words.holds.release();
            }
        }
    }

    fn submit(&self, host: Shared<dyn Host>, job: Job, urgency: Urgency) -> bool {
        let transfer = Transfer::new(host, job, job.first.index() % CAPACITY);
        match self.device_of(job.first).submit(transfer, urgency) {
            Submitted::Accepted => true,
            Submitted::Full(transfer) => {
                transfer.take_back();
                false
            }
        }
    }

    fn note_end(&self, _job: &Job, _result: &io::Result<()>) {}

    fn has_devices(&self) -> bool {
        !self.devices.lock().is_empty()
    }

    fn flush(&self) {
        self.devices().iter().for_each(Device::flush);
    }

    fn poll(&self) {
        self.devices().iter().for_each(Device::poll);
    }

    fn serve(&self) {
        self.devices().iter().for_each(Device::serve);
    }

    fn wait_for_any(&self, _still_waiting: &dyn Fn() -> bool) -> Waited {
        self.serve();
        Waited::Sleep
    }

    fn wait(&self, page: StoredPage, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.device_of(page).wait(queue, still_waiting)
    }
}
