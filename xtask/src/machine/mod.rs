//! What measuring programs from outside takes: control groups, swap files, processes, and a warden that undoes all of it.
//!
//! [`crate::programs`] and [`crate::against_kernel`] stand on this.

pub mod document;
pub mod kernel;
pub mod packages;
pub mod process;
pub mod sampler;
pub mod warden;

use std::path::{Path, PathBuf};

/// The folder for inputs, swap files and scratch: `XDG_CACHE_HOME/octavo-programs`, or `target/programs`.
pub fn cache() -> Result<PathBuf, String> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) if !cache.is_empty() => Path::new(&cache).join("octavo-programs"),
        _ => crate::root().join("target/programs"),
    };
    std::fs::create_dir_all(&cache).map_err(|error| format!("cannot make {}: {error}", cache.display()))?;
    Ok(cache)
}

/// The path of a file from anywhere: programs run in folders of their own.
pub fn absolute(path: &str) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("cannot tell where {path} is: {error}"))
}

/// Whether this is an `octavo` that can run programs. If not, says how to make one.
pub fn is_octavo(program: &Path) -> bool {
    let mut help = std::process::Command::new(program);
    help.args(["run", "--help"]).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let there = help.status().is_ok_and(|status| status.success());
    if !there {
        eprintln!("{} has no `run`: build it by cargo build --release -p octavo-cli.", program.display());
    }
    there
}
