//! A swap device in plain memory that fails, delays and holds transfers as told, and spoils whatever it may.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use octavo::PAGE_BYTES;
use octavo::io::{Device, Direction, Transfer, Urgency};

use super::Random;

pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;

/// A device that can be made to misbehave at random.
pub trait Troubled: Send + Sync {
    fn boxed(&self) -> Box<dyn Device>;

    /// Behaves another way from now on: slow, and with `faults` also failing.
    fn trouble(&self, random: &mut Random, faults: bool);

    /// Fails no more.
    fn heal(&self);
}

impl Troubled for TestDevice {
    fn boxed(&self) -> Box<dyn Device> {
        TestDevice::boxed(self)
    }

    fn trouble(&self, random: &mut Random, faults: bool) {
        let transfers = if random.one_in(2) { self.reads() } else { self.writes() };
        let slow = if random.one_in(8) { random.below(2000) } else { 0 };
        transfers.delay(Duration::from_micros(slow));
        if faults {
            let every = if random.one_in(2) { 2 + random.below(30) } else { 0 };
            transfers.fail_every(every, random.pick(&[EIO, ENOSPC]));
        }
    }

    fn heal(&self) {
        self.reads().fail_every(0, 0);
        self.writes().fail_every(0, 0);
    }
}

/// The device; clones are handles on the same one.
#[derive(Clone)]
pub struct TestDevice(Arc<Inner>);

struct Inner {
    capacity: u32,
    places: Mutex<HashMap<u32, Box<[u8; PAGE_BYTES]>>>,
    reads: Transfers,
    writes: Transfers,
}

/// One direction.
#[derive(Default)]
pub struct Transfers {
    begun: AtomicU64,
    failed: AtomicU64,
    /// Every so-manieth fails; 0: none.
    fail_every: AtomicU64,
    errno: AtomicI32,
    delay_us: AtomicU64,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    waiting: usize,
}

impl Transfers {
    /// Fails every `n`th transfer from now on; 1: all, 0: none.
    pub fn fail_every(&self, n: u64, errno: i32) {
        self.errno.store(errno, Ordering::Relaxed);
        self.fail_every.store(n, Ordering::Relaxed);
    }

    pub fn delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// Holds transfers back from now on.
    pub fn hold(&self) {
        self.gate.lock().unwrap().closed = true;
    }

    /// Lets later ones pass; those held back stay so until they are let go.
    pub fn hold_no_more(&self) {
        self.gate.lock().unwrap().closed = false;
    }

    /// Lets all go.
    pub fn let_go(&self) {
        self.gate.lock().unwrap().closed = false;
        self.changed.notify_all();
    }

    /// Waits until `n` transfers are held back. False: a minute went by.
    pub fn wait_held(&self, n: usize) -> bool {
        let gate = self.gate.lock().unwrap();
        let patience = Duration::from_secs(60);
        let waited = self.changed.wait_timeout_while(gate, patience, |gate| gate.waiting < n).unwrap();
        !waited.1.timed_out()
    }

    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }

    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Waits as told; says whether the transfer is to fail.
    fn pass(&self) -> io::Result<()> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let mut gate = self.gate.lock().unwrap();
        if gate.closed {
            gate.waiting += 1;
            self.changed.notify_all();
            while gate.closed {
                gate = self.changed.wait(gate).unwrap();
            }
            gate.waiting -= 1;
        }
        drop(gate);
        match self.delay_us.load(Ordering::Relaxed) {
            0 => {}
            us => thread::sleep(Duration::from_micros(us)),
        }
        match self.fail_every.load(Ordering::Relaxed) {
            0 => Ok(()),
            every if number.is_multiple_of(every) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::from_raw_os_error(self.errno.load(Ordering::Relaxed)))
            }
            _ => Ok(()),
        }
    }
}

impl TestDevice {
    pub fn new(capacity: u32) -> Self {
        Self(Arc::new(Inner {
            capacity,
            places: Mutex::default(),
            reads: Transfers::default(),
            writes: Transfers::default(),
        }))
    }

    pub fn reads(&self) -> &Transfers {
        &self.0.reads
    }

    pub fn writes(&self) -> &Transfers {
        &self.0.writes
    }

    pub fn boxed(&self) -> Box<dyn Device> {
        Box::new(self.clone())
    }
}

impl Device for TestDevice {
    fn capacity_pages(&self) -> u32 {
        self.0.capacity
    }

    /// Takes the bytes at the end, as a device may; a failed write leaves garbage.
    fn submit(&self, transfer: Transfer, _urgency: Urgency) {
        let place = transfer.place();
        let end = place as usize + transfer.len();
        assert!(end <= self.0.capacity as usize, "a transfer past the device's end");
        let result = match transfer.direction() {
            Direction::Write => self.write(&transfer),
            Direction::Read => self.read(&transfer),
        };
        transfer.complete(result);
    }

    fn describe(&self) -> String {
        "the test device".into()
    }
}

impl TestDevice {
    fn write(&self, transfer: &Transfer) -> io::Result<()> {
        let result = self.0.writes.pass();
        for (place, page) in (transfer.place()..).zip(transfer.pages()) {
            let mut bytes = Box::new([0xEE; PAGE_BYTES]);
            if result.is_ok() {
                transfer.copy_out(&page, &mut bytes);
            }
            self.0.places.lock().unwrap().insert(place, bytes);
        }
        result
    }

    fn read(&self, transfer: &Transfer) -> io::Result<()> {
        let result = self.0.reads.pass();
        for (place, page) in (transfer.place()..).zip(transfer.pages()) {
            let places = self.0.places.lock().unwrap();
            match places.get(&place) {
                Some(bytes) if result.is_ok() => transfer.copy_in(&page, bytes),
                Some(_) => transfer.copy_in(&page, &[0xDD; PAGE_BYTES]),
                None => panic!("place {place} was read but never written"),
            }
        }
        result
    }
}
