//! The first test to run after a change: a space eight times its budget gets every byte back.

use octavo::{Access, Counter, HugePolicy, Manager, RegionOptions};

#[test]
fn words_survive_eight_times_the_budget() {
    let manager = Manager::builder().budget_bytes(16 << 20).build().unwrap();
    let space = manager.space().unwrap();
    let len = 128 << 20;
    let at = space.map(len, RegionOptions::default()).unwrap();
    for offset in (0..len).step_by(4096) {
        space.store(at + offset, offset ^ 0x5555).unwrap();
    }
    for offset in (0..len).step_by(4096) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset ^ 0x5555);
    }
    let counters = manager.counters();
    for (counter, value) in counters.iter().filter(|(_, value)| *value > 0) {
        println!("{} {value}", counter.name());
    }
    println!("{:?}", manager.stats().unwrap());
    assert!(counters.get(Counter::SwapOut) > 0 && counters.get(Counter::SwapIn) > 0);
    manager.validate();
    drop(space);
    manager.validate();
    assert_eq!(manager.stats().unwrap().swap_slots, 0);
    assert_eq!(manager.stats().unwrap().table_nodes, 0);
}

#[test]
fn threads_share_a_space_over_its_budget_with_huge_blocks() {
    let manager = Manager::builder().budget_bytes(24 << 20).huge(HugePolicy::Always).build().unwrap();
    let space = manager.space().unwrap();
    let len: u64 = 64 << 20;
    let at = space.map(len, RegionOptions::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let space = &space;
            scope.spawn(move || {
                for round in 0..3 {
                    for offset in (thread * 8..len).step_by(4096) {
                        if round > 0 {
                            assert_eq!(space.load::<u64>(at + offset).unwrap(), offset + round - 1);
                        }
                        space.store(at + offset, offset + round).unwrap();
                        if offset % (1 << 20) == thread * 8 {
                            let pin = space.pin_exact(at + offset, 8, Access::Write).unwrap();
                            let mut bytes = [0; 8];
                            pin.copy_out(0, &mut bytes).unwrap();
                            assert_eq!(u64::from_le_bytes(bytes), offset + round);
                        }
                    }
                }
            });
        }
    });
    for (counter, value) in manager.counters().iter().filter(|(_, value)| *value > 0) {
        println!("{} {value}", counter.name());
    }
    println!("{:?}", manager.stats().unwrap());
    manager.validate();
}

#[test]
fn words_of_a_pin_are_reached_in_every_part_of_it() {
    let manager = Manager::builder().budget_bytes(16 << 20).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(3 * 4096, RegionOptions::default()).unwrap();
    let pin = space.pin_exact(at, 3 * 4096, Access::Write).unwrap();
    for offset in (0..3 * 4096).step_by(8) {
        pin.store(offset, offset as u64).unwrap();
    }
    assert_eq!(pin.load::<u64>(2 * 4096 + 8).unwrap(), 2 * 4096 + 8);
    assert_eq!(pin.load::<u16>(4096).unwrap(), 4096);
    assert!(pin.load::<u64>(4).is_err() && pin.load::<u64>(3 * 4096).is_err());
    drop(pin);
    let pin = space.pin_exact(at, 8, Access::Read).unwrap();
    assert_eq!(pin.store(0, 1u64).unwrap_err().kind(), octavo::ErrorKind::Protected);
    assert_eq!(space.load::<u64>(at + 4096).unwrap(), 4096);
}
