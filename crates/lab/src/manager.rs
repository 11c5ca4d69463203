//! Managers for a run: their forms and their counters.

use std::collections::BTreeMap;

use octavo::{CounterSnapshot, ManagerBuilder, PercpuOrders, PinPath, SwapCache, ZeroPage};

use crate::choices::Mode;

/// Returns the orders that per-CPU lists keep in this mode.
pub fn percpu_orders(mode: Mode) -> PercpuOrders {
    match mode {
        Mode::Base => PercpuOrders::OrderZero,
        Mode::Patched => PercpuOrders::Costly,
        Mode::Best => PercpuOrders::All,
    }
}

/// Sets the form of each mechanism for this mode.
pub fn with_forms_of(mode: Mode, builder: ManagerBuilder) -> ManagerBuilder {
    match mode {
        Mode::Base => builder
            .zero_page(ZeroPage::PerUse)
            .percpu_orders(percpu_orders(mode))
            .pin_path(PinPath::Locked)
            .swap_cache(SwapCache::TaggedTree),
        Mode::Patched => builder
            .zero_page(ZeroPage::PerSpace)
            .percpu_orders(percpu_orders(mode))
            .pin_path(PinPath::LockFree)
            .swap_cache(SwapCache::Tree),
        Mode::Best => builder,
    }
}

/// Returns every counter by its name.
pub fn named(counted: &CounterSnapshot) -> BTreeMap<String, u64> {
    counted.iter().map(|(counter, value)| (counter.name().to_string(), value)).collect()
}
