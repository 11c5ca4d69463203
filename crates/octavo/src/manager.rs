//! The composition root: a manager owns the arena, the budget, the swap areas and the background thread.

mod builder;
mod reserve;
mod shutdown;

use std::collections::HashSet;
use std::fmt;

use crate::counters::CounterSnapshot;
use crate::engine::{Engine, Quota, SpaceRecord, SpaceState, Streams, validate_tables};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::Block;
use crate::frame::zero_page::UsedHugeZero;
use crate::latency::LatencySnapshot;
use crate::lru::RefaultSnapshot;
use crate::reclaim::{Reclaimer, Running, reclaim_and_wait, shrink_to_budget};
use crate::region::RegionList;
use crate::space::{Space, TranslatedSpace};
use crate::swap::{AreaStats, Pool};
use crate::sync::{Arc, Mutex, Shared};
use crate::table::translation::Translation;
use crate::units::{FrameId, Order, bytes_for_people};

use builder::check_budget;
pub use builder::{MIN_BUDGET_BYTES, ManagerBuilder};
pub use shutdown::ShutdownRefused;

/// Owns memory on behalf of spaces. Start with [`Manager::builder`], and go on with [`Manager::space`]. A
/// clone is cheap and refers to the same manager, which ends when its last clone and its last space are gone.
#[derive(Clone)]
pub struct Manager {
    running: Arc<Running>,
    /// Blocks handed out by `alloc_block`, which alone may be freed by hand.
    blocks: Arc<Mutex<HashSet<(FrameId, Order)>>>,
}

/// How much memory and swap a manager uses, from [`Manager::stats`]. The figures are of about one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ManagerStats {
    /// The limit.
    pub budget_bytes: u64,
    /// The bytes charged to it: chunks (the compressed pool's among them), frame words, table nodes, swap
    /// maps, regions.
    pub used_bytes: u64,
    /// Of those, pages in windows and the like ([`crate::translation`]). 0 for most programs.
    pub away_bytes: u64,
    /// Of those, memory that the program told of by [`Manager::set_outside_bytes`].
    pub outside_bytes: u64,
    /// Of those, bytes that are charged once more than they are there, by [`Manager::set_shared_bytes`]. So
    /// much more than the limit may be charged.
    pub shared_bytes: u64,
    /// Frames of 4 KiB that the manager has from the kernel, and that hold nothing.
    pub free_frames: u64,
    /// Page tables in use: the manager's own, by which it finds pages.
    pub table_nodes: u64,
    /// Pages of 4 KiB that can leave: those that the reclaim policy means to keep, and those that go first.
    pub lru_pages: (u64, u64),
    /// Places of 4 KiB in swap areas that are taken, also those of pages that are still in the pool or in
    /// memory. A page that is unmapped while it is written keeps its place until the write ends, however long
    /// its device takes.
    pub swap_slots: u64,
    /// Pages in the compressed pool, and the bytes of the budget that it takes for them.
    pub pool_pages: u64,
    /// See `pool_pages`.
    pub pool_bytes: u64,
    /// For measurements: the counted users of the 2 MiB of zeros that untouched memory shows; see
    /// [`crate::ZeroPage`].
    pub huge_zero_users: u32,
}

impl Manager {
    /// Starts the choices for a manager.
    pub fn builder() -> ManagerBuilder {
        ManagerBuilder::default()
    }

    #[inline(always)]
    pub(crate) fn engine(&self) -> &Shared<Engine> {
        &self.running.engine
    }

    /// A new space with nothing mapped.
    ///
    /// # Errors
    /// `System` when there are as many spaces already as the budget may have table nodes, or a million.
    /// `ForkedChild` in a forked child.
    pub fn space(&self) -> Result<Space> {
        self.new_space(None, None)
    }

    /// A new space whose name appears in messages about who uses the budget.
    ///
    /// # Errors
    /// As [`Manager::space`].
    pub fn space_named(&self, name: impl Into<String>) -> Result<Space> {
        self.new_space(Some(name.into()), None)
    }

    /// For authors of windows and the like: a new space whose pages also appear at other addresses, by your
    /// [`Translation`].
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

    fn new_space(&self, name: Option<String>, translation: Option<Shared<dyn Translation>>) -> Result<Space> {
        let engine = self.engine();
        let _inside = engine.enter()?;
        let id = engine.table.new_space().ok_or_else(|| {
            let message = format!(
                "a manager of this budget holds at most {} spaces; drop some, or build it with a larger max_budget_bytes",
                engine.table.most_spaces()
            );
            Error::new(ErrorKind::System, message)
        })?;
        let name = name.unwrap_or_else(|| format!("space {}", id.0));
        engine.register_space(id, SpaceRecord { name, translation: translation.clone() });
        let state = SpaceState {
            id,
            regions: RegionList::new(Arc::clone(&engine.budget)),
            used_huge_zero: UsedHugeZero::default(),
            streams: Streams::default(),
            quota: Quota::default(),
            translation,
        };
        Ok(Space::new(state, Arc::clone(&self.running)))
    }

    /// Returns how often each [`Counter`](crate::Counter) has happened since the manager was built, for
    /// monitoring and tests. In a forked child: until the fork.
    pub fn counters(&self) -> CounterSnapshot {
        if let Ok(_inside) = self.engine().enter() {
            self.engine().frames.flush_counters();
        }
        self.engine().counters.snapshot()
    }

    /// How long accesses waited so far. In a forked child, until the fork.
    pub fn latencies(&self) -> LatencySnapshot {
        self.engine().latencies.snapshot()
    }

    /// How much more memory would have kept the pages that came back so far. In a forked child, until the
    /// fork.
    pub fn refaults(&self) -> RefaultSnapshot {
        self.engine().lru.refaults()
    }

    /// What each swap area has done so far, in the order in which they were given.
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

    /// The memory, slots and pages in use.
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

    /// Changes the budget. A lower budget moves pages together, or out, and gives the emptied chunks back to
    /// the kernel, before the call returns.
    ///
    /// # Errors
    /// `InvalidBudget` below the minimum, above [`ManagerBuilder::max_budget_bytes`], or below the memory
    /// that is in use and cannot be moved out. `TimedOut` where it cannot since a device does not answer. The
    /// old budget then stands again.
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
            // The per-CPU lists hold as many frames as were right for more memory.
            engine.frames.drain();
        }
        self.running.wake();
        Ok(())
    }

    /// Tells how many bytes others use under the same budget: memory that this manager does not own, and that
    /// has to fit beside its own. Takes the place of what was said before. Where there is no room, pages go
    /// out in the background, and accesses that need memory wait for room as usual. Returns at once.
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

    /// Tells how many bytes are charged once more than they are there: a page in windows
    /// ([`crate::translation`]) that several processes share after a fork is charged in each of their spaces,
    /// and takes memory once. The budget has room for so much more. Takes the place of what was said before,
    /// up to six times the budget. A store makes a copy that nobody tells the manager of, so whoever calls
    /// this measures again soon, and leaves room for what comes meanwhile. Returns at once.
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

    /// Moves up to `pages` cold pages of 4 KiB out now, before memory is needed. Their frames stay with the
    /// manager. Returns how many were freed.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn reclaim(&self, pages: u64) -> Result<u64> {
        let _inside = self.engine().enter()?;
        let freed = reclaim_and_wait(self.engine(), pages, Reclaimer::Direct);
        // The error of a device that did not answer in time.
        self.engine().leave_transfers();
        Ok(freed)
    }

    /// Returns how much memory in windows and the like ([`crate::translation`]) cannot be moved out, such as
    /// memory that a program has locked. Takes time linear in what is there.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn immovable_bytes(&self) -> Result<u64> {
        let _inside = self.engine().enter()?;
        Ok(self.engine().immovable_bytes())
    }

    /// For tests: takes 2^order frames out of the budget, to see how a program does with less, or with memory
    /// in pieces. Their bytes are not reachable. The block counts against the budget, and is neither moved
    /// nor reclaimed. No page is reclaimed for it either. `None`: the budget has no such block left. For page
    /// blocks at speed, use a [`crate::frame::FrameAllocator`] of their own.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn alloc_block(&self, order: Order) -> Result<Option<FrameId>> {
        let _inside = self.engine().enter()?;
        let block = self.engine().frames.alloc(order).map(Block::into_frame);
        self.blocks.lock().extend(block.map(|frame| (frame, order)));
        Ok(block)
    }

    /// Frees a block of [`Manager::alloc_block`].
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

    /// Where there is no background thread: zeroes up to `frames` free frames for write faults to come, as
    /// the background thread does when it is idle. Returns the number of zeroed frames, which is 0 where less
    /// than the high watermark is free. The per-CPU lists, and the frames that were zeroed before, go into
    /// the zones first.
    ///
    /// # Errors
    /// `ForkedChild` in a forked child.
    pub fn zero_ahead(&self, frames: usize) -> Result<usize> {
        let _inside = self.engine().enter()?;
        self.engine().frames.drain();
        Ok(self.engine().frames.zero_some(frames))
    }

    /// For tests: walks all structures and checks them against each other. The time is linear in memory. To
    /// be called while no access is under way; reads and writes of devices may be. In a forked child it does
    /// nothing.
    ///
    /// # Panics
    /// When two structures contradict each other.
    pub fn validate(&self) {
        let engine = self.engine();
        let Ok(_inside) = engine.enter() else { return };
        engine.lru.drain_all(&engine.frames);
        engine.frames.validate();
        engine.lru.validate(&engine.frames);
        engine.swap.validate(&engine.frames);
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
