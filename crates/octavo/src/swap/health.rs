//! The health of one area's device, as its transfers show it: one word.
//!
//! ```text
//!  63 ........ 36  35 ......... 9  8 ...... 2  1 . 0
//! +--------------+---------------+-----------+-------+
//! |   answers    |   in flight   |  caution  | state |
//! +--------------+---------------+-----------+-------+
//!
//!            a write fails             a deadline passes without an answer, with transfers in flight
//!   Well ─────────────────► Failing ───────────────────────────────┐
//!    ▲ ▲                      │  ▲                                 ▼
//!    │ └─ a write goes well ──┘  └──────── a write fails ──────── Silent
//!    └─────────────────────── any other end of a transfer ─────────┘
//! ```
//!
//! *In flight* counts transfers that the device has and that have not ended. *Answers* counts transfers that
//! have ended, with or without success, and wraps. An answer ends a silence. After the answer, no thread can
//! still declare the silence: a thread does so only if the count of answers is still the count from the start
//! of its wait.
//!
//! *Caution* counts writes that must succeed before the area is trusted to have room to grow again. A failed
//! read says nothing about writes, and concerns only its access.
//!
//! Orderings: Relaxed. The word is only used to choose areas and time limits. It publishes nothing: the
//! frames of a transfer publish the transfer's result.

use crate::sync::{AtomicU64, Ordering};

const STATE_MASK: u64 = 3;
const CAUTION_SHIFT: u32 = 2;
const CAUTION_MASK: u64 = 0x7F << CAUTION_SHIFT;
const IN_FLIGHT_SHIFT: u32 = 9;
const IN_FLIGHT: u64 = 1 << IN_FLIGHT_SHIFT;
const IN_FLIGHT_MASK: u64 = (ANSWER - 1) & !(IN_FLIGHT - 1);
const ANSWER: u64 = 1 << 36;

/// The number of writes that must succeed after a failed write.
const CAUTION: u64 = 64;

/// The condition of the device. The best condition comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// The device answers in time, and its last write did not fail.
    Well = 0,
    /// The device's last write failed.
    Failing = 1,
    /// The device has not answered in time.
    Silent = 2,
}

/// How a transfer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferEnd {
    Written,
    WriteFailed,
    Read,
    ReadFailed,
}

/// The word.
#[derive(Debug, Default)]
pub(super) struct Health(AtomicU64);

/// A value of a [`Health`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HealthWord(u64);

impl HealthWord {
    pub(super) fn state(self) -> Condition {
        match self.0 & STATE_MASK {
            0 => Condition::Well,
            1 => Condition::Failing,
            _ => Condition::Silent,
        }
    }

    /// Returns whether a write failed lately. If so, places that were written before are likelier to take
    /// pages than new places.
    pub(super) fn is_cautious(self) -> bool {
        self.0 & CAUTION_MASK != 0
    }

    pub(super) fn in_flight(self) -> u64 {
        (self.0 & IN_FLIGHT_MASK) >> IN_FLIGHT_SHIFT
    }

    /// Returns whether no transfer has ended since `before`.
    pub(super) fn has_not_answered_since(self, before: HealthWord) -> bool {
        self.0 / ANSWER == before.0 / ANSWER
    }

    fn with_state(self, state: Condition) -> Self {
        Self(self.0 & !STATE_MASK | state as u64)
    }

    fn with_caution(self, caution: u64) -> Self {
        Self(self.0 & !CAUTION_MASK | caution << CAUTION_SHIFT)
    }

    /// Returns the word after a transfer has ended.
    fn after(self, end: TransferEnd) -> Self {
        let caution = (self.0 & CAUTION_MASK) >> CAUTION_SHIFT;
        let counted = Self(self.0.wrapping_add(ANSWER - IN_FLIGHT));
        match end {
            TransferEnd::Written => {
                counted.with_state(Condition::Well).with_caution(caution.saturating_sub(1))
            }
            TransferEnd::WriteFailed => counted.with_state(Condition::Failing).with_caution(CAUTION),
            TransferEnd::Read | TransferEnd::ReadFailed if self.state() == Condition::Silent => {
                counted.with_state(Condition::Well)
            }
            TransferEnd::Read | TransferEnd::ReadFailed => counted,
        }
    }
}

impl Health {
    pub(super) fn load(&self) -> HealthWord {
        HealthWord(self.0.load(Ordering::Relaxed))
    }

    /// Notes that a transfer is about to be submitted. Returns the word before.
    pub(super) fn begin(&self) -> HealthWord {
        HealthWord(self.0.fetch_add(IN_FLIGHT, Ordering::Relaxed))
    }

    /// Notes that the device was full, so that the transfer did not begin.
    pub(super) fn refused(&self) {
        self.0.fetch_sub(IN_FLIGHT, Ordering::Relaxed);
    }

    /// Notes the end of a transfer. Returns the word before.
    pub(super) fn end(&self, end: TransferEnd) -> HealthWord {
        let mut before = self.load();
        while let Err(now) = self.change(before, before.after(end)) {
            before = now;
        }
        before
    }

    /// Notes that a deadline has passed. When the wait for this deadline began, the word was `before`.
    /// Returns whether the device becomes silent: since then it always had transfers in flight, and has ended
    /// none.
    pub(super) fn note_silence(&self, before: HealthWord) -> bool {
        let mut now = self.load();
        loop {
            let keeps = before.in_flight() > 0 && now.in_flight() > 0 && now.has_not_answered_since(before);
            if !keeps || now.state() == Condition::Silent {
                return false;
            }
            match self.change(now, now.with_state(Condition::Silent)) {
                Ok(()) => return true,
                Err(other) => now = other,
            }
        }
    }

    fn change(&self, from: HealthWord, to: HealthWord) -> Result<(), HealthWord> {
        let done = self.0.compare_exchange_weak(from.0, to.0, Ordering::Relaxed, Ordering::Relaxed);
        done.map(|_| ()).map_err(HealthWord)
    }
}

#[cfg(all(loom, test))]
mod loom;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn writes_decide_whether_it_fails_and_any_answer_ends_a_silence() {
        let health = Health::default();
        let end = |end| {
            health.begin();
            health.end(end);
            health.load().state()
        };
        assert_eq!(end(TransferEnd::ReadFailed), Condition::Well);
        assert_eq!(end(TransferEnd::WriteFailed), Condition::Failing);
        assert_eq!(end(TransferEnd::Read), Condition::Failing, "a read says nothing of writes");
        assert_eq!(end(TransferEnd::Written), Condition::Well);
        for answer in
            [TransferEnd::Read, TransferEnd::ReadFailed, TransferEnd::Written, TransferEnd::WriteFailed]
        {
            health.begin();
            assert!(health.note_silence(health.load()) && !health.note_silence(health.load()));
            assert_eq!(health.load().state(), Condition::Silent);
            health.end(answer);
            let then = if answer == TransferEnd::WriteFailed { Condition::Failing } else { Condition::Well };
            assert_eq!(health.load().state(), then);
        }
        assert_eq!(health.load().in_flight(), 0);
    }

    #[test]
    fn caution_ends_when_as_many_writes_as_that_went_well() {
        let health = Health::default();
        let end = |end| {
            health.begin();
            health.end(end);
        };
        end(TransferEnd::WriteFailed);
        for _ in 0..CAUTION {
            assert!(health.load().is_cautious());
            end(TransferEnd::Written);
        }
        assert!(!health.load().is_cautious());
    }

    #[test]
    fn silence_is_concluded_only_where_nothing_has_ended_since_the_wait_began() {
        let health = Health::default();
        let idle = health.load();
        health.begin();
        assert!(!health.note_silence(idle), "nothing was in flight when the wait began");
        let before = health.load();
        health.begin();
        health.end(TransferEnd::ReadFailed);
        assert!(!health.note_silence(before), "it has answered");
        let before = health.load();
        health.begin();
        health.refused();
        assert!(health.note_silence(before), "a transfer that was refused is no answer");
        health.end(TransferEnd::Written);
        assert!(!health.note_silence(health.load()), "nothing is in flight");
    }

    #[test]
    fn the_counts_wrap_and_leave_the_rest_alone() {
        let health = Health(AtomicU64::new(u64::MAX / ANSWER * ANSWER));
        health.begin();
        health.end(TransferEnd::WriteFailed);
        let seen = health.load();
        assert_eq!((seen.0 / ANSWER, seen.in_flight(), seen.state()), (0, 0, Condition::Failing));
    }
}
