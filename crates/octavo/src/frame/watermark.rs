//! Watermarks: how much memory must be left before a thread should make room.
//!
//! The memory that is left consists of the free frames, and of the frames that the budget still allows the
//! zones to bring online. `min` follows the budget as Linux's follows a machine's memory: in KiB, it is the
//! square root of sixteen times the budget. The distance from `low` to `high` is a 64th of the budget, up to
//! 64 MiB. That distance covers the pages used up while a thread wakes, and the pages in flight while a
//! device writes. Both grow linearly with the rate at which pages arrive. At 500,000 pages a second, 16 MiB
//! last for 8 ms. `low` lies half that distance above `min`. So from the wake-up at `low`, a thread has half
//! of that time.
//!
//! Free memory holds no pages, so keeping it free has a price. While accesses rarely have to make room
//! themselves, the marks are lowered step by step, down to an eighth. They are raised as soon as accesses
//! make room again ([`crate::reclaim`]).
//!
//! `frame` never calls up. When memory falls below `low`, the allocator calls a hook that a layer above
//! installed. The hook wakes a thread that makes room.

use crate::units::{CHUNK_FRAMES, PAGE_BYTES};

/// The distance from `low` to `high` is memory divided by this.
const DISTANCE_SHARE: u64 = 64;
/// The largest distance.
const MOST_DISTANCE_BYTES: u64 = 64 << 20;
/// Marks and distances are not lowered below this.
const LEAST_FRAMES: u64 = 128;
/// With this many free frames at home, pages can still move there while a chunk is emptied and given back.
const IDLE_AT_HOME: u64 = 2 * CHUNK_FRAMES as u64;
/// The most steps by which marks are lowered.
pub(crate) const MOST_LOWERED: u32 = 3;

/// How many frames must be left before a thread should make room, from
/// [`FrameAllocator::watermarks`](crate::frame::FrameAllocator::watermarks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this mark only reclaim itself should allocate.
    pub min_frames: u64,
    /// Below this mark, background reclaim should start.
    pub low_frames: u64,
    /// At this mark, background reclaim may stop.
    pub high_frames: u64,
    /// Free frames at home that are kept while pages are away, in addition to `high_frames`.
    pub idle_frames: u64,
}

impl Watermarks {
    /// Returns the marks for `bytes` of memory.
    pub(crate) fn for_bytes(bytes: u64) -> Self {
        Self::lowered(bytes, 0)
    }

    /// Returns the marks for `bytes` of memory, lowered by `steps`. Each step halves them.
    pub(crate) fn lowered(bytes: u64, steps: u32) -> Self {
        let lower = |frames: u64| (frames >> steps).max(frames.min(LEAST_FRAMES));
        let min_kib = ((bytes >> 10) * 16).isqrt();
        let min_frames = lower(((min_kib << 10) / PAGE_BYTES as u64).max(4));
        let distance_bytes = (bytes / DISTANCE_SHARE).min(MOST_DISTANCE_BYTES);
        let distance_frames = lower(distance_bytes / PAGE_BYTES as u64);
        let low_frames = min_frames + distance_frames / 2;
        let high_frames = low_frames + distance_frames;
        Self { min_frames, low_frames, high_frames, idle_frames: lower(IDLE_AT_HOME) }
    }

    /// Returns the most free frames that are kept at home while pages are away.
    pub(crate) fn kept_at_home(&self) -> u64 {
        self.high_frames + self.idle_frames
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_rise_with_memory() {
        let (small, large) = (Watermarks::for_bytes(16 << 20), Watermarks::for_bytes(16 << 24));
        let expected = Watermarks { min_frames: 128, low_frames: 160, high_frames: 224, idle_frames: 1024 };
        assert_eq!(small, expected);
        assert_eq!(large.min_frames, 4 * small.min_frames, "the root");
        assert_eq!(large.high_frames - large.low_frames, 1024, "a 64th");
        let huge = Watermarks::for_bytes(1 << 40);
        assert_eq!(huge.high_frames - huge.low_frames, 16384, "64 MiB at the most");
    }
    #[test]
    fn lowered_marks_hold_less_memory_but_some() {
        let bytes = 1 << 30;
        let (full, lowered) = (Watermarks::for_bytes(bytes), Watermarks::lowered(bytes, MOST_LOWERED));
        assert_eq!(lowered.high_frames, full.high_frames / 8);
        assert_eq!(lowered.kept_at_home(), full.kept_at_home() / 8);
        let tiny = Watermarks::for_bytes(1 << 20);
        assert_eq!(Watermarks { idle_frames: 1024, ..Watermarks::lowered(1 << 20, MOST_LOWERED) }, tiny);
    }
}
