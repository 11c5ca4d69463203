//! What `octavo doctor` finds, and whether its advice gives what it promises.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use common::runs::{OCTAVO, as_nobody, assert_passed, text, torture, without_rights};
use serde_json::Value;

fn findings(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)))
}

fn commands(found: &Value) -> Vec<String> {
    let advice = found["advice"].as_array().unwrap();
    let commands = advice.iter().flat_map(|advice| advice["commands"].as_array().unwrap());
    commands.map(|command| command["command"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn every_probe_has_a_line_and_json_says_the_same() {
    let output = Command::new(OCTAVO).args(["doctor", "--json", "-"]).output().unwrap();
    let (found, said) = (findings(&output), text(&output.stderr));
    for name in [
        "userfaultfd",
        "device",
        "tracing",
        "page scan",
        "soft-dirty",
        "listening",
        "control group",
        "kernel swap",
        "files",
    ] {
        assert!(said.lines().any(|line| line[2..].starts_with(name)), "{name}: {said}");
        let fact = &found["facts"][name.replace([' ', '-'], "_")];
        assert!(said.contains(fact["words"].as_str().unwrap()), "{fact}: {said}");
    }
    assert_eq!(output.status.success(), found["rung"].is_string(), "{found}");
    if let Some(rung) = found["rung"].as_str() {
        assert!(said.contains(&format!("A run takes the {rung} rung")), "{said}");
        assert_eq!(found["rungs"][rung]["works"], true);
    }
}

#[test]
fn files_in_memory_are_found_out() {
    if !Path::new("/dev/shm").is_dir() {
        return;
    }
    let output =
        Command::new(OCTAVO).args(["doctor", "--json", "-"]).env("TMPDIR", "/dev/shm").output().unwrap();
    // The folder that comes next will do.
    assert!(findings(&output)["facts"]["files"]["words"].as_str().unwrap().starts_with("/var/tmp"));
}

/// Nothing but tracing and listening is needed for it.
#[test]
fn a_user_without_rights_is_told_of_the_file_rung_and_it_works() {
    let Some((_folder, octavo)) = without_rights() else { return };
    let output = as_nobody(&octavo).args(["doctor", "--json", "-"]).output().unwrap();
    let found = findings(&output);
    if found["rungs"]["file"]["works"] != true {
        return;
    }
    assert!(text(&output.stderr).contains("With --rung file it keeps one."), "{}", text(&output.stderr));
    let run = as_nobody(&octavo).args(["run", "--memory", "64M", "--", "true"]).output().unwrap();
    assert!(text(&run.stderr).contains("or add --rung file, which works here"), "{}", text(&run.stderr));
    let options = ["run", "--rung", "file", "--strict", "--memory", "64M", "--", "echo", "ran"];
    let run = as_nobody(&octavo).args(options).output().unwrap();
    assert_passed(&run);
    assert_eq!(text(&run.stdout), "ran\n");
}

/// The commands are tried in a mount namespace, on a device of the test's own.
#[test]
fn what_is_advised_to_a_user_without_rights_gives_the_pool_rung() {
    let Some((folder, octavo)) = without_rights() else { return };
    let before = findings(&as_nobody(&octavo).args(["doctor", "--json", "-"]).output().unwrap());
    assert_ne!(before["rung"], "pool", "{before}");
    assert_ne!(before["userfaultfd"], "full", "{before}");
    let advised = commands(&before);
    let wanted = ["chmod 666 /dev/userfaultfd", "setcap cap_sys_ptrace+eip"];
    let [device, right] = wanted.map(|start| {
        let found = advised
            .iter()
            .find_map(|command| command.strip_prefix("sudo ")?.starts_with(start).then_some(command));
        found.unwrap_or_else(|| panic!("{start}: {advised:?}")).trim_start_matches("sudo ").to_owned()
    });
    let number = fs::read_to_string("/proc/misc").unwrap_or_default();
    let number = number.lines().find_map(|line| line.trim().strip_suffix(" userfaultfd"));
    let (Some(number), true) = (number, Command::new("setcap").arg("-h").output().is_ok()) else { return };
    let program = folder.path().join("torture");
    fs::copy(torture(), &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let script = format!(
        "set -e; cd {folder}; mknod device c 10 {number}; mount --bind device /dev/userfaultfd; PATH=.:$PATH; \
         {device}; {right}; as='setpriv --reuid=65534 --regid=65534 --clear-groups'; \
         $as ./octavo doctor --json -; \
         $as ./octavo run --memory 64M --json - -- ./torture --memory 128M --seconds 2 --only writers --folder /var/tmp \
         | tail -n 1",
        folder = folder.path().display(),
    );
    let output = Command::new("unshare").args(["--mount", "bash", "-c", &script]).output().unwrap();
    if text(&output.stderr).contains("unshare failed") {
        return;
    }
    assert_passed(&output);
    let said = text(&output.stdout);
    let [after, summary]: [Value; 2] = [said.lines().next(), said.lines().last()].map(|line| {
        serde_json::from_str(line.unwrap()).unwrap_or_else(|_| panic!("{said}{}", text(&output.stderr)))
    });
    assert_eq!((&after["rung"], &after["userfaultfd"]), (&"pool".into(), &"full".into()), "{after}");
    assert!(summary["swapped_in_bytes"].as_u64().unwrap() > 0, "{summary}{}", text(&output.stderr));
}
