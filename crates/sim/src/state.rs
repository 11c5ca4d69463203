//! The state of a simulated machine: its CPUs and their threads, what happens next, and its cache lines.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::panic::Location;

use crate::explorer::{Explorer, NextThread, ReadyThread};
use crate::line::{CacheLine, LineOperation, Position, Prices, Request, RequestOutcome, SPREAD_PERCENT};
use crate::machine::MachineModel;
use crate::profile::{Profile, Report};
use crate::random::Random;
use crate::stopped::Deadlock;
use crate::task::{Stalled, Task, TaskId, TaskStatus};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// How long a thread runs while others wait for its CPU, in picoseconds.
const SLICE: u64 = 4_000_000_000;

#[derive(Debug)]
pub(crate) struct Cpu {
    pub place: Position,
    pub now: u64,
    pub busy: u64,
    pub running: Option<TaskId>,
    pub ready: VecDeque<TaskId>,
    pub slice_ends: u64,
    /// Whether a restartable sequence runs, so that the CPU stays with its thread.
    pub in_section: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventKind {
    /// This CPU's thread continues.
    Go(usize),
    /// A timer of this thread is due. The number tells at which wait of the thread it was set.
    Timer(TaskId, u64),
    /// The queue of this line is served.
    Serve(usize),
}

/// An event: its time, a random number that decides ties, and what happens.
type TimedEvent = Reverse<(u64, u64, EventKind)>;

#[derive(Debug)]
pub(crate) struct State {
    pub machine: MachineModel,
    pub prices: Prices,
    pub random: Random,
    pub cpus: Vec<Cpu>,
    pub tasks: Vec<Task>,
    pub events: BinaryHeap<TimedEvent>,
    pub lines: Vec<CacheLine>,
    /// The lines' numbers by address. Lines are numbered in the order of first touch, so that addresses have
    /// no influence.
    pub line_numbers: HashMap<usize, usize>,
    /// The ends of the threads' stacks, by their lowest addresses.
    pub stacks: BTreeMap<usize, usize>,
    pub futexes: HashMap<usize, VecDeque<TaskId>>,
    pub running: TaskId,
    pub profile: Profile,
    pub profiled_since: u64,
    /// Chooses the next thread if the clocks do not decide it.
    pub explorer: Option<Box<Explorer>>,
    candidates: Vec<ReadyThread>,
}

impl State {
    pub(crate) fn new(machine: &MachineModel, seed: u64) -> Self {
        let cpu = |number| Cpu {
            place: Position::of(machine, number),
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
            stacks: BTreeMap::new(),
            futexes: HashMap::new(),
            running: 0,
            profile: Profile::default(),
            profiled_since: 0,
            explorer: None,
            candidates: Vec::new(),
        }
    }

    pub(crate) fn cpu(&self) -> &Cpu {
        &self.cpus[self.tasks[self.running].cpu]
    }

    pub(crate) fn now(&self) -> u64 {
        self.explorer.as_ref().map_or_else(|| self.cpu().now, |explorer| explorer.clock)
    }

    pub(crate) fn push(&mut self, at: u64, what: EventKind) {
        let tie = self.random.number();
        self.events.push(Reverse((at, tie, what)));
    }

    /// Keeps the running thread's CPU busy for this time.
    pub(crate) fn spend(&mut self, time: u64) {
        if let Some(explorer) = &mut self.explorer {
            explorer.clock += time;
            return;
        }
        let cpu = self.tasks[self.running].cpu;
        self.cpus[cpu].now += time;
        self.cpus[cpu].busy += time;
    }

    pub(crate) fn work(&mut self, time: u64) {
        let cpu = self.tasks[self.running].cpu;
        let cores = (self.machine.processors.sockets * self.machine.processors.cores) as usize;
        let sibling = if cpu < cores { cpu + cores } else { cpu - cores };
        let is_shared = self.cpus.get(sibling).is_some_and(|other| other.running.is_some());
        let factor = if is_shared { self.machine.processors.shared_core_factor } else { 1.0 };
        let mean = (time as f64 * factor).round() as u64;
        let spread = mean * SPREAD_PERCENT / 100;
        let took = mean - spread + self.random.below(2 * spread + 1);
        self.spend(took);
        self.profile.work(took);
    }

    pub(crate) fn others_are_earlier(&mut self) -> bool {
        let now = self.now();
        match self.events.peek() {
            Some(Reverse((at, ..))) => *at < now || *at == now && self.random.below(2) == 0,
            None => false,
        }
    }

    /// Lets the running thread continue at its CPU's time, after the CPUs whose time is earlier. If the slice
    /// is over, another thread of the CPU continues instead.
    pub(crate) fn go_later(&mut self) {
        let cpu = self.tasks[self.running].cpu;
        if self.is_slice_over() {
            let running = self.cpus[cpu].running.take().expect("the CPU of a running thread");
            self.cpus[cpu].ready.push_back(running);
            self.dispatch(cpu);
        } else {
            self.push(self.cpus[cpu].now, EventKind::Go(cpu));
        }
    }

    pub(crate) fn is_slice_over(&self) -> bool {
        let one = self.cpu();
        one.now >= one.slice_ends && !one.ready.is_empty() && !one.in_section
    }

    pub(crate) fn end_slice(&mut self) {
        let cpu = self.tasks[self.running].cpu;
        self.cpus[cpu].slice_ends = self.cpus[cpu].now;
    }

    /// Gives a CPU without a thread the next one that can run.
    pub(crate) fn dispatch(&mut self, cpu: usize) {
        if self.explorer.is_some() {
            return;
        }
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
            self.push(now, EventKind::Go(cpu));
        }
    }

    /// Wakes a thread that is blocked.
    pub(crate) fn wake(&mut self, task: TaskId) {
        if self.tasks[task].status == TaskStatus::Blocked {
            let cost = self.prices.wake;
            self.spend(cost);
            self.make_ready(task, self.now() + self.prices.wake_up);
        }
    }

    pub(crate) fn make_ready(&mut self, task: TaskId, at: u64) {
        self.tasks[task].status = TaskStatus::Ready;
        if self.explorer.is_some() {
            return;
        }
        let cpu = self.tasks[task].cpu;
        self.cpus[cpu].ready.push_back(task);
        if self.cpus[cpu].running.is_none() {
            self.cpus[cpu].now = self.cpus[cpu].now.max(at);
            self.dispatch(cpu);
        }
    }

    pub(crate) fn time_out(&mut self, task: TaskId, wait: u64, at: u64) {
        if self.tasks[task].status == TaskStatus::Blocked && self.tasks[task].waits == wait {
            self.tasks[task].timed_out = true;
            self.make_ready(task, at);
        }
    }

    pub(crate) fn end(&mut self, task: TaskId) {
        let cpu = self.tasks[task].cpu;
        self.tasks[task].status = TaskStatus::Ended;
        if let Some(joiner) = self.tasks[task].joiner.take() {
            self.wake(joiner);
        }
        self.cpus[cpu].running = None;
        self.dispatch(cpu);
    }

    /// The CPU with the fewest threads.
    pub(crate) fn least_loaded(&self) -> usize {
        let mut load = vec![0_usize; self.cpus.len()];
        self.tasks
            .iter()
            .filter(|task| task.status != TaskStatus::Ended)
            .for_each(|task| load[task.cpu] += 1);
        (0..load.len()).min_by_key(|cpu| load[*cpu]).unwrap_or(0)
    }

    /// Returns the number of a word's cache line. Words on stacks have no line: the compiler decides which of
    /// them share a line, and may decide differently in each build.
    pub(crate) fn line_of(&mut self, address: usize) -> Option<usize> {
        if self.stacks.range(..=address).next_back().is_some_and(|(_, end)| address < *end) {
            return None;
        }
        let next = self.lines.len();
        let line = *self.line_numbers.entry(address / LINE_BYTES).or_insert(next);
        if line == next {
            self.lines.push(CacheLine::default());
        }
        Some(line)
    }

    /// Returns a word's address by its line's number, which is the same in every run. Returns `None` for
    /// words on stacks.
    pub(crate) fn stable_address(&mut self, address: usize) -> Option<usize> {
        self.line_of(address).map(|line| line * LINE_BYTES + address % LINE_BYTES)
    }

    /// Begins an access of the running thread. Returns `false` if the thread has to stop until its line
    /// arrives.
    pub(crate) fn request(
        &mut self,
        address: usize,
        access: LineOperation,
        from: &'static Location<'static>,
    ) -> bool {
        let place = self.profile.place(from);
        let Some(line) = self.line_of(address) else {
            let cost = self.prices.at_hand(access);
            self.spend(cost);
            self.profile.private(place, cost);
            return true;
        };
        let now = self.now();
        let request = Request { task: self.running, place: self.cpu().place, access };
        match self.lines[line].request(now, request, &self.machine, &self.prices, &mut self.random) {
            RequestOutcome::Hit(cost) => {
                self.spend(cost);
                self.profile.hit(place, line, cost);
                return true;
            }
            RequestOutcome::Arrives(at) => {
                let cpu = self.tasks[self.running].cpu;
                self.push(at, EventKind::Go(cpu));
            }
            RequestOutcome::Waits(serve) => {
                if let Some(at) = serve {
                    self.push(at, EventKind::Serve(line));
                }
            }
        }
        let running = self.running;
        self.tasks[running].stalled = Some(Stalled { place, line, access, since: now });
        false
    }

    pub(crate) fn line_is_there(&mut self) {
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

    pub(crate) fn serve(&mut self, line: usize, at: u64) {
        let mut arrivals = Vec::new();
        let next =
            self.lines[line].serve(at, &self.machine, &self.prices, &mut self.random, |request, there| {
                arrivals.push((request.task, there));
            });
        for (task, there) in arrivals {
            let cpu = self.tasks[task].cpu;
            self.push(there, EventKind::Go(cpu));
        }
        if let Some(at) = next {
            self.push(at, EventKind::Serve(line));
        }
    }

    /// Chooses what runs next. Returns `None` if nothing can run, now or later.
    pub(crate) fn pick(&mut self) -> Option<NextThread> {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let explorer = self.explorer.as_mut().expect("somebody to choose");
        for (number, task) in self.tasks.iter().enumerate() {
            let cpu = &self.cpus[task.cpu];
            // The other threads of a CPU never interrupt a restartable sequence.
            if task.status == TaskStatus::Ready && (!cpu.in_section || cpu.running == Some(number)) {
                candidates.push(ReadyThread { task: number, pauses: task.paused_at == explorer.writes });
            }
        }
        // If a wait has ended, its timer wakes nobody.
        while let Some(Reverse((_, _, EventKind::Timer(task, wait)))) = self.events.peek()
            && (self.tasks[*task].status != TaskStatus::Blocked || self.tasks[*task].waits != *wait)
        {
            self.events.pop();
        }
        let timer = self.events.peek().map(|Reverse((at, ..))| *at);
        let next = explorer.pick(Some(self.running), &candidates, timer);
        self.candidates = candidates;
        next
    }

    /// In an exploration, returns whether the running thread continues before it touches the word at this
    /// address. Otherwise, it stops and continues when it is chosen.
    pub(crate) fn goes_on(&mut self, at: Option<(usize, &'static Location<'static>)>) -> bool {
        if let Some((address, place)) = at
            && self.explorer.as_ref().is_some_and(|explorer| explorer.minds_meetings())
            && let Some(word) = self.stable_address(address)
        {
            let running = self.running;
            self.explorer.as_mut().expect("just seen").meet(running, word, place);
        }
        let next = self.pick();
        let explorer = self.explorer.as_mut().expect("somebody to choose");
        explorer.decided = next;
        let is_over = explorer.failed.is_some() || explorer.steps > explorer.most_steps;
        next == Some(NextThread::Task(self.running)) && !is_over
    }

    /// Notes an operation of the running thread in an exploration.
    pub(crate) fn note(&mut self, access: LineOperation, from: &'static Location<'static>) {
        let explorer = self.explorer.as_mut().expect("somebody to choose");
        explorer.decided = None;
        explorer.note(&self.tasks[self.running].name, access, from);
    }

    pub(crate) fn deadlock(&self) -> Deadlock {
        let waits = |task: &&Task| task.status == TaskStatus::Blocked;
        Deadlock { waiting: self.tasks.iter().filter(waits).map(|task| task.name.to_string()).collect() }
    }

    pub(crate) fn report(&self) -> Report {
        let since = self.profiled_since;
        let times = self.cpus.iter().map(|cpu| (cpu.now.saturating_sub(since), cpu.busy)).collect();
        self.profile.report(&self.machine, times)
    }
}
