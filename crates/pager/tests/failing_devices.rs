//! Real processes over a device that fails, is late and returns wrong bytes: no wrong byte is read, and
//! nothing hangs.

use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

/// Builds a binary of the workspace next to this test. A build of all packages' tests has built it already.
fn build(arguments: &[&str]) {
    if env::var_os("OCTAVO_SUITE_OUTPUT").is_some() {
        return;
    }
    let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
    assert!(Command::new(cargo).args(["build", "--quiet"]).args(arguments).status().unwrap().success());
}

/// Runs a program that writes all the time over devices that fail.
fn on_failing_device(rounds: &[&str]) -> Output {
    build(&["--package", "octavo-torture"]);
    build(&["--package", "octavo-pager", "--example", "on_failing_device"]);
    let folder: PathBuf = env::current_exe().unwrap().ancestors().nth(2).unwrap().into();
    let mut command = Command::new(folder.join("examples/on_failing_device"));
    command.args(rounds).arg("--").arg(folder.join("octavo-torture"));
    command.args(["--memory", "192M", "--seconds", "3", "--patience", "120", "--only", "writers,layout"]);
    command.output().unwrap()
}

/// The device has no other faults.
#[test]
fn a_device_that_takes_no_writes_for_a_moment_ends_no_program() {
    let output = on_failing_device(&["--seed", "7", "--no-writes-for", "5000"]);
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!told.contains("failed_writes: 0, lies"), "{told}");
}

/// Tests that run with `cargo xtask test --all`.
mod slow {
    use super::*;

    #[test]
    fn a_device_that_fails_ends_a_program_or_it_passes_but_gives_it_no_wrong_byte() {
        // The device of seed 5 takes no writes, and most reads of seed 6's fail.
        let output = on_failing_device(&["--seed", "1", "--rounds", "8"]);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
        assert!(told.contains("stopped: process") && told.contains("exit status: 0"), "{told}");
    }
}
