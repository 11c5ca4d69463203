//! `case-swap-w-seq`: tasks that write more memory than there is, in order. The rest goes to a device in
//! memory.

use std::sync::Arc;
use std::time::Duration;

use super::super::octavo::{Compression, Counter, Manager, RegionOptions, SwapArea, SwapCache};
use super::super::{now, work};
use super::gate::{RunResult, all_at_once_after};
use crate::Form;
use crate::swap_cache::Load;

/// Returns the time that each task took for its pages, and how many pages went out in all.
pub(crate) fn run(form: Form, load: Load) -> (RunResult<Duration>, u64) {
    let cache = match form {
        Form::Base => SwapCache::TaggedTree,
        Form::Patched => SwapCache::Tree,
        Form::Best => SwapCache::Table,
    };
    let bytes = (load.warm_up + load.pages) * 4096;
    let device = SwapArea::ram(2 * bytes * load.tasks as u64);
    let builder = Manager::builder().budget_bytes(load.budget_bytes).swap_cache(cache).swap_area(device);
    let builder = builder.compression(Compression::Off).background(load.background);
    let manager = Arc::new(builder.build().expect("a manager with a device"));
    let spaces: Vec<_> = (0..load.tasks)
        .map(|_| {
            let space = manager.space().expect("room for a space");
            let address = space.map(bytes, RegionOptions::default()).expect("room for a region");
            (space, address, Arc::clone(&manager))
        })
        .collect();
    let outcome = all_at_once_after(
        spaces,
        move |_, (space, address, _)| {
            for page in 0..load.warm_up {
                space.store::<u64>(address + page * 4096, page).expect("room on the device");
            }
        },
        move |_, (space, address, manager)| {
            let began = now();
            for page in load.warm_up..load.warm_up + load.pages {
                work(load.beside);
                space.store::<u64>(address + page * 4096, page).expect("room on the device");
            }
            (now() - began, (space, manager))
        },
    );
    // Reading the counters takes longer than many of the tasks' pages, so no task reads them.
    (outcome, manager.counters().get(Counter::SwapOut))
}
