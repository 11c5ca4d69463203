//! The order in which changes of mappings are taken in.
//!
//! ```text
//!   a change ─► nothing that it follows waits, and its destination is free ─► taken in at once
//!         └───► otherwise it waits, and so does all that follows it
//! ```
//!
//! The kernel reports a change after it has made it. So a later change at the same addresses may be reported
//! first. If a range seems to move to addresses where something is still mapped, the event that reports their
//! unmapping is late. The move waits for that event. Changes that concern the ranges of a waiting change come
//! after it in time, so they wait behind it. Otherwise, unmapping the move's source would drop the pages
//! before they have moved.
//!
//! Only the awaited event goes ahead: it unmaps, or moves away, the mapping at a move's destination. (Such an
//! event may instead report that the range has moved on, by the same thread, before the awaited event came.
//! Nothing tells the two cases apart. Octavo assumes the first, since the second takes two moves instead of
//! one.)
//!
//! The kernel reports a move by two events: the move, and then the unmapping of its source. The kernel has
//! made both changes at once, so another range may arrive at the source between the two events. The unmapping
//! does not concern that range.

use std::ops::Range;
use std::time::{Duration, Instant};

use octavo_platform::userfaultfd::Event;
use smallvec::{SmallVec, smallvec};

/// The longest time by which an event may be late.
const LATEST: Duration = Duration::from_secs(2);

/// The waiting changes, in the order in which they were reported.
#[derive(Debug, Default)]
pub(crate) struct WaitingChanges {
    /// Each change with the time of its report.
    waiting: Vec<(Instant, Event)>,
    left: Vec<VacatedRange>,
}

/// A range that has moved away, until its unmapping is reported. (That may never happen: `MREMAP_DONTUNMAP`
/// leaves the range.)
#[derive(Debug)]
struct VacatedRange {
    range: Range<u64>,
    told: Instant,
    /// Whether something else has moved there since.
    is_refilled: bool,
}

impl WaitingChanges {
    /// Records a reported change. Returns the change if it must be taken in at once. `is_mapped` says whether
    /// a part of a range is mapped, according to the changes taken in so far.
    pub(crate) fn told(&mut self, change: Event, is_mapped: impl Fn(&Range<u64>) -> bool) -> Option<Event> {
        match change {
            Event::Remap { from, to, len } => self.leaves(from..from + len, to..to + len),
            Event::Unmap { start, end } if self.is_of_refilled(start..end) => return None,
            _ => {}
        }
        let follows = self.waiting.iter().any(|(_, earlier)| is_followed_by(earlier, &change));
        let waits = is_blocked(&change, &is_mapped) || follows && !self.awaits(&change, &is_mapped);
        if !waits {
            return Some(change);
        }
        self.waiting.push((Instant::now(), change));
        None
    }

    /// Returns a change that has waited and can be taken in now.
    pub(crate) fn next(&mut self, is_mapped: impl Fn(&Range<u64>) -> bool) -> Option<Event> {
        let index = (0..self.waiting.len()).find(|&index| {
            let (earlier, (told, change)) = (&self.waiting[..index], &self.waiting[index]);
            let waits = told.elapsed() <= LATEST && is_blocked(change, &is_mapped);
            !waits && !earlier.iter().any(|(_, earlier)| is_followed_by(earlier, change))
        })?;
        Some(self.waiting.remove(index).1)
    }

    /// Ends the waiting after the target has ended: the awaited events never come. If a fork is among the
    /// waiting changes, returns them all in the order of their reports: the child lives on, and needs its
    /// parent's pages.
    pub(crate) fn rest(&mut self) -> Vec<Event> {
        let has_fork = self.waiting.iter().any(|(_, change)| matches!(change, Event::Fork(_)));
        let rest = self.waiting.drain(..).map(|(_, change)| change);
        if has_fork { rest.collect() } else { Vec::new() }
    }

    pub(crate) fn are_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether a waiting change will bring a range to a page.
    pub(crate) fn bring(&self, page: u64) -> bool {
        self.waiting.iter().any(|(_, change)| destination(change).is_some_and(|to| to.contains(&page)))
    }

    /// Notes the report that a range has moved.
    fn leaves(&mut self, from: Range<u64>, to: Range<u64>) {
        self.left.retain(|left| left.told.elapsed() <= LATEST);
        self.left.iter_mut().for_each(|left| left.is_refilled |= overlap(&left.range, &to));
        // A waiting move to that place arrived there after the range had left.
        let is_refilled =
            self.waiting.iter().filter_map(|(_, change)| destination(change)).any(|to| overlap(&to, &from));
        self.left.push(VacatedRange { range: from, told: Instant::now(), is_refilled });
    }

    /// Returns whether an unmapping belongs to a move whose source something else has refilled since.
    fn is_of_refilled(&mut self, unmapped: Range<u64>) -> bool {
        self.left.retain(|left| left.told.elapsed() <= LATEST);
        let of_refilled = self.left.iter().position(|left| left.range == unmapped && left.is_refilled);
        if let Some(index) = of_refilled {
            self.left.swap_remove(index);
            return true;
        }
        // The event belongs to the move, or unmaps everything that the move has left there. If something else
        // had arrived there, the event unmaps that, and the unmapping that belongs to the move is still to
        // come.
        self.left.retain_mut(|left| {
            let is_whole = unmapped.start <= left.range.start && left.range.end <= unmapped.end;
            let is_kept = !is_whole || left.is_refilled;
            left.is_refilled &= !is_whole;
            is_kept
        });
        false
    }

    /// Returns whether a change unmaps, or moves away, the mapping that blocks a waiting change. Returns
    /// false if an earlier waiting change frees the same mapping: no other thread can have freed it too.
    fn awaits(&self, change: &Event, is_mapped: &impl Fn(&Range<u64>) -> bool) -> bool {
        let Some(freed) = freed(change) else { return false };
        self.waiting.iter().enumerate().any(|(index, (_, blocked))| {
            let Some(to) = destination(blocked) else { return false };
            let both = to.start.max(freed.start)..to.end.min(freed.end);
            let mut earlier = self.waiting[..index].iter().filter_map(|(_, earlier)| self::freed(earlier));
            !both.is_empty() && is_mapped(&both) && !earlier.any(|earlier| overlap(&earlier, &both))
        })
    }
}

/// Returns whether a change moves a range to where something is still mapped.
fn is_blocked(change: &Event, is_mapped: &impl Fn(&Range<u64>) -> bool) -> bool {
    destination(change).is_some_and(|to| is_mapped(&to))
}

fn destination(change: &Event) -> Option<Range<u64>> {
    match *change {
        Event::Remap { to, len, .. } => Some(to..to + len),
        _ => None,
    }
}

/// Returns the range that a change unmaps or moves away.
fn freed(change: &Event) -> Option<Range<u64>> {
    match *change {
        Event::Unmap { start, end } => Some(start..end),
        Event::Remap { from, len, .. } => Some(from..from + len),
        _ => None,
    }
}

/// Returns whether two changes have addresses in common, so that their order matters.
fn is_followed_by(earlier: &Event, later: &Event) -> bool {
    let (earlier, later) = (ranges(earlier), ranges(later));
    earlier.iter().any(|a| later.iter().any(|b| overlap(a, b)))
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn ranges(change: &Event) -> SmallVec<[Range<u64>; 2]> {
    match *change {
        Event::Unmap { start, end } | Event::Remove { start, end } => smallvec![start..end],
        Event::Remap { from, to, len } => smallvec![from..from + len, to..to + len],
        Event::Fork(_) => smallvec![0..u64::MAX],
        Event::Fault { .. } => SmallVec::new(),
    }
}

#[cfg(all(test, not(loom)))]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    fn unmap(start: u64, end: u64) -> Event {
        Event::Unmap { start, end }
    }

    fn remap(from: u64, to: u64) -> Event {
        Event::Remap { from, to, len: 10 }
    }

    /// Returns the changes in the order in which they are taken in, if they are reported in this order and
    /// `mapped` is mapped at first.
    fn order(mapped: &[(u64, u64)], told: Vec<Event>) -> Vec<String> {
        let mut mapped: Vec<_> = mapped.iter().map(|(start, end)| *start..*end).collect();
        let mut changes = WaitingChanges::default();
        let mut taken = Vec::new();
        for change in told {
            let is_mapped = |mapped: &[Range<u64>], range: &Range<u64>| {
                mapped.iter().any(|part| part.start < range.end && range.start < part.end)
            };
            let mut next = changes.told(change, |range| is_mapped(&mapped, range));
            while let Some(change) = next {
                taken.push(format!("{change:?}"));
                match change {
                    Event::Unmap { start, end } => {
                        mapped.retain(|part| part.end <= start || end <= part.start)
                    }
                    Event::Remap { from, to, .. } => {
                        mapped.retain(|part| part.start != from);
                        mapped.push(to..to + 10);
                    }
                    _ => {}
                }
                next = changes.next(|range| is_mapped(&mapped, range));
            }
        }
        assert!(changes.are_settled(), "{changes:?}");
        taken
    }

    fn said(changes: &[Event]) -> Vec<String> {
        changes.iter().map(|change| format!("{change:?}")).collect()
    }

    #[test]
    fn what_is_in_order_is_taken_in_at_once() {
        let told = || vec![remap(0, 100), unmap(0, 10), remap(100, 0), Event::Remove { start: 0, end: 5 }];
        assert_eq!(order(&[(0, 10)], told()), said(&told()));
    }

    #[test]
    fn a_range_waits_for_the_unmapping_of_its_destination_and_what_follows_waits_for_it() {
        // A thread unmaps the range at 100, and its report is late. Another thread moves the range at 0 to
        // 100, and drops pages there.
        let drop = || Event::Remove { start: 102, end: 104 };
        let told = vec![remap(0, 100), unmap(0, 10), drop(), unmap(500, 510), unmap(100, 110)];
        let taken = [unmap(500, 510), unmap(100, 110), remap(0, 100), unmap(0, 10), drop()];
        assert_eq!(order(&[(0, 10), (100, 110), (500, 510)], told), said(&taken));
    }

    #[test]
    fn ranges_that_move_in_a_row_arrive_in_a_row() {
        // The range at 100 has moved to 200 before the range at 0 came to 100, but is reported later.
        let told = vec![remap(0, 100), remap(100, 200)];
        assert_eq!(order(&[(0, 10), (100, 110)], told), said(&[remap(100, 200), remap(0, 100)]));
    }

    #[test]
    fn a_range_that_moves_on_is_not_what_its_place_waits_for_if_that_is_to_leave_by_an_earlier_change() {
        // A thread has moved the range at 10 to 30, and its report is late. Another thread moves the range at
        // 50 to 10, then the one at 0 to 50, and then on to 70.
        let on = || vec![remap(50, 10), unmap(50, 60), remap(0, 50), unmap(0, 10), remap(50, 70)];
        let told = on().into_iter().chain([remap(10, 30)]).collect();
        let taken: Vec<_> = [remap(10, 30)].into_iter().chain(on()).collect();
        assert_eq!(order(&[(0, 10), (10, 20), (50, 60)], told), said(&taken));
    }

    #[test]
    fn the_unmapping_that_belongs_to_a_move_leaves_what_has_arrived_there_since() {
        // A thread has moved the range at 10 to 30, and the report of the unmapping is late. Meanwhile,
        // another thread has moved the range at 20 to 10.
        let told = vec![remap(10, 30), remap(20, 10), unmap(10, 20), unmap(20, 30)];
        let taken = [remap(10, 30), remap(20, 10), unmap(20, 30)];
        assert_eq!(order(&[(10, 20), (20, 30)], told), said(&taken));
        // The report of the move is late, too.
        let told = vec![remap(20, 10), unmap(20, 30), remap(10, 30), unmap(10, 20)];
        assert_eq!(order(&[(10, 20), (20, 30)], told), said(&[remap(10, 30), remap(20, 10), unmap(20, 30)]));
    }

    #[test]
    fn the_unmapping_that_belongs_to_a_move_leaves_what_has_arrived_there_at_last() {
        // A thread has moved the range at 10 to 30, and the report of the unmapping is late. A longer range
        // arrives at 10 and is unmapped. Then a third range arrives there.
        let arrives = |from| Event::Remap { from, to: 10, len: 20 };
        let told =
            || vec![remap(10, 30), arrives(50), unmap(50, 70), unmap(10, 30), arrives(80), unmap(80, 100)];
        let late = told().into_iter().chain([unmap(10, 20)]).collect();
        assert_eq!(order(&[(10, 20), (50, 70), (80, 100)], late), said(&told()));
    }

    #[test]
    fn a_range_that_is_replaced_as_a_whole_is_unmapped_like_any_other() {
        // The addresses from 10 to 20 stay watched after their range has moved away (`MREMAP_DONTUNMAP`). A
        // longer range then takes these addresses and the next ones.
        let arrives = || Event::Remap { from: 50, to: 10, len: 20 };
        let told = || vec![remap(10, 30), unmap(10, 30), arrives(), unmap(50, 70), unmap(10, 20)];
        assert_eq!(order(&[(10, 20), (20, 30), (50, 70)], told()), said(&told()));
    }

    #[test]
    fn of_a_target_that_has_ended_changes_are_left_if_a_fork_is_among_them() {
        let mut changes = WaitingChanges::default();
        assert!(changes.told(remap(0, 100), |_| true).is_none());
        assert!(changes.rest().is_empty() && changes.are_settled());
        let child = std::fs::File::open("/dev/null").unwrap().into();
        assert!(changes.told(remap(0, 100), |_| true).is_none());
        assert!(changes.told(Event::Fork(child), |_| true).is_none(), "it follows what waits");
        assert!(matches!(changes.rest()[..], [Event::Remap { .. }, Event::Fork(_)]));
    }

    #[test]
    fn what_is_unmapped_after_it_has_arrived_goes() {
        let told = || vec![remap(10, 30), unmap(10, 20), remap(20, 10), unmap(20, 30), unmap(10, 20)];
        assert_eq!(order(&[(10, 20), (20, 30)], told()), said(&told()));
        // After a move, the old addresses stay watched (`MREMAP_DONTUNMAP`). They are unmapped before another
        // range arrives there.
        let told = || vec![remap(10, 30), unmap(10, 20), remap(20, 10), unmap(10, 20)];
        assert_eq!(order(&[(10, 20), (20, 30)], told()), said(&told()));
    }
}
