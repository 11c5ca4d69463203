//! Faults on pages that went out. A fault takes the page from the swap cache if it is there, and otherwise
//! from the pool or the device.
//!
//! The entry stays Swapped while its page is read. The frame is in the swap cache under READING, as for pages
//! read ahead. Each thread that wants the page pins the frame and waits for it, with a deadline of its own.
//! So a wait for a device never delays unmap, protect or another fault. A fault that gives up only drops its
//! pin.
//!
//! ```text
//!   entry Swapped(slot) ── in the cache? ── yes ─► pin the frame ──────────────┐
//!        ▲                      │ no                                           ▼
//!        │                a fresh frame, under READING ─► transfer ─► READING? wait for the frame
//!        │                                                                     │ the bytes are there
//!        └──────────── the entry has changed: look again ◄── Swapped(slot) ─► Present(frame),
//!                                                                          by one compare-and-swap
//! ```
//!
//! **Why one compare-and-swap is enough** (Linux's `do_swap_page` takes the page's lock and looks at the
//! entry again). After each wait, the fault walks to the entry and looks up the region again, because the
//! page may be gone. It need not do so if the read has ended by the time its submission returns. An unchanged
//! entry holds a reference to the slot. With that reference, the slot is not freed, and a cached frame is
//! neither detached nor orphaned. With the pin, the frame is not evicted, migrated or freed. So a frame that
//! is pinned, found at the slot and free of errors belongs to the page until the entry changes. The fault
//! adds its use and its owner first, and removes them if the swap fails. An unmap or a protect changes the
//! region and then the entry's version. So a fault with the old region's permissions fails at the swap.
//!
//! A fault that finds its page in the cache costs a pin, a use, an owner, the compare-and-swap of the entry,
//! and the slot's lock to drop the reference.

use std::task::Waker;

use crate::counters::Counter;
use crate::engine::{Engine, Figure, Hit, ReadaheadWindow};
use crate::fault::readahead::{read_ahead, read_with};
use crate::fault::{Fault, Outcome, Step};
use crate::frame::PinnedFrame;
use crate::io::Urgency;
use crate::latency::{self, Latency};
use crate::policy::Arrival;
use crate::region::Region;
use crate::store::{Begun, PageStore, Reference, Unread};
use crate::swap::{self, Brought, Pool, Wanted};
use crate::sync::wait::Waiting;
use crate::sync::{Instant, thread};
use crate::table::entry::Entry;
use crate::table::{Protection, Walk};
use crate::units::{FrameId, Order, PageNumber, StoredPage, SwapSlot};

/// A window is at most one in this many pages of the budget.
const WINDOW_SHARE: u64 = 128;

/// A page on its way in. Its frame was in its store, and is pinned.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) page: StoredPage,
    pub(super) pin: PinnedFrame,
    /// Other pages are read with it, or another fault reads it.
    pub(super) together: bool,
    /// The page was only on its device, and this fault submitted the read.
    sent: bool,
    /// The value of [`Engine::ends`] before the page was looked up.
    pub(super) ends: u64,
    /// The start of the wait, if it is timed for the pool.
    began: Option<Instant>,
    /// What the fault waits for, and since when, if the latency is noted.
    waits: Option<(Latency, Instant)>,
}

impl Reading {
    pub(super) fn new(page: StoredPage, pin: PinnedFrame, ends: u64) -> Self {
        Self { page, pin, together: false, sent: false, ends, began: None, waits: None }
    }

    /// The slot of a page that swap keeps.
    fn slot(&self) -> SwapSlot {
        SwapSlot::named(self.page)
    }

    /// The frame that the fault waits for while its page is read.
    pub(super) fn frame(&self) -> FrameId {
        self.pin.frame()
    }

    /// Notes how long the fault waited, now that the page is there.
    #[inline]
    pub(super) fn note_wait(&self, engine: &Engine) {
        if let Some((latency, since)) = self.waits {
            let took = engine.machine.clock.since(since);
            if latency == Latency::Device {
                engine.latencies.note_device(engine.swap.areas.locate(self.slot()).0, took);
            } else {
                engine.latencies.note(latency, took);
            }
        }
    }

    /// Drops the pin. The read continues without this fault.
    pub(super) fn give_up(self, engine: &Engine) {
        engine.unpin(self.pin);
    }
}

impl<'a> Fault<'a> {
    /// Serves a Swapped entry at the end of `walk`.
    pub(super) fn swap_in(&mut self, walk: &Walk<'a>, region: &Region, slot: SwapSlot) -> Step {
        if let Some(reading) = self.reading.take() {
            if reading.page == slot.stored() {
                return self.end_wait(walk, region, reading);
            }
            reading.give_up(self.engine);
        }
        if let Some(over) = self.check_quota(1) {
            return over;
        }
        let ends = self.engine.ends();
        match self.engine.find_swapped(slot) {
            Some(pin) => self.join(walk, region, slot, pin, ends),
            None => self.read(walk, region, slot, ends),
        }
    }

    /// Serves a Swapped entry whose page is overwritten whole. The old bytes are not read.
    ///
    /// The page may be pinned. Eviction makes an entry Swapped before it checks for pins, and leaves a pinned
    /// page Swapped with its frame in the cache. Such a pin must show what is written, so the page keeps a
    /// cached frame that has its bytes. A pin taken through this entry keeps its frame in the cache, and no
    /// new pin can be taken before the entry changes. So without such a frame, there is no pin.
    pub(super) fn overwrite(&mut self, walk: &Walk<'a>, region: &Region, slot: SwapSlot) -> Step {
        if let Some(over) = self.check_quota(1) {
            return over;
        }
        let engine = self.engine;
        if let Some(pin) = engine.swap.cache.find(&engine.frames, slot) {
            let holds = engine.frames.words(pin.frame()).holds.load();
            if !holds.is_reading() && !holds.was_read_in_vain() {
                engine.counters.count(Counter::SwapCacheHit);
                return self.end_wait(walk, region, Reading::new(slot.stored(), pin, engine.ends()));
            }
            engine.unpin(pin);
        }
        self.install_frame(walk, region)
    }

    /// Serves a page in the cache: another fault reads it, it was read ahead, or it is still on its way out.
    fn join(
        &mut self,
        walk: &Walk<'a>,
        region: &Region,
        slot: SwapSlot,
        pin: PinnedFrame,
        ends: u64,
    ) -> Step {
        let engine = self.engine;
        engine.counters.count(Counter::SwapCacheHit);
        let holds = engine.frames.words(pin.frame()).holds.load();
        let mut reading = Reading { together: true, ..Reading::new(slot.stored(), pin, ends) };
        let mut hit = Hit::Cached;
        if !holds.is_dirty() && !holds.is_writeback() {
            engine.counters.count(Counter::ReadAheadHit);
            reading.began = self.timed_from(slot);
            hit = Hit::ReadAhead;
        }
        if let Some(window) = self.look_ahead(region, hit) {
            read_ahead(engine, self.space, window, region);
            self.start_collected();
        }
        if holds.is_reading() {
            // Otherwise, another thread is unpacking it from the pool.
            let is_on_device = engine.swap.is_on_device(slot);
            reading.waits = is_on_device.then(|| (Latency::Device, engine.machine.clock.now()));
            self.reading = Some(reading);
            return Step::Again;
        }
        self.end_wait(walk, region, reading)
    }

    /// Reads a page that only its slot has.
    fn read(&mut self, walk: &Walk<'a>, region: &Region, slot: SwapSlot, ends: u64) -> Step {
        let engine = self.engine;
        let sampled_at = latency::is_sampled(self.page).then(|| engine.machine.clock.now());
        let Some(block) = engine.frames.alloc(Order::ZERO) else { return Step::End(Outcome::NeedsFrame) };
        let (transfer, shadow) = match engine.swap.begin_read(&engine.frames, slot.stored(), block) {
            Begun::Reading(pin, shadow) => (pin, shadow),
            Begun::Cached(pin, block) => {
                engine.frames.give_back(block);
                return self.join(walk, region, slot, pin, ends);
            }
            Begun::Gone(block) => {
                engine.frames.give_back(block);
                return Step::Again;
            }
        };
        let frame = transfer.frame();
        engine.admit(frame, Arrival::of(shadow, self.along.is_along()));
        // `transfer` is the transfer's pin, and this one is the fault's.
        let (pin, _) = PinnedFrame::take(frame, engine.frames.words(frame));
        let mut reading = Reading::new(slot.stored(), pin, ends);
        let brought = engine.swap.bring(&engine.frames, slot, frame, Wanted::By(self.space.id));
        if let (Some(shadow), Some(pool)) = (shadow, engine.swap.pool()) {
            let is_on_device = brought == Brought::OnDevice;
            // A page that repeats one word was in no pool, and waits for no device.
            if is_on_device || brought == Brought::Unpacked {
                pool.share().note(shadow, engine.lru.shadow(), is_on_device);
            }
        }
        match brought {
            Brought::OnDevice => {
                engine.counters.count(Counter::MajorFault);
                reading.waits = Some((Latency::Device, engine.machine.clock.now()));
                reading.began = self.timed_from(slot);
                reading.sent = true;
                reading.together = self.start_read(region, slot, transfer);
                if engine.frames.words(frame).holds.load().is_reading() {
                    self.reading = Some(reading);
                    return Step::Again;
                }
                // The device has read the page already, in this thread.
            }
            Brought::Unpacked | Brought::Filled => {
                reading.waits = sampled_at.map(|at| (Latency::Unpacked, at));
                engine.end_read_of(slot.stored(), transfer, None);
            }
            Brought::Corrupt => engine.end_read_of(slot.stored(), transfer, Some(engine.swap.corrupt(slot))),
            Brought::Gone => engine.end_read_of(slot.stored(), transfer, Some(engine.swap.freed(slot))),
        }
        self.end_wait(walk, region, reading)
    }

    /// Sends the read to the device, with the pages to be read ahead. Returns whether there are any.
    fn start_read(&mut self, region: &Region, slot: SwapSlot, transfer: PinnedFrame) -> bool {
        let (engine, frame) = (self.engine, transfer.frame());
        let Some(window) = self.look_ahead(region, Hit::None) else {
            engine.start_read(slot.stored(), [transfer], self.urgency());
            if engine.frames.words(frame).holds.load().is_reading() {
                self.start_collected();
            }
            return false;
        };
        read_with(engine, self.space, (slot.stored(), transfer), window, region);
        self.start_collected();
        true
    }

    /// Starts the reads that devices have collected, unless the thread that polls this fault does so for many
    /// faults.
    pub(super) fn start_collected(&self) {
        if !self.waiter.is_driven() {
            self.engine.flush_devices();
        }
    }

    pub(super) fn look_ahead(&self, region: &Region, hit: Hit) -> Option<ReadaheadWindow> {
        if self.alone {
            return None;
        }
        // A window is a small part of memory: pages read ahead must not push each other out before they are
        // used.
        let share_pages = (self.engine.budget.limit_pages() / WINDOW_SHARE) as u32;
        let most = self.engine.policy.readahead_pages.min(share_pages);
        self.space.streams.on_fault(self.page, hit, region.options.pattern, most)
    }

    /// Returns the start of this wait if it is timed, to tell the pool how long a device takes. Only a sample
    /// of the waits by threads is timed. A future's wait would include its executor's delays.
    fn timed_from(&self, slot: SwapSlot) -> Option<Instant> {
        let timed = self.waiter.has_thread() && self.engine.swap.pool().is_some() && Pool::times_wait(slot);
        timed.then(|| self.engine.machine.clock.now())
    }

    /// Returns the urgency of the read. A device may block the thread of this fault until the page is read,
    /// if that thread would sleep anyway.
    pub(super) fn urgency(&self) -> Urgency {
        // The thread could not give up a read that blocks it.
        if self.waiter.blocks() && self.waiter.has_thread() && self.engine.policy.io_timeout.is_none() {
            Urgency::Now
        } else {
            Urgency::Queued
        }
    }

    /// Waits while the frame is being read. Returns `None` if it is not. The caller then looks at the entry
    /// again.
    pub(super) fn wait_for_read(&mut self, waker: &Waker) -> Option<Step> {
        let engine = self.engine;
        let (frame, page) = self.reading.as_ref().map(|reading| (reading.frame(), reading.page))?;
        let holds = &engine.frames.words(frame).holds;
        if !holds.load().is_reading() {
            return None;
        }
        let is_too_late = self.waiter.is_too_late();
        if !self.waiter.is_driven() || is_too_late {
            // The read may have ended, and only its completion has to be taken.
            engine.flush_devices();
            engine.poll_transfers();
        }
        if is_too_late && holds.load().is_reading() {
            self.waiter.note_silence();
            return Some(Step::End(Outcome::Failed(engine.store(page).timed_out(page))));
        }
        if engine.wait_for_io(frame, waker) == Waiting::Registered {
            if !self.waiter.blocks() && !self.waiter.is_driven() {
                engine.serve_devices();
            }
            return Some(Step::Wait);
        }
        thread::yield_now();
        Some(Step::Again)
    }

    /// Makes the entry show the frame. The read has ended, or none was needed. The entry led to the slot when
    /// `walk` read it.
    fn end_wait(&mut self, walk: &Walk<'a>, region: &Region, reading: Reading) -> Step {
        let engine = self.engine;
        let holds = engine.frames.words(reading.frame()).holds.load();
        if holds.was_read_in_vain() {
            return self.fail(walk, reading);
        }
        if let (Some(began), Some(pool)) = (reading.began, engine.swap.pool()) {
            let waited_ns = engine.machine.clock.since(began).as_nanos() as u64;
            pool.weights(Some(self.space.id)).note_wait(waited_ns);
            // The pool's share counts the pages that came back and that readahead missed. So it needs their
            // cost.
            if reading.sent {
                pool.share().times().waits.note(waited_ns);
            }
        }
        if swap::slot_of(&engine.frames, reading.frame()) != Some(reading.slot()) {
            // The page was unmapped meanwhile, and the slot has another page now.
            reading.give_up(engine);
            return Step::Again;
        }
        let step = self.show(walk, region, &reading);
        // The pin is dropped after the reference. Until the reference is dropped under the slot's lock, the
        // pin keeps `evict_run` away.
        reading.give_up(engine);
        step
    }

    /// Changes the entry from Swapped to Present.
    fn show(&self, walk: &Walk<'a>, region: &Region, reading: &Reading) -> Step {
        let (entry, frame) = (walk.entry(), reading.frame());
        // The entry is read first: if several faults waited for the page, only one shows it.
        if walk.word().load() != entry {
            return Step::Again;
        }
        // In a space with a translation, the frame may be shared (`Fault::unshare`).
        let is_exclusive = self.space.translation.is_none();
        let protection = if is_exclusive { region.options.entry_protection() } else { Protection::NONE };
        if !self.show_at(walk, self.page, frame, entry.to_present(frame, protection)) {
            return Step::Again;
        }
        self.end_swap_in(region, reading)
    }

    /// Makes the entry that `walk` read show a frame, as `to` says, with `page` as one more owner of the
    /// frame. Returns `false`, and changes nothing, if the frame has lost its last use, and thus its place in
    /// its store, or if the entry has changed.
    pub(super) fn show_at(&self, walk: &Walk<'a>, page: PageNumber, frame: FrameId, to: Entry) -> bool {
        let (engine, owner) = (self.engine, self.owner(page));
        if !engine.frames.words(frame).uses.try_add() {
            return false;
        }
        engine.rmap.add(&engine.frames, frame, owner);
        engine.count_resident(self.space.id, frame, 1);
        let is_shown = walk.word().change(walk.entry(), to).is_ok();
        if !is_shown {
            engine.disown(frame, owner);
        }
        is_shown
    }

    /// Drops the reference of an entry that no longer leads to the slot.
    fn end_swap_in(&self, region: &Region, reading: &Reading) -> Step {
        let (engine, frame) = (self.engine, reading.frame());
        reading.note_wait(engine);
        engine.space_use.add(self.space.id, Figure::SwapIn, 1);
        self.mark_by(region, frame);
        engine.drop_reference(Reference::counted(reading.page));
        if engine.swap.should_give_up_slot(&engine.frames, reading.slot()) {
            engine.swap.cache.detach(&engine.frames, frame);
        }
        Step::End(Outcome::Usable)
    }

    /// Ends a fault whose read failed. If the entry is unchanged, the access fails, and the next access tries
    /// again with another frame. If the entry has changed, the page is elsewhere, and its slot may be empty.
    pub(super) fn fail(&mut self, walk: &Walk<'a>, reading: Reading) -> Step {
        let Reading { page, pin, together, ends, .. } = reading;
        let engine = self.engine;
        let store = engine.store(page);
        let why = store.why_unread(page);
        store.forget_failed(&engine.frames, page, pin.frame());
        engine.unpin(pin);
        if walk.word().load() != walk.entry() {
            return Step::Again;
        }
        match why {
            Unread::NoRoom => Step::End(Outcome::DeviceFull { page, ends }),
            Unread::Failed(_) if together && !self.alone => {
                // The read may have failed at the slot of another page.
                self.alone = true;
                Step::Again
            }
            Unread::Failed(error) => Step::End(Outcome::Failed(error)),
        }
    }
}
