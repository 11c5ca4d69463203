//! Models of a page of a file: stores, syncs, evictions that are refused, the end of a write, and truncation.
//!
//! The page cache, its tree with tags, and the words of frames are the real ones. The steps are those of
//! accesses, `writeback/` and reclaim, in the same order. The bytes of the page, and what the device has of
//! them, are a relaxed word each. An entry is a word that says whether it shows the page.

use std::io;

use smallvec::SmallVec;

use super::*;
use crate::config::DirtyPages;
use crate::frame::{Block, FrameConfig};
use crate::io::{Device, Submitted, Transfer, Urgency};
use crate::store::{Begun, PageStore};
use crate::sync::{AtomicU32, bounded, fence, thread};
use crate::units::Order;

const OLD: u64 = 7;
const NEW: u64 = 8;

/// A backing that nobody asks for bytes.
struct Nothing;

impl Device for Nothing {
    fn capacity_pages(&self) -> u32 {
        2
    }

    fn submit(&self, _transfer: Transfer, _urgency: Urgency) -> Submitted {
        unreachable!("the models move the bytes")
    }

    fn describe(&self) -> String {
        "nothing".into()
    }
}

impl FileBacking for Nothing {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(2 * PAGE_BYTES as u64)
    }

    fn set_len_bytes(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A file with one page in memory.
struct Model {
    cache: PageCache,
    frames: FrameAllocator,
    inode: Shared<Inode>,
    page: StoredPage,
    frame: FrameId,
    bytes: AtomicU64,
    device: AtomicU64,
    shows: AtomicU32,
    dirty_pages: DirtyPages,
}

/// Runs both at once.
fn race(model: &Arc<Model>, other: impl FnOnce(&Model) + Send + 'static, here: impl FnOnce(&Model)) {
    let theirs = Arc::clone(model);
    let thread = thread::spawn(move || other(&theirs));
    here(model);
    thread.join().unwrap();
}

impl Model {
    fn new() -> Arc<Self> {
        Self::with(DirtyPages::Tags)
    }

    fn with(dirty_pages: DirtyPages) -> Arc<Self> {
        let budget = Arc::new(Budget::new(1 << 20));
        let counters = Arc::new(Counters::new().unwrap());
        let frames =
            FrameAllocator::new(&FrameConfig::tiny(), Arc::clone(&budget), Arc::clone(&counters)).unwrap();
        let cache = PageCache::new(&budget, &counters);
        let inode = cache.open(None, "a file", || Ok(Box::new(Nothing))).unwrap();
        let page = cache.number(&inode, 0).unwrap();
        let block: Block = frames.alloc(Order::ZERO).unwrap();
        let Begun::Reading(pin, _) = cache.begin_read(&frames, page, block) else {
            panic!("the page has no frame yet");
        };
        let frame = pin.into_frame();
        frames.words(frame).holds.end_read(true);
        let _ = frames.words(frame).holds.drop_pin();
        let (bytes, device) = (AtomicU64::new(OLD), AtomicU64::new(OLD));
        let shows = AtomicU32::new(0);
        Arc::new(Self { cache, frames, inode, page, frame, bytes, device, shows, dirty_pages })
    }

    fn drop_pin(&self) {
        let _ = self.frames.words(self.frame).holds.drop_pin();
    }

    /// As `access::write_through` and `Engine::mark_dirty`.
    fn store(&self) {
        let holds = &self.frames.words(self.frame).holds;
        let before = holds.take_pin();
        fence(Ordering::Release);
        self.bytes.store(NEW, Ordering::Relaxed);
        if !before.is_dirty() {
            self.cache.note_dirty(&self.frames, self.page, self.frame);
            holds.mark_dirty();
        }
        self.drop_pin();
    }

    fn write(&self, written: bool) {
        if written {
            self.device.store(self.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.cache.end_write(&self.frames, self.page, self.frame, written);
    }

    /// As `writeback::write_back`.
    fn sync(&self) {
        self.cache.tag_to_write(&self.frames, &self.inode, &(0..2), self.dirty_pages);
        let mut found = SmallVec::<[(u64, StoredPage, PinnedFrame); 2]>::new();
        self.cache.tagged(&self.frames, &self.inode, 0..2, Tag::ToWrite, &mut found);
        for (_, page, pin) in found {
            let frame = pin.into_frame();
            loop {
                let begin = |is_latched| {
                    self.cache.begin_write(&self.frames, &self.inode, (page, frame), Why::Sync, is_latched)
                };
                let begun = match begin(false) {
                    Begin::Pinned => begin(true),
                    other => other,
                };
                match begun {
                    Begin::Begun => {
                        self.write(true);
                        break;
                    }
                    Begin::Nothing => break,
                    Begin::UnderIo | Begin::Pinned => thread::yield_now(),
                }
            }
            self.drop_pin();
        }
    }

    /// Reclaim begins to write the page, and the gate holds it back, or the device is full.
    fn evict_in_vain(&self) {
        self.frames.words(self.frame).holds.take_pin();
        if self.cache.begin_eviction(&self.frames, &self.inode, (self.page, self.frame)) {
            self.write(false);
        }
        self.drop_pin();
    }

    fn device(&self) -> u64 {
        self.device.load(Ordering::Relaxed)
    }
}

/// A store sets the tag and then the flag. So another store that finds the flag, and a sync after it, finds
/// the tag.
#[test]
fn loom_file_a_sync_after_a_store_against_another_store() {
    a_sync_after_a_store(DirtyPages::Tags);
}

/// A store sets the flag before it ends, so a walk finds it.
#[test]
fn loom_file_a_sync_by_a_walk_after_a_store_against_another_store() {
    a_sync_after_a_store(DirtyPages::Walk);
}

fn a_sync_after_a_store(search: DirtyPages) {
    bounded(3, move || {
        let model = Model::with(search);
        race(&model, Model::store, |model| {
            model.store();
            model.sync();
            assert_eq!(model.device(), NEW, "stored before the sync");
        });
        model.cache.validate(&model.frames);
    });
}

/// A page that reclaim has begun to write, and has not written, is written by the sync.
#[test]
fn loom_file_a_sync_against_an_eviction_that_is_refused() {
    a_sync_against_an_eviction(DirtyPages::Tags);
}

/// The flags of a frame change from dirty to being written in one step, so a walk misses neither.
#[test]
fn loom_file_a_sync_by_a_walk_against_an_eviction_that_is_refused() {
    a_sync_against_an_eviction(DirtyPages::Walk);
}

fn a_sync_against_an_eviction(search: DirtyPages) {
    bounded(3, move || {
        let model = Model::with(search);
        model.store();
        race(&model, Model::evict_in_vain, |model| {
            model.sync();
            assert_eq!(model.device(), NEW, "stored before the sync");
        });
        model.cache.validate(&model.frames);
    });
}

/// Two syncs, of which each may meet the page while the other writes it.
#[test]
fn loom_file_a_sync_against_another_sync() {
    bounded(2, || {
        let model = Model::new();
        model.store();
        let sync = |model: &Model| {
            model.sync();
            assert_eq!(model.device(), NEW, "stored before both");
        };
        race(&model, sync, sync);
        model.cache.validate(&model.frames);
    });
}

/// A store during a write leaves the page dirty, and the next sync writes it.
#[test]
fn loom_file_the_end_of_a_write_against_a_store() {
    bounded(3, || {
        let model = Model::new();
        model.store();
        model.bytes.store(OLD, Ordering::Relaxed);
        race(&model, Model::store, Model::sync);
        model.cache.validate(&model.frames);
        model.sync();
        assert_eq!(model.device(), NEW);
        assert_eq!(model.cache.dirty_pages(), 0);
    });
}

/// An entry begins to show a page under the page's lock, and only inside the file. So a page that a
/// truncation has dropped is not shown.
#[test]
fn loom_file_a_truncation_against_a_fault() {
    bounded(3, || {
        let model = Model::new();
        race(
            &model,
            |model| {
                let (inode, words) = (&model.inode, model.frames.words(model.frame));
                words.holds.take_pin();
                model.cache.while_cached(&model.frames, (inode, 0), (model.page, model.frame), || {
                    if words.uses.try_add() {
                        model.shows.swap(1, Ordering::AcqRel);
                    }
                });
                model.drop_pin();
            },
            |model| {
                model.inode.set_len_bytes(0);
                let words = model.frames.words(model.frame);
                loop {
                    // As `drop_pages` and `clear_entries`.
                    if model.shows.swap(0, Ordering::AcqRel) == 1 {
                        let _ = words.uses.remove();
                    }
                    let page = (model.page, model.frame);
                    match model.cache.drop_page(&model.frames, &model.inode, page, Droppable::All) {
                        Dropping::Dropped => break,
                        Dropping::Shown => thread::yield_now(),
                        other => panic!("the file has the page: {other:?}"),
                    }
                }
                let _ = words.uses.remove();
            },
        );
        assert_eq!(model.shows.load(Ordering::Relaxed), 0, "an entry shows a page behind the end");
        assert_eq!(model.frames.words(model.frame).uses.get(), 0);
    });
}

/// The end of a write of one page is not forgotten when another thread cuts the file off behind it.
#[test]
fn loom_file_the_mark_of_what_the_device_has() {
    bounded(3, || {
        let model = Model::new();
        model.inode.cut_backed(0);
        race(&model, |model| model.inode.note_backed(4096), |model| model.inode.cut_backed(8192));
        assert_eq!(model.inode.backed_bytes(), 4096);
    });
}
