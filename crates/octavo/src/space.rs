//! The public interface of an address space.

mod cursor;
mod figures;
mod guards;
mod pins;
mod ranges;
mod translated;
mod words;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;

use octavo_platform::Inside;

use crate::access;
use crate::engine::{
    Engine, Obstacle, Quota, SpaceRecord, SpaceState, Streams, Waiter, clear_space, in_place, protect_range,
    split_edges, unmap_range,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{Via, prefetch, resolve, resolve_async};
use crate::frame::zero_page::UsedHugeZero;
use crate::page_cache::Reach;
use crate::reclaim::{Running, cool, make_room_for_node, make_room_under_quota, page_out};
use crate::region::{AccessPattern, FilePart, Region, RegionList, RegionOptions, RegionWriter};
use crate::sync::{Arc, Duration, Instant, Mutex, Shared, pause};
use crate::table::translation::Translation;
use crate::table::{Access, PageNumberRange, Protection};
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES, PAGE_SHIFT, PageNumber};
use crate::writeback::FileUse;
pub use cursor::SpaceCursor;
pub use figures::{RangeStats, RegionStats, SpaceStats};
pub use guards::{OwnedExclusiveGuard, OwnedSharedGuard};
pub use pins::OwnedPin;
use ranges::{page_count, page_range, whole_pages};
pub use translated::TranslatedSpace;

/// How long unmap and protect wait for a pinned block over an edge before they fail. Stores, reclaim and late
/// walkers hold a block for a moment.
const PATIENCE: Duration = Duration::from_millis(20);
/// The time between two looks at such a block.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// An address space: ranges of 64-bit addresses, mapped to memory that comes and goes under the manager's
/// budget.
///
/// Addresses are Octavo's own, not pointers. The methods here access the bytes, from any thread, and may
/// block while a page comes in. In a forked child they fail with `ForkedChild`.
///
/// Dropping a space frees all its pages and their swap at once; pinned memory follows when its pins are
/// dropped. The manager keeps freed memory for other pages. The kernel gets it back when
/// [`Manager::set_budget`](crate::Manager::set_budget) lowers the budget, or when the manager ends.
pub struct Space {
    state: SpaceState,
    engine: Shared<Engine>,
    /// The files that regions of the space show.
    files: Mutex<Vec<FileUse>>,
    /// Keeps the manager at work while the space lives.
    _running: Arc<Running>,
}

/// Tells Octavo how a program will use a range, for [`Space::advise`]. Normal, Sequential and Random stay
/// until they are changed. The others act once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// No known order.
    Normal,
    /// One page after the other: Octavo reads far ahead from the start.
    Sequential,
    /// In no order: Octavo reads nothing ahead.
    Random,
    /// Soon: Octavo starts to read the pages that are on a device. Pages in the compressed pool come back
    /// when they are accessed.
    WillNeed,
    /// Not soon: these pages are the next to go.
    Cold,
    /// Not soon: Octavo evicts the pages that can go now.
    PageOut,
    /// Never again: frees memory and swap. The contents are dropped before the call returns, and read as
    /// zeros. The range stays mapped.
    Free,
}

impl Space {
    /// Makes a space with nothing mapped.
    ///
    /// # Errors
    /// `System` if there are as many spaces as there can be.
    pub(crate) fn make(
        running: &Arc<Running>,
        name: Option<String>,
        translation: Option<Shared<dyn Translation>>,
    ) -> Result<Self> {
        let engine = &running.engine;
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
        let (engine, files) = (Shared::clone(engine), Mutex::new(Vec::new()));
        Ok(Self { state, engine, files, _running: Arc::clone(running) })
    }

    // --- layout ---

    /// Maps `len` bytes (rounded up to pages) at an address that Octavo chooses, and returns the address
    /// of the first byte. The bytes read as zeros. A range of 2 MiB or more is aligned to 2 MiB. The range
    /// uses no memory yet.
    ///
    /// # Errors
    /// `InvalidRange` for an empty range, or one that fits nowhere. `OutOfMemory` if the budget has no room
    /// for the list of regions. `Unsupported` for a guarded region that is not readable and writable, or
    /// whose space has a translation. `ForkedChild` in a forked child.
    pub fn map(&self, len: u64, options: RegionOptions) -> Result<u64> {
        let _inside = self.engine.enter()?;
        let pages = page_count(len)?;
        self.check_options(&options)?;
        self.map_pages(pages, |_| options)
    }

    /// Maps pages at a place that is free, with options that may depend on the place. Returns its address.
    fn map_pages(&self, pages: u64, options: impl Fn(PageNumber) -> RegionOptions) -> Result<u64> {
        let align = if pages >= u64::from(CHUNK_FRAMES) { u64::from(CHUNK_FRAMES) } else { 1 };
        self.with_room(|| {
            let writer = self.state.regions.writer();
            let start = writer.find_free(pages, align).ok_or_else(|| {
                let len = pages << PAGE_SHIFT;
                let message =
                    format!("no free range of {len} bytes is left; unmap others, or use another space");
                Error::new(ErrorKind::InvalidRange, message)
            })?;
            writer.insert(Region { start, end: start.plus(pages), options: options(start) })?;
            Ok(start.address())
        })
    }

    /// Maps `pages` pages of a file, from `first` on: at a page of the caller's choice, or where there is
    /// room. Returns the address.
    ///
    /// # Errors
    /// `Unsupported`, `Protected`, `InvalidRange`, `AlreadyMapped` and `OutOfMemory` as `map_file()` says.
    pub(crate) fn map_file_pages(
        &self,
        file: &FileUse,
        (first, pages): (u64, u64),
        at: Option<PageNumber>,
        (is_private, is_read_only): (bool, bool),
        options: RegionOptions,
    ) -> Result<u64> {
        self.check_options(&options)?;
        if self.state.translation.is_some() {
            let what = "a space with a translation shows no files; map the file in a space without";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if let Some(start) = at {
            // Checks where the range ends.
            page_range(start.address(), pages << PAGE_SHIFT)?;
        }
        file.inode().reach(if options.guarded { Reach::Guards } else { Reach::Others })?;
        let part = FilePart::new(file.inode().id, is_private, is_read_only);
        let at_place =
            |start| RegionOptions { huge: false, file: Some(part.showing(first, start)), ..options };
        let address = match at {
            None => self.map_pages(pages, at_place),
            Some(start) => self.with_room(|| {
                let region = Region { start, end: start.plus(pages), options: at_place(start) };
                self.state.regions.writer().insert(region)?;
                Ok(start.address())
            }),
        }?;
        // The caller has the file open meanwhile.
        self.keep_file(file);
        Ok(address)
    }

    fn keep_file(&self, file: &FileUse) {
        let mut files = self.files.lock();
        if files.iter().all(|kept| kept.inode().id != file.inode().id) {
            files.push(file.clone());
        }
    }

    /// Ends the uses of files that no region shows any more.
    fn let_go_of_files(&self) {
        if self.files.lock().is_empty() {
            return;
        }
        let all = PageNumberRange::from(PageNumber(0));
        let mut files = self.files.lock();
        let regions = self.state.regions.writer().overlapping(all.start, all.end);
        let is_shown = |file: &FileUse| {
            let id = file.inode().id;
            regions.iter().any(|region| region.options.file.is_some_and(|part| part.file == id))
        };
        let gone: Vec<_> = files.extract_if(.., |file| !is_shown(file)).collect();
        drop(files);
        // The last use writes the file's pages.
        drop(gone);
    }

    /// Returns whether this is a space of the manager with that engine.
    pub(crate) fn is_of(&self, engine: &Shared<Engine>) -> bool {
        Shared::ptr_eq(&self.engine, engine)
    }

    /// Refuses a guarded region that cannot be kept. For others, charges the latches.
    fn check_options(&self, options: &RegionOptions) -> Result<()> {
        if !options.guarded {
            return Ok(());
        }
        let what = if self.state.translation.is_some() {
            "a space with a translation has no guarded regions; use a space without, or leave guarded() out"
        } else if options.protection != Protection::READ_WRITE {
            "a guarded region is readable and writable; leave protection() out, or guarded()"
        } else {
            self.engine.latches.charge(&self.engine.budget);
            return Ok(());
        };
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Makes a change. If the budget has no room for the list of regions, makes room and tries once more.
    fn with_room<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        match change() {
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                in_place(make_room_for_node(&self.engine, &mut Waiter::thread(&self.engine)))?;
                change()
            }
            done => done,
        }
    }

    /// Maps `len` bytes (rounded up to pages) at `address`.
    ///
    /// # Errors
    /// `InvalidRange` for an unaligned, empty or overflowing range; `AlreadyMapped` if it overlaps a region;
    /// otherwise as [`Space::map`].
    pub fn map_at(&self, address: u64, len: u64, options: RegionOptions) -> Result<()> {
        let _inside = self.engine.enter()?;
        let range = page_range(address, len)?;
        self.check_options(&options)?;
        let region = Region { start: range.start, end: range.end, options };
        self.with_room(|| self.state.regions.writer().insert(region))
    }

    /// Unmaps a range of whole pages. Its contents are lost, and a later access is an error. Parts that
    /// were not mapped are no error. Pinned memory lives on until its pins are dropped. `len` must be a
    /// multiple of [`PAGE_BYTES`](crate::PAGE_BYTES), even where [`Space::map`] rounded the length up.
    ///
    /// # Errors
    /// `InvalidRange` as [`Space::map_at`], and if the range ends inside a page. `Busy` if an edge of the
    /// range cuts a pinned 2 MiB block. `OutOfMemory` if an edge cuts a block and there is no room for the
    /// table that the split needs. After an error, nothing has changed.
    pub fn unmap(&self, address: u64, len: u64) -> Result<()> {
        let _inside = self.engine.enter()?;
        self.unmap_by(whole_pages(address, len, "unmapped")?, unmap_range)?;
        self.let_go_of_files();
        Ok(())
    }

    /// Removes the regions of a range, and then what `clear` clears.
    fn unmap_by(
        &self,
        range: PageNumberRange,
        clear: fn(&Engine, &SpaceState, PageNumberRange),
    ) -> Result<()> {
        self.change_layout(
            range,
            |writer| writer.remove(range.start, range.end),
            |_, _| {
                clear(&self.engine, &self.state, range);
                Ok(())
            },
        )
    }

    /// Clears a range with `clear`. The regions stay, so faults under way may bring pages back, as later
    /// faults do.
    fn clear_by(
        &self,
        range: PageNumberRange,
        clear: fn(&Engine, &SpaceState, PageNumberRange),
    ) -> Result<()> {
        self.change_layout(
            range,
            |_| Ok(Vec::new()),
            |_, _| {
                clear(&self.engine, &self.state, range);
                Ok(())
            },
        )
    }

    /// Changes the permissions of a range of whole pages, all of which must be mapped. A store that
    /// another thread began before the call may still complete; later ones obey the new permissions.
    ///
    /// # Errors
    /// As [`Space::unmap`], and `NotMapped` if part of the range is not mapped. `Unsupported` if a region is
    /// guarded, or the space's translation cannot take the permissions away from pages on its side.
    pub fn protect(&self, address: u64, len: u64, protection: Protection) -> Result<()> {
        let engine = &*self.engine;
        let _inside = engine.enter()?;
        let protection = protection.normal();
        let range = whole_pages(address, len, "protected")?;
        let change = |writer: &RegionWriter<'_>| {
            check_covered(writer, range)?;
            check_not_guarded(writer, range)?;
            check_files_writable(writer, range, protection)?;
            writer.replace(range.start, range.end, |options| Some(options.protection(protection)))
        };
        self.change_layout(range, change, |writer, old| {
            if protect_range(engine, &self.state, range, protection) {
                return Ok(());
            }
            writer.restore(old);
            for region in old {
                let range = PageNumberRange {
                    start: region.start.max(range.start),
                    end: region.end.min(range.end),
                };
                // Takes back the permissions that the change has granted at home. It has granted none at the
                // other side.
                protect_range(engine, &self.state, range, region.options.protection);
            }
            let message = format!(
                "the space's translation cannot protect its pages at {address:#x}; leave their protection as it is, or unmap them"
            );
            Err(Error::new(ErrorKind::Unsupported, message))
        })
    }

    /// Tells Octavo how you will use a range. Advice about parts that are not mapped, or that cannot be
    /// followed, is no error.
    ///
    /// # Errors
    /// `InvalidRange` as [`Space::map_at`]. For [`Advice::Free`], the errors of [`Space::unmap`].
    pub fn advise(&self, address: u64, len: u64, advice: Advice) -> Result<()> {
        let engine = &*self.engine;
        let _inside = engine.enter()?;
        let range = match advice {
            Advice::Free => whole_pages(address, len, "freed")?,
            _ => page_range(address, len)?,
        };
        let pattern = |pattern| {
            let writer = self.state.regions.writer();
            writer.replace(range.start, range.end, |options| Some(options.pattern(pattern))).map(drop)
        };
        match advice {
            Advice::Normal => pattern(AccessPattern::Normal),
            Advice::Sequential => pattern(AccessPattern::Sequential),
            Advice::Random => pattern(AccessPattern::Random),
            Advice::WillNeed => self.prefetch(address, len).map(drop),
            Advice::Cold => {
                cool(engine, self.state.id, range);
                Ok(())
            }
            Advice::PageOut => {
                page_out(engine, self.state.id, range);
                Ok(())
            }
            Advice::Free => self.clear_by(range, unmap_range),
        }
    }

    /// Starts to read the pages of the range that are on a device, to save later accesses the wait. Returns
    /// the number of pages on their way. It reads at most as many pages as fit a quarter of the budget and
    /// the space's quota.
    ///
    /// # Errors
    /// `InvalidRange` for an empty range, or one that runs past the end of the address space.
    pub fn prefetch(&self, address: u64, len: u64) -> Result<u64> {
        let _inside = self.engine.enter()?;
        page_count(len)?;
        let first = PageNumber::containing(address);
        let range = page_range(first.address(), len.saturating_add(address - first.address()))?;
        Ok(prefetch(&self.engine, &self.state, range))
    }

    /// Changes regions, then the table, under the layout lock. `apply` gets the old regions. If a block over
    /// an edge cannot be split, nothing has changed. If a table node is missing, this makes room and starts
    /// over. If the block is pinned, this looks again for a while. The lock is not held meanwhile.
    fn change_layout(
        &self,
        range: PageNumberRange,
        change: impl Fn(&RegionWriter<'_>) -> Result<Vec<Region>>,
        apply: impl FnOnce(&RegionWriter<'_>, &[Region]) -> Result<()>,
    ) -> Result<()> {
        let mut give_up_at = None;
        loop {
            let writer = self.state.regions.writer();
            let split = || split_edges(&self.engine, self.state.id, range);
            let obstacle = match split() {
                Err(obstacle) => obstacle,
                Ok(()) => {
                    let old = change(&writer)?;
                    match split() {
                        Ok(()) => return apply(&writer, &old),
                        Err(obstacle) => {
                            writer.restore(&old);
                            obstacle
                        }
                    }
                }
            };
            drop(writer);
            self.remove_obstacle(obstacle, &mut give_up_at)?;
        }
    }

    /// Makes room for a table node, or waits for the holders of a block. The first call sets the time at
    /// which to give up.
    fn remove_obstacle(&self, obstacle: Obstacle, give_up_at: &mut Option<Instant>) -> Result<()> {
        match obstacle {
            Obstacle::NoNode => in_place(make_room_for_node(&self.engine, &mut Waiter::thread(&self.engine))),
            Obstacle::Pinned(block) => {
                let now = self.engine.machine.clock.now();
                if now >= *give_up_at.get_or_insert(now + PATIENCE) {
                    return Err(pinned(block));
                }
                pause(LOOK_EVERY);
                Ok(())
            }
        }
    }

    // --- access ---

    /// Copies bytes from `address` on into a buffer: any length and alignment, across any mapped pages.
    /// Costs the copy, and a look-up for each page. For one word, use [`Space::load`]; for a guarded
    /// region, [`Space::read_guarded`]. Bytes that other threads write at the same time may be torn.
    ///
    /// # Errors
    /// As [`Space::load`]. The bytes copied before the failure stay.
    pub fn read(&self, address: u64, to: &mut [u8]) -> Result<()> {
        access::read(&self.engine, &self.state, address, to)
    }

    /// Copies bytes from a buffer to `address` on, under the same rules as [`Space::read`]. A page that is
    /// written as a whole is neither zeroed nor read from swap first.
    ///
    /// # Errors
    /// As [`Space::load`]. The pages before the one that failed are written.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<()> {
        access::write(&self.engine, &self.state, address, from)
    }

    /// Brings the page at `address` in without blocking the executor. The next load or store there most
    /// likely does not wait. While the fault waits for a device, for room, or for another fault, the
    /// future is pending, and later wakes its task. Nothing keeps the page in memory; if it must stay, use
    /// [`Space::pin_async`]. A dropped future leaves the page as it was.
    ///
    /// # Errors
    /// As [`Space::load`].
    pub fn fault_async(&self, address: u64, access: Access) -> impl Future<Output = Result<()>> + Send + '_ {
        self.fault_by_task(address, access, Via::Handle)
    }

    /// Makes a fault for an executor's task to poll. The polling thread counts as inside the engine.
    fn fault_by_task(
        &self,
        address: u64,
        access: Access,
        via: Via,
    ) -> impl Future<Output = Result<()>> + Send + '_ {
        let waiter = Waiter::task(&self.engine);
        inside(resolve_async(waiter, &self.engine, &self.state, address, access, via))
    }

    /// Brings every page of the range in, one after the other. Accesses right afterwards take no fault.
    /// Call [`Space::prefetch`] first to overlap the reads. With [`Access::Write`] each page gets memory;
    /// with `Read`, untouched pages show zeros and take none. Pages may be evicted again: pin those that
    /// have to stay.
    ///
    /// # Errors
    /// As [`Space::load`]. The pages before the one that failed are usable.
    pub fn populate(&self, address: u64, len: u64, access: Access) -> Result<()> {
        let _inside = self.engine.enter()?;
        let range = page_range(address, len)?;
        (range.start.0..range.end.0).try_for_each(|page| {
            let address = PageNumber(page).address();
            if self.state.region_for_guard(&self.engine, address).is_ok() {
                return access::populate_guarded(&self.engine, &self.state, PageNumber(page));
            }
            resolve(&self.engine, &self.state, address, access)
        })
    }

    // --- what it uses ---

    /// Sets the most bytes of memory that the space may use; the budget limits it as well. `None` removes the
    /// quota. A space at its quota makes room among its own pages, and its pins and guards may keep all of
    /// it. (Pages that were unmapped while pinned may take as much again.) If the quota is below the space's
    /// memory, the excess goes out before the call returns.
    ///
    /// # Errors
    /// `InvalidBudget` for a quota below 2 MiB. `QuotaExceeded` if the excess cannot go out. The new quota
    /// then applies, and accesses that need memory fail until the excess is out.
    pub fn set_quota(&self, bytes: Option<u64>) -> Result<()> {
        let _inside = self.engine.enter()?;
        if let Some(bytes) = bytes.filter(|bytes| *bytes < CHUNK_BYTES as u64) {
            let message =
                format!("a quota of {bytes} bytes is too small to work in; give at least 2 MiB, or none");
            return Err(Error::new(ErrorKind::InvalidBudget, message));
        }
        self.state.quota.set_pages(bytes.map(|bytes| bytes >> PAGE_SHIFT));
        self.engine.pin_share_changed(self.state.id);
        in_place(make_room_under_quota(&self.engine, &self.state, 0, &mut Waiter::patient(&self.engine)))
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn state(&self) -> &SpaceState {
        &self.state
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let engine = &*self.engine;
        // A forked child owns none of this.
        let Ok(_inside) = engine.enter() else { return };
        clear_space(engine, &self.state);
        // The slots of pages on their way are in use until their transfers end.
        engine.leave_transfers();
        engine.spaces.lock().remove(&self.state.id);
        engine.space_use.forget(self.state.id);
        engine.pin_shares.forget(self.state.id);
        if let Some(pool) = engine.swap.pool() {
            pool.forget(self.state.id);
        }
        engine.table.forget_space(self.state.id);
        // Last, since entries could show the huge zero page until here.
        engine.huge_zero.put_space(&self.state.used_huge_zero);
        self.files.lock().clear();
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("id", &self.state.id).finish_non_exhaustive()
    }
}

/// Makes the thread that polls the future count as inside the engine.
async fn inside<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _inside = Inside::enter();
        future.as_mut().poll(context)
    })
    .await
}

fn check_covered(writer: &RegionWriter<'_>, range: PageNumberRange) -> Result<()> {
    let mut covered = range.start;
    for region in writer.overlapping(range.start, range.end) {
        if region.start > covered {
            break;
        }
        covered = region.end;
    }
    if covered >= range.end {
        return Ok(());
    }
    let message = format!("no region is mapped at {:#x}; protect mapped ranges only", covered.address());
    Err(Error::new(ErrorKind::NotMapped, message))
}

fn check_not_guarded(writer: &RegionWriter<'_>, range: PageNumberRange) -> Result<()> {
    let regions = writer.overlapping(range.start, range.end);
    let Some(region) = regions.iter().find(|region| region.options.guarded) else { return Ok(()) };
    let message = format!(
        "the region at {:#x} is guarded, and stays readable and writable; choose another range",
        region.start.address()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn check_files_writable(
    writer: &RegionWriter<'_>,
    range: PageNumberRange,
    protection: Protection,
) -> Result<()> {
    let regions = writer.overlapping(range.start, range.end);
    let is_refused = |region: &&Region| region.options.file.is_some_and(|part| !part.allows(protection));
    let Some(region) = regions.iter().find(is_refused) else { return Ok(()) };
    let message = format!(
        "the file at {:#x} was opened for reading; open it with FileOptions::write(true), or map it Private",
        region.start.address()
    );
    Err(Error::new(ErrorKind::Protected, message))
}

#[cold]
fn pinned(block: PageNumber) -> Error {
    let message = format!(
        "the 2 MiB block at {:#x} is pinned and cannot be split; drop its pins first",
        block.address()
    );
    Error::new(ErrorKind::Busy, message)
}
