//! The manager of a run, as the command line describes it.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use octavo::io::SwapArea;
use octavo::{HugePolicy, Manager, ManagerBuilder, ReclaimPolicy};
use octavo_command::choices::AccessedBitsChoice;
use octavo_platform::accessed::AccessedBits;

use crate::run::args::{RunArgs, SwapPlace};

/// Returns all of the manager's settings except its budget.
pub fn builder(args: &RunArgs) -> ManagerBuilder {
    let builder = Manager::builder()
        .huge(HugePolicy::Never)
        .compression(args.compression.compression())
        .encrypt(args.encrypt);
    places(args).into_iter().fold(builder, |builder, (_, area)| builder.swap_area(area))
}

/// Returns the places for pages: those that the user named, or an unnamed file.
pub fn places(args: &RunArgs) -> Vec<(SwapPlace, SwapArea)> {
    if args.swap.is_empty() {
        let without_name = SwapPlace::without_name();
        return without_name
            .map(|place| (place.clone(), SwapArea::temporary(place.path)))
            .into_iter()
            .collect();
    }
    args.swap.iter().map(|place| (place.clone(), area(place, args.force))).collect()
}

/// Returns the size of the kernel rung's swap file: what the user allowed, or four times the limit, and at
/// most half of the room.
pub fn kernel_swap_bytes(place: &SwapPlace, limit_bytes: u64) -> u64 {
    const LEAST_BYTES: u64 = 1 << 20;
    let room = rustix::fs::statvfs(&place.path).map_or(u64::MAX, |system| system.f_bavail * system.f_frsize);
    let wanted = place.limit_bytes.unwrap_or(limit_bytes.saturating_mul(4).min(room / 2));
    wanted.max(LEAST_BYTES) / LEAST_BYTES * LEAST_BYTES
}

/// Returns the policy that suits what is known about the use of pages. Without accessed bits, only faults
/// show which pages are used.
pub fn reclaim_policy(accessed_bits: AccessedBitsChoice) -> ReclaimPolicy {
    let is_known = accessed_bits == AccessedBitsChoice::Auto && AccessedBits::prepare().is_ok();
    if is_known { ReclaimPolicy::Reuse } else { ReclaimPolicy::Returns }
}

/// Describes a place that the user named.
fn area(place: &SwapPlace, force: bool) -> SwapArea {
    let kind = fs::metadata(&place.path).map(|metadata| metadata.file_type());
    let area = match kind {
        Ok(kind) if kind.is_block_device() => SwapArea::block_device(&place.path),
        Ok(kind) if kind.is_dir() => SwapArea::temporary(&place.path),
        _ => SwapArea::file(&place.path),
    };
    place.limit_bytes.into_iter().fold(area, SwapArea::limit_bytes).overwrite(force)
}
