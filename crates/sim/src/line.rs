//! Cache lines: who has each, who waits for it, and what it costs to get it.
//!
//! The model is a directory of lines with the states of MESI, kept for each core (the two threads of a core
//! share its caches):
//!
//! - A core that owns a line, or reads one that it has, hits. No other core is involved.
//! - Anything else is a transfer. A line makes one transfer at a time, and cores wait for it in a queue. A
//!   core that got the right to change a line keeps it for the *hold window*, so a tight loop makes several
//!   operations before the line leaves. Transfers to readers of a line that nobody changes are served
//!   together.
//! - The queue is fair, except that a line moves to a waiting core of the same socket a bounded number of
//!   times before it leaves the socket. Caches with a directory in each socket do the same.
//! - A transfer takes its mean time, plus or minus a random part of at most 15 %: cores of a socket are at
//!   different distances.
//! - A failed compare-and-swap takes the line just like a successful one. A loop of load and compare-and-swap
//!   pays two transfers.
//!
//! Not modelled: capacity (a line that a core has stays until another core takes it), prefetching, store
//! buffers (a store waits for its line), the bandwidth of links.

use std::collections::VecDeque;

use crate::machine::{Costs, MachineModel, picoseconds};
use crate::random::Random;

/// How far a transfer's time may lie from its mean, since cores of a socket are at different distances. The
/// random part also keeps threads that do the same work from running in step: real threads never run in step.
pub(crate) const SPREAD_PERCENT: u64 = 15;

/// What an operation does to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineOperation {
    Load,
    Store,
    /// An atomic read-modify-write.
    Update,
}

/// The costs of a machine, in picoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    pub hit: u64,
    pub update: u64,
    pub sibling: u64,
    pub shared: u64,
    pub socket: u64,
    pub own_socket: u64,
    pub own_remote: u64,
    pub remote: u64,
    pub remote_home: u64,
    pub memory: u64,
    pub hold: u64,
    pub pause: u64,
    pub system_call: u64,
    pub wake: u64,
    pub wake_up: u64,
    pub switch: u64,
}

impl Prices {
    pub(crate) fn of(costs: &Costs) -> Self {
        Self {
            hit: picoseconds(costs.hit),
            update: picoseconds(costs.update),
            sibling: picoseconds(costs.sibling),
            shared: picoseconds(costs.shared),
            socket: picoseconds(costs.socket),
            own_socket: picoseconds(costs.own_socket),
            own_remote: picoseconds(costs.own_remote),
            remote: picoseconds(costs.remote),
            remote_home: picoseconds(costs.remote_home),
            memory: picoseconds(costs.memory),
            hold: picoseconds(costs.hold),
            pause: picoseconds(costs.pause),
            system_call: picoseconds(costs.system_call),
            wake: picoseconds(costs.wake),
            wake_up: picoseconds(costs.wake_up),
            switch: picoseconds(costs.switch),
        }
    }

    /// Returns the cost of an access to a line that the core has.
    pub(crate) fn at_hand(&self, access: LineOperation) -> u64 {
        if access == LineOperation::Update { self.update } else { self.hit }
    }
}

/// A place in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub cpu: u32,
    pub core: u32,
    pub socket: u32,
}

impl Position {
    pub(crate) fn of(machine: &MachineModel, cpu: u32) -> Self {
        let core = machine.core_of(cpu);
        Self { cpu, core, socket: machine.socket_of(core) }
    }
}

/// A set of cores.
#[derive(Clone, Debug, Default)]
struct Cores([u64; 8]);

impl Cores {
    fn has(&self, core: u32) -> bool {
        self.0[core as usize / 64] >> (core % 64) & 1 == 1
    }

    fn add(&mut self, core: u32) {
        self.0[core as usize / 64] |= 1 << (core % 64);
    }

    fn clear(&mut self) {
        self.0 = [0; 8];
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        (0..512).filter(|core| self.has(*core))
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; 8]
    }
}

/// A core that waits for a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The thread to tell when the line arrives.
    pub task: usize,
    pub place: Position,
    pub access: LineOperation,
}

/// The immediate answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// The core has the line. The access takes this long.
    Hit(u64),
    /// The line arrives at this time, and the core then has it.
    Arrives(u64),
    /// The request waits in the queue. If a time is given, serve the line then.
    Waits(Option<u64>),
}

/// One cache line.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheLine {
    /// The core that may change the line without asking.
    owner: Option<u32>,
    /// The CPU that changed it last.
    changed_by: Option<u32>,
    /// The cores that may read it, if it has no owner.
    sharers: Cores,
    /// The socket of the first core that touched it.
    home: Option<u32>,
    /// When the line can go to another core.
    free_at: u64,
    /// How often it has stayed in its socket while cores of other sockets waited.
    stayed: u32,
    waiting: VecDeque<Request>,
    /// Whether the caller knows a time at which to serve the queue.
    is_timed: bool,
}

impl CacheLine {
    fn has(&self, core: u32, access: LineOperation) -> bool {
        self.owner == Some(core)
            || access == LineOperation::Load && self.owner.is_none() && self.sharers.has(core)
    }

    /// Begins an access.
    pub(crate) fn request(
        &mut self,
        now: u64,
        request: Request,
        machine: &MachineModel,
        prices: &Prices,
        random: &mut Random,
    ) -> RequestOutcome {
        let Request { place, access, .. } = request;
        let from_sibling =
            self.changed_by.is_some_and(|cpu| cpu != place.cpu && machine.core_of(cpu) == place.core);
        // If other cores wait, the other thread of the core that has the line must queue like them.
        if self.has(place.core, access) && (!from_sibling || self.waiting.is_empty()) {
            if access != LineOperation::Load || from_sibling {
                self.changed_by = Some(place.cpu);
            }
            return RequestOutcome::Hit(
                prices.at_hand(access) + if from_sibling { prices.sibling } else { 0 },
            );
        }
        let is_shared_read = access == LineOperation::Load && self.owner.is_none();
        if self.waiting.is_empty() && (self.free_at <= now || is_shared_read) {
            return RequestOutcome::Arrives(self.transfer(now, place, access, machine, prices, random));
        }
        self.waiting.push_back(request);
        RequestOutcome::Waits(self.next_service())
    }

    /// Returns when to serve the queue, once for each service.
    fn next_service(&mut self) -> Option<u64> {
        (!self.waiting.is_empty() && !self.is_timed).then(|| {
            self.is_timed = true;
            self.free_at
        })
    }

    /// Serves the queue. Calls `arrives` for each request with the time at which the line arrives. Returns
    /// when to serve the queue again.
    pub(crate) fn serve(
        &mut self,
        now: u64,
        machine: &MachineModel,
        prices: &Prices,
        random: &mut Random,
        mut arrives: impl FnMut(Request, u64),
    ) -> Option<u64> {
        self.is_timed = false;
        if let Some(request) = self.next_request(machine) {
            arrives(request, self.transfer(now, request.place, request.access, machine, prices, random));
            // Readers are served together.
            while request.access == LineOperation::Load
                && self.waiting.front().is_some_and(|next| next.access == LineOperation::Load)
                && let Some(next) = self.waiting.pop_front()
            {
                arrives(next, self.transfer(now, next.place, next.access, machine, prices, random));
            }
        }
        self.next_service()
    }

    fn next_request(&mut self, machine: &MachineModel) -> Option<Request> {
        let here = self.owner.map(|core| machine.socket_of(core));
        let local = self.waiting.iter().position(|request| Some(request.place.socket) == here);
        match local {
            Some(at) if at > 0 && self.stayed < machine.processors.local_handovers => {
                self.stayed += 1;
                self.waiting.remove(at)
            }
            _ => {
                let request = self.waiting.pop_front()?;
                if Some(request.place.socket) != here {
                    self.stayed = 0;
                }
                Some(request)
            }
        }
    }

    /// Moves the line to a core. Returns when it arrives.
    fn transfer(
        &mut self,
        now: u64,
        to: Position,
        access: LineOperation,
        machine: &MachineModel,
        prices: &Prices,
        random: &mut Random,
    ) -> u64 {
        let mean = self.distance(to, access, machine, prices);
        let spread = mean * SPREAD_PERCENT / 100;
        let there = now + mean - spread + random.below(2 * spread + 1);
        self.home.get_or_insert(to.socket);
        if access != LineOperation::Load {
            self.owner = Some(to.core);
            self.changed_by = Some(to.cpu);
            self.sharers.clear();
            self.free_at = there + prices.hold;
        } else if let Some(owner) = self.owner.take() {
            self.sharers.clear();
            self.sharers.add(owner);
            self.sharers.add(to.core);
            self.free_at = there;
        } else if self.sharers.is_empty() {
            // The only core that has the line may change it without asking.
            self.owner = Some(to.core);
            self.free_at = there;
        } else {
            self.sharers.add(to.core);
        }
        there
    }

    /// Returns how long the line takes to reach a core.
    fn distance(&self, to: Position, access: LineOperation, machine: &MachineModel, prices: &Prices) -> u64 {
        let across = if self.home == Some(to.socket) { prices.remote } else { prices.remote_home };
        if let Some(owner) = self.owner {
            if owner == to.core {
                return prices.sibling;
            }
            return if machine.socket_of(owner) == to.socket { prices.socket } else { across };
        }
        let others = || self.sharers.iter().filter(|core| *core != to.core);
        let is_near = |core: u32| machine.socket_of(core) == to.socket;
        if self.sharers.is_empty() {
            prices.memory
        } else if access == LineOperation::Load {
            if others().any(is_near) { prices.shared } else { across }
        } else if others().all(is_near) {
            prices.own_socket
        } else {
            prices.own_remote
        }
    }
}
