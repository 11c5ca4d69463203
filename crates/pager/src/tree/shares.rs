//! The memory that processes have together if several of them map the same pages.
//!
//! The kernel counts such a page in each process. It also reports proportional shares (PSS), which add up to
//! the real total, but asking for them takes about 14 ms per GiB. So the processes of a group are asked one
//! after another, in [rounds](crate::tree::rounds), and each answer has its own age. Meanwhile, the estimate
//! stays at or above the real total. After a process was asked, its pages count like this:
//!
//! | the process | counts |
//! |---|---|
//! | was never asked | whole: all that the kernel counts for it |
//! | gets pages | with the whole new pages, since they are its own |
//! | stores to shared pages | with its faults, until all have been asked after that: it has copies, and the others' shares have grown |
//! | ends, or leaves the group | as before, until all have been asked after that: its pages may be left to others |
//! | loses pages, or Octavo takes pages from it | without these pages |
//! | has shared pages that Octavo takes | with them as before, until all have been asked after that: it copied them first, and took the copies |
//!
//! A round may have asked one process before such a change, and others after it. So *until all have been
//! asked* means until the end of the first round that began after the change.
//!
//! A fork's child has few pages of its own, but would count whole until it is asked. So while a member was
//! not asked, there is a second bound: what the group had before, plus what has come since. A new child adds
//! its faults to this bound. Answers of other members do not lower it, since the child has made their shares
//! smaller.
//!
//! In three cases, the estimate may be too low until the next round has ended: a process loses pages that
//! others map as well; a fork's child has come and gone between two looks; or a process ends before its turn
//! in a round, after another has ended. A fault counts as one page of 4 KiB. The estimate is never below what
//! one process has, nor above the sum of the kernel's counts.

use std::collections::BTreeMap;

use octavo::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;

/// Processes that may map the same pages.
#[derive(Debug, Default)]
pub(crate) struct SharingGroup {
    members: BTreeMap<u32, Member>,
    /// What members may have left to others: since the current round began, and between the beginning of the
    /// last whole round and that of the current one.
    left: LeftOver,
    /// Whether a round that asks all members is under way.
    is_in_round: bool,
    /// The memory that the group had at the last look without new members, plus the memory that has come
    /// since. No answer lowers this bound.
    bound: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct LeftOver {
    before_round: u64,
    in_round: u64,
}

/// The known facts about a process that joins a group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Newcomer {
    /// Whether it was forked: it has the pages of another member, and those that its faults brought.
    pub(crate) is_fork: bool,
    /// If it was not forked: its faults at a moment before its first fork.
    pub(crate) faults: u64,
}

/// A process of a group. All amounts are in bytes.
#[derive(Debug, Default)]
struct Member {
    /// The facts at the moment when the process joined. `None` after the process was first noted.
    newcomer: Option<Newcomer>,
    /// The kernel's counts for the process. `None` until the process is first noted.
    noted: Option<FaultMark>,
    /// The process's last answer.
    answer: Option<ShareAnswer>,
    /// The highest estimate for the process since its last answer.
    most: u64,
    /// The process's marks at the beginning of the last whole round, and at the beginning of the current
    /// round. `None` if its faults do not matter.
    then: Option<FaultMark>,
    then_in_round: Option<FaultMark>,
}

#[derive(Clone, Copy, Debug)]
struct ShareAnswer {
    share: u64,
    counted: u64,
}

/// The kernel's counts for a process at a moment, and the process's faults until then, including pages that
/// came without a fault. `faults` is `None` if stores to shared pages do not matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultMark {
    pub(crate) counted: u64,
    pub(crate) faults: Option<u64>,
    /// Pages of its own that Octavo has taken until then.
    pub(crate) taken: u64,
}

impl FaultMark {
    /// Returns the bytes of the copies that stores to shared pages have made since `then`. No count reveals
    /// such copies, but each copy is a fault. The other faults brought pages that are counted, or that
    /// replace taken ones.
    fn unseen_since(self, then: Self) -> u64 {
        let (Some(before), Some(now)) = (then.faults, self.faults) else { return 0 };
        let faulted = now.saturating_sub(before) * PAGE;
        let came = self.counted + self.taken.saturating_sub(then.taken) * PAGE;
        faulted.saturating_sub(came.saturating_sub(then.counted))
    }
}

impl SharingGroup {
    /// Records which processes belong to the group, after a look for processes.
    pub(crate) fn keep(&mut self, found: &BTreeMap<u32, Newcomer>) {
        let (left, bound) = (&mut self.left, &mut self.bound);
        self.members.retain(|pid, member| {
            let stays = found.contains_key(pid);
            if !stays {
                left.in_round += member.most;
                // A process that has executed another program has lost all its pages at once.
                *bound += member.lost();
            }
            stays
        });
        for (pid, newcomer) in found {
            self.members.entry(*pid).or_insert_with(|| {
                let newcomer = Some(*newcomer);
                Member { newcomer, ..Member::default() }
            });
        }
        if self.all_have_answered() {
            self.bound = self.estimate();
        }
    }

    /// Records what the kernel counts for a member, and its faults. The faults are `None` if stores to shared
    /// pages do not matter.
    pub(crate) fn note(&mut self, pid: u32, now: FaultMark) {
        let FaultMark { counted, faults, .. } = now;
        let Some(member) = self.members.get_mut(&pid) else { return };
        let newcomer = member.newcomer.take();
        let began = newcomer.map_or(now, |newcomer| newcomer.began(now));
        match member.noted.replace(now) {
            // It has ended, and may have left its pages to others.
            Some(_) if counted == 0 => {}
            Some(before) => {
                self.bound = (self.bound + counted).saturating_sub(before.counted) + now.unseen_since(before);
            }
            None => {
                let others = self.members.iter().filter(|(other, _)| **other != pid);
                let largest = others.map(|(_, member)| member.counted()).max().unwrap_or(0);
                self.bound += newcomer.unwrap_or_default().adds(now, largest);
            }
        }
        let member = self.members.get_mut(&pid).expect("it was just found");
        if faults.is_some() {
            member.then.get_or_insert(began);
            member.then_in_round.get_or_insert(began);
        } else {
            (member.then, member.then_in_round) = (None, None);
        }
        member.most = member.most.max(member.estimate());
    }

    /// Returns the members that were not noted yet, except forks: the memory that a fork adds depends on the
    /// memory of the others.
    pub(crate) fn unnoted(&self) -> impl Iterator<Item = u32> {
        let is_unnoted = |member: &Member| member.newcomer.is_some_and(|newcomer| !newcomer.is_fork);
        self.members.iter().filter(move |(_, member)| is_unnoted(member)).map(|(pid, _)| *pid)
    }

    pub(crate) fn contains(&self, pid: u32) -> bool {
        self.members.contains_key(&pid)
    }

    /// Returns the members, each with whether it has been asked.
    pub(crate) fn members(&self) -> impl Iterator<Item = (u32, bool)> {
        self.members.iter().map(|(pid, member)| (*pid, member.answer.is_some()))
    }

    pub(crate) fn all_have_answered(&self) -> bool {
        self.members().all(|(_, is_asked)| is_asked)
    }

    /// Begins a round.
    pub(crate) fn begin_round(&mut self) {
        self.is_in_round = true;
        self.members.values_mut().for_each(|member| member.then_in_round = member.then.and(member.noted));
        self.left.before_round += std::mem::take(&mut self.left.in_round);
    }

    /// Ends a round: all members that had answered before have answered again since it began.
    pub(crate) fn end_round(&mut self) {
        if std::mem::take(&mut self.is_in_round) {
            self.members.values_mut().for_each(|member| member.then = member.then_in_round);
            self.left.before_round = 0;
        }
    }

    /// Records the share of a member that was just noted. With `None`, the member cannot be asked, and counts
    /// whole.
    pub(crate) fn answered(&mut self, pid: u32, share: Option<u64>) {
        if let Some(member) = self.members.get_mut(&pid) {
            let counted = member.counted();
            member.answer = Some(ShareAnswer { share: share.unwrap_or(counted), counted });
            member.most = member.estimate();
        }
    }

    /// Returns the sum of the kernel's counts for all members, and the largest of them.
    pub(crate) fn counted(&self) -> (u64, u64) {
        let counted = || self.members.values().map(Member::counted);
        (counted().sum(), counted().max().unwrap_or(0))
    }

    /// Estimates the memory that the members have together. It is at least the memory of the largest member.
    pub(crate) fn estimate(&self) -> u64 {
        let members: u64 = self.members.values().map(Member::estimate).sum();
        let by_answers = members + self.left.before_round + self.left.in_round;
        let bound = if self.all_have_answered() { u64::MAX } else { self.bound };
        let (all, largest) = self.counted();
        by_answers.min(bound).clamp(largest, all)
    }

    /// Returns the memory that the members have together by their last answers: the sum of their shares, plus
    /// the memory that each got since. Reports of a run use this figure, which is not a bound: a child that
    /// was never asked counts with its faults, and an answer from before a fork counts too much. The result
    /// is at most the [estimate](Self::estimate).
    pub(crate) fn told(&self, estimate: u64) -> u64 {
        let answered: u64 = self.members.values().map(Member::told).sum();
        answered.clamp(self.counted().1, estimate)
    }
}

impl Newcomer {
    /// Returns the bytes that a process adds to a group whose largest member has `largest` bytes.
    fn adds(self, now: FaultMark, largest: u64) -> u64 {
        match now.faults {
            Some(faults) if self.is_fork => {
                (faults * PAGE + now.counted.saturating_sub(largest)).min(now.counted)
            }
            _ => now.counted + now.unseen_since(self.began(now)),
        }
    }

    /// Returns the mark after which the process's faults count.
    fn began(self, now: FaultMark) -> FaultMark {
        let then = if self.is_fork { 0 } else { self.faults };
        FaultMark { faults: now.faults.map(|now| now.min(then)), ..now }
    }
}

impl Member {
    fn counted(&self) -> u64 {
        self.noted.map_or(0, |noted| noted.counted)
    }

    /// Returns the bytes of the process by its last answer.
    fn told(&self) -> u64 {
        let grown = |answer: ShareAnswer| answer.share + self.counted().saturating_sub(answer.counted);
        let faulted = self.noted.and_then(|noted| noted.faults).map_or(0, |faults| faults * PAGE);
        self.answer.map_or(faulted, grown).min(self.counted())
    }

    /// Returns the bytes that the process has lost. The bound was lowered by these bytes. A process that has
    /// ended has lost nothing.
    fn lost(&self) -> u64 {
        let before = self.answer.map_or(self.most, |answer| answer.counted);
        if self.counted() == 0 { 0 } else { before.saturating_sub(self.counted()) }
    }

    /// Estimates the bytes of the process: its share, plus the bytes that it got since, plus the copies that
    /// its stores made.
    fn estimate(&self) -> u64 {
        let Some(now) = self.noted.filter(|now| now.counted > 0) else {
            // It has ended, and may have left its pages to others.
            return self.most;
        };
        let unseen = self.then.map_or(0, |then| now.unseen_since(then));
        let known = self
            .answer
            .map_or(now.counted, |answer| (answer.share + now.counted).saturating_sub(answer.counted));
        known + unseen
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A mark with these bytes and faults.
    fn mark(counted: u64, faults: impl Into<Option<u64>>) -> FaultMark {
        FaultMark { counted, faults: faults.into(), taken: 0 }
    }

    fn keep(group: &mut SharingGroup, pids: &[u32]) {
        group.keep(&pids.iter().map(|pid| (*pid, Newcomer { is_fork: *pid > 2, faults: 1000 })).collect());
    }

    /// Two processes share 80 pages, and each has 20.
    fn asked() -> SharingGroup {
        let mut group = SharingGroup::default();
        keep(&mut group, &[1, 2]);
        for pid in [1, 2] {
            group.note(pid, mark(100 * PAGE, 1000));
            group.answered(pid, Some(60 * PAGE));
        }
        assert_eq!(group.estimate(), 120 * PAGE);
        group
    }

    fn pages(group: &SharingGroup) -> u64 {
        group.estimate() / PAGE
    }

    fn told(group: &SharingGroup) -> u64 {
        group.told(group.estimate()) / PAGE
    }

    #[test]
    fn what_is_told_counts_a_child_that_was_never_asked_with_its_faults() {
        let mut group = asked();
        keep(&mut group, &[1, 2, 3]);
        group.note(3, mark(100 * PAGE, 40));
        assert!(pages(&group) > 150, "it may have stored to all that it shares");
        assert_eq!(told(&group), 160);
        group.note(1, mark(110 * PAGE, 1010));
        assert_eq!(told(&group), 170, "and what one got is its own");
        group.answered(3, Some(20 * PAGE));
        assert_eq!(told(&group), 150);
        group.note(1, mark(0, 1010));
        group.note(2, mark(0, 1010));
        assert_eq!(told(&group), 100, "one process counts at least");
    }

    #[test]
    fn pages_that_come_and_go_count_whole_and_one_process_counts_at_least() {
        let mut group = asked();
        group.note(1, mark(130 * PAGE, 1030));
        assert_eq!(pages(&group), 150, "one of them grows");
        group.note(1, mark(90 * PAGE, 1000));
        assert_eq!(pages(&group), 110, "pages of its own go out");
        group.note(1, mark(0, 1000));
        assert_eq!(pages(&group), 100, "one of them ends");
    }

    #[test]
    fn stores_to_shared_pages_show_as_faults_and_get_no_more_than_a_copy_for_each() {
        let mut group = asked();
        group.note(1, mark(100 * PAGE, 1025));
        assert_eq!(pages(&group), 145);
        group.note(1, mark(130 * PAGE, 1055));
        assert_eq!(pages(&group), 175, "some faults got new pages");
        group.note(1, mark(100 * PAGE, 1500));
        assert_eq!(pages(&group), 200);
        group.note(1, FaultMark { taken: 480, ..mark(100 * PAGE, 1500) });
        assert_eq!(pages(&group), 140, "most came back in place of others that were taken");
        group.note(1, mark(100 * PAGE, None));
        assert_eq!(pages(&group), 120, "its copies count elsewhere");
    }

    #[test]
    fn a_process_that_was_never_asked_counts_whole_and_a_fork_with_its_faults() {
        let mut group = SharingGroup::default();
        keep(&mut group, &[1, 2]);
        [1, 2].into_iter().for_each(|pid| group.note(pid, mark(100 * PAGE, 1000)));
        assert_eq!(pages(&group), 200);
        group.answered(2, None);
        assert_eq!(pages(&group), 200, "nor can it be");

        let mut group = asked();
        keep(&mut group, &[1, 2]);
        keep(&mut group, &[1, 2, 3]);
        group.note(3, mark(102 * PAGE, 7));
        assert_eq!(pages(&group), 129, "and with what it has beyond the others");
        // Member 3 maps pages of the others, so the others' shares have shrunk.
        group.answered(1, Some(40 * PAGE));
        assert_eq!(pages(&group), 129);
        group.note(3, mark(122 * PAGE, 27));
        assert_eq!(pages(&group), 149);
        group.answered(3, Some(62 * PAGE));
        assert_eq!(pages(&group), 40 + 60 + 62 + 7, "it has made seven copies, as far as one knows");
    }

    /// The parent was alone, so it was never asked.
    #[test]
    fn the_first_fork_counts_with_its_faults_once_note_was_taken_of_its_parent() {
        let mut group = SharingGroup::default();
        group.keep(&BTreeMap::from([
            (1, Newcomer { is_fork: true, faults: 0 }),
            (2, Newcomer { is_fork: false, faults: 1000 }),
        ]));
        assert!(group.unnoted().eq([2]));
        group.note(2, mark(100 * PAGE, 1003));
        assert_eq!(group.unnoted().count(), 0);
        group.note(1, mark(100 * PAGE, 7));
        assert_eq!(pages(&group), 100 + 3 + 7);
    }

    #[test]
    fn a_copy_that_is_made_between_two_answers_of_a_round_is_not_lost() {
        let mut group = asked();
        group.begin_round();
        group.answered(1, Some(60 * PAGE));
        group.note(2, mark(100 * PAGE, 1080));
        group.answered(2, Some(100 * PAGE));
        group.end_round();
        assert!(pages(&group) >= 200, "{group:?}");
        group.begin_round();
        group.answered(1, Some(100 * PAGE));
        group.answered(2, Some(100 * PAGE));
        group.end_round();
        assert_eq!(pages(&group), 200);
    }

    #[test]
    fn what_a_process_leaves_to_others_counts_until_all_have_been_asked_again() {
        let mut group = asked();
        keep(&mut group, &[1, 2, 3]);
        group.note(3, mark(100 * PAGE, 0));
        group.begin_round();
        [1, 2, 3].into_iter().for_each(|pid| group.answered(pid, Some(40 * PAGE)));
        keep(&mut group, &[1, 2]);
        group.end_round();
        assert_eq!(pages(&group), 120, "two of them were asked before the third ended");
        group.begin_round();
        group.answered(1, Some(60 * PAGE));
        group.answered(2, Some(60 * PAGE));
        assert!(pages(&group) >= 120);
        group.end_round();
        assert_eq!(pages(&group), 120);
        assert_eq!(group.left.before_round + group.left.in_round, 0);
    }

    #[test]
    fn a_fork_of_a_process_that_runs_another_program_has_its_pages() {
        let mut group = asked();
        keep(&mut group, &[1, 2]);
        keep(&mut group, &[1, 2, 3]);
        group.note(3, mark(100 * PAGE, 0));
        assert_eq!(pages(&group), 120);
        group.note(2, mark(PAGE, 1000));
        keep(&mut group, &[1, 3]);
        assert_eq!(pages(&group), 120);
    }

    /// Processes with pages, some of them shared. Each page has a number, and the processes that map it.
    #[derive(Default)]
    struct Model {
        pages: BTreeMap<u64, BTreeSet<u32>>,
        faults: BTreeMap<u32, u64>,
        next: u64,
    }

    impl Model {
        fn counted(&self, pid: u32) -> u64 {
            self.pages.values().filter(|shown_by| shown_by.contains(&pid)).count() as u64 * PAGE
        }

        /// Rounded up, so that sums are never too low.
        fn share(&self, pid: u32) -> u64 {
            let shown = self.pages.values().filter(|shown_by| shown_by.contains(&pid));
            shown.map(|shown_by| PAGE.div_ceil(shown_by.len() as u64)).sum()
        }

        fn touch(&mut self, pid: u32) {
            self.next += 1;
            self.pages.insert(self.next, BTreeSet::from([pid]));
            *self.faults.entry(pid).or_default() += 1;
        }

        /// Stores to a page: a shared one is copied.
        fn store(&mut self, pid: u32, which: usize) {
            let shown: Vec<u64> =
                self.pages.iter().filter(|(_, by)| by.contains(&pid)).map(|(page, _)| *page).collect();
            if let Some(page) = shown.get(which % shown.len().max(1))
                && self.pages[page].len() > 1
            {
                self.pages.get_mut(page).unwrap().remove(&pid);
                self.touch(pid);
            }
        }

        fn fork(&mut self, parent: u32, child: u32) {
            let shown = self.pages.values_mut().filter(|shown_by| shown_by.contains(&parent));
            for shown_by in shown {
                shown_by.insert(child);
            }
            self.faults.insert(child, 0);
        }

        fn end(&mut self, pid: u32) {
            self.pages.retain(|_, shown_by| {
                shown_by.remove(&pid);
                !shown_by.is_empty()
            });
            self.faults.remove(&pid);
        }
    }

    #[test]
    fn an_estimate_is_never_below_what_there_is_and_exact_after_rounds_in_which_nothing_happens() {
        for seed in 1..=300_u64 {
            let mut state = seed;
            let mut below = |bound: usize| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (state >> 33) as usize % bound
            };
            let (mut model, mut group, mut next) = (Model::default(), SharingGroup::default(), 1);
            (0..20).for_each(|_| model.touch(1));
            let (mut seen, mut ended, mut to_ask) =
                (BTreeSet::<u32>::new(), BTreeSet::<u32>::new(), Vec::<u32>::new());
            for _ in 0..400 {
                let pids: Vec<u32> = model.faults.keys().copied().collect();
                let pid = pids[below(pids.len())];
                let ends_before_its_turn = group.is_in_round && to_ask.contains(&pid);
                match below(9) {
                    0 => model.touch(pid),
                    1 | 2 => model.store(pid, below(1000)),
                    3 if pids.len() < 8 => {
                        next += 1;
                        model.fork(pid, next);
                    }
                    // Ends only processes that were seen. An unseen one leaves the others less than their
                    // answers count.
                    4 if pids.len() > 2 && seen.contains(&pid) && !ends_before_its_turn => {
                        model.end(pid);
                        ended.insert(pid);
                    }
                    5 => {
                        // A look for processes.
                        let is_fork = |pid| pid > 1;
                        let newcomer = |pid| Newcomer { is_fork: is_fork(pid), faults: 0 };
                        group.keep(&model.faults.keys().map(|pid| (*pid, newcomer(*pid))).collect());
                        (seen, ended) = (model.faults.keys().copied().collect(), BTreeSet::new());
                    }
                    _ if !seen.is_empty() => {
                        to_ask.retain(|pid| model.faults.contains_key(pid));
                        if group.is_in_round && to_ask.is_empty() {
                            group.end_round();
                        }
                        // A new process is asked before its turn.
                        let new = group.members().find(|(pid, is_asked)| !is_asked && !ended.contains(pid));
                        let pid = new.filter(|_| below(3) > 0).map(|(pid, _)| pid).or_else(|| {
                            if !group.is_in_round {
                                group.begin_round();
                                let members = group.members();
                                to_ask = members.filter(|(_, asked)| *asked).map(|(pid, _)| pid).collect();
                                to_ask.retain(|pid| model.faults.contains_key(pid));
                            }
                            (!to_ask.is_empty()).then(|| to_ask.swap_remove(below(to_ask.len())))
                        });
                        if let Some(pid) = pid {
                            group.answered(pid, Some(model.share(pid)));
                        }
                    }
                    _ => {}
                }
                ended.iter().for_each(|pid| group.note(*pid, mark(0, 0)));
                for (pid, faults) in &model.faults {
                    group.note(*pid, mark(model.counted(*pid), *faults));
                }
                if model.faults.keys().all(|pid| seen.contains(pid)) {
                    let there_is = model.pages.len() as u64 * PAGE;
                    assert!(
                        group.estimate() >= there_is,
                        "seed {seed}: {} < {there_is}: {group:?}",
                        group.estimate()
                    );
                }
            }
            group.keep(&model.faults.keys().map(|pid| (*pid, Newcomer::default())).collect());
            for (pid, faults) in &model.faults {
                group.note(*pid, mark(model.counted(*pid), *faults));
            }
            for _ in 0..3 {
                group.begin_round();
                for pid in model.faults.keys() {
                    group.answered(*pid, Some(model.share(*pid)));
                }
                group.end_round();
            }
            assert_eq!(pages(&group), model.pages.len() as u64, "seed {seed}");
        }
    }
}
