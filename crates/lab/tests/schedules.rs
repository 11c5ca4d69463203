//! The schedule commands of `octavo-lab` as users see them.

use std::process::{Command, Output};

fn check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo-lab")).args(arguments).output().expect("octavo-lab starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn runs_that_go_well_are_counted() {
    let output = check(&["check", "--seed", "7", "--runs", "5"]);
    assert!(output.status.success() && text(&output).contains("5 runs went well"), "{}", text(&output));
}

#[test]
fn a_run_that_fails_shows_its_interleaving_and_how_to_repeat_it() {
    let name = "reference-kept-for-a-changed-entry";
    let failed = text(&check(&["check", "--runs", "1000", "--mutant", name, "--interleaving", "5"]));
    let again =
        failed.lines().find_map(|line| line.strip_prefix("again: octavo-lab ")).expect("how to repeat it");
    let output = check(&again.split(' ').collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output), failed, "the same words");
    assert!(failed.lines().filter(|line| line.contains(" in ")).count() >= 5, "{failed}");
}

#[test]
fn bugs_are_counted_even_those_that_end_their_process() {
    let bugs = ["evicted-with-other-uses", "read-without-second-look", "root-read-plainly"];
    let output = text(&check(&[&["mutants", "--runs", "200"], &bugs[..]].concat()));
    let row = |name: &str| {
        let line = output.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{output}"));
        line.split_whitespace().nth(2).and_then(|found| found.parse::<u64>().ok())
    };
    assert_eq!(bugs.map(row), [Some(3), Some(3), Some(0)], "{output}");
}

#[test]
fn bad_input_is_refused() {
    for arguments in [&["check", "--mutant", "nonsense"][..], &["check", "--runs", "many"], &[]] {
        let output = check(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output));
    }
}
