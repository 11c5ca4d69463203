//! The builder of a manager: every choice and its default, and the construction of the structures.

use octavo_platform::Inside;

use super::Manager;
use super::reserve::{MOST_BUDGET_BYTES, Reserve};
use crate::budget::Budget;
use crate::config::{
    Compression, DirtyPages, HugePolicy, HugeZeroWrite, PercpuOrders, PinPath, ReclaimPolicy, SwapCache,
    ZeroPage,
};
use crate::engine::{Engine, EngineConfig, Policy};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{Backing, FrameConfig, PercpuForm};
use crate::io::{Device, IoEngine, Opened, SwapArea, SwapFile};
use crate::reclaim::Running;
use crate::swap::{AreaShape, Swap, SwapParts};
use crate::sync::{Arc, Duration, Machine};
use crate::units::{CHUNK_FRAMES, PAGE_SHIFT, bytes_for_people};

/// The smallest budget that leaves room to work in.
pub const MIN_BUDGET_BYTES: u64 = 16 << 20;

/// Chunks leave a 64th of the budget to tables and swap maps: enough for data of about three times the
/// budget. For more, chunks are given back.
const HEADROOM_SHIFT: u32 = 6;

/// The largest readahead window by default: 2 MiB.
const READAHEAD_PAGES: u32 = CHUNK_FRAMES;

/// Chooses how a manager works. Every choice has a default.
#[must_use = "a builder does nothing until build()"]
pub struct ManagerBuilder {
    budget_bytes: Option<u64>,
    max_budget_bytes: Option<u64>,
    zero_page: ZeroPage,
    percpu_orders: PercpuOrders,
    percpu_form: PercpuForm,
    policy: Policy,
    swap_file: SwapFile,
    swap_limit_bytes: u64,
    reclaim_policy: ReclaimPolicy,
    swap_device: Option<Box<dyn Device>>,
    swap_areas: Vec<SwapArea>,
    io_engine: IoEngine,
    swap_cache: SwapCache,
    compression: Compression,
    encrypt: bool,
    background: bool,
    backing: Backing,
    machine: Machine,
}

impl Default for ManagerBuilder {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            max_budget_bytes: None,
            zero_page: ZeroPage::default(),
            percpu_orders: PercpuOrders::default(),
            percpu_form: PercpuForm::default(),
            policy: Policy {
                huge: HugePolicy::default(),
                huge_zero_write: HugeZeroWrite::default(),
                pin_path: PinPath::default(),
                dirty_pages: DirtyPages::default(),
                readahead_pages: READAHEAD_PAGES,
                io_timeout: None,
            },
            swap_file: SwapFile::default(),
            swap_limit_bytes: 1 << 40,
            reclaim_policy: ReclaimPolicy::default(),
            swap_device: None,
            swap_areas: Vec::new(),
            io_engine: IoEngine::default(),
            swap_cache: SwapCache::default(),
            compression: Compression::default(),
            encrypt: false,
            background: true,
            backing: Backing::HugePages,
            machine: Machine::real(),
        }
    }
}

impl ManagerBuilder {
    /// Sets the most memory in bytes that the manager may use: pages, the compressed pool, tables. The
    /// program's own heap is not included (see [`Manager::set_outside_bytes`]). At least
    /// [`MIN_BUDGET_BYTES`]. Default: 80 % of the machine's memory, or of the tightest limit of this
    /// process's control groups if that is smaller.
    pub fn budget_bytes(mut self, bytes: u64) -> Self {
        self.budget_bytes = Some(bytes);
        self
    }

    /// Sets the most bytes that [`Manager::set_budget`] may raise the budget to. This reserves addresses,
    /// but no memory. Default: the budget.
    pub fn max_budget_bytes(mut self, bytes: u64) -> Self {
        self.max_budget_bytes = Some(bytes);
        self
    }

    /// For measurements: selects how huge zero pages are counted. Default: [`ZeroPage::Persistent`]. There
    /// is no other reason to change it.
    pub fn zero_page(mut self, zero_page: ZeroPage) -> Self {
        self.zero_page = zero_page;
        self
    }

    /// For measurements: selects the orders that the per-CPU lists hold. Default: [`PercpuOrders::All`].
    /// There is no other reason to change it.
    pub fn percpu_orders(mut self, orders: PercpuOrders) -> Self {
        self.percpu_orders = orders;
        self
    }

    /// For measurements: selects how the per-CPU lists are protected. Default: by restartable sequences,
    /// if the kernel has them.
    pub fn percpu_form(mut self, form: PercpuForm) -> Self {
        self.percpu_form = form;
        self
    }

    /// For measurements: selects how pages are pinned. Default: [`PinPath::LockFree`]. There is no other
    /// reason to change it.
    pub fn pin_path(mut self, pin_path: PinPath) -> Self {
        self.policy.pin_path = pin_path;
        self
    }

    /// Selects where write faults take 2 MiB blocks. Default: [`HugePolicy::Advised`], in regions that ask
    /// for it.
    pub fn huge(mut self, huge: HugePolicy) -> Self {
        self.policy.huge = huge;
        self
    }

    /// For measurements: selects what the first write does to 2 MiB that show zeros without memory.
    /// Default: [`HugeZeroWrite::Split`].
    pub fn huge_zero_write(mut self, write: HugeZeroWrite) -> Self {
        self.policy.huge_zero_write = write;
        self
    }

    /// Sets the one swap file, which is used if neither [`ManagerBuilder::swap_area`] nor
    /// [`ManagerBuilder::swap_device`] names a place. Default: an unnamed file in `$TMPDIR`, or in
    /// /var/tmp.
    pub fn swap_file(mut self, file: SwapFile) -> Self {
        self.swap_file = file;
        self
    }

    /// Sets the policy that chooses the pages to evict when the budget is used up. Default:
    /// [`ReclaimPolicy::Reuse`], which suits most programs.
    pub fn reclaim_policy(mut self, policy: ReclaimPolicy) -> Self {
        self.reclaim_policy = policy;
        self
    }

    /// Sets the most bytes that the swap file may grow to. (Areas have [`SwapArea::limit_bytes`].)
    /// Default: 1 TiB. The budget can keep account of 256 times `max_budget_bytes` in any one place, or of
    /// 93 times with encryption; more is not used.
    pub fn swap_limit_bytes(mut self, bytes: u64) -> Self {
        self.swap_limit_bytes = bytes;
        self
    }

    /// For measurements: selects how the swap cache finds the frame of a slot. Default:
    /// [`SwapCache::Table`]. There is no other reason to change it.
    pub fn swap_cache(mut self, swap_cache: SwapCache) -> Self {
        self.swap_cache = swap_cache;
        self
    }

    /// For measurements: selects how a sync of a file finds the pages to write. Default:
    /// [`DirtyPages::Tags`]. There is no other reason to change it.
    pub fn dirty_pages(mut self, dirty_pages: DirtyPages) -> Self {
        self.policy.dirty_pages = dirty_pages;
        self
    }

    /// Adds one device, as `swap_area(SwapArea::device(device))` does. A second call replaces the first.
    pub fn swap_device(mut self, device: Box<dyn Device>) -> Self {
        self.swap_device = Some(device);
        self
    }

    /// Adds one more place for pages: a file, a disk, memory, or a device of your own. If there is any
    /// area, there is no swap file. Areas of the highest priority are filled first.
    pub fn swap_area(mut self, area: SwapArea) -> Self {
        self.swap_areas.push(area);
        self
    }

    /// Selects how files and block devices are read and written. Default: by io_uring, if that is allowed.
    pub fn io_engine(mut self, engine: IoEngine) -> Self {
        self.io_engine = engine;
        self
    }

    /// Sets the compression of pages in the pool in front of the swap areas. The pool takes up to 28 % of
    /// the budget: that much if pages shrink to a fifth, or if pages that it had no room for return from
    /// devices. It takes less otherwise, and if a program mostly waits for pages that would fit without
    /// the pool. Default: LZ4.
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets whether pages are encrypted on their way to a swap area, with a key that exists only in this
    /// process. The cipher is AES-256-GCM, or ChaCha20-Poly1305 if the processor has no AES instructions.
    /// Default: no.
    pub fn encrypt(mut self, encrypt: bool) -> Self {
        self.encrypt = encrypt;
        self
    }

    /// Sets the longest time that an access waits for a device that does not answer: for a page to come,
    /// or for the room that a write makes. The access then fails with the kind `TimedOut`. The transfer
    /// goes on, and a later access finds its outcome. Default: no limit.
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.policy.io_timeout = Some(timeout);
        self
    }

    /// Sets the most bytes that Octavo reads ahead at once when a program goes through pages in order.
    /// Default: 2 MiB. Below 4 KiB, nothing is read ahead.
    pub fn readahead_bytes(mut self, bytes: u64) -> Self {
        self.policy.readahead_pages = (bytes >> PAGE_SHIFT).min(u64::from(CHUNK_FRAMES)) as u32;
        self
    }

    /// Sets whether a background thread makes room and clears memory before accesses need it. Without it,
    /// accesses do so themselves, and wait. Default: yes.
    pub fn background(mut self, background: bool) -> Self {
        self.background = background;
        self
    }

    /// Sets whether the kernel gives the manager memory in pages of 2 MiB or of 4 KiB. Default: 2 MiB,
    /// which are cheaper to fault in and to access.
    pub fn backing(mut self, backing: Backing) -> Self {
        self.backing = backing;
        self
    }

    /// Sets the clock, the CPUs, the memory and the random bytes to use. Default: the real ones.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self
    }

    /// Checks whether [`build`](Self::build) would accept the budget and find its addresses, without
    /// making anything. For programs that build a manager later, when an error would come too late.
    /// [`SwapArea::check`] checks a place for swap. Costs some system calls.
    ///
    /// # Errors
    /// `InvalidBudget`, `System`, and the error of a swap limit that holds no page, as `build`.
    pub fn check(mut self) -> Result<()> {
        let (_, most_bytes) = self.budgets()?;
        let areas = self.areas();
        let slot_bytes = Swap::bytes_per_slot(self.encrypt);
        let reserve = Reserve::for_budget(most_bytes, self.backing, slot_bytes);
        let slots =
            areas.iter().map(|area| area.most_pages().map(|pages| u64::from(pages.min(reserve.slots))));
        reserve.probe(slots.sum::<Result<u64>>()?, slot_bytes, self.machine.cpus)
    }

    /// Takes the places for swap.
    fn areas(&mut self) -> Vec<SwapArea> {
        let mut areas = std::mem::take(&mut self.swap_areas);
        areas.extend(self.swap_device.take().map(SwapArea::device));
        if areas.is_empty() {
            let limited = |area: SwapArea| area.limit_bytes(self.swap_limit_bytes);
            areas.extend(SwapArea::from_file(std::mem::take(&mut self.swap_file)).map(limited));
        }
        areas
    }

    /// Builds the manager.
    ///
    /// # Errors
    /// `InvalidBudget` for a budget below [`MIN_BUDGET_BYTES`], above the machine's memory, or above
    /// `max_budget_bytes`. `SwapUnavailable` if a swap area cannot be created or opened, and
    /// `SwapNotEmpty` if it holds something that is not Octavo's. `Unsupported` if the chosen I/O engine
    /// does not work here. `System` if the kernel refuses addresses or a thread.
    pub fn build(mut self) -> Result<Manager> {
        let _inside = Inside::enter();
        let (budget_bytes, most_bytes) = self.budgets()?;
        let devices = self.areas().into_iter().map(|area| {
            let Opened { device, capacity_pages, priority, .. } = area.open(self.io_engine)?;
            Ok((device, AreaShape { capacity_pages, priority }))
        });
        let mut devices = devices.collect::<Result<Vec<_>>>()?;
        let cpus = self.machine.cpus;
        let slot_bytes = Swap::bytes_per_slot(self.encrypt);
        let reserve = Reserve::for_budget(most_bytes, self.backing, slot_bytes);
        for (_, shape) in &mut devices {
            shape.capacity_pages = shape.capacity_pages.min(reserve.slots);
        }
        let slots = devices.iter().map(|(_, shape)| u64::from(shape.capacity_pages)).sum();
        reserve.probe(slots, slot_bytes, cpus)?;
        let engine = Engine::new(EngineConfig {
            policy: self.policy,
            machine: self.machine,
            budget: Budget::with_headroom(budget_bytes, most_bytes, HEADROOM_SHIFT),
            frames: FrameConfig {
                zones: reserve.zones,
                away_bytes: reserve.away_bytes,
                cpus,
                form: self.percpu_form,
                percpu_orders: self.percpu_orders,
                ..FrameConfig::one_zone(most_bytes, self.backing)
            },
            zero_page: self.zero_page,
            max_nodes: reserve.table_nodes,
            max_spaces: reserve.spaces,
            reclaim_policy: self.reclaim_policy,
            swap: SwapParts {
                devices,
                form: self.swap_cache,
                compression: self.compression,
                encrypt: self.encrypt,
            },
        })?;
        let running = Running::start(engine, self.background)
            .map_err(|error| Error::system("cannot start the background thread", &error))?;
        Ok(Manager { running: Arc::new(running), blocks: Arc::default() })
    }

    /// Returns the budget, and the most that it may grow to.
    fn budgets(&self) -> Result<(u64, u64)> {
        let memory = self.machine.memory;
        let default_bytes = (memory.usable_bytes / 5 * 4).min(MOST_BUDGET_BYTES);
        let budget_bytes = self.budget_bytes.unwrap_or(default_bytes);
        check_budget(budget_bytes, memory.bytes)?;
        let most_bytes = self.max_budget_bytes.unwrap_or(budget_bytes);
        check_budget(most_bytes, memory.bytes)?;
        if most_bytes < budget_bytes {
            let message = format!(
                "max_budget_bytes of {} is below the budget of {}; choose one above, or a smaller budget",
                bytes_for_people(most_bytes),
                bytes_for_people(budget_bytes)
            );
            return Err(Error::new(ErrorKind::InvalidBudget, message));
        }
        Ok((budget_bytes, most_bytes))
    }
}

pub(super) fn check_budget(bytes: u64, machine_bytes: u64) -> Result<()> {
    let problem = if bytes < MIN_BUDGET_BYTES {
        format!("below the minimum of {}", bytes_for_people(MIN_BUDGET_BYTES))
    } else if bytes > machine_bytes {
        format!("above this machine's memory of {}", bytes_for_people(machine_bytes))
    } else if bytes > MOST_BUDGET_BYTES {
        format!("above the {} that there are numbers of frames for", bytes_for_people(MOST_BUDGET_BYTES))
    } else {
        return Ok(());
    };
    let most = bytes_for_people(machine_bytes.min(MOST_BUDGET_BYTES));
    let least = bytes_for_people(MIN_BUDGET_BYTES);
    let message =
        format!("a budget of {} is {problem}; choose one from {least} to {most}", bytes_for_people(bytes));
    Err(Error::new(ErrorKind::InvalidBudget, message))
}
