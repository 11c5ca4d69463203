//! A manager uses the clock, the CPUs, the memory and the random bytes of the machine that it is given.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use octavo::io::{Device, Direction, Submitted, SwapArea, Transfer, Urgency};
use octavo::{Advice, Compression, Cpus, ErrorKind, Machine, Manager, RegionOptions, SwapFile};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);

/// A clock that stands still until the test moves it.
#[derive(Clone, Default)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn machine(&self) -> Machine {
        let hands = self.clone();
        Machine::real().with_clock(move || Duration::from_secs(hands.0.load(Ordering::SeqCst)))
    }

    fn move_on(&self, time: Duration) {
        self.0.fetch_add(time.as_secs(), Ordering::SeqCst);
    }
}

/// A device that completes writes, but never answers reads.
#[derive(Clone, Default)]
struct NeverReads {
    kept: Arc<Mutex<Vec<Transfer>>>,
    places: Arc<Mutex<HashMap<u32, [u8; PAGE as usize]>>>,
}

impl Device for NeverReads {
    fn capacity_pages(&self) -> u32 {
        4096
    }

    fn submit(&self, transfer: Transfer, _: Urgency) -> Submitted {
        match transfer.direction() {
            Direction::Write => {
                for (place, page) in (transfer.place()..).zip(transfer.pages()) {
                    let mut bytes = [0; PAGE as usize];
                    page.copy_out(&mut bytes);
                    self.places.lock().unwrap().insert(place, bytes);
                }
                transfer.complete(Ok(()));
            }
            Direction::Read => self.kept.lock().unwrap().push(transfer),
        }
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        "a device that never reads".into()
    }
}

impl NeverReads {
    fn answer(&self) {
        for transfer in std::mem::take(&mut *self.kept.lock().unwrap()) {
            for (place, page) in (transfer.place()..).zip(transfer.pages()) {
                page.copy_in(&self.places.lock().unwrap()[&place]);
            }
            transfer.complete(Ok(()));
        }
    }
}

#[test]
fn a_timeout_goes_by_the_clock_that_the_manager_was_given() {
    let (device, hands) = (NeverReads::default(), Hands::default());
    let manager = Manager::builder()
        .machine(hands.machine())
        .budget_bytes(16 * MIB)
        .swap_area(SwapArea::device(Box::new(device.clone())))
        .compression(Compression::Off)
        .background(false)
        .io_timeout(HOUR)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = space.map(64 * PAGE, RegionOptions::default()).unwrap();
    space.store(at, 7_u64).unwrap();
    space.advise(at, PAGE, Advice::PageOut).unwrap();
    let over = AtomicBool::new(false);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            // While the load waits, hours pass.
            while !over.load(Ordering::SeqCst) {
                if !device.kept.lock().unwrap().is_empty() {
                    hands.move_on(HOUR);
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        let error = space.load::<u64>(at).unwrap_err();
        over.store(true, Ordering::SeqCst);
        error
    });
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    device.answer();
    assert_eq!(space.load::<u64>(at).unwrap(), 7);
}

#[test]
fn budgets_go_by_the_memory_that_the_machine_was_given() {
    let machine = || Machine::real().with_memory_bytes(32 * MIB);
    let error = Manager::builder().machine(machine()).budget_bytes(64 * MIB).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidBudget, "{error}");
    assert!(error.to_string().contains("32 MiB"), "{error}");
    let manager = Manager::builder().machine(machine()).build().unwrap();
    assert_eq!(manager.stats().unwrap().budget_bytes, 32 * MIB / 5 * 4, "the default");
    assert_eq!(manager.set_budget(64 * MIB).unwrap_err().kind(), ErrorKind::InvalidBudget);
}

#[test]
fn a_manager_works_on_pretended_cpus() {
    static TURN: AtomicU64 = AtomicU64::new(0);
    // Each call returns another CPU, as if the thread moved all the time.
    let cpus = Cpus::pretended(5, || TURN.fetch_add(1, Ordering::Relaxed) as u32);
    let manager =
        Manager::builder().machine(Machine::real().with_cpus(cpus)).budget_bytes(16 * MIB).build().unwrap();
    let space = manager.space().unwrap();
    let pages = 8192;
    let at = space.map(pages * PAGE, RegionOptions::default()).unwrap();
    for page in 0..pages {
        space.store(at + page * PAGE, page).unwrap();
    }
    for page in 0..pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page);
    }
    assert!(TURN.load(Ordering::Relaxed) > 0);
    manager.validate();
}

#[test]
fn an_access_gets_the_last_frames_from_whichever_cpu_has_them() {
    const CPUS: u64 = 8;
    static CPU: AtomicU64 = AtomicU64::new(0);
    let cpus = Cpus::pretended(CPUS as usize, || CPU.load(Ordering::Relaxed) as u32);
    let manager = Manager::builder()
        .machine(Machine::real().with_cpus(cpus))
        .budget_bytes(16 * MIB)
        .swap_file(SwapFile::None)
        .compression(Compression::Off)
        .background(false)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let mut next = 0;
    let full = loop {
        match space.store(at + next * PAGE, next) {
            Ok(()) => next += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::OutOfMemory, "{full}");
    // This holds after any number of misses, and with any small number of frames.
    for turn in 1..=CPUS {
        CPU.store(1, Ordering::Relaxed);
        space.unmap(at + (turn - 1) * 8 * PAGE, turn * PAGE).unwrap();
        CPU.store(0, Ordering::Relaxed);
        for _ in 0..turn {
            space.store(at + next * PAGE, next).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
            next += 1;
        }
        space.store(at + next * PAGE, next).unwrap_err();
    }
    manager.validate();
}

#[test]
fn the_key_of_encryption_comes_from_the_random_bytes_given() {
    let refuse = |_: &mut [u8]| Err(std::io::ErrorKind::Unsupported.into());
    let built = |encrypt| {
        Manager::builder()
            .machine(Machine::real().with_random(refuse))
            .budget_bytes(16 * MIB)
            .encrypt(encrypt)
            .build()
    };
    assert_eq!(built(true).unwrap_err().kind(), ErrorKind::System);
    built(false).unwrap();
}
