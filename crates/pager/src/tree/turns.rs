//! The choice of the processes that are asked at a look.
//!
//! A tree may have hundreds of processes, most of which do nothing. Each question takes microseconds, and a
//! look comes every few milliseconds. So a process is asked at each look while it changes, and for some looks
//! after that. The other processes wait for their turns, a few at each look. If one of them begins to grow
//! before its turn, the machine's anonymous memory grows by more than the asked processes got. One call
//! reveals this. Then all processes are asked, for at most a hundredth of the time.
//!
//! The amount of free memory would not reveal such growth. If the page cache has filled memory, a growing
//! program gets pages of the cache, and free memory stays the same.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A process that has not changed at this many looks in a row waits for its turn.
const CALM: u64 = 32;
/// How many waiting processes are asked at each look.
const AT_ONCE: usize = 8;
/// The monitor is alarmed if the machine's memory grows by this many bytes more than the known growth of the
/// tree and the runner.
const LEAST_GROWTH: i64 = 4 << 20;
/// Questions to all processes at once take at most 1/[`ALL_SHARE`] of the time. To compute the pause that
/// follows, they count as at most [`MOST_TOOK`].
const ALL_SHARE: u32 = 100;
const MOST_TOOK: Duration = Duration::from_millis(1);

/// The processes whose turn it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// How many looks there have been.
    look: u64,
    /// The last look at which each process had changed.
    changed: BTreeMap<u32, u64>,
    /// The number from which the next turn begins.
    next: u32,
    /// `None` if processes have begun to wait for their turns, and not all processes have been asked since.
    alarm: Option<SinceAsked>,
}

/// The figures since all processes were last asked.
#[derive(Clone, Copy, Debug)]
struct SinceAsked {
    /// The smallest difference so far between the machine's bytes and the known bytes of the tree and the
    /// runner. Processes may shrink and hide growth, so growth is measured from this minimum.
    least_beyond: i64,
    at: Instant,
    took: Duration,
}

/// The anonymous memory of the machine, and the known part that belongs to the tree and the runner, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Anonymous {
    pub(crate) machine: u64,
    pub(crate) known: u64,
}

impl Anonymous {
    fn beyond(self) -> i64 {
        // The known part may be an estimate that is too large, so the result may be negative.
        self.machine as i64 - self.known as i64
    }
}

impl Turns {
    /// Begins a look. One look may ask processes several times.
    pub(crate) fn begin_look(&mut self) {
        self.look += 1;
    }

    /// Returns the processes to ask, in the order of numbers, and the processes that are not asked.
    pub(crate) fn begin(&mut self) -> (Vec<u32>, Vec<u32>) {
        let waits = |(pid, changed): (&u32, &u64)| self.has_waited(*changed).then_some(*pid);
        let later = self.changed.range(self.next..).filter_map(waits);
        let mut in_turn: Vec<u32> = later.chain(self.changed.range(..self.next).filter_map(waits)).collect();
        let others = in_turn.split_off(AT_ONCE.min(in_turn.len()));
        if others.is_empty() {
            self.alarm = None;
        } else {
            self.next = in_turn.last().map_or(0, |last| last + 1);
        }
        let changing = self.changed.iter().filter(|(_, changed)| !self.has_waited(**changed));
        let mut asked: Vec<u32> = changing.map(|(pid, _)| *pid).chain(in_turn).collect();
        asked.sort_unstable();
        (asked, others)
    }

    /// Returns whether to ask the other processes of [`begin`](Self::begin), too.
    pub(crate) fn is_alarmed(&mut self, now: Instant, anonymous: Anonymous) -> bool {
        let Some(alarm) = &mut self.alarm else { return true };
        alarm.least_beyond = alarm.least_beyond.min(anonymous.beyond());
        let has_grown = anonymous.beyond() - alarm.least_beyond > LEAST_GROWTH;
        has_grown && now - alarm.at >= alarm.took * ALL_SHARE
    }

    /// Records that all processes have been asked, from `began` until `now`.
    pub(crate) fn asked_all(&mut self, began: Instant, now: Instant, anonymous: Anonymous) {
        let (least_beyond, took) = (anonymous.beyond(), (now - began).min(MOST_TOOK));
        self.alarm = Some(SinceAsked { least_beyond, at: began, took });
    }

    fn has_waited(&self, changed: u64) -> bool {
        self.look - changed > CALM
    }

    /// Records that a process was asked.
    pub(crate) fn answered(&mut self, pid: u32, has_changed: bool) {
        let changed = self.changed.entry(pid).or_insert(self.look);
        if has_changed {
            *changed = self.look;
        }
    }

    /// Has all processes asked again: any of them may have begun to change.
    pub(crate) fn ask_all(&mut self) {
        self.changed.values_mut().for_each(|changed| *changed = self.look);
    }

    /// Returns whether a process waits for its turn.
    pub(crate) fn is_calm(&self, pid: u32) -> bool {
        self.changed.get(&pid).is_some_and(|changed| self.has_waited(*changed))
    }

    /// Forgets processes that no longer exist.
    pub(crate) fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.changed.retain(|pid, _| is_there(*pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// What the machine and the tree have at the start.
    const FIRST: Anonymous = Anonymous { machine: 1 << 30, known: 100 * MIB };

    fn of(count: u32) -> Turns {
        let mut turns = Turns::default();
        (1..=count).for_each(|pid| turns.answered(pid, true));
        turns
    }

    /// Makes one look at which only `changing` have changed.
    fn look(turns: &mut Turns, changing: &[u32]) -> Vec<u32> {
        turns.begin_look();
        let (asked, _) = turns.begin();
        asked.iter().for_each(|pid| turns.answered(*pid, changing.contains(pid)));
        asked
    }

    /// Makes a hundred processes that wait for their turns. All of them have just been asked, which took a
    /// millisecond.
    fn of_a_hundred_that_wait(now: Instant) -> Turns {
        let mut turns = of(100);
        (0..=CALM).for_each(|_| drop(look(&mut turns, &[])));
        assert!(turns.is_alarmed(now, FIRST), "not all have been asked yet");
        turns.asked_all(now, now + MOST_TOOK, FIRST);
        turns
    }

    #[test]
    fn a_look_at_many_that_do_nothing_asks_those_that_change_and_a_few_more_and_all_have_their_turns() {
        for count in [100, 1000] {
            let mut turns = of(count);
            for _ in 0..CALM {
                assert_eq!(look(&mut turns, &[7, 8]).len() as u32, count);
            }
            let mut asked = std::collections::BTreeSet::new();
            for _ in 0..count.div_ceil(AT_ONCE as u32) {
                let at_once = look(&mut turns, &[7, 8]);
                assert!(at_once.len() <= AT_ONCE + 2 && at_once.contains(&7) && at_once.contains(&8));
                asked.extend(at_once);
            }
            assert_eq!(asked.len() as u32, count);
        }
    }

    #[test]
    fn few_processes_are_all_asked_at_each_look() {
        let mut turns = of(AT_ONCE as u32);
        assert!((0..1000).all(|_| look(&mut turns, &[]).len() == AT_ONCE));
    }

    /// While processes are taken over, the other processes are measured after each takeover.
    #[test]
    fn measurements_are_no_looks() {
        let mut turns = of(100);
        turns.begin_look();
        for _ in 0..=2 * CALM {
            let (asked, others) = turns.begin();
            assert_eq!((asked.len(), others.len()), (100, 0));
            asked.into_iter().for_each(|pid| turns.answered(pid, false));
        }
    }

    #[test]
    fn all_are_asked_where_the_machine_gets_more_than_was_seen_but_not_all_the_time() {
        let now = Instant::now();
        let mut turns = of_a_hundred_that_wait(now);
        let later = now + Duration::from_secs(1);
        let grown = |machine, known| Anonymous {
            machine: FIRST.machine + machine * MIB,
            known: FIRST.known + known * MIB,
        };
        assert!(!turns.is_alarmed(later, grown(8, 8)), "the tree was seen to grow");
        assert!(turns.is_alarmed(later, grown(16, 8)));
        assert!(!turns.is_alarmed(now + MOST_TOOK * 50, grown(16, 8)), "it has cost enough for now");
        turns.asked_all(later, later + MOST_TOOK, grown(16, 16));
        assert!(!turns.is_alarmed(later + Duration::from_secs(1), grown(16, 16)));
    }

    #[test]
    fn growth_does_not_hide_behind_memory_that_becomes_free() {
        let now = Instant::now();
        let mut turns = of_a_hundred_that_wait(now);
        let later = now + Duration::from_secs(1);
        let of_tree = Anonymous { machine: FIRST.machine, known: FIRST.known - 50 * MIB };
        assert!(turns.clone().is_alarmed(later, of_tree), "another has got what one was seen to give back");
        let of_others = Anonymous { machine: FIRST.machine - 50 * MIB, known: FIRST.known };
        assert!(!turns.is_alarmed(later, of_others));
        assert!(turns.is_alarmed(later, FIRST), "somebody has got what others have given back");
    }

    #[test]
    fn a_process_that_changes_in_its_turn_is_asked_at_each_look_again() {
        let mut turns = of(100);
        (0..=CALM).for_each(|_| drop(look(&mut turns, &[])));
        while !look(&mut turns, &[50]).contains(&50) {}
        assert!(!turns.is_calm(50) && turns.is_calm(51));
        assert!((0..CALM).all(|_| look(&mut turns, &[]).contains(&50)));
        turns.keep(|pid| pid != 50);
        assert!(!look(&mut turns, &[]).contains(&50));
    }
}
