//! Figures of an area: its transfers, their bytes and their errors.
//!
//! Cost: two additions for each transfer, on a cache line that the area's transfers share. A transfer takes a
//! thousand times as long.

use crate::io::Direction;
use crate::latency::Quantiles;
use crate::swap::health::Condition;
use crate::sync::{AtomicU64, Ordering};
use crate::units::PAGE_SHIFT;

/// Whether a swap area works at the moment, in [`AreaStats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum AreaState {
    /// The transfers of the area succeed.
    Well,
    /// The last write failed. Pages go to other areas instead, if there are any.
    Failing,
    /// The area has not answered in time, and gets nothing new until it answers.
    Silent,
}

impl From<Condition> for AreaState {
    fn from(state: Condition) -> Self {
        match state {
            Condition::Well => Self::Well,
            Condition::Failing => Self::Failing,
            Condition::Silent => Self::Silent,
        }
    }
}

/// The use of a swap area since the manager was built, at about one moment, from
/// [`Manager::areas`](crate::Manager::areas).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct AreaStats {
    /// The name that the device gives itself: the path of a file, for instance.
    pub name: String,
    /// Whether the area works at the moment.
    pub state: AreaState,
    /// The bytes of pages that the area can hold.
    pub capacity_bytes: u64,
    /// The bytes of the slots in use, including slots that could not be written. The pages of used slots may
    /// be in the compressed pool or in memory.
    pub used_bytes: u64,
    /// Transfers that succeeded, in each direction, and their bytes.
    pub reads: u64,
    /// See `reads`.
    pub read_bytes: u64,
    /// See `reads`.
    pub writes: u64,
    /// See `reads`.
    pub written_bytes: u64,
    /// Transfers that failed, in each direction.
    pub read_errors: u64,
    /// See `read_errors`.
    pub write_errors: u64,
    /// How long faults waited for the area's pages ([`Latency::Device`](crate::Latency::Device)).
    pub waits: Quantiles,
}

/// Transfers in one direction.
#[derive(Debug, Default)]
struct OneWay {
    transfers: AtomicU64,
    pages: AtomicU64,
    errors: AtomicU64,
}

/// Transfers of an area that have ended. Relaxed: the counts are only figures, and publish nothing.
#[derive(Debug, Default)]
pub(super) struct AreaTraffic {
    reads: OneWay,
    writes: OneWay,
}

impl AreaTraffic {
    /// Notes the end of a transfer of `pages` pages.
    pub(super) fn note_end(&self, direction: Direction, pages: u32, is_well: bool) {
        let way = match direction {
            Direction::Read => &self.reads,
            Direction::Write => &self.writes,
        };
        if is_well {
            way.transfers.fetch_add(1, Ordering::Relaxed);
            way.pages.fetch_add(u64::from(pages), Ordering::Relaxed);
        } else {
            way.errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of writes that failed.
    pub(super) fn failed_writes(&self) -> u64 {
        self.writes.errors.load(Ordering::Relaxed)
    }

    /// Returns the figures. The caller passes the figures that are not counted here.
    pub(super) fn stats(
        &self,
        name: String,
        state: Condition,
        capacity_pages: u32,
        used_pages: u32,
    ) -> AreaStats {
        let bytes = |pages: u64| pages << PAGE_SHIFT;
        let get = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        AreaStats {
            name,
            state: state.into(),
            capacity_bytes: bytes(capacity_pages.into()),
            used_bytes: bytes(used_pages.into()),
            reads: get(&self.reads.transfers),
            read_bytes: bytes(get(&self.reads.pages)),
            writes: get(&self.writes.transfers),
            written_bytes: bytes(get(&self.writes.pages)),
            read_errors: get(&self.reads.errors),
            write_errors: get(&self.writes.errors),
            waits: Quantiles::default(),
        }
    }
}
