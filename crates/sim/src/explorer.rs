//! Schedules that are chosen, not timed: at each operation on a shared word, any thread that can run may be
//! the next.
//!
//! Time is virtual here too. Each operation takes [`STEP`], and a timer is due when the clock has reached it.
//! In a random schedule, a timer may also fire early, as if every thread had been slow for that long.
//!
//! | schedule | the next thread |
//! |---|---|
//! | [`Schedule::Random`] | any, chosen by the seed; the seed also decides how often the thread changes |
//! | [`Schedule::Delays`] | the same thread continues, but now and then a thread is held back before it touches a word that another thread has touched last: Li and others, *Efficient scalable thread-safety-violation detection*, SOSP 2019 |
//! | [`Schedule::Priorities`] | the one with the highest priority, which changes at a few steps: Burckhardt and others, *A randomized scheduler with probabilistic guarantees of finding bugs*, ASPLOS 2010 |
//! | [`Schedule::Given`] | as written in a list; [`explore_all`](crate::explore_all) goes through all lists with few preemptions, as in Musuvathi and Qadeer, *Iterative context bounding for systematic testing of multithreaded programs*, PLDI 2007 |
//!
//! A thread that pauses in a spin loop waits until another thread has changed something.

use std::panic::Location;
use std::sync::Arc;

use crate::line::LineOperation;
use crate::random::Random;
use crate::stopped::Stopped;
use crate::task::TaskId;

/// The time of an operation on a shared word, in picoseconds.
const STEP: u64 = 20_000;
/// Words whose last user is remembered.
const TOUCHED: usize = 1 << 12;
/// A delay is shorter than `LEAST_DELAY` steps doubled up to `DELAYS - 1` times.
const LEAST_DELAY: u64 = 16;
const DELAYS: u64 = 10;
/// With [`Schedule::Delays`], one choice in this many goes to another thread for no reason.
const SELDOM: u64 = 256;
/// One choice in this many makes a timer fire early.
const EARLY: u64 = 1 << 12;
/// The highest priority falls at least once in this many steps. If it did not fall, threads that wait for a
/// thread of a lower priority could wait forever.
const PATIENCE: u64 = 20_000;
/// `HIGHEST` is the least priority of a thread that has not fallen. `FALLEN` is the least priority of a
/// thread that fell at a change.
const HIGHEST: u64 = 1 << 62;
const FALLEN: u64 = 1 << 61;

/// How the next thread is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At random.
    Random,
    /// The same thread continues, except that threads are held back where they meet others. This happens only
    /// at a few places in the source, which the seed chooses. So several threads may wait at just the places
    /// that matter.
    Delays {
        /// One place in this many is chosen.
        places: u64,
        /// Meetings at a chosen place for each delay.
        rarely: u64,
    },
    /// By priorities, which change a few times.
    Priorities {
        /// How often the priorities change.
        changes: u32,
        /// The steps among which the changes are spread.
        steps: u64,
    },
    /// As in this list at first, and without preemption after the end of the list.
    Given {
        /// The choice at each step at which there is a choice.
        path: Vec<ThreadChoice>,
        /// The most preemptions.
        preemptions: u32,
    },
}

/// A choice among threads: the current one first, if it can continue, and then the others by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadChoice {
    /// The number of the option taken.
    pub taken: u16,
    /// The number of options.
    pub options: u16,
}

/// A step of a thread, for people.
#[derive(Clone, Debug)]
pub struct Step {
    /// The thread's name.
    pub thread: Arc<str>,
    /// The place in the source.
    pub place: &'static Location<'static>,
    /// What the thread did to the word: `load`, `store` or `update`.
    pub what: &'static str,
}

/// The thread or the timer that runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextThread {
    Task(TaskId),
    /// The earliest timer.
    Timer,
}

/// A thread that can run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyThread {
    pub task: TaskId,
    /// Whether it pauses, and nothing has changed since.
    pub pauses: bool,
}

#[derive(Debug)]
pub(crate) struct Explorer {
    schedule: Schedule,
    random: Random,
    /// One choice in this many goes to another thread, unless priorities or lists decide.
    rarely: u64,
    /// For each hash of a word: the word, and the thread that touched it last.
    touched: Vec<(usize, TaskId)>,
    /// The seed by which places are chosen.
    chosen: u64,
    /// The step until which each thread is held back, by thread.
    held_until: Vec<u64>,
    /// Priorities by thread.
    priorities: Vec<u64>,
    /// The steps at which the highest priority falls, and its new value. The next change is the last element.
    changes: Vec<(u64, u64)>,
    /// Choices made so far from a given list.
    at: usize,
    preemptions: u32,
    pub clock: u64,
    pub steps: u64,
    pub most_steps: u64,
    pub switches: u64,
    /// Changes of shared words so far.
    pub writes: u64,
    last_fall: u64,
    /// A choice of the next thread that was made inside a thread's step.
    pub decided: Option<NextThread>,
    pub failed: Option<Stopped>,
    pub trace: Option<Vec<Step>>,
}

impl Explorer {
    pub(crate) fn new(schedule: Schedule, seed: u64, most_steps: u64, is_traced: bool) -> Self {
        let mut random = Random::new(seed ^ 0x7363_6865_6475_6c65);
        let changes = match schedule {
            Schedule::Priorities { changes, steps } => {
                // A thread's new priority does not depend on the step at which it falls. So a thread that
                // falls later may get a higher priority than one that fell before.
                let change = |number| (random.below(steps.max(1)), FALLEN + u64::from(number));
                let mut changes: Vec<_> = (0..changes).map(change).collect();
                changes.sort_unstable_by(|one, other| other.cmp(one));
                changes
            }
            _ => Vec::new(),
        };
        let often = 2 << (2 * random.below(4));
        Self {
            rarely: if matches!(schedule, Schedule::Delays { .. }) { SELDOM } else { often },
            schedule,
            random,
            touched: vec![(0, 0); TOUCHED],
            chosen: seed,
            held_until: Vec::new(),
            priorities: Vec::new(),
            changes,
            at: 0,
            preemptions: 0,
            clock: 0,
            steps: 0,
            most_steps,
            switches: 0,
            writes: 0,
            last_fall: 0,
            decided: None,
            failed: None,
            trace: is_traced.then(Vec::new),
        }
    }

    /// Notes that a thread is about to do this operation.
    pub(crate) fn note(
        &mut self,
        thread: &Arc<str>,
        access: LineOperation,
        place: &'static Location<'static>,
    ) {
        self.steps += 1;
        self.clock += STEP;
        self.writes += u64::from(access != LineOperation::Load);
        if let Some(trace) = &mut self.trace {
            let what = match access {
                LineOperation::Load => "load",
                LineOperation::Store => "store",
                LineOperation::Update => "update",
            };
            trace.push(Step { thread: Arc::clone(thread), place, what });
        }
    }

    /// Returns whether [`Self::meet`] must be called for each word that a thread reaches.
    pub(crate) fn minds_meetings(&self) -> bool {
        matches!(self.schedule, Schedule::Delays { .. })
    }

    /// Notes that a thread reaches this word, named by its stable address. The thread may be held back there.
    pub(crate) fn meet(&mut self, task: TaskId, word: usize, place: &Location<'static>) {
        let Schedule::Delays { places, rarely } = self.schedule else { return };
        let hash = (word >> 2).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (usize::BITS - TOUCHED.ilog2());
        let slot = &mut self.touched[hash];
        let is_others = slot.0 == word && slot.1 != task;
        *slot = (word, task);
        if is_others && self.is_chosen(place, places) && self.random.below(rarely) == 0 {
            if self.held_until.len() <= task {
                self.held_until.resize(task + 1, 0);
            }
            let length = LEAST_DELAY << self.random.below(DELAYS);
            self.held_until[task] = self.steps + self.random.below(length);
        }
    }

    /// Returns whether the seed chooses this place. It chooses one place in `of`. A place is the same in
    /// every checkout.
    fn is_chosen(&self, place: &Location<'static>, of: u64) -> bool {
        let name = place.file().rsplit('/').next().unwrap_or_default();
        let mut hash = self.chosen ^ u64::from(place.line()) << 32 ^ u64::from(place.column());
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
        Random::new(hash).below(of) == 0
    }

    /// Chooses what runs next. `timer` is the time at which the earliest timer is due.
    pub(crate) fn pick(
        &mut self,
        current: Option<TaskId>,
        candidates: &[ReadyThread],
        timer: Option<u64>,
    ) -> Option<NextThread> {
        if timer.is_some_and(|at| at <= self.clock) {
            return Some(NextThread::Timer);
        }
        let active = || candidates.iter().filter(|one| !one.pauses).map(|one| one.task);
        if active().next().is_none() {
            // Only a timer can change anything now.
            return match timer {
                Some(_) => Some(NextThread::Timer),
                None => candidates.first().map(|_| {
                    let at = self.random.below(candidates.len() as u64) as usize;
                    NextThread::Task(candidates[at].task)
                }),
            };
        }
        let current = current.filter(|task| active().any(|one| one == *task));
        let task = match &mut self.schedule {
            // A random schedule holds no thread back.
            Schedule::Random | Schedule::Delays { .. } => {
                if timer.is_some() && self.random.below(EARLY) == 0 {
                    return Some(NextThread::Timer);
                }
                let until = |task: &TaskId| self.held_until.get(*task).copied().unwrap_or(0);
                let is_free = |task: &TaskId| until(task) <= self.steps;
                match current {
                    Some(task) if is_free(&task) && self.random.below(self.rarely) != 0 => task,
                    _ => match active().filter(is_free).count() as u64 {
                        0 => active().min_by_key(until).expect("one"),
                        count => {
                            let at = self.random.below(count) as usize;
                            active().filter(is_free).nth(at).expect("counted")
                        }
                    },
                }
            }
            Schedule::Priorities { .. } => {
                let most = active().max().unwrap_or(0);
                while self.priorities.len() <= most {
                    let priority = HIGHEST + self.random.below(1 << 32);
                    self.priorities.push(priority);
                }
                let highest =
                    |priorities: &[u64]| active().max_by_key(|task| priorities[*task]).expect("one");
                let mut task = highest(&self.priorities);
                let change = self.changes.pop_if(|(at, _)| *at <= self.steps).map(|(_, to)| to);
                if change.is_some() || self.steps - self.last_fall > PATIENCE {
                    self.last_fall = self.steps;
                    // A thread that keeps others waiting falls below all.
                    self.priorities[task] = change.unwrap_or(FALLEN - self.steps.min(FALLEN));
                    task = highest(&self.priorities);
                }
                task
            }
            Schedule::Given { path, preemptions } => {
                let others = active().filter(|task| Some(*task) != current);
                let options: Vec<TaskId> = current.into_iter().chain(others).collect();
                if options.len() == 1 || current.is_some() && self.preemptions == *preemptions {
                    options[0]
                } else {
                    if self.at == path.len() {
                        path.push(ThreadChoice { taken: 0, options: options.len() as u16 });
                    }
                    let ThreadChoice { taken, options: were } = path[self.at];
                    assert_eq!(options.len(), were.into(), "the same choices lead to the same ones");
                    self.at += 1;
                    self.preemptions += u32::from(current.is_some() && taken > 0);
                    options[usize::from(taken)]
                }
            }
        };
        if Some(task) != current {
            self.switches += 1;
        }
        Some(NextThread::Task(task))
    }

    /// Returns the choices of a given schedule, with those that were added.
    pub(crate) fn into_path(self) -> Vec<ThreadChoice> {
        match self.schedule {
            Schedule::Given { path, .. } => path,
            _ => Vec::new(),
        }
    }
}

/// Returns the next list of choices: the last choice that has another option takes it, and those after it are
/// dropped. Returns `None` after the last list.
pub(crate) fn next_path(mut path: Vec<ThreadChoice>) -> Option<Vec<ThreadChoice>> {
    while let Some(last) = path.last_mut() {
        if last.taken + 1 < last.options {
            last.taken += 1;
            return Some(path);
        }
        path.pop();
    }
    None
}

/// Describes an interleaving for people: a line for each uninterrupted piece of a thread, with the places
/// where it begins and ends.
pub fn interleaving(steps: &[Step], name: impl Fn(&Location<'static>) -> String) -> String {
    let mut text = String::new();
    for piece in steps.chunk_by(|one, other| Arc::ptr_eq(&one.thread, &other.thread)) {
        let (first, last) = (&piece[0], &piece[piece.len() - 1]);
        let said = |step: &Step| format!("{} in {}", step.what, name(step.place));
        let line = match piece.len() {
            1 => format!("{:>16}: {}\n", first.thread, said(first)),
            steps => format!("{:>16}: {} .. {} ({steps} steps)\n", first.thread, said(first), said(last)),
        };
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_gone_through_in_order_and_end() {
        let choice = |taken, options| ThreadChoice { taken, options };
        let mut path = vec![choice(0, 2), choice(0, 3)];
        let mut seen = vec![path.clone()];
        while let Some(next) = next_path(path) {
            seen.push(next.clone());
            path = next;
        }
        let last: Vec<_> =
            seen.iter().map(|path| path.iter().map(|one| one.taken).collect::<Vec<_>>()).collect();
        assert_eq!(last, [vec![0, 0], vec![0, 1], vec![0, 2], vec![1]]);
    }
}
