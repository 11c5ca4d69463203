//! Segments: runs of 64 MiB of a file, by which a page of a file gets a number of 31 bits.
//!
//! ```text
//!  StoredPage's index:   30 ......... 14   13 ........ 0
//!                       +---------------+---------------+
//!                       |    segment    |  page in it   |
//!                       +---------------+---------------+
//! ```
//!
//! A file takes a segment when the first page in these 64 MiB is asked for, and gives it back when it is
//! closed. So neighbours in a file are neighbours by their numbers, and one transfer can move them. Each
//! segment has a [`Mapping`] of its own, with one lock: threads that work in different parts of a file do not
//! meet.
//!
//! The table of segments only grows, and never moves. So a late reader of a page's number finds a segment. It
//! asks the mapping, under its lock, whether the page is still there.

use crate::budget::Budget;
use crate::error::{Error, ErrorKind, Result};
use crate::mapping::{Mapping, Tags};
use crate::page_cache::Inode;
use crate::sizes::{SEGMENT_BITS, SEGMENT_ROOMS, SEGMENTS_PER_ROOM};
use crate::sync::{Arc, Mutex, OnceLock, RwLock, Shared};
use crate::units::{StoreId, StoredPage};

/// Pages of a segment.
pub(crate) const SEGMENT_PAGES: u64 = 1 << SEGMENT_BITS;

/// A run of a file.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(super) mapping: Mapping,
    owner: RwLock<Option<SegmentOwner>>,
}

/// Whose run it is.
#[derive(Clone, Debug)]
pub(crate) struct SegmentOwner {
    pub(crate) inode: Shared<Inode>,
    /// The page of the file at which the segment begins.
    pub(crate) first: u64,
}

impl Segment {
    /// Returns whose segment it is, or `None` if it is free.
    pub(crate) fn owner(&self) -> Option<SegmentOwner> {
        self.owner.read().clone()
    }

    /// Returns whether the segment is of this file. A thread that found its number by the file asks again
    /// under the segment's lock, under which the owner changes.
    pub(super) fn is_of(&self, inode: &Inode) -> bool {
        self.owner.read().as_ref().is_some_and(|owner| std::ptr::eq(&*owner.inode, inode))
    }

    /// Returns the place in its file of a page of the segment.
    pub(super) fn place_of(&self, index: u64) -> Option<u64> {
        self.owner.read().as_ref().map(|owner| owner.first + index)
    }
}

/// Segments beside each other in the table.
type Room = Box<[OnceLock<Segment>]>;

/// All segments of a manager.
#[derive(Debug)]
pub(super) struct Segments {
    rooms: Box<[OnceLock<Room>]>,
    free: Mutex<Free>,
    budget: Arc<Budget>,
}

#[derive(Debug, Default)]
struct Free {
    given_back: Vec<u32>,
    /// Segments that were ever used.
    reached: u32,
}

impl Segments {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        let rooms = (0..SEGMENT_ROOMS).map(|_| OnceLock::new()).collect();
        Self { rooms, free: Mutex::new(Free::default()), budget }
    }

    /// Returns a segment by its number, if it was ever used.
    #[inline]
    fn get(&self, segment: u32) -> Option<&Segment> {
        let room = self.rooms.get(segment as usize / SEGMENTS_PER_ROOM)?.get()?;
        room[segment as usize % SEGMENTS_PER_ROOM].get()
    }

    /// Returns the segment of a page, and the page's index in it.
    #[inline]
    pub(super) fn of(&self, page: StoredPage) -> (&Segment, u64) {
        let index = page.index();
        let segment = self.get(index >> SEGMENT_BITS).expect("a page has a number by its segment");
        (segment, u64::from(index) % SEGMENT_PAGES)
    }

    /// Takes a segment for a run of a file, and returns its number.
    ///
    /// # Errors
    /// `System` if all are in use, or the kernel has no addresses for the tree.
    pub(super) fn take(&self, owner: SegmentOwner) -> Result<u32> {
        let mut free = self.free.lock();
        let number = match free.given_back.last() {
            Some(&number) => number,
            None if (free.reached as usize) < SEGMENT_ROOMS * SEGMENTS_PER_ROOM - 1 => free.reached,
            None => {
                let message = "files of one manager have at most 8 TiB of pages in use; close some files";
                return Err(Error::new(ErrorKind::System, message));
            }
        };
        let room = self.rooms[number as usize / SEGMENTS_PER_ROOM]
            .get_or_init(|| (0..SEGMENTS_PER_ROOM).map(|_| OnceLock::new()).collect());
        let cell = &room[number as usize % SEGMENTS_PER_ROOM];
        if cell.get().is_none() {
            let mapping =
                Mapping::new(SEGMENT_PAGES as usize, SEGMENT_PAGES, Tags::Kept, Arc::clone(&self.budget))
                    .map_err(|error| Error::system("cannot reserve the tree of a file's pages", &error))?;
            cell.get_or_init(|| Segment { mapping, owner: RwLock::new(None) });
        }
        if let Some(segment) = cell.get() {
            let _lock = segment.mapping.lock();
            *segment.owner.write() = Some(owner);
        }
        if free.given_back.pop().is_none() {
            free.reached += 1;
        }
        Ok(number)
    }

    /// Gives back a segment whose pages have no frames. Returns how many of them had left a shadow.
    pub(super) fn give_back(&self, number: u32) -> u64 {
        let Some(segment) = self.get(number) else { return 0 };
        let mut changes = segment.mapping.lock();
        let shadows = changes.remove_all();
        *segment.owner.write() = None;
        drop(changes);
        self.free.lock().given_back.push(number);
        shadows
    }
}

/// The number of a page of a segment.
#[inline]
pub(super) fn page_of(segment: u32, index: u64) -> StoredPage {
    StoredPage::new(StoreId::File, segment << SEGMENT_BITS | index as u32)
}
