//! Faults on pages that went out: from the swap cache while they are on their way, else from the device.
//!
//! The entry is busy from here until the page is there, so one fault reads and the others wait for that page only. Two
//! pages that share a slot have an entry each: the second finds the frame in the cache, still under READING, and
//! waits for the frame.

use std::task::Waker;

use crate::counters::Counter;
use crate::engine::{Engine, Figure, Window};
use crate::error::Error;
use crate::fault::readahead::{Run, add_window};
use crate::fault::{Fault, Outcome, Step};
use crate::io::Urgency;
use crate::region::{Region, RegionOptions};
use crate::rmap::Owner;
use crate::swap::{Brought, Pool, Wanted};
use crate::sync::wait::Waiting;
use crate::sync::{Instant, thread};
use crate::table::entry::{Entry, EntryWord};
use crate::table::translation::Installed;
use crate::table::{Protection, Walk};
use crate::units::{FrameId, Order, SwapSlot};

/// A window is at most one page in so many of the budget.
const WINDOW_SHARE: u64 = 128;

/// A page on its way in: its entry is busy, its frame in the swap cache and pinned.
pub(super) struct Reading<'a> {
    word: &'a EntryWord,
    busy: Entry,
    slot: SwapSlot,
    frame: FrameId,
    protection: Protection,
    compress: bool,
    /// Others' pages are read with it, or another reads it.
    together: bool,
    /// When a wait for a device that is timed began.
    began: Option<Instant>,
}

impl Reading<'_> {
    /// What is waited for while it is read.
    pub(super) fn frame(&self) -> FrameId {
        self.frame
    }

    /// The access is given up: the entry is as it was, the read goes on without it.
    pub(super) fn give_up(self, engine: &Engine) {
        engine.publish(self.word, self.busy.to_swapped(self.slot));
        engine.drop_pin(self.frame);
    }
}

impl<'a> Fault<'a> {
    pub(super) fn swap_in(&mut self, walk: &Walk<'a>, region: &Region, slot: SwapSlot) -> Step {
        let engine = self.engine;
        let (word, entry) = (walk.word(), walk.entry());
        if let Some(over) = self.check_quota(1) {
            return over;
        }
        // The frame is found before the entry is busy: looking for room must not keep others waiting. While the entry
        // says so, the slot cannot go.
        let fresh = match engine.find_swapped(slot) {
            Some(frame) => {
                engine.drop_pin(frame);
                None
            }
            None => match engine.frames.alloc(Order::ZERO) {
                Some(block) => Some(block.frame),
                None => return Step::End(Outcome::NeedsFrame),
            },
        };
        let busy = entry.to_busy();
        if word.change(entry, busy).is_err() {
            self.free_fresh(fresh);
            return Step::Again;
        }
        let (frame, is_first) = match self.enter(slot, fresh) {
            Some(found) => found,
            None => {
                // It left the cache in between: look for room again.
                engine.publish(word, busy.to_swapped(slot));
                return Step::Again;
            }
        };
        let RegionOptions { protection, compress, .. } = region.options;
        let together = !is_first;
        let began = self.is_timed(slot).then(Instant::now);
        self.reading = Some(Reading { word, busy, slot, frame, protection, compress, together, began: None });
        if !is_first {
            let window = self.look_ahead(region, true);
            engine.counters.count(Counter::SwapCacheHit);
            let holds = engine.frames.words(frame).holds.load();
            if !holds.is_dirty() && !holds.is_writeback() {
                engine.counters.count(Counter::ReadAheadHit);
                self.reading.iter_mut().for_each(|reading| reading.began = began);
            }
            if let Some(window) = window {
                let mut run = Run::new(engine);
                add_window(&mut run, self.space.id, window, region);
                run.submit(Urgency::Queued);
                engine.swap.flush();
            }
            return Step::Again;
        }
        // One pin for the transfer, one for this fault.
        engine.frames.words(frame).holds.take_pin();
        match engine.swap.bring(&engine.frames, slot, frame, Wanted::By(self.space.id)) {
            Brought::OnDevice => {}
            Brought::Here => {
                engine.end_read_of(slot, frame, None);
                return Step::Again;
            }
            Brought::Corrupt | Brought::Gone => {
                engine.end_read_of(slot, frame, Some(engine.swap.corrupt(slot)));
                return Step::Again;
            }
        }
        engine.counters.count(Counter::MajorFault);
        self.reading.iter_mut().for_each(|reading| reading.began = began);
        let window = self.look_ahead(region, false);
        let mut run = Run::new(engine);
        run.push(slot, frame);
        match window {
            None => run.submit(self.urgency()),
            Some(window) => {
                add_window(&mut run, self.space.id, window, region);
                run.submit(Urgency::Queued);
                self.reading.iter_mut().for_each(|reading| reading.together = true);
            }
        }
        engine.swap.flush();
        Step::Again
    }

    fn look_ahead(&self, region: &Region, hit: bool) -> Option<Window> {
        if self.alone {
            return None;
        }
        // A window is a small part of memory: pages read ahead must not push each other out before they are used.
        let share_pages = (self.engine.budget.limit_pages() / WINDOW_SHARE) as u32;
        let most = self.engine.policy.readahead_pages.min(share_pages);
        self.space.streams.on_fault(self.page, hit, region.options.pattern, most)
    }

    /// Whether the wait for this page, if it lies on an area, is to tell the pool what a device costs: one in some, where a
    /// thread sleeps for it. What a future waits, its executor waits too.
    fn is_timed(&self, slot: SwapSlot) -> bool {
        self.blocking && self.engine.swap.pool().is_some() && Pool::times_wait(slot)
    }

    /// Whether the device has been waited for as long as it may take. The first look sets the clock.
    fn is_too_late(&mut self) -> bool {
        let Some(timeout) = self.engine.policy.io_timeout else { return false };
        let now = Instant::now();
        if self.give_up_at.is_none() {
            // Beyond the end of time is for ever.
            self.give_up_at = now.checked_add(timeout);
        }
        self.give_up_at.is_some_and(|at| now >= at)
    }

    /// A fault that its thread waits for may be read in place.
    fn urgency(&self) -> Urgency {
        // In place it could not be given up.
        if self.blocking && self.engine.policy.io_timeout.is_none() { Urgency::Now } else { Urgency::Queued }
    }

    /// The frame for the slot, pinned, and whether this fault is to read it. `None`: there is no frame in the cache, and
    /// none was brought.
    fn enter(&self, slot: SwapSlot, fresh: Option<FrameId>) -> Option<(FrameId, bool)> {
        let engine = self.engine;
        match fresh {
            None => engine.find_swapped(slot).map(|frame| (frame, false)),
            Some(fresh) => match engine.swap.begin_read(&engine.frames, slot, fresh) {
                Ok(shadow) => {
                    engine.admit(fresh, shadow);
                    Some((fresh, true))
                }
                Err(cached) => {
                    self.free_fresh(Some(fresh));
                    Some((cached, false))
                }
            },
        }
    }

    fn free_fresh(&self, fresh: Option<FrameId>) {
        if let Some(frame) = fresh {
            self.engine.frames.free(frame, Order::ZERO).expect("just allocated");
        }
    }

    /// The frame is in hand: waits for its bytes, then shows it.
    pub(super) fn continue_reading(&mut self, reading: Reading<'a>, waker: &Waker) -> Step {
        let engine = self.engine;
        let frame = reading.frame;
        let holds = &engine.frames.words(frame).holds;
        let seen = holds.load();
        if seen.is_reading() {
            // It may have ended, and only have to be taken note of.
            engine.swap.flush();
            engine.poll_transfers();
            if self.is_too_late() && holds.load().is_reading() {
                reading.give_up(engine);
                return Step::End(Outcome::Failed(engine.swap.timed_out()));
            }
            let waiting = engine.wait_for_io(frame, waker);
            self.reading = Some(reading);
            if waiting == Waiting::Registered {
                if !self.blocking {
                    engine.swap.serve();
                }
                return Step::Wait;
            }
            thread::yield_now();
            return Step::Again;
        }
        // A failed *write* also leaves the mark, on a frame whose bytes are good: it is dirty.
        if seen.is_failed() && !seen.is_dirty() {
            let error = engine.swap.read_failure(reading.slot);
            return self.fail(reading, error);
        }
        if let (Some(began), Some(pool)) = (reading.began, engine.swap.pool()) {
            pool.weights(Some(self.space.id)).note_wait(began.elapsed().as_nanos() as u64);
        }
        match self.translate(frame, self.page, 1) {
            Installed::Done => {}
            refusal => {
                reading.give_up(engine);
                return self.refuse(refusal);
            }
        }
        self.show(reading);
        Step::End(Outcome::Usable)
    }

    fn show(&mut self, reading: Reading<'a>) {
        let Reading { word, busy, slot, frame, protection, compress, .. } = reading;
        let engine = self.engine;
        let words = engine.frames.words(frame);
        let owner = Owner { space: self.space.id, page: self.page };
        let added = words.uses.try_add();
        assert!(added, "a cached frame is in use");
        engine.rmap.add(words, owner);
        engine.space_use.add(owner.space, Figure::Resident, 1);
        engine.space_use.add(owner.space, Figure::SwapIn, 1);
        if !compress {
            words.holds.mark_plain();
        }
        engine.publish(word, busy.to_present(frame, protection));
        let orphan = engine.swap.drop_reference(&engine.frames, slot);
        engine.release_orphan(orphan);
        if engine.swap.is_better_given_up(slot) {
            engine.swap.detach(&engine.frames, frame);
        }
        // After the reference: until it is dropped under the slot's lock, this pin keeps `evict_run` away.
        engine.drop_pin(frame);
    }

    /// The device did not give the page: the entry is as it was, the next access tries again with another frame.
    fn fail(&mut self, reading: Reading<'a>, error: Error) -> Step {
        let Reading { word, busy, slot, frame, together, .. } = reading;
        let engine = self.engine;
        engine.swap.forget_failed(&engine.frames, slot, frame);
        engine.publish(word, busy.to_swapped(slot));
        engine.drop_pin(frame);
        if together && !self.alone {
            // It may have been a neighbour's place that could not be read.
            self.alone = true;
            return Step::Again;
        }
        Step::End(Outcome::Failed(error))
    }
}
