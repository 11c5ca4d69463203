//! One page in a model, which finds for each rule the byte that is lost without it.
//!
//! A parent and its child share a page. Each stores, drops the page or forks at any moment; a sibling stores
//! from outside; a device stores; the disk fails, and loses what it was given; the runner chooses, copies,
//! flushes, stops, compares and drops. All orders of these steps are explored, up to a number of steps. After
//! each step every process must read what it would read without the runner.
//!
//! A byte is a small number, which counts stores. Zero is memory that was never stored to.

use std::collections::{HashSet, VecDeque};

/// The rules of the [crate](crate), each of which can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Compare,
    Flush,
    AllStop,
    Alone,
    CopyFirst,
    ByValue,
    NoPins,
    PlainMemory,
}

const RULES: [Rule; 8] = [
    Rule::Compare,
    Rule::Flush,
    Rule::AllStop,
    Rule::Alone,
    Rule::CopyFirst,
    Rule::ByValue,
    Rule::NoPins,
    Rule::PlainMemory,
];

/// What a process maps at the page's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Page {
    /// Private memory with these bytes.
    Anonymous(u8),
    /// The block of this number, with a private copy, or none.
    Ours(usize, Option<u8>),
}

/// Where the runner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Runner {
    Idle,
    /// It has chosen the page, and where it goes.
    Chosen(usize),
    Copied(usize, u8),
    /// The bytes are written, and the disk may still lose them.
    Written(usize, u8),
    Flushed(usize, u8),
    /// All that can be stopped stands still.
    Stopped(usize, u8),
    /// The bytes were found to be the same.
    Compared(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State {
    parent: Page,
    child: Option<Page>,
    /// What each would read without the runner.
    expected: (u8, Option<u8>),
    /// What the disk has, and what the page cache shows of it.
    blocks: [u8; 2],
    /// A block whose last write the disk will lose, with what it had before.
    doubtful: Option<(usize, u8)>,
    runner: Runner,
    stores: u8,
    /// A thread was let go on with a call that drops the page, and has not made it.
    drop_goes_on: bool,
    /// A device may write at any time.
    is_pinned: bool,
    /// A fork's child gets zeros (`MADV_WIPEONFORK`).
    is_wiped: bool,
}

/// The most stores of a run: each has a number of its own.
const MOST_STORES: u8 = 3;

impl State {
    fn new() -> Self {
        Self {
            parent: Page::Anonymous(1),
            child: None,
            expected: (1, None),
            blocks: [0, 0],
            doubtful: None,
            runner: Runner::Idle,
            stores: 1,
            drop_goes_on: false,
            is_pinned: false,
            is_wiped: false,
        }
    }

    fn read(&self, page: Page) -> u8 {
        match page {
            Page::Anonymous(bytes) | Page::Ours(_, Some(bytes)) => bytes,
            Page::Ours(block, None) => self.blocks[block],
        }
    }

    fn is_right(&self) -> bool {
        self.read(self.parent) == self.expected.0 && self.child.map(|page| self.read(page)) == self.expected.1
    }

    fn is_still(&self) -> bool {
        matches!(self.runner, Runner::Stopped(..) | Runner::Compared(_))
    }

    /// Returns all states that one step leads to. `without` is the rule that is left out.
    fn next(self, without: Option<Rule>) -> Vec<Self> {
        let mut all = Vec::new();
        self.steps_of_programs(without, &mut all);
        self.steps_of_the_runner(without, &mut all);
        all
    }

    fn steps_of_programs(self, without: Option<Rule>, all: &mut Vec<Self>) {
        let store = |state: Self| {
            let bytes = state.stores + 1;
            let parent = match state.parent {
                Page::Anonymous(_) => Page::Anonymous(bytes),
                Page::Ours(block, _) => Page::Ours(block, Some(bytes)),
            };
            Self { parent, expected: (bytes, state.expected.1), stores: bytes, ..state }
        };
        let may_store = self.stores < MOST_STORES;
        // A sibling stores by `process_vm_writev`: it stands still with the others only by the rule.
        if may_store && (!self.is_still() || without == Some(Rule::AllStop)) {
            all.push(store(self));
        }
        // A device stores even while all stands still, into the copy that it has pinned. The program does not
        // see that if the runner has put another page in its place.
        if may_store && self.is_pinned {
            let has_copy = !matches!(self.parent, Page::Ours(_, None));
            let bytes = self.stores + 1;
            all.push(if has_copy {
                store(self)
            } else {
                Self { expected: (bytes, self.expected.1), stores: bytes, ..self }
            });
        }
        if self.is_still() {
            return;
        }
        if let (true, Some(child)) = (may_store, self.child) {
            let bytes = self.stores + 1;
            let child = match child {
                Page::Anonymous(_) => Page::Anonymous(bytes),
                Page::Ours(block, _) => Page::Ours(block, Some(bytes)),
            };
            all.push(Self {
                child: Some(child),
                expected: (self.expected.0, Some(bytes)),
                stores: bytes,
                ..self
            });
        }
        if self.child.is_none() {
            let child = match self.parent {
                // A file's mapping has no such flag.
                Page::Anonymous(_) if self.is_wiped => Page::Anonymous(0),
                page => page,
            };
            let expected = if self.is_wiped { 0 } else { self.expected.0 };
            all.push(Self { child: Some(child), expected: (self.expected.0, Some(expected)), ..self });
        } else {
            // It ends.
            all.push(Self { child: None, expected: (self.expected.0, None), ..self });
        }
        self.steps_of_drops(without, all);
        let is_untouched = self.parent == Page::Anonymous(1) && self.runner == Runner::Idle;
        if is_untouched && self.child.is_none() {
            all.push(Self { is_pinned: true, ..self });
            all.push(Self { is_wiped: true, ..self });
        }
    }

    /// The parent drops the page (`MADV_DONTNEED`).
    fn steps_of_drops(self, without: Option<Rule>, all: &mut Vec<Self>) {
        let dropped = Self { expected: (0, self.expected.1), drop_goes_on: false, ..self };
        match self.parent {
            // The call goes on as it is: it may be made later, but its thread does not stop before.
            Page::Anonymous(_) if !self.drop_goes_on => all.push(Self { drop_goes_on: true, ..self }),
            Page::Anonymous(_) => all.push(Self { parent: Page::Anonymous(0), ..dropped }),
            Page::Ours(block, _) if without == Some(Rule::ByValue) || self.drop_goes_on => {
                all.push(Self { parent: Page::Ours(block, None), ..dropped });
            }
            Page::Ours(..) => all.push(Self { parent: Page::Anonymous(0), ..dropped }),
        }
    }

    fn steps_of_the_runner(self, without: Option<Rule>, all: &mut Vec<Self>) {
        let to = |runner| Self { runner, ..self };
        match self.runner {
            Runner::Idle => {
                let is_refused = self.is_pinned && without != Some(Rule::NoPins)
                    || self.is_wiped && without != Some(Rule::PlainMemory);
                // The page is chosen while all stands still.
                if is_refused || self.drop_goes_on {
                    return;
                }
                let is_mapped = |block| {
                    [Some(self.parent), self.child]
                        .into_iter()
                        .flatten()
                        .any(|page| matches!(page, Page::Ours(at, _) if at == block))
                };
                let fresh = (0..self.blocks.len()).find(|block| !is_mapped(*block));
                match self.parent {
                    Page::Anonymous(_) => all.extend(fresh.map(|block| to(Runner::Chosen(block)))),
                    Page::Ours(block, copy) => {
                        let is_alone = !matches!(self.child, Some(Page::Ours(at, _)) if at == block);
                        let is_allowed = copy.is_some() || without == Some(Rule::CopyFirst);
                        if is_allowed && (is_alone || without == Some(Rule::Alone)) {
                            all.push(to(Runner::Chosen(block)));
                        } else if is_allowed {
                            all.extend(fresh.map(|block| to(Runner::Chosen(block))));
                        }
                    }
                }
            }
            Runner::Chosen(block) => all.push(to(Runner::Copied(block, self.read(self.parent)))),
            Runner::Copied(block, bytes) => {
                let mut blocks = self.blocks;
                let before = std::mem::replace(&mut blocks[block], bytes);
                let written = Self { blocks, runner: Runner::Written(block, bytes), ..self };
                all.push(written);
                all.push(Self { doubtful: Some((block, before)), ..written });
            }
            Runner::Written(block, bytes) => {
                // The flush tells whether the disk has it. If not, nothing is dropped.
                match self.doubtful {
                    None => all.push(to(Runner::Flushed(block, bytes))),
                    Some(_) if without == Some(Rule::Flush) => all.push(to(Runner::Flushed(block, bytes))),
                    Some((block, before)) => {
                        let mut blocks = self.blocks;
                        blocks[block] = before;
                        all.push(Self { blocks, doubtful: None, runner: Runner::Idle, ..self });
                    }
                }
            }
            // A thread that was let go on does not stop before its call has ended.
            Runner::Flushed(..) if self.drop_goes_on => {}
            Runner::Flushed(block, bytes) => all.push(to(Runner::Stopped(block, bytes))),
            Runner::Stopped(block, bytes) => {
                let is_same = self.read(self.parent) == bytes || without == Some(Rule::Compare);
                // Its mapping is the one that was chosen.
                let has_copy =
                    !matches!(self.parent, Page::Ours(_, None)) || without == Some(Rule::CopyFirst);
                let next = if is_same && has_copy { Runner::Compared(block) } else { Runner::Idle };
                all.push(to(next));
            }
            Runner::Compared(block) => {
                all.push(Self { parent: Page::Ours(block, None), runner: Runner::Idle, ..self });
            }
        }
        // The page cache forgets what the disk has lost.
        if let (Some((block, before)), Runner::Idle) = (self.doubtful, self.runner) {
            let mut blocks = self.blocks;
            blocks[block] = before;
            all.push(Self { blocks, doubtful: None, ..self });
        }
    }
}

/// Explores all orders. Returns the steps to a wrong byte, if one can be read, and the number of states.
fn explore(without: Option<Rule>) -> (Option<Vec<State>>, usize) {
    let start = State::new();
    let (mut seen, mut open) = (HashSet::from([start]), VecDeque::from([vec![start]]));
    while let Some(path) = open.pop_front() {
        let last = *path.last().expect("a path has a state");
        if !last.is_right() {
            return (Some(path), seen.len());
        }
        for next in last.next(without) {
            if seen.insert(next) {
                open.push_back([&path[..], &[next]].concat());
            }
        }
    }
    (None, seen.len())
}

#[test]
fn with_all_rules_no_byte_is_lost() {
    let (wrong, states) = explore(None);
    assert_eq!(wrong, None);
    assert!(states > 1000, "{states} states");
}

#[test]
fn without_any_one_rule_a_byte_is_lost() {
    for rule in RULES {
        let (wrong, _) = explore(Some(rule));
        assert!(wrong.is_some(), "{rule:?} is not needed");
    }
}

/// The model reaches what it is about: a page that was cleaned twice, with and without a child.
#[test]
fn the_model_reaches_cleaned_pages() {
    let (mut seen, mut open) = (HashSet::from([State::new()]), VecDeque::from([State::new()]));
    while let Some(state) = open.pop_front() {
        for next in state.next(None) {
            if seen.insert(next) {
                open.push_back(next);
            }
        }
    }
    let has = |is_it: fn(&State) -> bool| seen.iter().any(is_it);
    assert!(has(|state| matches!(state.parent, Page::Ours(1, None)) && state.blocks[1] == MOST_STORES));
    assert!(has(|state| matches!(
        (state.parent, state.child),
        (Page::Ours(1, _), Some(Page::Ours(0, None)))
    )));
    assert!(has(|state| state.parent == Page::Anonymous(0) && state.blocks[0] != 0));
}
