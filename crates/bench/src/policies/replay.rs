//! Replays a trace with one of the engine's policies, which learns only what the engine could tell it.
//!
//! An access marks its page. The access that causes a fault marks its page, too. When no frame is free,
//! candidates are taken in batches, and their marks are tested and cleared, until a batch of frames is free.
//! An evicted page leaves its shadow and finds it again.

use std::cell::Cell;

use octavo::policy::{Arrival, Links, NIL, Policy, Shadow, Verdict, validate};

use super::NamedTrace;

/// The number of candidates that are taken together, and of frames that are freed before the trace continues.
const BATCH: usize = 32;

#[derive(Clone, Debug, Default)]
struct ReplayFrame {
    next: Cell<u32>,
    prev: Cell<u32>,
    tag: Cell<u8>,
    page: u32,
    is_marked: bool,
}

#[derive(Debug)]
struct ReplayFrames(Vec<ReplayFrame>);

impl ReplayFrames {
    fn of(&self, frame: u32) -> &ReplayFrame {
        &self.0[frame as usize]
    }
}

impl Links for ReplayFrames {
    fn next(&self, frame: u32) -> u32 {
        self.of(frame).next.get()
    }
    fn set_next(&self, frame: u32, to: u32) {
        self.of(frame).next.set(to);
    }
    fn prev(&self, frame: u32) -> u32 {
        self.of(frame).prev.get()
    }
    fn set_prev(&self, frame: u32, to: u32) {
        self.of(frame).prev.set(to);
    }
    fn tag(&self, frame: u32) -> u8 {
        self.of(frame).tag.get()
    }
    fn list(&self, frame: u32, tag: u8) {
        self.of(frame).tag.set(tag);
    }
    fn unlist(&self, _: u32) {}
    fn pages(&self, _: u32) -> u64 {
        1
    }
}

/// Returns the misses of a policy on a trace with `frames` frames. Unless `hits_mark`, only faults leave
/// marks: hits are invisible.
pub fn misses(policy: &mut dyn Policy, trace: &NamedTrace, frames: u32, hits_mark: bool) -> u64 {
    let pages = trace.pages.iter().max().map_or(0, |page| *page as usize + 1);
    let mut frame_of = vec![NIL; pages];
    let mut shadows: Vec<Option<Shadow>> = vec![None; pages];
    let mut free: Vec<u32> = (0..frames).rev().collect();
    let mut frames = ReplayFrames(vec![ReplayFrame::default(); frames as usize]);
    let mut misses = 0;
    for &page in &trace.pages {
        match frame_of[page as usize] {
            NIL => {}
            frame => {
                frames.0[frame as usize].is_marked |= hits_mark;
                continue;
            }
        }
        misses += 1;
        while free.is_empty() {
            make_room(policy, &mut frames, &mut free, |page, shadow| {
                frame_of[page as usize] = NIL;
                shadows[page as usize] = Some(shadow);
            });
        }
        let frame = free.pop().expect("there is room");
        frame_of[page as usize] = frame;
        let words = &mut frames.0[frame as usize];
        (words.page, words.is_marked) = (page, true);
        policy.arrive(&frames, frame, shadows[page as usize].take().map_or(Arrival::Fresh, Arrival::Back));
    }
    validate(policy, &frames);
    misses
}

fn make_room(
    policy: &mut dyn Policy,
    frames: &mut ReplayFrames,
    free: &mut Vec<u32>,
    mut goes: impl FnMut(u32, Shadow),
) {
    while free.len() < BATCH {
        let batch: Vec<_> = (0..BATCH).map_while(|_| policy.take_next(frames)).collect();
        assert!(!batch.is_empty(), "every frame is in use, and on a queue");
        for (frame, tag) in batch {
            let is_marked = std::mem::take(&mut frames.0[frame as usize].is_marked);
            if let Verdict::Evict(shadow) = policy.judge(frames, frame, tag, is_marked) {
                goes(frames.of(frame).page, shadow);
                free.push(frame);
            }
        }
    }
}
