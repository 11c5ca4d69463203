//! The flusher writes dirty pages before anybody has to wait for them, and pauses threads that dirty too
//! many.
//!
//! The thread looks twice a second, and when a thread has dirtied many pages. It writes while more pages
//! are dirty than [`DirtyLimits`] has for the background, the file with most dirty pages first, and files
//! that have been dirty for long. Pages that are pinned, under I/O or held back by a gate are left for
//! later. It makes nothing durable: that is `sync`'s.
//!
//! A manager without background threads has no flusher. There, a thread that would pause writes pages itself.

use crate::engine::Engine;
use crate::mapping::Tag;
use crate::page_cache::{DirtyLimits, Inode, Why};
use crate::sync::{Arc, Condvar, Duration, Mutex, Ordering, Shared, WeakShared, pause, thread};
use crate::units::{StoreId, StoredPage};
use crate::writeback::sync::Writer;

/// How often the flusher looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A file that has been dirty for so long is written.
const AGE: Duration = Duration::from_secs(5);
/// Pages that are written before the flusher looks again.
const FLUSH_PAGES: u64 = 4096;
/// Pages that a thread writes itself instead of a pause.
const OWN_PAGES: u64 = 64;
/// Pages that a thread dirties between two looks at the limits.
const BALANCE_EVERY: u64 = 16;

/// The flusher, which ends with this value.
#[derive(Debug)]
pub(crate) struct Flusher {
    signal: Arc<FlushSignal>,
    thread: Option<thread::JoinHandle<()>>,
}

/// How threads wake the flusher.
#[derive(Debug, Default)]
pub(crate) struct FlushSignal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    is_awaited: bool,
    has_to_end: bool,
}

impl FlushSignal {
    fn wake(&self) {
        let is_news = !std::mem::replace(&mut self.state.lock().is_awaited, true);
        if is_news {
            self.changed.notify_one();
        }
    }

    /// Waits for the next turn. Returns `false` if the flusher has to end.
    fn next_turn(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_awaited && !state.has_to_end {
            state = self.changed.wait_for(state, LOOK_EVERY);
        }
        state.is_awaited = false;
        !state.has_to_end
    }
}

impl Flusher {
    /// # Errors
    /// The system's error, if it cannot start a thread.
    pub(crate) fn start(engine: &Shared<Engine>) -> std::io::Result<Self> {
        let signal = Arc::new(FlushSignal::default());
        let (served, weak) = (Arc::clone(&signal), Shared::downgrade(engine));
        let thread = thread::Builder::new()
            .name("octavo-flush".into())
            .stack_size(1 << 20)
            .spawn(move || flush_until_the_end(&weak, &served))?;
        let woken = Arc::clone(&signal);
        engine.page_cache.set_flusher(move || woken.wake());
        Ok(Self { signal, thread: Some(thread) })
    }

    /// Ends the thread.
    pub(crate) fn end(mut self) {
        self.signal.state.lock().has_to_end = true;
        self.signal.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic has been printed.
            let _ = thread.join();
        }
    }
}

fn flush_until_the_end(engine: &WeakShared<Engine>, signal: &FlushSignal) {
    while signal.next_turn() {
        let Some(engine) = engine.upgrade() else { return };
        let Ok(_inside) = engine.enter() else { return };
        flush_old(&engine);
        while engine.page_cache.dirty_pages() > limits(&engine).background {
            let written = most_dirty(&engine).map_or(0, |inode| flush(&engine, &inode, FLUSH_PAGES));
            if written == 0 || signal.state.lock().has_to_end {
                break;
            }
        }
    }
}

fn limits(engine: &Engine) -> DirtyLimits {
    DirtyLimits::of(engine.budget.limit_pages())
}

fn most_dirty(engine: &Engine) -> Option<Shared<Inode>> {
    engine.page_cache.files().filter(|inode| !inode.is_failing()).max_by_key(|inode| inode.dirty_pages())
}

/// Writes the files that have been dirty for long.
fn flush_old(engine: &Engine) {
    let now = engine.machine.clock.now();
    for inode in engine.page_cache.files() {
        if inode.dirty_pages() > 0 && inode.is_dirty_for(now, AGE) {
            flush(engine, &inode, u64::MAX);
            inode.note_flushed();
        }
    }
}

/// Writes up to so many dirty pages of a file, from where the last flush ended. Returns how many it began to
/// write.
fn flush(engine: &Engine, inode: &Shared<Inode>, pages: u64) -> u64 {
    let began = engine.machine.clock.now();
    let from = inode.flush_from.load(Ordering::Relaxed);
    let mut writer = Writer::new(engine, inode);
    let mut reached = writer.write_tagged(from..u64::MAX, Tag::Dirty, Why::Flush, pages);
    if reached.is_none() && from > 0 {
        let left = pages.saturating_sub(writer.written_pages());
        reached = writer.write_tagged(0..from, Tag::Dirty, Why::Flush, left);
    }
    let written = writer.end();
    inode.flush_from.store(reached.unwrap_or(0), Ordering::Relaxed);
    inode.note_speed(written, engine.machine.clock.since(began));
    written
}

/// Called by a thread that has just dirtied a page of a store, and holds nothing. Makes it wait if too many
/// pages of files are dirty.
#[cold]
#[inline(never)]
pub(crate) fn balance_after(engine: &Engine, page: Option<StoredPage>) {
    let of_file = page.filter(|page| page.store() == StoreId::File);
    if let Some((inode, _)) = of_file.and_then(|page| engine.page_cache.place_of(page)) {
        balance(engine, &inode);
    }
}

/// Does what [`balance_after`] does, for a page of a file.
pub(crate) fn balance(engine: &Engine, inode: &Shared<Inode>) {
    if !inode.dirtied_since_balance(BALANCE_EVERY) {
        return;
    }
    let Ok(_inside) = engine.enter() else { return };
    let limits = limits(engine);
    let dirty = (engine.page_cache.dirty_pages(), inode.dirty_pages());
    if dirty.0 <= limits.background {
        return;
    }
    engine.page_cache.wake_flusher();
    let all_speed = engine.page_cache.files().map(|inode| inode.speed()).sum();
    let time = limits.pause(BALANCE_EVERY, dirty, (all_speed, inode.speed()));
    if time.is_zero() {
        return;
    }
    if engine.page_cache.has_flusher() {
        pause(time);
    } else {
        flush(engine, inode, OWN_PAGES);
    }
}
