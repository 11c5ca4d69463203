//! The `octavo` program.
//!
//! | module | what |
//! |---|---|
//! | `args` | the command line |
//! | `run` | any program, and all its children, within a limit |
//!
//! Exit codes: 0 done, 1 a failure, 2 a command line that makes no sense. `run` has those of its program.

mod args;
mod run;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use octavo_command::failure::{Failure, exit_code};

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let done = started_by_ourselves().map(|done| done.map(|()| 0)).unwrap_or_else(command);
    exit_code("octavo", done)
}

/// The lives of the processes that `octavo` starts itself; `None` where it was started by somebody else.
fn started_by_ourselves() -> Option<Result<(), Failure>> {
    Some(match env::args_os().nth(1)?.to_str()? {
        run::demo::SUBCOMMAND => run::demo::demo_main(),
        run::demo::WAITING => run::demo::waiting_main(),
        octavo_pager::GUARDIAN => {
            octavo_pager::guardian_main();
            Ok(())
        }
        _ => return None,
    })
}

/// Does what the command line says. Returns the exit code.
fn command() -> Result<u8, Failure> {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
    }
}
