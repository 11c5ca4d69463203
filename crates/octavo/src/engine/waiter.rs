//! How an access waits for devices, and until when.
//!
//! One [`Waiter`] serves all waits of an access: for its page, for room, for a place in a queue. The code
//! that waits is written once, as an `async fn` that awaits the waiter. The waiter decides how to wait:
//!
//! | waiter | waits | until |
//! |---|---|---|
//! | [`Waiter::thread`] | in place: completes transfers, or sleeps | one deadline, set at the first wait |
//! | [`Waiter::task`] | pending: leaves wakers with the frame or the word, and with a timer | the same |
//! | [`Waiter::driven`] | the same, but leaves reads to the thread that polls it | the same |
//! | [`Waiter::patient`] | in place | each wait has the whole timeout: the end of a transfer is an answer |
//! | [`Waiter::brief`] | in place, for a read only | one deadline, set at the first wait |
//! | [`Waiter::never`] | not at all | - |
//!
//! A waiter that waits in place never returns Pending, so [`in_place`] polls its future exactly once.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::swap::HealthSnapshot;
use crate::sync::timer::Alarm;
use crate::sync::{Instant, thread};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Thread,
    Task,
    Driven,
    Patient,
    Brief,
    Never,
}

/// Awaits a future that is seldom needed. It is polled in a stack frame of its own, which keeps the caller's
/// frame small.
pub(crate) async fn apart<F: Future>(seldom: F) -> F::Output {
    #[inline(never)]
    fn poll<F: Future>(future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        future.poll(context)
    }
    let mut seldom = pin!(seldom);
    std::future::poll_fn(|context| poll(seldom.as_mut(), context)).await
}

/// Waits for devices on behalf of one access, or of one piece of work.
pub(crate) struct Waiter<'e> {
    engine: &'e Engine,
    how: How,
    /// The deadline of the access. `None` if the access has not waited yet, or may wait for ever.
    until: Option<Instant>,
    /// The state of the devices when the wait began.
    asked: HealthSnapshot,
    alarm: Option<Alarm>,
}

impl<'e> Waiter<'e> {
    fn new(engine: &'e Engine, how: How) -> Self {
        Self { engine, how, until: None, asked: HealthSnapshot::new(), alarm: None }
    }

    /// Returns a waiter of the same kind that has not waited yet.
    pub(crate) fn anew(&self) -> Self {
        Self::new(self.engine, self.how)
    }

    /// A thread that sleeps until its wait is over.
    pub(crate) fn thread(engine: &'e Engine) -> Self {
        Self::new(engine, How::Thread)
    }

    /// A future, which leaves wakers.
    pub(crate) fn task(engine: &'e Engine) -> Self {
        Self::new(engine, How::Task)
    }

    /// A future whose reads are started and completed by the thread that polls it together with others.
    pub(crate) fn driven(engine: &'e Engine) -> Self {
        Self::new(engine, How::Driven)
    }

    /// Returns whether the polling thread, not this waiter, starts and completes the reads.
    pub(crate) fn is_driven(&self) -> bool {
        self.how == How::Driven
    }

    /// A thread whose work has no deadline while its device still answers.
    pub(crate) fn patient(engine: &'e Engine) -> Self {
        Self::new(engine, How::Patient)
    }

    /// A thread that sleeps until its page has been read, and does not wait for anything else.
    pub(crate) fn brief(engine: &'e Engine) -> Self {
        Self::new(engine, How::Brief)
    }

    /// Returns whether the waiter waits for other holders of a page. If it does not, those holders may be
    /// waiting for its thread.
    pub(crate) fn waits_for_holders(&self) -> bool {
        !matches!(self.how, How::Brief | How::Never)
    }

    /// A waiter that never waits. The caller continues without what it lacks.
    pub(crate) fn never(engine: &'e Engine) -> Self {
        Self::new(engine, How::Never)
    }

    /// Returns whether some thread waits, here or at the other side of a translation.
    pub(crate) fn has_thread(&self) -> bool {
        !matches!(self.how, How::Task | How::Never)
    }

    /// Returns whether a thread sleeps here, not a future.
    pub(crate) fn blocks(&self) -> bool {
        !matches!(self.how, How::Task | How::Driven)
    }

    /// The deadline, if the wait has begun and has one.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Returns whether the deadline of the access has passed. The first call sets it.
    pub(crate) fn is_too_late(&mut self) -> bool {
        let Some(timeout) = self.engine.policy.io_timeout else { return false };
        let now = self.engine.machine.clock.now();
        if self.until.is_none() {
            // A time beyond the clock's end means for ever.
            self.until = now.checked_add(timeout);
            self.asked = self.engine.swap.areas.asked();
        }
        self.until.is_some_and(|until| now >= until)
    }

    /// Notes that the deadline has passed. Devices with transfers in flight that have not answered since the
    /// wait began count as silent.
    pub(crate) fn note_silence(&self) {
        self.engine.swap.areas.note_silence(&self.asked);
    }

    /// Returns whether this waiter no longer waits for anything.
    pub(crate) fn has_given_up(&mut self) -> bool {
        match self.how {
            How::Never | How::Brief => true,
            How::Patient => false,
            How::Thread | How::Task | How::Driven => self.is_too_late(),
        }
    }

    /// Has the timer wake a future at its deadline, if there is one.
    ///
    /// # Errors
    /// `System` if no thread for the timer can be started.
    pub(crate) fn set_alarm(&mut self, waker: &Waker) -> Result<()> {
        let Some(until) = self.until.filter(|_| !self.blocks()) else { return Ok(()) };
        match self.alarm {
            Some(alarm) => self.engine.timer.renew(alarm, waker),
            None => {
                let failed = |error| Error::system("cannot start a thread that wakes futures", &error);
                self.alarm = Some(self.engine.timer.set(until, waker).map_err(failed)?);
            }
        }
        Ok(())
    }

    /// Waits until `pages` pages have been written since the beginning, or no write is in flight. Returns
    /// `false` if the time ends first.
    pub(crate) async fn until_written(&mut self, pages: u64) -> bool {
        let engine = self.engine;
        let transfers = &engine.transfers;
        match self.how {
            How::Never | How::Brief => return false,
            How::Patient => return engine.wait_until_ended(pages),
            How::Thread | How::Task | How::Driven => {}
        }
        self.wait_while(&move || transfers.writing_pages() != 0 && transfers.ended_pages() < pages).await
    }

    /// Waits until some write has ended, or no write is in flight. Returns `false` if the time ends first.
    pub(crate) async fn until_some_write_ends(&mut self) -> bool {
        self.until_written(self.engine.transfers.ended_pages() + 1).await
    }

    /// Waits until some write has ended, or at most `most` pages are [coming](Engine::coming_pages). Returns
    /// `false` if the time ends first.
    pub(crate) async fn until_some_write_ends_above(&mut self, most: u64) -> bool {
        let engine = self.engine;
        let ended = engine.transfers.ended_pages();
        let waits = move || engine.transfers.ended_pages() == ended && engine.coming_pages() > most;
        if self.how == How::Patient {
            return engine.wait_while_devices_may_take(&waits);
        }
        self.wait_while(&waits).await
    }

    /// For a thread that found no page that can go. If the devices are silent, waits for a write to end.
    /// Otherwise, lets others run. Returns `false` if the time ends first.
    pub(crate) async fn until_more_may_go(&mut self) -> bool {
        if self.engine.swap.is_silent() {
            return self.until_some_write_ends().await;
        }
        self.give_way().await;
        true
    }

    /// Waits until some read has ended, or no read is in flight. Returns `false` if the time ends first.
    pub(crate) async fn until_some_read_ends(&mut self) -> bool {
        let transfers = &self.engine.transfers;
        let before = transfers.read_pages();
        self.wait_while(&move || transfers.reading_pages() != 0 && transfers.read_pages() == before).await
    }

    /// For a thread that found a device full. Waits until a transfer has ended since [`Engine::ends`]
    /// returned `before`, or nothing is in flight. Returns `false` if the time ends first.
    pub(crate) async fn until_room(&mut self, before: u64) -> bool {
        let engine = self.engine;
        if self.how == How::Patient {
            return engine.wait_for_room(before);
        }
        self.wait_while(&move || engine.has_not_ended_since(before)).await
    }

    /// Lets others run.
    pub(crate) async fn give_way(&self) {
        if self.blocks() {
            return thread::yield_now();
        }
        let mut yielded = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    async fn wait_while(&mut self, waits: &(dyn Fn() -> bool + Sync)) -> bool {
        let engine = self.engine;
        if !waits() {
            return true;
        }
        if self.how == How::Never {
            return false;
        }
        let has_ended = if self.is_too_late() {
            engine.poll_transfers();
            !waits()
        } else if self.blocks() {
            engine.wait_while(self.until, waits)
        } else {
            self.pend_while(waits).await
        };
        if has_ended {
            return true;
        }
        if waits() && self.is_too_late() {
            self.note_silence();
        }
        !waits()
    }

    /// Returns whether the wait ended because `waits` returned `false`, and not at the deadline.
    async fn pend_while(&mut self, waits: &(dyn Fn() -> bool + Sync)) -> bool {
        let engine = self.engine;
        engine.flush_devices();
        std::future::poll_fn(|context| {
            engine.poll_transfers();
            let (too_late, has_ended) = (self.is_too_late(), !waits());
            if has_ended
                || too_late
                || engine.transfers.are_ending()
                || self.set_alarm(context.waker()).is_err()
            {
                return Poll::Ready(has_ended);
            }
            let waiting = engine.poll_ends(context.waker(), waits);
            if waiting.is_pending() {
                // No thread takes completions for this future.
                engine.serve_devices();
            }
            waiting.map(|()| true)
        })
        .await
    }
}

impl Drop for Waiter<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            self.engine.timer.cancel(alarm);
        }
    }
}

/// Runs a future whose waiter waits in place.
pub(crate) fn in_place<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("a waiter that waits in place is never pending"),
    }
}
