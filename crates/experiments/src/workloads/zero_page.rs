//! `usemem -n TASKS --readonly -j 0x200000 SIZE`: tasks that read never-written memory in steps of 2 MiB.
//! Each access is a fault that maps the huge zero page.

use std::time::Duration;

use super::super::octavo::{Manager, RegionOptions, ZeroPage};
use super::super::{now, work};
use super::gate::{RunResult, all_at_once};
use crate::Form;
use crate::zero_page::{Load, STEP_BYTES};

/// Returns the time that each task took for its accesses.
pub(crate) fn run(form: Form, load: Load) -> RunResult<Duration> {
    let zero_page = match form {
        Form::Base => ZeroPage::PerUse,
        Form::Patched => ZeroPage::PerSpace,
        Form::Best => ZeroPage::Persistent,
    };
    // Only page tables are allocated: a page of entries for each GiB.
    let tables = load.tasks as u64 * ((load.warm_up + load.steps).div_ceil(512) + 64) * 4096;
    let builder = Manager::builder().budget_bytes((64 << 20) + 4 * tables).zero_page(zero_page);
    let manager = builder.background(false).build().expect("a manager with room for tables");
    let spaces: Vec<_> = (0..load.tasks)
        .map(|_| {
            let space = manager.space().expect("room for a space");
            let address = space
                .map((load.warm_up + load.steps) * STEP_BYTES, RegionOptions::default())
                .expect("room for a region");
            (space, address)
        })
        .collect();
    let outcome = all_at_once(spaces, move |_, (space, address)| {
        let access = |step: u64| {
            work(load.beside);
            let word = space.load::<u64>(address + step * STEP_BYTES).expect("a zero page");
            assert_eq!(word, 0);
        };
        (0..load.warm_up).for_each(access);
        let began = now();
        (load.warm_up..load.warm_up + load.steps).for_each(access);
        (now() - began, space)
    });
    drop(manager);
    outcome
}
