//! Watched ranges. In such a range, an access to a missing page or a store to a protected page becomes a
//! fault that Octavo gets.

use std::ops::Range;

use octavo::{PAGE_BYTES, RegionOptions, Space};
use octavo_window::{Target, Window};
use rustix::io::Errno;

use crate::managed::shared::DriverState;
use crate::messages::in_words;

const PAGE: u64 = PAGE_BYTES as u64;

/// Maps and watches the parts of a range that the space does not map yet. They are doubtful until they are
/// confirmed.
pub(super) fn take(
    space: &Space,
    window: &Window<Target>,
    shared: &DriverState,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>, String> {
    let mut taken = Vec::new();
    // An event that comes after the watch finds the range in the layout.
    let mut layout = shared.layout.lock();
    for gap in layout.mapped.gaps(&range).collect::<Vec<_>>() {
        let (start, len) = (gap.start, gap.end - gap.start);
        // Another range may just have moved to these addresses. Its event will report this, so do not take it
        // over as a new range.
        if watches(window, start) == Err(Errno::AGAIN) || window.is_unsettled(start, len) {
            continue;
        }
        space.map_at(start, len, RegionOptions::default()).map_err(|error| in_words(&error))?;
        if window.reach().watch(start, len).is_err() {
            // The program itself watches the range, or the range has just been unmapped.
            let _ = space.unmap(start, len);
            continue;
        }
        layout.mapped.insert(gap.clone());
        layout.doubtful.insert(gap.clone());
        taken.push(gap);
    }
    Ok(taken)
}

/// Asks the kernel whether a page is watched. The question write-protects a watched page, which costs a fault
/// later.
///
/// # Errors
/// Returns `AGAIN` if an event is unread, and `NOENT` if the page is not watched.
pub(super) fn watches(window: &Window<Target>, page: u64) -> Result<(), Errno> {
    // A mover that copies shared pages after a fork must not hit the protection: it would wait for the
    // driver, and the driver for it.
    let protected = window.hold_still(|| window.reach().events().write_protect(page, PAGE, true));
    protected.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
