//! Files whose devices fail, fill up, fall silent or change behind the manager's back.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::device::{EIO, Manner, TestDevice, TestFile};
use common::mounted::Mounted;
use common::{MIB, PAGE, Watchdog, assert_nothing_is_left, says};
use octavo::file::{File, FileOptions, Sharing, WriteGate};
use octavo::{Access, Advice, Counter, ErrorKind, Manager, Protection, RegionOptions};

const PAGE_LEN: usize = PAGE as usize;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("data");
    (folder, path)
}

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).background(false).build().unwrap()
}

fn open(manager: &Manager, path: &Path) -> File {
    manager.open(path, FileOptions::new().create(true)).unwrap()
}

/// A file of eight pages on a test device, each page with its own number plus one.
fn on_device(manager: &Manager, manner: Manner) -> (TestFile, File) {
    let backing = TestFile::new(TestDevice::with_manner(4096, manner));
    let file = manager.open_backing("a file", backing.boxed(), FileOptions::new().write(true)).unwrap();
    for page in 0..8_u8 {
        file.write_at(u64::from(page) * PAGE, &[page + 1; PAGE_LEN]).unwrap();
    }
    (backing, file)
}

fn byte_at(file: &File, at: u64) -> u8 {
    let mut byte = [0];
    assert_eq!(file.read_at(at, &mut byte).unwrap(), 1);
    byte[0]
}

#[test]
fn pages_that_a_full_disk_refuses_stay_and_each_opener_is_told_once() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some(_mounted) = Mounted::new(folder.path(), "size=512k") else { return };
    let (manager, path) = (manager(), folder.path().join("data"));
    let (one, other) = (open(&manager, &path), open(&manager, &path));
    one.write_at(0, &vec![7; MIB as usize]).unwrap();
    says(one.sync(), ErrorKind::FileWrite, &["No space left"]);
    says(other.sync(), ErrorKind::FileWrite, &["No space left"]);
    assert!(one.dirty_bytes() > 0);
    let mut bytes = vec![0; MIB as usize];
    manager.reclaim(1000).unwrap();
    assert_eq!(one.read_at(0, &mut bytes).unwrap(), MIB as usize);
    assert!(bytes.iter().all(|byte| *byte == 7), "nothing is lost");
    one.set_len_bytes(64 * PAGE).unwrap();
    // The second sync of each tried again, and failed again.
    while one.sync().is_err() {}
    let _ = other.sync();
    assert_eq!((one.sync().is_ok(), other.sync().is_ok(), one.dirty_bytes()), (true, true, 0));
    assert_eq!(fs::read(&path).unwrap(), vec![7; 64 * PAGE_LEN]);
}

#[test]
fn a_page_that_was_not_written_is_tried_again_by_the_next_sync() {
    let manager = manager();
    let (backing, file) = on_device(&manager, Manner::Inline);
    backing.device.writes().fail_every(1, EIO);
    says(file.sync(), ErrorKind::FileWrite, &["a file"]);
    assert_eq!(file.dirty_bytes(), 8 * PAGE);
    manager.reclaim(100).unwrap();
    assert_eq!(byte_at(&file, 5 * PAGE), 6, "it stays in memory");
    backing.device.writes().fail_every(0, EIO);
    file.sync().unwrap();
    assert_eq!((file.dirty_bytes(), backing.device.writes().failed()), (0, 1));
    manager.reclaim(100).unwrap();
    assert_eq!(byte_at(&file, 5 * PAGE), 6, "it comes from the device");
}

#[test]
fn a_failed_flush_is_reported_once_and_a_failed_read_to_its_access() {
    let manager = manager();
    let (backing, file) = on_device(&manager, Manner::Inline);
    backing.fail_syncs(true);
    says(file.sync(), ErrorKind::FileWrite, &["a file"]);
    backing.fail_syncs(false);
    file.sync().unwrap();
    while manager.reclaim(100).unwrap() > 0 {}
    backing.device.reads().fail_every(1, EIO);
    says(file.read_at(PAGE, &mut [0; 8]), ErrorKind::FileRead, &["page 1 of a file"]);
    says(file.write_at(PAGE, b"in part"), ErrorKind::FileRead, &["page 1 of a file"]);
    file.write_at(PAGE, &[9; PAGE_LEN]).unwrap();
    assert_eq!(byte_at(&file, PAGE), 9, "a page that is written whole need not be read");
    backing.device.reads().fail_every(0, EIO);
    assert_eq!(byte_at(&file, 2 * PAGE), 3);
    file.sync().unwrap();
}

#[test]
fn a_silent_device_is_an_error_in_time_and_the_page_comes_later() {
    let _watchdog = Watchdog::new("a silent device");
    let builder = Manager::builder().budget_bytes(16 * MIB).background(false);
    let manager = builder.io_timeout(Duration::from_millis(50)).build().unwrap();
    let (backing, file) = on_device(&manager, Manner::Threads(1));
    file.sync().unwrap();
    while manager.reclaim(100).unwrap() > 0 {}
    backing.device.reads().hold();
    says(file.read_at(3 * PAGE, &mut [0; 8]), ErrorKind::TimedOut, &["a file", "io_timeout"]);
    backing.device.let_go();
    assert_eq!(byte_at(&file, 3 * PAGE), 4);
}

/// A gate that holds a page back until it is opened, and calls somebody when it is asked about the first
/// page.
struct Gate {
    held_back: u64,
    is_open: AtomicBool,
    at_first: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    refused: AtomicU64,
}

impl WriteGate for Gate {
    fn may_write(&self, offset: u64, _page: &[u8]) -> bool {
        if offset == 0
            && let Some(call) = self.at_first.lock().unwrap().take()
        {
            call();
        }
        let may = offset != self.held_back || self.is_open.load(Ordering::Relaxed);
        self.refused.fetch_add(u64::from(!may), Ordering::Relaxed);
        may
    }

    fn make_writable(&self, _offset: u64, _page: &[u8]) {
        self.is_open.store(true, Ordering::Relaxed);
    }
}

/// While a sync is under way, reclaim wants to write one of its pages, and the gate holds the page back.
#[test]
fn a_sync_writes_a_page_that_reclaim_began_to_write_and_did_not() {
    let _watchdog = Watchdog::new("a sync beside a gate");
    let (folder, path) = folder();
    let manager = Arc::new(manager());
    let file = open(&manager, &path);
    // A sync looks at the first 32 pages at once. The page that is held back comes later.
    const HELD_BACK: u64 = 100 * PAGE;
    file.write_at(0, &vec![5; 128 * PAGE_LEN]).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, 128 * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    let evict = move || {
        let evicting = std::thread::spawn(move || {
            space.load::<u8>(at + HELD_BACK).unwrap();
            space.advise(at + HELD_BACK, PAGE, Advice::PageOut).unwrap();
        });
        evicting.join().unwrap();
    };
    let gate = Arc::new(Gate {
        held_back: HELD_BACK,
        is_open: AtomicBool::new(false),
        at_first: Mutex::new(Some(Box::new(evict))),
        refused: AtomicU64::new(0),
    });
    file.set_write_gate(Some(Arc::clone(&gate) as Arc<dyn WriteGate>)).unwrap();
    file.sync().unwrap();
    assert!(gate.refused.load(Ordering::Relaxed) >= 2, "reclaim was refused, and then the sync");
    assert_eq!(file.dirty_bytes(), 0);
    assert_eq!(fs::read(&path).unwrap(), vec![5; 128 * PAGE_LEN]);
    drop(folder);
}

#[test]
fn a_hole_leaves_the_rest_of_its_pages_to_those_who_have_them() {
    let (_folder, path) = folder();
    let manager = manager();
    let file = open(&manager, &path);
    file.write_at(0, &[1; 3 * PAGE_LEN]).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, 3 * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    let pin = space.pin_exact(at, PAGE_LEN, Access::Write).unwrap();
    file.punch_hole(100, 2 * PAGE).unwrap();
    pin.copy_in(10, b"kept").unwrap();
    drop(pin);
    file.sync().unwrap();
    let mut expected = vec![1; 3 * PAGE_LEN];
    expected[100..100 + 2 * PAGE_LEN].fill(0);
    expected[10..14].copy_from_slice(b"kept");
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn a_file_that_another_process_truncates_fails_reads_and_takes_writes() {
    let (_folder, path) = folder();
    let manager = manager();
    fs::write(&path, vec![3; 16 * PAGE_LEN]).unwrap();
    let file = open(&manager, &path);
    assert_eq!(byte_at(&file, 0), 3);
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 * PAGE).unwrap();
    while manager.reclaim(100).unwrap() > 0 {}
    says(file.read_at(8 * PAGE, &mut [0; 8]), ErrorKind::FileRead, &["another program has truncated it"]);
    assert_eq!(byte_at(&file, 2 * PAGE), 3);
    file.write_at(8 * PAGE, &[4; PAGE_LEN]).unwrap();
    file.sync().unwrap();
    assert_eq!(fs::read(&path).unwrap()[8 * PAGE_LEN..][..PAGE_LEN], [4; PAGE_LEN]);
}

#[test]
fn a_file_without_direct_transfers_works_through_the_kernels_cache() {
    for folder in [tempfile::tempdir_in("/var/tmp"), tempfile::tempdir_in("/dev/shm")] {
        let folder = folder.unwrap();
        let (manager, path) = (manager(), folder.path().join("data"));
        let file = manager.open(&path, FileOptions::new().create(true).direct(false)).unwrap();
        assert!(!file.is_direct());
        file.write_at(3, &vec![6; 5 * PAGE_LEN]).unwrap();
        file.sync().unwrap();
        while manager.reclaim(100).unwrap() > 0 {}
        assert_eq!((byte_at(&file, 2), byte_at(&file, 3), byte_at(&file, 5 * PAGE + 2)), (0, 6, 6));
        assert_eq!(fs::read(&path).unwrap().len(), 5 * PAGE_LEN + 3);
    }
}

#[test]
fn a_sparse_file_has_zeros_and_few_blocks() {
    use std::os::unix::fs::MetadataExt;
    let (_folder, path) = folder();
    let manager = manager();
    let file = open(&manager, &path);
    const FAR: u64 = 1 << 40;
    file.write_at(FAR, b"far").unwrap();
    file.write_at(5, b"near").unwrap();
    assert_eq!(byte_at(&file, FAR / 2), 0);
    file.sync().unwrap();
    while manager.reclaim(100).unwrap() > 0 {}
    assert_eq!((byte_at(&file, FAR), byte_at(&file, FAR - 1), byte_at(&file, 5)), (b'f', 0, b'n'));
    let status = fs::metadata(&path).unwrap();
    assert_eq!(status.len(), FAR + 3);
    assert!(status.blocks() * 512 < MIB);
    assert_eq!(file.read_at(u64::MAX, &mut [0; 9]).unwrap(), 0, "far behind the end");
    says(file.write_at(8 << 40, b"x"), ErrorKind::InvalidRange, &["8 TiB"]);
}

#[test]
fn a_file_that_is_replaced_is_another_file() {
    let (_folder, path) = folder();
    let manager = manager();
    let old = open(&manager, &path);
    old.write_at(0, b"old").unwrap();
    let new_path = path.with_extension("new");
    fs::write(&new_path, b"new and longer").unwrap();
    fs::rename(&new_path, &path).unwrap();
    let new = open(&manager, &path);
    assert_eq!((old.len_bytes().unwrap(), new.len_bytes().unwrap()), (3, 14));
    assert_eq!((byte_at(&old, 0), byte_at(&new, 0)), (b'o', b'n'));
    old.sync().unwrap();
    drop(old);
    assert_eq!(fs::read(&path).unwrap(), b"new and longer");
}

#[test]
fn a_file_that_may_only_be_read_is_mapped_and_copied_on_write() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let Some(mounted) = Mounted::new(folder.path(), "size=1m") else { return };
    let (manager, path) = (manager(), folder.path().join("data"));
    fs::write(&path, [8; 2 * PAGE_LEN]).unwrap();
    mounted.make_read_only();
    says(manager.open(&path, FileOptions::new().write(true)), ErrorKind::FileUnavailable, &["Read-only"]);
    let file = manager.open(&path, FileOptions::new()).unwrap();
    let space = manager.space().unwrap();
    let read_only = RegionOptions::new().protection(Protection::READ);
    let shared = space.map_file(&file, 0, 2 * PAGE, Sharing::Shared, read_only).unwrap();
    let private = space.map_file(&file, 0, 2 * PAGE, Sharing::Private, RegionOptions::new()).unwrap();
    space.store(private, 1_u8).unwrap();
    assert_eq!((space.load::<u8>(shared).unwrap(), space.load::<u8>(private).unwrap()), (8, 1));
    file.sync().unwrap();
}

#[test]
fn a_manager_without_threads_keeps_dirty_pages_few() {
    let (_folder, path) = folder();
    let manager = manager();
    let file = open(&manager, &path);
    for page in 0..6000_u64 {
        file.write_at(page * PAGE, &[page as u8; PAGE_LEN]).unwrap();
        assert!(file.dirty_bytes() <= 4 * MIB, "{} dirty bytes of 16 MiB", file.dirty_bytes());
    }
    file.sync().unwrap();
    assert_eq!(manager.counters().get(Counter::FileWrite), 6000, "each page was written once");
    let bytes = fs::read(&path).unwrap();
    assert!((0..6000).all(|page| bytes[page * PAGE_LEN + 5] == page as u8));
}

#[test]
fn many_files_share_one_budget() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let manager = Manager::builder().budget_bytes(16 * MIB).build().unwrap();
    let files: Vec<_> =
        (0..64).map(|number| open(&manager, &folder.path().join(format!("file {number}")))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let files = &files;
            scope.spawn(move || {
                for (number, file) in files.iter().enumerate().filter(|(number, _)| number % 4 == thread) {
                    for page in 0..200_u64 {
                        file.write_at(page * PAGE + 8, &(number as u64).to_le_bytes()).unwrap();
                    }
                    file.sync().unwrap();
                }
            });
        }
    });
    for (number, file) in files.iter().enumerate() {
        assert_eq!(byte_at(file, 150 * PAGE + 8), number as u8);
    }
    drop(files);
    for number in 0..64_usize {
        let bytes = fs::read(folder.path().join(format!("file {number}"))).unwrap();
        assert!((0..200).all(|page| bytes[page * PAGE_LEN + 8] == number as u8));
    }
    assert_nothing_is_left(&manager);
}

#[test]
fn a_forked_child_is_told_and_leaves_the_file_to_its_parent() {
    let (_folder, path) = folder();
    let manager = manager();
    let file = open(&manager, &path);
    file.write_at(0, b"parent").unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    let mut of_child = Some((file.clone(), space));
    let code = octavo_platform::run_in_forked_child(|| {
        let (file, space) = of_child.take().expect("called once");
        let answers = [
            file.read_at(0, &mut [0]).err(),
            file.write_at(0, b"child").err(),
            file.sync().err(),
            file.len_bytes().err(),
            file.set_len_bytes(0).err(),
            file.punch_hole(0, 1).err(),
            space.load::<u8>(at).err(),
            manager.open(&path, FileOptions::new()).err(),
        ];
        let is_told = |kind: Option<ErrorKind>| kind == Some(ErrorKind::ForkedChild);
        let wrong = answers.into_iter().position(|answer| !is_told(answer.map(|error| error.kind())));
        drop((file, space));
        wrong.map_or(0, |index| 1 + index as u8)
    });
    assert_eq!(code.unwrap(), 0, "the first call that did not answer ForkedChild, or a signal + 128");
    drop(of_child);
    file.sync().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"parent");
}
