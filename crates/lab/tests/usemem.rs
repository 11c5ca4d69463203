//! `octavo-lab usemem` as users see it: lines, reports, exit codes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_octavo-lab"))
}

fn usemem(line: &str) -> Output {
    lab().arg("usemem").args(line.split_whitespace()).output().unwrap()
}

/// Returns the standard output of a run that succeeds.
fn text_of(line: &str) -> String {
    let output = usemem(line);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{line}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

fn report_of(line: &str) -> Value {
    serde_json::from_str(&text_of(&format!("{line} --json -"))).unwrap()
}

/// Returns the lines that usemem itself prints, as (bytes, usecs, KB/s).
fn statistics(text: &str) -> Vec<(u64, u64, u64)> {
    let numbers =
        |line: &str| -> Vec<u64> { line.split_whitespace().filter_map(|word| word.parse().ok()).collect() };
    text.lines()
        .filter(|line| line.contains(" bytes / ") && line.ends_with(" KB/s"))
        .map(|line| match numbers(line)[..] {
            [bytes, usecs, kb_per_s] => (bytes, usecs, kb_per_s),
            _ => panic!("{line}"),
        })
        .collect()
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn each_task_prints_usemems_two_lines() {
    let text = text_of("-n 3 --readonly -j 0x200000 1G --memory 64M");
    let lines = statistics(&text);
    assert_eq!(lines.len(), 3);
    for (bytes, usecs, kb_per_s) in lines {
        assert_eq!(bytes, (1 << 30) / 8 + 512 * 8);
        assert_eq!(kb_per_s, ((bytes * 1_000_000) >> 10) / usecs);
    }
    assert_eq!(text.lines().filter(|line| line.ends_with(" usecs to free memory")).count(), 3);
}

#[test]
fn a_summary_follows_the_lines() {
    let text = text_of("-n 2 --readonly -j 0x200000 64M --memory 64M");
    let (lines, summary) = text.split_once("\n\n").unwrap();
    let usemem: u64 = statistics(lines).iter().map(|line| line.2).sum();
    assert!(lines.starts_with("as usemem counts (an eighth of what is mapped"), "{lines}");
    assert!(summary.contains("wall time") && summary.contains(" MB/s of bytes touched"), "{summary}");
    assert!(summary.contains(&format!("as usemem   {usemem} KB/s: the lines above, added up")), "{summary}");
    assert!(summary.contains("faults      64 ("), "{summary}");
    assert!(summary.contains("pgfault 64"), "{summary}");
    assert!(!summary.contains("pin_slow"), "only counters that moved are named: {summary}");
}

#[test]
fn the_bytes_that_were_really_touched_are_told() {
    let text = text_of("-r 2 16M --memory 64M");
    let told = "touched     33,554,432 bytes (4,194,304 accesses of 8 bytes, in 2 passes over 16M)";
    assert!(text.contains(told), "{text}");
    let text = text_of("-n 2 -t 2 --readonly -j 0x200000 64M --memory 64M");
    assert!(text.contains("touched     1,024 bytes (128 accesses of 8 bytes, in 1 pass over 64M)"), "{text}");
    let report = report_of("-r 3 -j 4k 1M --memory 64M");
    let run = &report["runs"][0];
    let touched = run["mb_per_s"].as_f64().unwrap() * run["seconds"].as_f64().unwrap() * 1e6;
    assert!((touched - 3.0 * 256.0 * 8.0).abs() < 0.5, "{run}");
}

#[test]
fn a_run_that_will_take_over_ten_seconds_says_so_in_its_first_seconds() {
    let line = ["usemem", "-n", "2", "-r", "2000", "64M", "--memory", "256M"];
    let mut child = lab().args(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.starts_with("this will take ") && !first.contains("turns"), "{first}");
}

#[test]
fn threads_of_a_task_share_its_space_and_print_their_own_lines() {
    let text = text_of("-n 2 -t 3 -j 4096 -u 1M 2M --memory 64M");
    assert_eq!(statistics(&text).len(), 6);
}

#[test]
fn options_of_usemem_are_taken_by_their_long_and_short_names() {
    text_of("-n 1 -t 1 -j 4k -r 2 -R -u 64k -o -O 1m --memory 64M");
    text_of("--nproc 1 --thread 1 --step 4K --repeat 2 --random --unit 64K --readonly --anonymous 1M");
}

#[test]
fn every_value_comes_back_under_a_budget_a_quarter_of_the_memory() {
    let text = text_of("-n 4 -r 2 --verify 32M --memory 32M");
    assert!(text.contains("verified    each repeat read what the last one wrote"), "{text}");
    // The budget made pages go out and come back.
    assert!(text.contains("pswpout") && text.contains("pswpin"), "{text}");
}

#[test]
fn random_writes_come_back_too() {
    text_of("-n 2 -t 2 -r 3 -R -j 512 --verify 16M --memory 32M");
}

#[test]
fn the_report_has_its_documented_shape() {
    let report = report_of("-n 2 --readonly -j 0x200000 256M --memory 64M");
    assert_eq!(keys(&report), BTreeSet::from(["workload", "runs", "ratios"]));
    let run = &report["runs"][0];
    let expected = BTreeSet::from([
        "mode",
        "tasks",
        "budget_bytes",
        "seconds",
        "mb_per_s",
        "usemem_kb_per_s",
        "faults",
        "faults_per_s",
        "peak_rss_bytes",
        "counters",
        "shares",
    ]);
    assert_eq!(keys(run), expected);
    assert_eq!((run["mode"].as_str(), run["tasks"].as_u64()), (Some("best"), Some(2)));
    assert_eq!(run["budget_bytes"], 64 << 20);
    assert_eq!((run["faults"].as_u64(), run["counters"]["pgfault"].as_u64()), (Some(256), Some(256)));
    assert!(run["seconds"].as_f64().unwrap() > 0.0);
    assert!(run["peak_rss_bytes"].as_u64().unwrap() > 0);
    assert_eq!(report["ratios"].as_array().unwrap().len(), 0);
}

#[test]
fn all_modes_and_the_kernel_run_by_turns_and_every_pair_is_compared() {
    let report =
        report_of("-n 2 --readonly -j 0x200000 256M --memory 64M --mode all --against kernel --rounds 3");
    let modes: Vec<&str> =
        report["runs"].as_array().unwrap().iter().map(|run| run["mode"].as_str().unwrap()).collect();
    let sides: BTreeSet<&str> = modes.iter().copied().collect();
    assert!(["kernel", "base", "patched", "best"].iter().all(|side| sides.contains(side)), "{sides:?}");
    assert!(sides.len() == 4 || sides.contains("kernel-huge"), "{sides:?}");
    let rounds: Vec<BTreeSet<&str>> =
        modes.chunks(sides.len()).map(|round| round.iter().copied().collect()).collect();
    assert_eq!(rounds, vec![sides.clone(); 3]);

    let ratios = report["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), sides.len() * (sides.len() - 1) / 2 * 2);
    for ratio in ratios {
        assert_eq!(keys(ratio), BTreeSet::from(["of", "to", "metric", "median", "min", "max"]));
        let value = |key: &str| ratio[key].as_f64().unwrap();
        assert!(0.0 < value("min") && value("min") <= value("median") && value("median") <= value("max"));
    }
}

#[test]
fn the_kernels_side_touches_the_same_words() {
    let report = report_of("-n 2 -t 2 -j 4096 -r 2 --verify 4M --memory 64M --against kernel --rounds 1");
    let run = |mode: &str| {
        let runs = report["runs"].as_array().unwrap();
        runs.iter().find(|run| run["mode"] == mode).unwrap().clone()
    };
    assert_eq!(run("kernel")["budget_bytes"], Value::Null);
    assert!(run("kernel")["faults"].as_u64().unwrap() > 0);
    assert!(run("kernel")["peak_rss_bytes"].as_u64().unwrap() >= 2 * (4 << 20));
    assert!(run("best")["faults"].as_u64().unwrap() > 0);
}

#[test]
fn a_comparison_prints_a_table_and_says_what_the_kernel_was_given() {
    let text = text_of("-n 2 --readonly -j 0x200000 64M --memory 64M --against kernel --rounds 2");
    assert!(text.contains("the kernel runs ") && text.contains("fork and exit are left out"), "{text}");
    assert!(text.contains("the budget of 64M binds Octavo's side; the kernel knows none"), "{text}");
    let sides = if text.contains("the kernel runs twice") { 3 } else { 2 };
    assert_eq!(text.lines().filter(|line| line.starts_with("round ")).count(), 2 * sides);
    let (job, usemem) = (text.find("the whole job").unwrap(), text.find("as usemem counts").unwrap());
    assert!(job < usemem && !text[..usemem].contains("KB/s"), "{text}");
    // Octavo is compared by seconds with the better of the kernel's two sides.
    let compared: Vec<&str> = text.lines().filter(|line| line.starts_with("best than ")).collect();
    assert_eq!(compared.len(), 1, "{text}");
    assert!(compared[0].starts_with("best than kernel") && compared[0].contains(" seconds "), "{text}");
    assert!(sides == 2 || text.contains("(of the kernel's two, kernel"), "{text}");
}

#[test]
fn a_report_goes_to_a_file_and_replaces_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    std::fs::write(&path, "x".repeat(100_000)).unwrap();
    let text = text_of(&format!("--readonly -j 0x200000 64M --memory 64M --json {}", path.display()));
    assert_eq!(statistics(&text).len(), 1);
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(report["workload"], "usemem -n 1 -t 1 -j 0x200000 -r 1 --readonly 64M");
}

#[test]
fn a_command_line_without_sense_ends_in_exit_code_2() {
    let lines = [
        "",
        "--sideways 1G",
        "-n 0 1G",
        "-t 0 1G",
        "-r 0 1G",
        "-j 7 1G",
        "-u 100 1G",
        "7",
        "1.5.1G",
        "99999999999T",
        "--verify --readonly -r 2 1G",
        "--verify 1G",
        "--mode worst 1G",
        "--against windows 1G",
        "--rounds 0 1G",
        "--memory lots 1G",
    ];
    for line in lines {
        let output = usemem(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line}");
    }
    assert_eq!(lab().arg("dance").output().unwrap().status.code(), Some(2));
    let verify = String::from_utf8(usemem("--verify 1G").stderr).unwrap();
    assert!(verify.contains("add -r 2 or more"), "{verify}");
}

#[test]
fn the_engines_errors_are_one_sentence_and_exit_code_1() {
    for line in ["--memory 1M 64M", "--memory 1000T 64M"] {
        let output = usemem(line);
        assert_eq!(output.status.code(), Some(1), "{line}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.starts_with("octavo-lab: ") && complaint.contains("budget"), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_the_work() {
    let output = usemem("-n 1000 1T --json /nowhere/at/all.json");
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(
        complaint.starts_with("octavo-lab: cannot write the report to /nowhere/at/all.json: "),
        "{complaint}"
    );
}

#[test]
fn the_kernel_is_not_asked_for_more_than_there_is() {
    let output = usemem("-n 100 -j 4096 1T --against kernel");
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("the kernel's side would need"), "{complaint}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = lab()
        .args(["usemem", "-n", "50", "--readonly", "-j", "0x200000", "64M", "--memory", "64M"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut complaint = String::new();
    child.stderr.take().unwrap().read_to_string(&mut complaint).unwrap();
    assert_eq!((child.wait().unwrap().code(), complaint.as_str()), (Some(0), ""));
}

#[test]
fn nobody_starts_the_hidden_command_by_mistake() {
    let output = lab().args(["kernel-task", "now"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("started by octavo-lab itself"));
    let help = String::from_utf8(lab().arg("--help").output().unwrap().stdout).unwrap();
    assert!(help.contains("usemem") && !help.contains("kernel-task"));
}
