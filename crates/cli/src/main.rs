//! The `octavo` program.
//!
//! | module | what |
//! |---|---|
//! | `args` | the command line, and what is refused before anything runs |
//! | `usemem` | vm-scalability's usemem on Octavo's memory, and on the kernel's |
//! | `gate` | threads that start at once |
//! | `processes` | processes of our own program, for the kernel's side |
//! | `swap` | `swap-w-seq` and its kin: Octavo's swap, the kernel's, and the bare device |
//! | `report` | what `--json` writes, for every workload |
//! | `table` | columns for people |
//! | `profile` | the share of time each function takes |
//! | `progress` | the bar on long work |
//! | `output` | where text goes, and what a closed pipe means |
//! | `failure` | why the program stops, in one sentence |
//!
//! Exit codes: 0 done, 1 a failure or wrong data, 2 a command line that makes no sense.

mod args;
mod failure;
mod gate;
mod output;
mod processes;
mod profile;
mod progress;
mod report;
mod swap;
mod table;
mod usemem;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::Failure;
use crate::swap::Pattern;
use crate::swap::args::Refused;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Usemem(args) => match args.into_job() {
            Ok(job) => usemem::run(&job),
            Err(complaint) => args::refuse("usemem", &complaint),
        },
        Command::SwapWSeq(args) => swap_job("swap-w-seq", args.into_job(Pattern::WriteSequential)),
        Command::SwapWRand(args) => swap_job("swap-w-rand", args.into_job(Pattern::WriteRandom)),
        Command::Swapin(args) => swap_job("swapin", args.into_job(Pattern::ReadSequential)),
        Command::SwapRRand(args) => swap_job("swap-r-rand", args.into_job()),
        Command::SwapTask { order } => swap::kernel_side::task_main(&order),
        Command::SwapKeeper => swap::keeper::keeper_main(),
        Command::KernelTask { plan } => usemem::kernel_side::task_main(&plan),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            output::complain(&failure);
            ExitCode::FAILURE
        }
    }
}

fn swap_job(subcommand: &str, job: Result<swap::Job, Refused>) -> Result<(), Failure> {
    match job {
        Ok(job) => swap::run(&job),
        Err(Refused::Nonsense(complaint)) => args::refuse(subcommand, &complaint),
        Err(Refused::Failure(failure)) => Err(failure),
    }
}
