//! How a simulation spent its time, by place in the source and by cache line.

use std::collections::HashMap;
use std::panic::Location;

use serde::Serialize;

use crate::machine::MachineModel;

/// The sums of one place in the source.
#[derive(Clone, Copy, Debug)]
struct SourceSite {
    from: &'static Location<'static>,
    accesses: u64,
    time: u64,
    stalls: u64,
    stalled: u64,
}

/// The sums of one cache line, by the places that touch it.
#[derive(Clone, Debug, Default)]
struct LineUse {
    accesses: u64,
    transfers: u64,
    stalled: u64,
    slept: u64,
    places: Vec<(usize, u64)>,
}

impl LineUse {
    fn add(&mut self, place: usize, time: u64) {
        match self.places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, sum)) => *sum += time,
            None => self.places.push((place, time)),
        }
    }

    fn waited(&self) -> u64 {
        self.stalled + self.slept
    }
}

#[derive(Debug, Default)]
pub(crate) struct Profile {
    places: Vec<SourceSite>,
    numbers: HashMap<(&'static str, u32, u32), usize>,
    lines: Vec<LineUse>,
    worked: u64,
}

/// How a run spent its time. All times are in nanoseconds of the simulated machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The machine's name.
    pub machine: String,
    /// From the beginning to the end of the last CPU.
    pub elapsed: f64,
    /// Time in which each CPU ran a thread.
    pub busy: Vec<f64>,
    /// The plain work of all threads, as charged.
    pub worked: f64,
    /// Places in the source, the most expensive first.
    pub places: Vec<PlaceReport>,
    /// Cache lines that threads waited for, the most expensive first.
    pub lines: Vec<LineReport>,
}

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceReport {
    /// The file, as the compiler names it.
    pub file: &'static str,
    /// Line in the file.
    pub line: u32,
    /// Operations on shared words.
    pub accesses: u64,
    /// The time of these operations, including waits for cache lines.
    pub time: f64,
    /// Operations that waited for a cache line.
    pub stalls: u64,
    /// The time of those operations.
    pub stalled: f64,
}

/// A cache line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineReport {
    /// Number of the line, in the order in which lines were first touched.
    pub number: usize,
    /// Operations on its words.
    pub accesses: u64,
    /// How often the line moved to another core.
    pub transfers: u64,
    /// The time that threads waited for it.
    pub stalled: f64,
    /// The time that threads slept on a lock in it. Such a sleep keeps no CPU busy.
    pub slept: f64,
    /// The places that waited or slept longest for it, with their time.
    pub places: Vec<(String, f64)>,
}

/// The most places of a line that a report lists.
const LISTED_PLACES: usize = 4;
/// The most lines that a report lists.
const LISTED_LINES: usize = 64;

impl Profile {
    pub(crate) fn place(&mut self, from: &'static Location<'static>) -> usize {
        let next = self.places.len();
        let number = *self.numbers.entry((from.file(), from.line(), from.column())).or_insert(next);
        if number == next {
            self.places.push(SourceSite { from, accesses: 0, time: 0, stalls: 0, stalled: 0 });
        }
        number
    }

    fn line(&mut self, number: usize) -> &mut LineUse {
        if self.lines.len() <= number {
            self.lines.resize(number + 1, LineUse::default());
        }
        &mut self.lines[number]
    }

    /// Counts an access to a word on a stack.
    pub(crate) fn private(&mut self, place: usize, time: u64) {
        self.places[place].accesses += 1;
        self.places[place].time += time;
    }

    pub(crate) fn hit(&mut self, place: usize, line: usize, time: u64) {
        self.private(place, time);
        self.line(line).accesses += 1;
    }

    pub(crate) fn stall(&mut self, place: usize, line: usize, time: u64) {
        let one = &mut self.places[place];
        one.accesses += 1;
        one.time += time;
        one.stalls += 1;
        one.stalled += time;
        let line = self.line(line);
        line.accesses += 1;
        line.transfers += 1;
        line.stalled += time;
        line.add(place, time);
    }

    pub(crate) fn sleep(&mut self, place: usize, line: usize, time: u64) {
        let line = self.line(line);
        line.slept += time;
        line.add(place, time);
    }

    pub(crate) fn spin(&mut self, place: usize, time: u64) {
        self.places[place].time += time;
    }

    /// Resets all sums. Places and lines keep their numbers.
    pub(crate) fn restart(&mut self) {
        for place in &mut self.places {
            *place = SourceSite { accesses: 0, time: 0, stalls: 0, stalled: 0, ..*place };
        }
        self.lines.fill(LineUse::default());
        self.worked = 0;
    }

    pub(crate) fn work(&mut self, time: u64) {
        self.worked += time;
    }

    pub(crate) fn report(&self, machine: &MachineModel, cpus: Vec<(u64, u64)>) -> Report {
        let nanoseconds = |picoseconds: u64| picoseconds as f64 / 1000.0;
        let mut places: Vec<_> = self
            .places
            .iter()
            .map(|place| PlaceReport {
                file: place.from.file(),
                line: place.from.line(),
                accesses: place.accesses,
                time: nanoseconds(place.time),
                stalls: place.stalls,
                stalled: nanoseconds(place.stalled),
            })
            .collect();
        places.sort_by(|one, other| {
            other.time.total_cmp(&one.time).then(one.file.cmp(other.file)).then(one.line.cmp(&other.line))
        });
        let mut lines: Vec<_> = self.lines.iter().enumerate().filter(|(_, line)| line.waited() > 0).collect();
        lines.sort_by_key(|(number, line)| (std::cmp::Reverse(line.waited()), *number));
        let lines = lines.into_iter().take(LISTED_LINES).map(|(number, line)| {
            let mut dearest = line.places.clone();
            dearest.sort_by_key(|(place, time)| (std::cmp::Reverse(*time), *place));
            let named = dearest.into_iter().take(LISTED_PLACES).map(|(place, time)| {
                let from = self.places[place].from;
                (format!("{}:{}", from.file(), from.line()), nanoseconds(time))
            });
            LineReport {
                number,
                accesses: line.accesses,
                transfers: line.transfers,
                stalled: nanoseconds(line.stalled),
                slept: nanoseconds(line.slept),
                places: named.collect(),
            }
        });
        Report {
            machine: machine.name.clone(),
            elapsed: nanoseconds(cpus.iter().map(|(now, _)| *now).max().unwrap_or(0)),
            busy: cpus.iter().map(|(_, busy)| nanoseconds(*busy)).collect(),
            worked: nanoseconds(self.worked),
            lines: lines.collect(),
            places,
        }
    }
}
