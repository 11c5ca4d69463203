//! Tests of every policy against a model that only knows which frames are listed, and tests of each policy's
//! purpose.

use std::cell::Cell;
use std::collections::BTreeMap;

use super::*;

const FRAMES: u32 = 200;

#[derive(Clone, Debug, Default)]
struct TestWords {
    next: Cell<u32>,
    prev: Cell<u32>,
    tag: Cell<Option<u8>>,
    pages: Cell<u64>,
}

#[derive(Debug)]
struct TestMemory(Vec<TestWords>);

impl TestMemory {
    fn new(frames: u32) -> Self {
        let words = TestWords { pages: Cell::new(1), ..TestWords::default() };
        Self(vec![words; frames as usize])
    }

    fn words(&self, frame: u32) -> &TestWords {
        &self.0[frame as usize]
    }
}

impl Links for TestMemory {
    fn next(&self, frame: u32) -> u32 {
        self.words(frame).next.get()
    }
    fn set_next(&self, frame: u32, to: u32) {
        self.words(frame).next.set(to);
    }
    fn prev(&self, frame: u32) -> u32 {
        self.words(frame).prev.get()
    }
    fn set_prev(&self, frame: u32, to: u32) {
        self.words(frame).prev.set(to);
    }
    fn tag(&self, frame: u32) -> u8 {
        self.words(frame).tag.get().expect("only listed frames have tags")
    }
    fn list(&self, frame: u32, tag: u8) {
        assert_eq!(self.words(frame).tag.replace(Some(tag)), None, "frame {frame} is listed twice");
    }
    fn unlist(&self, frame: u32) {
        assert!(self.words(frame).tag.replace(None).is_some(), "frame {frame} is not listed");
    }
    fn pages(&self, frame: u32) -> u64 {
        self.words(frame).pages.get()
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * u64::from(n)) >> 32) as u32
    }
}

fn all() -> Vec<Box<dyn Policy>> {
    vec![
        Box::new(Fifo::default()),
        Box::new(Clock::default()),
        Box::new(Sieve::default()),
        Box::new(S3Fifo::default()),
        Box::new(Generations::default()),
        Box::new(Reuse::default()),
        Box::new(Returns::default()),
    ]
}

/// The place where the model believes a frame to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Free,
    Listed,
    /// The frame was taken off, with this tag.
    Held(u8),
}

fn check(policy: &dyn Policy, memory: &TestMemory, model: &[Model]) {
    let listed: Vec<u32> = (0..FRAMES).filter(|f| model[*f as usize] == Model::Listed).collect();
    for frame in 0..FRAMES {
        let is_listed = model[frame as usize] == Model::Listed;
        assert_eq!(memory.words(frame).tag.get().is_some(), is_listed, "frame {frame} of {policy:?}");
    }
    assert_eq!(
        validate(policy, memory),
        listed.len() as u64,
        "every listed frame is on one queue of {policy:?}"
    );
    let pages: u64 = listed.iter().map(|frame| memory.pages(*frame)).sum();
    let (hot, cold) = policy.pages();
    assert_eq!(hot + cold, pages, "pages of {policy:?} add up");
}

#[test]
fn every_frame_is_on_one_queue_or_in_one_hand() {
    for seed in 1..=20 {
        for mut policy in all() {
            let (mut random, memory) = (Random(seed * 0x9e37_79b9), TestMemory::new(FRAMES));
            let mut model = vec![Model::Free; FRAMES as usize];
            let mut shadows = Vec::new();
            for step in 0..3000 {
                let frame = random.below(FRAMES);
                let at = &mut model[frame as usize];
                match (*at, random.below(8)) {
                    (Model::Free, _) => {
                        memory.words(frame).pages.set(if random.below(10) == 0 { 512 } else { 1 });
                        let back = shadows.pop().filter(|_| random.below(2) == 0);
                        policy.arrive(&memory, frame, Arrival::of(back, random.below(3) == 0));
                        *at = Model::Listed;
                    }
                    (Model::Listed, 0 | 1) => *at = Model::Held(policy.remove(&memory, frame)),
                    (Model::Listed, 2) => {
                        policy.remove(&memory, frame);
                        *at = Model::Free;
                    }
                    (Model::Listed, kind) => {
                        let hot = if kind == 3 { policy.take_hot(&memory) } else { None };
                        let (next, tag) =
                            hot.or_else(|| policy.take_next(&memory)).expect("a frame is listed");
                        assert_eq!(model[next as usize], Model::Listed, "only listed frames are taken");
                        model[next as usize] = Model::Held(tag);
                    }
                    (Model::Held(_), 0) => *at = Model::Free,
                    (Model::Held(tag), 1 | 2) => {
                        policy.putback(
                            &memory,
                            frame,
                            tag,
                            [Place::Cold, Place::Hot][random.below(2) as usize],
                        );
                        *at = Model::Listed;
                    }
                    (Model::Held(tag), _) => match policy.judge(&memory, frame, tag, random.below(2) == 0) {
                        Verdict::Keep(_) => *at = Model::Listed,
                        Verdict::Evict(shadow) => {
                            shadows.push(shadow);
                            *at = Model::Free;
                        }
                    },
                }
                if step % 50 == 0 {
                    check(&*policy, &memory, &model);
                }
            }
            check(&*policy, &memory, &model);
            let listed = model.iter().filter(|at| **at == Model::Listed).count();
            let taken = std::iter::from_fn(|| policy.take_next(&memory)).count();
            assert_eq!(taken, listed, "each listed frame can be taken once: {policy:?}");
        }
    }
}

#[test]
fn scans_end_even_if_every_page_is_always_marked_once_more() {
    for mut policy in all() {
        let memory = TestMemory::new(FRAMES);
        for frame in 0..FRAMES {
            policy.arrive(&memory, frame, Arrival::Fresh);
        }
        // Each page is found marked twice, and then never again. So some page goes within a few rounds.
        let mut marks = vec![2_u32; FRAMES as usize];
        let looks = (1..).find(|_| {
            let (frame, tag) = policy.take_next(&memory).expect("all are listed");
            let accessed = marks[frame as usize] > 0;
            marks[frame as usize] = marks[frame as usize].saturating_sub(1);
            matches!(policy.judge(&memory, frame, tag, accessed), Verdict::Evict(_))
        });
        assert!(looks.unwrap() <= 4 * FRAMES + 1, "{policy:?}");
    }
}

/// Pages in a limited number of frames, handled as the engine does.
struct Replay {
    memory: TestMemory,
    free: Vec<u32>,
    at: BTreeMap<u32, u32>,
    shadows: BTreeMap<u32, Shadow>,
    page_of: Vec<u32>,
    marked: Vec<bool>,
}

impl Replay {
    fn new(frames: u32) -> Self {
        Self {
            memory: TestMemory::new(frames),
            free: (0..frames).collect(),
            at: BTreeMap::new(),
            shadows: BTreeMap::new(),
            page_of: vec![0; frames as usize],
            marked: vec![false; frames as usize],
        }
    }

    /// Marks a page, if it is in memory, and returns whether it is.
    fn access(&mut self, page: u32) -> bool {
        let frame = self.at.get(&page);
        frame.inspect(|frame| self.marked[**frame as usize] = true).is_some()
    }

    /// Brings a page into memory. Returns false if it was there already.
    fn bring(&mut self, policy: &mut dyn Policy, page: u32, marked: bool) -> bool {
        self.bring_as(policy, page, marked, false)
    }

    /// Does what [`bring`](Self::bring) does. With `along`, the page comes along with another.
    fn bring_as(&mut self, policy: &mut dyn Policy, page: u32, marked: bool, along: bool) -> bool {
        if self.at.contains_key(&page) {
            return false;
        }
        while self.free.is_empty() {
            let (frame, tag) = policy.take_next(&self.memory).expect("memory is full");
            let accessed = std::mem::take(&mut self.marked[frame as usize]);
            if let Verdict::Evict(shadow) = policy.judge(&self.memory, frame, tag, accessed) {
                let gone = self.page_of[frame as usize];
                self.at.remove(&gone);
                self.shadows.insert(gone, shadow);
                self.free.push(frame);
            }
        }
        let frame = self.free.pop().expect("just made");
        (self.page_of[frame as usize], self.marked[frame as usize]) = (page, marked);
        self.at.insert(page, frame);
        policy.arrive(&self.memory, frame, Arrival::of(self.shadows.remove(&page), along));
        true
    }
}

/// Replays a trace in `frames` frames under a policy, and returns the faults in its second half.
fn faults(policy: &mut dyn Policy, frames: u32, trace: &[u32]) -> usize {
    faults_where(policy, frames, trace, true)
}

/// Does what [`faults`] does. Without `hits_mark`, a hit leaves no mark.
fn faults_where(policy: &mut dyn Policy, frames: u32, trace: &[u32], hits_mark: bool) -> usize {
    let mut replay = Replay::new(frames);
    let mut faults = 0;
    for (time, page) in trace.iter().enumerate() {
        let is_there = if hits_mark { replay.access(*page) } else { replay.at.contains_key(page) };
        if !is_there {
            replay.bring(policy, *page, true);
            faults += usize::from(time >= trace.len() / 2);
        }
    }
    validate(policy, &replay.memory);
    faults
}

#[test]
fn first_in_is_first_out() {
    let memory = TestMemory::new(10);
    let mut policy = Fifo::default();
    for frame in 0..10 {
        policy.arrive(&memory, frame, Arrival::Fresh);
    }
    for expected in 0..10 {
        let (frame, tag) = policy.take_next(&memory).unwrap();
        assert_eq!(frame, expected);
        assert!(
            matches!(policy.judge(&memory, frame, tag, true), Verdict::Evict(_)),
            "marks count for nothing"
        );
    }
}

#[test]
fn a_clock_gives_a_second_chance() {
    let memory = TestMemory::new(3);
    let mut policy = Clock::default();
    for frame in 0..3 {
        policy.arrive(&memory, frame, Arrival::Fresh);
    }
    let order: Vec<_> = [true, false, false, false]
        .map(|accessed| {
            let (frame, tag) = policy.take_next(&memory).unwrap();
            policy.judge(&memory, frame, tag, accessed);
            frame
        })
        .into();
    assert_eq!(order, [0, 1, 2, 0]);
}

#[test]
fn pages_that_a_sieve_keeps_stay_where_they_are() {
    let memory = TestMemory::new(5);
    let mut policy = Sieve::default();
    for frame in 0..4 {
        policy.arrive(&memory, frame, Arrival::Fresh);
    }
    // The two frames are taken together, and put back behind the hand in their old order.
    let taken = [policy.take_next(&memory).unwrap(), policy.take_next(&memory).unwrap()];
    for (frame, tag) in taken {
        assert_eq!(policy.judge(&memory, frame, tag, true), Verdict::Keep(Place::Cold));
    }
    policy.arrive(&memory, 4, Arrival::Fresh);
    let order: Vec<u32> = std::iter::from_fn(|| policy.take_next(&memory)).map(|(frame, _)| frame).collect();
    assert_eq!(order, [2, 3, 4, 0, 1]);
}

/// Every other access goes to a hot set of half the memory. The accesses between them use each page once.
fn hot_set_under_a_scan(frames: u32) -> Vec<u32> {
    let mut random = Random(7);
    let hot = frames / 2;
    (0..frames * 40).map(|time| if time % 2 == 0 { random.below(hot) } else { hot + time }).collect()
}

#[test]
fn a_scan_does_not_evict_the_hot_set() {
    let (frames, trace) = (1000, hot_set_under_a_scan(1000));
    let scanned = trace.len() / 4;
    for (mut policy, most) in
        [(Box::new(Reuse::default()) as Box<dyn Policy>, 2), (Box::new(S3Fifo::default()), 4)]
    {
        let hot_faults = faults(&mut *policy, frames, &trace) - scanned;
        assert!(hot_faults * 100 <= scanned * most, "{hot_faults} of {scanned} hits were lost: {policy:?}");
    }
}

#[test]
fn a_loop_larger_than_memory_is_kept_in_part() {
    let frames = 1000;
    let trace: Vec<u32> = (0..100_000).map(|time| time % 1250).collect();
    assert_eq!(faults(&mut Clock::default(), frames, &trace), trace.len() / 2, "a clock keeps nothing of it");
    let faults = faults(&mut Reuse::default(), frames, &trace);
    assert!(faults * 100 < trace.len() / 2 * 30, "{faults} faults; the optimum is 20 in a hundred");
}

#[test]
fn a_hot_set_whose_use_nobody_sees_is_kept_by_its_returns() {
    let (frames, trace) = (1000, hot_set_under_a_scan(1000));
    let scanned = trace.len() / 4;
    let lost = |policy: &mut dyn Policy| faults_where(policy, frames, &trace, false) - scanned;
    let (returns, fifo) = (lost(&mut Returns::default()), lost(&mut Fifo::default()));
    assert!(returns * 100 < scanned * 25, "{returns} of {scanned} hits were lost");
    assert!(fifo * 100 > scanned * 35, "the trace tells: {fifo}");
}

#[test]
fn a_loop_whose_use_nobody_sees_is_kept_in_part() {
    let trace: Vec<u32> = (0..100_000).map(|time| time % 1250).collect();
    let faults = faults_where(&mut Returns::default(), 1000, &trace, false);
    assert!(faults * 100 < trace.len() / 2 * 45, "{faults} faults; the optimum is 20 in a hundred");
}

#[test]
fn a_hot_set_that_moved_unseen_is_followed() {
    let (frames, mut random) = (1000, Random(3));
    let trace: Vec<u32> =
        (0..200_000).map(|time| random.below(700) + if time < 100_000 { 0 } else { 5000 }).collect();
    let faults = faults_where(&mut Returns::default(), frames, &trace, false);
    assert!(faults < 700 * 12, "{faults} faults for 700 pages");
}

/// Eight readers go through data of five times the memory in order, again and again. Each reads two windows
/// ahead. Returns which percentage of the pages that were read ahead was evicted before use.
fn lost_ahead(policy: &mut dyn Policy) -> usize {
    const WINDOW: u32 = 25;
    let (frames, length) = (1000, 625);
    let mut memory = Replay::new(frames);
    let (mut ahead, mut lost) = (0, 0);
    for time in 0..length * 8 * 6 {
        let (reader, at) = (time % 8, time / 8 % length);
        let page = reader * length + at;
        if at % WINDOW == 0 {
            for next in at + WINDOW..(at + 2 * WINDOW).min(length) {
                if memory.bring(policy, reader * length + next, false) {
                    ahead += 1;
                }
            }
        }
        lost += usize::from(!memory.access(page) && at >= WINDOW);
        memory.bring(policy, page, true);
    }
    lost * 100 / ahead
}

#[test]
fn pages_read_ahead_last_until_they_are_used() {
    let lost = lost_ahead(&mut Reuse::default());
    assert!(lost < 5, "{lost} in a hundred pages were read for nothing");
}

/// Replays two threads, each as fast as its faults allow. One thread goes round a loop as large as memory,
/// and its faults bring fifteen pages along. The other uses a quarter of memory at random. Returns, for the
/// second half, the rounds of the first thread, the accesses of the second, and how many of these were
/// faults.
fn loop_beside_random(policy: &mut dyn Policy, tells_along: bool) -> (u64, u64, u64) {
    const RUN: u32 = 16;
    let (frames, small, end, mut random) = (1000, 250, 40_000_000, Random(11));
    let mut memory = Replay::new(frames);
    let (mut round, mut at, mut clocks) = (0, 0, [0_u64; 2]);
    let (mut accesses, mut faults) = (0, 0);
    while clocks[0].min(clocks[1]) < end {
        let counts = u64::from(clocks[0] > end / 2);
        if clocks[0] < clocks[1] {
            clocks[0] += 10;
            if !memory.access(small + at) {
                clocks[0] += 400;
                for next in 0..RUN.min(frames - at) {
                    clocks[0] += 50;
                    memory.bring_as(policy, small + at + next, true, tells_along && next > 0);
                }
            }
            at = (at + 1) % frames;
            round += counts * u64::from(at == 0);
        } else {
            let page = random.below(small);
            clocks[1] += 40;
            accesses += counts;
            if !memory.access(page) {
                clocks[1] += 450;
                memory.bring(policy, page, true);
                faults += counts;
            }
        }
    }
    validate(policy, &memory.memory);
    (round, accesses, faults)
}

#[test]
fn pages_that_cost_a_fault_each_are_kept_beside_a_fast_loop_whose_pages_come_along() {
    let run = |tells| loop_beside_random(&mut Reuse::default(), tells);
    let ((rounds, accesses, faults), before) = (run(true), run(false));
    assert!(faults * 50 < accesses, "{faults} of {accesses}, {rounds} rounds; untold {before:?}");
    assert!(rounds * 4 > before.0, "the loop goes on: {rounds} rounds; untold {before:?}");
    assert!(before.2 * 5 > before.1, "the threads tell: {before:?}");
}

#[test]
fn a_hot_set_that_moved_is_followed() {
    let (frames, mut random) = (1000, Random(3));
    let trace: Vec<u32> =
        (0..200_000).map(|time| random.below(700) + if time < 100_000 { 0 } else { 5000 }).collect();
    let faults = faults(&mut Reuse::default(), frames, &trace);
    // Each page is brought in once and forgotten, and then brought in again and remembered. A few pages are
    // brought in a third time.
    assert!(faults < 700 * 4, "{faults} faults for 700 pages");
}

#[test]
fn shadows_tell_distances_across_the_wrap() {
    let wrap = Shadow::WRAP * Shadow::UNIT;
    for then in [0, 1 << 20, wrap - 320, wrap, wrap + 16] {
        for away in [0, 16, 4096, 1 << 24] {
            let shadow = Shadow::at(then);
            assert_eq!(shadow.distance(then + away) / Shadow::UNIT, away / Shadow::UNIT);
            assert_eq!(Shadow::from_bits(shadow.bits()), Some(shadow));
        }
    }
    assert_eq!(Shadow::from_bits(0), None);
    assert_eq!(Shadow::from_bits(1 << Shadow::BITS), None);
}
