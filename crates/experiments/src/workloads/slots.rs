//! Threads that send pages out and bring them back through one swap cache, each on a CPU of its own. The
//! device takes no time.

use std::sync::Arc;
use std::time::Duration;

use super::super::now;
use super::super::octavo::{StandaloneSwapCache, SwapCache};
use super::gate::{RunResult, all_at_once};
use crate::Form;
use crate::scaling::SlotsLoad;

/// Returns the pages of each thread, and their time.
pub(crate) fn run(form: Form, load: SlotsLoad) -> RunResult<(u32, Duration)> {
    let form = match form {
        Form::Base => SwapCache::TaggedTree,
        Form::Patched => SwapCache::Tree,
        Form::Best => SwapCache::Table,
    };
    let pages = (load.memory_bytes / 4096) as u32;
    let cache =
        StandaloneSwapCache::new(form, pages, load.memory_bytes).map(Arc::new).expect("address space");
    let threads = vec![cache; load.threads];
    all_at_once(threads, move |_, cache| {
        // In the first turns, this CPU gets its clusters and frames.
        let turns = |turns| (0..turns).map(|_| cache.out_and_back(load.pages)).sum();
        let _: u32 = turns(load.warm_up);
        let began = now();
        let pages = turns(load.turns);
        ((pages, now() - began), cache)
    })
}
