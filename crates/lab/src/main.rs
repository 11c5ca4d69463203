//! The `octavo-lab` program.
//!
//! | module | what |
//! |---|---|
//! | `args` | the command line |
//! | `choices` | the choices of the command line, as types: modes, sizes, engines, policies |
//! | `usemem` | vm-scalability's usemem on Octavo's memory, and on the kernel's |
//! | `swap` | `swap-w-seq` and the other swap commands: Octavo's swap, the kernel's, and the bare device |
//! | `udp_stream` | netperf's UDP_STREAM, with message buffers from Octavo's frames |
//! | `oltp` | TPC-B's bank on B-trees of a file, with a write-ahead log |
//! | `replay` | a trace under the engine's policies, and under the optimum |
//! | `experiments` | each mechanism on its own: published, simulated, measured |
//! | `schedules` | the whole engine under chosen schedules |
//! | `compare` | results side by side, in the layouts of lkp and mmtests |
//! | `page`, `plots` | one HTML page of all results in a folder; its plots |
//! | `manager` | managers for a run |
//! | `gate`, `worker` | threads that start at once; the parts that they share |
//! | `processes`, `huge_pages` | the kernel's side: processes of our own program, and the pages that it runs with |
//! | `aside` | the observers of a run: a progress bar, a profile, a recorder |
//! | `record` | a trace of a workload's accesses |
//! | `report` | the object that `--json` writes, for every workload |
//! | `table` | figures for people, and the columns that hold them |
//! | `profile` | the share of time that each function takes |
//! | `progress` | the progress bar on long work, and a notice of its length |
//!
//! Exit codes: 0 for success, 1 for a failure or wrong data, 2 for a command line that makes no sense.

mod args;
mod aside;
mod choices;
mod compare;
mod experiments;
mod gate;
mod huge_pages;
mod manager;
mod oltp;
mod page;
mod plots;
mod processes;
mod profile;
mod progress;
mod record;
mod replay;
mod report;
mod schedules;
mod swap;
mod table;
mod udp_stream;
mod usemem;
mod worker;

use std::env;
use std::process::ExitCode;

use clap::Parser;
use octavo_command::failure::{Failure, exit_code};

use crate::args::{Cli, Command};
use crate::swap::args::JobRefusal;
use crate::swap::job::SwapJob;
use crate::swap::plan::TaskPattern;

/// Simulations have memory of their own, so that they are the same on every machine. Everything else uses the
/// system's allocator.
#[global_allocator]
static MEMORY: octavo_sim::SimAllocator = octavo_sim::SimAllocator;

fn main() -> ExitCode {
    let done = started_by_ourselves().map(|done| done.map(|()| 0)).unwrap_or_else(command);
    exit_code("octavo-lab", done)
}

/// Runs a process that `octavo-lab` started itself. Returns `None` if somebody else started it.
fn started_by_ourselves() -> Option<Result<(), Failure>> {
    let mut arguments = env::args_os().skip(1);
    let subcommand = arguments.next()?;
    // An argument that is not text becomes an empty order, which is refused.
    let order = arguments.next().and_then(|order| order.into_string().ok()).unwrap_or_default();
    Some(match subcommand.to_str()? {
        usemem::kernel_side::SUBCOMMAND => usemem::kernel_side::task_main(&order),
        swap::kernel_side::SUBCOMMAND => swap::kernel_side::task_main(&order),
        swap::keeper::SUBCOMMAND => swap::keeper::keeper_main(),
        udp_stream::receiver::SUBCOMMAND => udp_stream::receiver::receiver_main(),
        _ => return None,
    })
}

/// Runs the command of the command line. Returns the exit code.
fn command() -> Result<u8, Failure> {
    let done = match Cli::parse().command {
        Command::Schedules(command) => return schedules::run(command),
        Command::Usemem(args) => match args.into_job() {
            Ok(job) => usemem::run(&job),
            Err(complaint) => args::refuse("usemem", &complaint),
        },
        Command::SwapWSeq(args) => swap_job("swap-w-seq", args.into_job(TaskPattern::WriteSequential)),
        Command::SwapWRand(args) => swap_job("swap-w-rand", args.into_job(TaskPattern::WriteRandom)),
        Command::Swapin(args) => swap_job("swapin", args.into_job(TaskPattern::ReadSequential)),
        Command::SwapRRand(args) => swap_job("swap-r-rand", args.into_job()),
        Command::UdpStream(args) => udp_stream::run(&args.into_job()),
        Command::Oltp(args) => match args.into_job() {
            Ok(job) => oltp::run(&job),
            Err(complaint) => args::refuse("oltp", &complaint),
        },
        Command::Replay(args) => match args.into_job() {
            Ok(job) => replay::run(&job),
            Err(complaint) => args::refuse("replay", &complaint),
        },
        Command::Experiment(experiment) => experiments::run(&experiment),
        Command::Compare(args) => compare::run(&args),
        Command::Report(args) => page::run(&args),
    };
    done.map(|()| 0)
}

fn swap_job(subcommand: &str, job: Result<SwapJob, JobRefusal>) -> Result<(), Failure> {
    match job {
        Ok(job) => swap::run(&job),
        Err(JobRefusal::Nonsense(complaint)) => args::refuse(subcommand, &complaint),
        Err(JobRefusal::Failure(failure)) => Err(failure),
    }
}
