//! The program as a whole: it passes if nothing is wrong, and finds errors.

use std::collections::BTreeSet;
use std::process::{Command, Output};

const KINDS: [&str; 11] =
    ["writers", "layout", "brk", "protect", "fork", "orphans", "wiped", "io", "direct", "shared", "threads"];

fn torture(arguments: &[&str]) -> Output {
    let program = Command::new(env!("CARGO_BIN_EXE_octavo-torture")).args(arguments).output();
    program.expect("the program was built with this test")
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn all_kinds_at_once_find_nothing_wrong_and_say_what_they_did() {
    for arguments in [&["--seconds", "2"][..], &["--seconds", "2", "--only", "all"]] {
        let output = torture(&[arguments, &["--memory", "24M", "--seed", "3"]].concat());
        assert!(output.status.success(), "{}", errors(&output));
        assert_eq!(errors(&output), "");
        let lines = String::from_utf8(output.stdout).unwrap();
        for kind in KINDS {
            assert!(lines.lines().any(|line| line.starts_with(&format!("{kind}: "))), "{kind} in {lines}");
        }
    }
}

/// Operations that a machine may refuse.
const OPTIONAL: [&str; 4] =
    ["refused", "direct file reads", "into registered buffers", "from registered buffers"];

/// Returns the names of the zero counts in a line such as `kind: 5 reads, 0 writes`.
fn never(line: &str) -> BTreeSet<String> {
    let counts = line.split_once(": ").map_or("", |(_, counts)| counts);
    let zero = counts.split(", ").filter_map(|count| count.strip_prefix("0 "));
    zero.filter(|name| !OPTIONAL.iter().any(|part| name.contains(part))).map(str::to_owned).collect()
}

#[test]
fn every_kind_does_all_that_it_lists() {
    for kind in KINDS {
        let mut missing: Option<BTreeSet<String>> = None;
        for seed in 0..40 {
            let seed = seed.to_string();
            let output = torture(&["--seconds", "1", "--memory", "6M", "--only", kind, "--seed", &seed]);
            assert!(output.status.success(), "{kind}: {}", errors(&output));
            let lines = String::from_utf8(output.stdout).unwrap();
            let still = never(lines.lines().next().unwrap());
            let both = missing.map_or(still.clone(), |before| before.intersection(&still).cloned().collect());
            if both.is_empty() {
                missing = None;
                break;
            }
            missing = Some(both);
        }
        assert_eq!(missing, None, "{kind}");
    }
}

/// Each check must be able to fail. Each kind must find a changed byte and a lost page. Counters must find a
/// lost increment, and probes a store that the permission should have stopped.
#[test]
fn every_kind_finds_what_is_spoilt() {
    let both = KINDS.into_iter().flat_map(|kind| [(kind, "flip"), (kind, "zero")]);
    for (kind, sabotage) in both.chain([("writers", "lose"), ("protect", "open")]) {
        let options = ["--seconds", "30", "--memory", "6M", "--only", kind, "--sabotage", sabotage];
        let output = torture(&options);
        assert_eq!(output.status.code(), Some(1), "{kind} with {sabotage}: {}", errors(&output));
        assert!(
            errors(&output).contains("0x"),
            "{kind} with {sabotage} names no address: {}",
            errors(&output)
        );
    }
}

#[test]
fn a_finding_in_one_of_many_processes_ends_all() {
    let output = torture(&["--seconds", "60", "--memory", "24M", "--sabotage", "zero"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(errors(&output).contains("should be"), "{}", errors(&output));
}

#[test]
fn wrong_options_are_explained() {
    let output = torture(&["--what"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).contains("Usage"));
}
