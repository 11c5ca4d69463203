//! What `octavo run` reports about a run: correct figures, what the time was spent on, and what would help
//! most.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Command, Stdio};

use common::runs::{OCTAVO, assert_passed, kinds, octavo, text, torture, wait_for};

fn summary_of(
    options: &[&str],
    program: impl AsRef<std::path::Path>,
    arguments: &[&str],
) -> serde_json::Value {
    let json = tempfile::NamedTempFile::new().unwrap();
    let options = [options, &["--json", json.path().to_str().unwrap()]].concat();
    assert_passed(&octavo(&options, program, arguments).output().unwrap());
    serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap()
}

/// Memory that comes and goes between two looks of the monitor is reported.
#[test]
fn what_a_process_had_between_two_looks_is_told() {
    for mib in [8_u64, 64] {
        let summary = summary_of(&["--memory", "512M"], kinds(), &["burst", &mib.to_string()]);
        let largest = summary["largest_process_bytes"].as_u64().unwrap();
        // The kernel counts a process's memory in batches.
        assert!(((mib - 1) << 20..(mib + 24) << 20).contains(&largest), "{summary}");
    }
}

/// `cargo run` becomes the program that it has built, so the compilers count as children of that program.
#[test]
fn what_ran_in_the_runners_process_before_is_not_told() {
    let json = tempfile::NamedTempFile::new().unwrap();
    let script = "dd if=/dev/zero of=/dev/null bs=200M count=1 status=none; exec $0 run --memory 512M --json $1 -- true";
    let path = json.path().to_str().unwrap();
    assert_passed(&Command::new("sh").args(["-c", script, OCTAVO, path]).output().unwrap());
    let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
    assert!(summary["largest_process_bytes"].as_u64().unwrap() < 100 << 20, "{summary}");
}

/// The options of a run whose program goes through twice its limit again and again, so that it waits most of
/// the time.
const GOES_THROUGH: [&str; 8] = ["--memory", "128M", "--seconds", "12", "--seed", "1", "--only", "writers"];

#[test]
fn a_run_says_what_its_time_went_on_and_what_to_change_first() {
    let output = octavo(&["--memory", "64M", "--explain"], torture(), &GOES_THROUGH).output().unwrap();
    assert_passed(&output);
    let errors = text(&output.stderr);
    // The advice depends on the disk.
    for words in [
        "octavo: it ran for ",
        "its threads and processes together waited ",
        "octavo: what would help most: ",
    ] {
        assert!(errors.contains(words), "{errors}");
    }
    let short = octavo(&["--memory", "512M"], "true", &[]).output().unwrap();
    assert_eq!(text(&short.stderr), "", "nobody asked, and it was not slow");
    let fits = octavo(&["--memory", "512M", "--explain"], "true", &[]).output().unwrap();
    assert!(
        text(&fits.stderr).contains("what would help most: nothing. It hardly waited"),
        "{}",
        text(&fits.stderr)
    );
}

#[test]
fn a_run_that_is_stopped_explains_itself_unless_it_is_to_be_quiet() {
    let stopped = |options: &[&str]| {
        let swap = tempfile::tempdir_in("/var/tmp").unwrap();
        let place = format!("{}:8M", swap.path().display());
        let options = [&["--memory", "64M", "--swap", &place, "--compression", "off"], options].concat();
        let output = octavo(&options, torture(), &GOES_THROUGH).output().unwrap();
        assert!(!output.status.success());
        text(&output.stderr)
    };
    let told = stopped(&[]);
    assert!(told.contains("octavo: it ran for ") && told.contains("the program was stopped"), "{told}");
    assert!(!told.contains("what would help most"), "the reason of its end has its own remedy: {told}");
    assert!(told.contains("is full (") && told.contains("give --swap more room: another"), "{told}");
    assert!(
        told.contains("octavo: when it was stopped, ") && told.contains("room for swap is enough for that"),
        "{told}"
    );
    let quiet = stopped(&["--quiet"]);
    assert!(!quiet.contains("it ran for ") && quiet.contains("the program was stopped"), "{quiet}");
}

/// The program is stopped before it sees a wrong byte, and the message says what is wrong with its swap.
#[test]
fn a_program_whose_swap_somebody_spoils_is_told_how() {
    let spoiled = |words: &[&str], spoil: &dyn Fn(&fs::File)| {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = folder.path().join("swap");
        let place = path.to_str().unwrap();
        let options = ["--memory", "64M", "--compression", "off", "--swap", place];
        let mut run = octavo(&options, torture(), &GOES_THROUGH).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("pages in the swap file", || {
            fs::metadata(&path).ok().filter(|file| file.blocks() > 32 << 11)
        });
        let file = fs::File::options().write(true).open(&path).unwrap();
        while run.try_wait().unwrap().is_none() {
            spoil(&file);
        }
        let errors = text(&run.wait_with_output().unwrap().stderr);
        assert!(errors.contains("octavo: the program was stopped: process "), "{errors}");
        assert!(errors.contains(" needs memory that cannot be had: "), "{errors}");
        assert!(
            words.iter().any(|words| errors.contains(words)) && errors.contains("check the device"),
            "{errors}"
        );
    };
    // Write bytes of another program.
    let other_bytes = "its bytes on the device are not those that were written";
    spoiled(&[other_bytes], &|file| {
        for block in 0..64 {
            let _ = file.write_all_at(&[7; 1 << 20], block << 20);
        }
    });
    // Octavo's own writes make the file longer again, with zeros before them.
    spoiled(&["it could not be read", other_bytes], &|file| file.set_len(1 << 20).unwrap());
}

/// Tests that run with `cargo xtask test --all`.
mod slow {
    use super::*;

    /// Messages while the program waits are only for people at a terminal.
    #[test]
    fn a_run_that_only_waits_says_so_on_a_terminal_and_nowhere_else() {
        if Command::new("script").arg("--version").output().is_err() {
            eprintln!("SKIPPED: there is no `script` here, which makes a terminal");
            return;
        }
        let json = tempfile::NamedTempFile::new().unwrap();
        let json_path = json.path().display();
        let run = |options: &str, seconds: u32| {
            format!(
                "{OCTAVO} run --memory 48M {options} --json {json_path} -- {} --memory 160M --seconds {seconds} --seed 1 --only writers",
                torture().display()
            )
        };
        let on_terminal = |run: &str| {
            let output = Command::new("script").args(["-qec", run, "/dev/null"]).output().unwrap();
            assert_passed(&output);
            text(&output.stdout)
        };
        let said = on_terminal(&run("", 25));
        let words = said.matches("and waited for pages: ").count();
        // If the disk is so fast that the program hardly waited, there is no message.
        let summary: serde_json::Value = serde_json::from_slice(&fs::read(json.path()).unwrap()).unwrap();
        let waits = ["device_seconds", "unpacking_seconds", "room_seconds"];
        let waited: f64 = waits.iter().map(|wait| summary["waits"][*wait].as_f64().unwrap()).sum();
        let (seconds, cpu) =
            (summary["seconds"].as_f64().unwrap(), summary["program_cpu_seconds"].as_f64().unwrap());
        let must_be_said = waited > 0.8 * seconds && cpu < 0.2 * seconds;
        assert!((usize::from(must_be_said)..=1).contains(&words), "{said} {summary}");
        if words == 1 {
            assert!(said.contains("all of its memory would fit, now "), "{said}");
        }
        let quiet = on_terminal(&run("--quiet", 25));
        assert!(!quiet.contains("and waited for pages: "), "{quiet}");
        let piped = Command::new("sh").args(["-c", &run("", 25)]).output().unwrap();
        assert_passed(&piped);
        assert!(!text(&piped.stderr).contains("and waited for pages: "), "{}", text(&piped.stderr));
    }

    /// A disk that becomes read-only refuses all writes.
    #[test]
    fn a_program_whose_swap_takes_no_writes_any_more_is_stopped_and_told() {
        let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        image.as_file().set_len(300 << 20).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(image.path()).output();
        let Some(made) = made.ok().filter(|made| made.status.success()) else {
            eprintln!("SKIPPED: there is no loop device here; run as root");
            return;
        };
        let disk = text(&made.stdout).trim().to_owned();
        let on_disk = |command: &str, option: &str| {
            assert!(Command::new(command).args([option, &disk]).status().unwrap().success());
        };
        let options = ["--memory", "64M", "--compression", "off", "--swap", &disk];
        let arguments = ["--memory", "192M", "--seconds", "60", "--seed", "1", "--only", "writers"];
        let arguments = [&arguments[..], &["--patience", "120"]].concat();
        let run = octavo(&options, torture(), &arguments).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("pages on the disk", || {
            image.as_file().metadata().ok().filter(|file| file.blocks() > 32 << 11)
        });
        on_disk("blockdev", "--setro");
        let output = run.wait_with_output().unwrap();
        on_disk("blockdev", "--setrw");
        on_disk("losetup", "--detach");
        let errors = text(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        let words = ["other pages could not be written to make room", &disk, "check the device"];
        assert!(words.iter().all(|word| errors.contains(word)), "{errors}");
    }
}
