//! The addresses that a manager reserves. They depend on the largest size of its budget, never on the
//! machine.
//!
//! Frames, their words, table nodes, swap maps and spaces lie in reservations that never move. Each is as
//! large as the budget could ever fill it, and the kernel supplies memory as it is touched. So a small
//! manager takes few addresses on any machine, and works under a limit of addresses (`RLIMIT_AS`).

use octavo_platform::Reservation;

use crate::error::{Error, Result};
use crate::frame::latch::LATCH_BYTES;
use crate::frame::{Backing, FrameConfig, FrameWords, MOST_FRAMES, ZoneConfig};
use crate::rmap;
use crate::sizes::MAX_SPACES;
use crate::sync::Cpus;
use crate::units::{CHUNK_BYTES, PAGE_BYTES, bytes_for_people};

/// The largest budget whose frames can be numbered: 2 MiB less than 8 TiB.
pub(super) const MOST_BUDGET_BYTES: u64 = MOST_FRAMES * PAGE_BYTES as u64;

/// Reclaim may take so many table nodes over the budget, before it gives a chunk back.
const NODES_OVER_BUDGET: u64 = 1024;

/// How many budgets of addresses pages that are away get: shared ones are charged in each space that
/// shows them. Seven, and one for pages at home, make a power of two.
const AWAY_TIMES: u64 = 7;

/// Addresses left for memory that is not reserved here: heap, stacks of threads, rings.
const SLACK_BYTES: u64 = 64 << 20;

/// The sizes of a manager's reservations.
#[derive(Debug)]
pub(super) struct Reserve {
    pub(super) zones: Vec<ZoneConfig>,
    /// For pages that are away: [`AWAY_TIMES`] the budget, as far as frames can be numbered.
    pub(super) away_bytes: u64,
    pub(super) table_nodes: usize,
    pub(super) spaces: usize,
    /// The most slots of each area. The budget could not hold the maps of more.
    pub(super) slots: u32,
    most_bytes: u64,
}

impl Reserve {
    /// Returns the sizes for a budget that may grow to `most_bytes`, with `slot_bytes` kept for each swap
    /// slot.
    pub(super) fn for_budget(most_bytes: u64, backing: Backing, slot_bytes: u64) -> Self {
        let pages = most_bytes / PAGE_BYTES as u64;
        let zones = zones(most_bytes, backing);
        let numbers = MOST_FRAMES.saturating_sub(FrameConfig::span_frames(&zones));
        Self {
            zones,
            away_bytes: most_bytes.saturating_mul(AWAY_TIMES).min(numbers * PAGE_BYTES as u64)
                / CHUNK_BYTES as u64
                * CHUNK_BYTES as u64,
            table_nodes: (pages + pages / 32 + NODES_OVER_BUDGET) as usize,
            // A space that shows a page has at least one table node.
            spaces: (pages as usize).min(MAX_SPACES),
            slots: (most_bytes / slot_bytes).try_into().unwrap_or(u32::MAX),
            most_bytes,
        }
    }

    /// Asks the kernel once whether there are addresses for all of it, and for later allocations.
    ///
    /// # Errors
    /// `System` if there are not. That is better now than later, when a failed allocation would end the
    /// process.
    pub(super) fn probe(&self, swap_slots: u64, slot_bytes: u64, cpus: Cpus) -> Result<()> {
        let frames = FrameConfig::span_frames(&self.zones);
        // For each: the root of its table, its share of pins, and its figures.
        let spaces = self.spaces * (8 + 8 + 32 * cpus.count());
        let away = self.away_bytes / PAGE_BYTES as u64;
        // For each frame: its bytes, its word in the reverse map, and its latch. For each page that is
        // away: the place that it keeps while clean. For both, rounded up to a power of two: the frame
        // words.
        let bytes = frames * (PAGE_BYTES + rmap::BYTES_OF_FRAME + LATCH_BYTES) as u64
            + away * 4
            + (frames + away).next_power_of_two() * size_of::<FrameWords>() as u64
            + (self.table_nodes * (PAGE_BYTES + 4) + spaces) as u64
            + swap_slots * slot_bytes
            + SLACK_BYTES;
        let what = || {
            format!(
                "cannot reserve the {} of addresses that a budget of up to {} and {} of swap take",
                bytes_for_people(bytes >> 20 << 20),
                bytes_for_people(self.most_bytes),
                bytes_for_people(swap_slots * PAGE_BYTES as u64)
            )
        };
        Reservation::new(bytes as usize, PAGE_BYTES).map(drop).map_err(|error| Error::system(&what(), &error))
    }
}

/// Returns two zones, each of which holds all of the budget, since any order may use either zone. Returns
/// one zone if the frames of two cannot be numbered.
fn zones(most_bytes: u64, backing: Backing) -> Vec<ZoneConfig> {
    let zone = |backing| ZoneConfig { bytes: most_bytes, backing, node: 0 };
    let two = vec![zone(backing), zone(Backing::HugePages)];
    if FrameConfig::span_frames(&two) <= MOST_FRAMES { two } else { vec![zone(backing)] }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const TIB: u64 = 1 << 40;

    fn reserve(most_bytes: u64) -> Reserve {
        Reserve::for_budget(most_bytes, Backing::HugePages, 16)
    }

    #[test]
    fn every_budget_that_can_be_numbered_has_zones_that_hold_it() {
        let budgets = [64 << 20, 3 * GIB, TIB, 3 * TIB / 2, 3 * TIB, 4 * TIB, 6 * TIB, MOST_BUDGET_BYTES];
        for most_bytes in budgets {
            let reserve = reserve(most_bytes);
            assert!(FrameConfig::span_frames(&reserve.zones) <= MOST_FRAMES, "{most_bytes}");
            assert!(reserve.zones.iter().all(|zone| zone.bytes == most_bytes), "{most_bytes}");
            assert_eq!(reserve.zones.len(), if most_bytes < 4 * TIB { 2 } else { 1 }, "{most_bytes}");
            assert!(reserve.table_nodes as u64 > most_bytes / PAGE_BYTES as u64, "tables may take all of it");
        }
    }

    #[test]
    fn what_is_reserved_follows_the_budget() {
        let (small, large) = (reserve(64 << 20), reserve(64 * GIB));
        assert_eq!((small.slots, small.spaces), (4 << 20, 16384));
        assert_eq!((large.slots, large.spaces), (u32::MAX, MAX_SPACES));
        assert!(small.table_nodes * PAGE_BYTES < 80 << 20);
    }

    #[test]
    fn addresses_that_there_are_not_are_an_error_that_says_how_many() {
        // More than 128 TiB.
        let error = reserve(64 << 20).probe(1 << 45, 16, Cpus::real()).unwrap_err();
        assert!(
            error.to_string().contains("64 MiB") && error.to_string().contains("of addresses"),
            "{error}"
        );
        reserve(64 << 20).probe(1 << 20, 16, Cpus::real()).unwrap();
    }
}
