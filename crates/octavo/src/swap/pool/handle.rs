//! The name of a stored object: 61 bits.
//!
//! ```text
//!  60 ...... 56 55 ....... 48 47 ............ 20 19 ........ 0
//! +------------+-------------+------------------+------------+
//! |   class    |   object    |       span       | generation |
//! +------------+-------------+------------------+------------+
//! ```
//!
//! The generation distinguishes an object from earlier objects at the same place. The object's header
//! contains the generation too.

use std::fmt;

const GENERATION_BITS: u32 = 20;
const SPAN_BITS: u32 = 28;
const OBJECT_BITS: u32 = 8;
const CLASS_BITS: u32 = 5;

/// The place of a page in the pool.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Handle(u64);

impl Handle {
    /// The bits of a handle.
    pub(crate) const BITS: u32 = GENERATION_BITS + SPAN_BITS + OBJECT_BITS + CLASS_BITS;

    pub(super) fn new(class: usize, span: u32, object: u32, generation: u32) -> Self {
        debug_assert!(class < 1 << CLASS_BITS && object < 1 << OBJECT_BITS, "{class} {object}");
        debug_assert!(span < 1 << SPAN_BITS && generation <= Self::GENERATIONS, "{span} {generation}");
        let place = (class as u64) << OBJECT_BITS | u64::from(object);
        Self((place << SPAN_BITS | u64::from(span)) << GENERATION_BITS | u64::from(generation))
    }

    /// The last generation.
    pub(super) const GENERATIONS: u32 = (1 << GENERATION_BITS) - 1;
    /// The most spans that can exist: 8 TiB.
    pub(super) const SPANS: usize = 1 << SPAN_BITS;

    /// The handle, encoded in the low [`Handle::BITS`] of a word.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The handle that [`Handle::bits`] encoded.
    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        debug_assert!(bits >> Self::BITS == 0, "61 bits");
        Self(bits)
    }

    pub(super) fn generation(self) -> u32 {
        self.0 as u32 & Self::GENERATIONS
    }

    pub(super) fn span(self) -> u32 {
        (self.0 >> GENERATION_BITS) as u32 & ((1 << SPAN_BITS) - 1)
    }

    pub(super) fn object(self) -> u32 {
        (self.0 >> (GENERATION_BITS + SPAN_BITS)) as u32 & ((1 << OBJECT_BITS) - 1)
    }

    pub(super) fn class(self) -> usize {
        (self.0 >> (GENERATION_BITS + SPAN_BITS + OBJECT_BITS)) as usize & ((1 << CLASS_BITS) - 1)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (class, span, object) = (self.class(), self.span(), self.object());
        write!(f, "object {object} of span {span:#x}, class {class}, generation {}", self.generation())
    }
}

const _: () = assert!(Handle::BITS == 61);
