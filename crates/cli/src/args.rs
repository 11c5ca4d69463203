//! The command line of all commands. The options of each command are in a separate file.

use clap::{Parser, Subcommand};

use crate::doctor::DoctorArgs;
use crate::run::args::RunArgs;

/// Runs programs in less memory than they need: they get slower instead of being killed.
#[derive(Debug, Parser)]
#[command(name = "octavo", version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands for users. The processes that `octavo` starts itself do not come through here, so help
/// neither lists nor suggests them.
#[derive(Debug, Subcommand)]
pub enum Command {
    Run(RunArgs),
    Doctor(DoctorArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
