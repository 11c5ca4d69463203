//! `octavo-lab udp-stream` as users see it. Its speed depends on the machine; the messages sent and freed do
//! not.

use std::process::{Command, Output};

use serde_json::Value;

fn lab(line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_octavo-lab"))
        .args(line.split_whitespace())
        .output()
        .expect("octavo-lab starts")
}

#[test]
fn messages_of_every_kind_of_place_arrive_as_they_were_sent_and_all_frames_come_back() {
    // A part of a slab, an odd length, a block of order 2, and the largest possible datagram.
    let output = lab("udp-stream --sizes 64,3313,8192,65507 --iterations 2 --runs 2 --seconds 0.02 --json -");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("send-65507") && text.contains("2 iterations of 2 runs each"), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let runs = report["runs"].as_array().expect("runs");
    let modes: Vec<_> = runs.iter().map(|run| run["mode"].as_str().unwrap_or_default()).collect();
    assert_eq!(modes, ["base", "patched", "best", "base", "patched", "best"]);
    for run in runs {
        let count = |name: &str| run["counters"][name].as_u64().expect("a count");
        assert!(count("sent") >= 4 * 2 * 16 && count("received") > 0, "{run}");
        assert!(count("received") <= count("sent"), "{run}");
        assert!(run["measures"]["send-8192"].as_f64().is_some_and(|rate| rate > 0.0), "{run}");
        assert!(run.get("failures").is_none(), "{run}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for line in [
        "--sizes 16",
        "--sizes 65508",
        "--seconds 0",
        "--seconds x",
        "--runs 1",
        "--runs 11",
        "--iterations 0",
    ] {
        let output = lab(&format!("udp-stream {line}"));
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
    assert_eq!(lab("udp-stream --json /nowhere/x.json").status.code(), Some(1));
}
