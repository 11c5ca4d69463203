//! The running simulation: threads on virtual CPUs, and one clock for each CPU.
//!
//! All threads of a simulation are coroutines of one real thread. The thread whose CPU has the earliest time
//! runs. Before its next operation on a shared word, it stops, unless its CPU still has the earliest time. So
//! operations happen in the order of virtual time. If times are equal, the seed decides. Nothing else has an
//! influence: a run is a function of its machine, its seed and its work.
//!
//! A CPU runs one thread at a time. It changes to the next thread when the running one blocks, or at the end
//! of a slice. A thread that waits for a cache line keeps its CPU.
//!
//! Memory is sequentially consistent here: loom finds what a weaker order allows.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::time::Duration;

use crate::coroutine::{Coroutine, stop};
use crate::explorer::{Explorer, NextThread, Schedule, Step, ThreadChoice, next_path};
use crate::line::LineOperation;
use crate::machine::MachineModel;
use crate::memory::Scope;
use crate::profile::Report;
use crate::state::{EventKind, State};
use crate::stopped::{Deadlock, Stopped};
use crate::task::{Task, TaskId, TaskStatus};

const PICOSECONDS: u64 = 1000;

/// If a thread makes this many operations while it unwinds, it counts as waiting forever. No other thread
/// runs while a thread unwinds, so a lock that a stopped thread holds is never released.
const MOST_UNWOUND: u64 = 1 << 24;

thread_local! {
    /// Operations of the thread that unwinds.
    static UNWOUND: Cell<u64> = const { Cell::new(0) };
    static CURRENT: RefCell<Option<Rc<Simulation>>> = const { RefCell::new(None) };
}

/// A simulation that runs on this thread.
#[derive(Debug)]
pub(crate) struct Simulation {
    seed: u64,
    state: RefCell<State>,
}

/// Runs `work` as the first thread of a simulation, on CPU 0. Returns its result, and where the time went.
///
/// # Errors
/// [`Stopped::Deadlock`] if all threads wait for each other, and [`Stopped::NoHeap`] if the run has no memory
/// of its own.
///
/// # Panics
/// If `work` panics, or inside of another simulation.
pub fn run<T: 'static>(
    machine: &MachineModel,
    seed: u64,
    work: impl FnOnce() -> T + 'static,
) -> Result<(T, Report), Stopped> {
    let memory = Scope::enter()?;
    let simulation = Simulation::begin(seed, State::new(machine, seed));
    let result = Rc::new(Cell::new(None));
    let hand = Rc::clone(&result);
    let first =
        simulation.spawn("main", Some(0), move || hand.set(Some(catch_unwind(AssertUnwindSafe(work)))));
    let ended = first.map(|first| simulation.go_on_until_end_of(first));
    // Coroutines that have not ended unwind here. Each has stopped inside `with`.
    drop(simulation.take_left());
    CURRENT.with_borrow_mut(|current| *current = None);
    ended.expect("memory for the first stack")?;
    let value = result.take().expect("the first thread has ended");
    let report = simulation.state.borrow().report();
    memory.sufficed()?;
    match value {
        Ok(value) => Ok((value, report)),
        Err(panic) => resume_unwind(panic),
    }
}

/// The outcome of an exploration.
#[derive(Debug)]
pub struct Explored<T> {
    /// The result of its work.
    pub result: Result<T, Stopped>,
    /// Operations on shared words.
    pub steps: u64,
    /// How often the running thread changed.
    pub switches: u64,
    /// All steps, if they were to be kept.
    pub trace: Vec<Step>,
    /// The choices of a given schedule.
    path: Vec<ThreadChoice>,
}

/// How to explore.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// The number of CPUs.
    pub cpus: u32,
    /// How the next thread is chosen.
    pub schedule: Schedule,
    /// The seed of these choices, and of everything else that is random.
    pub seed: u64,
    /// The most operations on shared words.
    pub most_steps: u64,
    /// Whether to keep all steps.
    pub is_traced: bool,
}

/// Runs `work` under a chosen schedule. A panic on any thread ends the run.
///
/// A thread that panics may never finish unwinding, because another thread holds what it waits for. Then the
/// standard library counts the calling thread as panicking from there on, so that no other simulation can run
/// on it. If panics are to be expected, give each call a thread of its own.
///
/// # Panics
/// Inside of another simulation, on a thread that counts as panicking, and if the kernel has no memory for a
/// stack.
pub fn explore<T: 'static>(exploration: &Exploration, work: impl FnOnce() -> T + 'static) -> Explored<T> {
    assert!(!std::thread::panicking(), "give each exploration that may panic a thread of its own");
    let Exploration { cpus, ref schedule, seed, most_steps, is_traced } = *exploration;
    let memory = match Scope::enter() {
        Ok(memory) => memory,
        Err(reason) => {
            let (trace, path) = (Vec::new(), Vec::new());
            return Explored { result: Err(reason.into()), steps: 0, switches: 0, trace, path };
        }
    };
    let mut machine = MachineModel::named("haswell-ep").expect("it comes along");
    (machine.processors.sockets, machine.processors.cores, machine.processors.threads) = (1, cpus, 1);
    let mut state = State::new(&machine, seed);
    state.explorer = Some(Box::new(Explorer::new(schedule.clone(), seed, most_steps, is_traced)));
    let simulation = Simulation::begin(seed, state);
    let result = Rc::new(Cell::new(None));
    let hand = Rc::clone(&result);
    let first = simulation
        .spawn("main", Some(0), move || match catch_unwind(AssertUnwindSafe(work)) {
            Ok(value) => hand.set(Some(value)),
            Err(panic) => note_panic(&*panic),
        })
        .expect("memory for the first stack");
    let ended = simulation.explore_until_end_of(first);
    let left = simulation.take_left();
    let mut explorer = *simulation.state.borrow_mut().explorer.take().expect("it explored");
    match ended {
        Ok(()) => drop(left),
        // After a failure, the state may be broken, so these coroutines must not run. They do not unwind.
        Err(_) => left.into_iter().for_each(std::mem::forget),
    }
    CURRENT.with_borrow_mut(|current| *current = None);
    let result = ended
        .and_then(|()| memory.sufficed().map_err(Stopped::from))
        .map(|()| result.take().expect("the first thread has ended"));
    let trace = explorer.trace.take().unwrap_or_default();
    let Explorer { steps, switches, .. } = explorer;
    Explored { result, steps, switches, trace, path: explorer.into_path() }
}

/// Tries the schedules of `work` with a bounded number of preemptions, one after the other. Returns how many
/// were tried, whether these were all, and the first that did not end well.
pub fn explore_all<T: 'static, W: FnOnce() -> T + 'static>(
    exploration: &Exploration,
    preemptions: u32,
    most_schedules: u64,
    work: impl Fn() -> W,
) -> (u64, bool, Option<Explored<T>>) {
    let mut path = Some(Vec::new());
    let mut tried = 0;
    while let Some(next) = path {
        if tried == most_schedules {
            return (tried, false, None);
        }
        let schedule = Schedule::Given { path: next, preemptions };
        let explored = explore(&Exploration { schedule, ..exploration.clone() }, work());
        tried += 1;
        if explored.result.is_err() {
            return (tried, false, Some(explored));
        }
        path = next_path(explored.path);
    }
    (tried, true, None)
}

/// Notes that a thread has panicked. This ends an exploration.
pub(crate) fn note_panic(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_string());
    let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let thread = state.tasks[state.running].name.to_string();
        if let Some(explorer) = &mut state.explorer {
            explorer.failed.get_or_insert(Stopped::Panicked { thread, message });
        }
    });
}

/// Begins an access to memory that is no shared word. In an exploration, another thread may run first.
/// Otherwise, it costs nothing.
#[track_caller]
pub fn reach_bytes() {
    let from = Location::caller();
    with(|simulation| {
        if simulation.state.borrow().explorer.is_some() {
            simulation.access(0, LineOperation::Load, from);
        }
    });
}

/// Returns whether schedules are explored. If so, threads need not spin before they sleep.
pub(crate) fn is_exploring() -> bool {
    with(|simulation| simulation.state.borrow().explorer.is_some()).unwrap_or(false)
}

/// Calls `f` with the simulation of this thread. Returns `None` outside of a simulation.
#[inline]
fn with<T>(f: impl FnOnce(&Simulation) -> T) -> Option<T> {
    // A thread that unwinds must not stop any more: its panic is on its own stack, but the standard library
    // counts it for the real thread.
    if std::thread::panicking() {
        unwind();
        return None;
    }
    // `CURRENT` is not borrowed while `f` runs, since its thread may stop in `f`.
    let current = CURRENT.with_borrow(Option::clone);
    current.as_deref().map(f)
}

/// Counts an operation of a thread that unwinds. Such a thread does not let others run, so it would wait
/// forever for what another one holds. An exploration ends instead, and leaves the thread where it is.
/// Otherwise, the process ends.
#[cold]
fn unwind() {
    let operations = UNWOUND.get() + 1;
    UNWOUND.set(operations);
    if operations <= MOST_UNWOUND {
        return;
    }
    let Some(simulation) = CURRENT.with_borrow(Option::clone) else { return };
    let mut state = simulation.state.borrow_mut();
    let thread = state.tasks[state.running].name.to_string();
    let message = "it has panicked, and waits while it unwinds for what another thread holds";
    let Some(explorer) = &mut state.explorer else {
        eprintln!("{thread} of the simulation with seed {}: {message}", simulation.seed);
        std::process::abort();
    };
    explorer.failed = Some(Stopped::Panicked { thread, message: message.into() });
    drop(state);
    drop(simulation);
    stop();
    unreachable!("a failed exploration continues none of its threads");
}

/// Like [`with`], for calls that make no sense outside of a simulation. A thread that unwinds continues
/// without the simulation.
fn within<T>(f: impl FnOnce(&Simulation) -> T) -> Option<T> {
    let done = with(f);
    assert!(
        done.is_some() || std::thread::panicking(),
        "threads, and locks that wait, belong to a simulation"
    );
    done
}

/// Begins an access to the word at this address, by the code at `from`. Returns when the caller may make the
/// access. Everything that the caller does next, up to its next call of this module, is atomic.
pub(crate) fn access(address: usize, access: LineOperation, from: &'static Location<'static>) {
    with(|simulation| simulation.access(address, access, from));
}

/// Returns an address that is the same in every run, for hashes: the number of its cache line, in the order
/// in which lines are first seen, and the place in the line. A word on a stack keeps its address.
pub fn stable_address(address: usize) -> usize {
    with(|simulation| simulation.state.borrow_mut().stable_address(address)).flatten().unwrap_or(address)
}

/// Spends this time on plain work: longer if the other thread of the CPU's core works too.
pub fn work(time: Duration) {
    with(|simulation| simulation.state.borrow_mut().work(picoseconds(time)));
}

/// Returns the virtual time of this CPU.
pub fn now() -> Duration {
    with(|simulation| Duration::from_nanos(simulation.state.borrow().now() / PICOSECONDS)).unwrap_or_default()
}

/// Returns the CPU that this thread is on, or 0 outside of a simulation.
pub fn current_cpu() -> u32 {
    with(|simulation| simulation.state.borrow().cpu().place.cpu).unwrap_or(0)
}

/// Returns the number of CPUs of the machine, or 1 outside of a simulation.
pub fn possible_cpus() -> usize {
    with(|simulation| simulation.state.borrow().cpus.len()).unwrap_or(1)
}

/// Fills `bytes` with random bytes that follow from the seed.
pub fn fill_random(bytes: &mut [u8]) {
    with(|simulation| {
        let random = &mut simulation.state.borrow_mut().random;
        bytes
            .chunks_mut(8)
            .for_each(|chunk| chunk.copy_from_slice(&random.number().to_le_bytes()[..chunk.len()]));
    });
}

/// Forgets how time was spent until now. The next report begins here.
pub fn restart_profile() {
    with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        state.profile.restart();
        state.profiled_since = state.now();
        state.cpus.iter_mut().for_each(|cpu| cpu.busy = 0);
    });
}

/// Reports how time was spent until now.
///
/// # Panics
/// Outside of a simulation.
pub fn profile() -> Report {
    within(|simulation| simulation.state.borrow().report()).expect("a thread that does not unwind")
}

/// Pauses in a spin loop. The time counts for the calling place.
#[track_caller]
pub fn spin_hint() {
    let from = Location::caller();
    with(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let pause = state.prices.pause;
        state.spend(pause);
        if state.explorer.is_some() {
            drop(state);
            return simulation.give_way();
        }
        let place = state.profile.place(from);
        state.profile.spin(place, pause);
    });
}

/// Lets another thread of this CPU run, if one can.
pub(crate) fn yield_now() {
    with(Simulation::yield_now);
}

/// Runs `section` without preemption: this CPU runs no other thread meanwhile.
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

/// Returns whether a CPU is inside [`in_section`].
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

/// Sleeps until a wake-up, or for `time`. Returns at once if a wake-up came before.
pub(crate) fn park(time: Option<Duration>) {
    within(|simulation| simulation.park(time));
}

/// Sleeps for `time`, regardless of wake-ups.
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
    with(|simulation| simulation.state.borrow().tasks[task].status == TaskStatus::Ended).unwrap_or(true)
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

/// Sleeps until [`futex_wake`] of the same word, or for `time`. Returns at once unless `is_still` holds.
#[track_caller]
pub(crate) fn futex_wait(word: usize, time: Option<Duration>, is_still: impl FnOnce() -> bool) {
    let from = Location::caller();
    within(|simulation| {
        let mut state = simulation.state.borrow_mut();
        let call = state.prices.system_call;
        state.spend(call);
        if !is_still() {
            return;
        }
        let (running, since) = (state.running, state.now());
        state.futexes.entry(word).or_default().push_back(running);
        let timer = time.map(|time| state.now() + picoseconds(time));
        drop(state);
        simulation.block(timer);
        let mut state = simulation.state.borrow_mut();
        if let Some(line) = state.line_of(word) {
            let (place, slept) = (state.profile.place(from), state.now() - since);
            state.profile.sleep(place, line, slept);
        }
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
    /// Begins a simulation on this thread.
    fn begin(seed: u64, state: State) -> Rc<Self> {
        let simulation = Rc::new(Self { seed, state: RefCell::new(state) });
        CURRENT.with_borrow_mut(|current| {
            assert!(current.is_none(), "a simulation runs on this thread already");
            *current = Some(Rc::clone(&simulation));
            UNWOUND.set(0);
        });
        simulation
    }

    /// Removes and returns the coroutines that have not ended.
    fn take_left(&self) -> Vec<Coroutine> {
        self.state.borrow_mut().tasks.iter_mut().filter_map(|task| task.coroutine.take()).collect()
    }

    fn explore_until_end_of(&self, first: TaskId) -> Result<(), Stopped> {
        loop {
            let mut state = self.state.borrow_mut();
            let explorer = state.explorer.as_mut().expect("it explores");
            if let Some(stopped) = explorer.failed.take() {
                return Err(stopped);
            }
            if explorer.steps > explorer.most_steps {
                return Err(Stopped::TooLong(explorer.most_steps));
            }
            let decided = explorer.decided.take();
            if state.tasks[first].status == TaskStatus::Ended {
                return Ok(());
            }
            match decided.or_else(|| state.pick()) {
                None => return Err(Stopped::Deadlock(state.deadlock())),
                Some(NextThread::Timer) => {
                    let Some(Reverse((at, _, EventKind::Timer(task, wait)))) = state.events.pop() else {
                        continue;
                    };
                    let explorer = state.explorer.as_mut().expect("it explores");
                    explorer.clock = explorer.clock.max(at);
                    // Count this as a change: a paused thread may be waiting for the clock, so it must run
                    // again.
                    explorer.writes += 1;
                    state.time_out(task, wait, at);
                }
                Some(NextThread::Task(task)) => {
                    let cpu = state.tasks[task].cpu;
                    state.running = task;
                    state.cpus[cpu].running = Some(task);
                    drop(state);
                    self.go_on(task);
                }
            }
        }
    }

    /// Runs a thread until it stops or ends.
    fn go_on(&self, task: TaskId) {
        let coroutine = self.state.borrow_mut().tasks[task].coroutine.take();
        let mut coroutine = coroutine.expect("a thread that goes on has not ended");
        if coroutine.resume() {
            let mut state = self.state.borrow_mut();
            state.stacks.remove(&coroutine.stack().start);
            state.end(task);
        } else {
            self.state.borrow_mut().tasks[task].coroutine = Some(coroutine);
        }
    }

    /// Stops the running thread until something has changed.
    fn give_way(&self) {
        let mut state = self.state.borrow_mut();
        let writes = state.explorer.as_ref().expect("it explores").writes;
        let running = state.running;
        state.tasks[running].paused_at = writes;
        if state.goes_on(None) {
            // The thread may end or wait before its next operation. Then another thread is the next one.
            state.explorer.as_mut().expect("it explores").decided = None;
        } else {
            drop(state);
            stop();
        }
    }

    fn spawn(
        &self,
        name: &str,
        cpu: Option<usize>,
        work: impl FnOnce() + 'static,
    ) -> std::io::Result<TaskId> {
        let coroutine = Coroutine::new(work)?;
        let mut state = self.state.borrow_mut();
        let stack = coroutine.stack();
        state.stacks.insert(stack.start, stack.end);
        let cpu = cpu.unwrap_or_else(|| state.least_loaded()) % state.cpus.len();
        let task = state.tasks.len();
        state.tasks.push(Task {
            name: name.into(),
            cpu,
            coroutine: Some(coroutine),
            status: TaskStatus::Blocked,
            has_token: false,
            is_parked: false,
            waits: 0,
            timed_out: false,
            joiner: None,
            paused_at: u64::MAX,
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
            if state.tasks[first].status == TaskStatus::Ended {
                return Ok(());
            }
            let Some(Reverse((at, _, what))) = state.events.pop() else { return Err(state.deadlock()) };
            match what {
                EventKind::Serve(line) => state.serve(line, at),
                EventKind::Timer(task, wait) => state.time_out(task, wait, at),
                EventKind::Go(cpu) => {
                    state.cpus[cpu].now = state.cpus[cpu].now.max(at);
                    let task = state.cpus[cpu].running.expect("a CPU that goes on has a thread");
                    state.running = task;
                    drop(state);
                    self.go_on(task);
                }
            }
        }
    }

    fn access(&self, address: usize, access: LineOperation, from: &'static Location<'static>) {
        let mut state = self.state.borrow_mut();
        if state.explorer.is_some() {
            if !state.goes_on(Some((address, from))) {
                drop(state);
                stop();
                state = self.state.borrow_mut();
            }
            return state.note(access, from);
        }
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
        if state.explorer.is_some() {
            drop(state);
            return self.give_way();
        }
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

    /// Gives up the running thread's CPU until the thread is woken, or until that time.
    fn block(&self, timer: Option<u64>) {
        let mut state = self.state.borrow_mut();
        let running = state.running;
        let task = &mut state.tasks[running];
        task.status = TaskStatus::Blocked;
        task.timed_out = false;
        task.waits += 1;
        let (cpu, waits) = (task.cpu, task.waits);
        if let Some(at) = timer {
            state.push(at, EventKind::Timer(running, waits));
        }
        state.cpus[cpu].running = None;
        state.dispatch(cpu);
        drop(state);
        stop();
    }
}

#[cfg(test)]
mod tests;
