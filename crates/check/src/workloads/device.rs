//! A device in memory with virtual time. A seed decides when it is late, completes out of order, fails,
//! returns wrong bytes, and stops answering.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use octavo_sim::lock::{Condvar, Mutex, MutexGuard};
use octavo_sim::{Random, now, thread};

use super::super::octavo::PAGE_BYTES;
use super::super::octavo::file::FileBacking;
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
    /// The length, if the device is a file.
    len_bytes: Option<u64>,
    /// The pages of the file at its last sync.
    durable: HashMap<u32, Box<[u8; PAGE_BYTES]>>,
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
            len_bytes: None,
            durable: HashMap::new(),
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
                    let bytes = match self.pages.get(&place) {
                        Some(bytes) => bytes,
                        // A hole.
                        None if self.len_bytes > Some(u64::from(place) * PAGE_BYTES as u64) => {
                            &[0; PAGE_BYTES]
                        }
                        None if self.len_bytes.is_some() => return Err(io::ErrorKind::UnexpectedEof.into()),
                        None => panic!("what is read was written"),
                    };
                    page.copy_in(if is_moved && !is_wrong { bytes } else { &[0xDD; PAGE_BYTES] });
                }
                Direction::Write => {
                    let mut bytes = Box::new([0xEE; PAGE_BYTES]);
                    if is_moved {
                        page.copy_out(&mut bytes);
                    }
                    self.pages.insert(place, bytes);
                    let end = (u64::from(place) + 1) * PAGE_BYTES as u64;
                    self.len_bytes = self.len_bytes.map(|len| len.max(end));
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

/// The device as the backing of a file. Clones share it.
#[derive(Clone)]
pub(crate) struct SlowFile(SlowDevice);

impl SlowFile {
    pub(crate) fn new(manners: Manners, seed: u64) -> (Self, thread::JoinHandle<()>) {
        let (device, thread) = SlowDevice::new(manners, seed);
        device.lock().len_bytes = Some(0);
        (Self(device), thread)
    }

    pub(crate) fn heal(&self) {
        self.0.heal();
    }

    pub(crate) fn end(&self) {
        self.0.end();
    }

    /// Returns a word of the file as it was at the last sync.
    pub(crate) fn durable_word(&self, at: u64) -> u64 {
        let (place, within) = ((at / PAGE_BYTES as u64) as u32, at as usize % PAGE_BYTES);
        let state = self.0.lock();
        state
            .durable
            .get(&place)
            .map_or(0, |page| u64::from_ne_bytes(page[within..within + 8].try_into().expect("eight bytes")))
    }
}

impl Device for SlowFile {
    fn capacity_pages(&self) -> u32 {
        self.0.capacity_pages()
    }

    fn submit(&self, transfer: Transfer, urgency: Urgency) -> Submitted {
        self.0.submit(transfer, urgency)
    }

    fn describe(&self) -> String {
        "the simulated file".into()
    }
}

impl FileBacking for SlowFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.lock().len_bytes.unwrap_or(0))
    }

    fn set_len_bytes(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        state.len_bytes = Some(bytes);
        let (end, within) = (bytes.div_ceil(PAGE_BYTES as u64) as u32, bytes as usize % PAGE_BYTES);
        state.pages.retain(|place, _| *place < end);
        if let (true, Some(last)) = (within != 0, state.pages.get_mut(&(end.wrapping_sub(1)))) {
            last[within..].fill(0);
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut state = self.0.lock();
        for (place, page) in &mut state.pages {
            let start = u64::from(*place) * PAGE_BYTES as u64;
            let within = |at: u64| at.saturating_sub(start).min(PAGE_BYTES as u64) as usize;
            page[within(offset)..within(offset + len)].fill(0);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.0.lock();
        let pages = state.pages.clone();
        state.durable = pages;
        Ok(())
    }
}
