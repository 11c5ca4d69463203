//! The types of indices, and the sizes of pages, blocks and chunks. Every index is a type, and every number
//! has a unit.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

use crate::sizes;

/// The bytes of a frame and of a page: 4 KiB.
pub const PAGE_BYTES: usize = octavo_platform::PAGE_BYTES;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = PAGE_BYTES.trailing_zeros();
/// The frames, or pages, in 2 MiB: 512.
pub const CHUNK_FRAMES: u32 = 1 << Order::MAX.0;
/// The unit in which memory comes from the kernel and goes back, and the most bytes that a guard lends: 2
/// MiB.
pub const CHUNK_BYTES: usize = (CHUNK_FRAMES as usize) << PAGE_SHIFT;

/// Names 4 KiB of a manager's memory, for [`Manager::alloc_block`](crate::Manager::alloc_block) and
/// [`crate::frame`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

impl FrameId {
    /// Returns the frame's index in per-frame arrays.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the byte offset of the frame's home in the arena.
    #[inline]
    pub(crate) const fn home_offset(self) -> usize {
        self.index() << PAGE_SHIFT
    }

    /// Returns the frame that is `frames` frames after this one.
    #[inline]
    pub const fn plus(self, frames: u32) -> Self {
        Self(self.0 + frames)
    }
}

impl fmt::Debug for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame {:#x}", self.0)
    }
}

/// Names 2 MiB of a frame allocator's memory: the number of the first frame / 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// Returns the chunk that a frame lies in.
    pub const fn of(frame: FrameId) -> Self {
        Self(frame.0 / CHUNK_FRAMES)
    }

    /// Returns the chunk's first frame.
    pub const fn first(self) -> FrameId {
        FrameId(self.0 * CHUNK_FRAMES)
    }
}

/// The size of a block for [`crate::frame`], as a power of two of frames: 0 is 4 KiB, 9 is 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Order(pub(crate) u8);

impl Order {
    /// One frame.
    pub const ZERO: Order = Order(0);
    /// 512 frames: 2 MiB. (The model checker has blocks of two frames, and nodes of two entries.)
    pub const MAX: Order = Order(sizes::MAX_ORDER);
    /// The number of orders.
    pub const COUNT: usize = Self::MAX.0 as usize + 1;

    /// Makes an order from a number from 0 to 9. Returns `None` for a greater one.
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 { Some(Self(order)) } else { None }
    }

    /// Returns all orders, the smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Order> {
        (0..=Self::MAX.0).map(Order)
    }

    /// Returns the order as an array index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the frames of a block.
    #[inline]
    pub const fn frames(self) -> u32 {
        1 << self.0
    }

    /// Returns the bytes of a block.
    #[inline]
    pub const fn bytes(self) -> usize {
        PAGE_BYTES << self.0
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

/// Names a page of a space, for [`crate::translation`]: its address / 4096.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageNumber(pub(crate) u64);

impl PageNumber {
    /// Returns the page that holds the byte at `address`.
    #[inline]
    pub const fn containing(address: u64) -> Self {
        Self(address >> PAGE_SHIFT)
    }

    /// Returns the address of the page's first byte.
    #[inline]
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// Returns the page that is `pages` pages after this one.
    #[inline]
    pub const fn plus(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }

    /// Returns the first page of the aligned 2 MiB that hold this page.
    #[inline]
    pub(crate) const fn huge_start(self) -> Self {
        Self(self.0 & !(CHUNK_FRAMES as u64 - 1))
    }
}

impl fmt::Debug for PageNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.0)
    }
}

/// The number of a place for one page on a swap area.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapSlot(pub(crate) u32);

impl SwapSlot {
    /// Returns the page that swap keeps in this slot.
    #[inline]
    pub(crate) fn stored(self) -> StoredPage {
        StoredPage::new(StoreId::Swap, self.0)
    }

    /// Returns the slot of a page that swap keeps, or `None` for a page of another page store.
    #[inline]
    pub(crate) fn of(page: StoredPage) -> Option<Self> {
        (page.store() == StoreId::Swap).then(|| Self(page.index()))
    }

    /// Returns the slot of a page that swap keeps. Panics for a page of another page store.
    #[inline]
    pub(crate) fn named(page: StoredPage) -> Self {
        Self::of(page).expect("a page of swap")
    }
}

impl fmt::Debug for SwapSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {:#x}", self.0)
    }
}

/// Names a file of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId(pub(crate) u32);

/// Names a page store. It keeps those pages of a manager that have no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum StoreId {
    /// Swap: the index is a slot.
    Swap = 0,
    /// The page cache: the index is a page of a segment of a file.
    File = 1,
}

/// Names a page by the page store that keeps it, and by its index there.
///
/// ```text
///  31    30 ......... 0
/// +-----+--------------+
/// |store|  index + 1   |     never 0, so that a frame's word has a value for "kept nowhere"
/// +-----+--------------+
/// ```
///
/// This leaves room for two page stores, each with 2^31 - 1 pages (8 TiB). The pages of one page store have
/// the order of their indexes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct StoredPage(NonZeroU32);

impl StoredPage {
    const INDEX_BITS: u32 = 31;
    /// The most pages that a page store can have. All indexes are below this number.
    pub(crate) const MOST: u32 = (1 << Self::INDEX_BITS) - 1;

    /// # Panics
    /// For an index that is not below [`StoredPage::MOST`].
    #[inline]
    pub(crate) fn new(store: StoreId, index: u32) -> Self {
        assert!(index < Self::MOST, "page {index} is more than a store can have");
        let bits = (store as u32) << Self::INDEX_BITS | (index + 1);
        Self(NonZeroU32::new(bits).expect("one more than an index"))
    }

    /// Returns the page with these [`StoredPage::bits`], or `None` for 0.
    #[inline]
    pub(crate) fn from_bits(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Self)
    }

    #[inline]
    pub(crate) fn bits(self) -> u32 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn store(self) -> StoreId {
        match self.bits() >> Self::INDEX_BITS {
            0 => StoreId::Swap,
            _ => StoreId::File,
        }
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        (self.bits() & Self::MOST) - 1
    }

    /// Returns whether `next` is the next page of the same page store.
    #[inline]
    pub(crate) fn is_followed_by(self, next: Self) -> bool {
        // The number after the last page of a page store names no page. And segments with neighbouring
        // numbers lie anywhere, in any files.
        let begins_segment =
            next.store() == StoreId::File && next.index().is_multiple_of(1 << sizes::SEGMENT_BITS);
        self.bits().wrapping_add(1) == next.bits() && !begins_segment
    }

    /// Returns the page of the same page store that is `pages` pages after this one.
    #[inline]
    pub(crate) fn plus(self, pages: u32) -> Self {
        Self::new(self.store(), self.index() + pages)
    }
}

impl fmt::Debug for StoredPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x} of {:?}", self.index(), self.store())
    }
}

/// Writes bytes as people write them: `16 MiB`, `1.5 GiB`, `512 bytes`.
#[must_use]
pub fn bytes_for_people(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let value = bytes as f64 / (1u64 << shift) as f64;
            return if value.fract() == 0.0 {
                format!("{value} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
    }
    format!("{bytes} bytes")
}

/// Returns the pages that a byte range touches.
#[inline]
pub(crate) fn pages_of(address: u64, len: u64) -> Range<u64> {
    if len == 0 {
        return address >> PAGE_SHIFT..address >> PAGE_SHIFT;
    }
    address >> PAGE_SHIFT..((address + len - 1) >> PAGE_SHIFT) + 1
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_exactly_the_pages_they_touch() {
        assert_eq!(pages_of(4095, 2), 0..2);
        assert_eq!(pages_of(4096, 4096), 1..2);
        assert_eq!(pages_of(5, 0), 0..0);
    }

    #[test]
    fn a_stored_page_is_its_store_and_its_index() {
        for store in [StoreId::Swap, StoreId::File] {
            for index in [0, 1, 511, 1 << 30, StoredPage::MOST - 1] {
                let page = StoredPage::new(store, index);
                assert_eq!((page.store(), page.index()), (store, index));
                assert_eq!(StoredPage::from_bits(page.bits()), Some(page));
                assert_eq!(SwapSlot::of(page), (store == StoreId::Swap).then_some(SwapSlot(index)));
            }
        }
        assert_eq!(SwapSlot(7).stored().plus(2), SwapSlot(9).stored());
        assert!(SwapSlot(7).stored().is_followed_by(SwapSlot(8).stored()));
        let (last, first) = (StoredPage::MOST - 1, StoredPage::new(StoreId::File, 0));
        assert!(!SwapSlot(last).stored().is_followed_by(first), "stores have no neighbours");
        assert_eq!(StoredPage::from_bits(0), None, "a frame's word of zeros names no page");
        let bytes = u64::from(StoredPage::MOST) * PAGE_BYTES as u64;
        assert_eq!(bytes, (8 << 40) - PAGE_BYTES as u64, "8 TiB, but for the page that is none");
    }

    #[test]
    #[should_panic(expected = "more than a store can have")]
    fn no_index_runs_into_the_store() {
        let _ = StoredPage::new(StoreId::Swap, StoredPage::MOST);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes_for_people(16 << 20), "16 MiB");
        assert_eq!(bytes_for_people(3 << 29), "1.5 GiB");
        assert_eq!(bytes_for_people(2 << 40), "2 TiB");
        assert_eq!(bytes_for_people(5), "5 bytes");
        let sizes = [1_024_000, 64 << 20, 3 << 19, 3 << 29].map(bytes_for_people);
        assert_eq!(sizes, ["1000 KiB", "64 MiB", "1.5 MiB", "1.5 GiB"]);
    }
}
