//! A device in memory with virtual time. A seed decides when it is late, completes out of order, fails,
//! returns wrong bytes, and stops answering.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use octavo_sim::lock::{Condvar, Mutex, MutexGuard};
use octavo_sim::{Random, now, thread};

use super::super::octavo::PAGE_BYTES;
use super::super::octavo::io::{Device, Direction, Submitted, Transfer, Urgency};

const EIO: i32 = 5;
/// How long the device's thread sleeps if it has nothing to do.
const REST: Duration = Duration::from_millis(100);

/// How a device behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manners {
    pub places: u32,
    /// The longest time of a transfer.
    pub latency: Duration,
    /// The transfer time of a page, which sets the bandwidth.
    pub page: Duration,
    /// Out of a thousand transfers: how many end within the call that submits them, fail, and are held back
    /// for `silence`.
    pub inline: u64,
    pub failed: u64,
    pub silent: u64,
    /// Out of a thousand pages read: how many return wrong bytes.
    pub wrong: u64,
    pub silence: Duration,
}

impl Manners {
    /// A device for a few pages, which may be quick, late, or fail, but always answers.
    pub(crate) fn for_few_pages(random: &mut Random) -> Self {
        Self {
            places: 64,
            latency: Duration::from_micros([0, 0, 1, 10][random.below(4) as usize]),
            page: Duration::ZERO,
            inline: [0, 300, 1000][random.below(3) as usize],
            failed: if random.below(4) == 0 { 100 } else { 0 },
            silent: 0,
            wrong: 0,
            silence: Duration::ZERO,
        }
    }
}

/// The device. Clones share it.
#[derive(Clone)]
pub(crate) struct SlowDevice(Arc<DeviceState>);

struct DeviceState {
    manners: Manners,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    random: Random,
    pages: HashMap<u32, Box<[u8; PAGE_BYTES]>>,
    under_way: Vec<(Duration, Transfer)>,
    busy_until: Duration,
    is_honest: bool,
    has_ended: bool,
}

impl SlowDevice {
    pub(crate) fn new(manners: Manners, seed: u64) -> (Self, thread::JoinHandle<()>) {
        let state = State {
            random: Random::new(seed),
            pages: HashMap::new(),
            under_way: Vec::new(),
            busy_until: Duration::ZERO,
            is_honest: false,
            has_ended: false,
        };
        let device =
            Self(Arc::new(DeviceState { manners, state: Mutex::new(state), changed: Condvar::default() }));
        let serving = device.clone();
        let work = move || serving.serve_until_its_end();
        let thread = thread::Builder::new().name("device".into()).spawn(work).expect("memory for a stack");
        (device, thread)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock()
    }

    /// Stops failures and silences from now on.
    pub(crate) fn heal(&self) {
        self.lock().is_honest = true;
        self.0.changed.notify_one();
    }

    /// Ends the device's thread once all transfers are done.
    pub(crate) fn end(&self) {
        self.lock().has_ended = true;
        self.0.changed.notify_one();
    }

    fn serve_until_its_end(&self) {
        let mut state = self.lock();
        loop {
            let first = (0..state.under_way.len()).min_by_key(|at| state.under_way[*at].0);
            match first {
                Some(at) if state.is_honest || state.under_way[at].0 <= now() => {
                    let (_, transfer) = state.under_way.swap_remove(at);
                    let result = state.do_it(&transfer, self.0.manners);
                    drop(state);
                    transfer.complete(result);
                    state = self.lock();
                }
                None if state.has_ended => return,
                _ => {
                    let left = first.map_or(REST, |at| state.under_way[at].0.saturating_sub(now()));
                    state = self.0.changed.wait_for(state, left);
                }
            }
        }
    }
}

impl State {
    fn one_of_a_thousand(&mut self, chances: u64) -> bool {
        !self.is_honest && self.random.below(1000) < chances
    }

    fn do_it(&mut self, transfer: &Transfer, manners: Manners) -> io::Result<()> {
        let fails = self.one_of_a_thousand(manners.failed);
        // A failing transfer may have moved its first pages.
        let done = self.random.below(transfer.len() as u64 + 1) as usize;
        for (index, page) in transfer.pages().enumerate() {
            let place = transfer.place() + index as u32;
            let is_moved = !fails || index < done;
            match transfer.direction() {
                Direction::Read => {
                    let is_wrong = manners.wrong > 0 && self.one_of_a_thousand(manners.wrong);
                    let bytes = self.pages.get(&place).expect("what is read was written");
                    page.copy_in(if is_moved && !is_wrong { bytes } else { &[0xDD; PAGE_BYTES] });
                }
                Direction::Write => {
                    let mut bytes = Box::new([0xEE; PAGE_BYTES]);
                    if is_moved {
                        page.copy_out(&mut bytes);
                    }
                    self.pages.insert(place, bytes);
                }
            }
        }
        if fails { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }
}

impl Device for SlowDevice {
    fn capacity_pages(&self) -> u32 {
        self.0.manners.places
    }

    fn submit(&self, transfer: Transfer, _urgency: Urgency) -> Submitted {
        let manners = self.0.manners;
        let mut state = self.lock();
        if state.one_of_a_thousand(manners.inline) {
            let result = state.do_it(&transfer, manners);
            drop(state);
            transfer.complete(result);
            return Submitted::Accepted;
        }
        let begins = state.busy_until.max(now());
        state.busy_until = begins + manners.page * transfer.len() as u32;
        let late = state.random.below(manners.latency.as_nanos() as u64 + 1);
        let silence = if state.one_of_a_thousand(manners.silent) { manners.silence } else { Duration::ZERO };
        let ends = state.busy_until + Duration::from_nanos(late) + silence;
        state.under_way.push((ends, transfer));
        drop(state);
        self.0.changed.notify_one();
        Submitted::Accepted
    }

    fn describe(&self) -> String {
        "the simulated device".into()
    }
}
