//! Watermarks: how much memory must be left before a thread should make room.
//!
//! The memory that is left counts free frames, and the frames that the budget still lets the zones bring
//! online. `min` follows the budget as Linux's follows a machine's memory: it is the root of sixteen times
//! the kibibytes, in kibibytes. From `low` to `high` it is a 64th of the budget, up to 64 MiB. That distance
//! covers the pages used up while a thread wakes, and the pages in flight while a device writes. Both grow
//! with the rate at which pages come, and not with the root of anything. At 500,000 pages a second 16 MiB
//! last for 8 ms. `low` lies half as much above `min`, so a thread that is woken there is early by as much.
//!
//! `frame` never calls up. When memory falls below `low`, the allocator calls a hook that a layer above
//! installed. The hook wakes a thread that makes room.

use crate::units::{CHUNK_FRAMES, PAGE_BYTES};

/// The distance from `low` to `high` is one in so many bytes of memory.
const DISTANCE_SHARE: u64 = 64;
/// The distance is at most this.
const MOST_DISTANCE_BYTES: u64 = 64 << 20;

/// With so many free frames at home, a chunk can be emptied and given back, and pages still find frames there. The background
/// thread leaves as many more as its watermark asks for.
pub(crate) const IDLE_AT_HOME: u64 = 2 * CHUNK_FRAMES as u64;

/// The marks, in frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this mark only reclaim itself should allocate.
    pub min_frames: u64,
    /// Below this mark, background reclaim should start.
    pub low_frames: u64,
    /// At this mark, background reclaim may stop.
    pub high_frames: u64,
}

impl Watermarks {
    /// Returns the marks for so many bytes of memory.
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
