//! Objects in spans: the place of each object, and the free places.
//!
//! Key types: [`Spans`], [`SpanWords`](super::span::SpanWords).
//!
//! A span belongs to one class, from the moment it gets memory until its last object is freed. The class's
//! lock guards the span's words and the bytes of its objects. The lock is held at most while one object is
//! copied (or one span, if a span moves). A thread checks under the lock of the handle's class whether a
//! handle is still valid: a span joins and leaves a class only under the class's lock.
//!
//! Locking: one class's lock. Under it, the lock of `blocks`.

use crossbeam_utils::CachePadded;

use super::blocks::Blocks;
use super::classes::{CLASSES, HEADER_BYTES, SPAN_BYTES, class_for, objects, size};
use super::handle::Handle;
use super::span::{DRAINING, LISTED, NO_CLASS, NO_SPAN, SpanWords, get, set};
use crate::frame::FrameAllocator;
use crate::sync::{Mutex, MutexGuard, Ordering, WordArray, fence};
use crate::units::{FrameId, Order, SwapSlot};

/// The data of a class, except its spans.
#[derive(Debug)]
struct SpanClass {
    /// The first span with room. It links to the other spans with room.
    first: u32,
    generation: u32,
    pages: u64,
    packed_bytes: u64,
}

/// The contents of an object's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) slot: SwapSlot,
    pub(super) generation: u32,
    pub(super) len: usize,
    /// The checksum of the packed bytes.
    pub(super) crc: u32,
    /// The checksum of the page on its area, if the object is a copy.
    pub(super) area_crc: u32,
}

impl Header {
    fn load(frames: &FrameAllocator, at: usize) -> Self {
        let word: u64 = frames.bytes().load(at);
        let tag = (word >> 32) as u32;
        Self {
            slot: SwapSlot(word as u32),
            generation: tag >> 12,
            len: (tag & 0xfff) as usize,
            crc: frames.bytes().load(at + 8),
            area_crc: frames.bytes().load(at + 12),
        }
    }

    fn store(self, frames: &FrameAllocator, at: usize) {
        let tag = self.generation << 12 | self.len as u32;
        frames.bytes().store(at, u64::from(tag) << 32 | u64::from(self.slot.0));
        frames.bytes().store(at + 8, self.crc);
        frames.bytes().store(at + 12, self.area_crc);
    }
}

/// The checksums in an object's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checksums {
    pub(super) packed: u32,
    pub(super) area: u32,
}

/// The outcome of an attempt to place an object.
pub(super) enum Placed {
    At(Handle),
    /// No span has room, and there is no memory for a new span.
    NoRoom,
}

/// All spans and classes.
#[derive(Debug)]
pub(super) struct Spans {
    words: WordArray<SpanWords>,
    classes: Box<[CachePadded<Mutex<SpanClass>>]>,
    pub(super) blocks: Blocks,
}

impl Spans {
    pub(super) fn new(most_spans: usize) -> std::io::Result<Self> {
        let class = || {
            CachePadded::new(Mutex::new(SpanClass {
                first: NO_SPAN,
                generation: 0,
                pages: 0,
                packed_bytes: 0,
            }))
        };
        Ok(Self {
            words: WordArray::new(most_spans)?,
            classes: (0..CLASSES).map(|_| class()).collect(),
            blocks: Blocks::new(most_spans),
        })
    }

    pub(super) fn span(&self, span: u32) -> &SpanWords {
        &self.words[span as usize]
    }

    /// Returns whether the span had objects and lay in this block a moment ago.
    pub(super) fn is_in(&self, span: u32, block: usize) -> bool {
        let words = self.span(span);
        words.class().is_some() && get(&words.block) as usize == block
    }

    pub(super) fn words(&self) -> &WordArray<SpanWords> {
        &self.words
    }

    fn offset(&self, class: usize, span: u32, object: u32) -> usize {
        self.span(span).place().home_offset() + object as usize * size(class)
    }

    /// Puts an object into a span with room. If `may_take` is true, a span without a class may join the
    /// object's class.
    pub(super) fn place(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        packed: &[u8],
        crcs: Checksums,
        clock: u64,
        may_take: bool,
    ) -> Placed {
        let class = class_for(packed.len());
        let mut held = self.classes[class].lock();
        if held.first == NO_SPAN {
            let Some(span) = may_take.then(|| self.blocks.take(&self.words)).flatten() else {
                return Placed::NoRoom;
            };
            let words = self.span(span);
            set(&words.class, class as u32 + 1);
            words.mark(LISTED | DRAINING, false);
            self.list(&mut held, span);
        }
        let span = held.first;
        let words = self.span(span);
        let object = words.first_free().expect("a listed span has room");
        debug_assert!(object < objects(class), "a listed span has room");
        words.flip(object);
        let used = words.used() + 1;
        set(&words.used, used);
        // The age is a running mean: an old span becomes younger when its holes are filled again.
        let age = words.age() as i64;
        words.age.store((age + (clock as i64 - age) / i64::from(used)) as u64, Ordering::Relaxed);
        if used == objects(class) {
            self.unlist(&mut held, span);
        }
        held.pages += 1;
        held.packed_bytes += packed.len() as u64;
        held.generation = held.generation % Handle::GENERATIONS + 1;
        let generation = held.generation;
        let at = self.offset(class, span, object);
        let Checksums { packed: crc, area: area_crc } = crcs;
        Header { slot, generation, len: packed.len(), crc, area_crc }.store(frames, at);
        frames.bytes().copy_in(at + HEADER_BYTES, packed);
        Placed::At(Handle::new(class, span, object, generation))
    }

    /// Calls `look` on a copy of an object, with no lock held. Returns `None` if the slot does not have the
    /// handle, or no longer has it.
    pub(super) fn look<R>(
        &self,
        frames: &FrameAllocator,
        slot: SwapSlot,
        handle: Handle,
        look: impl FnOnce(&[u8], Header) -> R,
    ) -> Option<R> {
        let class = handle.class();
        let held = self.classes[class].lock();
        let (at, header) = self.header(frames, slot, handle)?;
        // The checksum detects a damaged length.
        let len = header.len.min(size(class) - HEADER_BYTES);
        Some(frames.bytes().with_copy(at + HEADER_BYTES, len, |packed| {
            drop(held);
            look(packed, header)
        }))
    }

    /// The checksum of an object's page on its area, or `None` if the slot does not have the handle, or no
    /// longer has it.
    pub(super) fn area_crc(&self, frames: &FrameAllocator, slot: SwapSlot, handle: Handle) -> Option<u32> {
        let _held = self.classes[handle.class()].lock();
        self.header(frames, slot, handle).map(|(_, header)| header.area_crc)
    }

    /// Called under the lock of the handle's class. Returns the place of an object and its header, if the
    /// object belongs to the slot.
    fn header(&self, frames: &FrameAllocator, slot: SwapSlot, handle: Handle) -> Option<(usize, Header)> {
        if !self.is_good(handle) {
            return None;
        }
        let at = self.offset(handle.class(), handle.span(), handle.object());
        let header = Header::load(frames, at);
        (header.slot == slot && header.generation == handle.generation()).then_some((at, header))
    }

    fn is_good(&self, handle: Handle) -> bool {
        let words = self.words.get(handle.span() as usize);
        words.is_some_and(|words| {
            words.class() == Some(handle.class())
                && handle.object() < objects(handle.class())
                && words.is_taken(handle.object())
        })
    }

    /// Frees an object. A span without objects goes back to its block. A block without used spans goes to the
    /// caller, which frees it.
    pub(super) fn free(&self, frames: &FrameAllocator, handle: Handle) -> Option<(FrameId, Order)> {
        let (class, span, object) = (handle.class(), handle.span(), handle.object());
        let mut held = self.classes[class].lock();
        assert!(self.is_good(handle), "freed twice, or never stored: {handle:?}");
        let words = self.span(span);
        let len = Header::load(frames, self.offset(class, span, object)).len;
        held.pages -= 1;
        // A damaged length must not cause a panic here.
        held.packed_bytes = held.packed_bytes.saturating_sub(len as u64);
        words.flip(object);
        let used = words.used() - 1;
        set(&words.used, used);
        if used == 0 {
            if words.is(LISTED) {
                self.unlist(&mut held, span);
            }
            set(&words.class, NO_CLASS);
            words.age.store(0, Ordering::Relaxed);
            return self.blocks.put(&self.words, span);
        }
        if !words.is(LISTED) && !words.is(DRAINING) {
            self.list(&mut held, span);
        }
        None
    }

    /// The number of pages, and their packed bytes.
    pub(super) fn contents(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), class: &CachePadded<Mutex<SpanClass>>| {
            let class = class.lock();
            (sum.0 + class.pages, sum.1 + class.packed_bytes)
        };
        self.classes.iter().fold((0, 0), add)
    }

    /// Names every object of a span, and keeps new objects out of the span until it is empty, or until
    /// [`Spans::stop_draining`]. Names nothing if the span is already being emptied.
    pub(super) fn start_draining(
        &self,
        frames: &FrameAllocator,
        span: u32,
        mut name: impl FnMut(SwapSlot, Handle),
    ) {
        let words = self.span(span);
        let Some(class) = words.class() else { return };
        let mut held = self.classes[class].lock();
        if words.class() != Some(class) || words.is(DRAINING) {
            return;
        }
        if words.is(LISTED) {
            self.unlist(&mut held, span);
        }
        words.mark(DRAINING, true);
        for object in (0..objects(class)).filter(|&object| words.is_taken(object)) {
            let header = Header::load(frames, self.offset(class, span, object));
            name(header.slot, Handle::new(class, span, object, header.generation));
        }
    }

    /// Lets new objects into a span that was not emptied completely.
    pub(super) fn stop_draining(&self, span: u32) {
        let words = self.span(span);
        let Some(class) = words.class() else { return };
        let mut held = self.classes[class].lock();
        if words.class() == Some(class) && words.is(DRAINING) {
            words.mark(DRAINING, false);
            if words.used() < objects(class) {
                self.list(&mut held, span);
            }
        }
    }

    /// Moves a span's bytes to the place of a free span without a class. The free span gets the former place
    /// of the bytes. Returns false if the span is no longer in a class.
    pub(super) fn exchange_places(&self, frames: &FrameAllocator, span: u32, free: u32) -> bool {
        let words = self.span(span);
        let Some(class) = words.class() else { return false };
        let _held = self.classes[class].lock();
        if words.class() != Some(class) {
            return false;
        }
        let other = self.span(free);
        let (from, to) = (words.place(), other.place());
        frames.bytes().copy_within(from.home_offset(), to.home_offset(), SPAN_BYTES);
        words.set_place(to);
        other.set_place(from);
        let (here, there) = (get(&words.block), get(&other.block));
        set(&words.block, there);
        set(&other.block, here);
        true
    }

    fn list(&self, held: &mut MutexGuard<'_, SpanClass>, span: u32) {
        let words = self.span(span);
        debug_assert!(!words.is(LISTED), "listed twice");
        words.mark(LISTED, true);
        set(&words.prev, NO_SPAN);
        set(&words.next, held.first);
        if held.first != NO_SPAN {
            set(&self.span(held.first).prev, span);
        }
        held.first = span;
    }

    fn unlist(&self, held: &mut MutexGuard<'_, SpanClass>, span: u32) {
        let words = self.span(span);
        debug_assert!(words.is(LISTED), "not listed");
        words.mark(LISTED, false);
        let (next, prev) = (get(&words.next), get(&words.prev));
        if next != NO_SPAN {
            set(&self.span(next).prev, prev);
        }
        if prev == NO_SPAN {
            held.first = next;
        } else {
            set(&self.span(prev).next, next);
        }
    }

    /// Writes a page to a fresh frame. For the fence, see `ArenaBytes`.
    pub(super) fn fill(frames: &FrameAllocator, to: FrameId, page: &[u8]) {
        fence(Ordering::Release);
        frames.bytes().copy_in(to.home_offset(), page);
    }
}
