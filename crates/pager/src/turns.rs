//! Which processes are asked at a look.
//!
//! A tree may have hundreds of processes of which most do nothing. To ask one takes microseconds, and a look comes every few
//! milliseconds. So a process is asked at each look while it changes, and for some looks more. The others are asked in turn, a few
//! at a look. One of them may begin to grow before its turn: the machine has less free memory then, by more than the growth that was
//! seen. That costs one call to know, and then all are asked, for a hundredth of the time at most.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A process that has not changed at so many looks in a row waits for its turn.
const CALM: u32 = 32;
/// So many of those that wait are asked at each look.
const AT_ONCE: usize = 8;
/// Free memory may shrink by so much more than the tree was seen to grow.
const LEAST_FALL: u64 = 4 << 20;
/// All are asked out of turn for one part in so many of the time. That is not put off for longer than if it had taken so long.
const ALL_SHARE: u32 = 100;
const MOST_TOOK: Duration = Duration::from_millis(1);

/// Whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// At how many looks in a row each has not changed.
    calm: BTreeMap<u32, u32>,
    /// Where the next turn begins.
    next: u32,
    alarm: Option<Alarm>,
}

/// What the machine had free, and what the tree was known to have, when all had been asked last.
#[derive(Clone, Copy, Debug)]
struct Alarm {
    free_bytes: u64,
    tree_bytes: u64,
    at: Instant,
    took: Duration,
}

impl Turns {
    /// Returns who is to be asked at this look, in the order of numbers.
    pub(crate) fn begin(&mut self, now: Instant, free_bytes: u64, tree_bytes: u64) -> Vec<u32> {
        let waits = |(pid, calm): (&u32, &u32)| (*calm >= CALM).then_some(*pid);
        let later = self.calm.range(self.next..).filter_map(waits);
        let mut in_turn: Vec<u32> = later.chain(self.calm.range(..self.next).filter_map(waits)).collect();
        let is_all = in_turn.len() <= AT_ONCE || self.is_alarmed(now, free_bytes, tree_bytes);
        if is_all {
            self.alarm = Some(Alarm { free_bytes, tree_bytes, at: now, took: Duration::ZERO });
        } else {
            in_turn.truncate(AT_ONCE);
            self.next = in_turn.last().map_or(0, |last| last + 1);
        }
        let mut asked: Vec<u32> =
            self.calm.iter().filter(|(_, calm)| **calm < CALM).map(|(pid, _)| *pid).collect();
        asked.extend(in_turn);
        asked.sort_unstable();
        asked
    }

    /// Those that were to be asked have been.
    pub(crate) fn end(&mut self, now: Instant) {
        if let Some(alarm) = &mut self.alarm
            && alarm.took.is_zero()
        {
            alarm.took = (now - alarm.at).min(MOST_TOOK);
        }
    }

    fn is_alarmed(&mut self, now: Instant, free_bytes: u64, tree_bytes: u64) -> bool {
        let Some(alarm) = &mut self.alarm else { return true };
        if free_bytes > alarm.free_bytes {
            (alarm.free_bytes, alarm.tree_bytes) = (free_bytes, tree_bytes);
        }
        let fell = alarm.free_bytes.saturating_sub(free_bytes);
        let was_seen = tree_bytes.saturating_sub(alarm.tree_bytes);
        fell > was_seen + LEAST_FALL && now - alarm.at >= alarm.took * ALL_SHARE
    }

    /// A process was asked.
    pub(crate) fn answered(&mut self, pid: u32, has_changed: bool) {
        let calm = self.calm.entry(pid).or_default();
        *calm = if has_changed { 0 } else { calm.saturating_add(1) };
    }

    /// Any of them may have begun to change.
    pub(crate) fn ask_all(&mut self) {
        self.calm.values_mut().for_each(|calm| *calm = 0);
    }

    /// Returns whether a process waits for its turn.
    pub(crate) fn is_calm(&self, pid: u32) -> bool {
        self.calm.get(&pid).is_some_and(|calm| *calm >= CALM)
    }

    /// Takes note of which processes there are. New ones have just changed.
    pub(crate) fn keep(&mut self, is_there: impl Fn(u32) -> bool) {
        self.calm.retain(|pid, _| is_there(*pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(count: u32) -> Turns {
        let mut turns = Turns::default();
        (1..=count).for_each(|pid| turns.answered(pid, true));
        turns
    }

    /// One look at which those that are asked have not changed but these.
    fn look(turns: &mut Turns, now: Instant, changing: &[u32]) -> Vec<u32> {
        let asked = turns.begin(now, 1 << 30, 0);
        asked.iter().for_each(|pid| turns.answered(*pid, changing.contains(pid)));
        turns.end(now);
        asked
    }

    #[test]
    fn a_look_at_many_that_do_nothing_asks_those_that_change_and_a_few_more_and_all_have_their_turns() {
        let now = Instant::now();
        for count in [100, 1000] {
            let mut turns = of(count);
            for _ in 0..CALM {
                assert_eq!(look(&mut turns, now, &[7, 8]).len() as u32, count);
            }
            let mut asked = std::collections::BTreeSet::new();
            for _ in 0..count.div_ceil(AT_ONCE as u32) {
                let at_once = look(&mut turns, now, &[7, 8]);
                assert!(at_once.len() <= AT_ONCE + 2 && at_once.contains(&7) && at_once.contains(&8));
                asked.extend(at_once);
            }
            assert_eq!(asked.len() as u32, count);
        }
    }

    #[test]
    fn few_processes_are_all_asked_at_each_look() {
        let mut turns = of(AT_ONCE as u32);
        let now = Instant::now();
        assert!((0..1000).all(|_| look(&mut turns, now, &[]).len() == AT_ONCE));
    }

    #[test]
    fn all_are_asked_where_free_memory_shrinks_by_more_than_was_seen_to_grow_but_not_all_the_time() {
        let (mut turns, now) = (of(100), Instant::now());
        (0..=CALM).for_each(|_| drop(look(&mut turns, now, &[])));
        let free = 1 << 30;
        assert!(turns.begin(now, free - 8 * MIB, 8 * MIB).len() <= AT_ONCE, "the tree was seen to grow");
        assert_eq!(turns.begin(now, free - 16 * MIB, 8 * MIB).len(), 100);
        let took = Duration::from_millis(1);
        turns.end(now + took);
        assert!(
            turns.begin(now + took * 50, free - 32 * MIB, 8 * MIB).len() <= AT_ONCE,
            "it has cost enough for now"
        );
        assert_eq!(turns.begin(now + took * 100, free - 32 * MIB, 8 * MIB).len(), 100);
    }

    #[test]
    fn a_process_that_changes_in_its_turn_is_asked_at_each_look_again() {
        let (mut turns, now) = (of(100), Instant::now());
        (0..=CALM).for_each(|_| drop(look(&mut turns, now, &[])));
        while !look(&mut turns, now, &[50]).contains(&50) {}
        assert!(!turns.is_calm(50) && turns.is_calm(51));
        assert!((0..CALM).all(|_| look(&mut turns, now, &[]).contains(&50)));
        turns.keep(|pid| pid != 50);
        assert!(!look(&mut turns, now, &[]).contains(&50));
    }
}
