//! The composition root: a manager owns the arena, the budget, the swap areas and the background thread.

mod builder;
mod reserve;
mod shutdown;

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use crate::counters::CounterSnapshot;
use crate::engine::{Engine, validate_tables};
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, FileBacking, FileOptions};
use crate::frame::Block;
use crate::latency::LatencySnapshot;
use crate::lru::RefaultSnapshot;
use crate::reclaim::{Reclaimer, Running, reclaim_and_wait, shrink_to_budget};
use crate::space::{Space, TranslatedSpace};
use crate::swap::{AreaStats, Pool};
use crate::sync::{Arc, Mutex, Shared};
use crate::table::translation::Translation;
use crate::units::{FrameId, Order, bytes_for_people};

use builder::check_budget;
pub use builder::{MIN_BUDGET_BYTES, ManagerBuilder};
pub use shutdown::ShutdownRefused;

/// Owns the memory of its spaces. Start with [`Manager::builder`], then call [`Manager::space`]. A clone
/// is cheap and refers to the same manager. The manager ends when its last clone, its last space and its
/// last file are gone.
#[derive(Clone)]
pub struct Manager {
    running: Arc<Running>,
    /// Blocks from `alloc_block`. `free_block` accepts no others.
    blocks: Arc<Mutex<HashSet<(FrameId, Order)>>>,
}

/// Reports how much memory and swap a manager uses, from [`Manager::stats`]. The figures are from about
/// the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ManagerStats {
    /// The budget.
    pub budget_bytes: u64,
    /// The bytes charged to the budget: chunks (including those of the compressed pool), frame words,
    /// table nodes, swap maps, regions.
    pub used_bytes: u64,
    /// The part of `used_bytes` for pages in windows and the like ([`crate::translation`]). 0 for most
    /// programs.
    pub away_bytes: u64,
    /// The part of `used_bytes` that the program reported with [`Manager::set_outside_bytes`].
    pub outside_bytes: u64,
    /// The part of `used_bytes` that is charged more than once, as reported with
    /// [`Manager::set_shared_bytes`]. The charge may exceed the budget by this much.
    pub shared_bytes: u64,
    /// Frames of 4 KiB that the manager got from the kernel and that hold no data.
    pub free_frames: u64,
    /// Page-table nodes in use. The manager finds pages by its own tables.
    pub table_nodes: u64,
    /// Pages of 4 KiB that can be evicted: those that the reclaim policy prefers to keep, and those that
    /// go first.
    pub lru_pages: (u64, u64),
    /// Slots of 4 KiB in use in swap areas, including those of pages that are still in the pool or in
    /// memory. A page that is unmapped while it is written keeps its slot until the write ends, however
    /// long the device takes.
    pub swap_slots: u64,
    /// Pages in the compressed pool.
    pub pool_pages: u64,
    /// The bytes of the budget that the pool takes.
    pub pool_bytes: u64,
    /// For measurements: the number of counted users of the huge zero page, the 2 MiB of zeros that
    /// untouched memory shows. See [`crate::ZeroPage`].
    pub huge_zero_users: u32,
}

impl Manager {
    /// Returns a builder, which chooses how a manager works.
    pub fn builder() -> ManagerBuilder {
        ManagerBuilder::default()
    }

    #[inline(always)]
    pub(crate) fn engine(&self) -> &Shared<Engine> {
        &self.running.engine
    }

    /// Makes a space with nothing mapped.
    ///
    /// # Errors
    /// `System` if there are already as many spaces as the largest budget has pages, or a million.
    /// `ForkedChild` in a forked child.
    pub fn space(&self) -> Result<Space> {
        self.new_space(None, None)
    }

    /// Makes a space with a name, which appears in messages about the use of the budget.
    ///
    /// # Errors
    /// As [`Manager::space`].
    pub fn space_named(&self, name: impl Into<String>) -> Result<Space> {
        self.new_space(Some(name.into()), None)
    }

    /// Makes a space whose pages also appear at other addresses, through your [`Translation`]. For authors
    /// of windows and the like.
    ///
    /// # Errors
    /// As [`Manager::space`].
    pub fn translated_space(
        &self,
        name: impl Into<String>,
        translation: Shared<dyn Translation>,
    ) -> Result<TranslatedSpace> {
        self.new_space(Some(name.into()), Some(translation)).map(TranslatedSpace::new)
    }

    /// Opens a file, whose bytes move between its device and the spaces of this manager.
    ///
    /// # Errors
    /// `FileUnavailable` if it cannot be opened, or is neither a file nor a disk. `ForkedChild` in a
    /// forked child.
    pub fn open(&self, path: impl AsRef<Path>, options: FileOptions) -> Result<File> {
        let _inside = self.engine().enter()?;
        File::open(&self.running, path.as_ref(), options)
    }

    /// Opens a file whose bytes are kept in a place of your own, under a name for messages. It is another
    /// file than all others. It has no direct transfers.
    ///
    /// # Errors
    /// `FileUnavailable` if the backing does not tell its length. `ForkedChild` in a forked child.
    pub fn open_backing(
        &self,
        name: &str,
        backing: Box<dyn FileBacking>,
        options: FileOptions,
    ) -> Result<File> {
        let _inside = self.engine().enter()?;
        File::open_backing(&self.running, name, backing, options)
    }

    fn new_space(&self, name: Option<String>, translation: Option<Shared<dyn Translation>>) -> Result<Space> {
        let _inside = self.engine().enter()?;
        Space::make(&self.running, name, translation)
    }

    /// Returns how often each [`Counter`](crate::Counter) has happened since the manager was built, for
    /// monitoring and tests. In a forked child, this counts until the fork.
    pub fn counters(&self) -> CounterSnapshot {
        if let Ok(_inside) = self.engine().enter() {
            self.engine().frames.flush_counters();
        }
        self.engine().counters.snapshot()
    }

    /// Returns how long accesses have waited so far; in a forked child, until the fork.
    pub fn latencies(&self) -> LatencySnapshot {
        self.engine().latencies.snapshot()
    }

    /// Returns how much more memory would have kept the pages that have come back so far; in a forked
    /// child, until the fork.
    pub fn refaults(&self) -> RefaultSnapshot {
        self.engine().lru.refaults()
    }

    /// Returns what each swap area has done so far, in the order in which the areas were given.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn areas(&self) -> Result<Vec<AreaStats>> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        let mut areas = engine.swap.area_stats();
        areas.iter_mut().enumerate().for_each(|(area, stats)| stats.waits = engine.latencies.of_area(area));
        Ok(areas)
    }

    /// Returns the memory, slots and pages in use.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn stats(&self) -> Result<ManagerStats> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        let pool = engine.swap.pool().map(Pool::stats).unwrap_or_default();
        Ok(ManagerStats {
            budget_bytes: engine.budget.limit_bytes(),
            used_bytes: engine.budget.used_bytes(),
            outside_bytes: engine.budget.outside_bytes(),
            shared_bytes: engine.budget.shared_bytes(),
            away_bytes: engine.frames.away_bytes(),
            free_frames: engine.frames.free_frames(),
            table_nodes: engine.table.nodes.in_use() as u64,
            lru_pages: engine.lru.pages(),
            swap_slots: u64::from(engine.swap.slots.used()),
            pool_pages: pool.pages,
            pool_bytes: pool.used_bytes,
            huge_zero_users: engine.huge_zero.users(),
        })
    }

    /// Changes the budget. To lower it, the call moves pages together or out, and gives the emptied chunks
    /// back to the kernel before it returns.
    ///
    /// # Errors
    /// `InvalidBudget` for a budget below the minimum, above [`ManagerBuilder::max_budget_bytes`], or
    /// below the memory that is in use and cannot be moved out. `TimedOut` if the budget cannot shrink
    /// because a device does not answer. After an error, the old budget applies again. `ForkedChild` in a
    /// forked child.
    pub fn set_budget(&self, bytes: u64) -> Result<()> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        check_budget(bytes, engine.machine.memory.bytes)?;
        let most = engine.budget.most_bytes();
        if bytes > most {
            let message = format!(
                "a budget of {} is above the {} that this manager was built for; choose one below, or build it with a larger max_budget_bytes",
                bytes_for_people(bytes),
                bytes_for_people(most)
            );
            return Err(Error::new(ErrorKind::InvalidBudget, message));
        }
        let before = engine.budget.limit_bytes();
        engine.budget.set_limit_bytes(bytes);
        engine.latches.limit_changed(&engine.budget);
        let fits = shrink_to_budget(engine, 0);
        engine.leave_transfers();
        if !fits {
            let used = engine.budget.used_bytes();
            engine.budget.set_limit_bytes(before);
            engine.swap.pool().iter().for_each(|pool| pool.set_limit_bytes(Pool::share_of(before)));
            // Frames on their way to a silent device keep chunks from being given back.
            if engine.swap.areas.owe_answers() {
                return Err(engine.swap.areas.timed_out());
            }
            let message = format!(
                "{} are in use and cannot be moved out; drop pins or spaces, or choose a budget above that",
                bytes_for_people(used)
            );
            return Err(Error::new(ErrorKind::InvalidBudget, message));
        }
        engine.frames.retune();
        engine.pin_shares_changed();
        if bytes < before {
            // The per-CPU lists hold too many frames for the smaller budget.
            engine.frames.drain();
        }
        self.running.wake();
        Ok(())
    }

    /// Reports memory in bytes that this manager does not own, but that has to fit in the same budget.
    /// Each call replaces the previous figure. If there is no room, pages go out in the background, and
    /// accesses that need memory wait for room as usual. Returns at once.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn set_outside_bytes(&self, bytes: u64) -> Result<()> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        engine.budget.set_outside(bytes);
        if engine.budget.room_bytes() < 0 {
            self.running.wake();
        }
        Ok(())
    }

    /// Reports by how many bytes the charge exceeds the memory in use, and adds as much room to the
    /// budget. A page in windows ([`crate::translation`]) that several processes share after a fork is
    /// charged in each of their spaces, but takes memory once. Each call replaces the previous figure; at
    /// most six times the budget counts.
    ///
    /// A store to a shared page makes a copy that is not reported to the manager. So measure again soon,
    /// and leave room for the copies in the meantime. Returns at once.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn set_shared_bytes(&self, bytes: u64) -> Result<()> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        let most = engine.frames.most_away_bytes().saturating_sub(engine.budget.limit_bytes());
        engine.budget.set_shared(bytes.min(most));
        if engine.budget.room_bytes() < 0 {
            self.running.wake();
        }
        Ok(())
    }

    /// Moves up to `pages` cold pages of 4 KiB out now, before memory is needed. The manager keeps their
    /// frames. Returns how many were freed.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn reclaim(&self, pages: u64) -> Result<u64> {
        let _inside = self.engine().enter()?;
        let freed = reclaim_and_wait(self.engine(), pages, Reclaimer::Direct);
        // Writes may still be under way, and perhaps no thread polls for them.
        self.engine().leave_transfers();
        Ok(freed)
    }

    /// Returns how many bytes of memory in windows and the like ([`crate::translation`]) cannot be moved
    /// out, such as memory that a program has locked. Takes time linear in the memory there.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn immovable_bytes(&self) -> Result<u64> {
        let _inside = self.engine().enter()?;
        Ok(self.engine().immovable_bytes())
    }

    /// For tests: takes 2^order frames out of the budget, to see how a program does with less memory, or
    /// with fragmented memory. The bytes of the block are not accessible. It counts against the budget,
    /// and is neither moved nor reclaimed. Returns `None` if the budget has no such block left: nothing is
    /// reclaimed for it. To allocate many page blocks, use a separate [`crate::frame::FrameAllocator`].
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn alloc_block(&self, order: Order) -> Result<Option<FrameId>> {
        let _inside = self.engine().enter()?;
        let block = self.engine().frames.alloc(order).map(Block::into_frame);
        self.blocks.lock().extend(block.map(|frame| (frame, order)));
        Ok(block)
    }

    /// Frees a block from [`Manager::alloc_block`].
    ///
    /// # Errors
    /// `InvalidFree` for any other block; nothing changes then. `ForkedChild` in a forked child.
    pub fn free_block(&self, frame: FrameId, order: Order) -> Result<()> {
        let _inside = self.engine().enter()?;
        if !self.blocks.lock().remove(&(frame, order)) {
            let message =
                format!("{frame:?} heads no block of {order:?} that alloc_block() gave; free each once");
            return Err(Error::new(ErrorKind::InvalidFree, message));
        }
        self.engine().frames.free(frame, order)
    }

    /// Zeroes up to `frames` free frames for coming write faults, as the background thread does when it is
    /// idle. For managers without that thread. Returns the number of zeroed frames: 0 while fewer frames
    /// are free than the high watermark. First gives the per-CPU lists, and the frames that were zeroed
    /// before, back to the zones.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn zero_ahead(&self, frames: usize) -> Result<usize> {
        let _inside = self.engine().enter()?;
        self.engine().frames.drain();
        Ok(self.engine().frames.zero_some(frames))
    }

    /// For tests: walks all structures and checks them against each other. Takes time linear in memory.
    /// Call it while no access is under way; devices may be reading and writing. Does nothing in a forked
    /// child.
    ///
    /// # Panics
    /// If two structures contradict each other.
    pub fn validate(&self) {
        let engine = self.engine();
        let Ok(_inside) = engine.enter() else { return };
        engine.lru.drain_all(&engine.frames);
        engine.frames.validate();
        engine.lru.validate(&engine.frames);
        engine.swap.validate(&engine.frames);
        engine.page_cache.validate(&engine.frames);
        validate_tables(engine);
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stats() {
            Ok(ManagerStats { used_bytes, budget_bytes, .. }) => {
                write!(f, "Manager({} of {})", bytes_for_people(used_bytes), bytes_for_people(budget_bytes))
            }
            Err(error) => write!(f, "Manager({error:?})"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
