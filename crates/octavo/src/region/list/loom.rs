//! A model of the region list: look-ups without a lock, against a writer that moves regions along the array.
//!
//! This is the real code, but the first chunk holds two regions, so that regions move from chunk to chunk.

use super::*;
use crate::sync::{Arc, bounded};

fn region(start: u64, end: u64, protection: Protection) -> Region {
    Region {
        start: PageNumber(start),
        end: PageNumber(end),
        options: RegionOptions::new().protection(protection),
    }
}

#[test]
fn loom_a_look_up_never_sees_a_torn_region() {
    bounded(1, || {
        let list = Arc::new(RegionList::new(Arc::new(crate::budget::Budget::new(u64::MAX))));
        let before = region(4, 8, Protection::READ);
        let stays = region(8, 12, Protection::READ_WRITE);
        for region in [before, stays] {
            list.writer().insert(region).unwrap();
        }
        let spawn = |run: fn(&RegionList)| {
            let list = Arc::clone(&list);
            thread::spawn(move || run(&list))
        };
        let threads = [
            // Three regions take the place of one, so the last moves to another chunk.
            spawn(|list| {
                list.writer().replace(PageNumber(5), PageNumber(6), |_| None).unwrap();
            }),
            spawn(|list| {
                assert_eq!(list.find(PageNumber(9)), Some(region(8, 12, Protection::READ_WRITE)));
            }),
        ];
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(list.find(PageNumber(5)), None);
    });
}
