//! The background thread, which makes room before accesses need it. It reclaims from the low watermark to the
//! high one, for frames at home and for pages that are away. It brings the charged bytes back under a lowered
//! budget. It zeroes free frames ahead, and lets per-CPU lists decay.

use crate::counters::Counter;
use crate::engine::{Engine, Waiter, in_place};
use crate::reclaim::compact::block_for_pool;
use crate::reclaim::reserve::Reserve;
use crate::reclaim::room::give_idle_back;
use crate::reclaim::scan::{Reclaimer, most_writing_pages, reclaim};
use crate::reclaim::shrink::shrink_to_budget;
use crate::reclaim::shrink_pool::shrink_pool;
use crate::reclaim::signal::{Signal, Turn};
use crate::reclaim::throttle::forget_account;
use crate::swap::Pool;
use crate::sync::{Arc, Duration, Instant, Mutex, Shared, thread};
use crate::units::CHUNK_BYTES;
use crate::writeback::Flusher;

/// The longest single wait of the thread for writes under way that will make room.
const MOMENT: Duration = Duration::from_millis(200);
/// Frames that the thread zeroes between two checks for more pressing work.
const ZERO_BATCH: usize = 32;
/// The fewest and the most pages that leave a crowded pool at once.
const LEAST_POOL_BATCH: usize = 32;
const POOL_BATCH: usize = 512;
/// The most blocks that a starved pool gets at once.
const MOST_FED: u64 = 4;
/// The most blocks of the pool that are given back at once because they are mostly holes.
const MOST_CLOSED: u32 = 4;
/// Frames that the thread frees between two looks at the watermark, and how often it does so between two
/// looks at the pool.
const RECLAIM_BATCH: u64 = 256;
const MOST_BATCHES: u32 = 8;

/// An engine, and its background thread. Both last as long as this value.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) engine: Shared<Engine>,
    signal: Arc<Signal>,
    thread: Option<thread::JoinHandle<()>>,
    /// The thread that writes dirty pages of files, from the first file on.
    flusher: Mutex<Option<Flusher>>,
}

impl Running {
    /// Starts the thread, if `background`.
    ///
    /// # Errors
    /// The system's error, if it cannot start a thread.
    pub(crate) fn start(engine: Shared<Engine>, background: bool) -> std::io::Result<Self> {
        forget_account();
        let signal = Arc::new(Signal::default());
        let thread = background.then(|| spawn(&engine, &signal)).transpose()?;
        Ok(Self { engine, signal, thread, flusher: Mutex::new(None) })
    }

    /// Starts the flusher, unless it runs, or the manager has no threads of its own.
    ///
    /// # Errors
    /// The system's error, if it cannot start a thread.
    pub(crate) fn start_flusher(&self) -> std::io::Result<()> {
        let mut flusher = self.flusher.lock();
        if self.thread.is_some() && flusher.is_none() {
            *flusher = Some(Flusher::start(&self.engine)?);
        }
        Ok(())
    }

    /// Has the thread look at the watermarks and the budget now.
    pub(crate) fn wake(&self) {
        self.signal.wake();
    }

    /// Calls `act` while the thread holds no frame. Returns `None` if the thread did not come to rest in
    /// time.
    pub(crate) fn at_rest<T>(&self, until: Instant, act: impl FnOnce() -> T) -> Option<T> {
        let _rest = match self.thread {
            Some(_) => Some(self.signal.rest(&self.engine.machine.clock, until)?),
            None => None,
        };
        Some(act())
    }
}

fn spawn(engine: &Shared<Engine>, signal: &Arc<Signal>) -> std::io::Result<thread::JoinHandle<()>> {
    let hook = Arc::clone(signal);
    engine.frames.set_low_hook(move || hook.wake());
    let (engine, signal) = (Shared::clone(engine), Arc::clone(signal));
    thread::Builder::new()
        .name("octavo-background".into())
        .stack_size(1 << 20)
        .spawn(move || keep_ahead(&engine, &signal))
}

impl Drop for Running {
    fn drop(&mut self) {
        let Ok(_inside) = self.engine.enter() else {
            // A forked child has no such thread, and locks of the engine may be held there forever. So the
            // child drops neither.
            let flusher = std::mem::replace(&mut self.flusher, Mutex::new(None));
            std::mem::forget((self.thread.take(), flusher, Shared::clone(&self.engine)));
            return;
        };
        if let Some(flusher) = self.flusher.lock().take() {
            flusher.end();
        }
        if let Some(thread) = self.thread.take() {
            self.signal.stop();
            self.engine.wait_no_more();
            // If the thread panicked, the panic has been printed.
            let _ = thread.join();
        }
        // Transfers hold the engine until they end.
        self.engine.leave_transfers();
    }
}

fn keep_ahead(engine: &Engine, signal: &Signal) {
    let mut reserve = Reserve::new(engine);
    let mut goes_on = false;
    loop {
        if goes_on {
            signal.wake();
        }
        let turn = signal.next_turn();
        if turn == Turn::End {
            return;
        }
        // Perhaps no other thread is left to take completions.
        engine.poll_transfers();
        empty_pool(engine, signal, goes_on);
        close_holes(engine, signal);
        feed_pool(engine, signal);
        if turn == Turn::Work {
            reserve.follow_stalls(engine);
            goes_on = work(engine, signal, goes_on);
        } else {
            engine.frames.decay();
        }
        while engine.frames.zero_some(ZERO_BATCH) > 0 && !signal.is_pressing() {}
    }
}

/// Sends pages of a crowded pool on to the areas until the pool has room. If that has to wait for writes,
/// other work comes first.
fn empty_pool(engine: &Engine, signal: &Signal, has_work: bool) {
    while engine.swap.pool().is_some_and(Pool::is_crowded)
        && !engine.swap.is_failing()
        && !signal.interrupts()
    {
        if engine.coming_pages() > most_writing_pages(engine) {
            if has_work || signal.is_pressing() || !engine.wait_for_write_within(MOMENT) {
                return;
            }
        } else if shrink_pool(engine, pool_batch(engine)).is_nothing() {
            return;
        }
    }
}

/// Returns how many pages leave a crowded pool together. A small pool sends few, since its pages stay until
/// their writes end.
fn pool_batch(engine: &Engine) -> usize {
    let pages = engine.swap.pool().map_or(0, |pool| pool.stats().pages as usize);
    (pages / 16).clamp(LEAST_POOL_BATCH, POOL_BATCH).min(most_writing_pages(engine).max(1) as usize)
}

/// Gives back blocks of the pool that are mostly holes.
fn close_holes(engine: &Engine, signal: &Signal) {
    let Some(pool) = engine.swap.pool() else { return };
    for _ in 0..MOST_CLOSED {
        let retarget = |slot, from, to| engine.swap.retarget(slot, from, to);
        if signal.interrupts() || !pool.close_holes(&engine.frames, retarget) {
            return;
        }
    }
}

/// Feeds a pool that may grow but finds no block, because memory is full and fragmented. At most, the number
/// of its blocks doubles, or grows by `MOST_FED` if that is less. The new blocks are chunks that compaction
/// has emptied.
fn feed_pool(engine: &Engine, signal: &Signal) {
    let Some(pool) = engine.swap.pool().filter(|pool| pool.is_starved()) else { return };
    let has = pool.stats().used_bytes / CHUNK_BYTES as u64;
    for _ in 0..has.clamp(1, MOST_FED) {
        // Memory is full, so some pages have to go out before the others can move.
        work(engine, signal, false);
        let Some(block) = block_for_pool(engine) else { return };
        if let Some(block) = pool.feed(block) {
            return engine.frames.give_back(block);
        }
    }
}

/// Makes room up to the high watermark, if memory is below the low one or if this `goes_on`. Returns whether
/// there is more to do.
fn work(engine: &Engine, signal: &Signal, goes_on: bool) -> bool {
    if engine.budget.room_bytes() < 0 {
        shrink_to_budget(engine, 0);
    }
    let marks = engine.frames.watermarks();
    let lacks_frames = |mark| engine.frames.available_frames() < mark;
    let lacks_away = |mark| engine.frames.is_away_room_below(mark);
    if !goes_on {
        if !lacks_frames(marks.low_frames) && !lacks_away(marks.low_frames) {
            return false;
        }
        engine.counters.count(Counter::BackgroundRun);
    }
    engine.frames.give_zeroed_back();
    for _ in 0..MOST_BATCHES {
        if !lacks_frames(marks.high_frames) && !lacks_away(marks.high_frames) || signal.interrupts() {
            return false;
        }
        if lacks_away(marks.high_frames) {
            // Frames that lie idle at home are room for pages that are away.
            give_idle_back(engine, marks.high_frames, marks.high_frames);
        } else if engine.frames.available_frames() + engine.coming_pages() >= marks.high_frames {
            engine.wait_for_write_within(MOMENT);
            continue;
        }
        let mut waiter = Waiter::patient(engine);
        if in_place(reclaim(engine, RECLAIM_BATCH, Reclaimer::Background, &mut waiter)).total() == 0 {
            // No page can go now. The access that needs the room will say why.
            return false;
        }
    }
    true
}
