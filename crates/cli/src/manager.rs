//! Managers for a run: their forms, their counters, and their end.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use octavo::{
    CounterSnapshot, ErrorKind, Manager, ManagerBuilder, PercpuOrders, PinPath, SwapCache, ZeroPage,
};

use crate::choices::Mode;

/// Writes that were under way when the last space was dropped end sooner, or never.
const LONGEST_END: Duration = Duration::from_secs(10);

/// The form of each mechanism that the mode stands for.
pub fn with_forms_of(mode: Mode, builder: ManagerBuilder) -> ManagerBuilder {
    match mode {
        Mode::Base => builder
            .zero_page(ZeroPage::PerUse)
            .percpu_orders(PercpuOrders::OrderZero)
            .pin_path(PinPath::Locked)
            .swap_cache(SwapCache::TaggedTree),
        Mode::Patched => builder
            .zero_page(ZeroPage::PerSpace)
            .percpu_orders(PercpuOrders::Costly)
            .pin_path(PinPath::LockFree)
            .swap_cache(SwapCache::Tree),
        Mode::Best => builder,
    }
}

/// Ends a manager whose spaces are dropped. Pages that are still being written hold their frames for a moment.
pub fn shut_down(manager: Manager) -> octavo::Result<()> {
    let begun = Instant::now();
    loop {
        match manager.clone().shutdown() {
            Err(error) if error.kind() == ErrorKind::Busy && begun.elapsed() < LONGEST_END => {
                thread::sleep(Duration::from_millis(1));
            }
            ended => return ended,
        }
    }
}

/// Every counter by its name.
pub fn named(counted: &CounterSnapshot) -> BTreeMap<String, u64> {
    counted.iter().map(|(counter, value)| (counter.name().to_string(), value)).collect()
}
