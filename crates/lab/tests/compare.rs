//! `octavo-lab compare` on results of real runs: every layout, and bad input.

use std::path::Path;
use std::process::{Command, Output};

fn lab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo-lab")).args(arguments).output().expect("octavo-lab starts")
}

fn text_of(arguments: &[&str]) -> String {
    let output = lab(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("tables are text")
}

/// Makes results of a small workload.
fn results(path: &Path, more: &[&str]) -> String {
    let path = path.to_str().expect("a path of letters").to_string();
    text_of(&[&["usemem", "-n", "2", "8M", "--rounds", "3", "--json", &path], more].concat());
    path
}

#[test]
fn every_layout_shows_the_same_runs() {
    let folder = tempfile::tempdir().unwrap();
    let modes = results(&folder.path().join("modes.json"), &["--mode", "all"]);
    let plain = text_of(&["compare", &modes]);
    assert!(plain.starts_with("usemem -n 2"), "{plain}");
    assert!(plain.contains("(3 of base, 3 of patched, 3 of best)"), "{plain}");
    let lkp = text_of(&["compare", &modes, "--layout", "lkp", "--all"]);
    assert!(lkp.contains("%stddev     %change         %stddev"), "{lkp}");
    assert!(lkp.contains("  usemem.seconds\n") && lkp.contains("  counters.pgfault\n"), "{lkp}");
    let mmtests = text_of(&["compare", &modes, "--layout", "mmtests"]);
    assert!(mmtests.starts_with("usemem\n") && mmtests.contains("Hmean     usemem_kb_per_s"), "{mmtests}");
    assert!(mmtests.contains("Amean     seconds"), "{mmtests}");
}

#[test]
fn two_files_are_compared_by_name_and_a_metric_is_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (folder.path().join("before.json"), folder.path().join("after.json"));
    let (before, after) = (results(&before, &[]), results(&after, &["--against", "kernel"]));
    let table = text_of(&["compare", &before, &format!("{after}#kernel"), "--metric", "seconds"]);
    assert!(table.lines().nth(1).is_some_and(|header| header.contains("before#best  ")), "{table}");
    assert!(table.contains("after#kernel") && table.lines().count() == 4, "{table}");

    let refused = |arguments: &[&str], part: &str| {
        let output = lab(arguments);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains(part), "{complaint}");
    };
    refused(&["compare", &before, &after], "has runs of kernel, ");
    refused(&["compare", &before], "name another file");
    refused(&["compare", "/nowhere.json"], "cannot read the results /nowhere.json");
    refused(&["compare", &after, "--metric", "nothing"], "there are seconds");
    assert_eq!(lab(&["compare"]).status.code(), Some(2));
}
