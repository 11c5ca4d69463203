//! Files in the page cache: reads, writes, mappings, sync, truncation, errors.

mod common;

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::{MIB, PAGE, Random, says};
use octavo::file::{File, FileOptions, Sharing, WriteGate};
use octavo::{Access, Advice, Counter, ErrorKind, Manager, Protection, RegionOptions, Space};

const PAGE_LEN: usize = PAGE as usize;

struct Folder {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn folder() -> Folder {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    Folder { path: folder.path().to_path_buf(), _folder: folder }
}

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).build().unwrap()
}

/// Bytes of a page that no other page of the tests has.
fn page_of(number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8; PAGE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn numbered(path: &std::path::Path, pages: u64) {
    let bytes: Vec<u8> = (0..pages).flat_map(page_of).collect();
    fs::write(path, bytes).unwrap();
}

fn open(manager: &Manager, folder: &Folder, name: &str) -> File {
    manager.open(folder.path.join(name), FileOptions::new().create(true)).unwrap()
}

#[test]
fn a_file_larger_than_memory_is_read_by_a_mapping_and_by_calls() {
    let (folder, manager) = (folder(), manager());
    let pages = 32 * MIB / PAGE;
    numbered(&folder.path.join("data"), pages);
    let file = manager.open(folder.path.join("data"), FileOptions::new()).unwrap();
    assert_eq!(file.len_bytes().unwrap(), pages * PAGE);
    let space = manager.space().unwrap();
    let read_only = RegionOptions::new().protection(Protection::READ);
    let at = space.map_file(&file, 0, pages * PAGE, Sharing::Shared, read_only).unwrap();
    for page in 0..pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page);
    }
    let mut random = Random::new(7);
    let mut bytes = vec![0; PAGE_LEN];
    for _ in 0..2000 {
        let page = random.below(pages);
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page);
        let other = random.below(pages);
        assert_eq!(file.read_at(other * PAGE, &mut bytes).unwrap(), PAGE_LEN);
        assert_eq!(bytes, page_of(other));
    }
    assert_eq!(manager.counters().get(Counter::SwapOut), 0, "pages of files go to their files");
    assert_eq!(manager.counters().get(Counter::FileWrite), 0, "clean pages are not written");
}

#[test]
fn what_is_written_is_in_the_file_after_a_sync_and_in_every_view_at_once() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let again = open(&manager, &folder, "data");
    file.write_at(0, &page_of(1)).unwrap();
    file.write_at(3 * PAGE - 3, b"abcdef").unwrap();
    assert_eq!(file.len_bytes().unwrap(), 3 * PAGE + 3);
    assert_eq!(again.len_bytes().unwrap(), 3 * PAGE + 3, "one file has one length");
    let (one, other) = (manager.space().unwrap(), manager.space().unwrap());
    let at = one.map_file(&file, 0, 4 * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    let there = other.map_file(&again, PAGE, 3 * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    assert_eq!(one.load::<u64>(at).unwrap(), 1);
    assert_eq!(other.load::<u64>(there).unwrap(), 0, "a gap reads as zeros");
    other.store(there + 8, 77_u64).unwrap();
    let mut word = [0; 8];
    assert_eq!(file.read_at(PAGE + 8, &mut word).unwrap(), 8);
    assert_eq!((u64::from_le_bytes(word), one.load::<u64>(at + PAGE + 8).unwrap()), (77, 77));
    file.sync().unwrap();
    let bytes = fs::read(folder.path.join("data")).unwrap();
    assert_eq!(bytes.len() as u64, 3 * PAGE + 3);
    assert_eq!(bytes[..PAGE_LEN], page_of(1));
    assert_eq!(bytes[PAGE_LEN + 8..PAGE_LEN + 16], 77_u64.to_le_bytes());
    assert_eq!(bytes[3 * PAGE_LEN - 3..], *b"abcdef");
    let before = manager.counters().get(Counter::FileWrite);
    file.sync().unwrap();
    assert_eq!(manager.counters().get(Counter::FileWrite), before, "nothing was dirty");
}

#[test]
fn dirty_pages_go_out_when_memory_is_short_and_come_back() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let pages = 48 * MIB / PAGE;
    file.set_len_bytes(pages * PAGE).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, pages * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    for page in 0..pages {
        space.store(at + page * PAGE + 64, page).unwrap();
    }
    for page in (0..pages).rev() {
        assert_eq!(space.load::<u64>(at + page * PAGE + 64).unwrap(), page);
    }
    assert!(manager.counters().get(Counter::FileWrite) > pages / 2);
    assert_eq!(manager.counters().get(Counter::SwapOut), 0);
    drop(space);
    drop(file);
    let bytes = fs::read(folder.path.join("data")).unwrap();
    for page in 0..pages as usize {
        let at = page * PAGE_LEN + 64;
        assert_eq!(bytes[at..at + 8], (page as u64).to_le_bytes(), "the last handle writes what is dirty");
    }
}

#[test]
fn a_private_mapping_keeps_its_changes_to_itself_and_swaps_them() {
    let (folder, manager) = (folder(), manager());
    let pages = 24 * MIB / PAGE;
    numbered(&folder.path.join("data"), pages);
    let file = manager.open(folder.path.join("data"), FileOptions::new()).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, pages * PAGE, Sharing::Private, RegionOptions::new()).unwrap();
    for page in 0..pages {
        assert_eq!(space.fetch_add(at + page * PAGE, 1_000_000_u64).unwrap(), page);
    }
    space.write(at, &page_of(5)).unwrap();
    for page in 1..pages {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page + 1_000_000);
    }
    assert_eq!(space.load::<u64>(at).unwrap(), 5);
    let mut bytes = vec![0; PAGE_LEN];
    for page in 0..pages {
        file.read_at(page * PAGE, &mut bytes).unwrap();
        assert_eq!(bytes, page_of(page));
    }
    assert!(manager.counters().get(Counter::SwapOut) + manager.counters().get(Counter::PoolSwapOut) > 0);
    space.advise(at, pages * PAGE, Advice::Free).unwrap();
    assert_eq!(space.load::<u64>(at + PAGE).unwrap(), 1, "the file shows again");
    space.protect(at, PAGE, Protection::READ).unwrap();
    space.load::<u64>(at).unwrap();
    space.protect(at, PAGE, Protection::READ_WRITE).unwrap();
    space.store(at, 9_u64).unwrap();
    file.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, page_of(0), "a wider permission copies first");
}

#[test]
fn truncation_takes_pages_and_gives_zeros() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::new()).unwrap();
    says(space.load::<u64>(at), ErrorKind::BeyondEnd, &["behind the end", "set_len_bytes"]);
    file.write_at(0, &vec![7; 10 * PAGE_LEN]).unwrap();
    assert_eq!(space.load::<u8>(at + 9 * PAGE).unwrap(), 7);
    let pin = space.pin_exact(at + 8 * PAGE, PAGE_LEN, Access::Read).unwrap();
    file.set_len_bytes(PAGE + 100).unwrap();
    says(space.load::<u8>(at + 2 * PAGE), ErrorKind::BeyondEnd, &["behind the end"]);
    says(space.store(at + 9 * PAGE, 1_u8), ErrorKind::BeyondEnd, &["behind the end"]);
    let mut byte = [0];
    pin.copy_out(0, &mut byte).unwrap();
    assert_eq!(byte, [7], "a pin keeps its memory");
    drop(pin);
    assert_eq!(space.load::<u8>(at + PAGE + 99).unwrap(), 7);
    assert_eq!(space.load::<u8>(at + PAGE + 100).unwrap(), 0);
    space.store(at + PAGE + 200, 9_u8).unwrap();
    file.set_len_bytes(4 * PAGE).unwrap();
    assert_eq!(space.load::<u8>(at + PAGE + 200).unwrap(), 0, "what was stored behind the end is lost");
    assert_eq!(space.load::<u8>(at + 3 * PAGE).unwrap(), 0);
    file.sync().unwrap();
    let mut expected = vec![7; PAGE_LEN + 100];
    expected.resize(4 * PAGE_LEN, 0);
    assert!(fs::read(folder.path.join("data")).unwrap() == expected);
    let mut rest = Vec::new();
    let mut cursor = file.cursor();
    cursor.seek(SeekFrom::End(-1)).unwrap();
    cursor.write_all(b"end").unwrap();
    cursor.seek(SeekFrom::Current(-3)).unwrap();
    cursor.read_to_end(&mut rest).unwrap();
    assert_eq!((rest.as_slice(), cursor.position()), (b"end".as_slice(), 4 * PAGE + 2));
}

#[test]
fn a_hole_reads_as_zeros_and_has_no_blocks() {
    use std::os::unix::fs::MetadataExt;
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    file.write_at(0, &vec![7; 64 * PAGE_LEN]).unwrap();
    file.sync().unwrap();
    let before = fs::metadata(folder.path.join("data")).unwrap().blocks();
    file.punch_hole(100, 50 * PAGE).unwrap();
    let (mut bytes, mut expected) = (vec![0; 64 * PAGE_LEN], vec![7; 64 * PAGE_LEN]);
    expected[100..100 + 50 * PAGE_LEN].fill(0);
    file.read_at(0, &mut bytes).unwrap();
    assert!(bytes == expected);
    file.sync().unwrap();
    assert!(fs::read(folder.path.join("data")).unwrap() == expected);
    assert!(fs::metadata(folder.path.join("data")).unwrap().blocks() < before / 2);
}

#[test]
fn guards_lend_pages_of_a_file() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    file.set_len_bytes(MIB).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::new().guarded(true)).unwrap();
    for page in 0..MIB / PAGE {
        space.exclusive::<u8>(at + page * PAGE, PAGE_LEN).unwrap()[..8].copy_from_slice(&page.to_le_bytes());
    }
    let shared = space.shared::<u8>(at + 5 * PAGE, PAGE_LEN).unwrap();
    file.sync().unwrap();
    assert_eq!(shared[..8], 5_u64.to_le_bytes());
    drop(shared);
    let bytes = fs::read(folder.path.join("data")).unwrap();
    for page in 0..(MIB / PAGE) as usize {
        assert_eq!(bytes[page * PAGE_LEN..page * PAGE_LEN + 8], (page as u64).to_le_bytes());
    }
    let written = manager.counters().get(Counter::FileWrite);
    file.sync().unwrap();
    let again = manager.counters().get(Counter::FileWrite) - written;
    assert!(again <= 1, "only the page that was lent during the sync stayed dirty: {again}");
    let private = space.map_file(&file, 0, MIB, Sharing::Private, RegionOptions::new().guarded(true));
    says(private, ErrorKind::Unsupported, &["private"]);
}

#[test]
fn a_pinned_page_is_synced_as_it_is_and_stays_dirty() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    file.set_len_bytes(4 * PAGE).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, 4 * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    let pin = space.pin_exact(at, PAGE_LEN, Access::Write).unwrap();
    pin.copy_in(0, b"first").unwrap();
    file.sync().unwrap();
    assert_eq!(fs::read(folder.path.join("data")).unwrap()[..5], *b"first");
    pin.copy_in(0, b"later").unwrap();
    drop(pin);
    file.sync().unwrap();
    assert_eq!(fs::read(folder.path.join("data")).unwrap()[..5], *b"later");
}

/// Programs that read the file beside see its length, and no zeros behind it: not before a sync, and not when
/// a page that was pinned during the sync goes out later.
#[test]
fn a_file_that_ends_inside_a_page_is_never_longer_on_disk() {
    for (direct, bytes) in [(false, 100), (true, 100), (false, 9000), (true, 9000)] {
        // Without a flusher, all writes have ended when a call of reclaim has.
        let builder = Manager::builder().budget_bytes(16 * MIB).background(false);
        let (folder, manager) = (folder(), builder.build().unwrap());
        let options = FileOptions::new().create(true).direct(direct);
        let file = manager.open(folder.path.join("data"), options).unwrap();
        let write_out = || {
            while file.dirty_bytes() > 0 {
                manager.reclaim(100).unwrap();
                thread::yield_now();
            }
            fs::read(folder.path.join("data")).unwrap()
        };
        let mut expected: Vec<u8> = (0..3).flat_map(page_of).take(bytes).collect();
        file.write_at(0, &expected).unwrap();
        assert!(write_out() == expected, "{bytes} bytes without a sync, direct: {direct}");

        let (space, page) = (manager.space().unwrap(), (bytes as u64 - 1) / PAGE * PAGE);
        let at = space.map_file(&file, page, PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
        let pin = space.pin_exact(at, PAGE_LEN, Access::Write).unwrap();
        pin.copy_in(0, b"pinned").unwrap();
        file.sync().unwrap();
        expected[page as usize..][..6].copy_from_slice(b"pinned");
        pin.copy_in(0, b"later").unwrap();
        drop(pin);
        expected[page as usize..][..5].copy_from_slice(b"later");
        assert!(write_out() == expected, "{bytes} bytes after a sync, direct: {direct}");

        // The page in which the file ended becomes a whole one.
        expected.extend_from_slice(&page_of(7));
        file.write_at(bytes as u64, &page_of(7)).unwrap();
        assert!(write_out() == expected, "{} bytes, direct: {direct}", expected.len());
        let mut found = vec![0; expected.len()];
        assert_eq!(file.read_at(0, &mut found).unwrap(), found.len());
        assert!(found == expected, "read again, direct: {direct}");
    }
}

#[test]
fn direct_transfers_and_the_cache_see_each_other() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let space: Arc<Space> = Arc::new(manager.space().unwrap());
    let at = space.map(MIB, RegionOptions::new()).unwrap();
    file.write_at(0, &page_of(1)).unwrap();
    assert_eq!(file.direct_read(0, &space, at, PAGE_LEN).unwrap(), PAGE_LEN);
    assert_eq!(space.load::<u64>(at).unwrap(), 1, "a direct read finds what was only in memory");
    space.write(at, &page_of(2)).unwrap();
    assert_eq!(file.direct_write(0, &space, at, 2 * PAGE_LEN).unwrap(), 2 * PAGE_LEN);
    let mut bytes = vec![0; PAGE_LEN];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), PAGE_LEN);
    assert_eq!(bytes, page_of(2), "the cache reads again what went past it");
    assert_eq!(file.len_bytes().unwrap(), 2 * PAGE);
}

#[test]
fn files_that_cannot_be_written_say_so() {
    let (folder, manager) = (folder(), manager());
    numbered(&folder.path.join("data"), 4);
    let file = manager.open(folder.path.join("data"), FileOptions::new()).unwrap();
    says(file.write_at(0, b"x"), ErrorKind::FileWrite, &["opened for reading", "write(true)"]);
    says(file.set_len_bytes(0), ErrorKind::FileWrite, &["opened for reading"]);
    says(file.punch_hole(0, 1), ErrorKind::FileWrite, &["opened for reading"]);
    let space = manager.space().unwrap();
    let mapped = space.map_file(&file, 0, PAGE, Sharing::Shared, RegionOptions::new());
    says(mapped, ErrorKind::Protected, &["opened for reading", "Private"]);
    let read_only = RegionOptions::new().protection(Protection::READ);
    let at = space.map_file(&file, 0, PAGE, Sharing::Shared, read_only).unwrap();
    says(space.protect(at, PAGE, Protection::READ_WRITE), ErrorKind::Protected, &["opened for reading"]);
    says(space.map_file(&file, 1, PAGE, Sharing::Shared, read_only), ErrorKind::InvalidRange, &["multiples"]);
    says(space.map_file(&file, 0, 0, Sharing::Shared, read_only), ErrorKind::InvalidRange, &["at least one"]);
    let other = common_manager_space();
    says(
        other.1.map_file(&file, 0, PAGE, Sharing::Shared, read_only),
        ErrorKind::Unsupported,
        &["another manager"],
    );
}

fn common_manager_space() -> (Manager, Space) {
    let manager = manager();
    let space = manager.space().unwrap();
    (manager, space)
}

#[test]
fn a_mapping_keeps_its_file_and_a_manager_says_what_is_open() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    file.set_len_bytes(MIB).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::new()).unwrap();
    let path = folder.path.join("data");
    drop(file);
    space.store(at, 11_u64).unwrap();
    space.unmap(at, MIB).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..8], 11_u64.to_le_bytes(), "the last use writes");
    let file = open(&manager, &folder, "data");
    file.read_at(0, &mut [0; 10]).unwrap();
    drop(space);
    let refused = manager.shutdown().unwrap_err();
    says(Err::<(), _>(refused.error().clone()), ErrorKind::Busy, &["1 files are open"]);
    drop(file);
    refused.into_manager().shutdown().unwrap();
}

/// Threads that store all the time make pages dirty behind the sync's back. It writes only what was dirty
/// before.
#[test]
fn a_sync_ends_while_others_store() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let pages = MIB / PAGE;
    file.set_len_bytes(MIB).unwrap();
    let space = Arc::new(manager.space().unwrap());
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::new()).unwrap();
    let goes_on = Arc::new(AtomicBool::new(true));
    let storing: Vec<_> = (0..2)
        .map(|thread| {
            let (space, goes_on) = (Arc::clone(&space), Arc::clone(&goes_on));
            thread::spawn(move || {
                let mut round = 0_u64;
                while goes_on.load(Ordering::Relaxed) {
                    round += 1;
                    let page = (round * 7 + thread) % pages;
                    space.store(at + page * PAGE + 8 * thread, round).unwrap();
                }
            })
        })
        .collect();
    for round in 0..20_u64 {
        space.store(at + 64, round).unwrap();
        file.sync().unwrap();
        let bytes = fs::read(folder.path.join("data")).unwrap();
        assert_eq!(bytes[64..72], round.to_le_bytes());
    }
    goes_on.store(false, Ordering::Relaxed);
    storing.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Holds back the pages whose first word is above a mark.
#[derive(Default)]
struct Mark {
    mark: AtomicU64,
    asked_for: AtomicU64,
}

impl WriteGate for Mark {
    fn may_write(&self, _offset: u64, page: &[u8]) -> bool {
        u64::from_le_bytes(page[..8].try_into().unwrap()) <= self.mark.load(Ordering::Acquire)
    }

    fn make_writable(&self, _offset: u64, page: &[u8]) {
        self.asked_for.fetch_add(1, Ordering::Relaxed);
        self.mark.fetch_max(u64::from_le_bytes(page[..8].try_into().unwrap()), Ordering::Release);
    }
}

#[test]
fn a_gate_holds_its_pages_back_and_no_others() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let pages = 12 * MIB / PAGE;
    file.set_len_bytes(pages * PAGE).unwrap();
    let gate = Arc::new(Mark::default());
    file.set_write_gate(Some(Arc::<Mark>::clone(&gate))).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, pages * PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    let is_held = |page: u64| page.is_multiple_of(8);
    for page in 0..pages {
        space.store(at + page * PAGE, u64::from(is_held(page))).unwrap();
        space.store(at + page * PAGE + 8, page + 1).unwrap();
    }
    // Memory for as much again: seven of eight pages can go.
    let more = space.map(6 * MIB, RegionOptions::new().compress(false)).unwrap();
    (0..6 * MIB / PAGE).for_each(|page| space.store(more + page * PAGE, page).unwrap());
    while manager.reclaim(64).unwrap() > 0 {}
    let bytes = fs::read(folder.path.join("data")).unwrap();
    let word = |page: u64| {
        let at = (page * PAGE) as usize + 8;
        bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()))
    };
    assert!((0..pages).filter(|page| is_held(*page)).all(|page| word(page) == 0), "no held page is out");
    assert!((0..pages).any(|page| word(page) == page + 1), "others are");
    assert_eq!(gate.asked_for.load(Ordering::Relaxed), 0, "only a sync opens the gate");
    file.sync().unwrap();
    assert_eq!(gate.asked_for.load(Ordering::Relaxed), 1, "the first page opens it for all");
    let bytes = fs::read(folder.path.join("data")).unwrap();
    for page in 0..pages {
        let at = (page * PAGE) as usize + 8;
        assert_eq!(bytes[at..at + 8], (page + 1).to_le_bytes());
    }
}

#[test]
fn a_manager_without_threads_keeps_its_dirty_pages_few() {
    let (folder, options) = (folder(), Manager::builder().budget_bytes(16 * MIB).background(false));
    let manager = options.build().unwrap();
    let file = open(&manager, &folder, "data");
    for page in 0..8 * MIB / PAGE {
        file.write_at(page * PAGE, &page_of(page)).unwrap();
    }
    assert!(file.dirty_bytes() <= 4 * MIB, "a fifth of the budget, and what is under way");
}

#[test]
fn the_flusher_writes_what_nobody_syncs() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    (0..8 * MIB / PAGE).for_each(|page| file.write_at(page * PAGE, &page_of(page)).unwrap());
    // It writes until a tenth of the budget is dirty, and the rest when that is old.
    while file.dirty_bytes() > 0 {
        thread::yield_now();
    }
    assert_eq!(manager.counters().get(Counter::FileSync), 0);
}

/// The last page of one segment and the first of the next have numbers that follow each other.
#[test]
fn pages_of_two_files_never_go_out_in_one_transfer() {
    let (folder, manager) = (folder(), manager());
    let (one, other) = (open(&manager, &folder, "one"), open(&manager, &folder, "other"));
    one.set_len_bytes(64 * MIB).unwrap();
    other.set_len_bytes(PAGE).unwrap();
    one.write_at(64 * MIB - PAGE, &page_of(1)).unwrap();
    other.write_at(0, &page_of(2)).unwrap();
    while manager.reclaim(64).unwrap() > 0 {}
    let mut bytes = vec![0; PAGE_LEN];
    other.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, page_of(2));
    let space = manager.space().unwrap();
    let at = space.map_file(&one, 0, 64 * MIB, Sharing::Shared, RegionOptions::new()).unwrap();
    space.map_file_at(at + 64 * MIB, &other, 0, PAGE, Sharing::Shared, RegionOptions::new()).unwrap();
    while manager.reclaim(64).unwrap() > 0 {}
    space.advise(at + 64 * MIB - PAGE, 2 * PAGE, Advice::WillNeed).unwrap();
    assert_eq!(space.load::<u64>(at + 64 * MIB).unwrap(), 2, "nor do they come in together");
    drop((space, one, other));
    assert_eq!(fs::read(folder.path.join("other")).unwrap(), page_of(2));
    assert_eq!(fs::metadata(folder.path.join("one")).unwrap().len(), 64 * MIB);
}

#[test]
fn guards_have_a_file_for_themselves() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    file.set_len_bytes(MIB).unwrap();
    let space = manager.space().unwrap();
    let guarded = RegionOptions::new().guarded(true);
    let at = space.map_file(&file, 0, MIB, Sharing::Shared, guarded).unwrap();
    says(file.write_at(0, b"x"), ErrorKind::Unsupported, &["mapped with guards"]);
    says(file.read_at(0, &mut [0]), ErrorKind::Unsupported, &["mapped with guards"]);
    let plain = space.map_file(&file, 0, MIB, Sharing::Shared, RegionOptions::new());
    says(plain, ErrorKind::Unsupported, &["mapped with guards"]);
    says(file.set_len_bytes(100), ErrorKind::InvalidRange, &["multiple"]);
    // Several pages, whose frames do not lie together.
    for page in (0..64).rev() {
        space.exclusive::<u8>(at + page * PAGE, PAGE_LEN).unwrap().fill(page as u8);
    }
    let many = space.shared::<u8>(at, 64 * PAGE_LEN).unwrap();
    assert!(many.iter().enumerate().all(|(index, byte)| usize::from(*byte) == index / PAGE_LEN));
    drop(many);
    file.sync().unwrap();
    let bytes = fs::read(folder.path.join("data")).unwrap();
    assert!(bytes[..64 * PAGE_LEN].iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / PAGE_LEN));
    let other = open(&manager, &folder, "other");
    other.write_at(0, &page_of(1)).unwrap();
    let guards = space.map_file(&other, 0, PAGE, Sharing::Shared, guarded);
    says(guards, ErrorKind::Unsupported, &["without guards"]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let (folder, manager) = (folder(), manager());
    let file = open(&manager, &folder, "data");
    let space: Arc<Space> = Arc::new(manager.space().unwrap());
    let at = space.map(MIB, RegionOptions::new()).unwrap();
    assert_eq!(file.direct_write(1 << 40, &space, at, 0).unwrap(), 0);
    assert_eq!(file.len_bytes().unwrap(), 0, "nothing was written");
    says(file.write_at(9 << 40, b"x"), ErrorKind::InvalidRange, &["8 TiB"]);
    says(file.set_len_bytes(9 << 40), ErrorKind::InvalidRange, &["can have"]);
    let mapped = space.map_file_at(1 << 48, &file, 0, PAGE, Sharing::Shared, RegionOptions::new());
    assert_eq!(mapped.unwrap_err().kind(), ErrorKind::InvalidRange);
}

/// A budget that shrinks empties chunks. Pages of files move, or go out.
#[test]
fn a_budget_shrinks_under_pages_of_files() {
    let (folder, manager) = (folder(), Manager::builder().budget_bytes(48 * MIB).build().unwrap());
    numbered(&folder.path.join("data"), 40 * MIB / PAGE);
    let file = manager.open(folder.path.join("data"), FileOptions::new().write(true)).unwrap();
    let space = manager.space().unwrap();
    let at = space.map_file(&file, 0, 40 * MIB, Sharing::Shared, RegionOptions::new()).unwrap();
    for page in 0..40 * MIB / PAGE {
        let page = page * 7919 % (40 * MIB / PAGE);
        if page.is_multiple_of(3) {
            space.store(at + page * PAGE + 8, page).unwrap();
        } else {
            space.load::<u64>(at + page * PAGE).unwrap();
        }
    }
    manager.set_budget(16 * MIB).unwrap();
    for page in 0..40 * MIB / PAGE {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), page);
    }
}
