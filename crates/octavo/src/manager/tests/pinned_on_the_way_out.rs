//! Pages that are pinned after eviction has looked for pins, and before it changes their entries.

use super::{MIB, PAGE, frame_at};
use crate::config::PinPath;
use crate::manager::Manager;
use crate::reclaim::{Outcome, send_out, take_in};
use crate::region::RegionOptions;
use crate::space::Space;
use crate::table::Access;
use crate::table::entry::State;
use crate::units::PageNumber;
use crate::{Pin, SwapArea};

/// Pins a page that goes out as far as it can: its entry leads to its slot then, and the swap cache has its
/// frame.
fn pin_on_the_way_out<'s>(manager: &Manager, space: &'s Space, at: u64, access: Access) -> Pin<'s> {
    let (engine, frame) = (manager.engine(), frame_at(manager, space, at).expect("the page has a frame"));
    let isolated = engine.isolate(frame).expect("the frame is on the LRU");
    let mut outcome = Outcome::default();
    let going = take_in(engine, [isolated].into_iter().collect(), &mut outcome);
    let pin = space.pin_exact(at, PAGE as usize, access).unwrap();
    send_out(engine, going, &mut outcome);
    assert_eq!((outcome.freed, outcome.started), (0, 0), "a page that is pinned stays");
    let entry = engine.table.walk(space.state().id, PageNumber::containing(at)).entry();
    assert!(matches!(entry.state(), State::Swapped(_)), "{entry:?}");
    pin
}

#[test]
fn a_pin_shows_what_is_written_over_its_page_whole() {
    for path in [PinPath::Locked, PinPath::LockFree] {
        for access in [Access::Read, Access::Write] {
            let builder = Manager::builder().budget_bytes(16 * MIB).background(false).pin_path(path);
            let manager = builder.swap_area(SwapArea::ram(MIB)).build().unwrap();
            let space = manager.space().unwrap();
            let at = space.map(PAGE, RegionOptions::default()).unwrap();
            space.populate(at, PAGE, Access::Write).unwrap();
            let pin = pin_on_the_way_out(&manager, &space, at, access);
            space.write(at, &[0x59; PAGE as usize]).unwrap();
            let mut found = [0; PAGE as usize];
            pin.copy_out(0, &mut found).unwrap();
            assert!(found == [0x59; PAGE as usize], "{path:?}: {:#x} by a pin to {access:?}", found[0]);
            if access == Access::Write {
                pin.copy_in(0, &[0x60; PAGE as usize]).unwrap();
                space.read(at, &mut found).unwrap();
                assert!(found == [0x60; PAGE as usize], "{path:?}: {:#x} of what a pin wrote", found[0]);
            }
            drop(pin);
            drop(space);
            assert_eq!(manager.stats().unwrap().swap_slots, 0);
            manager.validate();
        }
    }
}
