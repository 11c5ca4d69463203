//! The simulated machine at work: threads on virtual CPUs, and one clock for each CPU.
//!
//! All threads of a simulation are coroutines of one real thread. The one whose CPU has the earliest time goes on, and stops
//! before its next operation on a shared word unless it is still the earliest. So operations happen in the order of virtual time;
//! where times are equal, the seed decides. Nothing else decides anything: a run is a function of its machine, its seed and its
//! work.
//!
//! A CPU runs one thread at a time, and the next one when that blocks, or at the end of a slice. A thread that waits for a cache
//! line keeps its CPU.
//!
//! Memory is sequentially consistent here: what a weaker order allows is loom's to find.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

use crate::coroutine::{Coroutine, stop};
use crate::line::{Access, Line, Outcome, Place, Prices, Request};
use crate::machine::Machine;
use crate::profile::{Profile, Report};
use crate::random::Random;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// How long a thread runs on while others wait for its CPU.
const SLICE: u64 = 4_000_000_000;
const PICOSECONDS: u64 = 1000;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Simulation>>> = const { RefCell::new(None) };
}

/// Names a thread of a simulation.
pub(crate) type TaskId = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Runs, or could if its CPU were free.
    Ready,
    /// Waits for a wake-up, or for the time of its timer.
    Blocked,
    Ended,
}

#[derive(Debug)]
struct Task {
    name: Rc<str>,
    cpu: usize,
    /// `None` while it runs, and after its end.
    coroutine: Option<Coroutine>,
    status: Status,
    /// It was unparked, and has not parked since.
    has_token: bool,
    is_parked: bool,
    /// Counts its waits, so that an old timer wakes nobody.
    waits: u64,
    timed_out: bool,
    joiner: Option<TaskId>,
    /// The access that waits for its line.
    stalled: Option<Stalled>,
}

/// An access that waits for its line.
#[derive(Clone, Copy, Debug)]
struct Stalled {
    place: usize,
    line: usize,
    access: Access,
    since: u64,
}

#[derive(Debug)]
struct Cpu {
    place: Place,
    now: u64,
    busy: u64,
    running: Option<TaskId>,
    ready: VecDeque<TaskId>,
    slice_ends: u64,
    /// A restartable sequence runs: the CPU stays with its thread.
    in_section: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// This CPU's thread goes on.
    Go(usize),
    /// A timer of this thread, set at its wait of this number.
    Timer(TaskId, u64),
    /// The queue of this line is served.
    Serve(usize),
}

/// What happens next: when, the seed's word on ties, and what.
type Event = Reverse<(u64, u64, What)>;

#[derive(Debug)]
struct State {
    machine: Machine,
    prices: Prices,
    random: Random,
    cpus: Vec<Cpu>,
    tasks: Vec<Task>,
    events: BinaryHeap<Event>,
    lines: Vec<Line>,
    /// The lines' numbers by address. Lines are numbered as they are touched, so that no address decides anything.
    line_numbers: HashMap<usize, usize>,
    futexes: HashMap<usize, VecDeque<TaskId>>,
    running: TaskId,
    profile: Profile,
}

/// A simulation that runs on this thread.
#[derive(Debug)]
pub(crate) struct Simulation {
    state: RefCell<State>,
}

/// Why a simulation came to no end.
#[derive(Debug)]
pub struct Deadlock {
    /// The threads that wait, by name.
    pub waiting: Vec<String>,
}

impl std::fmt::Display for Deadlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "every thread of the simulation waits: {}", self.waiting.join(", "))
    }
}

impl std::error::Error for Deadlock {}

/// Runs `work` as the first thread, on CPU 0, of a simulation. Returns its result, and where the time went.
///
/// # Errors
/// [`Deadlock`] where all threads wait for each other.
///
/// # Panics
/// Where `work` does, and inside of another simulation.
pub fn run<T: 'static>(
    machine: &Machine,
    seed: u64,
    work: impl FnOnce() -> T + 'static,
) -> Result<(T, Report), Deadlock> {
    let simulation = Rc::new(Simulation { state: RefCell::new(State::new(machine, seed)) });
    CURRENT.with_borrow_mut(|current| {
        assert!(current.is_none(), "a simulation runs on this thread already");
        *current = Some(Rc::clone(&simulation));
    });
    let result = Rc::new(Cell::new(None));
    let hand = Rc::clone(&result);
    let first =
        simulation.spawn("main", Some(0), move || hand.set(Some(catch_unwind(AssertUnwindSafe(work)))));
    let ended = first.map(|first| simulation.go_on_until_end_of(first));
    // Coroutines that are left over unwind here. Each has stopped inside of `with`.
    let left: Vec<_> =
        simulation.state.borrow_mut().tasks.iter_mut().filter_map(|task| task.coroutine.take()).collect();
    drop(left);
    CURRENT.with_borrow_mut(|current| *current = None);
    ended.expect("memory for the first stack")?;
    let value = result.take().expect("the first thread has ended");
    let report = simulation.state.borrow().report();
    match value {
        Ok(value) => Ok((value, report)),
        Err(panic) => resume_unwind(panic),
    }
}

/// Calls `f` with the simulation of this thread; `None` outside of all.
#[inline]
fn with<T>(f: impl FnOnce(&Simulation) -> T) -> Option<T> {
    // A thread that unwinds does not stop any more: its panic is on its stack, and is counted for the real thread.
    CURRENT.with_borrow(|current| current.as_deref().filter(|_| !std::thread::panicking()).map(f))
}

/// As [`with`], for what makes no sense outside. A thread that unwinds goes on without.
fn within<T>(f: impl FnOnce(&Simulation) -> T) -> Option<T> {
    let done = with(f);
    assert!(
        done.is_some() || std::thread::panicking(),
        "threads, and locks that wait, belong to a simulation"
    );
    done
}

/// An access to the word at this address begins, by the code at `from`. It returns when the access is to be made; whatever the
/// caller does next, up to its next call of this module, happens at once.
pub(crate) fn access(address: usize, access: Access, from: &'static Location<'static>) {
    with(|simulation| simulation.access(address, access, from));
}

/// Plain work of so long on this CPU: more where the other thread of its core works too.
pub fn work(time: Duration) {
    with(|simulation| simulation.state.borrow_mut().work(picoseconds(time)));
}

/// The time on this CPU.
pub fn now() -> Duration {
    with(|simulation| Duration::from_nanos(simulation.state.borrow().now() / PICOSECONDS)).unwrap_or_default()
}

/// The CPU that this thread is on; 0 outside of a simulation.
pub fn current_cpu() -> u32 {
    with(|simulation| simulation.state.borrow().cpu().place.cpu).unwrap_or(0)
}

/// The CPUs of the machine; 1 outside of a simulation.
pub fn possible_cpus() -> usize {
    with(|simulation| simulation.state.borrow().cpus.len()).unwrap_or(1)
}

/// Bytes that follow from the seed.
pub fn fill_random(bytes: &mut [u8]) {
    with(|simulation| {
        let random = &mut simulation.state.borrow_mut().random;
        bytes
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&random.number().to_le_bytes()[..chunk.len()]));
    });
}

/// A pause of a loop that spins.
pub fn spin_hint() {
    with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let pause = state.prices.pause;
        state.spend(pause);
    });
}

/// Lets another thread of this CPU run, if one can.
pub(crate) fn yield_now() {
    with(Simulation::yield_now);
}

/// Runs `section` as one piece: this CPU runs no other thread meanwhile.
pub fn in_section<T>(section: impl FnOnce() -> T) -> T {
    struct Leave(Option<usize>);
    impl Drop for Leave {
        fn drop(&mut self) {
            if let Some(cpu) = self.0 {
                with(|simulation| simulation.state.borrow_mut().cpus[cpu].in_section = false);
            }
        }
    }
    let cpu = with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let cpu = state.tasks[state.running].cpu;
        state.cpus[cpu].in_section = true;
        cpu
    });
    let _leave = Leave(cpu);
    section()
}

/// Whether a CPU is inside of [`in_section`].
pub fn is_in_section(cpu: u32) -> bool {
    with(|simulation| simulation.state.borrow().cpus[cpu as usize].in_section).unwrap_or(false)
}

pub(crate) fn spawn(
    name: &str,
    cpu: Option<usize>,
    work: impl FnOnce() + 'static,
) -> std::io::Result<TaskId> {
    within(|simulation| simulation.spawn(name, cpu, work))
        .unwrap_or(Err(std::io::ErrorKind::Unsupported.into()))
}

pub(crate) fn current() -> Option<TaskId> {
    with(|simulation| simulation.state.borrow().running)
}

/// Sleeps until a wake-up, or for so long. Returns at once where a wake-up came before.
pub(crate) fn park(time: Option<Duration>) {
    within(|simulation| simulation.park(time));
}

/// Sleeps for so long, whatever wakes it.
pub(crate) fn sleep(time: Duration) {
    within(|simulation| {
        let timer = Some(simulation.state.borrow().now() + picoseconds(time));
        simulation.block(timer);
    });
}

pub(crate) fn unpark(task: TaskId) {
    with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        state.tasks[task].has_token = true;
        if state.tasks[task].is_parked {
            state.wake(task);
        }
    });
}

pub(crate) fn has_ended(task: TaskId) -> bool {
    with(|simulation| simulation.state.borrow().tasks[task].status == Status::Ended).unwrap_or(true)
}

/// Waits for the end of a thread.
pub(crate) fn join(task: TaskId) {
    within(|simulation| {
        while !has_ended(task) {
            let mut state = simulation.state.borrow_mut();
            let running = state.running;
            state.tasks[task].joiner = Some(running);
            drop(state);
            simulation.block(None);
        }
    });
}

/// Sleeps until [`futex_wake`] of the same word, if `is_still` holds; at most for so long.
pub(crate) fn futex_wait(word: usize, time: Option<Duration>, is_still: impl FnOnce() -> bool) {
    within(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let call = state.prices.system_call;
        state.spend(call);
        if !is_still() {
            return;
        }
        let running = state.running;
        state.futexes.entry(word).or_default().push_back(running);
        let timer = time.map(|time| state.now() + picoseconds(time));
        drop(state);
        simulation.block(timer);
        let mut state = simulation.state.borrow_mut();
        if state.tasks[running].timed_out
            && let Some(queue) = state.futexes.get_mut(&word)
        {
            queue.retain(|task| *task != running);
        }
    });
}

/// Wakes up to `most` threads that sleep on this word.
pub(crate) fn futex_wake(word: usize, most: usize) {
    with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let call = state.prices.system_call;
        state.spend(call);
        for _ in 0..most {
            let Some(task) = state.futexes.get_mut(&word).and_then(VecDeque::pop_front) else { return };
            state.wake(task);
        }
    });
}

fn picoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(PICOSECONDS).min(u64::MAX / 4)
}

impl Simulation {
    fn spawn(
        &self,
        name: &str,
        cpu: Option<usize>,
        work: impl FnOnce() + 'static,
    ) -> std::io::Result<TaskId> {
        let coroutine = Coroutine::new(work)?;
        let mut state = self.state.borrow_mut();
        let cpu = cpu.unwrap_or_else(|| state.least_loaded()) % state.cpus.len();
        let task = state.tasks.len();
        state.tasks.push(Task {
            name: name.into(),
            cpu,
            coroutine: Some(coroutine),
            status: Status::Blocked,
            has_token: false,
            is_parked: false,
            waits: 0,
            timed_out: false,
            joiner: None,
            stalled: None,
        });
        if task == 0 {
            state.make_ready(task, 0);
        } else {
            state.wake(task);
        }
        Ok(task)
    }

    fn go_on_until_end_of(&self, first: TaskId) -> Result<(), Deadlock> {
        loop {
            let mut state = self.state.borrow_mut();
            if state.tasks[first].status == Status::Ended {
                return Ok(());
            }
            let Some(Reverse((at, _, what))) = state.events.pop() else { return Err(state.deadlock()) };
            match what {
                What::Serve(line) => state.serve(line, at),
                What::Timer(task, wait) => state.time_out(task, wait, at),
                What::Go(cpu) => {
                    state.cpus[cpu].now = state.cpus[cpu].now.max(at);
                    let task = state.cpus[cpu].running.expect("a CPU that goes on has a thread");
                    state.running = task;
                    let mut coroutine =
                        state.tasks[task].coroutine.take().expect("a thread that goes on has not ended");
                    drop(state);
                    if coroutine.resume() {
                        self.state.borrow_mut().end(task);
                    } else {
                        self.state.borrow_mut().tasks[task].coroutine = Some(coroutine);
                    }
                }
            }
        }
    }

    fn access(&self, address: usize, access: Access, from: &'static Location<'static>) {
        let mut state = self.state.borrow_mut();
        if state.others_are_earlier() || state.is_slice_over() {
            state.go_later();
            drop(state);
            stop();
            state = self.state.borrow_mut();
        }
        if !state.request(address, access, from) {
            drop(state);
            stop();
            self.state.borrow_mut().line_is_there();
        }
    }

    fn yield_now(&self) {
        let mut state = self.state.borrow_mut();
        let call = state.prices.system_call;
        state.spend(call);
        state.end_slice();
        state.go_later();
        drop(state);
        stop();
    }

    fn park(&self, time: Option<Duration>) {
        let mut state = self.state.borrow_mut();
        let call = state.prices.system_call;
        state.spend(call);
        let running = state.running;
        if std::mem::take(&mut state.tasks[running].has_token) {
            return;
        }
        let timer = time.map(|time| state.now() + picoseconds(time));
        state.tasks[running].is_parked = true;
        drop(state);
        self.block(timer);
        let task = &mut self.state.borrow_mut().tasks[running];
        (task.has_token, task.is_parked) = (false, false);
    }

    /// The running thread gives up its CPU until it is woken, or until that time.
    fn block(&self, timer: Option<u64>) {
        let mut state = self.state.borrow_mut();
        let running = state.running;
        let task = &mut state.tasks[running];
        task.status = Status::Blocked;
        task.timed_out = false;
        task.waits += 1;
        let (cpu, waits) = (task.cpu, task.waits);
        if let Some(at) = timer {
            state.push(at, What::Timer(running, waits));
        }
        state.cpus[cpu].running = None;
        state.dispatch(cpu);
        drop(state);
        stop();
    }
}

impl State {
    fn new(machine: &Machine, seed: u64) -> Self {
        let cpu = |number| Cpu {
            place: Place::of(machine, number),
            now: 0,
            busy: 0,
            running: None,
            ready: VecDeque::new(),
            slice_ends: 0,
            in_section: false,
        };
        Self {
            prices: Prices::of(&machine.nanoseconds),
            cpus: (0..machine.cpus()).map(cpu).collect(),
            machine: machine.clone(),
            random: Random::new(seed),
            tasks: Vec::new(),
            events: BinaryHeap::new(),
            lines: Vec::new(),
            line_numbers: HashMap::new(),
            futexes: HashMap::new(),
            running: 0,
            profile: Profile::default(),
        }
    }

    fn cpu(&self) -> &Cpu {
        &self.cpus[self.tasks[self.running].cpu]
    }

    fn now(&self) -> u64 {
        self.cpu().now
    }

    fn push(&mut self, at: u64, what: What) {
        let tie = self.random.number();
        self.events.push(Reverse((at, tie, what)));
    }

    /// The running thread's CPU is busy for so long.
    fn spend(&mut self, time: u64) {
        let cpu = self.tasks[self.running].cpu;
        self.cpus[cpu].now += time;
        self.cpus[cpu].busy += time;
    }

    fn work(&mut self, time: u64) {
        let cpu = self.tasks[self.running].cpu;
        let cores = (self.machine.processors.sockets * self.machine.processors.cores) as usize;
        let sibling = if cpu < cores { cpu + cores } else { cpu - cores };
        let is_shared = self.cpus.get(sibling).is_some_and(|other| other.running.is_some());
        let factor = if is_shared { self.machine.processors.shared_core_factor } else { 1.0 };
        self.spend((time as f64 * factor).round() as u64);
        self.profile.work(time);
    }

    fn others_are_earlier(&mut self) -> bool {
        let now = self.now();
        match self.events.peek() {
            Some(Reverse((at, ..))) => *at < now || *at == now && self.random.below(2) == 0,
            None => false,
        }
    }

    /// The running thread goes on at its CPU's time, after the others whose time is earlier; or another thread of the CPU does, if
    /// the slice is over.
    fn go_later(&mut self) {
        let cpu = self.tasks[self.running].cpu;
        if self.is_slice_over() {
            let running = self.cpus[cpu].running.take().expect("the CPU of a running thread");
            self.cpus[cpu].ready.push_back(running);
            self.dispatch(cpu);
        } else {
            self.push(self.cpus[cpu].now, What::Go(cpu));
        }
    }

    fn is_slice_over(&self) -> bool {
        let one = self.cpu();
        one.now >= one.slice_ends && !one.ready.is_empty() && !one.in_section
    }

    fn end_slice(&mut self) {
        let cpu = self.tasks[self.running].cpu;
        self.cpus[cpu].slice_ends = self.cpus[cpu].now;
    }

    /// Gives a CPU without a thread the next one that can run.
    fn dispatch(&mut self, cpu: usize) {
        let switch = self.prices.switch;
        let one = &mut self.cpus[cpu];
        if one.running.is_none()
            && let Some(task) = one.ready.pop_front()
        {
            one.now += switch;
            one.busy += switch;
            one.slice_ends = one.now + SLICE;
            one.running = Some(task);
            let now = one.now;
            self.push(now, What::Go(cpu));
        }
    }

    /// Wakes a thread that is blocked.
    fn wake(&mut self, task: TaskId) {
        if self.tasks[task].status == Status::Blocked {
            let cost = self.prices.wake;
            self.spend(cost);
            self.make_ready(task, self.now() + self.prices.wake_up);
        }
    }

    fn make_ready(&mut self, task: TaskId, at: u64) {
        self.tasks[task].status = Status::Ready;
        let cpu = self.tasks[task].cpu;
        self.cpus[cpu].ready.push_back(task);
        if self.cpus[cpu].running.is_none() {
            self.cpus[cpu].now = self.cpus[cpu].now.max(at);
            self.dispatch(cpu);
        }
    }

    fn time_out(&mut self, task: TaskId, wait: u64, at: u64) {
        if self.tasks[task].status == Status::Blocked && self.tasks[task].waits == wait {
            self.tasks[task].timed_out = true;
            self.make_ready(task, at);
        }
    }

    fn end(&mut self, task: TaskId) {
        let cpu = self.tasks[task].cpu;
        self.tasks[task].status = Status::Ended;
        if let Some(joiner) = self.tasks[task].joiner.take() {
            self.wake(joiner);
        }
        self.cpus[cpu].running = None;
        self.dispatch(cpu);
    }

    /// The CPU with the fewest threads.
    fn least_loaded(&self) -> usize {
        let mut load = vec![0_usize; self.cpus.len()];
        self.tasks.iter().filter(|task| task.status != Status::Ended).for_each(|task| load[task.cpu] += 1);
        (0..load.len()).min_by_key(|cpu| load[*cpu]).unwrap_or(0)
    }

    fn line_of(&mut self, address: usize) -> usize {
        let next = self.lines.len();
        let line = *self.line_numbers.entry(address / LINE_BYTES).or_insert(next);
        if line == next {
            self.lines.push(Line::default());
        }
        line
    }

    /// Begins an access of the running thread. False where the thread has to stop until its line is there.
    fn request(&mut self, address: usize, access: Access, from: &'static Location<'static>) -> bool {
        let (line, now) = (self.line_of(address), self.now());
        let request = Request { task: self.running, place: self.cpu().place, access };
        let place = self.profile.place(from);
        match self.lines[line].request(now, request, &self.machine, &self.prices, &mut self.random) {
            Outcome::Hit(cost) => {
                self.spend(cost);
                self.profile.hit(place, line, cost);
                return true;
            }
            Outcome::Arrives(at) => {
                let cpu = self.tasks[self.running].cpu;
                self.push(at, What::Go(cpu));
            }
            Outcome::Waits(serve) => {
                if let Some(at) = serve {
                    self.push(at, What::Serve(line));
                }
            }
        }
        let running = self.running;
        self.tasks[running].stalled = Some(Stalled { place, line, access, since: now });
        false
    }

    fn line_is_there(&mut self) {
        let running = self.running;
        let Stalled { place, line, access, since } =
            self.tasks[running].stalled.take().expect("a thread that waited for a line");
        let waited = self.now() - since;
        let cost = self.prices.at_hand(access);
        let cpu = self.tasks[running].cpu;
        self.cpus[cpu].busy += waited;
        self.spend(cost);
        self.profile.stall(place, line, waited + cost);
    }

    fn serve(&mut self, line: usize, at: u64) {
        let mut arrivals = Vec::new();
        let next =
            self.lines[line].serve(at, &self.machine, &self.prices, &mut self.random, |request, there| {
                arrivals.push((request.task, there));
            });
        for (task, there) in arrivals {
            let cpu = self.tasks[task].cpu;
            self.push(there, What::Go(cpu));
        }
        if let Some(at) = next {
            self.push(at, What::Serve(line));
        }
    }

    fn deadlock(&self) -> Deadlock {
        let waits = |task: &&Task| task.status == Status::Blocked;
        Deadlock { waiting: self.tasks.iter().filter(waits).map(|task| task.name.to_string()).collect() }
    }

    fn report(&self) -> Report {
        let times = self.cpus.iter().map(|cpu| (cpu.now, cpu.busy)).collect();
        self.profile.report(&self.machine, times)
    }
}

#[cfg(test)]
mod tests;
