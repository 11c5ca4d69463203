//! The swap cache of one area alone, with its slots and frames, for measurements.

use octavo_platform::Backing;

use crate::budget::Budget;
use crate::config::SwapCache;
use crate::counters::Counters;
use crate::error::{Error, Result};
use crate::frame::{Dropped, FrameAllocator, FrameConfig, PageIs, PinnedFrame};
use crate::store::{Begun, Evicted, Orphan, Started};
use crate::swap::cache::{Cache, FreeSlot};
use crate::swap::clusters::{AreaShape, Clusters, SlotRequest};
use crate::sync::{Arc, Cpus};
use crate::units::{FrameId, Order, SwapSlot};

/// The swap cache of an area whose device takes no time, without reclaim and without page tables. Not for
/// programs.
#[derive(Debug)]
pub struct StandaloneSwapCache {
    cache: Cache,
    clusters: Arc<Clusters>,
    frames: FrameAllocator,
}

#[derive(Debug)]
struct TestSlots(Arc<Clusters>);

impl FreeSlot for TestSlots {
    fn slot_freed(&self, _frames: &FrameAllocator, slot: SwapSlot, _content: u64) {
        self.0.free(slot);
    }
}

impl StandaloneSwapCache {
    /// Makes a cache of this form for `capacity_pages` slots, with `frame_bytes` of frames.
    ///
    /// # Errors
    /// The errors of [`FrameAllocator::standalone`], and `System` if the address space is exhausted.
    pub fn new(form: SwapCache, capacity_pages: u32, frame_bytes: u64) -> Result<Self> {
        let system = |error: std::io::Error| Error::system("cannot reserve a swap cache", &error);
        let budget = Arc::new(Budget::new(u64::MAX));
        let counters = Arc::new(Counters::new().map_err(system)?);
        let mut config = FrameConfig::one_zone(frame_bytes, Backing::BasePages);
        config.populate = false;
        let frames = FrameAllocator::new(&config, Arc::clone(&budget), Arc::clone(&counters))?;
        let shape = AreaShape { capacity_pages, priority: 0 };
        let clusters = Clusters::new(&[shape], Arc::clone(&budget), Cache::BYTES_PER_CLUSTER, Cpus::real())
            .map_err(system)?;
        let clusters = Arc::new(clusters);
        let sink = Box::new(TestSlots(Arc::clone(&clusters)));
        let cache = Cache::new(form, &[0], capacity_pages, sink, &budget, counters).map_err(system)?;
        Ok(Self { cache, clusters, frames })
    }

    /// Sends up to `most` new pages out together, brings each page back, and writes to it. Returns the number
    /// of pages: the run of free slots may be shorter than `most`.
    ///
    /// # Panics
    /// If no slots or frames are free.
    pub fn out_and_back(&self, most: u32) -> u32 {
        let Self { cache, clusters, frames } = self;
        let run = clusters.allocate(most, SlotRequest { may_grow: true, shunned: &[] }).expect("free slots");
        let slots = || (run.first.0..run.first.0 + run.count).map(SwapSlot);
        cache.reserve(run);
        let pages: Vec<FrameId> = (0..run.count).map(|_| self.shown()).collect();
        cache.insert_run(frames, run.first, pages.iter().copied(), |_, _, inserted| assert!(inserted));
        for (slot, &frame) in slots().zip(&pages) {
            assert!(cache.add_reference(frames, slot, frame));
            assert_eq!(frames.words(frame).uses.remove(), 1, "the cache's");
            assert_eq!(cache.start_writeback(frames, slot, frame, PageIs::Dirty), Started::Yes);
            assert_eq!(cache.set_content(slot, 1), 0);
        }
        for (slot, &frame) in slots().zip(&pages) {
            assert!(!cache.end_writeback(frames, slot, frame, true), "nobody waits");
        }
        let gone = |frame, evicted| {
            assert_eq!(evicted, Evicted::Freed);
            frames.free(frame, Order::ZERO).expect("the cache has let go of it");
        };
        cache.evict_run(frames, slots().zip(pages.iter().copied()), None, gone);
        slots().for_each(|slot| self.bring_back(slot));
        run.count
    }

    /// Makes a dirty page that one entry shows, with the pin of the thread that sends the page out.
    fn shown(&self) -> FrameId {
        let frame = self.frames.alloc(Order::ZERO).expect("a free frame").into_frame();
        let words = self.frames.words(frame);
        words.holds.begin(true);
        words.uses.set_first();
        PinnedFrame::take(frame, words).0.into_frame()
    }

    /// Brings a page back for an access that writes to it, so that it leaves the cache. Then unmaps it.
    fn bring_back(&self, slot: SwapSlot) {
        let Self { cache, frames, .. } = self;
        let fresh = self.frames.alloc(Order::ZERO).expect("a free frame");
        let Begun::Reading(pin, _) = cache.begin_read(frames, slot, fresh) else {
            unreachable!("the page is out, and nobody else's")
        };
        let words = frames.words(pin.frame());
        assert!(!words.holds.end_read(true), "nobody waits");
        assert!(words.uses.try_add());
        assert!(matches!(cache.drop_reference(frames, slot), Orphan::None), "an entry shows it");
        cache.detach(frames, pin.frame());
        assert_eq!(words.uses.remove(), 0);
        assert_eq!(words.holds.release(), Dropped::Kept, "pinned");
        let frame = pin.frame();
        assert_eq!(pin.unpin(words), Dropped::Last);
        frames.free(frame, Order::ZERO).expect("nobody else has it");
    }
}
