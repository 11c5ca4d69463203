//! The rows: each is data and a few functions.
//!
//! A row says what it needs, how its input is made, and what runs. The program prints output that must be the
//! same in every run. Programs that no package provides have their sources in `inputs/`.

mod compilers;
mod databases;
mod numbers;
mod runtimes;
mod tools;

use super::place::InputFolder;
use crate::machine::packages::Need;

/// One program of the table.
pub struct ProgramRow {
    pub name: &'static str,
    /// The program and its work, for people.
    pub what: &'static str,
    pub needs: &'static [Need],
    /// Makes the input, unless it exists.
    pub prepare: fn(&InputFolder) -> Result<(), String>,
    /// The command line. It starts in an empty folder.
    pub command: fn(&InputFolder) -> Vec<String>,
    /// Returns the part of the output that must be the same in all runs.
    pub compared: fn(&str) -> String,
}

/// All rows, in the order of the table.
pub const ALL: &[ProgramRow] = &[
    numbers::SORT,
    numbers::MATMUL,
    numbers::FFT,
    numbers::BOOLEAN,
    numbers::DICT,
    numbers::GROUPBY,
    numbers::MULTIPROCESSING,
    tools::SORT,
    tools::STRESS,
    databases::REDIS,
    databases::SQLITE,
    databases::POSTGRESQL,
    compilers::GCC,
    compilers::MAKE,
    compilers::CARGO,
    compilers::NPM,
    runtimes::JAVA,
    runtimes::NODE,
    runtimes::GO,
    runtimes::JEMALLOC,
];

/// Returns a line for each row.
pub fn list() -> String {
    ALL.iter().map(|row| format!("  {:<24}{}\n", row.name, row.what)).collect()
}

/// Makes the words of a command line.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Compares the whole output.
fn all(output: &str) -> String {
    output.to_owned()
}

fn nothing(_: &InputFolder) -> Result<(), String> {
    Ok(())
}

const CXX: Need = Need { test: "command -v g++", packages: &["g++"] };
