//! Watermarks: how much memory must be left before someone should make room.
//!
//! What is left counts free frames and what the budget still lets the zones bring online. Marks follow the budget as
//! Linux's follow a machine's memory: `min` is the root of sixteen times the kibibytes, in kibibytes, and `low`
//! and `high` lie a quarter and a half above it. `frame` never calls up: falling below `low` calls a hook that a
//! layer above installed, which wakes whoever makes room.

use crate::units::PAGE_BYTES;

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
        Self { min_frames, low_frames: min_frames + min_frames / 4, high_frames: min_frames + min_frames / 2 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_rise_with_the_root_of_memory() {
        let (small, large) = (Watermarks::for_bytes(16 << 20), Watermarks::for_bytes(16 << 24));
        assert_eq!(small, Watermarks { min_frames: 128, low_frames: 160, high_frames: 192 });
        assert_eq!(large.min_frames, 4 * small.min_frames);
    }
}
