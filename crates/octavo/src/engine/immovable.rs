//! Pages that a translation does not let go, such as locked memory of a program.
//!
//! Reclaim parks the frame of such a page (`frame/holds.rs`), so that no scan meets it again. Octavo is not
//! told when the page can go after all. So all these frames are listed again now and then: less often the
//! more there are, and sooner if nothing else can go. A page that is unmapped meanwhile frees its frame like
//! any other.
//!
//! Cost: listing them looks at the word of each away frame. If there are none, it is one load.

use crate::engine::Engine;
use crate::lru::{IsolatedFrame, Place};
use crate::sync::{AtomicU64, Duration, Instant, Mutex, Ordering};
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_SHIFT};

/// The least time between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// The time between two tries if nothing else can go.
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// The least time between two tries for each parked page: a hundred times what a refusal takes.
const PAUSE_PER_PAGE: Duration = Duration::from_micros(16);

/// When the pages are tried again.
#[derive(Debug)]
pub(crate) struct Immovable {
    /// Frames parked since all were last listed.
    frames: AtomicU64,
    listed_at: Mutex<Instant>,
}

impl Immovable {
    pub(crate) fn new(now: Instant) -> Self {
        Self { frames: AtomicU64::new(0), listed_at: Mutex::new(now) }
    }

    /// Returns whether it is time to list the frames again. If so, starts the next pause.
    fn is_due(&self, now: Instant, can_others_go: bool) -> bool {
        // Acquire, with `park`: a thread that counts a frame here also finds it parked.
        let frames = self.frames.load(Ordering::Acquire);
        if frames == 0 {
            return false;
        }
        let pause = if can_others_go { PAUSE.max(PAUSE_PER_PAGE * frames as u32) } else { SHORT_PAUSE };
        let mut listed_at = self.listed_at.lock();
        let is_due = now.saturating_duration_since(*listed_at) >= pause;
        if is_due {
            *listed_at = now;
            self.frames.swap(0, Ordering::AcqRel);
        }
        is_due
    }
}

impl Engine {
    /// Parks an isolated frame whose page cannot go, so that it is on no list. If others have pins on it,
    /// puts it back instead.
    pub(crate) fn park(&self, frame: IsolatedFrame) {
        if !self.frames.words(frame.frame()).holds.park_alone() {
            return self.putback(frame, Place::Cold);
        }
        // `park_alone` has ended its pin.
        frame.into_pin().into_frame();
        // Release: see `is_due`.
        self.immovable.frames.fetch_add(1, Ordering::Release);
    }

    /// Puts the parked frames back on the lists, if it is time to try again. Returns whether it has listed
    /// any.
    pub(crate) fn try_immovable(&self, can_others_go: bool) -> bool {
        if !self.immovable.is_due(self.machine.clock.now(), can_others_go) {
            return false;
        }
        let mut is_any = false;
        for frame in self.away_frames().filter(|frame| self.frames.words(*frame).holds.take_parked()) {
            is_any = true;
            self.list_again(IsolatedFrame::counted(frame));
        }
        is_any
    }

    /// Returns how much memory cannot go, in bytes. If there is any, the cost is linear in the number of away
    /// frames.
    pub(crate) fn immovable_bytes(&self) -> u64 {
        // Relaxed: the figure counts the frames parked since all were last listed.
        if self.immovable.frames.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let is_parked = |frame: &FrameId| {
            let holds = self.frames.words(*frame).holds.load();
            holds.is_parked() && holds.pins() == 0
        };
        (self.away_frames().filter(is_parked).count() as u64) << PAGE_SHIFT
    }

    fn away_frames(&self) -> impl Iterator<Item = FrameId> {
        let chunks = self.frames.reached_away_chunks();
        chunks.flat_map(|chunk| (0..CHUNK_FRAMES).map(move |index| chunk.first().plus(index)))
    }
}
