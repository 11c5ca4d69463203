//! The calls for the other side of a space's translation.

use std::future::Future;
use std::ops::Deref;

use crate::engine::{
    Engine, Lack, Obstacle, SpaceState, Waiter, forget_range, fork_range, in_place, relocate_range,
};
use crate::error::{Error, ErrorKind, Result};
use crate::fault::{InPlace, Via, resolve_async, resolve_now, show_run, take_over};
use crate::reclaim::{
    make_room, make_room_for_away, make_room_for_node, make_room_to_grow, make_room_under_quota,
};
use crate::region::Region;
use crate::space::{Space, whole_pages};
use crate::sync::Shared as Arc;
use crate::table::{Access, PageNumberRange};
use crate::units::{CHUNK_FRAMES, PAGE_SHIFT, PageNumber};

/// Gives a [`Translation`](crate::translation::Translation) access to its space. The *other side*, such as
/// a window at real addresses, reports faults and changes by the calls here. For authors of translations.
///
/// It does all that a [`Space`] does, except guards. A clone refers to the same space. The space ends when
/// the last clone, and the last pin or other value that keeps it, is dropped.
#[derive(Clone, Debug)]
pub struct TranslatedSpace {
    space: Arc<Space>,
}

impl Deref for TranslatedSpace {
    type Target = Arc<Space>;

    fn deref(&self) -> &Self::Target {
        &self.space
    }
}

impl TranslatedSpace {
    /// `space` has a translation.
    pub(crate) fn new(space: Space) -> Self {
        Self { space: Arc::new(space) }
    }

    /// Records that the other side of the space's translation has dropped the bytes of a range of whole
    /// pages. They read as zeros from now on. The range stays mapped. The translation is not asked about
    /// pages that were there.
    ///
    /// # Errors
    /// As [`Space::unmap`].
    pub fn forget(&self, address: u64, len: u64) -> Result<()> {
        let _inside = self.engine.enter()?;
        self.clear_by(whole_pages(address, len, "forgotten")?, forget_range)
    }

    /// Records that the other side has unmapped the range, and unmaps it here, too. Otherwise as
    /// [`TranslatedSpace::forget`].
    ///
    /// # Errors
    /// As [`Space::unmap`].
    pub fn forget_mapping(&self, address: u64, len: u64) -> Result<()> {
        let _inside = self.engine.enter()?;
        self.unmap_by(whole_pages(address, len, "forgotten")?, forget_range)
    }

    /// Records that the other side of `parent`'s translation has forked. This space, in which nothing is
    /// mapped, is the child's. It gets the parent's regions, and the parent's pages that are not at the
    /// other side. The other side shows its own pages to both. Meanwhile the parent's other side must not
    /// show or take pages. If a pin of the parent's is held during the call, its later writes may show in
    /// both spaces.
    ///
    /// # Errors
    /// `Unsupported` if the parent is a space of another manager. `Busy` if a block stays pinned.
    /// `OutOfMemory` and other errors of reclaim, if there is no room for the child's regions and pages.
    /// The child then has a part of them, and you may call again.
    pub fn fork_from(&self, parent: &Self) -> Result<()> {
        let _inside = self.engine.enter()?;
        if !Arc::ptr_eq(&self.engine, &parent.engine) {
            let message = "the parent is a space of another manager; make the child by the parent's";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (all, mut give_up_at) = (PageNumberRange::from(PageNumber(0)), None);
        let regions = parent.state.regions.writer().overlapping(all.start, all.end);
        for region in regions {
            match self.with_room(|| self.state.regions.writer().insert(region)) {
                // An earlier call has inserted this region.
                Err(error) if error.kind() == ErrorKind::AlreadyMapped => {}
                inserted => inserted?,
            }
            let range = PageNumberRange { start: region.start, end: region.end };
            while let Err(lack) = fork_range(&self.engine, &parent.state, &self.state, range) {
                let mut waiter = Waiter::thread(&self.engine);
                match lack {
                    Lack::Node => self.remove_obstacle(Obstacle::NoNode, &mut give_up_at)?,
                    Lack::Unpinned(block) => {
                        self.remove_obstacle(Obstacle::Pinned(block), &mut give_up_at)?;
                    }
                    Lack::Frame => in_place(make_room(&self.engine, &mut waiter))?,
                    Lack::Room => in_place(make_room_to_grow(&self.engine, &mut waiter))?,
                }
            }
        }
        Ok(())
    }

    /// Records that the other side of the space's translation has moved a range of whole pages to the
    /// addresses from `to` on. The previous contents there are forgotten as by
    /// [`TranslatedSpace::forget_mapping`]. The regions move with their options. No bytes move.
    ///
    /// # Errors
    /// As [`Space::unmap`], for both ranges, and `InvalidRange` if they overlap. After any error except
    /// `InvalidRange`, some pages have moved and others have not: the space cannot be used any more.
    pub fn relocate(&self, from: u64, len: u64, to: u64) -> Result<()> {
        let (old, new) = (whole_pages(from, len, "moved")?, whole_pages(to, len, "moved")?);
        if old.start < new.end && new.start < old.end {
            let message = format!("the ranges at {from:#x} and {to:#x} overlap; give ranges that do not");
            return Err(Error::new(ErrorKind::InvalidRange, message));
        }
        self.forget_mapping(to, len)?;
        let regions = self.state.regions.writer().overlapping(old.start, old.end);
        for region in regions {
            let (start, end) = (region.start.max(old.start), region.end.min(old.end));
            let at = |page: PageNumber| PageNumber(page.0 - old.start.0 + new.start.0);
            let region = Region { start: at(start), end: at(end), ..region };
            self.with_room(|| self.state.regions.writer().insert(region))?;
        }
        self.change_layout(old, |writer| writer.remove(old.start, old.end), |_, _| Ok(()))?;
        let mut give_up_at = None;
        loop {
            let writer = self.state.regions.writer();
            let Err(obstacle) = relocate_range(&self.engine, &self.state, old, new.start) else { break };
            drop(writer);
            self.remove_obstacle(obstacle, &mut give_up_at)?;
        }
        // Clears nodes, zeros, and the versions that faults under way have seen.
        self.clear_by(old, forget_range)
    }

    /// Makes the page at `address` usable at the other side of the space's translation, as
    /// [`Space::fault_async`] does here. One thread may poll many of these futures at once, and none
    /// blocks it. A page that is pinned here cannot go there.
    ///
    /// # Errors
    /// As [`Space::load`]. `Unsupported` if the translation cannot show the page. `Busy` if the page stays
    /// pinned, or the translation stays busy with it.
    pub fn fault_translated(
        &self,
        address: u64,
        access: Access,
    ) -> impl Future<Output = Result<()>> + Send + '_ {
        self.fault_by_task(address, access, Via::Translation { is_missing: false })
    }

    /// Serves an access that has found nothing at its page; otherwise as
    /// [`TranslatedSpace::fault_translated`]. If the page should be there, this asks the translation
    /// ([`Touch::There`](crate::translation::Touch::There)). A page that the other side has dropped then
    /// reads as zeros.
    ///
    /// # Errors
    /// As [`TranslatedSpace::fault_translated`].
    pub fn fault_missing(
        &self,
        address: u64,
        access: Access,
    ) -> impl Future<Output = Result<()>> + Send + '_ {
        self.fault_by_task(address, access, Via::Translation { is_missing: true })
    }

    /// Serves a fault from a thread that has many faults under way. A missing page is served as by
    /// [`TranslatedSpace::fault_missing`], and others as by [`TranslatedSpace::fault_translated`]. Reads
    /// are only collected. After the thread has polled all of its faults, it starts and completes their
    /// reads by [`TranslatedSpace::drive`]. Before it sleeps, it leaves them to other threads by
    /// [`TranslatedSpace::leave_driving`].
    ///
    /// # Errors
    /// As [`TranslatedSpace::fault_translated`].
    pub fn fault_driven(
        &self,
        address: u64,
        access: Access,
        is_missing: bool,
    ) -> impl Future<Output = Result<()>> + Send + '_ {
        let via = Via::Translation { is_missing };
        // The thread is not marked as inside the engine: it serves faults, and none of its own memory
        // waits for them.
        resolve_async(Waiter::driven(&self.engine), &self.engine, &self.state, address, access, via)
    }

    /// Starts the reads that faults have collected, and completes those that have ended. Costs a system
    /// call for each ring with collected reads.
    pub fn drive(&self) {
        if let Ok(_inside) = self.engine.enter() {
            self.engine.flush_devices();
            self.engine.poll_transfers();
        }
    }

    /// Lets reads complete by themselves from now on. They then wake the faults that wait for them.
    pub fn leave_driving(&self) {
        if let Ok(_inside) = self.engine.enter() {
            self.engine.leave_transfers();
        }
    }

    /// Serves a fault as [`TranslatedSpace::fault_missing`] does, if that takes at most one read. Blocks
    /// the thread for the read, which is quicker than awaiting it if the thread has nothing else to do.
    /// Returns `None` if the fault needs more: room, or a page that another thread works on. Nothing has
    /// changed then.
    ///
    /// # Errors
    /// As [`TranslatedSpace::fault_translated`].
    pub fn fault_now(&self, address: u64, access: Access) -> Option<Result<()>> {
        resolve_now(&self.engine, &self.state, address, access)
    }

    /// Makes pages of a range usable at the other side of the space's translation, without waiting. It
    /// stops at the first page that has to be read from a device, that another thread works on, that lacks
    /// room, or that may not be accessed in this way. Up to 256 pages share a call of the translation.
    /// Returns how many pages are usable now.
    ///
    /// After a fault of a sequential reader, this also shows the pages that were read ahead. After a fault
    /// of a sequential writer, it prepares the next pages.
    ///
    /// # Errors
    /// `InvalidRange` as [`Space::unmap`]; `ForkedChild` in a forked child.
    pub fn show(&self, address: u64, len: u64, access: Access) -> Result<u64> {
        let range = whole_pages(address, len, "shown")?;
        show_run(&self.engine, &self.state, range, access)
    }

    /// Returns how many pages can be shown while leaving some room for accesses that want a page each. It
    /// is a hint.
    #[must_use]
    pub fn spare_pages(&self) -> u64 {
        self.engine.frames.spare_away_pages()
    }

    /// Makes the memory that the other side of the space's translation already has in a range into pages
    /// of the space, in place. From then on they count against the budget, and may be evicted. It never
    /// waits. Returns how many pages are the space's now, from the first on. There are fewer than
    /// requested if there is no room for more; [`TranslatedSpace::make_room`] makes it.
    ///
    /// # Errors
    /// `AlreadyMapped` if the space already has something at a page. `NotMapped` and `Protected` if no
    /// region allows reading it. `InvalidRange` as [`Space::unmap`]. The pages before the one that failed
    /// are the space's.
    pub fn adopt(&self, address: u64, len: u64, what: InPlace) -> Result<u64> {
        let _inside = self.engine.enter()?;
        let range = whole_pages(address, len, "adopted")?;
        let mut page = range.start;
        while page < range.end {
            let is_block = matches!(what, InPlace::Blocks(_))
                && page == page.huge_start()
                && page.plus(u64::from(CHUNK_FRAMES)) <= range.end;
            let what = match what {
                InPlace::Blocks(protection) if !is_block => InPlace::Pages(protection),
                what => what,
            };
            match take_over(&self.engine, &self.state, page.address(), what)? {
                0 => break,
                pages => page = page.plus(pages),
            }
        }
        Ok(page.0 - range.start.0)
    }

    /// Makes room for pages of `len` bytes that are to be [adopted](TranslatedSpace::adopt): for at least
    /// one, and for the others as far as pages go out without delay. It never blocks the thread that polls
    /// it, and is pending after each batch of pages that it has sent out.
    ///
    /// # Errors
    /// `QuotaExceeded`, `OutOfMemory` and other errors of reclaim, if no more pages can go out.
    pub fn make_room(&self, len: u64) -> impl Future<Output = Result<()>> + Send + '_ {
        make_room_for_adoption(&self.engine, &self.state, len)
    }
}

async fn make_room_for_adoption(engine: &Engine, space: &SpaceState, len: u64) -> Result<()> {
    engine.check_process()?;
    let mut waiter = Waiter::driven(engine);
    make_room_under_quota(engine, space, 1, &mut waiter).await?;
    make_room_for_node(engine, &mut waiter).await?;
    make_room_for_away(engine, len >> PAGE_SHIFT, &mut waiter).await?;
    // If another thread has the entry busy, it gets the CPU.
    waiter.give_way().await;
    Ok(())
}
