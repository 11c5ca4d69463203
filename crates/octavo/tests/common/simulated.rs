//! A swap device in plain memory whose every whim follows from a seed: it holds transfers back, ends them late and in
//! another order, fails them, does part of them, and lies about what it read, if told to.
//!
//! It also minds the other side of the contract: a place is not touched while it is written, nothing is read that was not
//! written whole, nothing is waited for that was never flushed.
//!
//! | manner | who completes | time |
//! |---|---|---|
//! | `Driven` | whoever calls `poll`, `wait` or [`Simulated::advance`]; one thread, exactly repeatable | its own |
//! | `Served` | whoever calls `poll` or `wait`; a thread from `serve` on until nothing is under way | the clock's |
//! | `Threads` | threads of its own | the clock's |

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use octavo::PAGE_BYTES;
use octavo::io::{Device, Direction, Transfer, Urgency, Waited};

use super::Random;
use super::device::{EIO, ENOSPC, Troubled};

/// Who completes transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Driven,
    Served,
    Threads(usize),
}

/// How the device behaves; chances are per mille of transfers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whims {
    /// Completed before `submit` returns.
    pub inline: u64,
    pub failed_reads: u64,
    pub failed_writes: u64,
    /// Failures come as ENOSPC only, as on a full file system.
    pub full: bool,
    /// Reads that say Ok and bring other bytes.
    pub lying_reads: u64,
    /// Writes that say Ok and leave a page as it was.
    pub lost_writes: u64,
    /// Longest delay: calls for `Driven`, microseconds for the others. One in 16 takes eight times as long.
    pub delay: u64,
}

impl Whims {
    /// Failing and late, but never lying.
    pub fn random(random: &mut Random) -> Self {
        let mut chance = |of: &[u64]| random.pick(of);
        Self {
            inline: chance(&[0, 0, 200, 700]),
            failed_reads: chance(&[0, 0, 30, 200]),
            failed_writes: chance(&[0, 0, 50, 300, 1000]),
            full: chance(&[0, 0, 1]) == 1,
            lying_reads: 0,
            lost_writes: 0,
            delay: chance(&[0, 2, 20, 300]),
        }
    }

    /// As it is, without errors.
    pub fn honest(self) -> Self {
        Self { failed_reads: 0, failed_writes: 0, lying_reads: 0, lost_writes: 0, ..self }
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    pub reads: u64,
    pub writes: u64,
    pub failed_reads: u64,
    pub failed_writes: u64,
    pub lies: u64,
    /// Transfers that ended before one that was submitted earlier.
    pub overtaken: u64,
    /// Of everything above, in order, with places: the same for the same run.
    pub digest: u64,
}

/// The device; clones are handles on the same one.
#[derive(Clone)]
pub struct Simulated {
    inner: Arc<Inner>,
    /// The device's threads end when the last handle is gone.
    handle: Arc<Handle>,
}

struct Handle(Arc<Inner>);

struct Inner {
    capacity: u32,
    manner: Manner,
    begin: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    random: Random,
    whims: Whims,
    /// In calls, for `Driven`.
    now: u64,
    submitted: u64,
    collected: Vec<Held>,
    held: Vec<Held>,
    /// Transfers taken out of `held` whose completion has not returned yet.
    in_hand: usize,
    /// Places that are being written. Those that are being read may have been given up meanwhile, and be anybody's.
    written: HashSet<u32>,
    places: HashMap<u32, Place>,
    serving: bool,
    stop: bool,
    happened: Happened,
}

struct Held {
    transfer: Transfer,
    due: u64,
    number: u64,
    /// The bytes of a write, where the device took them at once.
    early: Option<Vec<[u8; PAGE_BYTES]>>,
}

struct Place {
    bytes: Box<[u8; PAGE_BYTES]>,
    /// The last write to it went well.
    whole: bool,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Not joined: the last handle may go inside a completion.
        self.0.lock().stop = true;
        self.0.changed.notify_all();
    }
}

impl Simulated {
    pub fn new(capacity: u32, seed: u64, manner: Manner, whims: Whims) -> Self {
        let state = State {
            random: Random::new(seed),
            whims,
            now: 0,
            submitted: 0,
            collected: Vec::new(),
            held: Vec::new(),
            in_hand: 0,
            written: HashSet::new(),
            places: HashMap::new(),
            serving: false,
            stop: false,
            happened: Happened::default(),
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let inner = Arc::new(Inner { capacity, manner, begin: Instant::now(), state, changed });
        let threads = match manner {
            Manner::Driven => 0,
            Manner::Served => 1,
            Manner::Threads(threads) => threads,
        };
        for _ in 0..threads {
            let inner = Arc::clone(&inner);
            thread::spawn(move || inner.work());
        }
        Self { handle: Arc::new(Handle(Arc::clone(&inner))), inner }
    }

    pub fn boxed(&self) -> Box<dyn Device> {
        Box::new(self.clone())
    }

    pub fn set_whims(&self, whims: Whims) {
        self.inner.lock().whims = whims;
    }

    pub fn whims(&self) -> Whims {
        self.inner.lock().whims
    }

    /// No errors from now on.
    pub fn heal(&self) {
        let mut state = self.inner.lock();
        state.whims = state.whims.honest();
    }

    pub fn happened(&self) -> Happened {
        self.inner.lock().happened
    }

    /// Transfers submitted and not completed.
    pub fn under_way(&self) -> usize {
        let state = self.inner.lock();
        state.collected.len() + state.held.len() + state.in_hand
    }

    /// Whether there is another handle on it: a manager's.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// Completes the transfer that is next. False: nothing is under way.
    pub fn advance(&self) -> bool {
        self.inner.complete_next(u64::MAX)
    }

    /// Completes everything, also what nobody flushed.
    pub fn drain(&self) {
        self.inner.flush();
        while self.inner.manner == Manner::Driven && self.advance() {}
        while self.under_way() > 0 {
            self.inner.lock().serving = true;
            self.inner.changed.notify_all();
            thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Troubled for Simulated {
    fn boxed(&self) -> Box<dyn Device> {
        Simulated::boxed(self)
    }

    fn trouble(&self, random: &mut Random, faults: bool) {
        let mut whims = Whims::random(random);
        // Whoever is to change it back may need room itself.
        whims.failed_writes = whims.failed_writes.min(300);
        self.set_whims(if faults { whims } else { whims.honest() });
    }

    fn heal(&self) {
        Simulated::heal(self);
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is reported there; this must still let others end.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn now(&self, state: &mut State) -> u64 {
        if self.manner == Manner::Driven {
            state.now += 1;
            return state.now;
        }
        self.begin.elapsed().as_micros() as u64
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) {
        let (place, len) = (transfer.place(), transfer.len());
        assert!(place as usize + len <= self.capacity as usize, "a transfer past the device's end");
        assert_eq!(transfer.pages().count(), len, "a page for each place");
        transfer.note_queue(7);
        let mut state = self.lock();
        let direction = transfer.direction();
        for place in place..place + len as u32 {
            if direction == Direction::Write {
                assert!(state.written.insert(place), "place {place} is written twice at once");
            } else {
                assert!(!state.written.contains(&place), "place {place} is read while it is written");
                let whole = state.places.get(&place).is_some_and(|place| place.whole);
                assert!(whole, "place {place} is read but was not written");
            }
        }
        let (now, whims) = (self.now(&mut state), state.whims);
        let delay = if whims.delay == 0 { 0 } else { state.random.below(whims.delay) };
        let delay = if state.random.one_in(16) { 8 * delay } else { delay };
        let early = (direction == Direction::Write && state.random.one_in(3)).then(|| copy_of(&transfer));
        let inline = state.random.below(1000) < whims.inline;
        state.submitted += 1;
        let held = Held { transfer, due: now + delay, number: state.submitted, early };
        state.happened.note(1, place, len as u64);
        if inline {
            state.in_hand += 1;
            drop(state);
            self.complete(held);
        } else if urgency == Urgency::Now {
            state.held.push(held);
            drop(state);
            self.changed.notify_all();
        } else {
            state.collected.push(held);
        }
    }

    fn flush(&self) {
        let mut state = self.lock();
        let State { collected, held, .. } = &mut *state;
        if !collected.is_empty() {
            held.append(collected);
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Completes the transfer that is due first, if it is by `until`.
    fn complete_next(&self, until: u64) -> bool {
        let mut state = self.lock();
        let Some(at) = state.first_due() else { return false };
        if state.held[at].due > until {
            return false;
        }
        let held = state.take(at);
        drop(state);
        self.complete(held);
        true
    }

    fn complete(&self, held: Held) {
        let Held { transfer, early, .. } = held;
        let mut state = self.lock();
        let result = match transfer.direction() {
            Direction::Read => state.read(&transfer),
            Direction::Write => state.write(&transfer, early),
        };
        if transfer.direction() == Direction::Write {
            let end = transfer.place() + transfer.len() as u32;
            state.written.retain(|place| !(transfer.place()..end).contains(place));
        }
        drop(state);
        match result {
            // To give a transfer up is to fail it.
            Err(None) => drop(transfer),
            Err(Some(error)) => transfer.complete(Err(error)),
            Ok(()) => transfer.complete(Ok(())),
        }
        self.lock().in_hand -= 1;
        self.changed.notify_all();
    }

    fn poll(&self) {
        if matches!(self.manner, Manner::Threads(_)) {
            return;
        }
        let now = self.now(&mut self.lock());
        while self.complete_next(now) {}
    }

    fn wait(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        match self.manner {
            Manner::Threads(_) => Waited::Sleep,
            Manner::Driven => {
                let waits = still_waiting();
                let completed = waits && self.complete_next(u64::MAX);
                assert!(completed || !waits, "somebody waits, and nothing that was flushed is under way");
                Waited::Progress
            }
            Manner::Served => self.wait_by_the_clock(still_waiting),
        }
    }

    fn wait_by_the_clock(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        let mut state = self.lock();
        loop {
            drop(state);
            // Not under the lock: it may be anything.
            if !still_waiting() {
                return Waited::Progress;
            }
            state = self.lock();
            let Some(at) = state.first_due() else {
                // Others complete it, or have yet to flush it.
                state.serving = true;
                self.changed.notify_all();
                return Waited::Sleep;
            };
            let (now, due) = (self.now(&mut state), state.held[at].due);
            if due <= now {
                let held = state.take(at);
                drop(state);
                self.complete(held);
                return Waited::Progress;
            }
            state = self.sleep(state, Duration::from_micros(due - now));
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(|poisoned| poisoned.into_inner()).0
    }

    /// A thread of the device's own.
    fn work(&self) {
        let mut state = self.lock();
        while !state.stop {
            if self.manner == Manner::Served {
                if state.collected.is_empty() && state.held.is_empty() && state.in_hand == 0 {
                    state.serving = false;
                }
                if !state.serving {
                    state = self.sleep(state, Duration::from_millis(50));
                    continue;
                }
            }
            let now = self.now(&mut state);
            let wait = match state.first_due() {
                Some(at) if state.held[at].due <= now => {
                    let held = state.take(at);
                    drop(state);
                    self.complete(held);
                    state = self.lock();
                    continue;
                }
                Some(at) => Duration::from_micros(state.held[at].due - now),
                None => Duration::from_millis(50),
            };
            state = self.sleep(state, wait);
        }
    }
}

fn copy_of(transfer: &Transfer) -> Vec<[u8; PAGE_BYTES]> {
    let copy = |page| {
        let mut bytes = [0; PAGE_BYTES];
        transfer.copy_out(&page, &mut bytes);
        bytes
    };
    transfer.pages().map(copy).collect()
}

impl State {
    fn first_due(&self) -> Option<usize> {
        (0..self.held.len()).min_by_key(|at| (self.held[*at].due, self.held[*at].number))
    }

    fn take(&mut self, at: usize) -> Held {
        self.in_hand += 1;
        let held = self.held.swap_remove(at);
        self.now = self.now.max(held.due);
        self.happened.overtaken += u64::from(self.held.iter().any(|other| other.number < held.number));
        held
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.random.below(1000) < per_mille
    }

    fn failure(&mut self, direction: Direction) -> Option<io::Error> {
        if self.whims.full && direction == Direction::Write {
            return Some(io::Error::from_raw_os_error(ENOSPC));
        }
        let short = if direction == Direction::Read {
            io::ErrorKind::UnexpectedEof
        } else {
            io::ErrorKind::WriteZero
        };
        match self.random.below(8) {
            0 => None,
            1 => Some(io::Error::from_raw_os_error(ENOSPC)),
            2..=4 => Some(io::Error::new(short, "part of the transfer was done")),
            _ => Some(io::Error::from_raw_os_error(EIO)),
        }
    }

    /// `Err(None)`: gives the transfer up without a word.
    fn read(&mut self, transfer: &Transfer) -> Result<(), Option<io::Error>> {
        let fails = self.chance(self.whims.failed_reads);
        let lies = !fails && self.chance(self.whims.lying_reads);
        let liar = self.random.below(transfer.len() as u64) as usize;
        // Of a read that fails, some pages are there: the first ones, or any.
        let done = self.random.below(transfer.len() as u64 + 1) as usize;
        for (index, page) in transfer.pages().enumerate() {
            let place = transfer.place() + index as u32;
            let mut bytes = *self.places[&place].bytes;
            if fails && index >= done {
                bytes.fill(0xDD);
            }
            if lies && index == liar {
                self.spoil(place, &mut bytes);
            }
            transfer.copy_in(&page, &bytes);
        }
        self.happened.reads += 1;
        self.happened.failed_reads += u64::from(fails);
        self.happened.lies += u64::from(lies);
        self.happened.note(2, transfer.place(), u64::from(fails) << 1 | u64::from(lies));
        if fails { Err(self.failure(Direction::Read)) } else { Ok(()) }
    }

    /// Other bytes than those of the place.
    fn spoil(&mut self, place: u32, bytes: &mut [u8; PAGE_BYTES]) {
        let before = *bytes;
        match self.random.below(4) {
            0 => bytes.fill(0),
            1 => {
                // Another place's.
                let other = (0..8).find_map(|step| self.places.get(&(place ^ (1 << step))));
                *bytes = other.map_or([0x5A; PAGE_BYTES], |other| *other.bytes);
            }
            2 => bytes[PAGE_BYTES / 2..].fill(0xDD),
            _ => {}
        }
        if *bytes == before {
            let bit = self.random.below(PAGE_BYTES as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    fn write(
        &mut self,
        transfer: &Transfer,
        early: Option<Vec<[u8; PAGE_BYTES]>>,
    ) -> Result<(), Option<io::Error>> {
        let fails = self.chance(self.whims.failed_writes);
        let lost =
            (!fails && self.chance(self.whims.lost_writes)).then(|| self.random.below(transfer.len() as u64));
        let torn = self.random.one_in(2);
        let done = self.random.below(transfer.len() as u64 + 1) as usize;
        let bytes = early.unwrap_or_else(|| copy_of(transfer));
        for (index, bytes) in bytes.into_iter().enumerate() {
            let place = transfer.place() + index as u32;
            let written = if torn { self.random.one_in(2) } else { index < done };
            let known = self.places.contains_key(&place);
            let bytes = match fails {
                true if !written && known && self.random.one_in(2) => None,
                true if !written => Some([0xEE; PAGE_BYTES]),
                false if lost == Some(index as u64) && known => {
                    self.happened.lies += 1;
                    None
                }
                _ => Some(bytes),
            };
            let old = self.places.remove(&place);
            let bytes = bytes.map(Box::new).or(old.map(|old| old.bytes)).expect("old bytes were there");
            self.places.insert(place, Place { bytes, whole: !fails });
        }
        self.happened.writes += 1;
        self.happened.failed_writes += u64::from(fails);
        self.happened.note(3, transfer.place(), u64::from(fails));
        if fails { Err(self.failure(Direction::Write)) } else { Ok(()) }
    }
}

impl Happened {
    fn note(&mut self, what: u64, place: u32, more: u64) {
        let word = what << 60 ^ u64::from(place) << 16 ^ more;
        self.digest = Random::new(self.digest ^ word).next();
    }
}

impl Device for Simulated {
    fn capacity_pages(&self) -> u32 {
        self.inner.capacity
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) {
        self.inner.submit(transfer, urgency);
    }

    fn flush(&self) {
        self.inner.flush();
    }

    fn poll(&self) {
        self.inner.poll();
    }

    fn wait(&self, _queue: u32, still_waiting: &dyn Fn() -> bool) -> Waited {
        self.inner.wait(still_waiting)
    }

    fn serve(&self) {
        self.inner.lock().serving = true;
        self.inner.changed.notify_all();
    }

    fn describe(&self) -> String {
        "the simulated device".into()
    }
}
