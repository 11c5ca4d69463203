//! Faults on one thread, which polls the faults and drives their device. No poll may wait for work that only
//! this thread can do.

mod common;

use std::task::Poll;

use common::device::TestDevice;
use common::futures::PendingFault;
use common::{MIB, PAGE, Watchdog};
use octavo::io::SwapArea;
use octavo::{Access, Compression, Manager, ManagerBuilder, RegionOptions, Space};

const BUDGET: u64 = 16 * MIB;
/// Three times the budget.
const PAGES: u64 = 3 * BUDGET / PAGE;

/// Lets the device do its pending transfers. Returns `false` if there are none.
fn drive(device: &TestDevice) -> bool {
    let has_work = device.under_way() > 0;
    device.let_go();
    device.hold();
    has_work
}

fn held_device() -> TestDevice {
    let device = TestDevice::new(2 * PAGES as u32);
    device.hold();
    device
}

fn builder(device: &TestDevice) -> ManagerBuilder {
    let area = SwapArea::device(device.boxed());
    Manager::builder().budget_bytes(BUDGET).swap_area(area).compression(Compression::Off).background(false)
}

/// Polls the fault to its end. Between polls, the device does its pending transfers.
fn fault(space: &Space, device: &TestDevice, at: u64, access: Access) {
    let mut pending = PendingFault::new(space, at / PAGE, access);
    loop {
        if pending.is_woken()
            && let Poll::Ready(outcome) = pending.poll()
        {
            return outcome.unwrap();
        }
        assert!(drive(device) || pending.is_woken(), "the fault waits for nothing");
    }
}

fn write_and_read_back(space: &Space, device: &TestDevice) {
    let at = space.map(PAGES * PAGE, RegionOptions::default()).unwrap();
    for page in 0..PAGES {
        fault(space, device, at + page * PAGE, Access::Write);
        // No other thread works, so the page is still in memory.
        space.store(at + page * PAGE, page + 1).unwrap();
    }
    for page in 0..PAGES {
        fault(space, device, at + page * PAGE, Access::Read);
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 1, "page {page}");
    }
    while drive(device) {}
}

#[test]
fn a_full_budget_blocks_no_poll() {
    let _watchdog = Watchdog::new("a fault on the only thread");
    let device = held_device();
    let manager = builder(&device).build().unwrap();
    write_and_read_back(&manager.space().unwrap(), &device);
    manager.validate();
}

#[test]
fn a_full_quota_blocks_no_poll() {
    let _watchdog = Watchdog::new("a fault on the only thread");
    let device = held_device();
    let manager = builder(&device).build().unwrap();
    let space = manager.space().unwrap();
    space.set_quota(Some(4 * MIB)).unwrap();
    write_and_read_back(&space, &device);
    manager.validate();
}

#[test]
fn encrypted_pages_block_no_poll() {
    let _watchdog = Watchdog::new("a fault on the only thread");
    let device = held_device();
    let manager = builder(&device).encrypt(true).build().unwrap();
    write_and_read_back(&manager.space().unwrap(), &device);
    manager.validate();
}
