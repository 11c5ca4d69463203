//! The project's own commands, run as `cargo xtask <command>`.
//!
//! `test` is the one test command of the project; `.ci/run` adds the checks that a reviewer would otherwise
//! have to ask for. [`commands`] holds the steps of each command, [`step`] runs and counts a step, [`suites`]
//! runs test binaries side by side, and [`tidy`] holds the house rules. Four commands make tables:
//! [`programs`] of real programs, [`against_kernel`] of speeds beside the kernel's swap, [`jobs`] of guards
//! beside mapped files, and [`latency`] of waits beside the kernel's swap. All four use [`machine`].

mod against_kernel;
mod commands;
mod jobs;
mod latency;
mod machine;
mod programs;
mod step;
mod suites;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use commands::TestExtent;

const USAGE: &str = "\
Usage: cargo xtask <command>

  test            the tests of what users get, and the house rules, in some minutes
  test --all      every test: of the tools as well, the slow ones, and the loom models
  tidy            only the house rules (layers, unsafe, links, ...), as a list of findings
  models [NAME..] only the loom models, or those whose names contain NAME
  soak [ARGS]     the soak program of crates/bench, optimised; ARGS go to it (--simulated --seeds N: over the
                  simulated device)
  programs [ARGS] real programs, plain, under octavo run and under kernel swap; --help says more
  against-kernel [ARGS]
                  octavo run beside kernel swap, beside no limit, and alone, in one table; --help says more
  jobs [ARGS]     three programs over guards, a Vec, mapped files and kernel swap, in one table
  latency [ARGS]  how long accesses wait while pages go out, beside kernel swap
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match (command.as_str(), rest) {
        ("test", []) => commands::test(TestExtent::Short),
        ("test", [all]) if all == "--all" => commands::test(TestExtent::All),
        ("tidy", []) => commands::tidy(),
        ("models", rest) => commands::models(rest),
        ("soak", rest) => commands::soak(rest),
        ("programs", rest) => programs::main(rest),
        ("against-kernel", rest) => against_kernel::main(rest),
        ("jobs", rest) => jobs::main(rest),
        ("latency", rest) => latency::main(rest),
        ("help" | "-h" | "--help", _) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        ("test" | "tidy", _) => {
            eprint!("`{command}` takes no such arguments; for a single test, use cargo test.\n\n{USAGE}");
            ExitCode::from(2)
        }
        _ => {
            eprint!("There is no command `{command}`.\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// Returns the top of the repository, whatever the current folder is.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies inside the repository").to_path_buf()
}
