//! Direct reads into a buffer that all threads of a process share: each pins pages of it, thinks, and lets go.

use std::sync::Arc;
use std::time::Duration;

use super::super::octavo::{Access, Manager, PinPath, RegionOptions};
use super::super::{now, work};
use super::gate::{Outcome, all_at_once};
use crate::Form;
use crate::pin::{BUFFER_PAGES, Load};

/// Returns the time that each thread took for its reads.
pub(crate) fn run(form: Form, load: Load) -> Outcome<Duration> {
    let path = if form == Form::Base { PinPath::Locked } else { PinPath::LockFree };
    let manager = Manager::builder().budget_bytes(256 << 20).pin_path(path).background(false).build();
    let manager = manager.expect("a manager with room for the buffer");
    let space = Arc::new(manager.space().expect("room for a space"));
    let bytes = BUFFER_PAGES * 4096;
    let buffer = space.map(bytes, RegionOptions::default()).expect("room for a region");
    space.populate(buffer, bytes, Access::Write).expect("room for the buffer");
    let threads = vec![space; load.threads];
    let outcome = all_at_once(threads, move |number, space| {
        let began = now();
        for read in 0..load.reads {
            let first = (number as u64 * 64 + read * load.pages) % (BUFFER_PAGES - load.pages + 1);
            let pages = space.pin(buffer + first * 4096, load.pages as usize * 4096, Access::Write);
            work(load.beside);
            drop(pages.expect("pages that are there"));
        }
        (now() - began, space)
    });
    drop(manager);
    outcome
}
