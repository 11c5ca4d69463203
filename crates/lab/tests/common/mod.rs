//! Helpers of the program's tests.
#![allow(dead_code, reason = "each test uses some of it")]

use std::process::{Command, Output};

use serde_json::Value;

/// Options of a small and quick run, with more data than memory.
pub const SMALL: &str = "-n 2 --memory 16M --total 40M";

pub fn lab(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo-lab"));
    command.args(line.split_whitespace());
    command
}

/// Returns the standard output of a run that succeeds.
pub fn text_of(line: &str) -> String {
    let output = lab(line).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{line}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

pub fn report_of(line: &str) -> Value {
    serde_json::from_str(&text_of(&format!("{line} --json -"))).unwrap()
}

/// Returns the exit code and standard error.
pub fn refusal(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

pub fn disk_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Returns the cells of a table's row that begins with `side`, below the line that begins with `title`.
pub fn row_of<'t>(text: &'t str, title: &str, side: &str) -> Vec<&'t str> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(title));
    let row = lines.find(|line| line.split_whitespace().next() == Some(side));
    row.unwrap_or_else(|| panic!("no row of {side} below {title:?} in {text}")).split_whitespace().collect()
}
