//! Devices that fail, fall silent or are slow. Only the affected area is avoided, and only while its device
//! has the problem.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::device::{EIO, Manner, TestDevice};
use common::{MIB, PAGE};
use octavo::io::{Device, Submitted, SwapArea, Transfer, Urgency, Waited};
use octavo::{
    Access, Advice, AreaState, Compression, Counter, Error, ErrorKind, Latency, Machine, Manager,
    ManagerBuilder, RegionOptions, Space,
};

const PAGES: u64 = 8192;
/// The timeout. All devices here answer at once or not at all, so the timeout causes no race.
const TIMEOUT: Duration = Duration::from_millis(30);

fn builder() -> ManagerBuilder {
    let builder = Manager::builder().budget_bytes(16 * MIB).max_budget_bytes(64 * MIB);
    builder.compression(Compression::Off).background(false).readahead_bytes(0)
}

fn map(space: &Space) -> u64 {
    space.map(PAGES * PAGE, RegionOptions::default()).unwrap()
}

fn value(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Writes to the pages, in order, until a write fails. Returns the page that failed, and the error.
fn fill(space: &Space, at: u64, pages: std::ops::Range<u64>) -> (u64, Option<Error>) {
    for page in pages.clone() {
        if let Err(error) = space.store(at + page * PAGE, value(page)) {
            return (page, Some(error));
        }
    }
    (pages.end, None)
}

fn check(space: &Space, at: u64, pages: std::ops::Range<u64>) {
    for page in pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page), "page {page}");
    }
}

/// Makes a manager with two areas. Pages go to the first area first.
fn with_two_areas() -> (TestDevice, TestDevice, Manager) {
    let first = TestDevice::new(2 * PAGES as u32).named("the first");
    let second = TestDevice::new(3 * PAGES as u32).named("the second");
    let manager = builder()
        .swap_area(SwapArea::device(first.boxed()).priority(10))
        .swap_area(SwapArea::device(second.boxed()))
        .io_timeout(TIMEOUT)
        .build()
        .unwrap();
    (first, second, manager)
}

#[test]
fn an_area_that_fails_does_not_keep_pages_from_another_and_is_used_again_when_it_is_well() {
    let (first, second, manager) = with_two_areas();
    let space = manager.space().unwrap();
    let at = map(&space);
    first.writes().fail_every(1, EIO);
    let (stored, error) = fill(&space, at, 0..PAGES);
    assert_eq!(stored, PAGES, "{error:?}");
    check(&space, at, 0..PAGES);
    // The first device was tried again now and then.
    let (failed, written) = (first.writes().failed(), second.writes().begun());
    assert!(failed > 0 && failed < written / 2, "{failed} writes failed, {written} were elsewhere");
    first.heal();
    let before = first.writes().begun();
    for _ in 0..2 {
        // New pages need new places.
        let other = manager.space().unwrap();
        let there = map(&other);
        assert!(fill(&other, there, 0..PAGES).1.is_none());
        check(&other, there, 0..PAGES);
    }
    assert!(first.writes().begun() > before + 8, "it is used again");
    check(&space, at, 0..PAGES);
    manager.validate();
}

#[test]
fn pages_whose_place_is_on_an_area_that_fails_move_to_another() {
    let (first, second, manager) = with_two_areas();
    let space = manager.space().unwrap();
    let at = map(&space);
    assert!(fill(&space, at, 0..PAGES).1.is_none());
    assert_eq!(second.writes().begun(), 0, "all is on the first");
    first.writes().fail_every(1, EIO);
    // Each page comes back and is changed. It keeps its place on the device.
    for page in 0..PAGES {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), value(page));
        space.store(at + page * PAGE, value(page)).unwrap();
    }
    let (failed, written) = (first.writes().failed(), second.writes().begun());
    assert!(failed < written / 2, "{failed} writes failed, {written} were elsewhere");
    check(&space, at, 0..PAGES);
    manager.validate();
}

#[test]
fn an_area_that_does_not_answer_does_not_keep_pages_from_another_and_is_used_again_when_it_does() {
    let (first, second, manager) = with_two_areas();
    let space = manager.space().unwrap();
    let at = map(&space);
    first.hold();
    let mut refused = 0;
    for page in 0..PAGES {
        while let Err(error) = space.store(at + page * PAGE, value(page)) {
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            assert!(error.to_string().contains("the first did not answer"), "{error}");
            refused += 1;
            assert!(refused <= 2, "page {page} is refused though another area is well");
        }
    }
    let begun = first.writes().begun();
    check(&space, at, 0..PAGES);
    assert!(second.writes().begun() > 0);
    assert_eq!(first.writes().begun(), begun, "it gets nothing while it owes an answer");
    first.let_go();
    assert!(fill(&space, at, 0..PAGES).1.is_none());
    assert!(first.writes().begun() > begun, "it is used again");
    check(&space, at, 0..PAGES);
    manager.validate();
}

#[test]
fn an_access_gets_the_error_when_no_area_is_well() {
    let (first, second, manager) = with_two_areas();
    let space = manager.space().unwrap();
    let at = map(&space);
    first.hold();
    second.writes().fail_every(1, EIO);
    let (stored, error) = fill(&space, at, 0..PAGES);
    let error = error.expect("8192 pages do not fit in 16 MiB");
    // While the first device has pages in flight, only its answer would make room.
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("the first did not answer"), "{error}");
    first.writes().fail_every(1, EIO);
    first.let_go();
    let error = fill(&space, at, stored..PAGES).1.expect("nothing goes out");
    assert_eq!(error.kind(), ErrorKind::SwapWrite, "{error}");
    assert!(error.to_string().contains("writing to the first failed"), "{error}");
    second.heal();
    assert_eq!(fill(&space, at, stored..PAGES).1.map(|error| error.to_string()), None);
    check(&space, at, 0..PAGES);
    manager.validate();
}

#[test]
fn an_access_gets_the_error_when_the_area_that_is_well_is_full_and_the_other_fails() {
    let (full, failing) = (TestDevice::new(1024), TestDevice::new(40).named("the failing one"));
    let manager = builder()
        .swap_area(SwapArea::device(full.boxed()).priority(10))
        .swap_area(SwapArea::device(failing.boxed()))
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    failing.writes().fail_every(1, EIO);
    let (stored, error) = fill(&space, at, 0..PAGES);
    let error = error.expect("8192 pages do not fit in 16 MiB and 1024 places");
    assert_eq!(error.kind(), ErrorKind::SwapWrite, "{error}");
    assert!(error.to_string().contains("writing to the failing one failed"), "{error}");
    failing.heal();
    // The places of the failed writes are tried again.
    check(&space, at, 0..stored);
    let (more, error) = fill(&space, at, stored..PAGES);
    assert_eq!(error.expect("there are 40 places more").kind(), ErrorKind::SwapFull);
    assert!(more > stored);
    manager.validate();
}

#[test]
fn a_device_that_was_silent_is_written_to_again_when_it_has_answered() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder().swap_device(device.boxed()).io_timeout(TIMEOUT).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    assert!(fill(&space, at, 0..1024).1.is_none());
    for fails in [false, true] {
        device.hold();
        assert_eq!(manager.reclaim(64).unwrap(), 0);
        let begun = device.writes().begun();
        assert_eq!(manager.reclaim(64).unwrap(), 0);
        assert_eq!(device.writes().begun(), begun, "it gets nothing while it owes an answer");
        device.writes().fail_every(u64::from(fails), EIO);
        device.let_go();
        device.heal();
        assert!(manager.reclaim(64).unwrap() > 0, "it is asked again");
        assert!(device.writes().begun() > begun);
        check(&space, at, 0..1024);
    }
    manager.validate();
}

#[test]
fn of_the_pages_sent_out_on_demand_only_clean_ones_go_while_the_device_is_silent() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder().swap_device(device.boxed()).io_timeout(TIMEOUT).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    let page_out = |pages: std::ops::Range<u64>| {
        space.advise(at + pages.start * PAGE, (pages.end - pages.start) * PAGE, Advice::PageOut).unwrap();
    };
    let resident = || space.stats().unwrap().resident_bytes / PAGE;
    assert!(fill(&space, at, 0..512).1.is_none());
    page_out(0..256);
    check(&space, at, 0..256);
    assert_eq!(resident(), 512, "half of the pages are clean");
    device.hold();
    assert_eq!(manager.reclaim(64).unwrap(), 0);
    let (begun, before) = (device.writes().begun(), resident());
    page_out(0..512);
    assert_eq!(device.writes().begun(), begun, "it gets nothing while it owes an answer");
    assert!(resident() <= before - 128, "{} of {before} pages are left", resident());
    device.let_go();
    check(&space, at, 0..512);
    page_out(0..512);
    assert!(device.writes().begun() > begun);
    check(&space, at, 0..512);
    manager.validate();
}

#[test]
fn a_budget_that_does_not_fit_over_a_device_that_answers_is_no_timeout() {
    let device = TestDevice::new(2 * PAGES as u32);
    let manager = builder().swap_device(device.boxed()).io_timeout(TIMEOUT).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    manager.set_budget(64 * MIB).unwrap();
    assert!(fill(&space, at, 0..PAGES).1.is_none());
    // The device falls silent, and recovers.
    device.hold();
    assert_eq!(manager.set_budget(16 * MIB).unwrap_err().kind(), ErrorKind::TimedOut);
    device.let_go();
    let pins: Vec<_> =
        (0..PAGES).map(|page| space.pin_exact(at + page * PAGE, 8, Access::Write).unwrap()).collect();
    assert_eq!(manager.set_budget(16 * MIB).unwrap_err().kind(), ErrorKind::InvalidBudget);
    device.writes().fail_every(1, EIO);
    drop(pins);
    assert_eq!(manager.set_budget(16 * MIB).unwrap_err().kind(), ErrorKind::InvalidBudget);
    device.heal();
    manager.set_budget(16 * MIB).unwrap();
    check(&space, at, 0..PAGES);
}

/// A device that answers one transfer for each wait. The answer takes nine tenths of the timeout, by the
/// manager's clock.
#[derive(Clone)]
struct Slow {
    device: TestDevice,
    /// The time in milliseconds.
    clock: Arc<AtomicU64>,
    answers: Arc<AtomicU64>,
}

impl Slow {
    fn new() -> Self {
        let device = TestDevice::with_manner(2 * PAGES as u32, Manner::Driven);
        Self { device, clock: Arc::default(), answers: Arc::default() }
    }

    fn machine(&self) -> Machine {
        let clock = Arc::clone(&self.clock);
        Machine::real().with_clock(move || Duration::from_millis(clock.load(Ordering::SeqCst)))
    }
}

impl Device for Slow {
    fn capacity_pages(&self) -> u32 {
        self.device.capacity_pages()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        self.device.submit(transfer, urgency)
    }

    fn flush(&self) {
        self.device.flush();
    }

    fn wait(&self, _: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        if still_waiting() {
            self.clock.fetch_add(9 * TIMEOUT.as_millis() as u64 / 10, Ordering::SeqCst);
            self.answers.fetch_add(1, Ordering::SeqCst);
            assert!(self.device.advance(), "somebody waits for nothing");
        }
        Waited::Progress
    }

    fn serve(&self) {
        while self.device.advance() {}
    }

    fn describe(&self) -> String {
        "a slow device".into()
    }
}

#[test]
fn a_budget_is_lowered_over_a_device_that_is_slow_but_answers() {
    let slow = Slow::new();
    let manager = builder()
        .machine(slow.machine())
        .swap_device(Box::new(slow.clone()))
        .io_timeout(TIMEOUT)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    manager.set_budget(64 * MIB).unwrap();
    assert!(fill(&space, at, 0..PAGES).1.is_none());
    // After a failed write, transfers are short, so each wait is for several transfers.
    slow.device.writes().fail_every(1, EIO);
    space.advise(at, 32 * PAGE, Advice::PageOut).unwrap();
    slow.serve();
    slow.device.heal();
    assert_eq!(manager.set_budget(16 * MIB).map_err(|error| error.to_string()), Ok(()));
    assert!(slow.answers.load(Ordering::SeqCst) > 8, "it took many timeouts in all");
    check(&space, at, 0..PAGES);
    slow.device.drain();
}

#[test]
fn pages_on_their_way_to_a_silent_device_keep_nothing_from_another_that_also_reads() {
    let (first, second, manager) = with_two_areas();
    let space = manager.space().unwrap();
    let at = map(&space);
    assert!(fill(&space, at, 0..1024).1.is_none());
    // While the first device is silent, some pages go to the second.
    first.writes().hold();
    assert_eq!(manager.reclaim(64).unwrap(), 0);
    space.advise(at + 256 * PAGE, 64 * PAGE, Advice::PageOut).unwrap();
    assert!(second.writes().begun() > 0);
    first.writes().let_go();
    // Now the first device has more pages than a scan starts at once, and the second has reads.
    first.writes().hold();
    space.advise(at + 320 * PAGE, 700 * PAGE, Advice::PageOut).unwrap();
    manager.reclaim(64).unwrap();
    second.reads().hold();
    let read = second.reads().begun();
    space.prefetch(at + 256 * PAGE, 64 * PAGE).unwrap();
    assert!(second.reads().begun() > read, "the second has reads in flight");
    let (stored, error) = fill(&space, at, 1024..PAGES);
    assert_eq!(error.map(|error| error.to_string()), None, "page {stored}");
    first.let_go();
    second.let_go();
    check(&space, at, 0..PAGES);
    manager.validate();
}

#[test]
fn an_access_that_waits_for_its_page_names_the_device_of_the_page() {
    let first = TestDevice::new(2 * PAGES as u32).named("the first");
    let second = TestDevice::new(2 * PAGES as u32).named("the second");
    let manager = builder()
        .swap_area(SwapArea::device(first.boxed()))
        .swap_area(SwapArea::device(second.boxed()).priority(10))
        .io_timeout(TIMEOUT)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    assert!(fill(&space, at, 0..1024).1.is_none());
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    // The devices fall silent one after the other.
    [&first, &second].into_iter().for_each(TestDevice::hold);
    for device in [&second, &first] {
        assert_eq!(manager.reclaim(64).unwrap(), 0);
        assert!(device.under_way() > 0);
    }
    let error = space.load::<u64>(at).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("the second did not answer"), "{error}");
    // The same case, but the second device has no room for the read.
    second.set_room(1);
    let error = space.load::<u64>(at + PAGE).unwrap_err();
    assert!(error.to_string().contains("the second did not answer"), "{error}");
    [&first, &second].into_iter().for_each(TestDevice::let_go);
    check(&space, at, 0..1024);
}

#[test]
fn a_budget_that_does_not_fit_for_pages_on_their_way_to_a_silent_device_is_a_timeout() {
    let (first, _second, manager) = with_two_areas();
    let space = manager.space().unwrap();
    let at = map(&space);
    manager.set_budget(64 * MIB).unwrap();
    assert!(fill(&space, at, 0..PAGES).1.is_none());
    // The first device has some pages of each chunk.
    first.writes().hold();
    for page in (0..PAGES).step_by(64) {
        space.advise(at + page * PAGE, PAGE, Advice::PageOut).unwrap();
    }
    assert_eq!(manager.reclaim(64).unwrap(), 0);
    let error = manager.set_budget(16 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("the first did not answer"), "{error}");
    first.let_go();
    manager.set_budget(16 * MIB).unwrap();
    check(&space, at, 0..PAGES);
}

/// A device that, after an order, answers one transfer for each flush. The answer takes nine tenths of the
/// timeout, by the manager's clock.
#[derive(Clone)]
struct Steady {
    slow: Slow,
    answers: Arc<AtomicBool>,
}

impl Device for Steady {
    fn capacity_pages(&self) -> u32 {
        self.slow.capacity_pages()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        self.slow.submit(transfer, urgency)
    }

    fn flush(&self) {
        self.slow.flush();
        if self.answers.load(Ordering::SeqCst) {
            self.slow.clock.fetch_add(9 * TIMEOUT.as_millis() as u64 / 10, Ordering::SeqCst);
            self.slow.answers.fetch_add(u64::from(self.slow.device.advance()), Ordering::SeqCst);
        }
    }

    fn describe(&self) -> String {
        "a steady device".into()
    }
}

#[test]
fn an_access_whose_device_is_full_ends_in_time_though_another_device_answers_all_the_time() {
    let first = TestDevice::new(2 * PAGES as u32).named("the first");
    let steady = Steady { slow: Slow::new(), answers: Arc::default() };
    let manager = builder()
        .machine(steady.slow.machine())
        .swap_area(SwapArea::device(first.boxed()).priority(10))
        .swap_area(SwapArea::device(Box::new(steady.clone())))
        .io_timeout(TIMEOUT)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    assert!(fill(&space, at, 0..1024).1.is_none());
    space.advise(at, 64 * PAGE, Advice::PageOut).unwrap();
    // The first device fails, so pages go to the second device, in many transfers of one page each.
    first.writes().fail_every(1, EIO);
    for page in (64..1024).step_by(2) {
        space.advise(at + page * PAGE, PAGE, Advice::PageOut).unwrap();
    }
    let queued = steady.slow.device.under_way();
    assert!(queued > 100, "{queued} in flight");
    first.hold();
    first.set_room(1);
    space.prefetch(at, PAGE).unwrap();
    assert_eq!(first.under_way(), 1, "it is full");
    steady.answers.store(true, Ordering::SeqCst);
    let error = space.load::<u64>(at + 8 * PAGE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert!(error.to_string().contains("the first did not answer"), "{error}");
    let answers = steady.slow.answers.load(Ordering::SeqCst);
    assert!(answers < 20, "{answers} answers of another device");
    steady.answers.store(false, Ordering::SeqCst);
    first.let_go();
    steady.slow.device.drain();
}

/// A device that counts how often it is asked for its name.
struct CountedName {
    device: TestDevice,
    asked: Arc<AtomicU64>,
}

impl Device for CountedName {
    fn capacity_pages(&self) -> u32 {
        self.device.capacity_pages()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        self.device.submit(transfer, urgency)
    }

    fn describe(&self) -> String {
        self.asked.fetch_add(1, Ordering::SeqCst);
        "the named device".into()
    }
}

/// A later call might come while Octavo holds a lock, and the device's answer might need this lock.
#[test]
fn a_device_is_asked_for_its_name_when_it_is_opened_and_not_again() {
    let (device, asked) = (TestDevice::new(2 * PAGES as u32), Arc::new(AtomicU64::new(0)));
    let named = CountedName { device: device.clone(), asked: Arc::clone(&asked) };
    let manager = builder().swap_device(Box::new(named)).io_timeout(TIMEOUT).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space);
    for errno in [EIO, 0] {
        device.writes().fail_every(u64::from(errno != 0), errno);
        if errno == 0 {
            device.hold();
        }
        let error = fill(&space, at, 0..PAGES).1.expect("8192 pages do not fit in 16 MiB");
        assert!(error.to_string().contains("the named device"), "{error}");
    }
    device.let_go();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[test]
fn the_figures_of_each_area_say_what_its_device_did() {
    let (first, second, manager) = with_two_areas();
    let before = manager.areas().unwrap();
    assert_eq!(before.iter().map(|area| &*area.name).collect::<Vec<_>>(), ["the first", "the second"]);
    assert_eq!(before[1].capacity_bytes, 3 * PAGES * PAGE);
    assert_eq!((before[0].used_bytes, before[0].writes, before[0].waits.count), (0, 0, 0));
    let space = manager.space().unwrap();
    let at = map(&space);
    assert!(fill(&space, at, 0..PAGES).1.is_none());
    first.reads().fail_every(2, EIO);
    let failed = (0..100).filter(|page| space.load::<u64>(at + page * PAGE).is_err()).count() as u64;
    first.heal();
    check(&space, at, 0..PAGES);
    first.writes().fail_every(1, EIO);
    let other = manager.space().unwrap();
    assert!(fill(&other, map(&other), 0..PAGES).1.is_none());

    let [one, two] = manager.areas().unwrap().try_into().unwrap();
    let counted = |counter| manager.counters().get(counter);
    let bytes = |counter| counted(counter) * PAGE;
    assert_eq!(one.written_bytes + two.written_bytes, bytes(Counter::SwapOut));
    assert_eq!((one.read_bytes, two.read_bytes), (bytes(Counter::SwapIn), 0));
    assert!(one.written_bytes > PAGES / 2 * PAGE && two.written_bytes > 0);
    assert_eq!((one.state, two.state), (AreaState::Failing, AreaState::Well));
    assert_eq!((one.read_errors, two.read_errors), (first.reads().failed(), 0));
    assert!(failed > 0 && one.read_errors == failed, "{failed}, {one:?}");
    assert_eq!((one.write_errors, two.write_errors), (first.writes().failed(), 0));
    assert_eq!(
        (one.writes + one.write_errors, two.writes),
        (first.writes().begun(), second.writes().begun())
    );
    // Places that could not be written are withheld.
    assert!(one.used_bytes + two.used_bytes >= manager.stats().unwrap().swap_slots * PAGE);
    let waits = manager.latencies().quantiles(Latency::Device).count;
    assert!(waits > 0 && one.waits.count == waits && two.waits.count == 0, "{waits}, {one:?}");
}
