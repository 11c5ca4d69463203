//! Command-line options common to the programs.

use std::path::PathBuf;

use clap::Args;
use octavo_measure::workers::Plan;

/// The amount to measure, and the place for the figures.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Rounds; medians are taken over them
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Timed milliseconds of each side, group, thread count and round
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    pub millis: u64,
    /// Only sides whose name contains one of these (comma-separated)
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Also write everything, every round included, to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Options {
    /// Returns whether `--only` leaves a side in.
    pub fn wants(&self, side: &str) -> bool {
        let side = side.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|part| side.contains(&part.to_lowercase()))
    }

    /// Returns the length of one measurement.
    pub fn plan(&self) -> Plan {
        Plan::of_millis(self.millis)
    }
}
