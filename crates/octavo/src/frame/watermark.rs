//! Watermarks: how much memory must be left before someone should make room.
//!
//! What is left counts free frames and what the budget still lets the zones bring online. `min` follows the budget as
//! Linux's follows a machine's memory: it is the root of sixteen times the kibibytes, in kibibytes. From `low` to `high`
//! it is a 64th of the budget, up to 64 MiB: what is used up while a thread wakes, and in flight while a device writes, is
//! in proportion to how fast pages come, and not to the root of anything. At 500,000 pages a second 16 MiB
//! last for 8 ms. `low` lies half as much above `min`, so whoever is woken there is early by as much.
//!
//! `frame` never calls up: falling below `low` calls a hook that a layer above installed, which wakes whoever makes
//! room.

use crate::units::PAGE_BYTES;

/// From `low` to `high`: one in so many bytes of memory.
const DISTANCE_SHARE: u64 = 64;
/// And at the most.
const MOST_DISTANCE_BYTES: u64 = 64 << 20;

/// The marks, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this only reclaim itself should allocate.
    pub min_frames: u64,
    /// Below this, background reclaim should start.
    pub low_frames: u64,
    /// At this, background reclaim may stop.
    pub high_frames: u64,
}

impl Watermarks {
    /// The marks for so many bytes of memory.
    pub(crate) fn for_bytes(bytes: u64) -> Self {
        let min_kib = ((bytes >> 10) * 16).isqrt();
        let min_frames = ((min_kib << 10) / PAGE_BYTES as u64).max(4);
        let distance_frames = (bytes / DISTANCE_SHARE).min(MOST_DISTANCE_BYTES) / PAGE_BYTES as u64;
        let low_frames = min_frames + distance_frames / 2;
        Self { min_frames, low_frames, high_frames: low_frames + distance_frames }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_rise_with_memory() {
        let (small, large) = (Watermarks::for_bytes(16 << 20), Watermarks::for_bytes(16 << 24));
        assert_eq!(small, Watermarks { min_frames: 128, low_frames: 160, high_frames: 224 });
        assert_eq!(large.min_frames, 4 * small.min_frames, "the root");
        assert_eq!(large.high_frames - large.low_frames, 1024, "a 64th");
        let huge = Watermarks::for_bytes(1 << 40);
        assert_eq!(huge.high_frames - huge.low_frames, 16384, "64 MiB at the most");
    }
}
