//! Simulated machines: their processors, and the cost of each step.
//!
//! A machine is a TOML file. The file names the source of each figure, or says to which publication the
//! figure was fitted. All times are in nanoseconds; the simulator counts in picoseconds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A machine, as its file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineModel {
    /// A short name, for command lines.
    pub name: String,
    /// What it is, in a sentence.
    pub title: String,
    /// Processors.
    pub processors: Processors,
    /// What a step costs.
    pub nanoseconds: Costs,
    /// The sources of the figures, by the figures' names.
    pub sources: std::collections::BTreeMap<String, String>,
}

/// The processors of a machine. CPUs are numbered as Linux does: one thread of each core first, socket by
/// socket, and then the other threads in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processors {
    /// Sockets.
    pub sockets: u32,
    /// Cores of a socket.
    pub cores: u32,
    /// Threads of a core.
    pub threads: u32,
    /// The clock frequency in GHz, which is fixed.
    pub gigahertz: f64,
    /// The factor by which plain work takes longer while the other thread of the core works too.
    pub shared_core_factor: f64,
    /// How many times in a row a contended line may stay in its socket while cores of other sockets wait.
    pub local_handovers: u32,
}

/// Costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// A load or a store of a line that this core has.
    pub hit: f64,
    /// An atomic read-modify-write on a line that this core owns.
    pub update: f64,
    /// An access to such a line if the other thread of this core changed it last.
    pub sibling: f64,
    /// A line that no core has changed, from the cache of the socket.
    pub shared: f64,
    /// A line from another core of the socket.
    pub socket: f64,
    /// The right to change a line that other cores of the socket have too.
    pub own_socket: f64,
    /// The right to change a line that cores of other sockets have too.
    pub own_remote: f64,
    /// A line from another socket, if the line's home is the socket that asks.
    pub remote: f64,
    /// A line from another socket, if the line's home is the other socket.
    pub remote_home: f64,
    /// A line from memory.
    pub memory: f64,
    /// How long a core keeps a line for further operations when others wait for it.
    pub hold: f64,
    /// A pause in a spin loop.
    pub pause: f64,
    /// A system call that finds nothing to do.
    pub system_call: f64,
    /// What the waker pays to wake a thread.
    pub wake: f64,
    /// From a wake-up to the first instruction of the woken thread, on an idle CPU.
    pub wake_up: f64,
    /// A switch from one thread to another on a CPU.
    pub switch: f64,
}

/// A machine file that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadMachine(String);

impl fmt::Display for BadMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMachine {}

/// The machines that come with Octavo: name and file.
const MACHINES: &[(&str, &str)] = &[
    ("haswell-ep", include_str!("../machines/haswell-ep.toml")),
    ("broadwell-ep", include_str!("../machines/broadwell-ep.toml")),
    ("skylake-sp", include_str!("../machines/skylake-sp.toml")),
    ("nehalem", include_str!("../machines/nehalem.toml")),
    ("tigerton", include_str!("../machines/tigerton.toml")),
];

/// The most CPUs that a machine may have.
pub const MOST_CPUS: u32 = 512;

impl MachineModel {
    /// The machine of this name that comes with Octavo.
    pub fn named(name: &str) -> Option<Self> {
        let (_, text) = MACHINES.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(text).expect("a test reads all machines that come with Octavo"))
    }

    /// The names of the machines that come with Octavo.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MACHINES.iter().map(|(name, _)| *name)
    }

    /// Reads a machine file.
    ///
    /// # Errors
    /// Returns a sentence that says what is wrong with the file.
    pub fn parse(text: &str) -> Result<Self, BadMachine> {
        let machine: Self = toml::from_str(text).map_err(|error| BadMachine(error.to_string()))?;
        machine.check()?;
        Ok(machine)
    }

    fn check(&self) -> Result<(), BadMachine> {
        let Processors { sockets, cores, threads, gigahertz, shared_core_factor, .. } = self.processors;
        let cpus = sockets.checked_mul(cores).and_then(|all| all.checked_mul(threads));
        if !cpus.is_some_and(|cpus| (1..=MOST_CPUS).contains(&cpus)) {
            return Err(BadMachine(format!("a machine has from 1 to {MOST_CPUS} CPUs")));
        }
        if threads > 2 {
            return Err(BadMachine("a core has at most 2 threads".into()));
        }
        if !(gigahertz > 0.0
            && gigahertz.is_finite()
            && shared_core_factor >= 1.0
            && shared_core_factor.is_finite())
        {
            return Err(BadMachine(
                "`gigahertz` lies above 0, and `shared_core_factor` is at least 1".into(),
            ));
        }
        for (name, cost) in self.nanoseconds.by_name() {
            if !(0.0..1e9).contains(&cost) {
                return Err(BadMachine(format!("`{name}` lies between 0 and a second")));
            }
            if !self.sources.contains_key(name) {
                return Err(BadMachine(format!("`{name}` has no source")));
            }
        }
        Ok(())
    }

    /// Returns the number of CPUs.
    pub fn cpus(&self) -> u32 {
        let Processors { sockets, cores, threads, .. } = self.processors;
        sockets * cores * threads
    }

    /// The core of a CPU, counted over all sockets.
    pub fn core_of(&self, cpu: u32) -> u32 {
        cpu % (self.processors.sockets * self.processors.cores)
    }

    /// The socket of a core.
    pub fn socket_of(&self, core: u32) -> u32 {
        core / self.processors.cores
    }
}

impl Costs {
    /// Each cost with its name.
    pub fn by_name(&self) -> [(&'static str, f64); 16] {
        [
            ("hit", self.hit),
            ("update", self.update),
            ("sibling", self.sibling),
            ("shared", self.shared),
            ("socket", self.socket),
            ("own_socket", self.own_socket),
            ("own_remote", self.own_remote),
            ("remote", self.remote),
            ("remote_home", self.remote_home),
            ("memory", self.memory),
            ("hold", self.hold),
            ("pause", self.pause),
            ("system_call", self.system_call),
            ("wake", self.wake),
            ("wake_up", self.wake_up),
            ("switch", self.switch),
        ]
    }
}

/// Nanoseconds as picoseconds.
pub(crate) fn picoseconds(nanoseconds: f64) -> u64 {
    (nanoseconds * 1000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_machines_that_come_along_make_sense() {
        for (name, text) in MACHINES {
            let machine = MachineModel::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(&machine.name, name);
        }
        assert_eq!(MachineModel::named("pdp-11"), None);
    }

    #[test]
    fn cpus_are_numbered_as_linux_does() {
        let machine = MachineModel::named("haswell-ep").unwrap();
        assert_eq!(machine.cpus(), 72);
        assert_eq!((machine.core_of(0), machine.core_of(36), machine.core_of(37)), (0, 0, 1));
        assert_eq!((machine.socket_of(17), machine.socket_of(18)), (0, 1));
    }

    #[test]
    fn a_file_that_makes_no_sense_is_refused_with_a_reason() {
        let good = MACHINES[0].1;
        for (old, new, reason) in [
            ("sockets = 2", "sockets = 0", "CPUs"),
            ("sockets = 2", "sockets = 4000000000", "CPUs"),
            ("threads = 2", "threads = 4", "threads"),
            ("gigahertz = 2.3", "gigahertz = 0.0", "gigahertz"),
            ("hit = ", "hits = ", "hits"),
            ("sockets = 2", "sockets = -2", "sockets"),
        ] {
            assert!(good.contains(old), "{old}");
            let error = MachineModel::parse(&good.replacen(old, new, 1)).unwrap_err().to_string();
            assert!(error.contains(reason), "{new}: {error}");
        }
    }
}
