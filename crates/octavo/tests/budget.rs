//! The budget against the kernel's own figures: peak resident set, peak of a memory control group, and the
//! memory for metadata.
//!
//! Each measurement has a process of its own. The process runs the ignored test below in this test binary,
//! with a workload's name in the environment.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{MIB, PAGE, Random};
use octavo::{Counter, HugePolicy, Manager, RegionOptions, Space, ZeroPage};
use octavo_platform::usage;

const BUDGET: u64 = 32 * MIB;
/// The most that is allowed: 3 % and 16 MiB above the budget.
const ALLOWED: u64 = BUDGET + BUDGET * 3 / 100 + 16 * MIB;
const WORKLOAD: &str = "OCTAVO_TEST_WORKLOAD";
const GROUP: &str = "OCTAVO_TEST_GROUP";

fn sequential(_: &Manager, space: &Space) {
    let at = space.map(8 * BUDGET, RegionOptions::default()).unwrap();
    for offset in (0..8 * BUDGET).step_by(PAGE as usize) {
        space.store(at + offset, offset | 1).unwrap();
    }
    for offset in (0..8 * BUDGET).step_by(64 * PAGE as usize) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset | 1);
    }
}

fn random(_: &Manager, space: &Space) {
    let at = space.map(4 * BUDGET, RegionOptions::default()).unwrap();
    let mut random = Random::new(1);
    for _ in 0..40_000 {
        let address = at + random.below(4 * BUDGET / PAGE) * PAGE;
        space.store(address, address).unwrap();
        let address = at + random.below(4 * BUDGET / PAGE) * PAGE;
        assert!([0, address].contains(&space.load::<u64>(address).unwrap()));
    }
}

fn huge(_: &Manager, space: &Space) {
    let at = space.map(6 * BUDGET, RegionOptions::new().huge(true)).unwrap();
    for offset in (0..6 * BUDGET).step_by(PAGE as usize) {
        space.write(at + offset, &[offset as u8 | 1; PAGE as usize]).unwrap();
    }
}

/// Uses a leaf table for each page or two, so the tables take half of the budget.
fn sparse(_: &Manager, space: &Space) {
    let at = space.map(16 << 30, RegionOptions::default()).unwrap();
    for index in 0..BUDGET / 2 / PAGE {
        space.store(at + index * 2 * MIB, index).unwrap();
        space.store(at + index * 2 * MIB + MIB, index).unwrap();
    }
}

/// Maps small and huge zero pages, which need tables but no memory.
fn zeros(_: &Manager, space: &Space) {
    let at = space.map(1 << 36, RegionOptions::default()).unwrap();
    for index in 0..1 << 15 {
        assert_eq!(space.load::<u64>(at + index * 2 * MIB).unwrap(), 0);
    }
    let at = space.map(MIB, RegionOptions::default()).unwrap();
    for offset in (0..MIB).step_by(PAGE as usize) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), 0);
    }
    assert_eq!(space.stats().unwrap().resident_bytes, 0);
}

fn threads(_: &Manager, space: &Space) {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let at = space.map(2 * BUDGET, RegionOptions::default()).unwrap();
                for offset in (0..2 * BUDGET).step_by(PAGE as usize) {
                    space.store(at + offset, offset).unwrap();
                }
            });
        }
    });
}

/// Uses more blocks than the tables have nodes: each block that goes out takes a node.
fn many_blocks(manager: &Manager, space: &Space) {
    manager.set_budget(4 * BUDGET).unwrap();
    let at = space.map(6 * BUDGET, RegionOptions::new().huge(true)).unwrap();
    for offset in (0..6 * BUDGET).step_by(PAGE as usize) {
        space.store(at + offset, offset ^ 5).unwrap();
    }
    for offset in (0..6 * BUDGET).step_by(PAGE as usize) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset ^ 5);
    }
    manager.validate();
    assert!(usage::peak_resident_bytes() < 4 * BUDGET + 4 * BUDGET * 3 / 100 + 16 * MIB);
    assert!(
        usage::reset_peak_resident() && manager.set_budget(BUDGET).is_ok() && usage::reset_peak_resident()
    );
}

/// Lowers the budget, which returns memory to the kernel.
fn lowered(manager: &Manager, space: &Space) {
    manager.set_budget(4 * BUDGET).unwrap();
    let at = space.map(3 * BUDGET, RegionOptions::new().huge(true)).unwrap();
    for offset in (0..3 * BUDGET).step_by(PAGE as usize) {
        space.store(at + offset, offset ^ 5).unwrap();
    }
    let before = usage::resident_bytes();
    manager.set_budget(BUDGET).unwrap();
    let after = usage::resident_bytes();
    assert!(before - after >= 2 * BUDGET - 4 * MIB, "{} MiB before, {} after", before >> 20, after >> 20);
    assert!(manager.stats().unwrap().used_bytes <= BUDGET);
    assert!(usage::reset_peak_resident(), "the peak counts from here on");
    for offset in (0..3 * BUDGET).step_by(PAGE as usize) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset ^ 5);
    }
    manager.validate();
}

/// A workload's name and function.
type NamedWorkload = (&'static str, fn(&Manager, &Space));

const WORKLOADS: &[NamedWorkload] = &[
    ("sequential", sequential),
    ("random", random),
    ("huge", huge),
    ("sparse", sparse),
    ("zeros", zeros),
    ("threads", threads),
    ("many_blocks", many_blocks),
    ("lowered", lowered),
];

#[test]
#[ignore = "a part of the others, which start it in a process of its own"]
fn one_workload() {
    let Ok(name) = std::env::var(WORKLOAD) else { return };
    if let Ok(group) = std::env::var(GROUP) {
        fs::write(PathBuf::from(&group).join("cgroup.procs"), std::process::id().to_string()).unwrap();
    }
    let (_, work) = WORKLOADS.iter().find(|(workload, _)| *workload == name).unwrap();
    assert!(usage::reset_peak_resident(), "the kernel starts the peak anew");
    let before = usage::resident_bytes();
    let manager = Manager::builder().budget_bytes(BUDGET).max_budget_bytes(4 * BUDGET).build().unwrap();
    let space = manager.space().unwrap();
    work(&manager, &space);
    let peak = usage::peak_resident_bytes() - before;
    assert!(peak <= ALLOWED, "{name}: a peak of {} MiB, {} allowed", peak >> 20, ALLOWED >> 20);
    println!("{name}: peak {} KiB over {} KiB, budget {} KiB", peak >> 10, before >> 10, BUDGET >> 10);
    manager.validate();
}

fn run(workload: &str, group: Option<&PathBuf>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "one_workload", "--ignored", "--nocapture"]).env(WORKLOAD, workload);
    if let Some(group) = group {
        command.env(GROUP, group);
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains(&format!("{workload}: peak ")), "the workload did not run: {text}");
    text.lines().filter(|line| line.contains(": peak ")).for_each(|line| println!("{line}"));
}

#[test]
fn the_peak_of_the_resident_set_stays_within_the_budget() {
    for (workload, _) in WORKLOADS {
        run(workload, None);
    }
}

/// A control group of this test alone, of version 1 or 2, and the name of the file with its peak.
struct ControlGroup(PathBuf, &'static str);

impl ControlGroup {
    fn new(name: &str) -> Option<Self> {
        let name = format!("octavo-test-{}-{name}", std::process::id());
        let homes = [
            ("/sys/fs/cgroup/memory", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.peak"),
            ("/sys/fs/cgroup/unified", "memory.peak"),
        ];
        for (home, peak) in homes {
            let path = PathBuf::from(home).join(&name);
            if fs::create_dir(&path).is_ok() {
                let group = Self(path, peak);
                if group.0.join(peak).exists() {
                    return Some(group);
                }
            }
        }
        eprintln!("SKIPPED: no memory control group can be made here; run as root");
        None
    }

    fn peak_bytes(&self) -> u64 {
        fs::read_to_string(self.0.join(self.1)).unwrap().trim().parse().unwrap()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn the_peak_of_a_control_group_around_the_process_stays_within_the_budget() {
    for (workload, _) in WORKLOADS {
        // For a while, the budget of these workloads is four times the budget of the others.
        if ["many_blocks", "lowered"].contains(workload) {
            continue;
        }
        let Some(group) = ControlGroup::new(workload) else { return };
        run(workload, Some(&group.0));
        let peak = group.peak_bytes();
        println!("{workload}: the group's peak {} KiB", peak >> 10);
        assert!(peak > 4 * MIB, "the process was in the group");
        assert!(peak <= ALLOWED, "{workload}: a peak of {} MiB, {} allowed", peak >> 20, ALLOWED >> 20);
    }
}

/// Returns the bytes in use that are not chunks of frames.
fn metadata(manager: &Manager) -> u64 {
    let counters = manager.counters();
    let chunks = counters.get(Counter::ChunkOnline) - counters.get(Counter::ChunkOffline);
    manager.stats().unwrap().used_bytes - chunks * 2 * MIB
}

#[test]
fn metadata_stays_within_64_bytes_a_frame_8_a_page_and_24_a_swapped_page() {
    let build = |budget| {
        Manager::builder()
            .budget_bytes(budget)
            .background(false)
            .zero_page(ZeroPage::PerUse)
            .huge(HugePolicy::Never)
            .build()
            .unwrap()
    };
    let manager = build(80 * MIB);
    let space = manager.space().unwrap();
    let pages = 64 * MIB / PAGE;
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    // The fixed part of a manager: lists for each CPU, and the first nodes.
    let fixed = metadata(&manager) + 16 * PAGE;
    for page in 0..pages {
        space.store(at + page * PAGE, page).unwrap();
    }
    assert_eq!(space.stats().unwrap().resident_bytes, 64 * MIB, "nothing had to go out");
    let resident = metadata(&manager) - fixed;
    assert!(resident <= pages * (64 + 8), "{} bytes a page", resident as f64 / pages as f64);

    while manager.reclaim(1 << 20).unwrap() > 0 {}
    let slots = manager.stats().unwrap().swap_slots;
    assert!(slots > pages * 9 / 10, "{slots}");
    let more = metadata(&manager) - fixed - resident;
    assert!(more <= slots * 24, "{} bytes a swapped page", more as f64 / slots as f64);

    // The check is repeated after a long life: pages went out, came in and changed in random order, and slots
    // were freed here and there.
    let manager = build(16 * MIB);
    let space = manager.space().unwrap();
    let at = space.map(48 * MIB, RegionOptions::default()).unwrap();
    let mut random = Random::new(3);
    let before = metadata(&manager);
    for round in 0..60_000_u64 {
        space.store(at + random.below(48 * MIB / PAGE) * PAGE, round).unwrap();
        if random.one_in(16) {
            space.unmap(at + random.below(48 * MIB / PAGE) * PAGE, PAGE).unwrap();
            let _ = space.map(PAGE, RegionOptions::default()).unwrap();
            for page in 0..48 * MIB / PAGE {
                if space.map_at(at + page * PAGE, PAGE, RegionOptions::default()).is_ok() {
                    break;
                }
            }
        }
    }
    let slots = manager.stats().unwrap().swap_slots;
    let allowed = 24 * slots + 72 * (48 * MIB / PAGE) + 16 * PAGE;
    let found = metadata(&manager) - before;
    assert!(found <= allowed, "{found} bytes for {slots} slots, {allowed} allowed");
}
