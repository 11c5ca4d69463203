//! Models of paths that cross structures, on a real but very small engine.
//!
//! Under the model checker, a chunk has two frames, a node two entries, and a swap cluster two slots. An
//! engine here has a few of each, and one CPU. All code is real except the device, which keeps the first word
//! of each page. The arena's bytes are real memory, which the checker does not see. `hits` models racing
//! bytes.
//!
//! The models leave out the background thread, and the counters, which order nothing.

mod away;
mod guards;
mod hits;
mod paths;
mod swap_in;
mod waiting;

use crate::access;
use crate::budget::Budget;
use crate::config::{
    Compression, DirtyPages, HugePolicy, HugeZeroWrite, PinPath, ReclaimPolicy, SwapCache, ZeroPage,
};
use crate::engine::{
    Engine, EngineConfig, Policy, Quota, SpaceRecord, SpaceState, Streams, protect_range, unmap_range,
};
use crate::frame::FrameConfig;
use crate::frame::state::Kind;
use crate::frame::zero_page::UsedHugeZero;
use crate::io::{Device, Direction, Submitted, Transfer, Urgency};
use crate::lru::Isolated;
use crate::reclaim::evict_batch;
use crate::region::{Region, RegionList, RegionOptions};
use crate::sizes::MAX_SPACES;
use crate::swap::{AreaShape, SwapParts};
use crate::sync::{Arc, AtomicU32, AtomicU64, Cpus, Machine, Mutex, Ordering, Shared, bounded, thread};
use crate::table::entry::State;
use crate::table::translation::Translation;
use crate::table::{Access, PageNumberRange, Protection};
use crate::units::{CHUNK_BYTES, FrameId, Order, PAGE_BYTES, PageNumber};

/// An engine and two spaces.
struct Model {
    engine: Shared<Engine>,
    spaces: [SpaceState; 2],
}

/// The first word of each page, and whether a write to it is in flight.
struct WordDevice {
    places: Vec<(AtomicU64, AtomicU32)>,
    /// If set, reads are queued here. All of them end when a thread asks to be served.
    reads: Option<Mutex<Vec<Transfer>>>,
}

impl WordDevice {
    fn new(places: u32, keeps_reads: bool) -> Self {
        let places = (0..places).map(|_| Default::default()).collect();
        Self { places, reads: keeps_reads.then(Mutex::default) }
    }

    fn transfer(&self, transfer: Transfer) {
        for (index, bytes) in transfer.pages().enumerate() {
            let (word, busy) = &self.places[transfer.place() as usize + index];
            let mut page = [0; PAGE_BYTES];
            match transfer.direction() {
                Direction::Write => {
                    assert_eq!(busy.swap(1, Ordering::Relaxed), 0, "two writes to one place at once");
                    bytes.copy_out(&mut page);
                    word.store(u64::from(page[0]), Ordering::Relaxed);
                    busy.store(0, Ordering::Relaxed);
                }
                Direction::Read => {
                    page[0] = word.load(Ordering::Relaxed) as u8;
                    bytes.copy_in(&page);
                }
            }
        }
        transfer.complete(Ok(()));
    }
}

impl Device for WordDevice {
    fn capacity_pages(&self) -> u32 {
        self.places.len() as u32
    }

    fn submit(&self, transfer: Transfer, _urgency: Urgency) -> Submitted {
        match &self.reads {
            Some(reads) if transfer.direction() == Direction::Read => reads.lock().push(transfer),
            _ => self.transfer(transfer),
        }
        Submitted::Accepted
    }

    fn serve(&self) {
        if let Some(reads) = &self.reads {
            let reads = std::mem::take(&mut *reads.lock());
            reads.into_iter().for_each(|transfer| self.transfer(transfer));
        }
    }

    fn describe(&self) -> String {
        "a model's device".into()
    }
}

/// Runs both closures at once, each on a thread of its own.
fn race(
    model: &Arc<Model>,
    first: impl FnOnce(&Model) + Send + 'static,
    second: impl FnOnce(&Model) + Send + 'static,
) {
    let (one, other) = (Arc::clone(model), Arc::clone(model));
    let threads = [thread::spawn(move || first(&one)), thread::spawn(move || second(&other))];
    for thread in threads {
        thread.join().unwrap();
    }
}

impl Model {
    fn new(swap_slots: u32) -> Arc<Self> {
        Self::on(WordDevice::new(swap_slots, false))
    }

    fn on(device: WordDevice) -> Arc<Self> {
        Self::with(device, HugePolicy::Never, None)
    }

    /// Regions that ask for blocks get them.
    fn with_blocks(device: WordDevice) -> Arc<Self> {
        Self::with(device, HugePolicy::Advised, None)
    }

    /// The first space has a translation.
    fn translated(device: WordDevice, translation: Shared<dyn Translation>) -> Arc<Self> {
        Self::with(device, HugePolicy::Never, Some(translation))
    }

    fn with(device: WordDevice, huge: HugePolicy, translation: Option<Shared<dyn Translation>>) -> Arc<Self> {
        let engine = Engine::new(EngineConfig {
            policy: Policy {
                huge,
                huge_zero_write: HugeZeroWrite::Split,
                pin_path: PinPath::LockFree,
                dirty_pages: DirtyPages::Tags,
                readahead_pages: 0,
                io_timeout: None,
            },
            machine: Machine::real().with_cpus(Cpus::pretended(1, || 0)),
            budget: Budget::new(1 << 20),
            frames: FrameConfig { away_bytes: 2 * CHUNK_BYTES as u64, ..FrameConfig::tiny() },
            zero_page: ZeroPage::PerUse,
            max_nodes: 16,
            max_spaces: MAX_SPACES,
            reclaim_policy: ReclaimPolicy::default(),
            swap: SwapParts {
                devices: vec![(Box::new(device), AreaShape { capacity_pages: u32::MAX, priority: 0 })],
                form: SwapCache::default(),
                compression: Compression::Off,
                encrypt: false,
            },
        })
        .unwrap();
        let space = |()| SpaceState {
            id: engine.table.new_space().unwrap(),
            regions: RegionList::new(Arc::new(Budget::new(u64::MAX))),
            used_huge_zero: UsedHugeZero::default(),
            streams: Streams::default(),
            quota: Quota::default(),
            translation: None,
        };
        let mut spaces = [(); 2].map(space);
        if translation.is_some() {
            let record = SpaceRecord { name: String::new(), translation: translation.clone() };
            engine.register_space(spaces[0].id, record);
            spaces[0].translation = translation;
        }
        Arc::new(Self { engine, spaces })
    }

    fn map(&self, space: usize, start: u64, end: u64) {
        let region = Region { start: PageNumber(start), end: PageNumber(end), options: RegionOptions::new() };
        self.spaces[space].regions.writer().insert(region).unwrap();
    }

    /// As `Space::unmap`.
    fn unmap(&self, space: usize, start: u64, end: u64) {
        let range = PageNumberRange { start: PageNumber(start), end: PageNumber(end) };
        let writer = self.spaces[space].regions.writer();
        writer.remove(range.start, range.end).unwrap();
        unmap_range(&self.engine, &self.spaces[space], range);
    }

    /// As `Space::protect`.
    fn protect(&self, space: usize, start: u64, end: u64, to: Protection) {
        let range = PageNumberRange { start: PageNumber(start), end: PageNumber(end) };
        let writer = self.spaces[space].regions.writer();
        writer.replace(range.start, range.end, |options| Some(options.protection(to))).unwrap();
        assert!(protect_range(&self.engine, &self.spaces[space], range, to));
    }

    fn load(&self, space: usize, page: u64) -> Option<u64> {
        access::load(&self.engine, &self.spaces[space], PageNumber(page).address()).ok()
    }

    fn store(&self, space: usize, page: u64, value: u64) -> bool {
        access::store(&self.engine, &self.spaces[space], PageNumber(page).address(), value).is_ok()
    }

    /// Writes a whole page, with `value` as its first word.
    fn overwrite(&self, space: usize, page: u64, value: u64) -> bool {
        let mut bytes = [0; PAGE_BYTES];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        access::write(&self.engine, &self.spaces[space], PageNumber(page).address(), &bytes).is_ok()
    }

    /// Returns the pages with a leaf of any kind.
    fn leaves(&self, space: usize) -> Vec<u64> {
        let mut leaves = Vec::new();
        self.engine.table.for_each_leaf(self.spaces[space].id, &mut |page, _, _| leaves.push(page.0));
        leaves
    }

    /// Isolates and pins all listed frames, as if none had been accessed lately.
    fn isolate(&self) -> Isolated {
        let engine = &self.engine;
        for page in 0..crate::table::MAX_PAGES {
            let walk = engine.table.walk(self.spaces[0].id, PageNumber(page));
            let _ = walk.word().change(walk.entry(), walk.entry().without_accessed());
        }
        engine.lru.drain_all(&engine.frames);
        engine.lru.isolate_all(&engine.frames, |pin| engine.unpin(pin))
    }

    /// Moves out all pages that can go out.
    fn evict_all(&self) {
        evict_batch(&self.engine, self.isolate());
    }

    fn frame_of(&self, space: usize, page: u64) -> FrameId {
        let entry = self.engine.table.walk(self.spaces[space].id, PageNumber(page)).entry();
        entry.usable_at_home(Access::Write).expect("a page that was stored to")
    }

    /// Asserts that each frame that is not in the swap cache is dirty, because its bytes are nowhere else.
    fn assert_bytes_are_somewhere(&self) {
        let engine = &self.engine;
        engine.table.for_each_leaf(self.spaces[0].id, &mut |page, _, entry| {
            if let State::Present(frame) = entry.state() {
                let cached = crate::swap::slot_of(&engine.frames, frame).is_some();
                assert!(
                    cached || engine.frames.words(frame).holds.load().is_dirty(),
                    "{page:?} would be lost"
                );
            }
        });
    }

    /// Asserts that no frame or slot is in use any more, and that the structures are consistent.
    fn assert_all_is_free(&self) {
        let engine = &self.engine;
        engine.lru.drain_all(&engine.frames);
        engine.frames.validate();
        engine.lru.validate(&engine.frames);
        engine.swap.validate(&engine.frames);
        assert_eq!(engine.swap.slots.used(), 0, "every slot was freed");
        assert_eq!(engine.lru.pages(), (0, 0), "no frame is listed");
        let owned =
            |frame: &u32| engine.frames.words(FrameId(*frame)).state.load().is(Kind::Owned, Order::ZERO);
        let owned: Vec<u32> = (0..engine.frames.end_frame().0).filter(owned).collect();
        assert_eq!(owned, [engine.small_zero.0], "every frame was freed");
    }
}
