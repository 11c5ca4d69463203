//! The options of the experiments.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, value_parser};
use octavo_command::failure::Failure;
use octavo_experiments::scaling::Mechanism;
use octavo_sim::{MOST_CPUS, MachineModel};

use crate::choices::{JsonTarget, ModeChoice, Size};

/// The experiments. Simulated figures are functions of the machine, the seed and the options, and the same on
/// every computer.
#[derive(Debug, Subcommand)]
pub enum Experiment {
    /// The count of the huge zero page: 72 tasks that read memory which nobody wrote
    ZeroPage {
        #[command(flatten)]
        common: CommonArgs,
        /// Tasks on the simulated machine [default: its CPUs]
        #[arg(short = 'n', long, value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS)))]
        tasks: Option<u32>,
        /// Accesses of a task
        #[arg(long, default_value_t = 500, value_parser = value_parser!(u64).range(1..=1 << 20))]
        steps: u64,
    },
    /// The lock of the swap cache: 8 tasks that write more memory than there is
    SwapCache {
        #[command(flatten)]
        common: CommonArgs,
        /// Tasks on the simulated machine
        #[arg(short = 'n', long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS)))]
        tasks: u32,
        /// Pages that a task writes
        #[arg(long, default_value_t = 4000, value_parser = value_parser!(u64).range(1..=1 << 20))]
        pages: u64,
        /// The memory of all tasks
        #[arg(long, value_name = "SIZE", default_value = "64M")]
        memory: Size,
    },
    /// The lock of the page allocator: messages that one CPU allocates and another frees
    PercpuLists {
        #[command(flatten)]
        common: CommonArgs,
        /// Messages of each size
        #[arg(long, default_value_t = 4000, value_parser = value_parser!(u64).range(1..=1 << 24))]
        messages: u64,
    },
    /// The lock of a process's regions: 8 threads that pin its pages
    Pin {
        #[command(flatten)]
        common: CommonArgs,
        /// Threads on the simulated machine [default: its CPUs]
        #[arg(short = 'n', long, value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS)))]
        threads: Option<u32>,
        /// Reads of a thread
        #[arg(long, default_value_t = 1000, value_parser = value_parser!(u64).range(1..=1 << 20))]
        reads: u64,
        /// Pages of a read
        #[arg(long, default_value_t = 16, value_parser = value_parser!(u64).range(1..=64))]
        pages: u64,
    },
    /// Each mechanism from one CPU to hundreds: how near to linear it is, and the cache lines that stop it
    Scaling {
        /// The simulated machine: one of those that `octavo-lab machines` lists, or a file
        #[arg(long, value_name = "NAME|FILE", default_value = "skylake-sp")]
        machine: String,
        /// The mechanisms [default: all]
        #[arg(long, value_parser = mechanism(), value_delimiter = ',')]
        mechanism: Vec<Mechanism>,
        /// The forms of the mechanisms
        #[arg(long, value_enum, default_value_t = ModeChoice::All)]
        mode: ModeChoice,
        /// Numbers of CPUs
        #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256], value_parser = value_parser!(u32).range(1..=i64::from(MOST_CPUS)))]
        cpus: Vec<u32>,
        /// Simulations of another seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Draw the curves of each mechanism to NAME-MECHANISM.svg
        #[arg(long, value_name = "NAME")]
        svg: Option<PathBuf>,
        /// Write everything as JSON to a file, or to standard output with -
        #[arg(long, value_name = "FILE")]
        json: Option<JsonTarget>,
    },
    /// The simulated machines, and published microbenchmarks beside what they do: fitted, and tested
    Machines {
        /// Simulations of another seed
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Write everything as JSON to a file, or to standard output with -
        #[arg(long, value_name = "FILE")]
        json: Option<JsonTarget>,
    },
}

/// Reads a mechanism by its name.
fn mechanism() -> impl TypedValueParser<Value = Mechanism> {
    let value = |mechanism: Mechanism| PossibleValue::new(mechanism.name()).help(mechanism.title());
    PossibleValuesParser::new(Mechanism::ALL.map(value)).map(|name| {
        let is_named = |mechanism: &Mechanism| mechanism.name() == name;
        Mechanism::ALL.into_iter().find(is_named).expect("one of the values")
    })
}

/// What all experiments take.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// The simulated machine: one of those that `octavo-lab machines` lists, or a file [default: the patch's,
    /// or its nearest relative]
    #[arg(long, value_name = "NAME|FILE")]
    machine: Option<String>,
    /// Simulations of another seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Simulate only, and measure nothing here
    #[arg(long)]
    pub no_measure: bool,
    /// Show what the simulated time of the base form was spent on: the cache lines that cost most, and the
    /// code that touches them
    #[arg(long)]
    pub profile: bool,
    /// Write everything as JSON to a file, or to standard output with -
    #[arg(long, value_name = "FILE")]
    pub json: Option<JsonTarget>,
}

impl CommonArgs {
    /// Returns the machine of the options, or the one named `default`.
    pub fn machine(&self, default: &str) -> Result<MachineModel, Failure> {
        machine(self.machine.as_deref().unwrap_or(default))
    }
}

/// Returns a machine by its name or its file.
pub fn machine(name: &str) -> Result<MachineModel, Failure> {
    if let Some(machine) = MachineModel::named(name) {
        return Ok(machine);
    }
    let known: Vec<_> = MachineModel::names().collect();
    let text = std::fs::read_to_string(Path::new(name)).map_err(|error| {
        let attempt = format!(
            "`{name}` is no machine that comes along ({}), and no file that can be read",
            known.join(", ")
        );
        Failure::system(attempt, error)
    })?;
    MachineModel::parse(&text)
        .map_err(|error| Failure::Said(format!("the machine file {name} makes no sense: {error}")))
}
