//! CRC-32C of a page of the arena, computed in place.
//!
//! The instruction takes 8 bytes and has a latency of three cycles. So the loop reads the page in three
//! lanes:
//!
//! ```text
//!  0              1360            2720            4080  4096
//! +---------------+---------------+---------------+----+
//! |    lane 0     |    lane 1     |    lane 2     |tail|
//! +---------------+---------------+---------------+----+
//! ```
//!
//! A table moves a lane's sum past the next lane: a lane of zero bytes changes a sum by a linear function,
//! which the table holds.

use std::arch::x86_64::_mm_crc32_u64;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{ArenaBytes, PAGE_BYTES};

const LANE_WORDS: usize = PAGE_BYTES / 8 / 3;
/// The reflected polynomial of CRC-32C.
const POLYNOMIAL: u32 = 0x82f6_3b78;

impl ArenaBytes {
    /// Computes the CRC-32C of the page at `offset` without copying the page first. Returns `None` if the
    /// processor lacks the instruction. If the page changes meanwhile, the sum may match no version of it.
    pub fn page_crc32c(&self, offset: usize) -> Option<u32> {
        assert!(offset.is_multiple_of(8) && offset <= self.len() - PAGE_BYTES, "a page inside the arena");
        let start = self.pointer(offset).cast::<u64>();
        // SAFETY: the page is inside the arena and aligned for words (asserted; the base is 2 MiB aligned).
        // Only atomics, assembly and devices access arena bytes. The processor has the instruction (checked).
        std::arch::is_x86_feature_detected!("sse4.2").then(|| unsafe { three_lanes(start) })
    }
}

/// The page at `start` must be mapped and aligned for words, and only atomics or assembly may access it.
#[target_feature(enable = "sse4.2")]
unsafe fn three_lanes(start: *mut u64) -> u32 {
    // SAFETY: `at` is below the number of words of a page in all uses below.
    let word = |at: usize| unsafe { AtomicU64::from_ptr(start.add(at)) }.load(Ordering::Relaxed);
    let mut lanes = [u64::from(!0_u32), 0, 0];
    for at in 0..LANE_WORDS {
        lanes[0] = _mm_crc32_u64(lanes[0], word(at));
        lanes[1] = _mm_crc32_u64(lanes[1], word(LANE_WORDS + at));
        lanes[2] = _mm_crc32_u64(lanes[2], word(2 * LANE_WORDS + at));
    }
    let two = past_a_lane(lanes[0] as u32) ^ lanes[1] as u32;
    let mut crc = u64::from(past_a_lane(two) ^ lanes[2] as u32);
    for at in 3 * LANE_WORDS..PAGE_BYTES / 8 {
        crc = _mm_crc32_u64(crc, word(at));
    }
    !(crc as u32)
}

fn past_a_lane(crc: u32) -> u32 {
    let bytes = crc.to_le_bytes();
    (0..4).fold(0, |sum, at| sum ^ PAST_A_LANE[at][usize::from(bytes[at])])
}

/// The contribution of each byte of a sum after a lane of zeros.
static PAST_A_LANE: [[u32; 256]; 4] = past_lane_tables();

const fn past_lane_tables() -> [[u32; 256]; 4] {
    let past = past_zero_bits(LANE_WORDS * 64);
    let mut tables = [[0; 256]; 4];
    let mut at = 0;
    while at < 4 * 256 {
        tables[at / 256][at % 256] = apply(&past, ((at % 256) as u32) << (at / 256 * 8));
        at += 1;
    }
    tables
}

/// A linear function of 32 bits, given by its value for each single bit.
type Linear = [u32; 32];

const fn apply(function: &Linear, bits: u32) -> u32 {
    let (mut sum, mut at) = (0, 0);
    while at < 32 {
        if bits >> at & 1 != 0 {
            sum ^= function[at];
        }
        at += 1;
    }
    sum
}

/// Composes two functions: `one` first, then `other`.
const fn chain(one: &Linear, other: &Linear) -> Linear {
    let (mut both, mut at) = ([0; 32], 0);
    while at < 32 {
        both[at] = apply(other, one[at]);
        at += 1;
    }
    both
}

const fn past_zero_bits(mut n: usize) -> Linear {
    let (mut power, mut past, mut at) = ([0; 32], [0; 32], 0);
    while at < 32 {
        power[at] = if at == 0 { POLYNOMIAL } else { 1 << (at - 1) };
        past[at] = 1 << at;
        at += 1;
    }
    while n > 0 {
        if n & 1 != 0 {
            past = chain(&past, &power);
        }
        power = chain(&power, &power);
        n >>= 1;
    }
    past
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C by its definition, bit by bit.
    fn plain(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 != 0 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
    }

    #[test]
    fn it_is_the_sum_that_everybody_knows() {
        assert_eq!(plain(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
        let arena = ArenaBytes::new(2 << 20).unwrap();
        if !std::arch::is_x86_feature_detected!("sse4.2") {
            assert_eq!(arena.page_crc32c(0), None);
            return;
        }
        assert_eq!(arena.page_crc32c(4096), Some(plain(&[0; PAGE_BYTES])));
        let mut bytes: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * at % 253) as u8).collect();
        for at in [0, 7, 1359, 1360, 2719, 2720, 4079, 4080, 4095] {
            bytes[at] ^= 0x41;
            arena.copy_in(8192, &bytes);
            assert_eq!(arena.page_crc32c(8192), Some(plain(&bytes)), "byte {at}");
        }
    }

    #[test]
    #[should_panic(expected = "inside the arena")]
    fn a_page_that_ends_outside_is_refused() {
        let arena = ArenaBytes::new(2 << 20).unwrap();
        let _ = arena.page_crc32c((2 << 20) - 8);
    }
}
