//! Every bad input gives an error with a kind, and with a sentence that says what to do.

mod common;

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::device::TestDevice;
use common::mounted::Mounted;
use common::{MIB, PAGE, run_woken, says};
use octavo::io::SwapArea;
use octavo::{
    Access, Compression, ErrorKind, FrameId, MIN_BUDGET_BYTES, Manager, ManagerBuilder, Order, Protection,
    RegionOptions, Result, Space, SwapFile,
};

fn builder() -> ManagerBuilder {
    // Every page goes to the device, since these tests are about the device.
    Manager::builder().budget_bytes(16 * MIB).background(false).compression(Compression::Off)
}

fn machine_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemTotal:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_budget_below_the_minimum_or_above_memory() {
    for bytes in [0, 1, MIN_BUDGET_BYTES - 1] {
        let words = ["below the minimum of 16 MiB", "choose"];
        says(builder().budget_bytes(bytes).build(), ErrorKind::InvalidBudget, &words);
    }
    for bytes in [machine_bytes() + 1, u64::MAX] {
        let words = ["above this machine's memory", "choose"];
        says(builder().budget_bytes(bytes).build(), ErrorKind::InvalidBudget, &words);
    }
    let manager = builder().build().unwrap();
    says(manager.set_budget(MIB), ErrorKind::InvalidBudget, &["below the minimum"]);
    says(manager.set_budget(u64::MAX), ErrorKind::InvalidBudget, &["above this machine's memory"]);
    let words = ["above the 16 MiB that this manager was built for", "max_budget_bytes"];
    says(manager.set_budget(32 * MIB), ErrorKind::InvalidBudget, &words);
    assert_eq!(manager.stats().unwrap().budget_bytes, 16 * MIB, "a refused budget changes nothing");
}

#[test]
fn a_largest_budget_below_the_budget_or_above_memory() {
    let most = |bytes| builder().budget_bytes(32 * MIB).max_budget_bytes(bytes);
    for bytes in [0, 16 * MIB] {
        says(most(bytes).build(), ErrorKind::InvalidBudget, &["below", "choose"]);
    }
    says(most(machine_bytes() + 1).build(), ErrorKind::InvalidBudget, &["above this machine's memory"]);
    let manager = most(48 * MIB).build().unwrap();
    manager.set_budget(48 * MIB).unwrap();
    says(manager.set_budget(49 * MIB), ErrorKind::InvalidBudget, &["max_budget_bytes"]);
}

#[test]
fn a_budget_below_what_is_pinned() {
    let manager = builder().budget_bytes(40 * MIB).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(24 * MIB, RegionOptions::default()).unwrap();
    let pin = space.pin_exact(at, 24 << 20, Access::Write).unwrap();
    assert_eq!(pin.len(), 24 << 20);
    says(manager.set_budget(16 * MIB), ErrorKind::InvalidBudget, &["cannot be moved out", "drop pins"]);
    assert_eq!(manager.stats().unwrap().budget_bytes, 40 * MIB, "the old budget stands again");
    drop(pin);
    manager.set_budget(16 * MIB).unwrap();
    assert!(manager.stats().unwrap().used_bytes <= 16 * MIB);
    manager.validate();
}

/// Makes a swap area on a file system in memory of fixed size, for tests of full file systems.
fn forced(file: SwapFile) -> SwapArea {
    SwapArea::from_file(file).unwrap().allow_tmpfs(true)
}

#[test]
fn a_swap_file_on_a_file_system_that_is_memory() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path(), "size=8m") else { return };
    let file = SwapFile::Temporary(dir.path().into());
    let words = ["is memory", "choose a directory on a disk", "force it"];
    says(builder().swap_file(file.clone()).build(), ErrorKind::SwapUnavailable, &words);
    builder().swap_area(forced(file)).build().unwrap();
}

fn must_be_unavailable(file: SwapFile) {
    let words = ["cannot make a swap file at", "choose a writable place", "$TMPDIR"];
    says(builder().swap_file(file).build(), ErrorKind::SwapUnavailable, &words);
}

#[test]
fn a_swap_file_that_cannot_be_made() {
    let dir = tempfile::tempdir().unwrap();
    must_be_unavailable(SwapFile::Temporary(dir.path().join("missing")));
    must_be_unavailable(SwapFile::Named(dir.path().join("missing/file")));
    must_be_unavailable(SwapFile::Named(dir.path().into()));
    must_be_unavailable(SwapFile::Temporary("/proc".into()));
    let file = dir.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    must_be_unavailable(SwapFile::Temporary(file));
    let limit = builder().swap_limit_bytes(4095).build();
    says(limit, ErrorKind::SwapUnavailable, &["holds no page", "give at least 4 KiB"]);
}

#[test]
fn a_block_device_that_is_missing_or_none_is_refused_before_it_is_opened() {
    for (path, why) in [("/nowhere/disk", "No such file"), ("/dev/null", "it is none")] {
        for overwrite in [false, true] {
            let area = || SwapArea::block_device(path).overwrite(overwrite);
            says(area().check(), ErrorKind::SwapUnavailable, &[path, why]);
            says(builder().swap_area(area()).build(), ErrorKind::SwapUnavailable, &[path, why]);
        }
    }
}

#[test]
fn a_swap_file_on_a_file_system_that_is_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path(), "ro,size=1m") else { return };
    must_be_unavailable(SwapFile::Temporary(dir.path().into()));
    must_be_unavailable(SwapFile::Named(dir.path().join("file")));
}

fn store_all(space: &Space, at: u64, len: u64) -> Result<()> {
    store_some(space, at, len).1
}

/// Writes page by page until the first error. Returns the number of bytes written before the error.
fn store_some(space: &Space, at: u64, len: u64) -> (u64, Result<()>) {
    for offset in (0..len).step_by(PAGE as usize) {
        if let Err(error) = space.store(at + offset, offset ^ 0x77) {
            return (offset, Err(error));
        }
    }
    (len, Ok(()))
}

fn check_all(space: &Space, at: u64, len: u64) {
    for offset in (0..len).step_by(PAGE as usize) {
        assert_eq!(space.load::<u64>(at + offset).unwrap(), offset ^ 0x77);
    }
}

#[test]
fn a_swap_file_on_a_file_system_that_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path(), "size=8m") else { return };
    let file = SwapFile::Temporary(dir.path().into());
    let space = builder().swap_area(forced(file)).build().unwrap().space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let words = ["No space left", "free room on its file system", "drop a space"];
    let (stored, result) = store_some(&space, at, 64 * MIB);
    says(result, ErrorKind::SwapFull, &words);
    assert!(stored > 16 * MIB, "{stored}");
    // Pages in memory stay there, and can be used. A page that is out could come in only if another page goes
    // out.
    let mut here = Vec::new();
    for offset in (0..stored).step_by(PAGE as usize) {
        match space.load::<u64>(at + offset) {
            Ok(found) => {
                assert_eq!(found, offset ^ 0x77, "{offset:#x}");
                here.push(offset);
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::SwapFull, "{error}"),
        }
    }
    assert!(here.len() as u64 * PAGE > 8 * MIB, "{}", here.len());
    space.store(at + here[here.len() - 1], 1_u64).unwrap();
}

/// Makes a space on a full file system of 8 MiB. Returns how many bytes of the space were filled.
fn filled(dir: &Path) -> (Space, u64, u64) {
    let file = SwapFile::Temporary(dir.into());
    let space = builder().swap_area(forced(file)).build().unwrap().space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let (stored, result) = store_some(&space, at, 64 * MIB);
    says(result, ErrorKind::SwapFull, &[]);
    (space, at, stored)
}

#[test]
fn a_full_file_system_and_a_long_range_given_up_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path(), "size=8m") else { return };
    let (space, at, _) = filled(dir.path());
    // These pages are out, so the file has room for the same number of pages again.
    space.unmap(at, 4 * MIB).unwrap();
    let more = space.map(2 * MIB, RegionOptions::default()).unwrap();
    store_all(&space, more, 2 * MIB).unwrap();
    check_all(&space, more, 2 * MIB);
}

#[test]
fn a_full_file_system_and_pages_given_up_here_and_there() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path(), "size=8m") else { return };
    let (space, at, _) = filled(dir.path());
    for offset in (0..6 * MIB).step_by(2 * PAGE as usize) {
        space.unmap(at + offset, PAGE).unwrap();
    }
    let more = space.map(2 * MIB, RegionOptions::default()).unwrap();
    store_all(&space, more, 2 * MIB).unwrap();
    check_all(&space, more, 2 * MIB);
}

#[test]
fn everything_on_a_full_file_system_comes_back_when_there_is_memory() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::new(dir.path(), "size=8m") else { return };
    let (space, at, stored) = filled(dir.path());
    let kept = stored - 4 * MIB;
    space.unmap(at + kept, 4 * MIB).unwrap();
    check_all(&space, at, kept);
}

#[test]
fn a_swap_file_that_has_reached_its_limit() {
    let space = builder().swap_limit_bytes(4 * MIB).build().unwrap().space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let words = ["the temporary swap file in", "is full (4 MiB of at most 4 MiB in use)", "raise its limit"];
    says(store_all(&space, at, 64 * MIB), ErrorKind::SwapFull, &words);
}

#[test]
fn a_swap_file_that_loses_its_bytes_fails_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("swap");
    let space = builder().swap_file(SwapFile::Named(path.clone())).build().unwrap().space().unwrap();
    let at = space.map(32 * MIB, RegionOptions::default()).unwrap();
    store_all(&space, at, 32 * MIB).unwrap();
    let bytes = fs::read(&path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    let words = ["reading from the swap file", "try the access again"];
    says(space.load::<u64>(at), ErrorKind::SwapRead, &words);
    // When the device has the bytes again, the page can be read.
    fs::write(&path, bytes).unwrap();
    check_all(&space, at, 32 * MIB);
}

#[test]
fn out_of_memory_names_the_largest_spaces() {
    let manager = builder().swap_file(SwapFile::None).build().unwrap();
    let small = manager.space_named("small").unwrap();
    let hog = manager.space_named("the hog").unwrap();
    let (at, hog_at) = (
        small.map(MIB, RegionOptions::default()).unwrap(),
        hog.map(64 * MIB, RegionOptions::default()).unwrap(),
    );
    store_all(&small, at, MIB).unwrap();
    let words =
        ["the budget of 16 MiB", "the largest spaces: the hog (", "small (1 MiB)", "configure a swap file"];
    says(store_all(&hog, hog_at, 64 * MIB), ErrorKind::OutOfMemory, &words);
    // The other space still works. This space works again when something is released.
    check_all(&small, at, MIB);
    says(
        small.map(MIB, RegionOptions::default()).and_then(|at| store_all(&small, at, MIB)),
        ErrorKind::OutOfMemory,
        &[],
    );
    drop(hog);
    let at = small.map(8 * MIB, RegionOptions::default()).unwrap();
    store_all(&small, at, 8 * MIB).unwrap();
    manager.validate();
}

#[test]
fn threads_that_are_all_out_of_memory_are_told_soon() {
    for background in [false, true] {
        let manager = builder().background(background).swap_file(SwapFile::None).build().unwrap();
        let space = manager.space().unwrap();
        let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
        let start = Instant::now();
        thread::scope(|scope| {
            for part in 0..4 {
                let space = &space;
                scope.spawn(move || {
                    let at = at + part * 16 * MIB;
                    says(store_all(space, at, 16 * MIB), ErrorKind::OutOfMemory, &[]);
                    says(store_all(space, at, 16 * MIB), ErrorKind::OutOfMemory, &[]);
                });
            }
        });
        assert!(start.elapsed() < Duration::from_secs(20), "it took {:?}", start.elapsed());
    }
}

#[test]
fn memory_that_is_all_pinned() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(64 * MIB, RegionOptions::default()).unwrap();
    let pin = space.pin_prefix(at, 64 << 20, Access::Write).unwrap();
    assert!(pin.len() > 8 << 20 && pin.len() < 16 << 20, "as much as there is: {}", pin.len());
    let next = at + pin.len() as u64;
    says(space.store(next, 1_u64), ErrorKind::OutOfMemory, &["drop pins", "raise the budget"]);
    drop(pin);
    says(space.pin_exact(at, 64 << 20, Access::Write), ErrorKind::OutOfMemory, &["drop pins"]);
    space.store(next, 1_u64).unwrap();
    manager.validate();
}

#[test]
fn a_space_too_sparse_for_the_budget_and_then_another() {
    for drop_space in [false, true] {
        let manager = builder().build().unwrap();
        let mut space = manager.space_named("sparse").unwrap();
        let len = 1 << 47;
        let at = space.map(len, RegionOptions::default()).unwrap();
        let mut touched = 0;
        let error = loop {
            // Each access takes one or two nodes. Every second access only reads.
            let address = at + touched * (1 << 30);
            let result = if touched % 2 == 0 {
                space.store(address, touched)
            } else {
                space.load::<u64>(address).map(drop)
            };
            match result {
                Ok(()) => touched += 1,
                Err(error) => break error,
            }
            assert!(touched < 16 << 10, "the tables alone exceed the budget");
        };
        says::<()>(Err(error), ErrorKind::OutOfMemory, &["page tables: 1", "unmap ranges or drop a space"]);
        for page in (0..touched).step_by(2) {
            assert_eq!(space.load::<u64>(at + page * (1 << 30)).unwrap(), page);
        }
        if drop_space {
            drop(space);
            assert_eq!(manager.stats().unwrap().table_nodes, 0);
            space = manager.space().unwrap();
        } else {
            space.unmap(at, len).unwrap();
        }
        // Memory is short, since the tables keep their frames, but the space works.
        let at = space.map(4 * MIB, RegionOptions::default()).unwrap();
        store_all(&space, at, 4 * MIB).unwrap();
        check_all(&space, at, 4 * MIB);
        drop(space);
        manager.validate();
    }
}

#[test]
fn a_manager_shut_down_or_dropped_while_spaces_and_pins_are_left() {
    let manager = builder().build().unwrap();
    let space = manager.space_named("in use").unwrap();
    let at = space.map(4 * PAGE, RegionOptions::default()).unwrap();
    let pin = space.pin_exact(at, 8, Access::Write).unwrap();
    pin.copy_in(0, b"the pin.").unwrap();
    says(
        manager.clone().shutdown().map_err(octavo::ShutdownRefused::into_error),
        ErrorKind::Busy,
        &["1 spaces are in use (in use)", "drop them"],
    );
    // The last handle of the manager is dropped, but the space and the pin are still in use.
    drop(manager);
    space.unmap(at, 4 * PAGE).unwrap();
    let at = space.map(32 * MIB, RegionOptions::default()).unwrap();
    store_all(&space, at, 32 * MIB).unwrap();
    check_all(&space, at, 32 * MIB);
    let mut bytes = [0; 8];
    pin.copy_out(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"the pin.", "pinned memory outlives its mapping");
    drop(pin);
    drop(space);
    let manager = builder().build().unwrap();
    drop(manager.space().unwrap());
    manager.shutdown().unwrap();
}

#[test]
fn a_manager_shut_down_while_a_forgotten_pin_holds_a_frame() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(PAGE, RegionOptions::default()).unwrap();
    std::mem::forget(space.pin_exact(at, 8, Access::Write).unwrap());
    drop(space);
    let refused = manager.shutdown().unwrap_err();
    assert!(refused.to_string().contains("pin"), "{refused}");
    assert_eq!(refused.error().kind(), ErrorKind::Busy);
    // The manager still works.
    let manager = refused.into_manager();
    let space = manager.space().unwrap();
    let at = space.map(32 * MIB, RegionOptions::default()).unwrap();
    store_all(&space, at, 32 * MIB).unwrap();
    check_all(&space, at, 32 * MIB);
}

#[test]
fn a_manager_dropped_while_a_write_is_under_way() {
    let device = TestDevice::new(1024);
    let manager = builder().swap_device(device.boxed()).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(64 * PAGE, RegionOptions::default()).unwrap();
    store_all(&space, at, 64 * PAGE).unwrap();
    device.writes().hold();
    let reclaimer = manager.clone();
    let thread = thread::spawn(move || reclaimer.reclaim(32).unwrap());
    assert!(device.writes().wait_held(1));
    drop((space, manager));
    device.writes().let_go();
    thread.join().unwrap();
}

#[test]
fn a_manager_with_a_background_thread_ends_while_that_thread_writes() {
    let device = TestDevice::new(16384);
    let manager = builder().background(true).swap_device(device.boxed()).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(16 * MIB, RegionOptions::default()).unwrap();
    device.writes().delay(Duration::from_millis(5));
    store_all(&space, at, 16 * MIB).unwrap();
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        drop((space, manager));
        sender.send(()).unwrap();
    });
    receiver
        .recv_timeout(Duration::from_secs(20))
        .expect("the last drop ends the background thread and returns");
}

/// Makes every call on a manager of the parent. Returns the number of the first call that does not report
/// this.
fn first_wrong_answer(manager: &Manager, space: &Space, pin: &octavo::Pin<'_>, at: u64) -> u8 {
    let options = RegionOptions::default();
    let answers = [
        space.load::<u64>(at).map(drop),
        space.store(at, 1_u64),
        space.load::<u64>(at + PAGE).map(drop),
        space.store(at + PAGE, 1_u64),
        space.read(at, &mut [0; 9000]),
        space.write(at, &[0; 9000]),
        space.pin_exact(at, 8, Access::Read).map(drop),
        space.pin_exact(at, 8, Access::Write).map(drop),
        space.pin_exact(at + 3 * PAGE, 8, Access::Write).map(drop),
        space.map(PAGE, options).map(drop),
        space.map_at(1 << 40, PAGE, options),
        space.unmap(at, PAGE),
        space.protect(at, PAGE, Protection::READ),
        space.populate(at, PAGE, Access::Write),
        run_woken(space.fault_async(at, Access::Write)).0,
        space.load::<u64>(1 << 41).map(drop),
        space.load::<u64>(at + 1).map(drop),
        space.swap(at, 1_u64).map(drop),
        space.fetch_add(at, 1_u64).map(drop),
        space.compare_exchange(at, 1_u64, 2).map(drop),
        space.load::<[u64; 2]>(at).map(drop),
        run_woken(space.pin_async(at, 9000, Access::Write)).0.map(drop),
        run_woken(space.read_async(at + PAGE, 8)).0.map(drop),
        space.range_stats(at, PAGE).map(drop),
        space.region_stats().map(drop),
        space.read(at, &mut []),
        space.write(at, &[]),
        space.pin_exact(at, 0, Access::Read).map(drop),
        space.populate(at + 1, PAGE, Access::Read),
        space.stats().map(drop),
        pin.load::<u64>(0).map(drop),
        pin.copy_out(0, &mut [0; 8]),
        pin.copy_in(0, &[0; 8]),
        manager.space().map(drop),
        manager.space_named("child").map(drop),
        manager.set_budget(32 * MIB),
        manager.reclaim(10).map(drop),
        manager.stats().map(drop),
        manager.alloc_block(Order::ZERO).map(drop),
        manager.free_block(FrameId(0), Order::ZERO),
        manager.zero_ahead(1).map(drop),
        manager.clone().shutdown().map_err(octavo::ShutdownRefused::into_error),
    ];
    let is_right = |result: &Result<()>| {
        result.as_ref().is_err_and(|error| {
            error.kind() == ErrorKind::ForkedChild
                && error.to_string().contains("build a new manager in the child")
        })
    };
    answers.iter().position(|answer| !is_right(answer)).map_or(0, |index| index as u8 + 1)
}

#[test]
fn a_forked_child_is_told_at_every_call_and_can_drop_everything() {
    for background in [false, true] {
        let manager = builder().background(background).build().unwrap();
        let pinned = manager.space().unwrap();
        let pinned_at = pinned.map(8 * PAGE, RegionOptions::default()).unwrap();
        let pin = pinned.pin_exact(pinned_at, 8, Access::Write).unwrap();
        let space = manager.space().unwrap();
        let at = space.map(32 * MIB, RegionOptions::default()).unwrap();
        store_all(&space, at, 32 * MIB).unwrap();
        pinned.store(pinned_at + 8, 88_u64).unwrap();

        let code =
            octavo_platform::run_in_forked_child(|| first_wrong_answer(&manager, &pinned, &pin, pinned_at));
        assert_eq!(code.unwrap(), 0, "the first call that did not answer ForkedChild, or a signal + 128");
        let code = octavo_platform::run_in_forked_child(|| {
            // The child may also have a manager of its own.
            let own = builder().build().unwrap().space().unwrap();
            let at = own.map(MIB, RegionOptions::default()).unwrap();
            store_all(&own, at, MIB).unwrap();
            check_all(&own, at, MIB);
            0
        });
        assert_eq!(code.unwrap(), 0);
        // The parent is not affected.
        check_all(&space, at, 32 * MIB);
        assert_eq!(pinned.load::<u64>(pinned_at + 8).unwrap(), 88);
        drop(pin);
        manager.validate();

        // All three values are moved into the child and dropped there. The parent drops its own copies with
        // the closure.
        let owned = (space, pinned, manager);
        let code = octavo_platform::run_in_forked_child(|| {
            drop(owned);
            0
        });
        assert_eq!(code.unwrap(), 0);
    }
}

/// Returns whether the process has a mapping at this address.
fn is_mapped(address: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(from)..number(to)).contains(&address)
    })
}

#[test]
fn a_pins_pointers_lead_nowhere_in_a_forked_child() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(2 * PAGE, RegionOptions::default()).unwrap();
    let pin = space.pin_exact(at, 2 * PAGE as usize, Access::Write).unwrap();
    let places: Vec<usize> = pin.pages().map(|(pointer, _)| pointer.addr()).collect();
    assert!(places.iter().all(|&place| is_mapped(place)));
    let code = octavo_platform::run_in_forked_child(|| {
        // The call for the pointers does not crash, and the pointers lead neither to the parent's memory nor
        // to any other memory.
        let same = pin.pages().map(|(pointer, _)| pointer.addr()).eq(places.iter().copied());
        u8::from(!same || places.iter().any(|&place| is_mapped(place)))
    });
    assert_eq!(code.unwrap(), 0);
}

#[test]
fn children_forked_while_others_work_end_too() {
    let manager = builder().background(true).build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(24 * MIB, RegionOptions::default()).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = common::SetOnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                store_all(&space, at, 24 * MIB).unwrap();
            }
        });
        for _ in 0..40 {
            let mut handle = Some((manager.clone(), manager.space().unwrap()));
            let code = octavo_platform::run_in_forked_child(|| {
                let wrong = manager.reclaim(1).is_ok() || space.load::<u64>(at).is_ok();
                drop(handle.take());
                u8::from(wrong)
            });
            assert_eq!(code.unwrap(), 0);
        }
    });
    check_all(&space, at, 24 * MIB);
}
