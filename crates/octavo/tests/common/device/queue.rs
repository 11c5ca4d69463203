//! The transfers of the test device (collected, under way, or kept by order), and their completion.

use std::fs::File;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use octavo::io::{Direction, Submitted, Transfer, Urgency, Waited};

use super::Manner;
use super::bytes::{DeviceBytes, PageBytes, copy_of};
use super::orders::{Orders, TransferOrders};
use super::whims::{Happened, Whims};

/// Any number without a special meaning.
const QUEUE: u32 = 7;

pub(super) struct DeviceQueue {
    capacity: u32,
    manner: Manner,
    begin: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    bytes: DeviceBytes,
    reads: Orders,
    writes: Orders,
    /// The time in calls, for `Driven`.
    now: u64,
    submitted: u64,
    /// The most transfers before the device is full.
    room: usize,
    /// The transfers that are not flushed yet.
    collected: Vec<HeldTransfer>,
    held: Vec<HeldTransfer>,
    /// The transfers that are kept by order until `let_go`.
    kept: Vec<HeldTransfer>,
    /// The number of transfers that were taken from the lists, and whose completion has not returned yet.
    in_hand: usize,
    serving: bool,
    stop: bool,
}

struct HeldTransfer {
    transfer: Transfer,
    due: u64,
    number: u64,
    told: Option<i32>,
    /// The bytes of a write, if the device took them at once.
    early: Option<Vec<PageBytes>>,
}

impl DeviceQueue {
    pub(super) fn new(capacity: u32, seed: u64, manner: Manner, whims: Whims) -> Self {
        let state = State {
            bytes: DeviceBytes::new(seed, whims),
            reads: Orders::default(),
            writes: Orders::default(),
            now: 0,
            submitted: 0,
            room: usize::MAX,
            collected: Vec::new(),
            held: Vec::new(),
            kept: Vec::new(),
            in_hand: 0,
            serving: false,
            stop: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { capacity, manner, begin: Instant::now(), state, changed }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(super) fn manner(&self) -> Manner {
        self.manner
    }

    pub(super) fn with_whims<T>(&self, act: impl FnOnce(&mut Whims) -> T) -> T {
        act(&mut self.lock().bytes.whims)
    }

    pub(super) fn set_file(&self, file: File) {
        self.lock().bytes.set_file(file);
    }

    pub(super) fn with_orders<T>(&self, direction: Direction, act: impl FnOnce(&mut Orders) -> T) -> T {
        act(self.lock().orders(direction))
    }

    pub(super) fn happened(&self) -> Happened {
        self.lock().bytes.happened
    }

    pub(super) fn set_room(&self, transfers: usize) {
        self.lock().room = transfers;
    }

    pub(super) fn under_way(&self) -> usize {
        let state = self.lock();
        state.collected.len() + state.held.len() + state.kept.len() + state.in_hand
    }

    pub(super) fn kept(&self, direction: Direction) -> usize {
        self.lock().kept(direction)
    }

    /// Waits until `n` transfers are kept. Returns `false` after `patience`.
    pub(super) fn wait_held(&self, direction: Direction, n: usize, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        while state.kept(direction) < n {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return false };
            state = self.sleep(state, left);
        }
        true
    }

    /// Puts the kept transfers under way.
    pub(super) fn let_go(&self, direction: Direction) {
        let mut state = self.lock();
        let now = self.now(&mut state);
        let kept = std::mem::take(&mut state.kept);
        let (go, stay) = kept.into_iter().partition(|held| held.transfer.direction() == direction);
        state.kept = stay;
        let go: Vec<HeldTransfer> = go;
        if matches!(self.manner, Manner::Inline | Manner::AtFlush) {
            state.in_hand += go.len();
            drop(state);
            go.into_iter().for_each(|held| self.complete_here(held));
        } else {
            state.held.extend(go.into_iter().map(|held| HeldTransfer { due: now, ..held }));
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(super) fn stop(&self) {
        self.lock().stop = true;
        self.changed.notify_all();
    }

    pub(super) fn serve(&self) {
        self.lock().serving = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // If another thread panicked, that thread reports the panic. Other threads must still be able to end.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn now(&self, state: &mut State) -> u64 {
        if self.manner == Manner::Driven {
            state.now += 1;
            return state.now;
        }
        self.begin.elapsed().as_micros() as u64
    }

    pub(super) fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        let end = transfer.place() as usize + transfer.len();
        assert!(end <= self.capacity as usize, "a transfer past the device's end");
        assert_eq!(transfer.pages().count(), transfer.len(), "a page for each place");
        let direction = transfer.direction();
        let mut state = self.lock();
        if state.is_full() {
            return Submitted::Full(transfer);
        }
        let TransferOrders { errno, delay, hold } = state.orders(direction).begin();
        state.bytes.begin(&transfer);
        let now = self.now(&mut state);
        let (inline, whim, early) = state.draw(&transfer);
        let due = now + whim + delay.as_micros() as u64;
        state.submitted += 1;
        let held = HeldTransfer { due, number: state.submitted, told: errno, early, transfer };
        if hold {
            state.kept.push(held);
            drop(state);
            self.changed.notify_all();
            return Submitted::Accepted;
        }
        match self.manner {
            Manner::AtFlush if urgency == Urgency::Queued => state.collected.push(held),
            Manner::Inline | Manner::AtFlush => {
                state.in_hand += 1;
                drop(state);
                self.complete_here(held);
            }
            _ if inline => {
                state.in_hand += 1;
                drop(state);
                self.complete(held);
            }
            _ => {
                held.transfer.note_queue(QUEUE);
                if urgency == Urgency::Queued {
                    state.collected.push(held);
                    return Submitted::Accepted;
                }
                state.held.push(held);
                drop(state);
                self.changed.notify_all();
            }
        }
        Submitted::Accepted
    }

    pub(super) fn flush(&self) {
        let mut state = self.lock();
        let collected = std::mem::take(&mut state.collected);
        if collected.is_empty() {
            return;
        }
        if self.manner == Manner::AtFlush {
            state.in_hand += collected.len();
            drop(state);
            return collected.into_iter().for_each(|held| self.complete_here(held));
        }
        state.held.extend(collected);
        drop(state);
        self.changed.notify_all();
    }

    /// Completes the transfer that is due first, if it is due by `until`.
    pub(super) fn complete_next(&self, until: u64) -> bool {
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

    /// Waits for the time of the transfer, then completes it.
    fn complete_here(&self, held: HeldTransfer) {
        let now = self.begin.elapsed().as_micros() as u64;
        if held.due > now {
            thread::sleep(Duration::from_micros(held.due - now));
        }
        self.complete(held);
    }

    fn complete(&self, held: HeldTransfer) {
        let HeldTransfer { transfer, told, early, .. } = held;
        let result = self.lock().bytes.end(&transfer, told, early);
        match result {
            // Dropping a transfer fails it.
            Err(None) => drop(transfer),
            Err(Some(error)) => transfer.complete(Err(error)),
            Ok(()) => transfer.complete(Ok(())),
        }
        self.lock().in_hand -= 1;
        self.changed.notify_all();
    }

    pub(super) fn poll(&self) {
        if matches!(self.manner, Manner::Driven | Manner::Served) {
            let now = self.now(&mut self.lock());
            while self.complete_next(now) {}
        }
    }

    pub(super) fn wait(&self, still_waiting: &dyn Fn() -> bool) -> Waited {
        match self.manner {
            Manner::Inline | Manner::AtFlush | Manner::Threads(_) => Waited::Sleep,
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
            // The closure is called without the lock, since it may do anything.
            if !still_waiting() {
                return Waited::Progress;
            }
            state = self.lock();
            let Some(at) = state.first_due() else {
                // Other threads complete the transfer, or have not flushed it yet.
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

    /// Runs a thread of the device's own.
    pub(super) fn work(&self) {
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

impl State {
    fn orders(&mut self, direction: Direction) -> &mut Orders {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }

    fn kept(&self, direction: Direction) -> usize {
        self.kept.iter().filter(|held| held.transfer.direction() == direction).count()
    }

    /// Decides by the whims whether the transfer ends within `submit`, how long it takes, and whether the
    /// device takes the bytes of a write at once.
    fn draw(&mut self, transfer: &Transfer) -> (bool, u64, Option<Vec<PageBytes>>) {
        let DeviceBytes { random, whims, happened, .. } = &mut self.bytes;
        let delay = if whims.delay == 0 { 0 } else { random.below(whims.delay) };
        let delay = if random.one_in(16) { 8 * delay } else { delay };
        let early = (transfer.direction() == Direction::Write && random.one_in(3)).then(|| copy_of(transfer));
        let inline = random.below(1000) < whims.inline;
        happened.note(1, transfer.place(), transfer.len() as u64);
        (inline, delay, early)
    }

    /// Returns whether the device claims to be full, for lack of room or by its whims. It claims this only
    /// while other transfers are under way.
    fn is_full(&mut self) -> bool {
        let under_way = self.collected.len() + self.held.len() + self.kept.len();
        // The exception is a device with no room at all: it claims to be full while it has nothing to do,
        // which breaks the contract.
        if under_way == 0 {
            return self.room == 0;
        }
        let DeviceBytes { random, whims, happened, .. } = &mut self.bytes;
        let full = under_way >= self.room || whims.refused > 0 && random.below(1000) < whims.refused;
        happened.refused += u64::from(full);
        full
    }

    fn first_due(&self) -> Option<usize> {
        (0..self.held.len()).min_by_key(|at| (self.held[*at].due, self.held[*at].number))
    }

    fn take(&mut self, at: usize) -> HeldTransfer {
        self.in_hand += 1;
        let held = self.held.swap_remove(at);
        self.now = self.now.max(held.due);
        let overtaken = self.held.iter().any(|other| other.number < held.number);
        self.bytes.happened.overtaken += u64::from(overtaken);
        held
    }
}
