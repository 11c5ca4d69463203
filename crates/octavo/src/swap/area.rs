//! One area: a device, its slots, and its health.
//!
//! A user's device may panic. The panic is caught here. The unwinding drops the transfer that the device
//! held. So the transfer ends with an error, and threads that wait for the transfer get the error. A panic in
//! a completion is Octavo's own, and is resumed.
//!
//! Locking: `failure` is locked only to read or write a few words. No device is called under it. A device is
//! asked for its name once, when the area is opened.

use std::io;
use std::panic::resume_unwind;

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind};
use crate::io::{Device, Direction, Host, Job, Submitted, Transfer, Urgency, Waited};
use crate::swap::area_stats::{AreaStats, AreaTraffic};
use crate::swap::clusters::AreaShape;
use crate::swap::health::{Condition, Health, HealthWord, TransferEnd};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, Shared, catch_panic};

/// After this many failures in a row, a failing area gets only one of 64 runs while other areas are well.
const MOST_FAILURES: u32 = 6;

/// A device, its slots, and its health.
pub(super) struct Area {
    pub(super) device: Box<dyn Device>,
    /// The device's name, for messages.
    pub(super) name: String,
    pub(super) shape: AreaShape,
    pub(super) first_slot: u32,
    health: Health,
    /// The number of pages that are being written. Relaxed throughout: the number is only an estimate of how
    /// much memory will be freed.
    writing_pages: AtomicU32,
    /// While there are other areas, a failing area is tried less and less often.
    probes: Backoff,
    /// The last write that failed.
    failure: Mutex<Option<Error>>,
    /// Whether a completion panicked inside a call of the device.
    is_broken: Shared<AtomicBool>,
    traffic: AreaTraffic,
}

impl Area {
    pub(super) fn new(
        device: Box<dyn Device>,
        shape: AreaShape,
        first_slot: u32,
        is_broken: Shared<AtomicBool>,
    ) -> Self {
        Self {
            name: device.describe(),
            device,
            shape,
            first_slot,
            health: Health::default(),
            writing_pages: AtomicU32::new(0),
            probes: Backoff::new(MOST_FAILURES),
            failure: Mutex::new(None),
            is_broken,
            traffic: AreaTraffic::default(),
        }
    }

    // --- the device ---

    /// Submits a job at `place`. Returns false if the device is full; then nothing has begun.
    pub(super) fn submit(&self, host: Shared<dyn Host>, job: Job, place: u32, urgency: Urgency) -> bool {
        let before = self.health.begin();
        if job.direction == Direction::Write {
            self.writing_pages.fetch_add(job.count, Ordering::Relaxed);
        }
        let from = Shared::as_ptr(&host).cast();
        let transfer = Transfer::new(host, job, place);
        let back = match self.call(|device| device.submit(transfer, urgency)) {
            None | Some(Submitted::Accepted) => return true,
            Some(Submitted::Full(back)) => back,
        };
        let now = self.health.load();
        let wrong = if !back.is_of(from, &job) {
            "gave another transfer back, which is in flight"
        } else if now.in_flight() == 1 && now.has_not_answered_since(before) {
            // Without a transfer in flight, no completion would ever show that the device has room again.
            "says that it is full, and has nothing in flight"
        } else {
            self.health.refused();
            self.note_no_longer_writing(&job);
            back.take_back();
            return false;
        };
        back.complete(Err(io::Error::other(format!("the device {wrong}"))));
        true
    }

    pub(super) fn flush(&self) {
        self.call(Device::flush);
    }

    pub(super) fn poll(&self) {
        self.call(Device::poll);
    }

    pub(super) fn serve(&self) {
        self.call(Device::serve);
    }

    /// Waits for a transfer. If the device panics, the answer is that the thread may sleep.
    pub(super) fn wait(&self, queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.call(|device| device.wait(queue, still_waiting)).unwrap_or(Waited::Sleep)
    }

    /// Calls the device. Returns `None` if it panicked.
    #[inline]
    fn call<'a, T>(&'a self, work: impl FnOnce(&'a dyn Device) -> T) -> Option<T> {
        match catch_panic(|| work(&*self.device)) {
            Ok(done) => Some(done),
            // Relaxed: this thread itself set `is_broken` while it unwound.
            Err(panic) if self.is_broken.load(Ordering::Relaxed) => resume_unwind(panic),
            Err(_) => None,
        }
    }

    // --- how it does ---

    pub(super) fn seen(&self) -> HealthWord {
        self.health.load()
    }

    pub(super) fn state(&self) -> Condition {
        self.seen().state()
    }

    /// Notes the end of a transfer.
    pub(super) fn note_end(&self, job: &Job, result: &io::Result<()>) {
        self.note_no_longer_writing(job);
        let end = match (job.direction, result) {
            (Direction::Read, Ok(())) => TransferEnd::Read,
            (Direction::Read, Err(_)) => TransferEnd::ReadFailed,
            (Direction::Write, Ok(())) => TransferEnd::Written,
            (Direction::Write, Err(error)) => {
                // The failure is kept before any thread can see that the write failed.
                self.note_failure(self.write_error(error));
                TransferEnd::WriteFailed
            }
        };
        // An access compares the count of failed writes with the count that it read earlier.
        self.traffic.note_end(job.direction, job.count, result.is_ok());
        let before = self.health.end(end);
        if end == TransferEnd::Written && before.state() != Condition::Well {
            self.probes.ended(true);
        }
    }

    fn note_no_longer_writing(&self, job: &Job) {
        if job.direction == Direction::Write {
            self.writing_pages.fetch_sub(job.count, Ordering::Relaxed);
        }
    }

    /// Pages being written now.
    pub(super) fn writing_pages(&self) -> u32 {
        self.writing_pages.load(Ordering::Relaxed)
    }

    #[cold]
    fn note_failure(&self, error: Error) {
        *self.failure.lock() = Some(error);
        self.probes.ended(false);
    }

    /// The figures of the area, of whose slots `used_slots` are in use.
    pub(super) fn stats(&self, used_slots: u32) -> AreaStats {
        self.traffic.stats(self.name.clone(), self.state(), self.shape.capacity_pages, used_slots)
    }

    /// How many writes have failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.traffic.failed_writes()
    }

    /// Notes that a deadline has passed. When the wait for this deadline began, the area's health was
    /// `before`.
    pub(super) fn note_silence(&self, before: HealthWord) {
        self.health.note_silence(before);
    }

    /// Returns whether a failing area should be tried once more, although there are other areas.
    pub(super) fn is_to_be_probed(&self) -> bool {
        !self.probes.turns_away()
    }

    /// The reason why pages cannot go to this area, if it is known.
    #[cold]
    pub(super) fn failure(&self) -> Option<Error> {
        match self.state() {
            Condition::Well => None,
            Condition::Failing => self.failure.lock().clone(),
            Condition::Silent => Some(timed_out(&self.name)),
        }
    }

    #[cold]
    fn write_error(&self, error: &io::Error) -> Error {
        let (kind, advice) = match error.raw_os_error() {
            Some(ENOSPC) => (ErrorKind::SwapFull, "free room on its file system, or drop a space"),
            Some(EFBIG) => (
                ErrorKind::SwapFull,
                "raise the process's limit on file sizes (RLIMIT_FSIZE, `ulimit -f`), or drop a space",
            ),
            _ => (ErrorKind::SwapWrite, "the pages stay in memory; check the device, or drop a space"),
        };
        Error::new(kind, format!("writing to {} failed: {error}; {advice}", self.name))
    }

    /// The error for an access whose page could not be read.
    #[cold]
    pub(super) fn read_error(&self, why: &str) -> Error {
        Error::new(
            ErrorKind::SwapRead,
            format!(
                "reading from {} failed: {why}; the page is still there, try the access again",
                self.name
            ),
        )
    }
}

/// The error for an access that has waited too long for `device`.
#[cold]
pub(super) fn timed_out(device: &str) -> Error {
    let message = format!(
        "{device} did not answer in time; no page is lost: try the access again, or check the device"
    );
    Error::new(ErrorKind::TimedOut, message)
}

/// The errors of a write which mean that the device has no room.
const ENOSPC: i32 = rustix::io::Errno::NOSPC.raw_os_error();
const EFBIG: i32 = rustix::io::Errno::FBIG.raw_os_error();
