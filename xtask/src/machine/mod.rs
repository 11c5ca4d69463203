//! Tools for measuring programs from outside: control groups, swap files, processes, and a warden that undoes
//! all changes.
//!
//! [`crate::programs`], [`crate::against_kernel`], [`crate::jobs`] and [`crate::latency`] use these tools.

pub mod document;
pub mod kernel;
pub mod packages;
pub mod process;
pub mod run;
pub mod sampler;
pub mod warden;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Returns the folder for inputs, swap files and scratch: `XDG_CACHE_HOME/octavo-programs`, or
/// `target/programs`.
pub fn cache() -> Result<PathBuf, String> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) if !cache.is_empty() => Path::new(&cache).join("octavo-programs"),
        _ => crate::root().join("target/programs"),
    };
    std::fs::create_dir_all(&cache).map_err(|error| format!("cannot make {}: {error}", cache.display()))?;
    Ok(cache)
}

/// Returns the absolute path of a file, since programs run in folders of their own.
pub fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("cannot tell where {path} is: {error}"))
}

/// Returns whether this is an `octavo` that can run programs. If not, says how to build one.
pub fn is_octavo(program: &Path) -> bool {
    let mut help = std::process::Command::new(program);
    help.args(["run", "--help"]).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let there = help.status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("{} has no `run`: build it by cargo build --release -p octavo-cli.", program.display());
    }
    there
}

/// Builds a program of `crates/bench`, and returns its path.
pub fn build_bench(program: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = std::process::Command::new(cargo);
    build.current_dir(crate::root());
    build.args(["build", "--quiet", "--release", "--package", "octavo-bench", "--bin", program]);
    let built = build.status().map_err(|error| format!("cargo could not be started: {error}"))?;
    if !built.success() {
        return Err(format!("the program `{program}` of crates/bench could not be built"));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(crate::root().join(Path::new(&target)).join("release").join(program))
}

/// Runs a command that measures. If the options make no sense, prints the usage. If they ask for help, prints
/// the help. If the command fails, prints the reason.
pub fn command<O>(
    usage: &str,
    help: impl FnOnce() -> String,
    options: Result<Option<O>, String>,
    measure: impl FnOnce(&O) -> Result<(), String>,
) -> ExitCode {
    match options {
        Ok(None) => println!("{}", help()),
        Err(sentence) => {
            eprintln!("{sentence}.\n\n{usage}");
            return ExitCode::from(2);
        }
        Ok(Some(options)) => {
            if let Err(sentence) = measure(&options) {
                eprintln!("{sentence}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Returns the number behind an option, if a measurement can use it.
pub fn number(option: &str, word: Option<&String>) -> Result<u64, String> {
    let number = word.and_then(|word| word.parse().ok()).filter(|number| (1..1 << 20).contains(number));
    number.ok_or_else(|| format!("{option} needs a number from 1 to {}", (1 << 20) - 1))
}
