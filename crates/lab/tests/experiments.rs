//! The lab's commands: golden runs of the simulator, whose bytes are the same on every machine, and bad
//! input.

use std::path::Path;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo-lab")).args(arguments).output().expect("octavo-lab starts")
}

/// Returns the JSON of a run that measures nothing here.
fn simulated(arguments: &[&str]) -> String {
    let output = lab(&[arguments, &["--no-measure", "--json", "-"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("JSON is text")
}

/// Compares with the file of this name. With `OCTAVO_GOLDEN=write` in the environment, the file is written
/// anew. Use this after a change of the engine or the simulator, and review the new figures.
fn is_golden(name: &str, arguments: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let now = simulated(arguments);
    if std::env::var_os("OCTAVO_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(&path, &now).expect("the folder of golden runs can be written");
    }
    let golden = std::fs::read_to_string(&path).expect("a golden run");
    assert!(now == golden, "not the bytes of {}; OCTAVO_GOLDEN=write renews it:\n{now}", path.display());
}

#[test]
fn the_zero_page_is_golden() {
    is_golden("zero-page.json", &["zero-page", "--tasks", "72", "--steps", "40"]);
}

#[test]
fn the_swap_cache_is_golden() {
    is_golden("swap-cache.json", &["swap-cache", "--tasks", "3", "--pages", "1500", "--memory", "16M"]);
}

#[test]
fn the_percpu_lists_are_golden() {
    is_golden("percpu-lists.json", &["percpu-lists", "--messages", "300"]);
}

#[test]
fn the_pin_is_golden() {
    is_golden("pin.json", &["pin", "--reads", "50"]);
}

#[test]
fn another_seed_gives_other_figures_near_by() {
    let throughput = |seed: &str| {
        let json = simulated(&["zero-page", "--steps", "40", "--seed", seed]);
        let (_, rest) = json.split_once("simulated-linux").expect("a simulated line");
        let (_, rest) = rest.split_once("\"base\":").expect("a base figure");
        rest.split(',').next().expect("a figure").parse::<f64>().expect("a number")
    };
    let (one, other) = (throughput("1"), throughput("2"));
    assert_ne!(one, other);
    assert!((one / other - 1.0).abs() < 0.2, "{one} and {other}");
}

#[test]
fn the_machines_are_listed_with_what_they_were_tested_with() {
    let output = lab(&["machines"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for word in ["haswell-ep", "tigerton", "fitted", "test"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_profile_names_functions_and_lines() {
    let output = lab(&["zero-page", "--steps", "20", "--no-measure", "--profile"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("frame/zero_page::get_live") && text.contains("cache line"), "{text}");
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, "name = 1").unwrap();
    let file = file.to_str().unwrap();
    for (arguments, reason) in [
        (&["zero-page", "--machine", "pdp-11"][..], "no machine that comes along"),
        (&["zero-page", "--machine", file], "makes no sense"),
        (&["zero-page", "--machine", "tigerton", "--tasks", "9"], "has 8 CPUs"),
        (&["zero-page", "--tasks", "0"], "0 is not in"),
        (&["pin", "--pages", "65"], "65 is not in"),
        (&["nonsense"], "unrecognized subcommand"),
    ] {
        let output = lab(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(reason), "{arguments:?}: {said}");
    }
}
