//! Real processes over a device that fails, is late and lies: no wrong byte is read, and nothing hangs.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Builds a binary of the workspace beside this test.
fn build(arguments: &[&str]) {
    let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
    assert!(Command::new(cargo).args(["build", "--quiet"]).args(arguments).status().unwrap().success());
}

#[test]
fn a_device_that_fails_ends_a_program_or_it_passes_but_gives_it_no_wrong_byte() {
    build(&["--package", "octavo-torture"]);
    build(&["--package", "octavo-pager", "--example", "on_failing_device"]);
    let folder: PathBuf = env::current_exe().unwrap().ancestors().nth(2).unwrap().into();
    let mut command = Command::new(folder.join("examples/on_failing_device"));
    command.args(["--seed", "1", "--rounds", "8", "--"]).arg(folder.join("octavo-torture"));
    // The device of seed 5 takes no writes, and most reads of seed 6's fail.
    command.args(["--memory", "192M", "--seconds", "3", "--patience", "120", "--only", "writers,layout"]);
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.contains("stopped: process") && told.contains("exit status: 0"), "{told}");
}
