//! The kernel's side of the swap commands, as root: results, and a machine that is unchanged afterwards.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use common::{SMALL, disk_folder, lab, refusal, row_of};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

const PAGE_CLUSTER: &str = "/proc/sys/vm/page-cluster";
const NOBODY: u32 = 65534;

/// Makes tests that change the machine run one at a time.
fn machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the kernel's side can be tested here. If not, says why.
fn is_root(test: &str) -> bool {
    let root = geteuid().is_root();
    if !root {
        println!("{test} skipped: it takes root to set up kernel swap");
    }
    root
}

/// Returns the standard output of a run that succeeds. On a busy machine, the kernel may notice too late that
/// a group's pages can be reclaimed, and kill its processes. So one success among several runs is enough.
#[track_caller]
fn text_beside_the_kernel(line: &str) -> String {
    const RUNS: usize = 6;
    let mut complaints = Vec::new();
    for _ in 0..RUNS {
        let output = lab(line).output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        let (code, complaint) = refusal(&output);
        assert!(
            code == Some(1) && complaint.contains("killed for want of memory"),
            "{line}: {code:?} {complaint}"
        );
        complaints.push(complaint);
    }
    panic!("{line}: killed in each of {RUNS} runs: {complaints:?}");
}

fn report_beside_the_kernel(line: &str) -> Value {
    serde_json::from_str(&text_beside_the_kernel(&format!("{line} --json -"))).unwrap()
}

#[test]
fn the_kernels_side_asks_for_root() {
    let folder = disk_folder();
    let program = folder.path().join("octavo");
    fs::copy(env!("CARGO_BIN_EXE_octavo-lab"), &program).unwrap();
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

/// Returns what a run has left behind in the kernel: areas below the folder, and control groups.
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
        let report = report_beside_the_kernel(&line);
        for side in kernel_sides("kernel") {
            let kernel = report["runs"].as_array().unwrap().iter().find(|run| run["mode"] == *side).unwrap();
            assert!(kernel["counters"]["pswpout"].as_u64().unwrap() >= (16 << 20) / 4096, "{kernel}");
            assert!(kernel["peak_rss_bytes"].as_u64().unwrap() <= 17 << 20, "{kernel}");
        }
        assert_eq!(left_on_the_machine(folder.path()), Vec::<String>::new(), "{command}");
        assert_eq!(fs::read_to_string(PAGE_CLUSTER).unwrap(), cluster);
    }
}

/// Returns the kernel's sides on this machine: also with huge pages, if they are allowed.
fn kernel_sides(name: &str) -> Vec<String> {
    let setting = |file: &str| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{file}")).ok()?;
        Some(text.split(['[', ']']).nth(1)?.to_string())
    };
    let own = setting("hugepages-2048kB/enabled").filter(|own| own != "inherit");
    let allowed = own.or_else(|| setting("enabled")).is_some_and(|setting| setting != "never");
    let huge = allowed.then(|| format!("{name}-huge"));
    [name.to_string()].into_iter().chain(huge).collect()
}

#[test]
fn the_kernel_runs_with_huge_pages_too_and_its_better_side_is_the_one_to_beat() {
    if !is_root("the kernel's huge pages") {
        return;
    }
    let _machine = machine();
    let folder = disk_folder();
    let device = folder.path().display();
    let json = folder.path().join("report.json");
    let line = "swap-w-seq -n 1 --memory 16M --total 64M --against kernel --rounds 3";
    let text = text_beside_the_kernel(&format!("{line} --device {device} --json {}", json.display()));
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let sides = kernel_sides("kernel");
    let median = |side: &str| {
        let mut seconds: Vec<f64> = report["runs"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|run| run["mode"] == *side)
            .map(|run| run["seconds"].as_f64().unwrap())
            .collect();
        seconds.sort_by(f64::total_cmp);
        seconds[1]
    };
    for side in sides.iter().map(String::as_str).chain(["best"]) {
        let row = row_of(&text, "the whole job", side);
        assert_eq!(row[1], format!("{:.3}", median(side)), "{text}");
    }
    if sides.len() == 1 {
        assert!(text.contains("the kernel runs with 4 KiB pages only"), "{text}");
        return;
    }
    let huge = |side: &str| {
        let runs = report["runs"].as_array().unwrap();
        let of = |run: &Value| run["measures"]["huge_bytes"].as_f64().unwrap();
        runs.iter().filter(|run| run["mode"] == *side).map(of).sum::<f64>()
    };
    assert_eq!(huge("kernel"), 0.0, "{report}");
    assert!(huge("kernel-huge") > 0.0, "{report}");
    // Octavo is compared only to the side with the better median.
    let better = if median("kernel-huge") < median("kernel") { "kernel-huge" } else { "kernel" };
    assert!(
        text.contains(&format!("(of the kernel's two, {better} is the better: the one to beat)")),
        "{text}"
    );
    let job = &text[text.find("the whole job").unwrap()..text.find("phases:").unwrap()];
    let compared: Vec<&str> = job.lines().filter(|line| line.starts_with("best than ")).collect();
    assert_eq!(compared.len(), 1, "{text}");
    assert!(compared[0].starts_with(&format!("best than {better} ")), "{text}");
}

/// Returns whether this machine can swap to zram.
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
    let report = report_beside_the_kernel(&format!(
        "swap-r-rand {SMALL} -t 2 --loads 1000 --data half --device {device} --against kernel --against zram \
         --rounds 1 --verify"
    ));
    let runs = report["runs"].as_array().unwrap();
    let modes: Vec<&str> = runs.iter().map(|run| run["mode"].as_str().unwrap()).collect();
    let expected = [kernel_sides("kernel"), kernel_sides("zram"), vec!["best".into()]].concat();
    assert_eq!(modes, expected);
    for run in runs {
        assert!(run["measures"]["refaults_per_s"].as_f64().unwrap() > 0.0, "{run}");
    }
    // 24 MiB do not fit, and compress to half.
    for run in runs {
        let took = run["measures"]["zram_bytes"].as_f64();
        match run["mode"].as_str().unwrap().starts_with("zram") {
            true => assert!(((8 << 20) as f64..(24 << 20) as f64).contains(&took.unwrap()), "{run}"),
            false => assert_eq!(took, None, "{run}"),
        }
    }
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
    // Nearly all pages fit, and pages that come back count as active. The kernel must notice soon that no
    // other pages are left.
    text_beside_the_kernel(
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
            let (code, complaint) = refusal(&lab(&format!("swap-w-seq {SMALL} {choice}")).output().unwrap());
            assert_eq!(code, Some(1));
            assert!(complaint.contains("this machine has no zram"), "{complaint}");
        }
        println!("zram skipped: this machine has none");
        return;
    }
    let before = disks();
    let report = report_beside_the_kernel(&format!(
        "swap-w-seq {SMALL} --device ram --against kernel --rounds 1 --verify"
    ));
    assert!(report["runs"][0]["counters"]["pswpout"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(disks(), before);
    assert_eq!(left_on_the_machine(disk_folder().path()), Vec::<String>::new());
}

/// Starts a long run, waits until it swaps, and returns it with its keeper.
fn long_run(folder: &Path) -> (Child, Pid) {
    let line = format!("swap-r-rand {SMALL} --seconds 600 --device {} --against kernel", folder.display());
    // If a shell starts the tests in the background, they ignore the signal that this test sends. So `env`
    // restores the signal's default action.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_octavo-lab")]).args(line.split_whitespace());
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
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
    // The keeper is stopped first, so that it cannot do its work in between.
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
    let text = text_beside_the_kernel(&format!(
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
    let child = lab(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the kernel's swap is switched on", || {
        fs::read_to_string("/proc/swaps").unwrap().contains(folder.path().to_str().unwrap())
    });
    let keeper = fs::read_dir("/run/octavo")
        .unwrap()
        .find_map(|note| note.unwrap().path().file_stem()?.to_str()?.parse().ok().and_then(Pid::from_raw));
    kill_process(keeper.unwrap(), Signal::KILL).unwrap();
    let (code, complaint) = refusal(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{complaint}");
    // The main program reports the end of the keeper or of a process, whichever it sees first.
    assert!(complaint.contains("early"), "{complaint}");
    assert_eq!(left_on_the_machine(folder.path()), Vec::<String>::new());
}
