//! Which pages have been used lately: an active and an inactive list, fed through per-CPU batches.
//!
//! A frame's LRU state is three flags in its ownership word, and its place the two links in its words:
//!
//! ```text
//!            add                 batch drained               isolate
//!  (none) ────────► PENDING ───────────────────► LISTED ────────────────► (none), pinned by the reclaimer
//!     ▲               │ forget                     │ forget                  │ put_back: LISTED
//!     └───────────────┴────────────────────────────┘                         ▼
//! ```
//!
//! A batch holds bare frame numbers. A frame freed while its number is in a batch loses PENDING, so draining skips
//! the stale number; if it is back in use by then and PENDING again, it is listed once, for the number drained
//! first.
//!
//! Locking: one lock for both lists, a leaf. Adding a page costs one push on a per-CPU stack; the lock is taken
//! once for each batch of 32. Hits never come here: they set the entry's accessed mark, and reclaim looks at it.

use smallvec::SmallVec;

use crate::frame::{Dropped, FrameAllocator};
use crate::sync::percpu::{PerCpuStacks, Pop, Push, StackForm};
use crate::sync::{Mutex, Ordering, fence};
use crate::units::FrameId;

/// Frames that a batch collects before the lists are locked.
const BATCH: usize = 32;
/// Frames taken off together: what one transfer may hold.
const ISOLATED: usize = if cfg!(loom) { 4 } else { 256 };
/// Ends a list.
const NIL: u32 = u32::MAX;

/// In a batch.
const PENDING: u8 = 1;
/// On a list.
const LISTED: u8 = 2;
/// That list is the active one.
const ACTIVE: u8 = 4;

/// Frames taken off the lists together.
pub(crate) type Isolated = SmallVec<[FrameId; ISOLATED]>;

/// Which of the two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    /// Used lately.
    Active,
    /// Next to go.
    Inactive,
}

#[derive(Debug)]
struct Ends {
    head: u32,
    tail: u32,
    /// Base pages; a block counts all its frames.
    pages: u64,
}

#[derive(Debug)]
struct Lists {
    active: Ends,
    inactive: Ends,
}

/// The lists of a manager.
#[derive(Debug)]
pub(crate) struct Lru {
    lists: Mutex<Lists>,
    batches: PerCpuStacks,
}

impl Lru {
    pub(crate) fn new(cpus: usize, form: StackForm) -> std::io::Result<Self> {
        let batches = PerCpuStacks::new(cpus, &[BATCH], form)?;
        for cpu in 0..batches.cpus() {
            batches.exclusive(cpu).expect("nobody else knows the stacks yet").set_limit(0, BATCH);
        }
        let ends = || Ends { head: NIL, tail: NIL, pages: 0 };
        Ok(Self { lists: Mutex::new(Lists { active: ends(), inactive: ends() }), batches })
    }

    /// Adds a fresh frame or block, which nobody else can reach yet.
    #[inline]
    pub(crate) fn add(&self, frames: &FrameAllocator, frame: FrameId) {
        frames.words(frame).state.set_lru_flags_unshared(PENDING);
        if self.batches.push(0, frame.0) != Push::Done {
            self.drain_and_list(frames, frame);
        }
    }

    #[cold]
    fn drain_and_list(&self, frames: &FrameAllocator, frame: FrameId) {
        let mut lists = self.lists.lock();
        self.drain_here(frames, &mut lists);
        list_pending(frames, &mut lists, frame);
    }

    fn drain_here(&self, frames: &FrameAllocator, lists: &mut Lists) {
        while let Pop::Value(frame) = self.batches.pop(0) {
            list_pending(frames, lists, FrameId(frame));
        }
    }

    /// Lists what is left in every CPU's batch.
    pub(crate) fn drain_all(&self, frames: &FrameAllocator) {
        let mut lists = self.lists.lock();
        for cpu in 0..self.batches.cpus() {
            if self.batches.len(cpu, 0) == 0 {
                continue;
            }
            if let Some(exclusive) = self.batches.exclusive(cpu) {
                while let Some(frame) = exclusive.remove(0) {
                    list_pending(frames, &mut lists, FrameId(frame));
                }
            }
        }
    }

    /// Takes a frame that is about to be freed off its list or batch.
    #[inline]
    pub(crate) fn forget(&self, frames: &FrameAllocator, frame: FrameId) {
        if frames.words(frame).state.load().lru_flags() == 0 {
            // Acquire: pairs with `unlink`, which is done with the frame's links before the flags are gone.
            fence(Ordering::Acquire);
            return;
        }
        self.take(frames, frame);
    }

    /// Takes a frame off its list or batch. False: it was on none, as it is just being added, or in the hands of
    /// someone who took it off before; then only that one may put it back.
    pub(crate) fn take(&self, frames: &FrameAllocator, frame: FrameId) -> bool {
        let state = &frames.words(frame).state;
        // The batch keeps the number; draining will find the flag gone.
        if state.replace_lru_flags(PENDING, 0) {
            return true;
        }
        let mut lists = self.lists.lock();
        let listed = state.load().lru_flags() & LISTED != 0;
        if listed {
            unlink(frames, &mut lists, frame);
        }
        listed
    }

    /// Lists the frames of a block in the block's place, once `split` has made them frames of their own. Meanwhile nobody
    /// who has taken the block off puts it back as what it was.
    pub(crate) fn split(&self, frames: &FrameAllocator, head: FrameId, count: u32, split: impl FnOnce()) {
        let mut lists = self.lists.lock();
        let state = &frames.words(head).state;
        state.replace_lru_flags(PENDING, 0);
        if state.load().lru_flags() & LISTED != 0 {
            unlink(frames, &mut lists, head);
        }
        split();
        for index in 0..count {
            let frame = head.plus(index);
            frames.words(frame).state.set_lru_flags(flags_of(List::Inactive));
            link(frames, &mut lists, frame, List::Inactive);
        }
    }

    /// Takes up to `most` of the coldest frames off `list`, each pinned for the caller. Frames found dying are
    /// dropped through `free_last`.
    pub(crate) fn isolate(
        &self,
        frames: &FrameAllocator,
        list: List,
        most: usize,
        free_last: impl Fn(FrameId),
    ) -> Isolated {
        let (mut taken, mut dying) = (Isolated::new(), Isolated::new());
        let mut lists = self.lists.lock();
        while taken.len() + dying.len() < ISOLATED.min(most) {
            let tail = lists.ends(list).tail;
            if tail == NIL {
                break;
            }
            let frame = FrameId(tail);
            let holds = &frames.words(frame).holds;
            let seen = holds.take_pin();
            unlink(frames, &mut lists, frame);
            if seen.is_live() { taken.push(frame) } else { dying.push(frame) }
        }
        drop(lists);
        for frame in dying {
            if frames.words(frame).holds.drop_pin() == Dropped::Last {
                free_last(frame);
            }
        }
        taken
    }

    /// Puts a frame, which the caller has pinned, at the warm end of `list`.
    pub(crate) fn put_back(&self, frames: &FrameAllocator, frame: FrameId, list: List) {
        let mut lists = self.lists.lock();
        let state = &frames.words(frame).state;
        if state.load().lru_flags() == 0 {
            state.set_lru_flags(flags_of(list));
            link(frames, &mut lists, frame, list);
        }
    }

    /// Base pages on the active and the inactive list.
    pub(crate) fn pages(&self) -> (u64, u64) {
        let lists = self.lists.lock();
        (lists.active.pages, lists.inactive.pages)
    }

    /// Walks both lists: links agree both ways, flags agree with the list, pages add up. Linear.
    pub(crate) fn validate(&self, frames: &FrameAllocator) {
        let lists = self.lists.lock();
        for list in [List::Active, List::Inactive] {
            let ends = match list {
                List::Active => &lists.active,
                List::Inactive => &lists.inactive,
            };
            let (mut at, mut before, mut pages) = (ends.head, NIL, 0);
            while at != NIL {
                let words = frames.words(FrameId(at));
                assert_eq!(words.prev.load(Ordering::Relaxed), before, "LRU links agree both ways");
                assert_eq!(words.state.load().lru_flags(), flags_of(list), "LRU flags agree with the list");
                pages += u64::from(frames.words(FrameId(at)).order().frames());
                before = at;
                at = words.next.load(Ordering::Relaxed);
            }
            assert_eq!((before, pages), (ends.tail, ends.pages), "LRU pages add up");
        }
    }
}

impl Lists {
    fn ends(&mut self, list: List) -> &mut Ends {
        match list {
            List::Active => &mut self.active,
            List::Inactive => &mut self.inactive,
        }
    }
}

fn flags_of(list: List) -> u8 {
    match list {
        List::Active => LISTED | ACTIVE,
        List::Inactive => LISTED,
    }
}

/// Lists a frame out of a batch, unless it was freed or listed since.
fn list_pending(frames: &FrameAllocator, lists: &mut Lists, frame: FrameId) {
    if frames.words(frame).state.replace_lru_flags(PENDING, flags_of(List::Inactive)) {
        link(frames, lists, frame, List::Inactive);
    }
}

/// Puts a frame that carries the list's flags at its warm end.
fn link(frames: &FrameAllocator, lists: &mut Lists, frame: FrameId, list: List) {
    let words = frames.words(frame);
    let pages = u64::from(frames.words(frame).order().frames());
    let ends = lists.ends(list);
    words.prev.store(NIL, Ordering::Relaxed);
    words.next.store(ends.head, Ordering::Relaxed);
    match ends.head {
        NIL => ends.tail = frame.0,
        head => frames.words(FrameId(head)).prev.store(frame.0, Ordering::Relaxed),
    }
    ends.head = frame.0;
    ends.pages += pages;
}

fn unlink(frames: &FrameAllocator, lists: &mut Lists, frame: FrameId) {
    let words = frames.words(frame);
    let flags = words.state.load().lru_flags();
    let list = if flags & ACTIVE != 0 { List::Active } else { List::Inactive };
    let pages = u64::from(frames.words(frame).order().frames());
    let (prev, next) = (words.prev.load(Ordering::Relaxed), words.next.load(Ordering::Relaxed));
    let ends = lists.ends(list);
    match prev {
        NIL => ends.head = next,
        prev => frames.words(FrameId(prev)).next.store(next, Ordering::Relaxed),
    }
    match next {
        NIL => ends.tail = prev,
        next => frames.words(FrameId(next)).prev.store(prev, Ordering::Relaxed),
    }
    ends.pages -= pages;
    // Last: whoever frees the frame takes no lock once the flags are gone, and the links become the allocator's.
    fence(Ordering::Release);
    words.state.clear_lru_flags(LISTED | ACTIVE);
}
