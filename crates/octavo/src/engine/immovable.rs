//! Pages that a translation never lets go: locked memory of a program, for instance.
//!
//! Reclaim parks the frame of such a page (`frame/holds.rs`), so that no scan meets it again. Nobody tells
//! when the page can go after all. So all of these frames are listed again now and then, the seldomer the
//! more there are, and sooner where nothing else can go. A page that is unmapped meanwhile frees its frame as
//! any other.
//!
//! Cost: to list them takes a look at the word of each away frame. Where there are none, it takes a load.

use crate::engine::Engine;
use crate::lru::{IsolatedFrame, Place};
use crate::sync::{AtomicU64, Duration, Instant, Mutex, Ordering};
use crate::units::{CHUNK_FRAMES, FrameId, PAGE_SHIFT};

/// The time between two tries, at least.
const PAUSE: Duration = Duration::from_secs(1);
/// The same where nothing else can go.
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// The time between two tries for each page: a hundred times what it takes to be refused.
const PAUSE_PER_PAGE: Duration = Duration::from_micros(16);

/// When the pages are tried again.
#[derive(Debug)]
pub(crate) struct Immovable {
    /// Frames parked since the last time.
    frames: AtomicU64,
    listed_at: Mutex<Instant>,
}

impl Immovable {
    pub(crate) fn new(now: Instant) -> Self {
        Self { frames: AtomicU64::new(0), listed_at: Mutex::new(now) }
    }

    /// Returns whether frames are to be listed again, of which this takes note.
    fn is_due(&self, now: Instant, can_others_go: bool) -> bool {
        // Acquire, with `park`: whoever counts a frame as listed finds it parked.
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
    /// Keeps a frame in hand off the lists whose page cannot go. Where others have pins, the frame is listed.
    pub(crate) fn park(&self, frame: IsolatedFrame) {
        if !self.frames.words(frame.frame()).holds.park_alone() {
            return self.putback(frame, Place::Cold);
        }
        // Its pin has gone.
        frame.into_pin().into_frame();
        // Release: see `is_due`.
        self.immovable.frames.fetch_add(1, Ordering::Release);
    }

    /// Lists the frames again whose pages could not go, where it is time to try that. Returns whether there
    /// are any.
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

    /// Returns how much memory cannot go. Linear where there is any.
    pub(crate) fn immovable_bytes(&self) -> u64 {
        // Relaxed: it counts the frames that were parked since all were listed.
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
