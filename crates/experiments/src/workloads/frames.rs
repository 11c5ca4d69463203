//! Threads that allocate blocks and free them, each on a CPU of its own.

use std::sync::Arc;
use std::time::Duration;

use super::super::now;
use super::super::octavo::PercpuOrders;
use super::super::octavo::frame::{Backing, FrameAllocator, FrameConfig, Order};
use super::gate::{RunResult, all_at_once};
use crate::Form;
use crate::scaling::FramesLoad;

/// Turns before the clock starts.
const WARM_UP: usize = 20;

/// Makes an allocator of `bytes` bytes, with per-CPU lists of this form.
pub(super) fn allocator(form: Form, bytes: u64) -> Arc<FrameAllocator> {
    let orders = match form {
        Form::Base => PercpuOrders::OrderZero,
        Form::Patched => PercpuOrders::Costly,
        Form::Best => PercpuOrders::All,
    };
    let mut config = FrameConfig::one_zone(bytes, Backing::BasePages);
    (config.percpu_orders, config.populate) = (orders, false);
    Arc::new(FrameAllocator::standalone(&config, 2 * bytes).expect("address space for the arena"))
}

/// Returns the time that each thread took.
pub(crate) fn run(form: Form, load: FramesLoad) -> RunResult<Duration> {
    let order = Order::new(load.order).expect("an order that the allocator has");
    // The memory for each CPU limits the lists.
    let held = load.threads as u64 * load.held as u64 * order.bytes() as u64;
    let bytes = (4 * held + load.memory_bytes).next_multiple_of(2 << 20);
    let threads = vec![allocator(form, bytes); load.threads];
    all_at_once(threads, move |_, frames| {
        let mut blocks = Vec::with_capacity(load.held);
        let mut turn = || {
            blocks.extend((0..load.held).map(|_| frames.alloc(order).expect("more frames than are held")));
            blocks.drain(..).for_each(|block| frames.give_back(block));
        };
        // The first turns fill the lists of this CPU.
        (0..WARM_UP).for_each(|_| turn());
        let began = now();
        (0..load.turns).for_each(|_| turn());
        (now() - began, frames)
    })
}
