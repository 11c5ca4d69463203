//! The commands: the steps that each runs, in order.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::root;
use crate::step::Steps;
use crate::tidy::{self, Tree};

/// Runs every test of the project, each counted once, and prints the summary line.
pub fn test() -> ExitCode {
    let mut steps = Steps::default();
    test_steps(&mut steps);
    steps.finish()
}

/// Runs the tests, then the checks that keep the source in order. The summary counts tests. A failed check
/// names itself above the summary and fails the command.
pub fn ci() -> ExitCode {
    let mut steps = Steps::default();
    test_steps(&mut steps);
    steps.check("formatting", cargo(&["fmt", "--all", "--check"]));
    let mut clippy = cargo(&["clippy", "--workspace", "--all-targets"]);
    clippy.args(["--", "-D", "warnings"]);
    steps.check("clippy", clippy);
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    doc.env("RUSTDOCFLAGS", "-D warnings");
    steps.check("documentation", doc);
    steps.finish()
}

/// Checks only the house rules, and prints a list of findings.
pub fn tidy() -> ExitCode {
    let findings = tidy::check(&Tree::load(&root()));
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("The tree is tidy.");
            ExitCode::SUCCESS
        }
        n => {
            println!("{n} findings.");
            ExitCode::FAILURE
        }
    }
}

/// Runs only the loom models, or those whose names contain one of the filters.
pub fn models(filters: &[String]) -> ExitCode {
    let mut steps = Steps::default();
    let all = ["loom_".to_string()];
    steps.tests("loom models", model_command(if filters.is_empty() { &all } else { filters }));
    steps.finish()
}

/// Runs the soak program, which prints its seed and its time.
pub fn soak(arguments: &[String]) -> ExitCode {
    let mut command = cargo(&["run", "--release", "-p", "octavo-bench", "--bin", "soak", "--"]);
    command.args(arguments);
    match command.status() {
        Ok(status) => {
            status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code.clamp(0, 255) as u8))
        }
        Err(error) => {
            eprintln!("cargo could not be started: {error}");
            ExitCode::FAILURE
        }
    }
}

fn test_steps(steps: &mut Steps) {
    // The rules go first, because they take a second. They are tests of the xtask package, and are counted
    // there.
    steps.tests("house rules", cargo(&["test", "--package", "xtask", "--no-fail-fast"]));
    steps.tests(
        "workspace and documentation tests",
        cargo(&["test", "--workspace", "--exclude", "xtask", "--no-fail-fast"]),
    );
    steps.tests("loom models", model_command(&["loom_".to_string()]));
}

/// Makes the command `RUSTFLAGS="--cfg loom" cargo test -p octavo --lib --release loom_`. It has a target
/// directory of its own, so that it does not throw away the builds of the other commands.
fn model_command(filters: &[String]) -> Command {
    let mut command = cargo(&["test", "--package", "octavo", "--lib", "--release", "--"]);
    command.args(filters);
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    command.env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.env("RUSTFLAGS", format!("{flags} --cfg loom").trim());
    command.env("CARGO_TARGET_DIR", target_dir().join("loom"));
    // A model is optimised to walk more states, not to walk them with fewer assertions. Link-time optimisation
    // would only make the build longer.
    command.env("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true");
    command.env("CARGO_PROFILE_RELEASE_LTO", "off");
    command
}

fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}
