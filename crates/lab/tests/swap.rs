//! The swap commands as users see them: the data that they write and read back, their reports, and their
//! refusals.

mod common;

use std::fs;

use common::{SMALL, disk_folder, lab, refusal, report_of, text_of};

#[test]
fn every_command_reads_back_what_it_wrote() {
    for command in ["swap-w-seq", "swap-w-rand", "swapin", "swap-r-rand -t 2 --loads 3000"] {
        for data in ["random", "text", "zero", "half"] {
            let text = text_of(&format!("{command} {SMALL} --data {data} --rounds 1 --verify"));
            assert!(text.contains("verified: every word"), "{command} {data}: {text}");
            assert!(text.contains("best: peak resident set"), "{command} {data}: {text}");
        }
    }
}

#[test]
fn word_by_word_is_the_same() {
    text_of(&format!("swapin {SMALL} --words --rounds 1 --verify"));
}

#[test]
fn every_policy_keeps_what_was_written() {
    for policy in ["reuse", "returns", "generations", "s3-fifo", "sieve", "clock", "fifo"] {
        let text = text_of(&format!("swapin {SMALL} --policy {policy} --readahead 64K --rounds 1 --verify"));
        assert!(policy == "reuse" || text.contains(&format!("--policy {policy} --readahead 64K")), "{text}");
    }
}

#[test]
fn memory_as_a_device_and_either_engine_keep_what_was_written() {
    let folder = disk_folder();
    let device = folder.path().display();
    for place in [
        "--device ram".to_string(),
        format!("--device {device} --engine threads"),
        format!("--device {device}/swap"),
    ] {
        for mode in ["base", "patched", "best"] {
            text_of(&format!("swapin {SMALL} {place} --mode {mode} --rounds 1 --verify"));
        }
    }
    let text = text_of(&format!("swap-w-seq {SMALL} --device ram --rounds 1"));
    assert!(text.contains("without the device's own"), "{text}");
}

#[test]
fn packed_and_sealed_pages_come_back() {
    for choices in [
        "--compression off",
        "--compression lz4",
        "--compression zstd",
        "--encrypt",
        "--encrypt --compression off",
    ] {
        for data in ["random", "text", "half"] {
            text_of(&format!("swapin {SMALL} {choices} --data {data} --rounds 1 --verify"));
        }
    }
}

#[test]
fn pages_asked_for_ahead_are_the_right_ones() {
    text_of(&format!("swap-r-rand {SMALL} -t 2 --prefetch 8 --loads 2000 --rounds 1 --verify"));
}

#[test]
fn incompressible_data_goes_out_and_the_report_says_how_fast() {
    let report = report_of(&format!("swap-w-seq {SMALL} --rounds 2"));
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!((run["mode"].as_str(), run["tasks"].as_u64()), (Some("best"), Some(2)));
        assert_eq!(run["budget_bytes"], 16 << 20);
        // 24 MiB do not fit.
        assert!(run["counters"]["pswpout"].as_u64().unwrap() >= (24 << 20) / 4096, "{run}");
        let measures = run["measures"].as_object().unwrap();
        for name in ["swap_out_mb_per_s", "device_mb_per_s", "peak_allowed_bytes"] {
            assert!(measures[name].as_f64().unwrap() > 0.0, "{name} in {run}");
        }
        // The rate covers all written bytes and the whole time.
        let (seconds, mb) = (run["seconds"].as_f64().unwrap(), run["mb_per_s"].as_f64().unwrap());
        assert!((mb * 1e6 * seconds / f64::from(40 << 20) - 1.0).abs() < 0.001, "{run}");
        // usemem's formula adds an eighth of the mapping to the words.
        let kb = run["usemem_kb_per_s"].as_f64().unwrap();
        assert!(kb * 1024.0 / (mb * 1e6) > 1.1, "{run}");
    }
}

#[test]
fn loads_are_counted_and_told_by_the_second() {
    let report = report_of(&format!("swap-r-rand {SMALL} -t 3 --loads 500 --rounds 1"));
    let run = &report["runs"][0];
    let per_s = run["measures"]["loads_per_s"].as_f64().unwrap();
    assert!((per_s * run["seconds"].as_f64().unwrap() - 3000.0).abs() < 1.0, "{run}");
    // Random words are not compressed, so they come from the device.
    let ns = |quantile| run["measures"][format!("device_{quantile}_ns")].as_f64().unwrap();
    assert!(0.0 < ns("p50") && ns("p50") <= ns("p99") && ns("p99") <= ns("max"), "{run}");
}

#[test]
fn pages_that_come_back_from_the_pool_are_refaults_and_no_device_traffic() {
    let report = report_of(&format!("swap-r-rand {SMALL} -t 2 --loads 3000 --data half --rounds 1"));
    let run = &report["runs"][0];
    let of = |counter: &str| run["counters"][counter].as_f64().unwrap();
    assert!(of("zswpin") > 0.0, "{run}");
    let seconds = run["seconds"].as_f64().unwrap();
    let pages = |measure: &str| run["measures"][measure].as_f64().unwrap() * seconds;
    let mb_in_pages = 1e6 / 4096.0;
    // No page comes in while pages are written whole. Pages read ahead may come in after the last sample.
    assert!((pages("refaults_per_s") - of("pswpin") - of("zswpin")).abs() < 64.0, "{run}");
    assert!((pages("swap_in_mb_per_s") * mb_in_pages - of("pswpin")).abs() < 64.0, "{run}");
}

#[test]
fn all_modes_print_the_table_of_the_lock() {
    let text = text_of(&format!("swap-w-seq {SMALL} --mode all --rounds 2"));
    for row in [
        "seconds",
        "MB/s",
        "swap-out MB/s",
        "share of samples, add to the cache",
        "share of samples, start of writeback",
        "share of samples, end of writeback",
        "share of samples, removal",
        "acquisitions a page, add to the cache",
        "acquisitions a page, removal",
    ] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row} in {text}");
    }
    // Only the base form takes the lock at the start and the end of writeback.
    for row in ["acquisitions a page, start of writeback", "acquisitions a page, end of writeback"] {
        let line = text.lines().find(|line| line.starts_with(row)).unwrap();
        let figures: Vec<&str> = line[row.len()..].split_whitespace().collect();
        assert_eq!((figures[2], figures[4]), ("0.000", "0.000"), "{line}");
        assert!(figures[0].parse::<f64>().unwrap() >= 0.9, "{line}");
    }
    assert!(text.contains("patched than base") && text.contains("best than base"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("round ")).count(), 6);
}

#[test]
fn the_bare_device_takes_its_turn_and_leaves_nothing() {
    let folder = disk_folder();
    let device = folder.path().display();
    for command in ["swap-w-seq", "swapin", "swap-r-rand -t 2 --loads 500"] {
        let report = report_of(&format!("{command} {SMALL} --device {device} --against disk --rounds 2"));
        let modes: Vec<&str> =
            report["runs"].as_array().unwrap().iter().map(|run| run["mode"].as_str().unwrap()).collect();
        assert_eq!(modes, ["disk", "best", "best", "disk"]);
        assert!(!report["ratios"].as_array().unwrap().is_empty());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_named_file_is_made_and_removed() {
    let folder = disk_folder();
    let path = folder.path().join("swap");
    text_of(&format!("swap-w-seq {SMALL} --device {} --rounds 1 --verify", path.display()));
    assert!(!path.exists());
}

#[test]
fn a_command_line_without_sense_ends_in_exit_code_2() {
    for line in [
        "swap-w-seq -n 0",
        "swap-w-seq --total 4K -n 8",
        "swap-w-seq --total 100000T",
        "swap-w-seq --data jpeg",
        "swap-w-seq --against windows",
        "swap-w-seq --rounds 0",
        "swap-w-seq --mode worst",
        "swap-w-seq --threads 2",
        "swap-w-seq --device ram --against disk",
        "swap-w-seq --device ram --against kernel --against zram",
        "swap-r-rand --loads 5 --seconds 5",
        "swap-r-rand --seconds 0",
        "swap-r-rand --threads 0",
    ] {
        let output = lab(line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line}");
    }
}

#[test]
fn a_device_that_cannot_be_used_is_refused_in_one_sentence() {
    let cases = [
        ("/dev/no-such-disk", "no such device"),
        ("/nowhere/at/all", "neither it nor its directory exists"),
        ("/dev/shm", "which is memory itself"),
        ("/dev/shm/swap", "which is memory itself"),
        ("/etc/passwd", "would be overwritten"),
        ("/dev/zero", "no file, directory or block device"),
    ];
    for (device, reason) in cases {
        let (code, complaint) = refusal(&lab(&format!("swap-w-seq --device {device}")).output().unwrap());
        assert_eq!(code, Some(1), "{device}: {complaint}");
        assert!(complaint.starts_with("octavo-lab: ") && complaint.contains(reason), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    assert_eq!(fs::read("/etc/passwd").unwrap()[..4], *b"root");
}

#[test]
fn more_than_the_disk_has_is_refused_before_anything_is_written() {
    let (code, complaint) = refusal(&lab("swap-w-seq --total 7T --device /var/tmp").output().unwrap());
    assert_eq!(code, Some(1));
    assert!(complaint.contains("are free there"), "{complaint}");
}
