//! Taking runs of pages out, batch by batch.
//!
//! ```text
//!   runs ─► without held mutexes ─► batches ─► moved and read ─► refused: in its own way ─► the next batch
//!            (robust.rs)                        (batch.rs)        (refused.rs)
//! ```
//!
//! There is no recursion: refused pages go in batches of their own, and pages that are refused there too
//! stay.

use std::sync::atomic::Ordering;

use super::{Equipment, Target};
use crate::reach::{TakeOutcome, Taking};
use crate::target::robust::RobustMutexes;

/// The most moves of one batch.
const MOST_MOVES: usize = 100;

/// Returns how many of the first runs make a batch: at most `room` bytes, which is what fits in staging, and
/// at most [`MOST_MOVES`] runs.
fn first_batch(runs: &[Taking], room: u64) -> usize {
    let mut bytes = 0;
    let fits = |run: &&Taking| {
        bytes += run.len;
        bytes <= room
    };
    runs.iter().take(MOST_MOVES).take_while(fits).count()
}

impl Target {
    /// Takes runs out, each up to the first page with a mutex that a thread holds.
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    pub(super) unsafe fn take_unheld(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut Vec<TakeOutcome>,
    ) {
        let Some(lens) = equipment.moving.may_go(runs) else {
            // SAFETY: the caller's promise.
            return unsafe { self.take_all(equipment, runs, outcomes) };
        };
        let cut = |(run, len): (&Taking, &u64)| (*len > 0).then_some(Taking { len: *len, ..*run });
        let parts: Vec<_> = runs.iter().zip(&lens).filter_map(cut).collect();
        let mut taken = Vec::with_capacity(parts.len());
        // SAFETY: the caller's promise; these are the starts of its runs.
        unsafe { self.take_all(equipment, &parts, &mut taken) };
        let mut taken = taken.into_iter();
        outcomes.extend(runs.iter().zip(lens).map(|(run, len)| {
            match if len > 0 { taken.next() } else { None } {
                None => TakeOutcome::Part(0),
                Some(TakeOutcome::All) if len < run.len => TakeOutcome::Part(len),
                Some(outcome) => outcome,
            }
        }));
    }

    /// Takes runs out, batch by batch.
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    unsafe fn take_all(
        &self,
        equipment: &mut Equipment<'_>,
        runs: &[Taking],
        outcomes: &mut Vec<TakeOutcome>,
    ) {
        let before = outcomes.len();
        let room = equipment.mover.staging().1;
        let mut rest = runs;
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(first_batch(rest, room));
            // SAFETY: the caller's promise.
            if batch.is_empty() || !unsafe { self.take_one(equipment, batch, outcomes) } {
                self.fail("pages on their way out of it were lost: its mover has ended or does not answer");
                outcomes.truncate(before);
                break;
            }
            rest = later;
        }
        outcomes.resize(before + runs.len(), TakeOutcome::Part(0));
        if equipment.moving.mutexes.as_mut().is_some_and(RobustMutexes::may_hold) {
            // Relaxed: a thread that sees the flag later only looks later.
            self.has_moved.store(true, Ordering::Relaxed);
        }
    }

    /// Takes a batch out, including pages that the kernel refuses as they are. Returns false if the program
    /// or its mover has ended.
    ///
    /// # Safety
    /// The conditions of [`Reach::take_out`](crate::Reach::take_out).
    unsafe fn take_one(
        &self,
        equipment: &mut Equipment<'_>,
        batch: &[Taking],
        outcomes: &mut Vec<TakeOutcome>,
    ) -> bool {
        let first = outcomes.len();
        // SAFETY: the caller's promise.
        if !unsafe { self.take_batch(equipment, batch, outcomes) } {
            return false;
        }
        let outcomes = &mut outcomes[first..];
        // SAFETY: the caller's promise.
        !outcomes.contains(&TakeOutcome::Never) || unsafe { self.take_refused(equipment, batch, outcomes) }
    }
}
