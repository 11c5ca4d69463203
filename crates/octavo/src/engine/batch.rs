//! Asks a translation about many pages at once. Neighbours are joined into runs, and each leaf gets its own
//! answer.

use std::ops::Range;

use smallvec::SmallVec;

use crate::sizes::FEW_TRANSLATED;
use crate::sync::{Duration, catch_panic, pause};
use crate::table::Protection;
use crate::table::translation::{Answer, Bytes, Install, Remove, Run, Touch};
use crate::units::PageNumber;

/// The time between two questions about memory that is held elsewhere.
const ASK_EVERY: Duration = Duration::from_micros(100);

/// A question about a run.
pub(crate) trait Ask: Copy + PartialEq {
    /// Returns the same question for pages that begin this many pages later.
    fn after(self, pages: u32) -> Self;
}

impl Ask for Install {
    fn after(self, pages: u32) -> Self {
        let bytes = match self.bytes {
            Bytes::Frames(frame) => Bytes::Frames(frame.plus(pages)),
            zeros => zeros,
        };
        Self { bytes, ..self }
    }
}

impl Ask for Remove {
    fn after(self, pages: u32) -> Self {
        Self { to: self.to.map(|frame| frame.plus(pages)), ..self }
    }
}

impl Ask for Protection {
    fn after(self, _: u32) -> Self {
        self
    }
}

impl Ask for Touch {
    fn after(self, _: u32) -> Self {
        self
    }
}

impl Ask for () {
    fn after(self, _: u32) -> Self {}
}

/// The pages of one question. A few leaves fit on the stack; more go to the heap.
#[derive(Debug)]
pub(crate) struct Batch<A> {
    runs: SmallVec<[Run<A>; FEW_TRANSLATED]>,
    /// The first page of each leaf, and its number of pages.
    leaves: SmallVec<[(PageNumber, u32); FEW_TRANSLATED]>,
}

/// The answers, one for each leaf.
pub(crate) type Answers = SmallVec<[Answer; FEW_TRANSLATED]>;

impl<A: Ask> Batch<A> {
    pub(crate) fn new() -> Self {
        Self { runs: SmallVec::new(), leaves: SmallVec::new() }
    }

    /// Adds a leaf of `count` pages.
    pub(crate) fn add(&mut self, page: PageNumber, count: u32, ask: A) {
        self.leaves.push((page, count));
        match self.runs.last_mut() {
            Some(run) if run.page.plus(u64::from(run.count)) == page && run.ask.after(run.count) == ask => {
                run.count += count;
            }
            _ => self.runs.push(Run { page, count, ask, answer: Answer::Busy }),
        }
    }

    /// Asks, and returns the answer for each leaf, in order.
    pub(crate) fn ask(mut self, ask: impl FnOnce(&mut [Run<A>])) -> Answers {
        ask_runs(&mut self.runs, ask);
        let mut leaves = self.leaves.into_iter();
        let mut answers = Answers::new();
        for run in &self.runs {
            let mut at = 0;
            while at < run.count {
                let (_, count) = leaves.next().expect("each run is made of leaves");
                answers.push(answer_for(run, at, count));
                at += count;
            }
        }
        answers
    }

    /// Asks until all is done, because the caller cannot go on before that. Any holder of the memory lets it
    /// go in time. Returns for each leaf, in order, whether it is done. If it is not, a part of it is
    /// unsupported, and that part is unchanged.
    pub(crate) fn insist(mut self, mut ask: impl FnMut(&mut [Run<A>])) -> SmallVec<[bool; FEW_TRANSLATED]> {
        let mut refused = SmallVec::<[Range<PageNumber>; 2]>::new();
        loop {
            ask_runs(&mut self.runs, &mut ask);
            self.runs.retain(|run| {
                let done = run.done();
                run.page = run.page.plus(u64::from(done));
                run.ask = run.ask.after(done);
                run.count -= done;
                if run.answer == Answer::Unsupported {
                    refused.push(run.page..run.page.plus(u64::from(run.count)));
                    return false;
                }
                run.answer = Answer::Busy;
                run.count > 0
            });
            if self.runs.is_empty() {
                break;
            }
            pause(ASK_EVERY);
        }
        let is_done = |(page, count): &(PageNumber, u32)| {
            let end = page.plus(u64::from(*count));
            refused.iter().all(|refused| end <= refused.start || *page >= refused.end)
        };
        self.leaves.iter().map(is_done).collect()
    }
}

/// Asks about one leaf, and again about the rest of it while each answer makes progress.
pub(crate) fn ask_for<A: Ask>(
    page: PageNumber,
    count: u32,
    what: A,
    mut ask: impl FnMut(&mut [Run<A>]),
) -> Answer {
    let mut done = 0;
    loop {
        let mut run = Run {
            page: page.plus(u64::from(done)),
            count: count - done,
            ask: what.after(done),
            answer: Answer::Busy,
        };
        ask_runs(std::slice::from_mut(&mut run), &mut ask);
        match run.answer {
            Answer::Partly(_) if run.done() > 0 && run.done() < run.count => done += run.done(),
            _ if run.done() == run.count => return Answer::Done,
            Answer::Partly(_) if done == 0 => return Answer::Busy,
            refusal if done == 0 => return refusal,
            _ => return Answer::Partly(done),
        }
    }
}

/// Asks, if there is a question. If the translation panics, the runs that it has not answered count as
/// unsupported. Their entries are Busy, so a panic must not leave waiters behind.
fn ask_runs<A>(runs: &mut [Run<A>], ask: impl FnOnce(&mut [Run<A>])) {
    if !runs.is_empty() && catch_panic(|| ask(runs)).is_err() {
        let unanswered = runs.iter_mut().filter(|run| run.answer == Answer::Busy);
        unanswered.for_each(|run| run.answer = Answer::Unsupported);
    }
}

/// Returns the part of a run's answer that concerns `count` pages, which begin `at` pages into the run.
fn answer_for<A>(run: &Run<A>, at: u32, count: u32) -> Answer {
    let done = run.done();
    match run.answer {
        _ if at + count <= done => Answer::Done,
        _ if at < done => Answer::Partly(done - at),
        // The pages after the part that is done may be asked about again.
        Answer::Partly(_) => Answer::Busy,
        answer => answer,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::FrameId;

    fn to(frame: u32) -> Remove {
        Remove { to: Some(FrameId(frame)), is_clean: false }
    }

    #[test]
    fn neighbours_that_ask_the_same_are_one_run_and_each_leaf_has_its_answer() {
        let mut batch = Batch::new();
        batch.add(PageNumber(10), 1, to(5));
        batch.add(PageNumber(11), 1, to(6));
        batch.add(PageNumber(12), 4, to(7));
        batch.add(PageNumber(16), 1, to(99));
        batch.add(PageNumber(18), 1, Remove::DROP);
        batch.add(PageNumber(19), 1, Remove::DROP);
        let answers = batch.ask(|runs| {
            let seen: Vec<_> = runs.iter().map(|run| (run.page.0, run.count, run.ask)).collect();
            assert_eq!(seen, [(10, 6, to(5)), (16, 1, to(99)), (18, 2, Remove::DROP)]);
            runs[0].answer = Answer::Partly(3);
            runs[1].answer = Answer::Unsupported;
            runs[2].answer = Answer::Done;
        });
        let first = [Answer::Done, Answer::Done, Answer::Partly(1)];
        assert_eq!(
            answers[..],
            [first.as_slice(), &[Answer::Unsupported, Answer::Done, Answer::Done]].concat()
        );
    }

    #[test]
    fn one_leaf_is_asked_for_as_long_as_more_of_it_is_done() {
        for (last, expected) in [
            (Answer::Done, Answer::Done),
            (Answer::Busy, Answer::Partly(7)),
            (Answer::Partly(0), Answer::Partly(7)),
        ] {
            let mut script = [Answer::Partly(3), Answer::Partly(4), last].into_iter();
            let mut seen = Vec::new();
            let answer = ask_for(PageNumber(10), 9, to(5), |runs| {
                seen.push((runs[0].page.0, runs[0].count, runs[0].ask));
                runs[0].answer = script.next().unwrap();
            });
            assert_eq!(answer, expected);
            assert_eq!(seen, [(10, 9, to(5)), (13, 6, to(8)), (17, 2, to(12))]);
        }
        assert_eq!(ask_for(PageNumber(0), 1, (), |_| panic!("asked for")), Answer::Unsupported);
    }

    #[test]
    fn insisting_asks_for_the_rest() {
        let mut batch = Batch::new();
        (0..6).for_each(|page| batch.add(PageNumber(page), 1, to(100 + page as u32)));
        batch.add(PageNumber(50), 1, to(1));
        let mut turn = 0;
        let is_done = batch.insist(|runs| {
            turn += 1;
            match turn {
                1 => runs[0].answer = Answer::Partly(2),
                2 => {
                    assert_eq!((runs[0].page, runs[0].count, runs[0].ask), (PageNumber(2), 4, to(102)));
                    runs[1].answer = Answer::Unsupported;
                }
                _ => runs[0].answer = Answer::Done,
            }
        });
        assert_eq!(turn, 3);
        assert_eq!(is_done[..], [true, true, true, true, true, true, false]);
    }
}
