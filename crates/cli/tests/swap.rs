//! The swap commands as their users meet them: results, refusals, and a machine that is as it was afterwards.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

/// Small and quick, with more data than memory.
const SMALL: &str = "-n 2 --memory 16M --total 40M";
const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const NOBODY: u32 = 65534;

fn octavo(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command.args(line.split_whitespace());
    command
}

/// Standard output of a run that went well.
fn text_of(line: &str) -> String {
    let output = octavo(line).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{line}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

fn report_of(line: &str) -> Value {
    serde_json::from_str(&text_of(&format!("{line} --json -"))).unwrap()
}

/// Exit code and what was said on standard error.
fn refusal(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Those that change the machine, one at a time.
fn machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the kernel's side can be tested here; says why not.
fn is_root(test: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        println!("{test} skipped: it takes root to set up kernel swap");
    }
    root
}

fn disk_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

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
    for policy in ["reuse", "generations", "s3-fifo", "sieve", "clock", "fifo"] {
        let text = text_of(&format!("swapin {SMALL} --policy {policy} --readahead 64K --rounds 1 --verify"));
        assert!(
            policy == "reuse" || text.contains(&format!("--policy {policy} --readahead 0x10000")),
            "{text}"
        );
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
        for name in ["mb_per_s", "swap_out_kb_per_s", "device_mb_per_s", "peak_allowed_bytes"] {
            assert!(measures[name].as_f64().unwrap() > 0.0, "{name} in {run}");
        }
        // usemem's formula: an eighth of the mapping beside the words.
        let (kb, mb) = (run["throughput_kb_per_s"].as_f64().unwrap(), measures["mb_per_s"].as_f64().unwrap());
        assert!(kb * 1024.0 / (mb * 1e6) > 1.1, "{run}");
    }
}

#[test]
fn loads_are_counted_and_told_by_the_second() {
    let report = report_of(&format!("swap-r-rand {SMALL} -t 3 --loads 500 --rounds 1"));
    let run = &report["runs"][0];
    let per_s = run["measures"]["loads_per_s"].as_f64().unwrap();
    assert!((per_s * run["seconds"].as_f64().unwrap() - 3000.0).abs() < 1.0, "{run}");
}

#[test]
fn pages_that_come_back_from_the_pool_are_refaults_and_no_device_traffic() {
    let report = report_of(&format!("swap-r-rand {SMALL} -t 2 --loads 3000 --data half --rounds 1"));
    let run = &report["runs"][0];
    let of = |counter: &str| run["counters"][counter].as_f64().unwrap();
    assert!(of("zswpin") > 0.0, "{run}");
    let seconds = run["seconds"].as_f64().unwrap();
    let pages = |measure: &str| run["measures"][measure].as_f64().unwrap() * seconds;
    // Nothing comes in while pages are written whole. What is read ahead may come in after the last look.
    assert!((pages("refaults_per_s") - of("pswpin") - of("zswpin")).abs() < 64.0, "{run}");
    assert!((pages("swap_in_kb_per_s") / 4.0 - of("pswpin")).abs() < 64.0, "{run}");
}

#[test]
fn all_modes_print_the_seeds_table() {
    let text = text_of(&format!("swap-w-seq {SMALL} --mode all --rounds 2"));
    for row in [
        "throughput KB/s",
        "swap-out KB/s",
        "share of samples, add to the cache",
        "share of samples, start of writeback",
        "share of samples, end of writeback",
        "share of samples, removal",
        "acquisitions a page, add to the cache",
        "acquisitions a page, removal",
    ] {
        assert!(text.lines().any(|line| line.starts_with(row)), "{row} in {text}");
    }
    // Start and end of writeback take the lock in the base form, and in it alone.
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
        let output = octavo(line).output().unwrap();
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
        let (code, complaint) = refusal(&octavo(&format!("swap-w-seq --device {device}")).output().unwrap());
        assert_eq!(code, Some(1), "{device}: {complaint}");
        assert!(complaint.starts_with("octavo: ") && complaint.contains(reason), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
    assert_eq!(fs::read("/etc/passwd").unwrap()[..4], *b"root");
}

#[test]
fn more_than_the_disk_has_is_refused_before_anything_is_written() {
    let (code, complaint) = refusal(&octavo("swap-w-seq --total 7T --device /var/tmp").output().unwrap());
    assert_eq!(code, Some(1));
    assert!(complaint.contains("are free there"), "{complaint}");
}

#[test]
fn the_kernels_side_asks_for_root() {
    let folder = disk_folder();
    let program = folder.path().join("octavo");
    fs::copy(env!("CARGO_BIN_EXE_octavo"), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["swap-w-seq", "--against", "kernel", "--device", "/var/tmp"]);
    command.args(SMALL.split_whitespace()).current_dir("/");
    if geteuid().is_root() {
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        command.uid(NOBODY).gid(NOBODY);
    }
    let (code, complaint) = refusal(&command.output().unwrap());
    assert_eq!(code, Some(1), "{complaint}");
    assert!(complaint.contains("which takes root; run it as root, or leave it out"), "{complaint}");
}

#[test]
fn help_is_there_for_each_and_hides_what_octavo_starts_itself() {
    for command in ["swap-w-seq", "swap-w-rand", "swapin", "swap-r-rand"] {
        let help = text_of(&format!("{command} --help"));
        assert!(help.contains("--against") && help.contains("Examples:"), "{command}: {help}");
        assert_eq!(help.contains("--prefetch"), command == "swap-r-rand");
    }
    let help = text_of("--help");
    assert!(!help.contains("swap-task") && !help.contains("swap-keeper"), "{help}");
    let (code, complaint) = refusal(&octavo("swap-task now").output().unwrap());
    assert_eq!(code, Some(1));
    assert!(complaint.contains("started by octavo itself"), "{complaint}");
}

/// What of ours there is in the kernel: areas below the folder, control groups.
fn left_on_the_machine(folder: &Path) -> Vec<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let mut left: Vec<String> =
        swaps.lines().filter(|line| line.contains(folder.to_str().unwrap())).map(str::to_string).collect();
    left.extend(fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().display().to_string()));
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"] {
        let groups = fs::read_dir(root).into_iter().flatten().flatten();
        let ours = groups.filter(|group| group.file_name().to_string_lossy().starts_with("octavo-swap-"));
        left.extend(ours.map(|group| group.path().display().to_string()));
    }
    left.extend(
        fs::read_dir("/run/octavo")
            .into_iter()
            .flatten()
            .map(|note| note.unwrap().path().display().to_string()),
    );
    left
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_kernels_side_does_the_same_and_leaves_the_machine_as_it_was() {
    if !is_root("the kernel's side") {
        return;
    }
    let _machine = machine();
    let folder = disk_folder();
    let cluster = fs::read_to_string(PAGE_CLUSTER).unwrap();
    for command in ["swap-w-seq", "swap-w-rand", "swapin", "swap-r-rand -t 2 --loads 1000 --prefetch 4"] {
        let line = format!(
            "{command} {SMALL} --device {} --against kernel --rounds 1 --verify",
            folder.path().display()
        );
        let report = report_of(&line);
        let kernel = report["runs"].as_array().unwrap().iter().find(|run| run["mode"] == "kernel").unwrap();
        assert!(kernel["counters"]["pswpout"].as_u64().unwrap() >= (16 << 20) / 4096, "{kernel}");
        assert!(kernel["peak_rss_bytes"].as_u64().unwrap() <= 17 << 20, "{kernel}");
        assert_eq!(left_on_the_machine(folder.path()), Vec::<String>::new(), "{command}");
        assert_eq!(fs::read_to_string(PAGE_CLUSTER).unwrap(), cluster);
    }
}

/// Whether this machine can swap to zram.
fn has_zram() -> bool {
    Path::new("/sys/class/zram-control/hot_add").exists()
}

fn disks() -> BTreeSet<std::ffi::OsString> {
    fs::read_dir("/sys/block").unwrap().map(|disk| disk.unwrap().file_name()).collect()
}

#[test]
fn zram_stands_beside_the_kernels_own_file_whatever_the_device() {
    if !is_root("zram beside a file") || !has_zram() {
        println!("skipped: it takes root and zram");
        return;
    }
    let _machine = machine();
    let (before, folder) = (disks(), disk_folder());
    let device = folder.path().display();
    let report = report_of(&format!(
        "swap-r-rand {SMALL} -t 2 --loads 1000 --data half --device {device} --against kernel --against zram \
         --rounds 1 --verify"
    ));
    let runs = report["runs"].as_array().unwrap();
    let modes: Vec<&str> = runs.iter().map(|run| run["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["kernel", "zram", "best"]);
    for run in runs {
        assert!(run["measures"]["refaults_per_s"].as_f64().unwrap() > 0.0, "{run}");
    }
    // 24 MiB did not fit, and shrink by half.
    let took = |run: &Value| run["measures"]["zram_bytes"].as_f64();
    assert_eq!((took(&runs[0]), took(&runs[2])), (None, None));
    assert!(((8 << 20) as f64..(24 << 20) as f64).contains(&took(&runs[1]).unwrap()), "{}", runs[1]);
    let ratios = report["ratios"].as_array().unwrap();
    let compared = |ratio: &Value| {
        (ratio["of"].as_str(), ratio["to"].as_str(), ratio["metric"].as_str())
            == (Some("best"), Some("zram"), Some("refaults_per_s"))
    };
    assert!(ratios.iter().any(compared), "{ratios:?}");
    assert_eq!(left_on_the_machine(folder.path()), Vec::<String>::new());
    assert_eq!(disks(), before);
}

#[test]
fn memory_that_turns_over_at_once_is_no_want_of_memory() {
    if !is_root("quick turnover") || !has_zram() {
        println!("skipped: it takes root and zram");
        return;
    }
    let _machine = machine();
    // Nearly all of it fits, and pages that come back count as active: the kernel has to see soon that no others are left.
    text_of(
        "swap-r-rand --memory 128M --total 144M --data half --device ram --against kernel --seconds 2 --rounds 2",
    );
}

#[test]
fn against_memory_the_kernel_swaps_to_zram_and_gives_it_back() {
    let _machine = machine();
    if !is_root("zram") {
        return;
    }
    if !has_zram() {
        for choice in ["--device ram --against kernel", "--against zram"] {
            let (code, complaint) =
                refusal(&octavo(&format!("swap-w-seq {SMALL} {choice}")).output().unwrap());
            assert_eq!(code, Some(1));
            assert!(complaint.contains("this machine has no zram"), "{complaint}");
        }
        println!("zram skipped: this machine has none");
        return;
    }
    let before = disks();
    let report = report_of(&format!("swap-w-seq {SMALL} --device ram --against kernel --rounds 1 --verify"));
    assert!(report["runs"][0]["counters"]["pswpout"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(disks(), before);
    assert_eq!(left_on_the_machine(disk_folder().path()), Vec::<String>::new());
}

/// A run that goes on for long, seen to be swapping; and its keeper.
fn long_run(folder: &Path) -> (Child, Pid) {
    let line = format!("swap-r-rand {SMALL} --seconds 600 --device {} --against kernel", folder.display());
    let child = octavo(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let swapping = || fs::read_to_string("/proc/swaps").unwrap().contains(folder.to_str().unwrap());
    wait_until("the kernel's swap is switched on", swapping);
    let keeper = fs::read_dir("/run/octavo").unwrap().find_map(|note| {
        let pid: i32 = note.unwrap().path().file_stem()?.to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.to_string();
        (parent == child.id().to_string()).then(|| Pid::from_raw(pid))?
    });
    (child, keeper.expect("a keeper that our process started"))
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id() as i32).unwrap()
}

#[test]
fn whatever_ends_the_program_the_machine_is_put_back() {
    if !is_root("the end by a signal") {
        return;
    }
    let _machine = machine();
    let cluster = fs::read_to_string(PAGE_CLUSTER).unwrap();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let folder = disk_folder();
        let (mut child, _) = long_run(folder.path());
        assert!(!left_on_the_machine(folder.path()).is_empty());
        kill_process(pid_of(&child), signal).unwrap();
        child.wait().unwrap();
        wait_until("everything is gone", || left_on_the_machine(folder.path()).is_empty());
        assert_eq!(fs::read_to_string(PAGE_CLUSTER).unwrap(), cluster, "{signal:?}");
    }
}

#[test]
fn what_a_killed_keeper_left_is_put_right_by_the_next_start() {
    if !is_root("the next start") {
        return;
    }
    let _machine = machine();
    let cluster = fs::read_to_string(PAGE_CLUSTER).unwrap();
    let folder = disk_folder();
    let (mut child, keeper) = long_run(folder.path());
    // Stopped first, so that it cannot do its work in between.
    kill_process(keeper, Signal::STOP).unwrap();
    kill_process(pid_of(&child), Signal::KILL).unwrap();
    child.wait().unwrap();
    kill_process(keeper, Signal::KILL).unwrap();
    wait_until("the keeper is gone", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", keeper.as_raw_nonzero())).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    });
    let left = left_on_the_machine(folder.path());
    assert!(left.len() >= 3, "area, file, group and note: {left:?}");

    let other = disk_folder();
    let text = text_of(&format!(
        "swap-w-seq {SMALL} --device {} --against kernel --rounds 1",
        other.path().display()
    ));
    assert!(text.contains(&format!("put right what process {}", keeper.as_raw_nonzero())), "{text}");
    assert_eq!(left_on_the_machine(folder.path()), Vec::<String>::new());
    assert_eq!(fs::read_to_string(PAGE_CLUSTER).unwrap(), cluster);
}

#[test]
fn a_killed_keeper_is_noticed_and_cleaned_up_after() {
    if !is_root("the killed keeper") {
        return;
    }
    let _machine = machine();
    let folder = disk_folder();
    let line =
        format!("swap-r-rand {SMALL} --seconds 2 --device {} --against kernel", folder.path().display());
    let child = octavo(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the kernel's swap is switched on", || {
        fs::read_to_string("/proc/swaps").unwrap().contains(folder.path().to_str().unwrap())
    });
    let keeper = fs::read_dir("/run/octavo")
        .unwrap()
        .find_map(|note| note.unwrap().path().file_stem()?.to_str()?.parse().ok().and_then(Pid::from_raw));
    kill_process(keeper.unwrap(), Signal::KILL).unwrap();
    let (code, complaint) = refusal(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{complaint}");
    // The main program notices the keeper, or the processes that went with it, whichever it sees first.
    assert!(complaint.contains("early"), "{complaint}");
    assert_eq!(left_on_the_machine(folder.path()), Vec::<String>::new());
}
