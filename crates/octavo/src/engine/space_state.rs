//! The state of a space that faults, accesses and unmaps need.

use crate::engine::{Engine, Quota, Streams};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::zero_page::UsedHugeZero;
use crate::region::{Region, RegionList};
use crate::sync::Shared;
use crate::table::translation::Translation;
use crate::table::{Access, SpaceId};
use crate::units::PageNumber;

/// A space, below its public face.
pub(crate) struct SpaceState {
    pub(crate) id: SpaceId,
    pub(crate) regions: RegionList,
    pub(crate) used_huge_zero: UsedHugeZero,
    pub(crate) streams: Streams,
    pub(crate) quota: Quota,
    /// The translation that shows the space's pages at another side, if there is one. Handles need none.
    pub(crate) translation: Option<Shared<dyn Translation>>,
}

impl SpaceState {
    /// Returns the region that `access` at `address` may use.
    #[inline]
    pub(crate) fn region_for(&self, engine: &Engine, address: u64, access: Access) -> Result<Region> {
        match self.regions.find(PageNumber::containing(address)) {
            Some(region) if region.options.protection.allows(access) && !region.options.guarded => Ok(region),
            found => Err(self.refuse(engine, address, access, found)),
        }
    }

    /// Returns the region in which a guard may borrow the page at `address`.
    #[inline]
    pub(crate) fn region_for_guard(&self, engine: &Engine, address: u64) -> Result<Region> {
        match self.regions.find(PageNumber::containing(address)) {
            Some(region) if region.options.guarded => Ok(region),
            Some(_) => Err(not_guarded(address)),
            None => Err(self.refuse(engine, address, Access::Read, None)),
        }
    }

    #[cold]
    fn refuse(&self, engine: &Engine, address: u64, access: Access, found: Option<Region>) -> Error {
        if let Err(error) = engine.check_process() {
            return error;
        }
        if found.is_some_and(|region| region.options.guarded) {
            let message = format!(
                "the region at {address:#x} is guarded; use shared(), exclusive(), optimistic() or read_guarded()"
            );
            return Error::new(ErrorKind::Protected, message);
        }
        if found.is_some() {
            let what = if access == Access::Write { "written" } else { "read" };
            let message = format!("memory at {address:#x} may not be {what}; change that with protect()");
            return Error::new(ErrorKind::Protected, message);
        }
        let message = format!("no region is mapped at {address:#x}; map() one there, or check the address");
        Error::new(ErrorKind::NotMapped, message)
    }
}

#[cold]
fn not_guarded(address: u64) -> Error {
    let message = format!(
        "the region at {address:#x} is not guarded, so its bytes cannot be borrowed; map it with RegionOptions::guarded(true), or use load(), read() or a pin"
    );
    Error::new(ErrorKind::Protected, message)
}
