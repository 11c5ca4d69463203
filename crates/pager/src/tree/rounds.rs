//! Which processes are asked for their shares, and when.
//!
//! Asking a process for its share may take milliseconds, during which the monitor sees nothing else. So each
//! look asks a few processes.
//!
//! ```text
//!   begin ─► ask a few known processes at each look ─► end, when all have been asked
//!     ▲      (new ones are asked at any time, ahead of the others)     │
//!     └────────── 30 ms after the last beginning ◄─────────────────────┘
//! ```
//!
//! Rounds take at most a tenth of the time, and a few milliseconds of one look. New processes have a separate
//! and larger allowance: until a process is asked, each of its faults counts as a store to a shared page.
//! Even so, one look asks few of them: a tree that starts a hundred processes may fill its limit meanwhile,
//! and the kernel's answer waits while the process changes its mappings. An answer cannot be split: a process
//! with many GiB takes long, and the next ones then wait longer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The time between the beginnings of two rounds while processes get or lose pages, and while none does. If a
/// process starts or ends, a round is due at once.
const ROUND_EVERY: Duration = Duration::from_millis(30);
const ROUND_CALM_EVERY: Duration = Duration::from_secs(5);
/// Asking known processes takes at most 1/[`KNOWN_SHARE`] of the time, and this long in one look.
const KNOWN_SHARE: i64 = 10;
const KNOWN_AT_ONCE: Duration = Duration::from_millis(4);
/// Like [`KNOWN_SHARE`], for new processes.
const NEW_SHARE: i64 = 5;
const NEW_AT_ONCE: Duration = Duration::from_millis(2);

/// The known facts about a process that may be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessToAsk {
    /// Whether the process belongs to a group that has an answer from it.
    pub(crate) is_known: bool,
    /// Whether the process belongs to a group that has no answer from it.
    pub(crate) is_new: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextQuestion {
    /// Begin a round.
    Begin,
    /// Ask this process.
    Ask(u32),
    /// End the round: all known processes have been asked.
    End,
}

/// The rounds in which processes are asked.
#[derive(Debug)]
pub(crate) struct Rounds {
    number: u64,
    is_under_way: bool,
    began_at: Option<Instant>,
    /// The round in which each process was last asked. 0 if the process was not asked yet.
    asked: BTreeMap<u32, u64>,
    /// Whether processes have come or gone since the round began.
    has_changed: bool,
    /// Whether processes have got or lost pages since the round began.
    is_lively: bool,
    known: Allowance,
    new: Allowance,
    /// When the last question was asked, and whether its time is taken from the allowance for new processes.
    asking: Option<(Instant, bool)>,
    earned_at: Option<Instant>,
}

/// Time that asking may take.
#[derive(Debug)]
struct Allowance {
    left_ns: i64,
    share: i64,
    most_ns: i64,
}

impl Allowance {
    fn new(share: i64, most: Duration) -> Self {
        let most_ns = most.as_nanos() as i64;
        Self { left_ns: most_ns, share, most_ns }
    }

    fn earn(&mut self, passed: Duration) {
        self.left_ns = (self.left_ns + passed.as_nanos() as i64 / self.share).min(self.most_ns);
    }

    fn spend(&mut self, took: Duration) {
        self.left_ns -= took.as_nanos() as i64;
    }

    fn is_left(&self) -> bool {
        self.left_ns > 0
    }
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            number: 0,
            is_under_way: false,
            began_at: None,
            asked: BTreeMap::new(),
            has_changed: false,
            is_lively: true,
            known: Allowance::new(KNOWN_SHARE, KNOWN_AT_ONCE),
            new: Allowance::new(NEW_SHARE, NEW_AT_ONCE),
            asking: None,
            earned_at: None,
        }
    }
}

impl Rounds {
    /// Returns what to do next, or `None` if nothing is left to do at this look. The caller asks the named
    /// process before it calls this again.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        wanted: &BTreeMap<u32, ProcessToAsk>,
    ) -> Option<NextQuestion> {
        self.account(now);
        let is_any_known = wanted.values().any(|wanted| wanted.is_known);
        self.take_note_of(wanted, is_any_known);
        if let Some(pid) = find(wanted, |_, wanted| wanted.is_new)
            && self.new.is_left()
        {
            if !is_any_known {
                // No process is known yet. So asking all new ones has the effect of a round.
                self.began_at = Some(now);
            }
            return Some(self.ask(pid, now, true));
        }
        if self.is_under_way {
            let is_left = |pid: &u32| self.asked.get(pid).is_some_and(|round| *round < self.number);
            return match find(wanted, |pid, wanted| wanted.is_known && is_left(pid)) {
                Some(pid) => self.known.is_left().then(|| self.ask(pid, now, false)),
                None => {
                    self.is_under_way = false;
                    Some(NextQuestion::End)
                }
            };
        }
        (is_any_known && self.is_due(now) && self.known.is_left()).then(|| {
            (self.is_under_way, self.has_changed, self.began_at) = (true, false, Some(now));
            self.is_lively = false;
            self.number += 1;
            NextQuestion::Begin
        })
    }

    /// Records that a process has got or lost pages.
    pub(crate) fn note_change(&mut self) {
        self.is_lively = true;
    }

    /// Returns whether no process is to be asked now, unless new ones have come.
    pub(crate) fn rest(&mut self, now: Instant) -> bool {
        self.account(now);
        !self.known.is_left() || !self.is_under_way && !self.is_due(now)
    }

    fn is_due(&self, now: Instant) -> bool {
        let every = if self.is_lively { ROUND_EVERY } else { ROUND_CALM_EVERY };
        self.has_changed || self.began_at.is_none_or(|at| now - at >= every)
    }

    /// Adds a part of the elapsed time to each allowance, and subtracts the time of the last answer.
    fn account(&mut self, now: Instant) {
        let passed = self.earned_at.map_or(Duration::ZERO, |at| now - at);
        self.earned_at = Some(now);
        self.known.earn(passed);
        self.new.earn(passed);
        if let Some((at, as_new)) = self.asking.take() {
            let allowance = if as_new { &mut self.new } else { &mut self.known };
            allowance.spend(now - at);
        }
    }

    fn take_note_of(&mut self, wanted: &BTreeMap<u32, ProcessToAsk>, is_any_known: bool) {
        let before = self.asked.len();
        self.asked.retain(|pid, _| wanted.contains_key(pid));
        self.has_changed |= self.asked.len() < before;
        for pid in wanted.keys() {
            self.asked.entry(*pid).or_insert_with(|| {
                self.has_changed |= is_any_known;
                0
            });
        }
    }

    fn ask(&mut self, pid: u32, now: Instant, as_new: bool) -> NextQuestion {
        self.asked.insert(pid, self.number);
        self.asking = Some((now, as_new));
        NextQuestion::Ask(pid)
    }
}

fn find(
    wanted: &BTreeMap<u32, ProcessToAsk>,
    mut fits: impl FnMut(&u32, &ProcessToAsk) -> bool,
) -> Option<u32> {
    wanted.iter().find(|(pid, wanted)| fits(pid, wanted)).map(|(pid, _)| *pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: Duration = Duration::from_millis(1);

    /// Processes that each take this long to answer.
    struct Fake {
        rounds: Rounds,
        wanted: BTreeMap<u32, ProcessToAsk>,
        now: Instant,
        takes: Duration,
        /// How often each was asked, and how long that took in total.
        asked: BTreeMap<u32, u32>,
        asked_for: Duration,
        longest: Duration,
        rounds_ended: u32,
    }

    impl Fake {
        fn new(count: u32, wanted: ProcessToAsk, takes: Duration) -> Self {
            Self {
                rounds: Rounds::default(),
                wanted: (1..=count).map(|pid| (pid, wanted)).collect(),
                now: Instant::now(),
                takes,
                asked: BTreeMap::new(),
                asked_for: Duration::ZERO,
                longest: Duration::ZERO,
                rounds_ended: 0,
            }
        }

        fn look(&mut self) {
            let began = self.now;
            self.rounds.note_change();
            while let Some(next) = self.rounds.next(self.now, &self.wanted) {
                match next {
                    NextQuestion::Begin => {}
                    NextQuestion::Ask(pid) => {
                        self.now += self.takes;
                        *self.asked.entry(pid).or_default() += 1;
                        self.wanted.insert(pid, KNOWN);
                    }
                    NextQuestion::End => self.rounds_ended += 1,
                }
            }
            self.longest = self.longest.max(self.now - began);
            self.asked_for += self.now - began;
            self.now += LOOK;
        }

        fn look_for(&mut self, time: Duration) {
            let began = self.now;
            while self.now - began < time {
                self.look();
            }
        }
    }

    const KNOWN: ProcessToAsk = ProcessToAsk { is_known: true, is_new: false };
    const NEW: ProcessToAsk = ProcessToAsk { is_known: false, is_new: true };

    #[test]
    fn many_processes_are_asked_in_turn_for_a_tenth_of_the_time_and_a_few_at_each_look() {
        let mut fake = Fake::new(100, KNOWN, Duration::from_millis(2));
        let time = Duration::from_secs(20);
        fake.look_for(time);
        assert!(fake.longest <= KNOWN_AT_ONCE + fake.takes, "{:?}", fake.longest);
        assert!(fake.asked_for <= time / 10 + KNOWN_AT_ONCE + fake.takes, "{:?}", fake.asked_for);
        assert!(fake.asked_for >= time / 11, "{:?}", fake.asked_for);
        let (least, most) = (fake.asked.values().min().unwrap(), fake.asked.values().max().unwrap());
        assert!(fake.asked.len() == 100 && most - least <= 1, "{:?}", fake.asked);
        assert!(fake.rounds_ended.abs_diff(*least) <= 1, "{} rounds", fake.rounds_ended);
    }

    #[test]
    fn a_process_that_takes_long_is_asked_alone_and_seldom() {
        let mut fake = Fake::new(3, KNOWN, Duration::from_millis(50));
        fake.look_for(Duration::from_secs(10));
        assert_eq!(fake.longest, fake.takes);
        assert!(fake.asked_for <= Duration::from_millis(1100), "{:?}", fake.asked_for);
        assert_eq!(fake.asked.len(), 3);
    }

    #[test]
    fn new_processes_come_first_and_a_few_are_asked_at_once() {
        let mut fake = Fake::new(4, KNOWN, Duration::from_millis(1));
        fake.look_for(Duration::from_millis(100));
        fake.wanted.extend([(8, NEW), (9, NEW)]);
        let before = fake.asked.clone();
        fake.look();
        assert_eq!((fake.asked[&8], fake.asked[&9]), (1, 1));
        // By now, the shares of the others are out of date.
        fake.look_for(Duration::from_millis(200));
        assert!((1..=4).all(|pid| fake.asked[&pid] > before[&pid]));

        let mut fake = Fake::new(100, NEW, Duration::from_millis(2));
        fake.look_for(Duration::from_millis(1000));
        assert_eq!(fake.asked.len(), 100);
        assert!(fake.longest <= NEW_AT_ONCE + KNOWN_AT_ONCE + 2 * fake.takes, "{:?}", fake.longest);
    }

    /// The known processes are new to a second group.
    #[test]
    fn processes_that_are_known_and_new_take_the_time_of_both_and_no_more() {
        let mut fake =
            Fake::new(100, ProcessToAsk { is_known: true, is_new: true }, Duration::from_millis(10));
        let time = Duration::from_secs(1);
        fake.look_for(time);
        assert!(fake.longest <= NEW_AT_ONCE + KNOWN_AT_ONCE + 2 * fake.takes, "{:?}", fake.longest);
        assert!(fake.asked_for <= time / 3 + NEW_AT_ONCE + KNOWN_AT_ONCE, "{:?}", fake.asked_for);
    }

    #[test]
    fn where_processes_come_and_go_all_the_time_the_others_still_have_their_turns() {
        let mut fake = Fake::new(20, KNOWN, Duration::from_millis(2));
        for pid in 100..5000 {
            fake.wanted.insert(pid, NEW);
            fake.wanted.remove(&(pid - 5));
            fake.look();
        }
        assert!((1..=20).all(|pid| fake.asked[&pid] >= 10), "{:?}", fake.asked);
        assert!(fake.rounds_ended >= 10, "{}", fake.rounds_ended);
    }

    #[test]
    fn a_few_small_processes_are_asked_at_one_look_thirty_milliseconds_after_the_last() {
        let mut fake = Fake::new(4, KNOWN, Duration::from_micros(100));
        fake.look();
        assert_eq!(fake.rounds_ended, 1);
        fake.look_for(ROUND_EVERY - 3 * LOOK);
        assert_eq!(fake.rounds_ended, 1);
        fake.look_for(5 * LOOK);
        assert_eq!((fake.rounds_ended, fake.asked[&1]), (2, 2));
    }
}
