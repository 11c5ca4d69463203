//! The layout of the mover's address range in the program.
//!
//! ```text
//! base ───────────────────── head: code (1 page), mailbox (4 pages), rest unused
//! base + 2 MiB ───────────── staging 1
//! staging 1 + size + 2 MiB ─ staging 2 (the size is rounded up to 2 MiB)
//! ```
//!
//! Both staging ranges begin at a multiple of 2 MiB, so that a huge page can move as a whole. The gap between
//! them keeps the kernel from joining their mappings: a move must stay inside one mapping on either side.

pub const PAGE: u64 = 4096;
pub const MAILBOX_BYTES: u64 = 4 * PAGE;
pub const CODE_BYTES: u64 = PAGE;
const HUGE: u64 = 2 << 20;
/// The largest size of a staging range.
pub const MOST_STAGING_BYTES: u64 = 1 << 30;

#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The whole mapping.
    pub start: u64,
    pub len: u64,
    pub code: u64,
    pub mailbox: u64,
    pub staging_1: u64,
    pub staging_2: u64,
    pub staging_bytes: u64,
}

impl Layout {
    /// Returns the bytes to map for a staging size.
    pub fn bytes_for(staging_bytes: u64) -> u64 {
        // The four huge pages are for the head, the gap, the room at the end, and the most that alignment may
        // cost.
        2 * staging_bytes.next_multiple_of(HUGE) + 4 * HUGE
    }

    /// Lays the parts out in a mapping that begins at `start`.
    pub fn at(start: u64, staging_bytes: u64) -> Self {
        let base = start.next_multiple_of(HUGE);
        let staging_1 = base + HUGE;
        Self {
            start,
            len: Self::bytes_for(staging_bytes),
            code: base,
            mailbox: base + CODE_BYTES,
            staging_1,
            staging_2: staging_1 + staging_bytes.next_multiple_of(HUGE) + HUGE,
            staging_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_inside_and_apart_whatever_the_alignment() {
        for start in [0x7000_0000_0000, 0x7000_0000_1000, 0x7000_001f_f000] {
            for staging_bytes in [PAGE, 2 << 20, (2 << 20) + PAGE, 64 << 20] {
                let layout = Layout::at(start, staging_bytes);
                assert!(layout.code >= start && layout.mailbox + MAILBOX_BYTES <= layout.staging_1);
                assert!(layout.staging_1 + staging_bytes < layout.staging_2);
                assert!(layout.staging_2 + staging_bytes < start + layout.len);
                assert!(layout.staging_1.is_multiple_of(HUGE) && layout.staging_2.is_multiple_of(HUGE));
            }
        }
    }
}

/// Pages of the program to move out together. They lie in one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingRun {
    /// The address of the first page.
    pub address: u64,
    /// The length in bytes.
    pub len: u64,
}
