//! The pool's memory: blocks of the frame allocator, cut into spans.
//!
//! The pool takes blocks of 2 MiB if possible, so that chunks stay whole: only the pool itself can move its
//! frames. A new span comes from the current block, or else from the fullest block with room. So sparse
//! blocks become empty.
//!
//! Locking: one lock. It is locked to write a few words, or to scan all blocks when the current block is
//! full. Frames are allocated and freed outside it.

use super::classes::{SPAN_BYTES, SPAN_ORDER};
use super::span::{NO_SPAN, SpanWords};
use crate::sync::{Mutex, Ordering, WordArray};
use crate::units::{FrameId, Order};

/// A block, with its free spans.
#[derive(Clone, Copy, Debug)]
struct SpanBlock {
    first: FrameId,
    order: Order,
    free: u64,
    /// Whether the block is being emptied. If so, no span is taken from it.
    closed: bool,
}

impl SpanBlock {
    fn used_spans(&self) -> u32 {
        spans_of(self.order) - self.free.count_ones()
    }
}

/// Spans of a block.
pub(super) const fn spans_of(order: Order) -> u32 {
    1 << (order.0 - SPAN_ORDER.0)
}

fn all_of(order: Order) -> u64 {
    u64::MAX >> (64 - spans_of(order))
}

#[derive(Debug)]
struct Inner {
    blocks: Vec<Option<SpanBlock>>,
    current: usize,
    spans: u32,
    used_spans: u32,
    /// The first unused name of a former span. The name links to the next unused name. Names below `named`
    /// have been used.
    unused_names: u32,
    named: u32,
    /// The number of names whose words are present and charged.
    paid_names: u32,
}

/// All blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    inner: Mutex<Inner>,
    most_spans: usize,
}

impl Blocks {
    pub(super) fn new(most_spans: usize) -> Self {
        let inner = Inner {
            blocks: Vec::with_capacity(64),
            current: 0,
            spans: 0,
            used_spans: 0,
            unused_names: NO_SPAN,
            named: 0,
            paid_names: 0,
        };
        Self { inner: Mutex::new(inner), most_spans }
    }

    /// Adds a block. Returns the names whose words were not present, and must now become present.
    pub(super) fn add(&self, first: FrameId, order: Order) -> std::ops::Range<usize> {
        let mut inner = self.inner.lock();
        let held = SpanBlock { first, order, free: all_of(order), closed: false };
        match inner.blocks.iter().position(Option::is_none) {
            Some(at) => inner.blocks[at] = Some(held),
            None => inner.blocks.push(Some(held)),
        }
        inner.spans += spans_of(order);
        assert!(inner.spans as usize <= self.most_spans, "no more spans than frames");
        let paid = inner.paid_names;
        inner.paid_names = paid.max(inner.spans);
        paid as usize..inner.paid_names as usize
    }

    /// The number of names whose words are charged.
    pub(super) fn paid_names(&self) -> u32 {
        self.inner.lock().paid_names
    }

    /// Takes a span that has memory and no class.
    pub(super) fn take(&self, words: &WordArray<SpanWords>) -> Option<u32> {
        self.inner.lock().take(words)
    }

    /// Takes back a span that no longer has a class. If no other span of its block is in use, returns the
    /// block.
    pub(super) fn put(&self, words: &WordArray<SpanWords>, span: u32) -> Option<(FrameId, Order)> {
        self.inner.lock().put(words, span)
    }

    /// Closes and returns the block with the fewest spans in use. Returns `None` if spans are in use and
    /// there is no other block to move them to.
    pub(super) fn close_sparsest(&self) -> Option<usize> {
        let mut inner = self.inner.lock();
        let blocks = inner.blocks.iter().enumerate();
        let open = blocks
            .filter_map(|(at, held)| held.filter(|held| !held.closed).map(|held| (held.used_spans(), at)));
        let (used_spans, at) = open.clone().min()?;
        if used_spans > 0 && open.count() < 2 {
            return None;
        }
        inner.blocks[at].as_mut().expect("open").closed = true;
        Some(at)
    }

    /// Takes out a closed block whose spans were never used. (A block whose spans were used leaves when its
    /// last span is put back.)
    pub(super) fn take_unused(&self, block: usize) -> Option<(FrameId, Order)> {
        let mut inner = self.inner.lock();
        let held = inner.blocks[block].filter(|held| held.closed && held.used_spans() == 0)?;
        inner.blocks[block] = None;
        inner.spans -= spans_of(held.order);
        Some((held.first, held.order))
    }

    /// Closes and returns the smallest block that is smaller than a chunk, if its spans fit into other
    /// blocks.
    pub(super) fn close_small(&self) -> Option<usize> {
        let mut inner = self.inner.lock();
        let open = inner.blocks.iter().enumerate().filter_map(|(at, held)| Some((at, (*held)?)));
        let open = open.filter(|(_, held)| !held.closed);
        let free: u32 = open.clone().map(|(_, held)| held.free.count_ones()).sum();
        let (at, held) =
            open.filter(|(_, held)| held.order < Order::MAX).min_by_key(|(_, held)| held.order)?;
        if free < spans_of(held.order) {
            return None;
        }
        inner.blocks[at].as_mut().expect("open").closed = true;
        Some(at)
    }

    /// Opens a closed block again, if it was not emptied.
    pub(super) fn reopen(&self, block: usize) {
        if let Some(Some(held)) = self.inner.lock().blocks.get_mut(block) {
            held.closed = false;
        }
    }

    /// Returns how many more spans must be free in other blocks. They must hold the spans of a closed block,
    /// and leave `spare` free spans.
    pub(super) fn missing_spans(&self, block: usize, spare: u32) -> u32 {
        let inner = self.inner.lock();
        let open = inner.blocks.iter().flatten().filter(|held| !held.closed);
        let free: u32 = open.map(|held| held.free.count_ones()).sum();
        let closed = inner.blocks[block].filter(|held| held.closed);
        closed.map_or(0, |held| (held.used_spans() + spare).saturating_sub(free))
    }

    /// Returns whether a closed block was given back.
    pub(super) fn is_gone(&self, block: usize) -> bool {
        !self.inner.lock().blocks[block].is_some_and(|held| held.closed)
    }

    /// The bytes of free spans.
    pub(super) fn free_bytes(&self) -> u64 {
        let inner = self.inner.lock();
        u64::from(inner.spans - inner.used_spans) * SPAN_BYTES as u64
    }

    /// The end of the range of names that may be in use.
    pub(super) fn end(&self) -> u32 {
        self.inner.lock().named
    }
}

impl Inner {
    fn take(&mut self, words: &WordArray<SpanWords>) -> Option<u32> {
        let has_room =
            |held: &Option<SpanBlock>| held.as_ref().is_some_and(|held| held.free != 0 && !held.closed);
        if !self.blocks.get(self.current).is_some_and(has_room) {
            let with_room = self.blocks.iter().enumerate().filter(|(_, held)| has_room(held));
            let fullest = with_room.min_by_key(|(_, held)| held.expect("has room").free.count_ones());
            self.current = fullest?.0;
        }
        let at = self.current;
        let held = self.blocks[at].as_mut().expect("has room");
        let index = held.free.trailing_zeros();
        held.free &= held.free - 1;
        let place = held.first.plus(index << SPAN_ORDER.0);
        let span = match self.unused_names {
            NO_SPAN => {
                self.named += 1;
                self.named - 1
            }
            name => {
                self.unused_names = words[name as usize].next.load(Ordering::Relaxed);
                name
            }
        };
        self.used_spans += 1;
        let span_words = &words[span as usize];
        span_words.set_place(place);
        span_words.block.store(at as u32, Ordering::Relaxed);
        Some(span)
    }

    fn put(&mut self, words: &WordArray<SpanWords>, span: u32) -> Option<(FrameId, Order)> {
        let span_words = &words[span as usize];
        let at = span_words.block.load(Ordering::Relaxed) as usize;
        let held = self.blocks[at].as_mut().expect("its block is there");
        let index = (span_words.place().0 - held.first.0) >> SPAN_ORDER.0;
        debug_assert!(held.free >> index & 1 == 0, "a span was put back twice");
        held.free |= 1 << index;
        span_words.next.store(self.unused_names, Ordering::Relaxed);
        self.unused_names = span;
        self.used_spans -= 1;
        if held.free != all_of(held.order) {
            return None;
        }
        let (first, order) = (held.first, held.order);
        self.blocks[at] = None;
        self.spans -= spans_of(order);
        Some((first, order))
    }
}
