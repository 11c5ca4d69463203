//! The `octavo` program.
//!
//! | module | what |
//! |---|---|
//! | `args` | the command line |
//! | `run` | any program, and all its children, within a limit |
//! | `rungs` | the ways to keep a limit, and which work here |
//! | `doctor` | what this machine allows |
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line. `run` returns the program's exit
//! code.

mod args;
mod doctor;
mod run;
mod rungs;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use octavo_command::failure::{Failure, exit_code};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let done = started_by_ourselves().map(|done| done.map(|()| 0)).unwrap_or_else(command);
    exit_code("octavo", done)
}

/// Runs the processes that `octavo` starts itself. Returns `None` if this process is none of them.
fn started_by_ourselves() -> Option<Result<(), Failure>> {
    Some(match env::args_os().nth(1)?.to_str()? {
        run::demo::SUBCOMMAND => run::demo::demo_main(),
        run::demo::WAITING => run::demo::waiting_main(),
        octavo_pager::GUARDIAN => {
            octavo_pager::guardian_main();
            Ok(())
        }
        octavo_pager::SWAP_KEEPER if octavo_pager::keeper_main(env::args_os().skip(2)) => Ok(()),
        octavo_pager::SWAP_KEEPER => Err(Failure::Said("something of the kernel rung is left behind".into())),
        octavo_pager::ENTER => {
            let (program, error) = octavo_pager::enter_main(env::args_os().skip(2));
            std::process::exit(run::not_started(&program, &error).into())
        }
        _ => return None,
    })
}

/// Runs the command of the command line. Returns the exit code.
fn command() -> Result<u8, Failure> {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Doctor(args) => doctor::doctor(&args),
    }
}
