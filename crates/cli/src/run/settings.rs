//! The manager of a run, as the command line describes it.

use std::fs;
use std::os::unix::fs::FileTypeExt;

use octavo::io::SwapArea;
use octavo::{HugePolicy, Manager, ManagerBuilder, ReclaimPolicy};
use octavo_command::choices::AccessedBitsChoice;
use octavo_platform::accessed::AccessedBits;

use crate::run::args::{RunArgs, SwapPlace};

/// All of the manager's settings but its budget.
pub fn builder(args: &RunArgs) -> ManagerBuilder {
    let builder = Manager::builder()
        .huge(HugePolicy::Never)
        .compression(args.compression.compression())
        .encrypt(args.encrypt);
    places(args).into_iter().fold(builder, |builder, (_, area)| builder.swap_area(area))
}

/// Where pages go: to the places that were named, or to a file without a name.
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

/// Returns the policy for what can be known of the use of a program's pages. Where accessed bits cannot be
/// read, it shows in faults only.
pub fn reclaim_policy(accessed_bits: AccessedBitsChoice) -> ReclaimPolicy {
    let is_known = accessed_bits == AccessedBitsChoice::Auto && AccessedBits::prepare().is_ok();
    if is_known { ReclaimPolicy::Reuse } else { ReclaimPolicy::Returns }
}

/// Describes a place that was named.
fn area(place: &SwapPlace, force: bool) -> SwapArea {
    let kind = fs::metadata(&place.path).map(|metadata| metadata.file_type());
    let area = match kind {
        Ok(kind) if kind.is_block_device() => SwapArea::block_device(&place.path),
        Ok(kind) if kind.is_dir() => SwapArea::temporary(&place.path),
        _ => SwapArea::file(&place.path),
    };
    place.limit_bytes.into_iter().fold(area, SwapArea::limit_bytes).overwrite(force)
}
