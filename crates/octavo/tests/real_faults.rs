//! Swap on real files that fail: a full file system, a truncated file, a device that returns EIO, no
//! io_uring, no memory to lock, a killed process. Room may be lost, and pages whose bytes the machine lost,
//! but never a byte more.
//!
//! If the machine does not let a test cause its failure (no root, no loop devices), the test says why and
//! passes.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{MIB, PAGE, Random, Watchdog, assert_nothing_is_left};
use octavo::io::{FileDevice, IoEngine, SwapArea, SwapFile};
use octavo::{Access, Counter, ErrorKind, Manager, ManagerBuilder, Pin, RegionOptions, Space};
use tempfile::TempDir;

/// The environment variable that names the task of a test's child process.
const CHILD: &str = "OCTAVO_TEST_CHILD";

/// A file system of the test, unmounted when dropped.
struct Mounted {
    image: PathBuf,
    at: PathBuf,
    _directory: TempDir,
}

impl Mounted {
    /// Makes an ext4 file system in a file of `bytes` bytes.
    fn ext4(bytes: u64) -> Result<Self, String> {
        Self::new(|image, at| {
            File::create(image).and_then(|file| file.set_len(bytes)).map_err(|error| error.to_string())?;
            run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image))?;
            run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at))
        })
    }

    fn tmpfs(bytes: u64) -> Result<Self, String> {
        let size = format!("size={bytes}");
        Self::new(|_, at| run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(at)))
    }

    fn new(make: impl FnOnce(&Path, &Path) -> Result<(), String>) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (image, at) = (directory.path().join("image"), directory.path().join("mounted"));
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        make(&image, &at)?;
        Ok(Self { image, at, _directory: directory })
    }

    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.at).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A manager's last thread may hold a file for a moment.
        for _ in 0..100 {
            if run(Command::new("umount").arg(&self.at)).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = run(Command::new("umount").arg("--lazy").arg(&self.at));
        if !thread::panicking() {
            panic!("{} is still in use", self.at.display());
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", said())) }
}

/// Returns the value, or prints why the test is skipped.
fn or_skip<T>(made: Result<T, String>) -> Option<T> {
    made.inspect_err(|why| {
        // The line is written directly, so that the capture of test output does not hide it.
        let _ = writeln!(std::io::stderr(), "skipped: {why}");
    })
    .ok()
}

fn builder(swap: SwapFile) -> ManagerBuilder {
    let area = SwapArea::from_file(swap).unwrap().allow_tmpfs(true);
    Manager::builder().budget_bytes(16 * MIB).swap_area(area)
}

fn manager(swap: SwapFile) -> Manager {
    builder(swap).build().unwrap()
}

fn map(space: &Space, pages: u64) -> u64 {
    space.map(pages * PAGE, RegionOptions::default()).unwrap()
}

/// Returns the bytes of a page, which are unique and incompressible.
fn bytes_of(page: u64) -> Vec<u8> {
    let mut random = Random::new(page);
    (0..PAGE / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Writes the pages in order until a write fails. Returns the page that failed, and the error.
fn fill(space: &Space, at: u64, pages: std::ops::Range<u64>) -> (u64, Option<octavo::Error>) {
    for page in pages.clone() {
        if let Err(error) = space.write(at + page * PAGE, &bytes_of(page)) {
            return (page, Some(error));
        }
    }
    (pages.end, None)
}

/// Reads the pages, and checks the pages that can be read. The others must fail with one of these kinds.
/// Returns how many failed.
fn failed_reads(space: &Space, at: u64, pages: std::ops::Range<u64>, kinds: &[ErrorKind]) -> u64 {
    let mut failed = 0;
    for page in pages {
        let mut found = vec![0; PAGE as usize];
        match space.read(at + page * PAGE, &mut found) {
            Ok(()) => assert!(found == bytes_of(page), "page {page} has other bytes"),
            Err(error) if kinds.contains(&error.kind()) => failed += 1,
            Err(error) => panic!("page {page}: {:?}: {error}", error.kind()),
        }
    }
    failed
}

fn all_out(manager: &Manager, space: &Space) {
    while manager.reclaim(4096).unwrap() > 0 {}
    assert_eq!(space.stats().unwrap().resident_bytes, 0, "all is out");
}

#[test]
fn a_full_file_system_is_an_error_that_loses_no_page_and_room_again_is_used() {
    let _watchdog = Watchdog::new("a full file system");
    for tmpfs in [false, true] {
        let mounted = if tmpfs { Mounted::tmpfs(48 * MIB) } else { Mounted::ext4(64 * MIB) };
        let Some(mounted) = or_skip(mounted) else { return };
        let ballast = mounted.at.join("ballast");
        let taken = mounted.free_bytes() - 12 * MIB;
        let file = File::create(&ballast).unwrap();
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, taken).unwrap();
        drop(file);
        let free = mounted.free_bytes();
        let manager = manager(SwapFile::Temporary(mounted.at.clone()));
        let space = manager.space().unwrap();
        let at = map(&space, 16384);
        let (filled, error) = fill(&space, at, 0..16384);
        let error = error.expect("64 MiB do not fit in 16 and 12");
        assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
        assert!(error.to_string().contains("free room on its file system"), "{error}");
        // At least memory and nearly all of the free space must be full.
        let least = (12 * MIB + free * 8 / 10) / PAGE;
        assert!(filled >= least, "{filled} pages were kept, of {least} at least");
        // A page that is out needs a frame, but no page can go out to free a frame.
        let start = Instant::now();
        let failed = failed_reads(&space, at, 0..100, &[ErrorKind::SwapFull]);
        println!("tmpfs {tmpfs}: {filled} filled; {failed} failed reads in {:?}", start.elapsed());
        fs::remove_file(&ballast).unwrap();
        let more = filled + 10 * MIB / PAGE;
        let (refilled, error) = fill(&space, at, filled..more);
        assert_eq!(refilled, more, "there is room again: {error:?}");
        assert_eq!(failed_reads(&space, at, 0..more, &[]), 0);
        drop(space);
        assert_nothing_is_left(&manager);
    }
}

#[test]
fn a_file_that_is_cut_loses_what_was_cut_off_and_says_so() {
    let _watchdog = Watchdog::new("a file that is cut");
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = directory.path().join("swap");
    // A background thread could still have pages, and write them behind the new end of the file.
    let manager = builder(SwapFile::Named(path.clone())).background(false).build().unwrap();
    let space = manager.space().unwrap();
    let (pages, other) = (8192, 64);
    let at = map(&space, pages + other);
    assert_eq!(fill(&space, at, 0..pages).0, pages);
    all_out(&manager, &space);
    let pin = in_memory(&space, at, pages..pages + other);
    let cut = OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(16 * MIB).unwrap();
    let failed = failed_reads(&space, at, 0..pages, &[ErrorKind::SwapRead, ErrorKind::Corrupt]);
    // If a write made the file long again, it has zeros there, which the checksum detects. Half of the pages
    // were in the lost part. Pages that were read ahead beyond the end may be requested again.
    assert!((pages - 16 * MIB / PAGE..pages).contains(&failed), "{failed} of {pages} pages failed");
    assert_eq!(failed_reads(&space, at, pages..pages + other, &[]), 0, "others are not harmed");
    assert!(manager.counters().get(Counter::SwapReadError) > 0);
    manager.validate();
    drop(pin);
    drop(space);
    assert_nothing_is_left(&manager);
}

/// A loop device over a truncated file: reads behind its end give EIO, from the block layer. (A device-mapper
/// `error` target would be the same to us, but many kernels lack it.)
#[test]
fn a_device_that_answers_eio_is_an_error_of_the_access_and_nothing_else_is_harmed() {
    let _watchdog = Watchdog::new("a device that answers EIO");
    let Some(mounted) = or_skip(Mounted::ext4(96 * MIB)) else { return };
    let manager = manager(SwapFile::Named(mounted.at.join("swap")));
    let space = manager.space().unwrap();
    let (pages, other) = (8192, 64);
    let at = map(&space, pages + other);
    assert_eq!(fill(&space, at, 0..pages).0, pages);
    all_out(&manager, &space);
    let pin = in_memory(&space, at, pages..pages + other);
    run(&mut Command::new("sync")).unwrap();
    OpenOptions::new().write(true).open(&mounted.image).unwrap().set_len(24 * MIB).unwrap();
    let failed = failed_reads(&space, at, 0..pages, &[ErrorKind::SwapRead, ErrorKind::Corrupt]);
    assert!(failed > 100, "only {failed} reads failed");
    let mut errors = (0..pages).filter_map(|page| space.load::<u64>(at + page * PAGE).err());
    assert!(errors.any(|error| error.to_string().contains("os error 5")), "none of them says EIO");
    assert_eq!(failed_reads(&space, at, pages..pages + other, &[]), 0, "others are not harmed");
    manager.validate();
    drop(pin);
    drop(space);
    assert_nothing_is_left(&manager);
}

/// Fills pages and pins them in memory, since a write might make a truncated file long again.
fn in_memory(space: &Space, at: u64, pages: std::ops::Range<u64>) -> Pin<'_> {
    assert_eq!(fill(space, at, pages.clone()).0, pages.end);
    let len = (pages.end - pages.start) * PAGE;
    let pin = space.pin_exact(at + pages.start * PAGE, len as usize, Access::Write).unwrap();
    assert_eq!(pin.len() as u64, len);
    pin
}

/// A loop device over a file of its own. It is removed when dropped.
struct LoopDevice {
    path: PathBuf,
    image: tempfile::NamedTempFile,
}

impl LoopDevice {
    fn new(bytes: u64) -> Result<Self, String> {
        let image = tempfile::NamedTempFile::new_in("/var/tmp").map_err(|error| error.to_string())?;
        image.as_file().set_len(bytes).map_err(|error| error.to_string())?;
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["--find", "--show"]).arg(image.path()).output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        let said = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            return Err(format!("losetup: {}", said(&output.stderr)));
        }
        Ok(Self { path: said(&output.stdout).into(), image })
    }

    /// Returns the bytes of the disk.
    fn bytes(&self) -> Vec<u8> {
        // Makes the kernel write everything to the file first.
        run(Command::new("blockdev").arg("--flushbufs").arg(&self.path)).unwrap();
        fs::read(self.image.path()).unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("--detach").arg(&self.path));
    }
}

#[test]
fn a_disk_that_holds_something_is_refused_and_left_as_it_is_unless_it_may_be_overwritten() {
    let _watchdog = Watchdog::new("a disk that holds something");
    let Some(disk) = or_skip(LoopDevice::new(64 * MIB)) else { return };
    let build = |area: SwapArea| Manager::builder().budget_bytes(16 * MIB).swap_area(area).build();
    let area = || SwapArea::block_device(&disk.path);
    let pages_go_there_and_back = |area| {
        let manager = build(area).unwrap();
        let space = manager.space().unwrap();
        let at = map(&space, 8192);
        assert_eq!(fill(&space, at, 0..8192).0, 8192);
        assert_eq!(failed_reads(&space, at, 0..8192, &[]), 0);
        drop(space);
        assert_nothing_is_left(&manager);
    };
    // The disk first has zeros. The second time, Octavo has used it before.
    (0..2).for_each(|_| pages_go_there_and_back(area()));
    for make in [["mkswap", "--quiet"], ["mkfs.ext4", "-qF"]] {
        if or_skip(run(Command::new(make[0]).args(&make[1..]).arg(&disk.path))).is_none() {
            continue;
        }
        let before = disk.bytes();
        for refused in [build(area()).unwrap_err(), area().check().unwrap_err()] {
            assert_eq!(refused.kind(), ErrorKind::SwapNotEmpty, "{refused}");
            let said = refused.to_string();
            let words = [disk.path.to_str().unwrap(), "lsblk -f", "overwrite(true)", "--force"];
            assert!(words.into_iter().all(|word| said.contains(word)), "{said}");
        }
        assert!(disk.bytes() == before, "{make:?}: the disk has other bytes");
        area().overwrite(true).check().unwrap();
        pages_go_there_and_back(area().overwrite(true));
        pages_go_there_and_back(area());
    }
}

fn works_by(directory: &Path, engine: &str) {
    let device = FileDevice::open(&SwapFile::Temporary(directory.into()), 1 << 30).unwrap().unwrap();
    let said = device.describe_engine().to_owned();
    assert!(said.contains(engine), "the engine is {said}");
    let manager = Manager::builder().budget_bytes(16 * MIB).swap_device(Box::new(device)).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space, 8192);
    assert_eq!(fill(&space, at, 0..8192).0, 8192);
    assert_eq!(failed_reads(&space, at, 0..8192, &[]), 0);
    let fault = common::run_woken(space.fault_async(at, Access::Write)).0;
    assert!(fault.is_ok(), "{fault:?}");
    drop(space);
    assert_nothing_is_left(&manager);
}

#[test]
fn where_io_uring_is_forbidden_threads_do_its_work() {
    let _watchdog = Watchdog::new("io_uring forbidden");
    // The filter applies to this thread and its children.
    let forbidden = thread::spawn(|| {
        let forbidden = octavo_platform::forbid_io_uring().map_err(|error| format!("seccomp: {error}"));
        if or_skip(forbidden).is_some() {
            works_by(Path::new("/var/tmp"), "threads");
        }
    });
    forbidden.join().unwrap();
}

#[test]
fn without_memory_to_lock_everything_works() {
    let _watchdog = Watchdog::new("no memory to lock");
    let mut child = child("no memory to lock", Path::new("/var/tmp"), |command| {
        if rustix::process::geteuid().is_root() {
            // The limit does not apply to root.
            command.uid(65534).gid(65534);
        }
    });
    match child.as_mut().map(Child::wait) {
        Ok(status) => assert!(status.unwrap().success(), "the child failed"),
        Err(why) => drop(or_skip::<()>(Err(format!("the child cannot be run as nobody: {why}")))),
    }
}

#[test]
fn a_process_that_is_killed_leaves_nothing_behind() {
    let _watchdog = Watchdog::new("a process that is killed");
    let Some(mounted) = or_skip(Mounted::ext4(96 * MIB)) else { return };
    let (names, free) = (names_in(&mounted.at), mounted.free_bytes());
    let mut child = child("use swap until killed", &mounted.at, |_| {}).unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.contains("swapping")).expect("the child swaps");
    assert_eq!(names_in(&mounted.at), names, "the file has no name");
    assert!(mounted.free_bytes() < free - 16 * MIB, "the file takes room");
    child.kill().unwrap();
    child.wait().unwrap();
    // The blocks of a file without a name are freed with its last descriptor, which rings may hold for a
    // moment.
    let deadline = Instant::now() + Duration::from_secs(20);
    while mounted.free_bytes() < free - MIB {
        assert!(Instant::now() < deadline, "{} of {free} bytes are free again", mounted.free_bytes());
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(names_in(&mounted.at), names);
}

fn names_in(directory: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// Starts this program again, to do the task `what` in a process of its own.
fn child(what: &str, directory: &Path, prepare: impl FnOnce(&mut Command)) -> Result<Child, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.args(["--ignored", "--exact", "a_child_of_the_tests", "--nocapture"]);
    command.env(CHILD, what).env("TMPDIR", directory).stdout(Stdio::piped());
    prepare(&mut command);
    command.spawn().map_err(|error| error.to_string())
}

#[test]
fn a_limit_on_file_sizes_that_is_lowered_in_use_is_an_error_that_loses_no_page() {
    let _watchdog = Watchdog::new("a limit on file sizes");
    for engine in ["uring", "threads"] {
        let mut child =
            child(&format!("a limit on file sizes, by {engine}"), Path::new("/var/tmp"), |_| {}).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success(), "{engine}: the child ended by {status}");
    }
}

/// Runs in a process of its own, since the signal would end the process.
fn use_swap_under_a_lowered_limit(directory: &Path, engine: IoEngine) {
    let limit = |bytes: Option<u64>| {
        let limit = rustix::process::Rlimit { current: bytes, maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    };
    let area = SwapArea::temporary(directory);
    let manager =
        Manager::builder().budget_bytes(16 * MIB).swap_area(area).io_engine(engine).build().unwrap();
    let space = manager.space().unwrap();
    let at = map(&space, 32768);
    assert_eq!(fill(&space, at, 0..8192).0, 8192);
    // The limit is below the file's current size, so writes within the file fail too.
    limit(Some(4 * MIB));
    let (filled, error) = fill(&space, at, 8192..32768);
    let error = error.expect("112 MiB do not fit in 16 and 4");
    assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}");
    assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
    failed_reads(&space, at, 0..100, &[ErrorKind::SwapFull]);
    limit(None);
    assert_eq!(fill(&space, at, filled..32768).0, 32768, "there is room again");
    assert_eq!(failed_reads(&space, at, 0..32768, &[]), 0);
}

#[test]
#[ignore = "other tests run it in a process of its own"]
fn a_child_of_the_tests() {
    let directory = PathBuf::from(std::env::var_os("TMPDIR").unwrap());
    match std::env::var(CHILD).unwrap().as_str() {
        "no memory to lock" => {
            let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            rustix::process::setrlimit(rustix::process::Resource::Memlock, none).unwrap();
            works_by(&directory, "");
        }
        "a limit on file sizes, by uring" => use_swap_under_a_lowered_limit(&directory, IoEngine::Uring),
        "a limit on file sizes, by threads" => use_swap_under_a_lowered_limit(&directory, IoEngine::Threads),
        _ => {
            let manager = manager(SwapFile::Temporary(directory));
            let space = manager.space().unwrap();
            let at = map(&space, 12288);
            assert_eq!(fill(&space, at, 0..12288).0, 12288);
            println!("swapping");
            loop {
                assert_eq!(failed_reads(&space, at, 0..12288, &[]), 0);
                assert_eq!(fill(&space, at, 0..12288).0, 12288);
            }
        }
    }
}
