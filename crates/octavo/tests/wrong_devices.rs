//! Devices that break their contract.

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;

use octavo::io::{Device, Direction, Submitted, SwapArea, Transfer, Urgency};
use octavo::{Access, Advice, Compression, ErrorKind, Manager, RegionOptions, Space};

use common::{MIB, PAGE, says};

/// The reads that two devices got.
#[derive(Default)]
struct ReadLog {
    of_first: Mutex<Option<Transfer>>,
    of_second: Mutex<Option<Transfer>>,
}

/// One of two devices that know each other. The second device returns the read of the first device instead of
/// its own read.
struct Confused {
    is_first: bool,
    kept: Arc<ReadLog>,
    places: Mutex<HashMap<u32, [u8; PAGE as usize]>>,
}

impl Device for Confused {
    fn capacity_pages(&self) -> u32 {
        4096
    }

    fn submit(&self, transfer: Transfer, _: Urgency) -> Submitted {
        if transfer.direction() == Direction::Write {
            for (place, page) in (transfer.place()..).zip(transfer.pages()) {
                let mut bytes = [0; PAGE as usize];
                page.copy_out(&mut bytes);
                self.places.lock().unwrap().insert(place, bytes);
            }
            transfer.complete(Ok(()));
        } else if self.is_first {
            *self.kept.of_first.lock().unwrap() = Some(transfer);
        } else if let Some(other) = self.kept.of_first.lock().unwrap().take() {
            assert_eq!(other.place(), transfer.place(), "nothing but whose they are tells them apart");
            *self.kept.of_second.lock().unwrap() = Some(transfer);
            return Submitted::Full(other);
        }
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        "a confused device".into()
    }
}

fn page_that_is_out(is_first: bool, kept: &Arc<ReadLog>) -> (Manager, Space, u64) {
    let device = Confused { is_first, kept: Arc::clone(kept), places: Mutex::default() };
    let manager = Manager::builder()
        .budget_bytes(16 * MIB)
        .compression(Compression::Off)
        .background(false)
        .readahead_bytes(0)
        .swap_area(SwapArea::device(Box::new(device)))
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = space.map(PAGE, RegionOptions::default()).unwrap();
    space.store(at, if is_first { 1_u64 } else { 2 }).unwrap();
    space.advise(at, PAGE, Advice::PageOut).unwrap();
    (manager, space, at)
}

fn wait_for(kept: &Mutex<Option<Transfer>>) {
    while kept.lock().unwrap().is_none() {
        thread::yield_now();
    }
}

/// If a device returns a transfer as not begun, this must be the transfer that the device was given.
/// Otherwise, the frame of a read that continues would be free, and get another owner.
#[test]
fn a_device_that_gives_another_ones_transfer_back_is_found_out() {
    let kept = Arc::new(ReadLog::default());
    let (first, space, at) = page_that_is_out(true, &kept);
    let (second, other_space, other_at) = page_that_is_out(false, &kept);
    thread::scope(|scope| {
        let failing = scope.spawn(|| space.load::<u64>(at));
        wait_for(&kept.of_first);
        let reading = scope.spawn(|| other_space.load::<u64>(other_at));
        says(failing.join().unwrap(), ErrorKind::SwapRead, &["gave another transfer back"]);
        wait_for(&kept.of_second);
        // The second read continues, and still owns its frame.
        let transfer = kept.of_second.lock().unwrap().take().unwrap();
        let mut bytes = [0; PAGE as usize];
        bytes[0] = 2;
        transfer.pages().for_each(|page| page.copy_in(&bytes));
        transfer.complete(Ok(()));
        assert_eq!(reading.join().unwrap().unwrap(), 2);
    });
    drop(other_space.pin_exact(other_at, 8, Access::Read).unwrap());
    drop((space, other_space));
    first.validate();
    second.validate();
}
