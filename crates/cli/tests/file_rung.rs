//! The file rung: a user without privileges, in a control group of the limit's size without swap, where the
//! kernel kills whoever outgrows it.
//!
//! Only root can become such a user and make such a group, of version 1; for others, each test passes.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use common::runs::{assert_passed, comm, is_there, kill, text, torture, wait_for, without_rights};
use serde_json::Value;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A folder with the programs, for a user without privileges, and a group.
struct Place {
    folder: TempDir,
    octavo: PathBuf,
    group: PathBuf,
    limit_bytes: u64,
}

impl Place {
    fn new(limit_mib: u64) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (folder, octavo) = without_rights()?;
        let program = folder.path().join("torture");
        fs::copy(torture(), &program).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let name = format!("octavo-files-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let group = Path::new("/sys/fs/cgroup/memory").join(name);
        fs::create_dir(&group).ok()?;
        let place = Self { folder, octavo, group, limit_bytes: limit_mib * MIB };
        for file in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
            // Where the kernel does not account swap, there must be none.
            fs::write(place.group.join(file), place.limit_bytes.to_string()).ok()?;
        }
        Some(place)
    }

    /// Runs a script in the group, as a user without privileges.
    fn run(&self, script: &str) -> Output {
        self.command(script).output().unwrap()
    }

    fn command(&self, script: &str) -> Command {
        let script = format!(
            "echo $$ > {group}/cgroup.procs && cd {folder} && exec setpriv --reuid=65534 --regid=65534 \
             --clear-groups sh -c '{script}'",
            group = self.group.display(),
            folder = self.folder.path().display(),
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    }

    fn processes(&self) -> Vec<u32> {
        let text = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits for a process of the group with this name.
    fn wait_for(&self, name: &str) -> u32 {
        wait_for(name, || self.processes().into_iter().find(|pid| comm(*pid) == name))
    }

    fn octavo(&self, options: &str, program: &str) -> Output {
        let octavo = self.octavo.display();
        let limit = self.limit_bytes;
        self.run(&format!("exec {octavo} run --rung file --memory {limit} --json - {options} -- {program}"))
    }

    fn kills(&self) -> u64 {
        let control = fs::read_to_string(self.group.join("memory.oom_control")).unwrap();
        control.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap()
    }

    /// Runs kinds of the torture program.
    fn torture(&self, kinds: &str, memory_mib: u64) -> Value {
        let program =
            format!("./torture --memory {memory_mib}M --seconds 3 --seed 1 --only {kinds} --folder /var/tmp");
        let output = self.octavo("", &program);
        assert_passed(&output);
        assert_eq!(self.kills(), 0);
        serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for _ in 0..100 {
            let left = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines() {
                let _ = Command::new("kill").args(["-KILL", pid]).output();
            }
            if fs::remove_dir(&self.group).is_ok() || !self.group.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn bytes(summary: &Value, field: &str) -> u64 {
    summary["files"][field].as_u64().unwrap()
}

#[test]
fn a_program_of_twice_the_limit_runs_where_it_would_be_killed() {
    let Some(place) = Place::new(160) else { return };
    let alone = place.run("exec ./torture --memory 320M --seconds 3 --only writers --folder /var/tmp");
    assert!(!alone.status.success() && place.kills() > 0, "the group has no limit");
    drop(place);
    let Some(place) = Place::new(160) else { return };
    let program = "./torture --memory 320M --seconds 3 --seed 1 --only writers --folder /var/tmp";
    let output = place.octavo("--stats --explain", program);
    assert_passed(&output);
    assert_eq!(place.kills(), 0);
    let summary: Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    let told = text(&output.stderr);
    let words =
        [" written to files; ", " faults waited for a disk", "were not measured. --rung pool measures both"];
    assert!(words.iter().all(|words| told.contains(words)), "{told}");
    let wrong = ["hardly waited", "-0.0", "swap devices", "% of their private memory", "its figures show"];
    assert!(!wrong.iter().any(|words| told.contains(words)), "{told}");
    assert_eq!(summary["managed_processes"], 1, "{summary}");
    assert!(bytes(&summary, "converted_bytes") > 64 * MIB, "{summary}");
}

#[test]
fn layouts_change_while_memory_is_converted() {
    let Some(place) = Place::new(64) else { return };
    let summary = place.torture("layout", 128);
    assert!(bytes(&summary, "converted_bytes") > MIB, "{summary}");
}

#[test]
fn both_sides_of_forks_keep_their_bytes() {
    let Some(place) = Place::new(160) else { return };
    let summary = place.torture("fork", 192);
    assert!(bytes(&summary, "converted_bytes") > MIB, "{summary}");
}

#[test]
fn threads_and_protections_are_left_as_they_are() {
    let Some(place) = Place::new(128) else { return };
    place.torture("threads,protect", 160);
}

#[test]
fn a_killed_runner_takes_the_program_with_it() {
    let Some(place) = Place::new(128) else { return };
    let run = "exec ./octavo run --rung file --memory 128M -- ./torture --memory 256M --seconds 60 --only writers \
               --folder /var/tmp";
    let mut runner = place.command(run).stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    place.wait_for("octavo-mover");
    kill(place.wait_for("octavo"));
    runner.wait().unwrap();
    wait_for("the end of all processes", || {
        place.processes().into_iter().all(|pid| !is_there(pid)).then_some(())
    });
}

#[test]
fn exit_codes_and_output_are_the_programs() {
    let Some(place) = Place::new(64) else { return };
    let output = place.octavo("", "sh -c \"echo said; exit 7\"");
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stdout).starts_with("said\n"));
    assert!(text(&output.stderr).contains("takes the file rung"), "{}", text(&output.stderr));
}

#[test]
fn a_folder_in_memory_is_refused_before_the_program_starts() {
    let Some(place) = Place::new(64) else { return };
    let output = place.octavo("--swap /dev/shm", "echo started");
    assert!(!output.status.success() && !text(&output.stdout).contains("started"));
    assert!(text(&output.stderr).contains("the file system there is memory"), "{}", text(&output.stderr));
}
