//! How often pins are counted.

use crate::Manager;
use crate::config::HugePolicy;
use crate::region::RegionOptions;
use crate::table::Access;
use crate::units::PAGE_BYTES;

const PAGE: u64 = PAGE_BYTES as u64;
const BUDGET: u64 = 16 << 20;

/// For a program that unmaps pinned pages again and again, pins are counted once for the pages of its
/// share, not at each pin.
#[test]
fn who_unmaps_under_pins_all_the_time_is_seldom_counted() {
    for quota in [None, Some(BUDGET / 4)] {
        let manager = Manager::builder().budget_bytes(BUDGET).huge(HugePolicy::Never).build().unwrap();
        let (space, other) = (manager.space().unwrap(), manager.space().unwrap());
        space.set_quota(quota).unwrap();
        let at = space.map(PAGE, RegionOptions::default()).unwrap();
        let shares = &manager.engine().pin_shares;
        let rounds = 4000;
        for _ in 0..rounds {
            space.store(at, 1_u64).unwrap();
            let pin = space.pin_exact(at, 8, Access::Write).unwrap();
            space.unmap(at, PAGE).unwrap();
            space.map_at(at, PAGE, RegionOptions::default()).unwrap();
            drop(pin);
        }
        let share = quota.unwrap_or(BUDGET / 4 * 3) / PAGE;
        let most = 1 + rounds / share;
        assert!((1..=most).contains(&shares.recounts()), "{quota:?}: {} of {most}", shares.recounts());
        drop((space, other));
    }
}
