//! Transfers in flight, and what happens when they end.
//!
//! A transfer holds a pin on each of its frames. The thread that takes a completion also ends the transfer.
//! It frees a page that was written, if nobody has used the page meanwhile. A page that was read becomes live
//! here.
//!
//! Locking: completions take the locks of the swap cache and of the LRU, one after the other. They may run
//! inside `submit`, so no caller submits while holding a lock.

use std::cell::Cell;
use std::io;
use std::task::{Poll, Waker};

use octavo_platform::ArenaBytes;
use smallvec::SmallVec;

use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Error;
use crate::frame::{Block, PinnedFrame};
use crate::io::{Direction, Host, Job, NO_QUEUE, Urgency, Waited};
use crate::lru::IsolatedFrame;
use crate::policy::{Arrival, Place, Shadow};
use crate::sizes::ISOLATED;
use crate::store::{Begun, Evicted, Frames, Going, Reference, Unread};
use crate::sync::park::block_until_driven;
use crate::sync::wait::{Waiting, key_of};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Duration, Instant, Ordering, fence, park_for};
use crate::table::Protection;
use crate::units::{FrameId, StoreId, StoredPage};

/// How long a thread sleeps before it looks again, if it waits for no particular transfer.
const MOMENT: Duration = Duration::from_millis(2);

/// Counts of pages in flight, and of ended transfers.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    writing_pages: AtomicU32,
    reading_pages: AtomicU32,
    /// Pages freed because they were written.
    freed_pages: AtomicU64,
    /// Pages whose write has ended, so far.
    ended_pages: AtomicU64,
    /// Pages whose read has ended, so far.
    read_pages: AtomicU64,
    /// A thread or task waits for any transfer to end.
    awaited: AtomicBool,
    /// The manager is ending, so all waits end.
    ending: AtomicBool,
}

impl Transfers {
    /// Pages being written now.
    pub(crate) fn writing_pages(&self) -> u32 {
        self.writing_pages.load(Ordering::Acquire)
    }

    /// Pages being read now.
    pub(crate) fn reading_pages(&self) -> u32 {
        self.reading_pages.load(Ordering::Acquire)
    }

    /// Pages freed by writes that ended, so far.
    pub(crate) fn freed_pages(&self) -> u64 {
        self.freed_pages.load(Ordering::Acquire)
    }

    /// Pages whose write has ended, so far.
    pub(crate) fn ended_pages(&self) -> u64 {
        self.ended_pages.load(Ordering::Acquire)
    }

    /// Pages whose read has ended, so far.
    pub(crate) fn read_pages(&self) -> u64 {
        self.read_pages.load(Ordering::SeqCst)
    }

    /// Returns whether the manager is ending, so that all waits end.
    pub(crate) fn are_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    fn are_in_flight(&self) -> bool {
        // SeqCst, as when a transfer ends or a device refuses it: if two end at once, one of them sees that
        // none are left.
        self.writing_pages.load(Ordering::SeqCst) + self.reading_pages.load(Ordering::SeqCst) > 0
    }
}

impl Engine {
    /// Links `frames` into a chain, in order. They are off the LRU, and belong to the caller.
    pub(crate) fn chain<T>(&self, frames: &[T], frame: impl Fn(&T) -> FrameId) {
        for pair in frames.windows(2) {
            // Relaxed: handing over the transfer orders this for the thread that follows the chain.
            self.frames.words(frame(&pair[0])).next.store(frame(&pair[1]).0, Ordering::Relaxed);
        }
    }

    /// Starts to write `frames`, which are under WRITEBACK, as consecutive pages. Returns how many are in
    /// flight. If the device has no room for the rest, they stay in memory, dirty and without a place. That
    /// is not an error: try again when a write has ended.
    pub(crate) fn start_write(
        &self,
        first: StoredPage,
        frames: impl IntoIterator<Item = IsolatedFrame>,
    ) -> usize {
        let frames: Frames = frames.into_iter().map(|frame| frame.into_pin().into_frame()).collect();
        let store = self.store(first);
        let mut started = 0;
        while started < frames.len() {
            let (page, rest) = (first.plus(started as u32), &frames[started..]);
            let stand_ins = store.stand_ins(&self.frames, page, rest);
            let bytes = stand_ins.as_deref().unwrap_or(rest);
            let now = &rest[..bytes.len()];
            if now.is_empty() || !self.submit_write(page, now, bytes) {
                stand_ins.iter().flatten().for_each(|frame| store.give_stand_in_back(*frame));
                self.put_back_unsent(page, rest);
                break;
            }
            started += now.len();
        }
        started
    }

    fn submit_write(&self, first: StoredPage, frames: &[FrameId], bytes: &[FrameId]) -> bool {
        self.chain(frames, |frame| *frame);
        if bytes[0] != frames[0] {
            self.chain(bytes, |frame| *frame);
        }
        let count = frames.len() as u32;
        self.transfers.writing_pages.fetch_add(count, Ordering::AcqRel);
        let job = Job { direction: Direction::Write, first, count, head: frames[0], bytes: bytes[0] };
        if !self.store(first).submit(self.host(), job, Urgency::Queued) {
            self.transfers.writing_pages.fetch_sub(count, Ordering::SeqCst);
            self.wake_if_idle();
            return false;
        }
        self.serve_early_waiters(frames.iter().copied());
        true
    }

    /// Ends WRITEBACK for pages that no device took, and puts them back.
    fn put_back_unsent(&self, first: StoredPage, frames: &[FrameId]) {
        for (index, &frame) in (0..).zip(frames) {
            let page = first.plus(index);
            if self.store(page).end_writeback(&self.frames, page, frame, false) {
                self.wake_io(frame);
            }
            self.put_back_unwritten(page, frame);
            self.putback(IsolatedFrame::counted(frame), Place::Cold);
        }
    }

    /// Starts to read consecutive pages into `frames`, which are under READING. Takes over a pin on each.
    /// Returns `false` if the device is full. The read has then ended without the pages, and its waiters get
    /// [`Unread::NoRoom`].
    pub(crate) fn start_read(
        &self,
        first: StoredPage,
        frames: impl AsRef<[PinnedFrame]> + IntoIterator<Item = PinnedFrame>,
        urgency: Urgency,
    ) -> bool {
        let pins = frames.as_ref();
        self.chain(pins, PinnedFrame::frame);
        let (count, head) = (pins.len() as u32, pins[0].frame());
        self.transfers.reading_pages.fetch_add(count, Ordering::AcqRel);
        let job = Job { direction: Direction::Read, first, count, head, bytes: head };
        if !self.store(first).submit(self.host(), job, urgency) {
            self.transfers.reading_pages.fetch_sub(count, Ordering::SeqCst);
            for (index, pin) in (0..).zip(frames) {
                self.end_read_as(first.plus(index), pin, Err(Unread::NoRoom));
            }
            self.wake_if_idle();
            return false;
        }
        self.serve_early_waiters(pins.iter().map(PinnedFrame::frame));
        // The pins are the transfer's, which may have dropped them already.
        frames.into_iter().for_each(|pin| _ = pin.into_frame());
        true
    }

    /// Serves waiters that asked for one of these frames, or for any transfer, before the transfer was in
    /// flight. They found nothing to serve. (While a batch is packed, its first pages are already under I/O.)
    fn serve_early_waiters(&self, mut frames: impl Iterator<Item = FrameId>) {
        // SeqCst, as for waiters, which announce themselves first and then ask to be served. If a transfer
        // has ended already, the mark may be for the frame's next use. Serving it is harmless.
        fence(Ordering::SeqCst);
        if self.transfers.awaited.load(Ordering::Relaxed)
            || frames.any(|frame| self.frames.words(frame).holds.load().has_waiters())
        {
            self.serve_devices();
        }
    }

    /// Puts a fresh frame under READING for a page that no fault wants, if the page is out. The place comes
    /// from an entry that may have changed, so it may be another page's by now. Returns the pin and the
    /// page's shadow. Returns `None` if the page is not out. The frame is free again then.
    pub(crate) fn begin_read_ahead(
        &self,
        page: StoredPage,
        fresh: Block,
    ) -> Option<(PinnedFrame, Option<Shadow>)> {
        self.keep_reading(self.store(page).begin_read(&self.frames, page, fresh))
    }

    /// Goes on with a read for a page that no fault wants, if it has begun, as
    /// [`Engine::begin_read_ahead`] does.
    pub(crate) fn keep_reading(&self, begun: Begun<Shadow>) -> Option<(PinnedFrame, Option<Shadow>)> {
        let fresh = match begun {
            Begun::Reading(pin, shadow) => return Some((pin, shadow)),
            Begun::Cached(pin, fresh) => {
                self.unpin(pin);
                fresh
            }
            Begun::Gone(fresh) => fresh,
        };
        self.frames.give_back(fresh);
        None
    }

    /// Completes the transfers that have ended. Cheap if none are in flight.
    #[inline]
    pub(crate) fn poll_transfers(&self) {
        if self.transfers.are_in_flight() {
            self.poll_devices();
        }
    }

    /// Has devices complete transfers in flight by themselves, because no thread may be left to poll for
    /// them.
    pub(crate) fn leave_transfers(&self) {
        if self.transfers.are_in_flight() {
            self.flush_devices();
            self.serve_devices();
        }
    }

    /// For a thread that has registered its waker with a frame under I/O. Completes transfers while there are
    /// any to wait for. Otherwise, the thread may sleep.
    pub(crate) fn drive(&self, frame: FrameId) -> Waited {
        let words = self.frames.words(frame);
        let waiting = || {
            let holds = words.holds.load();
            holds.is_reading() || holds.is_writeback()
        };
        // Both words are hints: they say where to wait, not whether.
        match words.stored.page() {
            // The sync of a file writes pages that stay on the LRU, whose links are no queues.
            Some(page) if page.store() == StoreId::File && self.lru.knows(words) => {
                self.store(page).wait(page, NO_QUEUE, &waiting)
            }
            Some(page) => self.store(page).wait(page, words.prev.load(Ordering::Relaxed), &waiting),
            None => self.wait_in_devices(&waiting),
        }
    }

    /// Waits until some write has ended, or `patience` is over. Returns at once if no write is in flight.
    /// Returns `false` if a write is in flight and none has ended.
    pub(crate) fn wait_for_write_within(&self, patience: Duration) -> bool {
        self.wait_for_writes(self.transfers.ended_pages() + 1, self.after(Some(patience)))
    }

    /// Pages being written whose frames may be free soon: all except those on their way to silent devices.
    pub(crate) fn coming_pages(&self) -> u64 {
        let silent = self.swap.areas.silent_writing_pages();
        u64::from(self.transfers.writing_pages().saturating_sub(silent))
    }

    /// Waits while `waits` returns `true`. Returns `false` as [`Engine::wait_until_ended`] does.
    pub(crate) fn wait_while_devices_may_take(&self, waits: &dyn Fn() -> bool) -> bool {
        self.wait_once(|until| self.wait_while(until, waits))
    }

    /// Waits until `pages` pages have been written since the beginning, or no write is in flight. Returns
    /// `false` if no device has answered for as long as devices may take. Devices with transfers in flight
    /// then count as silent. Until they answer, only accesses that need them wait for them.
    pub(crate) fn wait_until_ended(&self, pages: u64) -> bool {
        loop {
            // Each end is an answer, so the time starts again.
            let next = self.policy.io_timeout.map_or(pages, |_| pages.min(self.transfers.ended_pages() + 1));
            if !self.wait_once(|until| self.wait_for_writes(next, until)) {
                return false;
            }
            if next == pages || self.transfers.writing_pages() == 0 {
                return true;
            }
        }
    }

    /// Ends all waits for transfers, now and later, because the manager is ending.
    pub(crate) fn wait_no_more(&self) {
        self.transfers.ending.store(true, Ordering::SeqCst);
        self.wake_awaiting();
    }

    /// Waits once, for as long as devices may take. Does not wait for silent devices.
    fn wait_once(&self, wait: impl FnOnce(Option<Instant>) -> bool) -> bool {
        if self.swap.areas.keep_all() {
            self.poll_transfers();
            return wait(self.after(Some(Duration::ZERO)));
        }
        let asked = self.swap.areas.asked();
        let ended = wait(self.after(self.policy.io_timeout));
        if !ended && !self.transfers.are_ending() {
            self.swap.areas.note_silence(&asked);
        }
        ended
    }

    fn wait_for_writes(&self, pages: u64, until: Option<Instant>) -> bool {
        let Transfers { writing_pages, ended_pages, .. } = &self.transfers;
        self.wait_while(until, &|| {
            writing_pages.load(Ordering::SeqCst) != 0 && ended_pages.load(Ordering::SeqCst) < pages
        })
    }

    /// Pages whose transfer has ended, so far. Compare it with a later value.
    pub(crate) fn ends(&self) -> u64 {
        let Transfers { ended_pages, read_pages, .. } = &self.transfers;
        // SeqCst, as for waiters that announce themselves.
        ended_pages.load(Ordering::SeqCst) + read_pages.load(Ordering::SeqCst)
    }

    /// Returns whether something is in flight, and nothing has ended since [`Engine::ends`] returned
    /// `before`.
    pub(crate) fn has_not_ended_since(&self, before: u64) -> bool {
        self.transfers.are_in_flight() && self.ends() == before
    }

    /// For a thread that found a device full. Waits until a transfer has ended since [`Engine::ends`]
    /// returned `before`. Returns at once if nothing is in flight. Returns `false` as
    /// [`Engine::wait_until_ended`] does.
    pub(crate) fn wait_for_room(&self, before: u64) -> bool {
        self.wait_while_devices_may_take(&|| self.has_not_ended_since(before))
    }

    /// Waits until nothing is in flight, or `patience` is over. Returns whether nothing is in flight.
    pub(crate) fn wait_for_transfers(&self, patience: Duration) -> bool {
        self.serve_devices();
        self.wait_while(self.after(Some(patience)), &|| self.transfers.are_in_flight())
    }

    /// The end of a wait that begins now. A time beyond the clock's end means for ever.
    fn after(&self, patience: Option<Duration>) -> Option<Instant> {
        patience.and_then(|patience| self.machine.clock.now().checked_add(patience))
    }

    /// Counts pages whose write begins, for a transfer that is not the engine's.
    pub(crate) fn note_write_begun(&self, pages: u32) {
        self.transfers.writing_pages.fetch_add(pages, Ordering::AcqRel);
    }

    /// Counts pages whose write has ended, and wakes those who wait for that.
    pub(crate) fn note_write_ended(&self, pages: u32) {
        self.transfers.writing_pages.fetch_sub(pages, Ordering::SeqCst);
        self.transfers.ended_pages.fetch_add(u64::from(pages), Ordering::SeqCst);
        self.wake_awaiting();
    }

    /// Waits until no device reads or writes a frame that the caller has pinned.
    pub(crate) fn wait_for_frame(&self, frame: FrameId) {
        let holds = &self.frames.words(frame).holds;
        self.flush_devices();
        block_until_driven(
            |waker| {
                if holds.load().is_under_io() && self.wait_for_io(frame, waker) == Waiting::Registered {
                    Poll::Pending
                } else {
                    Poll::Ready(())
                }
            },
            || self.drive(frame) == Waited::Progress,
        );
    }

    /// Waits while `waits` returns `true`, for a transfer in a device that `drive` waits for.
    pub(crate) fn wait_for_end_in(
        &self,
        waits: &dyn Fn() -> bool,
        drive: &dyn Fn(&dyn Fn() -> bool) -> Waited,
    ) {
        while waits() {
            block_until_driven(
                |waker| self.poll_ends(waker, waits),
                || {
                    if drive(waits) == Waited::Sleep {
                        // The next end wakes the thread. It looks again soon, since that end may be
                        // another's.
                        park_for(MOMENT);
                    }
                    true
                },
            );
        }
    }

    /// Waits until `waits` returns `false`, or until the time is over. Returns whether `waits` has returned
    /// `false`, which may have changed again by then.
    pub(super) fn wait_while(&self, until: Option<Instant>, waits: &dyn Fn() -> bool) -> bool {
        let ending = || self.transfers.are_ending();
        let has_ended = Cell::new(false);
        let still_waits = || {
            has_ended.set(has_ended.get() || !waits());
            !has_ended.get() && !ending() && until.is_none_or(|until| self.machine.clock.now() < until)
        };
        self.flush_devices();
        block_until_driven(
            |waker| self.poll_ends(waker, &still_waits),
            || {
                if self.wait_in_devices(&still_waits) == Waited::Sleep {
                    // The next end wakes the thread. It sleeps for a moment only, because the transfer that
                    // it waits for may not be in flight yet.
                    park_for(MOMENT);
                }
                true
            },
        );
        has_ended.get() || !waits()
    }

    pub(super) fn poll_ends(&self, waker: &Waker, waits: &dyn Fn() -> bool) -> Poll<()> {
        if !waits() {
            return Poll::Ready(());
        }
        let awaited = &self.transfers.awaited;
        let announce = || {
            // SeqCst, as for the end of a transfer, which counts first and then looks for waiters.
            awaited.swap(true, Ordering::SeqCst);
            waits()
        };
        match self.waits.register(key_of(awaited), waker, announce) {
            Waiting::Registered => Poll::Pending,
            Waiting::Retry => Poll::Ready(()),
        }
    }

    /// Puts back a frame that does not go out.
    pub(crate) fn putback(&self, frame: IsolatedFrame, place: Place) {
        // If all its entries were unmapped meanwhile, this thread must end it.
        self.forget_orphan(frame.frame());
        self.unpin(self.lru.putback(&self.frames, frame, place));
    }

    /// Tells the reclaim policy that a page is about to be read into this frame, which only the caller has.
    /// By the page's shadow, the policy decides where to put the frame.
    pub(crate) fn admit(&self, frame: FrameId, arrival: Arrival) {
        if arrival == Arrival::Fresh {
            return;
        }
        self.counters.count(Counter::WorkingsetRefault);
        if self.lru.admit(&self.frames, frame, arrival) == Place::Hot {
            self.counters.count(Counter::WorkingsetActivate);
        }
    }

    /// Frees a frame if it is still clean and only its store knows it.
    pub(crate) fn evict_clean(&self, frame: FrameId) {
        let words = self.frames.words(frame);
        let (pin, before) = PinnedFrame::take(frame, words);
        let is_ours = before.is_live() && self.lru.take(&self.frames, frame);
        match words.stored.page() {
            Some(page) if is_ours => {
                let frame = IsolatedFrame::new(pin);
                self.evict_or_putback(Going::from_iter([(page, frame)]));
            }
            _ if is_ours => self.putback(IsolatedFrame::new(pin), Place::Cold),
            _ => self.unpin(pin),
        }
    }

    /// Frees the clean frames that only their stores know, and puts the rest back. Returns how many it has
    /// freed.
    pub(crate) fn evict_or_putback(&self, run: Going) -> u64 {
        let mut outcomes = SmallVec::<[Evicted; ISOLATED]>::new();
        let shadow = self.lru.shadow();
        for run in run.chunk_by(|(a, _), (b, _)| a.store() == b.store()) {
            self.store(run[0].0).evict_run(&self.frames, run, shadow, &mut |evicted| outcomes.push(evicted));
        }
        let mut freed = 0;
        for ((_, frame), evicted) in run.into_iter().zip(outcomes) {
            match evicted {
                Evicted::Freed => {
                    // Eviction has ended the frame's pin too.
                    self.free_last(frame.into_pin().into_frame());
                    freed += 1;
                }
                Evicted::Kept => self.putback(frame, Place::Cold),
            }
        }
        freed
    }

    fn end_write(&self, job: &Job, written: bool) {
        let store = self.store(job.first);
        store.note_written(job.first, job.count, written);
        let mut clean = Going::new();
        self.for_each_chained(job, job.head, |page, frame| {
            if store.end_writeback(&self.frames, page, frame, written) {
                self.wake_io(frame);
            }
            let isolated = IsolatedFrame::counted(frame);
            if written {
                clean.push((page, isolated));
            } else {
                self.put_back_unwritten(page, frame);
                self.putback(isolated, Place::Cold);
            }
        });
        let freed = self.evict_or_putback(clean);
        self.transfers.freed_pages.fetch_add(freed, Ordering::AcqRel);
        self.transfers.writing_pages.fetch_sub(job.count, Ordering::SeqCst);
        self.transfers.ended_pages.fetch_add(u64::from(job.count), Ordering::SeqCst);
        self.wake_awaiting();
    }

    fn wake_awaiting(&self) {
        if self.transfers.awaited.swap(false, Ordering::SeqCst) {
            self.waits.wake(key_of(&self.transfers.awaited));
        }
    }

    /// For a transfer that a device refused. Another thread may have seen it in flight, and may be waiting
    /// for its end. If others are in flight, their ends will wake that thread. If each refusal woke threads,
    /// those that wait for room would wake each other without end.
    fn wake_if_idle(&self) {
        if !self.transfers.are_in_flight() {
            self.wake_awaiting();
        }
    }

    /// Makes the entry show a page that could not be written, as if it had never been on its way out. The
    /// page gives up its slot: another place on the device may work, and this one may never have existed.
    fn put_back_unwritten(&self, page: StoredPage, frame: FrameId) {
        let (store, words) = (self.store(page), self.frames.words(frame));
        if let Some(owner) = self.rmap.former_owner(&self.frames, frame) {
            let walk = self.table.walk(owner.space, owner.page);
            let seen = walk.entry();
            // While the entry leads to the page's place, the place belongs to the frame.
            let unchanged = store.is_led_to(page, seen) && walk.level == 0 && walk.links_hold();
            if unchanged && words.uses.try_add() {
                self.rmap.add(&self.frames, frame, owner);
                self.count_resident(owner.space, frame, 1);
                // The next access asks the region what may be done with the page.
                let shown = seen.to_present(frame, Protection::NONE);
                if walk.word().change(seen, shown).is_ok() {
                    self.drop_reference(Reference::counted(page));
                } else {
                    self.disown(frame, owner);
                }
            }
        }
        store.detach(&self.frames, frame);
    }

    fn end_read(&self, job: &Job, result: io::Result<()>) {
        let store = self.store(job.first);
        let result = store.note_read(job.first, job.count, result);
        self.for_each_chained(job, job.head, |page, frame| {
            let outcome = result.clone().and_then(|()| store.check_read(&self.frames, page, frame));
            self.end_read_of(page, PinnedFrame::counted(frame), outcome.err());
        });
        self.transfers.reading_pages.fetch_sub(job.count, Ordering::SeqCst);
        self.transfers.read_pages.fetch_add(u64::from(job.count), Ordering::SeqCst);
        self.wake_awaiting();
    }

    /// Ends the read of a frame under READING, whose bytes are there unless there was a failure. `pin` is the
    /// reader's.
    pub(crate) fn end_read_of(&self, page: StoredPage, pin: PinnedFrame, failure: Option<Error>) {
        self.end_read_as(page, pin, failure.map_or(Ok(()), |error| Err(Unread::Failed(error))));
    }

    fn end_read_as(&self, page: StoredPage, pin: PinnedFrame, outcome: Result<(), Unread>) {
        let frame = pin.frame();
        let read = outcome.is_ok();
        if let Err(why) = outcome {
            // The reason is noted before the waiters can ask for it.
            self.store(page).note_unread(page, why);
        }
        if self.frames.words(frame).holds.end_read(read) {
            self.wake_io(frame);
        }
        if read {
            // As soon as the frame was live, compaction may have found it by its place.
            self.lru.arrive(&self.frames, frame);
        } else {
            // Waiters for the frame have pins on it. A later access reads again.
            self.store(page).forget_failed(&self.frames, page, frame);
        }
        self.unpin(pin);
    }

    /// Calls `each` for the pages of a job, with the frames of the chain that begins at `head`.
    fn for_each_chained(&self, job: &Job, head: FrameId, mut each: impl FnMut(StoredPage, FrameId)) {
        let mut frame = head;
        for index in 0..job.count {
            // Read first: afterwards, the frame may belong to another page.
            let next = FrameId(self.frames.words(frame).next.load(Ordering::Relaxed));
            each(job.first.plus(index), frame);
            frame = next;
        }
    }
}

impl Host for Engine {
    fn arena(&self) -> &ArenaBytes {
        self.frames.bytes()
    }

    fn chained(&self, frame: FrameId) -> FrameId {
        FrameId(self.frames.words(frame).next.load(Ordering::Relaxed))
    }

    fn note_queue(&self, frame: FrameId, queue: u32) {
        self.frames.words(frame).prev.store(queue, Ordering::Relaxed);
    }

    fn ended(&self, job: Job, result: io::Result<()>) {
        let store = self.store(job.first);
        let _completing = store.completing();
        store.note_end(&job, &result);
        if job.bytes != job.head {
            self.for_each_chained(&job, job.bytes, |_, frame| store.give_stand_in_back(frame));
        }
        match job.direction {
            Direction::Write => self.end_write(&job, result.is_ok()),
            Direction::Read => self.end_read(&job, result),
        }
    }
}
