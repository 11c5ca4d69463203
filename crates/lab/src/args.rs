//! The command line of all commands. The options of each command are in a file of their own.

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

use crate::compare::args::CompareArgs;
use crate::experiments::args::Experiment;
use crate::oltp::args::OltpArgs;
use crate::page::args::PageArgs;
use crate::replay::args::ReplayArgs;
use crate::schedules::Schedules;
use crate::swap::args::{LoadArgs, SwapArgs};
use crate::udp_stream::args::UdpStreamArgs;
use crate::usemem::args::UsememArgs;

/// Octavo's mechanisms and workloads, side by side: published, simulated and measured, in their forms, with
/// the kernel and the bare device.
#[derive(Debug, Parser)]
#[command(name = "octavo-lab", version, about, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:\n  \
                        octavo-lab zero-page\n  \
                        octavo-lab zero-page --machine broadwell-ep --tasks 56\n  \
                        octavo-lab pin --machine my-machine.toml --json pin.json\n  \
                        octavo-lab check --seed 1 --runs 1000000\n  \
                        octavo-lab check --seed 42 --runs 1 --interleaving 100";

const SWAP_EXAMPLES: &str = "Sizes are bytes, decimal or 0x hexadecimal, with a suffix k, m, g or t (powers of \
                             1024).\n\nExamples:\n  \
                             octavo-lab swap-w-seq -n 8 --memory 1G --total 3G --mode all\n  \
                             octavo-lab swap-w-seq --against kernel --against disk\n  \
                             octavo-lab swapin --memory 1G --total 3G --data text --verify\n  \
                             octavo-lab swap-r-rand --memory 1G --total 4G --threads 64 --against disk\n  \
                             octavo-lab swap-r-rand --memory 512M --total 576M --data half --against zram";

/// The commands for users. The processes that `octavo-lab` starts itself do not come through here, so help
/// neither lists nor suggests them.
#[derive(Debug, Subcommand)]
pub enum Command {
    Usemem(UsememArgs),
    /// Swap out: write more than fits in memory, page by page in order
    #[command(after_help = SWAP_EXAMPLES)]
    SwapWSeq(SwapArgs),
    /// Swap out: write more than fits in memory, pages in random order
    #[command(after_help = SWAP_EXAMPLES)]
    SwapWRand(SwapArgs),
    /// Swap in: write more than fits in memory, then time reading it back in order
    #[command(after_help = SWAP_EXAMPLES)]
    Swapin(SwapArgs),
    /// Swap in: write more than fits in memory, then time loads of words of random pages
    #[command(name = "swap-r-rand", after_help = SWAP_EXAMPLES)]
    SwapRRand(LoadArgs),
    UdpStream(UdpStreamArgs),
    Oltp(OltpArgs),
    Replay(ReplayArgs),
    #[command(flatten)]
    Experiment(Experiment),
    Compare(CompareArgs),
    Report(PageArgs),
    #[command(flatten)]
    Schedules(Schedules),
}

/// Ends the program with exit code 2, as clap does, and says what is wrong.
pub fn refuse(subcommand: &str, complaint: &str) -> ! {
    let mut cli = Cli::command();
    cli.build();
    let command = match cli.find_subcommand_mut(subcommand) {
        Some(command) => command,
        None => &mut cli,
    };
    command.error(ErrorKind::ArgumentConflict, complaint).exit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
