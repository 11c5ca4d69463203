//! `--record` and `octavo-lab replay` as users see them: files, tables, reports, refusals.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{lab, refusal, report_of, text_of};
use octavo_trace::{Accesses, ReplayOutcome, Trace, TraceReader, optimum};
use serde_json::Value;
use tempfile::TempDir;

const POLICIES: [&str; 7] = ["reuse", "returns", "generations", "s3-fifo", "sieve", "clock", "fifo"];

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Makes a file with this content. Returns its path, which needs no quotes on a command line.
fn file(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    path
}

fn recorded(path: &Path) -> Vec<Accesses> {
    let bytes = fs::read(path).unwrap();
    TraceReader::new(&*bytes).unwrap().map(Result::unwrap).collect()
}

/// Runs a workload, and returns its recorded accesses.
fn record(line: &str) -> Vec<Accesses> {
    let folder = folder();
    let path = folder.path().join("trace");
    let text = text_of(&format!("{line} --record {}", path.display()));
    let all = recorded(&path);
    let accesses: u64 = all.iter().map(|accesses| accesses.times).sum();
    let told = text.lines().find(|line| line.starts_with("recorded ")).unwrap();
    assert_eq!(told.split_whitespace().nth(1).unwrap().replace(',', ""), accesses.to_string(), "{told}");
    all
}

fn sum_where(all: &[Accesses], is_counted: impl Fn(&Accesses) -> bool) -> u64 {
    all.iter().filter(|accesses| is_counted(accesses)).map(|accesses| accesses.times).sum()
}

/// Returns a figure of a policy in a report.
fn figure(report: &Value, policy: &str, name: &str) -> u64 {
    let rows = report["replays"].as_array().unwrap();
    rows.iter().find(|row| row["policy"] == policy).unwrap()[name].as_u64().unwrap()
}

/// Returns the pages of a loop that does not fit into 16 MiB, with a hot page in between.
fn looped() -> Vec<u32> {
    (0..30_000_u32).flat_map(|time| [5000, time % 5000]).collect()
}

#[test]
fn usemem_records_every_access_of_every_task() {
    let all = record("usemem -n 2 -t 2 -r 2 -j 2k 1M --memory 64M");
    assert_eq!(sum_where(&all, |_| true), 2 * 2 * 2 * 512);
    assert!(all.iter().all(|accesses| accesses.is_write));
    for task in 0..2 {
        assert_eq!(sum_where(&all, |accesses| accesses.task == task), 2 * 2 * 512);
        let mut pages: Vec<_> =
            all.iter().filter(|accesses| accesses.task == task).map(|accesses| accesses.page).collect();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 512, "two threads with pages of their own");
    }
    let reads = record("usemem --readonly -j 4k 1M --memory 64M");
    assert!(reads.iter().all(|accesses| !accesses.is_write && accesses.times == 1));
    assert_eq!(reads.len(), 256);
}

#[test]
fn accesses_that_check_are_recorded_too() {
    let all = record("usemem -r 2 --verify -j 4k 1M --memory 64M");
    assert_eq!(sum_where(&all, |accesses| accesses.is_write), 512);
    assert_eq!(sum_where(&all, |accesses| !accesses.is_write), 256);
}

#[test]
fn swap_commands_record_pages_and_loads() {
    let options = "-n 2 --memory 16M --total 20M --rounds 1 --device ram";
    let half = 10 << 20 >> 12;
    for command in ["swap-w-seq", "swap-w-rand"] {
        let all = record(&format!("{command} {options}"));
        assert_eq!(sum_where(&all, |accesses| accesses.is_write), 2 * half);
        assert_eq!(sum_where(&all, |accesses| accesses.task == 1), half);
        let pages: Vec<u64> =
            all.iter().filter(|accesses| accesses.task == 1).map(|accesses| accesses.page).collect();
        let in_order = pages.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as u64;
        assert_eq!(in_order > half / 2, command == "swap-w-seq", "{in_order} of {half} in order");
    }
    let read_back = record(&format!("swapin {options}"));
    assert_eq!(sum_where(&read_back, |accesses| !accesses.is_write), 2 * half);
    let loads = record(&format!("swap-r-rand {options} --threads 2 --loads 100"));
    assert_eq!(sum_where(&loads, |accesses| !accesses.is_write), 2 * 2 * 100);
    let words = record(&format!("swap-w-seq {options} --words"));
    assert_eq!(sum_where(&words, |accesses| accesses.is_write), 2 * half * 512);
}

#[test]
fn a_recorded_workload_is_replayed_by_all_policies_and_the_optimum() {
    let folder = folder();
    let trace = folder.path().join("trace");
    text_of(&format!("usemem -r 3 -j 2k 20M --memory 64M --record {}", trace.display()));
    let report = report_of(&format!("replay {} --memory 16M", trace.display()));
    assert_eq!(report["format"], "octavo");
    let (accesses, pages) = (3 * 20 * 512, 20 * 256);
    assert_eq!((&report["accesses"], &report["writes"]), (&accesses.into(), &accesses.into()));
    assert_eq!(report["pages"], pages);
    let optimum = |name| figure(&report, "belady", name);
    for policy in POLICIES {
        let of = |name| figure(&report, policy, name);
        assert_eq!(of("hits") + of("misses"), accesses, "{policy}");
        assert!(of("misses") >= optimum("misses"), "{policy}");
        assert!(of("write_backs") > 0 && of("write_backs") < of("misses"), "{policy}");
        assert!((1024..=4096).contains(&of("frames")) && of("frames") <= optimum("frames"), "{policy}");
    }
    // Each page is used twice in a row, so every second access is a hit.
    assert!(optimum("hits") > accesses / 2 && figure(&report, "fifo", "hits") >= accesses / 2);
    assert!(figure(&report, "reuse", "misses") < figure(&report, "fifo", "misses"), "of a loop");
}

#[test]
fn a_trace_that_fits_misses_each_page_once_and_writes_nothing() {
    let folder = folder();
    let keys: String = (0..20_000).map(|time| format!("{}\n", time % 1000)).collect();
    let keys = file(&folder, "keys", keys);
    let report = report_of(&format!("replay {} --memory 16M,32M", keys.display()));
    assert_eq!(report["replays"].as_array().unwrap().len(), 2 * 8);
    for row in report["replays"].as_array().unwrap() {
        assert_eq!((&row["misses"], &row["write_backs"]), (&1000.into(), &0.into()), "{row}");
        assert_eq!(row["hit_ratio"].as_f64().unwrap(), 0.95);
    }
}

#[test]
fn keys_and_objects_of_the_same_trace_have_the_same_figures() {
    let folder = folder();
    let pages = looped();
    let keys: String = pages.iter().map(|page| format!("\"user, {page}\",1\r\n")).collect();
    let keys = file(&folder, "keys", format!("key,size\r\n{keys}"));
    let records = pages.iter().zip(0_u32..).flat_map(|(page, time)| {
        let object = 0xdead_beef_0000_0000 + u64::from(*page);
        [&time.to_le_bytes()[..], &object.to_le_bytes(), &512_u32.to_le_bytes(), &(-1_i64).to_le_bytes()]
            .concat()
    });
    let objects = file(&folder, "objects", records.collect::<Vec<_>>());
    let options = "--memory 16M --policy reuse,fifo,belady";
    let of_keys = report_of(&format!("replay {} {options}", keys.display()));
    let of_objects = report_of(&format!("replay {} {options}", objects.display()));
    assert_eq!((&of_keys["format"], &of_objects["format"]), (&"csv".into(), &"oracle".into()));
    assert_eq!((&of_keys["pages"], &of_keys["writes"]), (&5001.into(), &0.into()));
    for policy in ["reuse", "fifo", "belady"] {
        let [one, other] = [&of_keys, &of_objects].map(|report| figure(report, policy, "misses"));
        assert!(one >= figure(&of_keys, "belady", "misses"), "{policy}: {one}");
        // Frames that a CPU keeps to itself may cause a small difference.
        assert!(one.abs_diff(other) <= one / 50, "{policy}: {one} and {other}");
    }
    let ReplayOutcome { misses, .. } =
        optimum(&Trace::of_reads(&pages).unwrap(), figure(&of_keys, "belady", "frames"));
    assert_eq!(figure(&of_keys, "belady", "misses"), misses);
    assert_eq!(figure(&of_keys, "fifo", "write_backs"), 0, "what was only read is not written");
    let told = report_of(&format!("replay {} {options} --format csv", keys.display()));
    assert_eq!(told["pages"], 5001);
}

#[test]
fn the_optimum_alone_has_the_frames_of_the_default_policy() {
    let folder = folder();
    let keys: String = looped().iter().map(|page| format!("{page}\n")).collect();
    let keys = file(&folder, "keys", keys);
    let frames = |policies: &str| {
        let report = report_of(&format!("replay {} --memory 16M --policy {policies}", keys.display()));
        figure(&report, "belady", "frames")
    };
    assert_eq!(frames("belady"), frames("belady,reuse"));
}

#[test]
fn costs_are_stated_and_follow_their_options() {
    let folder = folder();
    let keys: String = (0..1000).map(|time| format!("{}\n", time % 100)).collect();
    let keys = file(&folder, "keys", keys);
    let line = format!("replay {} --memory 16M --policy fifo", keys.display());
    let text = text_of(&format!("{line} --hit-ns 1000 --miss-ns 2000000 --write-back-ns 7"));
    assert!(text.contains("costs: 1,000 ns a hit, 2,000,000 ns a miss, 7 ns a page written back"), "{text}");
    let row = text.lines().find(|line| line.starts_with("fifo")).unwrap();
    // 900 hits of 1 µs and 100 misses of 2 ms.
    assert!(row.contains("90.00%") && row.ends_with("0.201"), "{row}");
    assert!(text_of(&line).contains("costs: 25 ns a hit, 100,000 ns a miss, 10,000 ns a page written back"));
}

#[test]
fn files_that_are_no_traces_are_refused_with_a_sentence() {
    let folder = folder();
    let trace = folder.path().join("trace");
    text_of(&format!("usemem -j 4k 1M --memory 64M --record {}", trace.display()));
    let good = fs::read(&trace).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let cases: [(&str, Vec<u8>, &str, &str); 8] = [
        ("short", good[..good.len() - 3].to_vec(), "", "ends too early, behind 256 accesses"),
        ("newer", with(8, 2), "", "a trace of version 2, and this program reads versions up to 1"),
        ("larger", with(11, 64), "", "has pages of 16384 bytes, and Octavo's have 4096"),
        ("zeros", vec![0; 500], "", "its format cannot be told; name the format"),
        ("packed", b"\x28\xb5\x2f\xfd\x24".to_vec(), "", "it is compressed; unpack it first"),
        ("empty", Vec::new(), "", "it has no access"),
        ("keys", b"1\n,2\n".to_vec(), "", "line 2 has no key in its first column"),
        ("keys", b"1\n2\n".to_vec(), "--format octavo", "it does not begin as a trace of Octavo's does"),
    ];
    for (name, content, options, reason) in cases {
        let path = file(&folder, name, content);
        let output = lab(&format!("replay {} --memory 16M {options}", path.display())).output().unwrap();
        let (code, complaint) = refusal(&output);
        assert_eq!(code, Some(1), "{name}: {complaint}");
        assert!(complaint.starts_with("octavo-lab: ") && complaint.contains(reason), "{name}: {complaint}");
        assert!(complaint.contains(name) && complaint.trim().lines().count() == 1, "{complaint}");
    }
    let output = lab("replay /nowhere/at/all --memory 16M").output().unwrap();
    let (code, complaint) = refusal(&output);
    assert_eq!(code, Some(1));
    assert!(complaint.contains("cannot open the trace /nowhere/at/all"), "{complaint}");
}

#[test]
fn a_file_that_cannot_be_made_is_refused_before_the_work() {
    for line in ["usemem -j 4k 1M --memory 64M", "swap-w-seq --memory 16M --total 20M"] {
        let output = lab(&format!("{line} --record /nowhere/trace")).output().unwrap();
        let (code, complaint) = refusal(&output);
        assert_eq!(code, Some(1), "{line}");
        assert!(complaint.contains("cannot write the trace to /nowhere/trace"), "{complaint}");
        assert!(output.stdout.is_empty(), "no run was made");
    }
}

#[test]
fn nonsense_on_the_command_line_ends_in_exit_code_2() {
    for (options, reason) in [
        ("", "--memory"),
        ("--memory 8M", "less than a manager works in; give 16 MiB or more"),
        ("--memory 16M --policy lifo", "lifo"),
        ("--memory 16M --policy fifo,fifo", "--policy names fifo twice"),
        ("--memory 16M,16M", "--memory names 16M twice"),
        ("--memory 16M --format tar", "tar"),
        ("--memory 16M --miss-ns many", "many"),
    ] {
        let (code, complaint) = refusal(&lab(&format!("replay keys {options}")).output().unwrap());
        assert_eq!(code, Some(2), "{options}: {complaint}");
        assert!(complaint.contains(reason), "{options}: {complaint}");
    }
    let (code, _) = refusal(&lab("replay --memory 16M").output().unwrap());
    assert_eq!(code, Some(2));
}
