//! Runs of programs under `octavo run`, and the processes that belong to one.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use tempfile::TempDir;

pub const OCTAVO: &str = env!("CARGO_BIN_EXE_octavo");
/// Everything that a test waits for comes within this time, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Marks the processes of one run in their environment.
const MARK: &str = "OCTAVO_TEST_RUN";

/// Returns the torture program next to `octavo`. A build of all packages' tests has built it already.
pub fn torture() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = Path::new(OCTAVO).with_file_name("octavo-torture");
        if env::var_os("OCTAVO_SUITE_OUTPUT").is_some() {
            return program;
        }
        let cargo = env::var_os("CARGO").unwrap_or("cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--package", "octavo-torture"]);
        if program.parent().is_some_and(|folder| folder.ends_with("release")) {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the torture program is built");
        program
    })
}

/// Returns the program whose heaps look like something else, which is built next to `octavo`.
pub fn heaps() -> PathBuf {
    torture().with_file_name("octavo-heaps")
}

/// Returns the program whose memory changes its kind, which is built next to `octavo`.
pub fn kinds() -> PathBuf {
    torture().with_file_name("octavo-kinds")
}

pub fn octavo(options: &[&str], program: impl AsRef<Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(OCTAVO);
    command.arg("run").args(options).arg("--").arg(program.as_ref()).args(arguments);
    command
}

/// Like [`octavo`], without a capability.
pub fn octavo_without(
    capability: &str,
    options: &[&str],
    program: impl AsRef<Path>,
    arguments: &[&str],
) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        format!("--inh-caps=-{capability}"),
        format!("--bounding-set=-{capability}"),
        OCTAVO.into(),
    ]);
    command.args(octavo(options, program, arguments).get_args());
    command
}

/// Runs a program that waits for the end of its input, until the run says something with these words, as it
/// must once. Returns that sentence.
#[track_caller]
pub fn said_once(mut run: Command, words: &str) -> String {
    let mut run = run.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    let is_said = |line: &String| line.contains(words);
    let said = lines.find(is_said).unwrap_or_else(|| panic!("the run does not say {words:?}"));
    drop(run.stdin.take());
    assert_eq!(lines.filter(is_said).collect::<Vec<_>>(), [""; 0], "it is said once");
    assert!(run.wait().unwrap().success());
    said
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub fn assert_passed(output: &Output) {
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// Returns `octavo` for a user without rights, and a folder that such a user can access. Returns `None`
/// if every user has the rights, or this one cannot become another.
pub fn without_rights() -> Option<(TempDir, PathBuf)> {
    let may_all = fs::read("/proc/sys/vm/unprivileged_userfaultfd").is_ok_and(|flag| flag.starts_with(b"1"));
    if may_all || !rustix::process::geteuid().is_root() {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let octavo = folder.path().join("octavo");
    fs::copy(OCTAVO, &octavo).unwrap();
    Some((folder, octavo))
}

/// A command of such a user.
pub fn as_nobody(octavo: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(octavo);
    command
}

/// Waits until something is there, and returns it.
#[track_caller]
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "in vain: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let texts = threads.flatten().filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
        .collect()
}

pub fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().into()
}

/// Returns whether a process exists and is not ending.
pub fn is_there(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Kills a process if it exists.
pub fn kill(pid: u32) {
    signal(pid, "-KILL");
}

pub fn signal(pid: u32, signal: &str) {
    let _ = Command::new("kill").args([signal, &pid.to_string()]).output();
}

#[track_caller]
pub fn wait_until_gone(pid: u32) {
    wait_for(&format!("the end of process {pid} ({})", comm(pid)), || (!is_there(pid)).then_some(()));
}

/// Returns whether memory of a process is watched by a userfaultfd.
pub fn is_watched(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    maps.lines().any(|line| line.strip_prefix("VmFlags:").is_some_and(|flags| flags.contains(" um ")))
}

/// Returns whether a process is a guardian. After the runner's death, a guardian executes a program for the
/// rest of its work.
pub fn is_guardian(pid: u32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    comm(pid) == "octavo-guard" || line.contains("__guardian")
}

/// Counts the userfaultfds that a process has.
pub fn userfaultfds(pid: u32) -> usize {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let files = files.filter_map(|file| fs::read_link(file.path()).ok());
    files.filter(|file| file.as_os_str() == "anon_inode:[userfaultfd]").count()
}

/// Waits until a guardian of a runner has the descriptor of a process, and returns it.
#[track_caller]
pub fn wait_for_guardian(runner: u32, other_than: Option<u32>) -> u32 {
    let has_memory = |pid: &u32| is_guardian(*pid) && userfaultfds(*pid) > 0;
    wait_for("a guardian that has been entrusted with something", || {
        children(runner).into_iter().filter(|pid| Some(*pid) != other_than).find(has_memory)
    })
}

/// The processes of one run, in whatever group they are.
#[derive(Debug)]
pub struct RunMark {
    value: String,
    group: u32,
}

impl RunMark {
    /// Starts a runner whose processes can be distinguished from all others.
    pub fn start(mut command: Command) -> (Self, std::process::Child) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let value = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let child = command.env(MARK, &value).process_group(0).spawn().unwrap();
        (Self { value, group: child.id() }, child)
    }

    /// Returns all processes of the run: the runner, its helpers, the programs. Programs that were started
    /// without an environment are recognized by their group. The guardian and the movers have left the group.
    pub fn processes(&self) -> Vec<u32> {
        let line = format!("{MARK}={}", self.value);
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| is_there(*pid) && (self.is_of_group(*pid) || has_line(*pid, &line))).collect()
    }

    fn is_of_group(&self, pid: u32) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
        fields.split(' ').nth(2) == Some(self.group.to_string().as_str())
    }

    /// Waits until no process of the run is left.
    #[track_caller]
    pub fn wait_until_nobody_is_left(&self) {
        let named = |pid: &u32| (*pid, comm(*pid));
        let began = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            let named: Vec<_> = left.iter().map(named).collect();
            assert!(began.elapsed() < PATIENCE, "left behind: {named:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RunMark {
    fn drop(&mut self) {
        // After a failure, processes may be left.
        self.processes().into_iter().for_each(kill);
    }
}

fn has_line(pid: u32, line: &str) -> bool {
    let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    text.split(|byte| *byte == 0).any(|found| found == line.as_bytes())
}

/// Random moments and choices from a seed.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below a bound, by splitmix64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % bound
    }

    /// Sleeps for a random time up to `longest_ms`, in which short and long times are equally likely.
    pub fn pause(&mut self, longest_ms: u64) {
        let longest = 1 + self.below(longest_ms);
        thread::sleep(Duration::from_millis(self.below(longest)));
    }
}
