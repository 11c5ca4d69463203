//! Ranges under watch: their missing pages become faults, and their protected pages tell of stores.

use std::ops::Range;

use octavo::{PAGE_BYTES, RegionOptions, Space};
use octavo_window::{Target, Window};
use rustix::io::Errno;

use crate::managed::shared::Shared;

const PAGE: u64 = PAGE_BYTES as u64;

/// Maps the parts of a range that the space does not map yet, and watches them. They are doubtful until they
/// are confirmed.
pub(super) fn take(
    space: &Space,
    window: &Window<Target>,
    shared: &Shared,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, String> {
    let mut taken = Vec::new();
    // An event that comes after the watch finds the range in the layout.
    let mut layout = shared.layout.lock();
    for gap in layout.mapped.gaps(&range).collect::<Vec<_>>() {
        let (start, len) = (gap.start, gap.end - gap.start);
        // Something may just have moved there. Its event says so, and it is not taken over as if it were new.
        if watches(window, start) == Err(Errno::AGAIN) || window.is_unsettled(start, len) {
            continue;
        }
        space.map_at(start, len, RegionOptions::default()).map_err(|error| error.to_string())?;
        if window.reach().watch(start, len).is_err() {
            // Something else has it, or it has just gone.
            let _ = space.unmap(start, len);
            continue;
        }
        layout.mapped.insert(gap.clone());
        layout.doubtful.insert(gap.clone());
        taken.push(gap);
    }
    Ok(taken)
}

/// Asks the kernel whether a page is watched. It is protected then, at the price of a fault.
///
/// # Errors
/// `AGAIN` where an event is unread, and `NOENT` where the page is not watched.
pub(super) fn watches(window: &Window<Target>, page: u64) -> Result<(), Errno> {
    // A mover that makes pages of a fork its own must not meet the protection: it would wait for the driver,
    // and the driver for it.
    let protected = window.hold_still(|| window.reach().events().write_protect(page, PAGE, true));
    protected.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
