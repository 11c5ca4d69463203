//! Direct I/O: bytes go between a file and the pinned pages of a space, whether these pages are in memory or
//! out.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use common::mounted::Mounted;
use common::{MIB, PAGE, Random, seed_or};
use octavo::file::{File, FileOptions};
use octavo::{Access, Counter, ErrorKind, Manager, PinPath, Protection, RegionOptions, Space, SwapFile};

fn manager() -> Manager {
    Manager::builder().budget_bytes(16 * MIB).build().unwrap()
}

fn mapped(manager: &Manager, bytes: u64) -> (Arc<Space>, u64) {
    let space = Arc::new(manager.space().unwrap());
    let at = space.map(bytes, RegionOptions::default()).unwrap();
    (space, at)
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(251) as u8).collect()
}

/// A folder on a disk, where files can be read past the page cache.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

fn opened(manager: &Manager, path: &Path) -> File {
    manager.open(path, FileOptions::new().create(true)).unwrap()
}

/// The file is four times the budget, so that some pages go out while others are transferred.
#[test]
fn what_is_written_from_pages_that_are_out_is_read_into_others() {
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    let len = 48 * MIB;
    let (space, at) = mapped(&manager, 2 * len);
    let words = |from: u64| (0..len / PAGE).map(move |page| (at + from + page * PAGE, page * 77 + 5));
    words(0).for_each(|(address, word)| space.store(address, word).unwrap());
    assert_eq!(file.direct_write(0, &space, at, len as usize).unwrap(), len as usize);
    file.sync().unwrap();
    assert_eq!(file.len_bytes().unwrap(), len);
    assert_eq!(file.direct_read(0, &space, at + len, len as usize).unwrap(), len as usize);
    for (address, word) in words(0).chain(words(len)) {
        assert_eq!(space.load::<u64>(address).unwrap(), word, "{address:#x}");
    }
    manager.validate();
}

/// After each step, the bytes must equal a plain vector of bytes.
#[test]
fn random_transfers_agree_with_a_model() {
    let folder = folder();
    for path in [PinPath::LockFree, PinPath::Locked] {
        let manager = Manager::builder().budget_bytes(16 * MIB).pin_path(path).build().unwrap();
        let file = opened(&manager, &folder.path().join(format!("{path:?}")));
        let align = file.alignment_bytes();
        let bytes = 4 * MIB;
        let (space, at) = mapped(&manager, bytes);
        let (mut memory, mut kept) = (vec![0; bytes as usize], Vec::new());
        let mut random = Random::new(seed_or(11));
        for step in 0..300 {
            let mut below = |bound: u64| random.below(bound);
            let from = below(bytes / align) * align;
            let len = below(if step % 3 == 0 { 2048 } else { 16 }) * align;
            let len = len.min(bytes - from) as usize;
            let offset = below(2 * bytes / align) * align;
            let (here, there) = (from as usize..from as usize + len, offset as usize);
            match below(3) {
                0 => {
                    let new = pattern(step, len);
                    space.write(at + from, &new).unwrap();
                    memory[here].copy_from_slice(&new);
                }
                1 => {
                    assert_eq!(file.direct_write(offset, &space, at + from, len).unwrap(), len);
                    if len > 0 {
                        kept.resize(kept.len().max(there + len), 0);
                        kept[there..there + len].copy_from_slice(&memory[here]);
                    }
                }
                _ => {
                    let moved = kept.len().saturating_sub(there).min(len);
                    assert_eq!(
                        file.direct_read(offset, &space, at + from, len).unwrap(),
                        moved,
                        "step {step}"
                    );
                    if moved > 0 {
                        memory[here.start..here.start + moved].copy_from_slice(&kept[there..there + moved]);
                    }
                }
            }
        }
        let mut found = vec![0; bytes as usize];
        space.read(at, &mut found).unwrap();
        assert!(found == memory, "{path:?}");
        assert!(fs::read(folder.path().join(format!("{path:?}"))).unwrap() == kept, "{path:?}");
        manager.validate();
    }
}

/// There are more threads than the file has rings.
#[test]
fn many_threads_share_a_file() {
    const THREADS: u64 = 70;
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    let (space, at) = mapped(&manager, THREADS * MIB);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (file, space) = (file.clone(), &space);
            scope.spawn(move || {
                let mine = at + thread * MIB;
                let len = 320 << 10;
                let bytes = pattern(thread + 1, len);
                for round in 0..2 {
                    space.write(mine, &bytes).unwrap();
                    assert_eq!(file.direct_write(thread * MIB, space, mine, len).unwrap(), len);
                    assert_eq!(file.direct_read(thread * MIB, space, mine + MIB / 2, len).unwrap(), len);
                    let mut found = vec![0; len];
                    space.read(mine + MIB / 2, &mut found).unwrap();
                    assert!(found == bytes, "thread {thread}, round {round}");
                }
            });
        }
    });
    manager.validate();
}

#[test]
fn a_read_ends_where_the_file_does() {
    let (folder, manager) = (folder(), manager());
    let path = folder.path().join("file");
    let bytes = pattern(3, 700_123);
    fs::write(&path, &bytes).unwrap();
    let file = manager.open(&path, FileOptions::new()).unwrap();
    let (space, at) = mapped(&manager, 4 * MIB);
    for len in [MIB, 704_512] {
        assert_eq!(file.direct_read(0, &space, at, len as usize).unwrap(), 700_123);
    }
    let mut found = vec![0; 700_123];
    space.read(at, &mut found).unwrap();
    assert!(found == bytes);
    // Transfers beyond the end, and transfers of no bytes.
    assert_eq!(file.direct_read(MIB, &space, at, PAGE as usize).unwrap(), 0);
    assert_eq!(file.direct_read(0, &space, at, 0).unwrap(), 0);
}

#[test]
fn zeros_that_were_never_written_are_written_and_take_no_memory() {
    let (folder, manager) = (folder(), manager());
    let path = folder.path().join("file");
    fs::write(&path, vec![7; 8 << 20]).unwrap();
    let file = manager.open(&path, FileOptions::new().write(true)).unwrap();
    let (space, at) = mapped(&manager, 8 * MIB);
    let before = manager.stats().unwrap().free_frames;
    assert_eq!(file.direct_write(0, &space, at, 8 << 20).unwrap(), 8 << 20);
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    assert!(manager.stats().unwrap().free_frames + 64 > before, "zeros have frames");
}

/// A transfer moves everything before the first page that cannot be pinned, at every place of this page.
#[test]
fn a_hole_in_a_group_costs_nothing_before_it() {
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    for hole in [1, 70, 130] {
        let (space, at) = mapped(&manager, MIB);
        space.write(at, &pattern(hole, 1 << 20)).unwrap();
        space.unmap(at + hole * PAGE, PAGE).unwrap();
        let moved = (hole * PAGE) as usize;
        assert_eq!(file.direct_write(0, &space, at, 1 << 20).unwrap(), moved);
        assert_eq!(file.direct_read(0, &space, at, 1 << 20).unwrap(), moved);
        let mut found = vec![0; moved];
        space.read(at, &mut found).unwrap();
        assert!(found == pattern(hole, 1 << 20)[..moved], "hole {hole}");
    }
    manager.validate();
}

/// The space has less room than a group has pages.
#[test]
fn pages_that_cannot_all_be_pinned_move_in_parts() {
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    let (space, at) = mapped(&manager, 12 * MIB);
    let bytes = pattern(9, 4 << 20);
    space.write(at, &bytes).unwrap();
    // All memory except some pages is pinned.
    let mut pins = Vec::new();
    while let Ok(pin) = space.pin_exact(at + 4 * MIB + pins.len() as u64 * PAGE, 4096, Access::Write) {
        pins.push(pin);
    }
    drop(pins.split_off(pins.len() - 40));
    let moved = file.direct_write(0, &space, at, 4 << 20);
    drop(pins);
    assert_eq!(moved.unwrap(), 4 << 20);
    assert!(fs::read(folder.path().join("file")).unwrap() == bytes);
    manager.validate();
}

/// A transfer fails only if its first bytes cannot be moved.
#[test]
fn a_transfer_ends_where_pages_end_and_fails_only_at_its_beginning() {
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    let (space, at) = mapped(&manager, 4 * MIB);
    let (end, len) = (at + 3 * MIB, (4 * MIB) as usize);
    space.unmap(end, MIB).unwrap();
    assert_eq!(file.direct_write(0, &space, at, len).unwrap(), 3 << 20);
    assert_eq!(file.direct_write(0, &space, at + PAGE, len).unwrap(), (3 << 20) - PAGE as usize);
    let refused = file.direct_read(0, &space, end, len).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotMapped, "{refused}");
    space.protect(at, MIB, Protection::READ).unwrap();
    let refused = file.direct_read(0, &space, at, len).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Protected, "{refused}");
    assert_eq!(file.direct_write(0, &space, at, PAGE as usize).unwrap(), PAGE as usize);
    manager.validate();
}

#[track_caller]
fn says(result: octavo::Result<usize>, kind: ErrorKind, words: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    let said = error.to_string();
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[test]
fn transfers_that_cannot_be_are_refused_with_what_to_do() {
    let (folder, manager) = (folder(), manager());
    let path = folder.path().join("file");
    let open = |path: &str, options| manager.open(path, options).map(|_| 0);
    says(
        open("/nowhere/file", FileOptions::new()),
        ErrorKind::FileUnavailable,
        &["/nowhere/file", "No such"],
    );
    says(open("/", FileOptions::new()), ErrorKind::FileUnavailable, &["neither a file nor a disk"]);
    says(open("/dev/null", FileOptions::new()), ErrorKind::FileUnavailable, &["neither a file nor a disk"]);
    let made = manager.open(folder.path().join("made"), FileOptions::new().create(true).write(false));
    made.unwrap().set_len_bytes(4096).unwrap();
    fs::write(&path, vec![1; 8192]).unwrap();
    let file = manager.open(&path, FileOptions::new()).unwrap();
    let (space, at) = mapped(&manager, MIB);
    says(file.direct_write(0, &space, at, 4096), ErrorKind::FileWrite, &["FileOptions::write(true)"]);
    assert_eq!(file.set_len_bytes(1).unwrap_err().kind(), ErrorKind::FileWrite);
    if file.is_direct() {
        let align = file.alignment_bytes().to_string();
        for (offset, at, len) in [(1, at, 4096), (0, at + 8, 4096), (0, at, 100)] {
            let refused = file.direct_read(offset, &space, at, len);
            says(refused, ErrorKind::InvalidRange, &["multiples of", &align, "direct(false)"]);
        }
    }
    says(file.direct_read(1 << 63, &space, at, 4096), ErrorKind::InvalidRange, &["2^63"]);
    says(file.direct_read(0, &space, u64::MAX - 4095, 8192), ErrorKind::InvalidRange, &["2^64"]);
    let (stranger, there) = mapped(&self::manager(), MIB);
    says(file.direct_read(0, &stranger, there, 4096), ErrorKind::Unsupported, &["another manager"]);
    // Through the page cache, nothing has to be aligned.
    let file = manager.open(&path, FileOptions::new().direct(false).write(true)).unwrap();
    assert_eq!((file.is_direct(), file.alignment_bytes()), (false, 1));
    space.write(at + 3, b"anywhere").unwrap();
    assert_eq!(file.direct_write(4095, &space, at + 3, 8).unwrap(), 8);
    let mut found = [0; 8];
    fs::File::open(&path).unwrap().read_exact_at(&mut found, 4095).unwrap();
    assert_eq!(&found, b"anywhere");
    file.set_len_bytes(5000).unwrap();
    assert_eq!(file.direct_read(0, &space, at, 8192).unwrap(), 5000);
}

#[test]
fn a_full_file_system_ends_a_write_and_says_so_at_the_next() {
    let (folder, manager) = (folder(), manager());
    let Some(mounted) = Mounted::new(folder.path(), "size=2m") else { return };
    let file = opened(&manager, &folder.path().join("file"));
    let (space, at) = mapped(&manager, 4 * MIB);
    let moved = file.direct_write(0, &space, at, 4 << 20).unwrap();
    let refused = file.direct_write(3 << 20, &space, at, 1 << 20);
    drop(mounted);
    assert!((1 << 20..=2 << 20).contains(&moved), "{moved}");
    says(refused, ErrorKind::FileWrite, &["No space left", "3145728"]);
}

/// The lock-free path pins pages in memory, and the base form takes the slow path for each group.
#[test]
fn pages_are_pinned_by_the_way_that_was_chosen() {
    let folder = folder();
    for (path, fast) in [(PinPath::LockFree, true), (PinPath::Locked, false)] {
        let manager = Manager::builder().budget_bytes(16 * MIB).pin_path(path).build().unwrap();
        let file = opened(&manager, &folder.path().join("file"));
        let (space, at) = mapped(&manager, MIB);
        (0..MIB / PAGE).for_each(|page| space.store(at + page * PAGE, page).unwrap());
        let before = manager.counters();
        file.direct_write(0, &space, at, 1 << 20).unwrap();
        let counters = manager.counters();
        let counted = |counter| counters.get(counter) - before.get(counter);
        assert_eq!(counted(Counter::PinFast) > 0, fast, "{path:?}");
    }
}

#[test]
fn an_open_file_keeps_its_manager() {
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    let again = file.clone();
    drop(file);
    let refused = manager.shutdown().unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::Busy, "{refused}");
    assert!(refused.to_string().contains("1 files are open"), "{refused}");
    drop(again);
    refused.into_manager().shutdown().unwrap();
}

/// A child that drops the last file of a manager leaves the parent's swap file locked, and waits for no
/// thread.
#[test]
fn a_forked_child_is_refused_and_can_drop_a_file() {
    let folder = folder();
    let swap = folder.path().join("swap");
    let build = || Manager::builder().budget_bytes(16 * MIB).swap_file(SwapFile::Named(swap.clone())).build();
    let manager = build().unwrap();
    let (space, at) = mapped(&manager, MIB);
    let file = Mutex::new(Some(opened(&manager, &folder.path().join("file"))));
    let code = octavo_platform::run_in_forked_child(|| {
        let file = file.lock().unwrap();
        let refused = |result: octavo::Result<()>| result.unwrap_err().kind() == ErrorKind::ForkedChild;
        let file = file.as_ref().unwrap();
        let read = file.direct_read(0, &space, at, 4096).map(|_| ());
        u8::from(!(refused(read) && refused(file.sync()) && refused(file.len_bytes().map(|_| ()))))
    });
    assert_eq!(code.unwrap(), 0);
    drop((space, manager));
    let code = octavo_platform::run_in_forked_child(|| {
        drop(file.lock().unwrap().take());
        0
    });
    assert_eq!(code.unwrap(), 0);
    assert_eq!(
        build().unwrap_err().kind(),
        ErrorKind::SwapUnavailable,
        "the file of the parent keeps the swap"
    );
    drop(file);
    build().unwrap();
}

/// A pin keeps its pages, whatever happens to their mapping meanwhile.
#[test]
fn pages_that_are_pinned_by_others_are_transferred() {
    let (folder, manager) = (folder(), manager());
    let file = opened(&manager, &folder.path().join("file"));
    let (space, at) = mapped(&manager, MIB);
    let pin = space.pin_exact(at, 1 << 20, Access::Write).unwrap();
    pin.copy_in(0, b"pinned").unwrap();
    assert_eq!(file.direct_write(0, &space, at, 1 << 20).unwrap(), 1 << 20);
    pin.copy_in(0, b"again!").unwrap();
    assert_eq!(file.direct_read(0, &space, at, 1 << 20).unwrap(), 1 << 20);
    let mut found = [0; 6];
    pin.copy_out(0, &mut found).unwrap();
    assert_eq!(&found, b"pinned");
}
