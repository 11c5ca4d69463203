//! The policy's view of frame words. The LRU's lock guards every use of it.

use std::cell::Cell;

use super::{LISTED, TAG_SHIFT};
use crate::frame::FrameAllocator;
use crate::policy::Links;
use crate::sync::{Ordering, fence};
use crate::units::FrameId;

/// Links, tags and sizes of frames.
pub(super) struct EngineLinks<'a> {
    frames: &'a FrameAllocator,
    /// Whether to pin a frame when it is taken off its queue. Once the flags of a frame are cleared, only a
    /// pin keeps it.
    pins: bool,
    found_live: Cell<bool>,
}

impl<'a> EngineLinks<'a> {
    pub(super) fn new(frames: &'a FrameAllocator) -> Self {
        Self { frames, pins: false, found_live: Cell::new(false) }
    }

    pub(super) fn pinning(frames: &'a FrameAllocator) -> Self {
        Self { pins: true, ..Self::new(frames) }
    }

    /// Returns whether the frame taken off last was live.
    pub(super) fn found_live(&self) -> bool {
        self.found_live.get()
    }
}

// Relaxed throughout: the lock orders links and tags.
impl Links for EngineLinks<'_> {
    fn next(&self, frame: u32) -> u32 {
        self.frames.words(FrameId(frame)).next.load(Ordering::Relaxed)
    }

    fn set_next(&self, frame: u32, to: u32) {
        self.frames.words(FrameId(frame)).next.store(to, Ordering::Relaxed);
    }

    fn prev(&self, frame: u32) -> u32 {
        self.frames.words(FrameId(frame)).prev.load(Ordering::Relaxed)
    }

    fn set_prev(&self, frame: u32, to: u32) {
        self.frames.words(FrameId(frame)).prev.store(to, Ordering::Relaxed);
    }

    fn tag(&self, frame: u32) -> u8 {
        self.frames.words(FrameId(frame)).state.load().lru_flags() >> TAG_SHIFT
    }

    fn list(&self, frame: u32, tag: u8) {
        self.frames.words(FrameId(frame)).state.exchange_lru_flags(LISTED | tag << TAG_SHIFT);
    }

    fn unlist(&self, frame: u32) {
        let words = self.frames.words(FrameId(frame));
        if self.pins {
            self.found_live.set(words.holds.take_pin().is_live());
        }
        // Clear the flags last. Once the flags are cleared, a thread may free the frame without the lock, and
        // the allocator then uses the links.
        fence(Ordering::Release);
        words.state.clear_lru_flags(u8::MAX);
    }

    fn pages(&self, frame: u32) -> u64 {
        u64::from(self.frames.words(FrameId(frame)).order().frames())
    }
}
