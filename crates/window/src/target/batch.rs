//! One batch of pages: moved to staging, and read from there.
//!
//! ```text
//!   runs ─► parts: runs that lie together ─► moved ─► read
//!                                              └─► shared since a fork: made movable
//!                                                    ─► moved and read, in the same batch
//! ```
//!
//! The outcomes report all other refusals of the kernel, which are not retried here.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use octavo_platform::pagemap::{Categories, ScanFilter};
use octavo_platform::process_memory::read_process;
use octavo_stub::{OutgoingRun, Staging};
use rustix::io::Errno;

use super::{Equipment, PAGE, Target};
use crate::reach::{TakeOutcome, Taking};

/// How often to move on the pages that are stuck in the first staging range, and the pause in between.
const TRIES: u32 = 1000;
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Adjacent pages of one batch, and their place in staging.
#[derive(Clone, Copy, Debug)]
struct BatchPart {
    run: OutgoingRun,
    may_be_opened: bool,
    offset: u64,
    done: u64,
    error: Option<Errno>,
}

impl BatchPart {
    fn of(taking: &Taking) -> Self {
        let run = OutgoingRun { address: taking.address, len: taking.len };
        Self { run, may_be_opened: taking.may_be_opened(), offset: 0, done: 0, error: None }
    }

    /// Divides runs into parts. Adjacent pages, even of two runs, are one part and move together.
    fn all_of(runs: &[Taking]) -> Vec<Self> {
        let mut parts: Vec<Self> = Vec::with_capacity(runs.len());
        for run in runs {
            match parts.last_mut() {
                Some(part)
                    if part.run.address + part.run.len == run.address
                        && part.may_be_opened == run.may_be_opened() =>
                {
                    part.run.len += run.len;
                }
                _ => parts.push(Self::of(run)),
            }
        }
        parts
    }

    /// Returns how many bytes have moved of a run of `len` bytes that begins `at` bytes after the part's
    /// start.
    fn done_of(&self, at: u64, len: u64) -> u64 {
        self.done.saturating_sub(at).min(len)
    }

    /// Returns the outcome for a run of `len` bytes of which `done` have moved.
    fn outcome(&self, done: u64, len: u64) -> TakeOutcome {
        match self.error {
            _ if done == len => TakeOutcome::All,
            Some(Errno::INVAL) if done == 0 => TakeOutcome::Never,
            Some(Errno::AGAIN) if done == 0 => TakeOutcome::Unread,
            _ => TakeOutcome::Part(done),
        }
    }

    /// Returns whether the part was refused for a page that a fork may share, and that may be made movable.
    fn is_shared(&self) -> bool {
        self.error == Some(Errno::BUSY) && self.may_be_opened && self.done < self.run.len
    }
}

impl Target {
    /// Takes one batch out, including pages that a fork has shared. Returns false if the program or its mover
    /// has ended.
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    pub(super) unsafe fn take_batch(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut Vec<TakeOutcome>,
    ) -> bool {
        let (first, mut movable) = (outcomes.len(), Vec::new());
        // SAFETY: the caller's promise.
        let is_taken = unsafe { self.take_movable(equipment, runs, outcomes, &mut movable) };
        let outcomes = &mut outcomes[first..];
        let taken_bytes: u64 = runs.iter().zip(&*outcomes).map(|(run, taken)| taken.bytes(run.len)).sum();
        self.taken_pages.fetch_add(taken_bytes / PAGE, Ordering::Relaxed);
        if !is_taken || movable.is_empty() {
            return is_taken;
        }
        // Pages that have become the program's own take memory of their own. So they go at once. SAFETY: the
        // caller's promise.
        unsafe { self.take_made_movable(equipment, runs, outcomes, &movable) }
    }

    /// Takes out the pages that have just been made movable. They belong to runs that have moved in part.
    /// Returns the same as [`Target::take_batch`].
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    unsafe fn take_made_movable(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut [TakeOutcome],
        movable: &[Range<u64>],
    ) -> bool {
        let (mut rest, mut of) = (Vec::new(), Vec::new());
        for (index, run) in runs.iter().enumerate() {
            let TakeOutcome::Part(done) = outcomes[index] else { continue };
            let start = run.address + done;
            let range = movable.iter().find(|range| range.contains(&start) && run.may_be_opened());
            if let Some(range) = range {
                let len = (run.len - done).min(range.end - start);
                rest.push(Taking { address: start, len, to: run.to.wrapping_add(done as usize), ..*run });
                of.push((index, done, run.len));
            }
        }
        let mut later = Vec::with_capacity(rest.len());
        // SAFETY: the caller's promise; these are parts of its runs.
        let is_taken = unsafe { self.take_movable(equipment, &rest, &mut later, &mut Vec::new()) };
        for (((index, done, len), run), taken) in of.into_iter().zip(&rest).zip(later) {
            let more = taken.bytes(run.len);
            outcomes[index] =
                if done + more == len { TakeOutcome::All } else { TakeOutcome::Part(done + more) };
        }
        is_taken
    }

    /// Takes out the pages that can be moved as they are. Makes pages that a fork has shared movable, and
    /// adds them to `movable`. Returns the same as [`Target::take_batch`].
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    unsafe fn take_movable(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut Vec<TakeOutcome>,
        movable: &mut Vec<Range<u64>>,
    ) -> bool {
        let mut parts = BatchPart::all_of(runs);
        if !self.move_parts(equipment, &mut parts) {
            return false;
        }
        let staged = equipment.mover.staging().0[1];
        let (mut remote, mut local) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        let mut runs = runs.iter();
        for part in &parts {
            let mut at = 0;
            while at < part.run.len {
                let run = runs.next().expect("each part is made of runs");
                let done = part.done_of(at, run.len);
                if done > 0 && !run.to.is_null() {
                    remote.push((staged + part.offset + at, done));
                    local.push((run.to, done as usize));
                }
                outcomes.push(part.outcome(done, run.len));
                at += run.len;
            }
            if part.is_shared() {
                movable.extend(self.unshare(equipment, part));
            }
        }
        if remote.is_empty() {
            return true;
        }
        let wanted: u64 = remote.iter().map(|(_, len)| *len).sum();
        // SAFETY: the caller vouches for the destinations.
        let read = unsafe { read_process(equipment.mover.pid(), &remote, &local) };
        read.is_ok_and(|read| read as u64 == wanted)
    }

    /// Moves parts out, none of which has moved yet. Returns false if the program or its mover has ended, or
    /// if staging could not be discarded.
    fn move_parts(&self, equipment: &mut Equipment<'_>, parts: &mut [BatchPart]) -> bool {
        let runs: Vec<_> = parts.iter().map(|part| part.run).collect();
        let staging = if equipment.moving.is_staged { Staging::DiscardFirst } else { Staging::Keep };
        let Ok(moved) = equipment.mover.move_out(&runs, staging) else { return false };
        equipment.moving.is_staged = true;
        if moved.discarded.is_some() {
            // Old pages block the new ones, so it is unknown what was moved.
            return false;
        }
        for (part, run) in parts.iter_mut().zip(&moved.runs) {
            (part.offset, part.done, part.error) = (run.offset, run.progress.done_bytes, run.progress.error);
        }
        moved.is_whole() || self.find_moved(equipment, parts)
    }

    /// Finds out which pages were moved despite an error.
    fn find_moved(&self, equipment: &Equipment<'_>, parts: &mut [BatchPart]) -> bool {
        let Some(process) = self.process.get() else { return false };
        let Ok(mut staged) = equipment.mover.staging_pages(&process.pagemap) else { return false };
        let mut tries = 0;
        while !staged[0].is_empty() {
            // The first range is never discarded, so these pages move on as soon as their holder releases
            // them.
            if tries == TRIES || equipment.mover.move_on().is_err() {
                return false;
            }
            if tries > 0 {
                std::thread::sleep(BETWEEN_TRIES);
            }
            tries += 1;
            let Ok(found) = equipment.mover.staging_pages(&process.pagemap) else { return false };
            staged = found;
        }
        let second = equipment.mover.staging().0[1];
        for part in parts.iter_mut().filter(|part| part.error.is_some()) {
            let (start, end) = (second + part.offset, second + part.offset + part.run.len);
            let found = staged[1].iter().filter(|run| run.start < end && start < run.end);
            let last = found.map(|run| run.end.min(end) - start).max().unwrap_or(0);
            part.done = part.done.max(last);
        }
        // Nothing is left in the first range, so all moved pages are in the second.
        true
    }

    /// Makes pages that a fork has shared movable, and returns their range. Octavo counts them as written, so
    /// they need no protection any more.
    fn unshare(&self, equipment: &Equipment<'_>, part: &BatchPart) -> Option<Range<u64>> {
        let (start, end) = (part.run.address + part.done, part.run.address + part.run.len);
        let process = self.process.get()?;
        let told = Categories::PRESENT | Categories::ZERO;
        let mut next = start;
        let found = process.pagemap.scan(
            start,
            end,
            ScanFilter { told, ..ScanFilter::any(Categories::PRESENT) },
            |run| {
                if !run.categories.contains(Categories::ZERO) && run.start == next {
                    next = run.end;
                }
            },
        );
        // A page that leaves meanwhile, for example by `mremap`, is not made movable.
        let len = next - start;
        let is_open = found.is_ok() && len > 0 && self.events.write_protect(start, len, false).is_ok();
        let own =
            if is_open { equipment.mover.unshare(OutgoingRun { address: start, len }).ok()? } else { 0 };
        self.unfaulted_pages.fetch_add(own / PAGE, Ordering::Relaxed);
        (own > 0).then_some(start..start + own)
    }
}
