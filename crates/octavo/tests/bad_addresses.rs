//! Every bad address, bad range or unaligned word gives an error with a kind, and with a sentence that says
//! what to do.

mod common;

use common::{MIB, PAGE, run_woken, says};
use octavo::{
    Access, Advice, Compression, ErrorKind, Manager, ManagerBuilder, Protection, RegionOptions, Result, Space,
};

fn builder() -> ManagerBuilder {
    Manager::builder().budget_bytes(16 * MIB).background(false).compression(Compression::Off)
}

#[test]
fn ranges_that_are_empty_unaligned_or_overflow() {
    let space = builder().build().unwrap().space().unwrap();
    let options = RegionOptions::default();
    let top = 1 << 48;
    let words = ["a range of 0 bytes holds no page", "give a length"];
    says(space.map(0, options), ErrorKind::InvalidRange, &words);
    says(space.map(top + 1, options), ErrorKind::InvalidRange, &["give a length of up to 256 TiB"]);
    says(space.map(u64::MAX, options), ErrorKind::InvalidRange, &[]);
    let calls: [&dyn Fn(u64, u64) -> Result<()>; 4] = [
        &|at, len| space.map_at(at, len, RegionOptions::default()),
        &|at, len| space.unmap(at, len),
        &|at, len| space.protect(at, len, Protection::READ),
        &|at, len| space.populate(at, len, Access::Read),
    ];
    for call in calls {
        says(
            call(4 * MIB + 1, PAGE),
            ErrorKind::InvalidRange,
            &["not at the start of a page", "align it to 4096"],
        );
        says(call(4 * MIB, 0), ErrorKind::InvalidRange, &words);
        says(call(top, PAGE), ErrorKind::InvalidRange, &["past the end of the address space"]);
        says(call(top - PAGE, 2 * PAGE), ErrorKind::InvalidRange, &["past the end"]);
        says(call(u64::MAX - PAGE + 1, 2 * PAGE), ErrorKind::InvalidRange, &["past the end"]);
        says(call(PAGE, u64::MAX), ErrorKind::InvalidRange, &[]);
    }
    for at in [4 * MIB, 4 * MIB + 1] {
        says(space.prefetch(at, 0), ErrorKind::InvalidRange, &words);
    }
    // The last page of the address space can be used.
    space.map_at(top - PAGE, PAGE, options).unwrap();
    space.store(top - 8, 7_u64).unwrap();
    assert_eq!(space.load::<u64>(top - 8).unwrap(), 7);
    says(space.write(top - 4, &[1; 8]), ErrorKind::NotMapped, &[]);
    says(
        space.read(u64::MAX - 3, &mut [0; 8]),
        ErrorKind::InvalidRange,
        &["past the end", "check the range"],
    );
    says(space.pin_prefix(u64::MAX - 3, 8, Access::Read), ErrorKind::InvalidRange, &["past the end"]);
    says(space.map(top, options), ErrorKind::InvalidRange, &["no free range", "unmap others"]);
    says(space.map_at(top - PAGE, PAGE, options), ErrorKind::AlreadyMapped, &[]);
}

#[test]
fn ranges_that_end_inside_a_page_where_pages_are_changed_whole() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(10_000, RegionOptions::default()).unwrap();
    (0..3).for_each(|page| space.store(at + page * PAGE, 7_u64).unwrap());
    type Call<'s> = (&'s str, &'s dyn Fn(u64) -> Result<()>);
    let calls: [Call<'_>; 3] = [
        ("unmapped", &|len| space.unmap(at, len)),
        ("protected", &|len| space.protect(at, len, Protection::READ)),
        ("freed", &|len| space.advise(at, len, Advice::Free)),
    ];
    for (what, call) in calls {
        for len in [100, PAGE + 1, 10_000] {
            let (end, page) =
                (format!("ends at {:#x}", at + len), format!("{:#x}", (at + len) / PAGE * PAGE));
            let whole = format!("pages are {what} whole");
            says(call(len), ErrorKind::InvalidRange, &[&end, &page, &whole, "a multiple of 4096"]);
        }
    }
    for page in 0..3 {
        assert_eq!(space.load::<u64>(at + page * PAGE).unwrap(), 7, "nothing has changed");
        space.store(at + page * PAGE, 8_u64).unwrap();
    }
    // Calls that change no page accept a part of a page.
    space.populate(at, 100, Access::Read).unwrap();
    space.advise(at, 100, Advice::Cold).unwrap();
    assert_eq!(space.prefetch(at + 50, 100).unwrap(), 0);
    space.unmap(at, 3 * PAGE).unwrap();
}

#[test]
fn words_that_are_not_aligned() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(PAGE, RegionOptions::default()).unwrap();
    let words = ["align the address to 8", "read() and write()"];
    says(space.load::<u64>(at + 4), ErrorKind::InvalidRange, &words);
    says(space.store(at + 1, 5_u64), ErrorKind::InvalidRange, &words);
    says(space.load::<u16>(at + 1), ErrorKind::InvalidRange, &["align the address to 2"]);
}

#[test]
fn words_of_a_pin_that_are_outside_or_not_aligned() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(2 * PAGE, RegionOptions::default()).unwrap();
    let pin = space.pin_prefix(at + 4, 2 * PAGE as usize - 4, Access::Write).unwrap();
    let outside = |result: Result<()>| {
        let error = says(result, ErrorKind::InvalidRange, &["not inside a pin of 8188 bytes", "pin.len()"]);
        assert!(!error.to_string().contains("aligned"), "{error}");
    };
    outside(pin.load::<u64>(8181).map(drop));
    outside(pin.store(8188, 1_u64));
    outside(pin.load::<u8>(usize::MAX).map(drop));
    outside(pin.copy_out(8187, &mut [0; 2]));
    // The words lie in the first page, across its end, and in the second page.
    for (offset, past) in [(0, 4), (4088, 4), (4093, 1), (8179, 7)] {
        let (place, past) =
            (format!("at offset {offset} of the pin is not aligned"), format!("{past} past a multiple of 8"));
        for result in [pin.load::<u64>(offset).map(drop), pin.store(offset, 1_u64)] {
            let error = says(result, ErrorKind::InvalidRange, &[&place, &past, "copy_out() and copy_in()"]);
            assert!(!error.to_string().contains("inside"), "{error}");
        }
    }
    for offset in [4, 4084, 4092, 8180] {
        pin.store(offset, offset as u64).unwrap();
        assert_eq!(pin.load::<u64>(offset).unwrap(), offset as u64);
    }
}

fn accesses(space: &Space, at: u64) -> Vec<Result<()>> {
    vec![
        space.load::<u64>(at).map(drop),
        space.read(at, &mut [0; 3]),
        space.pin_prefix(at, 8, Access::Read).map(drop),
        run_woken(space.fault_async(at, Access::Read)).0,
        space.populate(at / PAGE * PAGE, PAGE, Access::Read),
        space.store(at, 1_u64),
        space.write(at, &[1; 3]),
        space.pin_prefix(at, 8, Access::Write).map(drop),
        run_woken(space.fault_async(at, Access::Write)).0,
        space.populate(at / PAGE * PAGE, PAGE, Access::Write),
    ]
}
const READS: usize = 5;

#[test]
fn access_to_what_is_not_mapped() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(3 * PAGE, RegionOptions::default()).unwrap();
    space.store(at + PAGE, 1_u64).unwrap();
    space.unmap(at + PAGE, PAGE).unwrap();
    for address in [0, at - PAGE, at + PAGE, at + 3 * PAGE, 1 << 47, 1 << 48, 1 << 60, u64::MAX - 7] {
        for result in accesses(&space, address) {
            let out_of_space = address >= 1 << 48;
            if out_of_space && result.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidRange) {
                continue;
            }
            says(result, ErrorKind::NotMapped, &["no region is mapped at 0x", "map() one there"]);
        }
    }
    says(
        space.protect(at, 3 * PAGE, Protection::READ),
        ErrorKind::NotMapped,
        &["protect mapped ranges only"],
    );
    // The part before the hole was written.
    says(space.write(at, &[9; 5000]), ErrorKind::NotMapped, &[]);
    assert_eq!(space.load::<u8>(at + 4095).unwrap(), 9);
}

#[test]
fn a_refused_access_names_the_address_that_was_asked_for() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(2 * PAGE, RegionOptions::default()).unwrap();
    space.unmap(at + PAGE, PAGE).unwrap();
    let inside = at + PAGE + 0x128;
    for (index, result) in accesses(&space, inside).into_iter().enumerate() {
        // Whole pages are populated.
        let address = if index % READS == 4 { at + PAGE } else { inside };
        says(result, ErrorKind::NotMapped, &[&format!("no region is mapped at {address:#x};")]);
    }
    // For a range, the error names the first missing byte.
    let missing = format!("no region is mapped at {:#x};", at + PAGE);
    says(space.read(at + 100, &mut [0; 5000]), ErrorKind::NotMapped, &[&missing]);
    says(space.write(at + 100, &[0; 5000]), ErrorKind::NotMapped, &[&missing]);
    space.protect(at, PAGE, Protection::NONE).unwrap();
    let forbidden = format!("memory at {:#x} may not be read", at + 0x128);
    says(space.load::<u64>(at + 0x128), ErrorKind::Protected, &[&forbidden]);
}

#[test]
fn access_that_the_protection_forbids() {
    let space = builder().build().unwrap().space().unwrap();
    for written in [false, true] {
        let at = space.map(PAGE, RegionOptions::default()).unwrap();
        if written {
            space.store(at, 5_u64).unwrap();
        }
        space.protect(at, PAGE, Protection::READ).unwrap();
        for (index, result) in accesses(&space, at).into_iter().enumerate() {
            match index < READS {
                true => result.unwrap(),
                false => drop(says(result, ErrorKind::Protected, &["may not be written", "protect()"])),
            }
        }
        space.protect(at, PAGE, Protection::NONE).unwrap();
        for (index, result) in accesses(&space, at).into_iter().enumerate() {
            let what = if index < READS { "may not be read" } else { "may not be written" };
            says(result, ErrorKind::Protected, &[what, "protect()"]);
        }
        space.protect(at, PAGE, Protection::READ_WRITE).unwrap();
        assert_eq!(space.load::<u64>(at).unwrap(), if written { 5 } else { 0 });
        space.store(at, 6_u64).unwrap();
    }
    let at = space.map(PAGE, RegionOptions::default()).unwrap();
    let pin = space.pin_prefix(at, 8, Access::Read).unwrap();
    says(pin.copy_in(0, &[1]), ErrorKind::Protected, &["pin with Access::Write"]);
}

#[test]
fn a_pin_longer_than_the_region_is_its_prefix() {
    let space = builder().build().unwrap().space().unwrap();
    let at = space.map(2 * PAGE, RegionOptions::default()).unwrap();
    for access in [Access::Read, Access::Write] {
        let pin = space.pin_prefix(at + 100, 1 << 20, access).unwrap();
        assert_eq!(pin.len() as u64, 2 * PAGE - 100, "up to the end of the region");
        says(pin.copy_out(8000, &mut [0; 200]), ErrorKind::InvalidRange, &["check pin.len()"]);
        says(pin.copy_out(usize::MAX, &mut [0; 2]), ErrorKind::InvalidRange, &[]);
    }
    space.protect(at + PAGE, PAGE, Protection::READ).unwrap();
    assert_eq!(
        space.pin_prefix(at, 2 << 12, Access::Write).unwrap().len() as u64,
        PAGE,
        "up to what may be written"
    );
    says(space.pin_prefix(at + PAGE, 10, Access::Write), ErrorKind::Protected, &[]);
    says(space.pin_prefix(at + 2 * PAGE, 10, Access::Read), ErrorKind::NotMapped, &[]);
    assert!(space.pin_prefix(at + 2 * PAGE, 0, Access::Read).unwrap().is_empty());
}

#[test]
fn more_pins_than_can_be_counted() {
    let manager = builder().build().unwrap();
    let space = manager.space().unwrap();
    let at = space.map(2 * PAGE, RegionOptions::default()).unwrap();
    let mut pins = Vec::new();
    let error = loop {
        match space.pin_prefix(at, 8, Access::Write) {
            Ok(pin) => pins.push(pin),
            Err(error) => break error,
        }
    };
    says::<()>(Err(error), ErrorKind::TooManyPins, &["drop some"]);
    assert!(pins.len() >= 1 << 20);
    says(space.store(at, 1_u64), ErrorKind::TooManyPins, &[]);
    assert_eq!(space.load::<u64>(at).unwrap(), 0, "loads take no pin");
    pins.clear();
    space.store(at, 1_u64).unwrap();
    manager.validate();
}
