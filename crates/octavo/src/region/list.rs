//! The sorted list of a space's regions, read without a lock.
//!
//! Writers hold the space's layout lock, as a [`RegionWriter`] proves. Readers search an array with a
//! sequence count: a reader reads the sequence, and searches. If the sequence was odd or has changed since,
//! the reader starts over. A look-up costs two loads of the sequence and a binary search, usually over one or
//! two cache lines. The array grows in chunks that never move. So a reader always reads valid memory, and the
//! sequence only has to tell whether the words belong together.

use super::{AccessPattern, FilePart, Region, RegionOptions};
use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::sizes::FIRST_REGIONS as FIRST_CHUNK;
use crate::sync::{
    Arc, AtomicU64, AtomicUsize, OnceLock, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard, fence,
    spin_hint, thread,
};
use crate::table::{MAX_PAGES, Protection};
use crate::units::{CHUNK_FRAMES, FileId, PageNumber};

const CHUNKS: usize = 17;
/// Chunks up to this size may exceed the budget, since their caller cannot make room first. Reclaim makes up
/// for it.
const MOST_OVER_BYTES: u64 = 16 << 10;
/// The first page that `find_free` returns. So address 0 stays invalid unless a caller asks for it.
const FIRST_PAGE: u64 = CHUNK_FRAMES as u64;

const READ: u64 = 1;
const WRITE: u64 = 2;
const HUGE: u64 = 4;
const SEQUENTIAL: u64 = 8;
const RANDOM: u64 = 16;
const PLAIN: u64 = 32;
const GUARDED: u64 = 64;
const FILE: u64 = 128;
const PRIVATE: u64 = 256;
const READ_ONLY_FILE: u64 = 512;
/// The number of the file is in the upper half.
const FILE_SHIFT: u32 = 32;

/// One region, in atomic words. The sequence makes readers discard torn reads.
#[derive(Debug, Default)]
struct Slot {
    start: AtomicU64,
    end: AtomicU64,
    attributes: AtomicU64,
    /// The origin of the file's part, if the region shows one.
    origin: AtomicU64,
}

impl Slot {
    fn load(&self) -> Region {
        let attributes = self.attributes.load(Ordering::Relaxed);
        Region {
            start: PageNumber(self.start.load(Ordering::Relaxed)),
            end: PageNumber(self.end.load(Ordering::Relaxed)),
            options: RegionOptions {
                protection: Protection { read: attributes & READ != 0, write: attributes & WRITE != 0 },
                huge: attributes & HUGE != 0,
                pattern: match attributes & (SEQUENTIAL | RANDOM) {
                    SEQUENTIAL => AccessPattern::Sequential,
                    RANDOM => AccessPattern::Random,
                    _ => AccessPattern::Normal,
                },
                compress: attributes & PLAIN == 0,
                guarded: attributes & GUARDED != 0,
                file: (attributes & FILE != 0).then(|| FilePart {
                    file: FileId((attributes >> FILE_SHIFT) as u32),
                    origin: self.origin.load(Ordering::Relaxed),
                    is_private: attributes & PRIVATE != 0,
                    is_read_only: attributes & READ_ONLY_FILE != 0,
                }),
            },
        }
    }

    fn store(&self, region: Region) {
        let RegionOptions { protection, huge, pattern, compress, guarded, file } = region.options;
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let attributes = bit(protection.read, READ)
            | bit(protection.write, WRITE)
            | bit(huge, HUGE)
            | bit(pattern == AccessPattern::Sequential, SEQUENTIAL)
            | bit(pattern == AccessPattern::Random, RANDOM)
            | bit(!compress, PLAIN)
            | bit(guarded, GUARDED)
            | file.map_or(0, |part| {
                FILE | bit(part.is_private, PRIVATE)
                    | bit(part.is_read_only, READ_ONLY_FILE)
                    | u64::from(part.file.0) << FILE_SHIFT
            });
        self.start.store(region.start.0, Ordering::Relaxed);
        self.end.store(region.end.0, Ordering::Relaxed);
        self.attributes.store(attributes, Ordering::Relaxed);
        self.origin.store(file.map_or(0, |part| part.origin), Ordering::Relaxed);
    }
}

/// The regions of one space.
#[derive(Debug)]
pub(crate) struct RegionList {
    /// Odd while a writer works.
    sequence: AtomicU64,
    len: AtomicUsize,
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    /// The space's layout lock. One map, unmap or protect at a time holds it, from its change of the list to
    /// the end of its work on the table.
    layout: RwLock<()>,
    /// The budget, charged with the bytes of each chunk.
    budget: Arc<Budget>,
}

/// The right to change the list, and the layout lock itself.
#[derive(Debug)]
pub(crate) struct RegionWriter<'a> {
    list: &'a RegionList,
    _layout: RwLockWriteGuard<'a, ()>,
}

impl RegionList {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        Self {
            budget,
            sequence: AtomicU64::new(0),
            len: AtomicUsize::new(0),
            chunks: std::array::from_fn(|_| OnceLock::new()),
            layout: RwLock::new(()),
        }
    }

    /// Takes the layout lock.
    pub(crate) fn writer(&self) -> RegionWriter<'_> {
        RegionWriter { list: self, _layout: self.layout.write() }
    }

    /// Takes the layout lock shared, for the base version of pinning (Linux before 8174c430e445, *x86:
    /// lockless get_user_pages_fast()*).
    pub(crate) fn read_lock(&self) -> RwLockReadGuard<'_, ()> {
        self.layout.read()
    }

    #[inline]
    fn slot(&self, index: usize) -> Option<&Slot> {
        // Chunk k holds FIRST_CHUNK << k slots, so chunk boundaries are at FIRST_CHUNK * (2^k - 1).
        let shifted = index + FIRST_CHUNK;
        let chunk = (shifted.ilog2() - FIRST_CHUNK.ilog2()) as usize;
        self.chunks.get(chunk)?.get()?.get(shifted - (FIRST_CHUNK << chunk))
    }

    /// Finds the region that holds `page`, without a lock and without a read-modify-write.
    #[inline]
    pub(crate) fn find(&self, page: PageNumber) -> Option<Region> {
        self.find_at_or_after(page).filter(|region| region.contains(page))
    }

    /// Finds the first region that ends behind `page`, as [`RegionList::find`] does.
    #[inline]
    pub(crate) fn find_at_or_after(&self, page: PageNumber) -> Option<Region> {
        let mut spins = 0;
        loop {
            let before = self.sequence.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let found = self.first_ending_after(page);
                // Acquire: the words above are read before the sequence is read again.
                fence(Ordering::Acquire);
                if self.sequence.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            spins += 1;
            // A writer makes only a few stores, unless it was preempted.
            if spins % 64 == 0 { thread::yield_now() } else { spin_hint() }
        }
    }

    fn partition_point(&self, len: usize, before: impl Fn(Region) -> bool) -> usize {
        let (mut low, mut high) = (0, len);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.slot(middle).is_some_and(|slot| before(slot.load())) {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    fn first_ending_after(&self, page: PageNumber) -> Option<Region> {
        let len = self.len.load(Ordering::Relaxed);
        let index = self.partition_point(len, |region| region.end <= page);
        if index < len { self.slot(index).map(Slot::load) } else { None }
    }
}

impl Drop for RegionList {
    fn drop(&mut self) {
        let made = self.chunks.iter().enumerate().filter(|(_, cell)| cell.get().is_some());
        self.budget.uncharge(made.map(|(chunk, _)| chunk_bytes(chunk)).sum());
    }
}

fn chunk_bytes(chunk: usize) -> u64 {
    ((FIRST_CHUNK << chunk) * size_of::<Slot>()) as u64
}

impl RegionWriter<'_> {
    fn all(&self) -> impl Iterator<Item = Region> {
        let len = self.list.len.load(Ordering::Relaxed);
        (0..len).filter_map(|index| self.list.slot(index).map(Slot::load))
    }

    fn get(&self, index: usize) -> Region {
        self.list.slot(index).expect("an index below the length").load()
    }

    /// Returns every region that overlaps the range, in order.
    pub(crate) fn overlapping(&self, start: PageNumber, end: PageNumber) -> Vec<Region> {
        let len = self.list.len.load(Ordering::Relaxed);
        let first = self.list.partition_point(len, |region| region.end <= start);
        (first..len).map(|index| self.get(index)).take_while(|region| region.start < end).collect()
    }

    /// Replaces the regions `from..to` by `new`.
    fn splice(&self, from: usize, to: usize, new: &[Region]) -> Result<()> {
        let len = self.list.len.load(Ordering::Relaxed);
        let tail: Vec<Region> = (to..len).map(|index| self.get(index)).collect();
        let new_len = from + new.len() + tail.len();
        self.reserve(new_len)?;
        let sequence = self.list.sequence.load(Ordering::Relaxed);
        self.list.sequence.store(sequence + 1, Ordering::Relaxed);
        // Release: a reader that sees any word stored below also sees the odd sequence, or a later one.
        fence(Ordering::Release);
        // If the length does not change, the regions behind stay where they are.
        let moved: &[Region] = if new_len == len { &[] } else { &tail };
        for (index, region) in (from..).zip(new.iter().chain(moved)) {
            self.list.slot(index).expect("reserved above").store(*region);
        }
        self.list.len.store(new_len, Ordering::Relaxed);
        self.list.sequence.store(sequence + 2, Ordering::Release);
        Ok(())
    }

    fn reserve(&self, len: usize) -> Result<()> {
        for (chunk, cell) in self.list.chunks.iter().enumerate() {
            if FIRST_CHUNK * ((1 << chunk) - 1) >= len {
                return Ok(());
            }
            if cell.get().is_none() {
                let bytes = chunk_bytes(chunk);
                if bytes <= MOST_OVER_BYTES {
                    self.list.budget.charge_over(bytes);
                } else if !self.list.budget.charge(bytes) {
                    return Err(Error::new(
                        ErrorKind::OutOfMemory,
                        "the budget has no room for more regions; map larger ranges, unmap some, or raise the budget",
                    ));
                }
                // The layout lock keeps other threads from making the chunk.
                cell.get_or_init(|| (0..FIRST_CHUNK << chunk).map(|_| Slot::default()).collect());
            }
        }
        if FIRST_CHUNK * ((1 << CHUNKS) - 1) >= len {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::OutOfMemory,
            "a space holds at most two million regions; map larger ranges, or use several spaces",
        ))
    }

    /// Adds a region, and merges it with neighbours that have the same options.
    pub(crate) fn insert(&self, region: Region) -> Result<()> {
        let len = self.list.len.load(Ordering::Relaxed);
        let mut from = self.list.partition_point(len, |other| other.end <= region.start);
        if from < len && self.get(from).start < region.end {
            return Err(Error::new(
                ErrorKind::AlreadyMapped,
                format!(
                    "addresses {:#x} to {:#x} overlap a mapped region; unmap it first, or let map() choose a place",
                    region.start.address(),
                    region.end.address()
                ),
            ));
        }
        let (mut to, mut merged) = (from, region);
        if from > 0 && self.get(from - 1).end == region.start && self.get(from - 1).options == region.options
        {
            from -= 1;
            merged.start = self.get(from).start;
        }
        if to < len && self.get(to).start == region.end && self.get(to).options == region.options {
            merged.end = self.get(to).end;
            to += 1;
        }
        self.splice(from, to, &[merged])
    }

    /// Removes the range from every region that it overlaps. Returns the removed parts.
    pub(crate) fn remove(&self, start: PageNumber, end: PageNumber) -> Result<Vec<Region>> {
        self.replace(start, end, |_| None)
    }

    /// Changes the options of the range in every region that it overlaps. `change` returns the new options,
    /// or `None` to remove the part. Returns the parts as they were.
    pub(crate) fn replace(
        &self,
        start: PageNumber,
        end: PageNumber,
        change: impl Fn(RegionOptions) -> Option<RegionOptions>,
    ) -> Result<Vec<Region>> {
        let len = self.list.len.load(Ordering::Relaxed);
        let from = self.list.partition_point(len, |region| region.end <= start);
        let old = self.overlapping(start, end);
        let mut new = Vec::with_capacity(old.len() + 2);
        for region in &old {
            if region.start < start {
                new.push(Region { end: start, ..*region });
            }
            let inside = Region { start: region.start.max(start), end: region.end.min(end), ..*region };
            new.extend(change(region.options).map(|options| Region { options, ..inside }));
            if region.end > end {
                new.push(Region { start: end, ..*region });
            }
        }
        self.splice(from, from + old.len(), &new)?;
        Ok(old
            .into_iter()
            .map(|region| Region { start: region.start.max(start), end: region.end.min(end), ..region })
            .collect())
    }

    /// Puts back regions that `remove` or `replace` returned, if the caller has done nothing with them.
    pub(crate) fn restore(&self, old: &[Region]) {
        for region in old {
            let restored = self.remove(region.start, region.end).and_then(|_| self.insert(*region));
            restored.expect("a list that held the regions has room for them");
        }
    }

    /// Finds the lowest free range of `pages` pages that starts at a multiple of `align` pages.
    pub(crate) fn find_free(&self, pages: u64, align: u64) -> Option<PageNumber> {
        let mut start = FIRST_PAGE.next_multiple_of(align);
        for region in self.all() {
            if region.start.0 >= start && region.start.0 - start >= pages {
                break;
            }
            start = start.max(region.end.0.next_multiple_of(align));
        }
        (start.checked_add(pages)? <= MAX_PAGES).then_some(PageNumber(start))
    }

    /// Returns the number of mapped pages in all regions.
    pub(crate) fn mapped_pages(&self) -> u64 {
        self.all().map(|region| region.end.0 - region.start.0).sum()
    }

    /// Checks that regions are in order and do not overlap. Takes linear time.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn validate(&self) {
        let all: Vec<_> = self.all().collect();
        assert!(all.iter().all(|region| region.start < region.end), "a region is not empty");
        assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "regions are in order and apart");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(start: u64, end: u64, write: bool) -> Region {
        let protection = if write { Protection::READ_WRITE } else { Protection::READ };
        Region {
            start: PageNumber(start),
            end: PageNumber(end),
            options: RegionOptions::new().protection(protection),
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u64, bool),
        Remove(u64, u64),
        Protect(u64, u64, bool),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let range = (0u64..200, 1u64..40);
        prop::collection::vec(
            prop_oneof![
                (range.clone(), any::<bool>()).prop_map(|((at, len), write)| Op::Insert(at, at + len, write)),
                range.clone().prop_map(|(at, len)| Op::Remove(at, at + len)),
                (range, any::<bool>()).prop_map(|((at, len), write)| Op::Protect(at, at + len, write)),
            ],
            1..60,
        )
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_from_page_to_permission(ops in ops()) {
            let list = RegionList::new(Arc::new(Budget::new(u64::MAX)));
            let mut model = vec![None; 256];
            for op in ops {
                let writer = list.writer();
                match op {
                    Op::Insert(start, end, write) => {
                        let free = model[start as usize..end as usize].iter().all(Option::is_none);
                        let inserted = writer.insert(region(start, end, write));
                        prop_assert_eq!(inserted.is_ok(), free);
                        if free {
                            model[start as usize..end as usize].fill(Some(write));
                        }
                    }
                    Op::Remove(start, end) => {
                        let removed = writer.remove(PageNumber(start), PageNumber(end)).unwrap();
                        let pages: u64 = removed.iter().map(|region| region.end.0 - region.start.0).sum();
                        let expected = model[start as usize..end as usize].iter().flatten().count() as u64;
                        prop_assert_eq!(pages, expected);
                        model[start as usize..end as usize].fill(None);
                    }
                    Op::Protect(start, end, write) => {
                        let to = region(0, 1, write).options.protection;
                        writer
                            .replace(PageNumber(start), PageNumber(end), |options| Some(options.protection(to)))
                            .unwrap();
                        model[start as usize..end as usize].iter_mut().flatten().for_each(|mode| *mode = write);
                    }
                }
                writer.validate();
                drop(writer);
                for (page, expected) in model.iter().enumerate() {
                    let found = list.find(PageNumber(page as u64)).map(|region| region.options.protection.write);
                    prop_assert_eq!(found, *expected);
                }
            }
        }
    }

    #[test]
    fn a_free_range_is_the_lowest_that_fits_and_is_aligned() {
        let list = RegionList::new(Arc::new(Budget::new(u64::MAX)));
        let writer = list.writer();
        let first = writer.find_free(10, 1).unwrap();
        writer.insert(region(first.0, first.0 + 10, true)).unwrap();
        assert_eq!(writer.find_free(5, 1), Some(first.plus(10)));
        assert_eq!(writer.find_free(512, 512), Some(PageNumber(first.0 + 512)));
        assert_eq!(writer.find_free(MAX_PAGES, 1), None);
    }
}

#[cfg(all(test, loom))]
mod loom;
