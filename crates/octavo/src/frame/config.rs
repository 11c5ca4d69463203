//! The options of a frame allocator.

use crate::config::PercpuOrders;
use crate::frame::zone::Backing;
use crate::sync::Cpus;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES};

pub use crate::sync::percpu::StackForm as PercpuForm;

/// A part of a [`FrameAllocator`](crate::frame::FrameAllocator)'s memory, with a page size and a NUMA node of
/// its own.
#[derive(Clone, Copy, Debug)]
pub struct ZoneConfig {
    /// The size, rounded up to chunks (2 MiB).
    pub bytes: u64,
    /// How the kernel backs the zone. Orders 0 to 8 prefer base pages, and order 9 prefers huge pages.
    pub backing: Backing,
    /// The memory node.
    pub node: u8,
}

/// The options of a [`FrameAllocator`](crate::frame::FrameAllocator).
#[derive(Clone, Debug)]
pub struct FrameConfig {
    /// The zones, in order of preference.
    pub zones: Vec<ZoneConfig>,
    /// The orders that the per-CPU lists hold.
    pub percpu_orders: PercpuOrders,
    /// Whether a chunk's pages are made present when it comes online (the default). Then later accesses to
    /// these pages cannot fail. Otherwise, the kernel supplies each page at its first access.
    pub populate: bool,
    /// The node of each CPU. If it is empty, all CPUs are on node 0.
    pub cpu_nodes: Vec<u8>,
    /// The CPUs that have lists.
    pub cpus: Cpus,
    /// How the per-CPU lists are protected.
    pub form: PercpuForm,
    /// The most bytes that may be away, rounded up to chunks. Away frames have no memory here, but count
    /// against the budget.
    pub away_bytes: u64,
}

/// The most frames that can have numbers. A number has 31 bits, and the last chunk stays unused.
pub(crate) const MOST_FRAMES: u64 = (1 << 31) - CHUNK_FRAMES as u64;

impl FrameConfig {
    /// Returns how many chunks of frames may be away.
    pub(crate) fn away_chunks(&self) -> u64 {
        self.away_bytes.div_ceil(CHUNK_BYTES as u64)
    }

    /// Returns how many frame numbers zones of these sizes span. Each zone begins at a multiple of a power of
    /// two.
    pub(crate) fn span_frames(zones: &[ZoneConfig]) -> u64 {
        let frames = |zone: &ZoneConfig| zone.bytes.div_ceil(CHUNK_BYTES as u64) * u64::from(CHUNK_FRAMES);
        let stride =
            zones.iter().map(frames).max().unwrap_or(0).checked_next_power_of_two().unwrap_or(u64::MAX);
        let last = zones.last().map_or(0, frames);
        stride.saturating_mul(zones.len().saturating_sub(1) as u64).saturating_add(last)
    }

    /// Returns options for one zone of `bytes` bytes on node 0, with the defaults for everything else.
    pub fn one_zone(bytes: u64, backing: Backing) -> Self {
        Self {
            zones: vec![ZoneConfig { bytes, backing, node: 0 }],
            percpu_orders: PercpuOrders::default(),
            populate: true,
            cpu_nodes: Vec::new(),
            cpus: Cpus::real(),
            form: PercpuForm::default(),
            away_bytes: 0,
        }
    }

    /// Returns options for four chunks and one CPU, for models and small tests. Pages become present at the
    /// first access.
    #[cfg(test)]
    pub(crate) fn tiny() -> Self {
        Self {
            percpu_orders: PercpuOrders::OrderZero,
            populate: false,
            cpus: Cpus::pretended(1, || 0),
            ..Self::one_zone(4 * CHUNK_BYTES as u64, Backing::BasePages)
        }
    }
}
