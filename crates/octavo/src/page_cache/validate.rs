//! Checks of all files for tests: trees, tags and frames against each other.

use crate::frame::FrameAllocator;
use crate::mapping::Tag;
use crate::page_cache::{PageCache, page_of};

impl PageCache {
    /// Checks that pages and frames name each other, and that each tag has its reason. Takes linear time.
    /// Devices and the flusher may be at work.
    ///
    /// Panics if a check fails.
    pub(crate) fn validate(&self, frames: &FrameAllocator) {
        for inode in self.files() {
            inode.segments_in(&(0..u64::MAX)).for_each(|(_, number)| self.validate_segment(frames, number));
        }
    }

    fn validate_segment(&self, frames: &FrameAllocator, number: u32) {
        let changes = self.segments.of(page_of(number, 0)).0.mapping.lock();
        changes.validate();
        let mut from = 0;
        while let Some((index, word)) = changes.next_word(from) {
            from = index + 1;
            let path = changes.find(index).expect("an index with a word");
            let [is_dirty, is_to_write, is_writeback] = Tag::ALL.map(|tag| changes.has_tag(&path, tag));
            let Some(frame) = word.as_frame() else {
                assert!(!is_dirty && !is_to_write && !is_writeback, "only a page with a frame is tagged");
                continue;
            };
            let (words, holds) = (frames.words(frame), frames.words(frame).holds.load());
            let page = page_of(number, index);
            assert_eq!(words.stored.page(), Some(page), "the frame of a page names the page");
            assert!(is_dirty || !holds.is_dirty(), "a dirty frame whose page has no tag: {page:?}");
            assert_eq!(is_writeback, holds.is_writeback(), "{page:?}: the tag and the frame's flag");
            assert!(is_dirty || is_writeback || !is_to_write, "{page:?} has nothing to write");
        }
    }
}
