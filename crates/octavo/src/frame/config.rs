//! What a frame allocator is built from.

use crate::config::PercpuOrders;
use crate::frame::zone::Backing;
use crate::sync::Cpus;
use crate::units::{CHUNK_BYTES, CHUNK_FRAMES};

pub use crate::sync::percpu::StackForm as PercpuForm;

/// One zone to be made.
#[derive(Clone, Copy, Debug)]
pub struct ZoneConfig {
    /// Size, rounded up to chunks (2 MiB).
    pub bytes: u64,
    /// How the kernel backs it. Orders 0 to 8 prefer base pages, order 9 huge ones.
    pub backing: Backing,
    /// Memory node.
    pub node: u8,
}

/// What to build a [`FrameAllocator`](crate::frame::FrameAllocator) from.
#[derive(Clone, Debug)]
pub struct FrameConfig {
    /// The zones, in order of preference.
    pub zones: Vec<ZoneConfig>,
    /// Orders on the per-CPU lists.
    pub percpu_orders: PercpuOrders,
    /// Whether a chunk's pages are made present when it comes online (the default), so that touching them later
    /// cannot fail; else the kernel supplies them at first touch.
    pub populate: bool,
    /// The node of each CPU. Empty: all are on node 0.
    pub cpu_nodes: Vec<u8>,
    /// The CPUs that the lists are for.
    pub cpus: Cpus,
    /// How the per-CPU lists are protected.
    pub form: PercpuForm,
}

/// Frames that there are numbers for: a number has 31 bits, and the last chunk stays unused.
pub(crate) const MOST_FRAMES: u64 = (1 << 31) - CHUNK_FRAMES as u64;

impl FrameConfig {
    /// Frames that zones of these sizes span: each zone begins at a multiple of a power of two.
    pub(crate) fn span_frames(zones: &[ZoneConfig]) -> u64 {
        let frames = |zone: &ZoneConfig| zone.bytes.div_ceil(CHUNK_BYTES as u64) * u64::from(CHUNK_FRAMES);
        let stride =
            zones.iter().map(frames).max().unwrap_or(0).checked_next_power_of_two().unwrap_or(u64::MAX);
        let last = zones.last().map_or(0, frames);
        stride.saturating_mul(zones.len().saturating_sub(1) as u64).saturating_add(last)
    }

    /// One zone of so many bytes, on one node, with everything else at its default.
    pub fn one_zone(bytes: u64, backing: Backing) -> Self {
        Self {
            zones: vec![ZoneConfig { bytes, backing, node: 0 }],
            percpu_orders: PercpuOrders::default(),
            populate: true,
            cpu_nodes: Vec::new(),
            cpus: Cpus::real(),
            form: PercpuForm::default(),
        }
    }

    /// Four chunks for one CPU, of memory that comes at first touch: for models and small tests.
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
