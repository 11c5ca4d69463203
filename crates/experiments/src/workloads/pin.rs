//! Direct reads into a buffer that all threads of a process share: each thread pins pages of it, does plain
//! work, and unpins them.

use std::sync::Arc;
use std::time::Duration;

use super::super::octavo::{Access, Manager, PinPath, RegionOptions};
use super::super::{now, work};
use super::gate::{RunResult, all_at_once};
use crate::Form;
use crate::pin::{BUFFER_PAGES, Load};

/// How many times smaller a space's own buffer is than one that all threads share.
const SMALLER: u64 = 16;

/// After this many reads, a thread begins with its first pages again.
const TURN: u64 = 32;

/// Returns the time that each thread took for its reads.
pub(crate) fn run(form: Form, load: Load) -> RunResult<Duration> {
    let path = if form == Form::Base { PinPath::Locked } else { PinPath::LockFree };
    let spaces = if load.is_shared { 1 } else { load.threads };
    let bytes = BUFFER_PAGES * 4096 / if load.is_shared { 1 } else { SMALLER };
    let builder = Manager::builder().budget_bytes(2 * spaces as u64 * bytes + (128 << 20)).pin_path(path);
    let manager = builder.background(false).build().expect("a manager with room for the buffers");
    let spaces: Vec<_> = (0..spaces)
        .map(|_| {
            let space = manager.space().expect("room for a space");
            let buffer = space.map(bytes, RegionOptions::default()).expect("room for a region");
            space.populate(buffer, bytes, Access::Write).expect("room for the buffer");
            (Arc::new(space), buffer)
        })
        .collect();
    let threads: Vec<_> = (0..load.threads).map(|number| spaces[number % spaces.len()].clone()).collect();
    drop(spaces);
    let outcome = all_at_once(threads, move |number, (space, buffer)| {
        let read = |read: u64| {
            // Threads of one space use places of their own if the buffer is large enough.
            let apart = bytes / 4096 / load.threads as u64;
            let first = (number as u64 * apart + read % TURN * load.pages) % (bytes / 4096 - load.pages + 1);
            let pages = space.pin_prefix(buffer + first * 4096, load.pages as usize * 4096, Access::Write);
            work(load.beside);
            drop(pages.expect("pages that are there"));
        };
        // The first reads bring the words of the pages to this CPU.
        (0..TURN).for_each(read);
        let began = now();
        (0..load.reads).for_each(read);
        (now() - began, space)
    });
    drop(manager);
    outcome
}
