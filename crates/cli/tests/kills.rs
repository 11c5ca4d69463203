//! Kills programs, movers, guardians and runners: no wrong byte is read before the end, and nothing is left
//! behind.
//!
//! `OCTAVO_TEST_SEED` sets the moments, and `OCTAVO_TEST_RUNS` the number of rounds.

mod common;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::{env, fs};

use common::runs::{
    Random, RunMark, assert_passed, children, comm, is_guardian, is_there, is_watched, kill, octavo, signal,
    text, torture, wait_for, wait_for_guardian, wait_until_gone,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;

/// Starts programs side by side, and prints how each has ended.
const SIDE_BY_SIDE: &str = "for part in \"$@\"; do $part & pids=\"$pids $!\"; done; \
                            for pid in $pids; do wait $pid; echo \"$pid $?\"; done";

fn number(name: &str, otherwise: u64) -> u64 {
    env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

/// Calls a test with the random numbers of each round. Prints the seed first, so that a failure can be
/// repeated.
fn rounds(default: u64, round: impl Fn(u64, &mut Random)) {
    let seed = number("OCTAVO_TEST_SEED", 1);
    for index in 0..number("OCTAVO_TEST_RUNS", default) {
        println!("round with OCTAVO_TEST_SEED={}", seed + index);
        round(seed + index, &mut Random::new(seed + index));
    }
}

/// Returns the command line of a torture.
fn torture_of(kinds: &str, memory: &str, seconds: u64, seed: u64) -> String {
    let program = torture().display();
    format!("{program} --only {kinds} --memory {memory} --seconds {seconds} --seed {seed} --patience 300")
}

/// A run with its swap, its socket and its output in a separate folder.
struct KilledRun {
    mark: RunMark,
    runner: Child,
    folder: TempDir,
}

/// Returns whether a finding only says that a child was killed. If an orphan has a real finding, it prints a
/// line of its own.
fn is_of_a_killed_child(line: &str) -> bool {
    line.ends_with("ended badly, with wait status 0x9.") || line.ends_with("an orphan ended badly.")
}

impl KilledRun {
    /// Starts programs side by side in `memory`.
    fn start(memory: &str, parts: &[String]) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = |name| folder.path().join(name);
        fs::create_dir(path("swap")).unwrap();
        let (swap, socket) = (path("swap"), path("figures"));
        let options =
            ["--memory", memory, "--swap", swap.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
        let mut arguments = vec!["-c", SIDE_BY_SIDE, "sh"];
        arguments.extend(parts.iter().map(String::as_str));
        let mut command = octavo(&options, "/bin/sh", &arguments);
        command.env("TMPDIR", folder.path()).stdin(Stdio::null());
        command.stdout(fs::File::create(path("output")).unwrap());
        command.stderr(fs::File::create(path("errors")).unwrap());
        let (mark, runner) = RunMark::start(command);
        Self { mark, runner, folder }
    }

    fn id(&self) -> u32 {
        self.runner.id()
    }

    fn told(&self, name: &str) -> String {
        text(&fs::read(self.folder.path().join(name)).unwrap())
    }

    fn wait(&mut self) -> ExitStatus {
        wait_for("the runner's end", || self.runner.try_wait().unwrap())
    }

    /// Kills the runner, and waits until the processes that it managed have ended.
    #[track_caller]
    fn kill_runner(&mut self, had: impl IntoIterator<Item = u32>) {
        kill(self.id());
        self.wait();
        had.into_iter().for_each(wait_until_gone);
    }

    /// Returns the tortures that the shell has started and that still run.
    fn parts(&self) -> Vec<u32> {
        let is_shell = |pid: &u32| comm(*pid) == "sh";
        let shell = children(self.id()).into_iter().find(is_shell);
        let parts = shell.map(children).unwrap_or_default();
        parts.into_iter().filter(|pid| comm(*pid) == "octavo-torture" && is_there(*pid)).collect()
    }

    /// Waits until `count` parts are paged.
    fn wait_for_managed(&self, count: usize) -> Vec<u32> {
        wait_for("programs under management", || {
            let managed: Vec<_> = self.parts().into_iter().filter(|pid| is_watched(*pid)).collect();
            (managed.len() == count).then_some(managed)
        })
    }

    fn figures(&self) -> Option<serde_json::Value> {
        let mut line = String::new();
        UnixStream::connect(self.folder.path().join("figures")).ok()?.read_to_string(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// Returns how parts have ended. The shell prints that between the counts of the tortures.
    fn ends(&self) -> Vec<(u32, u32)> {
        let output = self.told("output");
        let ends = output.lines().filter_map(|line| line.split_once(' '));
        ends.filter_map(|(pid, code)| Some((pid.parse().ok()?, code.parse().ok()?))).collect()
    }

    /// Checks that the parts whose ends the shell still printed were killed, and did not end by a finding.
    #[track_caller]
    fn assert_all_were_killed(&self) {
        let (ends, errors) = (self.ends(), self.told("errors"));
        // A parent whose child was killed first may still report this child, and end.
        let lost_child = |pid: &u32| {
            let begins = format!("octavo-torture (process {pid}): ");
            errors.lines().any(|line| line.starts_with(&begins) && is_of_a_killed_child(line))
        };
        let is_killed = |(pid, code): &(u32, u32)| *code == 137 || *code == 1 && lost_child(pid);
        assert!(ends.iter().all(is_killed), "{ends:?}: {errors}");
    }

    #[track_caller]
    fn assert_no_finding(&self) {
        let errors = self.told("errors");
        // A parent that still runs reports that its child was killed.
        let mut findings = errors.lines().filter(|line| line.starts_with("octavo-torture"));
        assert!(findings.all(is_of_a_killed_child), "{errors}");
    }

    /// Checks after the runner's death that no program has read a wrong byte before its end, and that nothing
    /// is left.
    #[track_caller]
    fn assert_all_have_ended_with_it(&self) {
        self.assert_no_finding();
        self.assert_nothing_is_left();
        self.assert_all_were_killed();
    }

    #[track_caller]
    fn assert_nothing_is_left(&self) {
        self.mark.wait_until_nobody_is_left();
        let left: Vec<_> = fs::read_dir(self.folder.path().join("swap")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        // The folder contains the swap, output and error files, and the socket of a killed runner.
        let left = fs::read_dir(self.folder.path()).unwrap().flatten().map(|entry| entry.file_name());
        let known = ["swap", "output", "errors", "figures"];
        left.for_each(|name| assert!(known.iter().any(|known| name == *known), "{name:?}"));
    }
}

/// Starts one torture, and waits until it has a mover. Returns the torture and the mover.
fn start_paged() -> (KilledRun, u32, u32) {
    let run = KilledRun::start("96M", &[torture_of("writers", "192M", 600, 1)]);
    let program = run.wait_for_managed(1)[0];
    let mover =
        wait_for("a mover", || run.mark.processes().into_iter().find(|pid| comm(*pid) == "octavo-mover"));
    wait_for("pages that are out", || {
        run.figures().filter(|figures| figures["swapped_bytes"].as_u64() > Some(0))
    });
    (run, program, mover)
}

#[test]
fn a_program_whose_mover_is_killed_does_not_go_on() {
    let (mut run, program, mover) = start_paged();
    kill(mover);
    run.wait();
    let errors = run.told("errors");
    assert!(errors.contains("the program was stopped") && errors.contains("mover"), "{errors}");
    run.assert_no_finding();
    wait_until_gone(program);
    run.assert_nothing_is_left();
}

#[test]
fn where_the_runner_is_killed_the_program_ends_and_nothing_is_left() {
    let (mut run, program, mover) = start_paged();
    run.kill_runner([program, mover]);
    run.assert_all_have_ended_with_it();
    let socket = run.folder.path().join("figures");
    let options = ["--memory", "512M", "--socket", socket.to_str().unwrap()];
    assert_passed(&octavo(&options, "/bin/true", &[]).output().unwrap());
    assert!(!socket.exists());
    assert!(run.told("errors").contains("of its processes were killed: "), "{}", run.told("errors"));
}

#[test]
fn a_guardian_that_is_killed_has_a_successor_that_ends_the_tree_with_the_runner() {
    let (mut run, program, mover) = start_paged();
    let first = wait_for_guardian(run.id(), None);
    kill(first);
    wait_for_guardian(run.id(), Some(first));
    assert!(is_there(program));
    run.kill_runner([program, mover]);
    run.assert_all_have_ended_with_it();
    let errors = run.told("errors");
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("octavo:")).collect();
    assert!(lines.len() == 1 && lines[0].contains("the runner has died"), "{errors}");
}

#[test]
fn a_guardian_that_is_killed_with_the_runner_leaves_nothing() {
    let (mut run, program, mover) = start_paged();
    let guardian = wait_for_guardian(run.id(), None);
    let both = [run.id(), guardian].map(|pid| pid.to_string());
    assert!(Command::new("kill").arg("-KILL").args(both).status().unwrap().success());
    run.kill_runner([program, mover]);
    run.assert_all_have_ended_with_it();
}

#[test]
fn what_octavo_has_started_has_ended_with_it() {
    let mut run = KilledRun::start("96M", &["writers", "orphans"].map(|kind| torture_of(kind, "80M", 2, 1)));
    let guardian = wait_for_guardian(run.id(), None);
    let line = text(&fs::read(format!("/proc/{guardian}/cmdline")).unwrap());
    assert_eq!((comm(guardian).as_str(), line.trim_end_matches('\0')), ("octavo-guard", "octavo-guard"));
    assert!(run.wait().success(), "{}", run.told("errors"));
    let left: Vec<_> = run.mark.processes().into_iter().map(|pid| (pid, comm(pid))).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_runner_that_may_open_no_more_files_stops_the_tree_and_no_program_reads_zeros() {
    let (mut run, program, mover) = start_paged();
    // The runner has more descriptors already. `poll` refuses more than the limit, so leave it 8.
    let few = Rlimit { current: Some(8), maximum: Some(8) };
    prlimit(Pid::from_raw(run.id() as i32), Resource::Nofile, few).unwrap();
    run.wait();
    [program, mover].into_iter().for_each(wait_until_gone);
    let errors = run.told("errors");
    assert!(errors.contains("the program was stopped: its processes cannot be watched"), "{errors}");
    run.assert_all_have_ended_with_it();
}

#[test]
fn guardians_that_are_killed_are_not_missed_by_a_tree_that_ends_by_itself() {
    rounds(2, |seed, random| {
        let parts = ["writers", "fork"].map(|kind| torture_of(kind, "80M", 4, seed));
        let mut run = KilledRun::start("96M", &parts);
        run.wait_for_managed(2);
        for _ in 0..4 {
            wait_for_guardian(run.id(), None);
            random.pause(200);
            children(run.id()).into_iter().filter(|pid| is_guardian(*pid)).for_each(kill);
        }
        assert!(run.wait().success(), "{}", run.told("errors"));
        // A run that was slow explains itself, which is no failure. Neither is a fork's child that ends just
        // then and is reported as one whose pages cannot go out.
        let errors = run.told("errors");
        assert!(["died", "stopped", "killed"].iter().all(|word| !errors.contains(word)), "{errors}");
        assert!(run.ends().iter().all(|(_, code)| *code == 0) && run.ends().len() == 2, "{:?}", run.ends());
        run.assert_nothing_is_left();
        assert!(!run.folder.path().join("figures").exists());
    });
}

#[test]
fn where_programs_of_a_tree_are_killed_the_others_lose_nothing() {
    rounds(3, |seed, random| {
        let kinds = ["writers", "fork", "layout", "protect,brk"];
        let parts: Vec<_> = kinds.iter().map(|kind| torture_of(kind, "56M", 4, seed)).collect();
        let mut run = KilledRun::start("96M", &parts);
        let mut victims = Vec::new();
        for _ in 0..1 + random.below(2) {
            random.pause(4000);
            let parts = run.parts();
            if !parts.is_empty() {
                let victim = parts[random.below(parts.len() as u64) as usize];
                kill(victim);
                victims.push(victim);
            }
        }
        assert!(run.wait().success(), "{}", run.told("errors"));
        run.assert_no_finding();
        let ends = run.ends();
        assert_eq!(ends.len(), kinds.len(), "{}", run.told("output"));
        for (pid, code) in ends {
            assert!(
                code == 0 || code == 137 && victims.contains(&pid),
                "{pid}: {code}: {}",
                run.told("errors")
            );
        }
        run.assert_nothing_is_left();
        assert!(!run.folder.path().join("figures").exists());
    });
}

#[test]
fn a_program_that_is_killed_gives_its_part_of_the_budget_back() {
    const MIB: u64 = 1 << 20;
    let parts = [torture_of("writers", "40M", 600, 1), torture_of("writers", "256M", 600, 2)];
    let mut run = KilledRun::start("128M", &parts);
    let managed = run.wait_for_managed(2);
    let figure = |name: &str| run.figures().and_then(|figures| figures[name].as_u64());
    wait_for("a large program that is out for the most part", || {
        (figure("managed_bytes")? > 240 * MIB && figure("swapped_bytes")? > 100 * MIB).then_some(())
    });
    let largest = managed.iter().copied().max_by_key(|pid| {
        let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        statm.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    kill(largest.unwrap());
    // The remaining program has just over 40 MiB, in memory or out, and the compressed pool takes a share.
    wait_for("the memory of the program that was killed", || {
        let (used, managed) = (figure("used_bytes")?, figure("managed_bytes")?);
        (managed < 64 * MIB && used < 80 * MIB && figure("swapped_bytes")? < 48 * MIB).then_some(())
    });
    managed.into_iter().for_each(kill);
    assert!(run.wait().success());
    run.assert_no_finding();
    run.assert_nothing_is_left();
}

#[test]
fn a_runner_that_is_killed_at_any_moment_leaves_nothing_and_gives_no_program_a_wrong_byte() {
    rounds(8, |seed, random| {
        let kinds = ["writers,layout", "fork", "orphans,protect"];
        let parts: Vec<_> = kinds.iter().map(|kind| torture_of(kind, "64M", 600, seed)).collect();
        let mut run = KilledRun::start("96M", &parts);
        random.pause(3000);
        // A stopped runner takes no process over, so that the test knows which ones it had.
        let looks = random.below(3) > 0;
        let mut managed = Vec::new();
        if looks {
            signal(run.id(), "-STOP");
            managed.extend(run.mark.processes().into_iter().filter(|pid| is_watched(*pid)));
        }
        run.kill_runner(managed);
        wait_for("the helpers' ends", || {
            let is_helper = |pid: &u32| comm(*pid) == "octavo-mover" || is_guardian(*pid);
            (!run.mark.processes().iter().any(is_helper)).then_some(())
        });
        // Processes that were not managed yet continue to run, and do not stand still.
        wait_for("programs that stand still", || {
            let stands = |pid: &u32| {
                fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "))
            };
            (!run.mark.processes().iter().any(stands)).then_some(())
        });
        wait_for("the ends of programs that were not managed", || {
            run.mark.processes().into_iter().for_each(kill);
            run.mark.processes().is_empty().then_some(())
        });
        run.assert_all_have_ended_with_it();
    });
}
