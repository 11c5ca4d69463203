//! The file format of Octavo's traces.
//!
//! ```text
//! +----------+---------+------------+--------+--------+ ... +------+----------+
//! | OCTAVOTR | version | page bytes | record | record |     |  0   | accesses |
//! +----------+---------+------------+--------+--------+ ... +------+----------+
//!   8 bytes    u16       u32                                  u8     u64
//!
//! record:  head [task] [further]
//!
//! head - 1:   63 ....... 3     2         1       0
//!           +-------------+---------+--------+-------+
//!           | page, delta | further |  task  | write |
//!           +-------------+---------+--------+-------+
//! ```
//!
//! Numbers of fixed size are little endian. The numbers of a record are LEB128: seven bits a byte, the lowest
//! first, and the high bit set if more follow. A record stands for one access, or for several to the same
//! page:
//!
//! - `write`: the accesses write. Otherwise, they read.
//! - `task`: the task differs from the one in the record before (0 before the first), and its number follows.
//! - `further`: the number of further accesses of the same kind to the same page follows. Otherwise, there is
//!   one access.
//! - `page, delta`: the distance to the page that the same task accessed last (0 before its first), zigzag
//!   coded: 0, -1, 1, -2, 2 are 0, 1, 2, 3, 4.
//!
//! So an access to the page after the last one takes one byte. A head of 0 and the number of all accesses end
//! the trace. A file without that end is incomplete.

use std::io::{self, Write};

/// The first bytes of a trace.
pub(crate) const MAGIC: &[u8; 8] = b"OCTAVOTR";

/// The version that is written, and the latest that is read.
pub const VERSION: u16 = 1;

/// The most pages: as many as 64-bit addresses have.
pub const MOST_PAGES: u64 = 1 << 52;

/// The bits of a head, less one.
pub(crate) const WRITE: u64 = 1;
pub(crate) const TASK: u64 = 1 << 1;
pub(crate) const FURTHER: u64 = 1 << 2;
pub(crate) const DELTA_SHIFT: u32 = 3;

/// The head that ends a trace.
pub(crate) const END: u64 = 0;

/// The most bytes of a number.
pub(crate) const MOST_NUMBER_BYTES: u32 = 10;

/// Writes a number as LEB128.
pub(crate) fn write_number(to: &mut impl Write, mut number: u64) -> io::Result<()> {
    let mut bytes = [0; MOST_NUMBER_BYTES as usize];
    let mut length = 0;
    loop {
        let more = number > 0x7f;
        bytes[length] = (number & 0x7f) as u8 | u8::from(more) << 7;
        length += 1;
        number >>= 7;
        if !more {
            return to.write_all(&bytes[..length]);
        }
    }
}

/// The zigzag code of the distance between two pages.
pub(crate) fn distance(from: u64, to: u64) -> u64 {
    let delta = to as i64 - from as i64;
    (delta << 1 ^ delta >> 63) as u64
}

/// Returns the page at a distance, or `None` if there is no such page.
pub(crate) fn page_at(from: u64, distance: u64) -> Option<u64> {
    let delta = (distance >> 1) as i64 ^ -((distance & 1) as i64);
    from.checked_add_signed(delta).filter(|page| *page < MOST_PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_at_small_distances() {
        let distances = [5, 4, 6, 3, 7].map(|to| distance(5, to));
        assert_eq!(distances, [0, 1, 2, 3, 4]);
        let (first, last) = (0, MOST_PAGES - 1);
        for (from, to) in [(first, last), (last, first), (last, last), (7, 3)] {
            assert_eq!(page_at(from, distance(from, to)), Some(to));
            assert!(distance(from, to) < 1 << (63 - DELTA_SHIFT), "a head has room for it");
        }
        assert_eq!(page_at(0, 1), None);
        assert_eq!(page_at(last, 2), None);
    }

    #[test]
    fn a_number_takes_a_byte_for_each_seven_bits() {
        for (number, length) in [(0, 1), (127, 1), (128, 2), (1 << 21, 4), (u64::MAX, 10)] {
            let mut bytes = Vec::new();
            write_number(&mut bytes, number).unwrap();
            assert_eq!(bytes.len(), length, "{number}");
        }
    }
}
