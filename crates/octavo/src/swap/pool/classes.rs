//! Size classes: how a span of 32 KiB is cut into objects of one size.
//!
//! ```text
//!  span, 32 KiB: n objects of one class          object
//! +--------+--------+--------+--------+--+     +------+----------------+-----+----------+--------------+
//! | object | object |  free  | object |  |     | slot | gen. 20|len 12 | crc | area crc | packed bytes |
//! +--------+--------+--------+--------+--+     +------+----------------+-----+----------+--------------+
//!                                                0      4                8     12         16         size
//! ```
//!
//! The first checksum (`crc`) covers the packed bytes, the slot and `area crc`. If the object is a copy,
//! `area crc` is the checksum of the page on its area.
//!
//! Classes are so close that an object of 304 bytes or more wastes less than 11 % of its part of a span, and
//! about 5 % on average.

use crate::frame::Order;
use crate::sizes;
use crate::units::PAGE_BYTES;

/// A span: 8 consecutive frames.
pub(super) const SPAN_ORDER: Order = Order(sizes::SPAN_ORDER);
pub(super) const SPAN_BYTES: usize = 32 << 10;
/// The header in front of each object's packed bytes.
pub(super) const HEADER_BYTES: usize = 16;
/// The most bytes of a packed page that the pool keeps: three quarters of a page.
pub(super) const MAX_PACKED_BYTES: usize = PAGE_BYTES / 4 * 3;
const GRAIN: usize = 16;

/// The number of objects in a span of each class. The class with the largest objects comes first.
const COUNTS: [u16; 32] = [
    10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 26, 28, 31, 34, 37, 40, 44, 48, 52, 56, 62, 68, 75, 81,
    89, 97, 107, 146, 186, 256,
];
pub(super) const CLASSES: usize = COUNTS.len();

/// The bytes of an object of a class, with its header.
pub(super) const fn size(class: usize) -> usize {
    SPAN_BYTES / COUNTS[class] as usize / GRAIN * GRAIN
}

/// The number of objects in a span of a class.
pub(super) const fn objects(class: usize) -> u32 {
    COUNTS[class] as u32
}

/// The class for `packed_bytes` packed bytes.
pub(super) fn class_for(packed_bytes: usize) -> usize {
    usize::from(BY_GRAINS[(packed_bytes + HEADER_BYTES).div_ceil(GRAIN)])
}

const BY_GRAINS: [u8; size(0) / GRAIN + 1] = by_grains();

const fn by_grains() -> [u8; size(0) / GRAIN + 1] {
    let mut classes = [0; size(0) / GRAIN + 1];
    let mut grains = 0;
    while grains < classes.len() {
        let mut class = 0;
        while class + 1 < CLASSES && size(class + 1) >= grains * GRAIN {
            class += 1;
        }
        classes[grains] = class as u8;
        grains += 1;
    }
    classes
}

const _: () = assert!(size(0) >= MAX_PACKED_BYTES + HEADER_BYTES);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_that_holds_it() {
        for len in 0..=MAX_PACKED_BYTES {
            let class = class_for(len);
            assert!(size(class) >= len + HEADER_BYTES, "{len} bytes in class {class}");
            assert!(
                class + 1 == CLASSES || size(class + 1) < len + HEADER_BYTES,
                "{len} bytes fit a smaller one"
            );
        }
    }

    #[test]
    fn an_object_wastes_little() {
        let mut wasted = 0.0;
        let lengths = 304 - HEADER_BYTES..=MAX_PACKED_BYTES;
        for len in lengths.clone() {
            let class = class_for(len);
            let share = SPAN_BYTES as f64 / f64::from(objects(class));
            let waste = 1.0 - (len + HEADER_BYTES) as f64 / share;
            assert!(waste < 0.11, "{len} bytes waste {waste:.3}");
            wasted += waste;
        }
        assert!(wasted / (lengths.count() as f64) < 0.055, "on average {wasted}");
    }
}
