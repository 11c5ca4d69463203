//! `octavo-lab oltp` as users see it, and as SIGKILL leaves it.

mod common;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;

use common::{disk_folder, lab, refusal, report_of, text_of};

/// A bank with less memory than data, and checkpoints all the time.
const SMALL_BANK: &str = "oltp --scale 2 --memory 16M --threads 6 --log 4M";

#[test]
fn every_form_makes_transfers_that_add_up() {
    let report = report_of("oltp --mode all --rounds 1 --seconds 0.2 --threads 3 --dir /var/tmp");
    let runs = report["runs"].as_array().expect("runs");
    let modes: Vec<_> = runs.iter().map(|run| run["mode"].as_str().unwrap_or_default()).collect();
    assert_eq!(modes, ["base", "patched", "best"]);
    for run in runs {
        let measure = |name: &str| run["measures"][name].as_f64().expect("a measure");
        assert!(measure("transactions") > 0.0 && measure("p99_us") >= measure("p50_us"), "{run}");
        assert_eq!(measure("transactions"), measure("history_rows"), "{run}");
        assert!(run.get("failures").is_none(), "{run}");
        let counted = |name: &str| run["counters"][name].as_u64().expect("a counter");
        let is_base = run["mode"] == "base";
        assert_eq!(counted("pin_fast") == 0, is_base, "only the base form has no lock-free path: {run}");
        assert!(counted("file_sync") > 0, "{run}");
    }
    assert_eq!(report["ratios"][0]["metric"], "transactions_per_s");
}

/// Kills a bank that works, once it has committed so many more transfers.
fn kill_after(line: &str, commits: &Path, more: u64) {
    let committed = || fs::metadata(commits).map_or(0, |file| file.len() / 8);
    let before = committed();
    let mut child = lab(&format!("{line} --seconds 600"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("octavo-lab starts");
    while committed() < before + more {
        assert!(child.try_wait().unwrap().is_none(), "the bank ended by itself");
        thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_bank_that_is_killed_has_every_transfer_that_was_committed_and_adds_up() {
    let folder = disk_folder();
    let commits = folder.path().join("commits");
    let place = format!("--dir {} --keep --commits {}", folder.path().display(), commits.display());
    let line = format!("{SMALL_BANK} {place}");
    // How many transfers a thread has made by then is up to chance, and any number must do.
    for more in [1, 2, 700, 64, 5, 1500, 1, 333, 9, 2500] {
        kill_after(&line, &commits, more);
        let text = text_of(&format!("{line} --seconds 0"));
        assert!(text.contains("the bank adds up"), "{text}");
    }
}

#[test]
fn a_bank_that_is_killed_while_it_is_made_or_recovered_is_made_or_recovered_again() {
    let folder = disk_folder();
    let commits = folder.path().join("commits");
    let line =
        format!("{SMALL_BANK} --dir {} --keep --commits {}", folder.path().display(), commits.display());
    let log = folder.path().join("bank.log");
    for file in ["bank.data", "bank.log"] {
        let mut child = lab(&format!("{line} --seconds 600")).stderr(Stdio::null()).spawn().unwrap();
        while !folder.path().join(file).exists() {
            thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    kill_after(&line, &commits, 1000);
    for _ in 0..3 {
        let mut child = lab(&format!("{line} --seconds 0")).stdout(Stdio::null()).spawn().unwrap();
        thread::yield_now();
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(log.exists());
    let text = text_of(&format!("{line} --seconds 0.1"));
    assert!(text.contains("the bank adds up: yes"), "{text}");
}

#[test]
fn a_transfer_that_is_missing_is_told() {
    let folder = disk_folder();
    let commits = folder.path().join("commits");
    let line =
        format!("{SMALL_BANK} --dir {} --keep --commits {}", folder.path().display(), commits.display());
    text_of(&format!("{line} --seconds 0.05"));
    let mut noted = fs::read(&commits).unwrap();
    noted.extend_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&commits, noted).unwrap();
    let (code, text) = refusal(&lab(&format!("{line} --seconds 0")).output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("1 transfers that were durable are lost"), "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for line in [
        "--scale 0",
        "--threads 0",
        "--threads 129",
        "--seconds x",
        "--seconds -1",
        "--log 1M",
        "--commits here",
        "--keep --mode all",
        "--keep --rounds 2",
        "--threads 100 --log 8M",
    ] {
        let (code, text) = refusal(&lab(&format!("oltp {line}")).output().unwrap());
        assert_eq!(code, Some(2), "{line}: {text}");
    }
    assert_eq!(lab("oltp --dir /nowhere/at/all --seconds 0").output().unwrap().status.code(), Some(1));
}
