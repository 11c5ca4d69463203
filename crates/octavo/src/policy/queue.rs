//! A queue of frames, linked through words that belong to the frames.

/// A value of [`Links`] that stands for no neighbour: the queue ends here.
pub const NIL: u32 = u32::MAX;

/// The number of bits of a tag in [`Links`].
pub const TAG_BITS: u32 = 6;

/// Implement this to run a [`Policy`](super::Policy): the storage of its queues, two links and a tag of six
/// bits for each frame. The caller of the policy makes sure that nothing else writes the words of listed
/// frames.
pub trait Links {
    /// Returns the neighbour towards the old end.
    fn next(&self, frame: u32) -> u32;
    /// Sets the neighbour towards the old end.
    fn set_next(&self, frame: u32, to: u32);
    /// Returns the neighbour towards the young end.
    fn prev(&self, frame: u32) -> u32;
    /// Sets the neighbour towards the young end.
    fn set_prev(&self, frame: u32, to: u32);
    /// Returns the tag of a listed frame.
    fn tag(&self, frame: u32) -> u8;
    /// Marks the frame as listed, with this tag.
    fn list(&self, frame: u32, tag: u8);
    /// Marks the frame as no longer listed. The queue calls this last, and does not touch the frame's links
    /// afterwards.
    fn unlist(&self, frame: u32);
    /// Returns the number of base pages of the frame: more than one if it heads a block.
    fn pages(&self, frame: u32) -> u64;
}

/// A list of frames by age, from which policies are built. Frames normally join at the young end, and can
/// leave from any place.
#[derive(Debug)]
pub struct Queue {
    young: u32,
    old: u32,
    pages: u64,
}

impl Default for Queue {
    fn default() -> Self {
        Self { young: NIL, old: NIL, pages: 0 }
    }
}

impl Queue {
    /// Returns the number of base pages on the queue.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the frame at the old end.
    pub fn oldest(&self) -> Option<u32> {
        (self.old != NIL).then_some(self.old)
    }

    /// Puts an unlisted frame at the young end.
    pub fn push(&mut self, links: &dyn Links, frame: u32, tag: u8) {
        self.push_before(links, frame, tag, self.young);
    }

    /// Puts an unlisted frame between `older` and its younger neighbour, or at the old end if `older` is
    /// [`NIL`] and the queue is not empty.
    pub fn push_before(&mut self, links: &dyn Links, frame: u32, tag: u8, older: u32) {
        debug_assert!(tag >> TAG_BITS == 0);
        links.list(frame, tag);
        self.pages += links.pages(frame);
        let younger = if older == NIL { self.old } else { links.prev(older) };
        links.set_next(frame, older);
        links.set_prev(frame, younger);
        match older {
            NIL => self.old = frame,
            older => links.set_prev(older, frame),
        }
        match younger {
            NIL => self.young = frame,
            younger => links.set_next(younger, frame),
        }
    }

    /// Takes off the frame at the old end, and its tag.
    pub fn pop(&mut self, links: &dyn Links) -> Option<(u32, u8)> {
        let frame = self.oldest()?;
        Some((frame, self.unlink(links, frame)))
    }

    /// Takes a frame of this queue off it, and returns its tag.
    pub fn unlink(&mut self, links: &dyn Links, frame: u32) -> u8 {
        let (next, prev, tag) = (links.next(frame), links.prev(frame), links.tag(frame));
        match prev {
            NIL => self.young = next,
            prev => links.set_next(prev, next),
        }
        match next {
            NIL => self.old = prev,
            next => links.set_prev(next, prev),
        }
        self.pages -= links.pages(frame);
        links.unlist(frame);
        tag
    }

    /// Walks the queue and returns the number of frames on it.
    pub(super) fn validate(&self, links: &dyn Links, belongs: impl Fn(u8) -> bool) -> u64 {
        let (mut at, mut before, mut pages, mut frames) = (self.young, NIL, 0, 0);
        while at != NIL {
            assert_eq!(links.prev(at), before, "links agree both ways");
            assert!(belongs(links.tag(at)), "frame {at} with tag {:#b} is on its own queue", links.tag(at));
            pages += links.pages(at);
            frames += 1;
            before = at;
            at = links.next(at);
        }
        assert_eq!((before, pages), (self.old, self.pages), "a queue's pages add up");
        frames
    }
}
