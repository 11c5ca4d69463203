//! A manager reserves addresses for its budget and the budget's growth, not for the whole machine. If there
//! are too few addresses, the error says what to do. Each part of the test runs in a process of its own.

use std::fs;
use std::process::{Command, Output};

use octavo::{Compression, Machine, Manager, RegionOptions};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Set in a process that runs only one part.
const ALONE: &str = "OCTAVO_TEST_ALONE";

fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs a test of this file again, in a process of its own with at most `limit_kib` KiB of addresses.
fn alone(test: &str, limit_kib: Option<u64>) -> Output {
    let limit = limit_kib.map_or("unlimited".into(), |kib| kib.to_string());
    let exe = std::env::current_exe().unwrap();
    Command::new("sh")
        .arg("-c")
        .arg(format!("ulimit -v {limit}; exec \"$0\" --exact {test} --nocapture --test-threads=1"))
        .arg(exe)
        .env(ALONE, "1")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn addresses_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_small_manager_takes_few_addresses_on_any_machine() {
    if !is_alone() {
        let output = alone("a_small_manager_takes_few_addresses_on_any_machine", None);
        assert!(output.status.success(), "{}", text(&output));
        return;
    }
    for memory_bytes in [None, Some(6 * TIB)] {
        for encrypt in [false, true] {
            let before = addresses_bytes();
            let mut builder = Manager::builder().budget_bytes(64 * MIB).encrypt(encrypt);
            if let Some(bytes) = memory_bytes {
                builder = builder.machine(Machine::real().with_memory_bytes(bytes));
            }
            let manager = builder.build().unwrap();
            let taken = addresses_bytes() - before;
            // This includes two threads, to which the C library gives 66 MiB of addresses each.
            assert!(taken < 512 * MIB, "{taken} bytes of addresses on a machine of {memory_bytes:?}");
            drop(manager);
        }
    }
}

#[test]
fn a_manager_with_few_addresses_works_up_to_its_largest_budget() {
    let manager = Manager::builder()
        .budget_bytes(16 * MIB)
        .max_budget_bytes(48 * MIB)
        .background(false)
        .build()
        .unwrap();
    let space = manager.space().unwrap();
    let len = 96 * MIB;
    let at = space.map(len, RegionOptions::new().huge(true)).unwrap();
    for (round, budget) in [(1, 16 * MIB), (2, 48 * MIB), (3, 24 * MIB)] {
        manager.set_budget(budget).unwrap();
        for offset in (0..len).step_by(4096) {
            space.store(at + offset, offset + round).unwrap();
        }
        for offset in (0..len).step_by(4096) {
            assert_eq!(space.load::<u64>(at + offset).unwrap(), offset + round);
        }
        assert!(manager.stats().unwrap().used_bytes <= budget);
    }
    manager.validate();
}

/// On a machine of several TiB, a manager with a budget of several TiB uses only the memory that its pages
/// need.
#[test]
fn a_manager_of_several_tib_can_be_built() {
    for most_bytes in [TIB + MIB, 3 * TIB, 7 * TIB] {
        let manager = Manager::builder()
            .machine(Machine::real().with_memory_bytes(12 * TIB))
            .budget_bytes(64 * MIB)
            .max_budget_bytes(most_bytes)
            .background(false)
            .build()
            .unwrap_or_else(|error| panic!("{most_bytes}: {error}"));
        manager.set_budget(most_bytes).unwrap();
        let space = manager.space().unwrap();
        let at = space.map(4 * MIB, RegionOptions::new().huge(true)).unwrap();
        space.store(at + 3 * MIB, 5_u64).unwrap();
        assert_eq!(space.load::<u64>(at + 3 * MIB).unwrap(), 5);
        manager.validate();
    }
}

#[test]
fn too_few_addresses_are_an_error_that_names_the_remedy() {
    const TEST: &str = "too_few_addresses_are_an_error_that_names_the_remedy";
    if is_alone() {
        match Manager::builder().budget_bytes(64 * MIB).build() {
            Ok(manager) => {
                let space = manager.space().unwrap();
                let at = space.map(128 * MIB, RegionOptions::default()).unwrap();
                for offset in (0..128 * MIB).step_by(4096) {
                    space.store(at + offset, offset).unwrap();
                }
                println!("it works");
            }
            Err(error) => println!("it says: {error}"),
        }
        return;
    }
    let mut said = 0;
    let mut worked = 0;
    for limit_mib in (160..1024).step_by(48) {
        let output = alone(TEST, Some(limit_mib << 10));
        let text = text(&output);
        assert!(output.status.success(), "under {limit_mib} MiB: {text}");
        if text.contains("it works") {
            worked += 1;
            continue;
        }
        said += 1;
        assert!(text.contains("it says: "), "under {limit_mib} MiB: {text}");
        for words in ["RLIMIT_AS", "ulimit -v", "max_budget_bytes", &format!("{limit_mib} MiB of addresses")]
        {
            assert!(text.contains(words), "under {limit_mib} MiB: {text}");
        }
    }
    assert!(said > 0 && worked > 0, "{said} said so, {worked} worked");
}

#[test]
fn the_error_asks_for_all_that_a_manager_reserves() {
    const TEST: &str = "the_error_asks_for_all_that_a_manager_reserves";
    const GIB: u64 = 1 << 30;
    if is_alone() {
        let before = addresses_bytes();
        let builder = Manager::builder()
            .machine(Machine::real().with_memory_bytes(TIB))
            .budget_bytes(64 * MIB)
            .max_budget_bytes(256 * GIB)
            .compression(Compression::Off)
            .background(false);
        match builder.build() {
            Ok(_manager) => println!("taken: {}", addresses_bytes() - before),
            Err(error) => println!("it says: {error}"),
        }
        return;
    }
    let (built, refused) = (text(&alone(TEST, None)), text(&alone(TEST, Some(GIB >> 10))));
    let between = |text: &str, before: &str, after: &str| {
        let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in {text}"));
        rest.split_once(after).unwrap().0.parse::<f64>().unwrap()
    };
    let taken = between(&built, "taken: ", "\n");
    let asked = between(&refused, "cannot reserve the ", " GiB") * GIB as f64;
    // The error rounds to tenths of a GiB, and the C library gives threads addresses of their own.
    assert!(taken < asked + 0.25 * GIB as f64, "{taken} bytes taken, {asked} asked for; {refused}");
}
