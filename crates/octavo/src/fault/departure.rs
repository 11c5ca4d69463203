//! Sends pages to the other side of a translation, or gives them more permissions there: one page, or many
//! with one call.
//!
//! ```text
//!   Empty, Zero, Present ─► Busy, with all that the page takes along ─► ask ─► Present, AWAY
//!                                                                        └───► refused: as it was
//! ```
//!
//! A fault prepares its page and asks about it alone. [`show_run`] has the faults of neighbours prepare their
//! pages, and asks about all of them at once. It never waits, and starts no read: a page that would need
//! either ends the run. While it holds entries Busy, it only polls, so there is no deadlock.
//!
//! For a page of a run, a fault costs two walks, two changes of its entry and the away zone's lock. The call
//! of the translation is shared by up to [`TRANSLATED`] pages.

use std::task::{Poll, Waker};

use smallvec::SmallVec;

use crate::engine::{Batch, Engine, SpaceState, Waiter, ask_for};
use crate::error::Result;
use crate::fault::{Fault, Outcome, Step, Via};
use crate::frame::Block;
use crate::region::RegionOptions;
use crate::rmap::Owner;
use crate::sizes::{FEW_TRANSLATED, TRANSLATED};
use crate::store::Reference;
use crate::table::entry::{Entry, EntryWord, State};
use crate::table::translation::{Answer, Bytes, Home, Install, Remove, Translation};
use crate::table::{Access, PageNumberRange, Protection, SpaceId};
use crate::units::{FrameId, PageNumber, SwapSlot};

/// What a page takes to the other side.
#[derive(Debug)]
pub(super) enum Contents {
    /// Zeros with memory of their own.
    Zeros(Block),
    /// The bytes of a frame at home. A clean page also keeps its place in a store.
    Bytes { home: FrameId, away: Block, kept: Option<Reference> },
    /// More permissions, for a page that is there.
    More { away: FrameId, is_clean: bool },
}

/// A small page whose entry is Busy.
#[derive(Debug)]
#[must_use = "its entry is busy until it has departed"]
pub(super) struct Departing<'e> {
    pub(super) page: PageNumber,
    pub(super) word: &'e EntryWord,
    pub(super) before: Entry,
    pub(super) busy: Entry,
    /// The options of the page's region.
    pub(super) options: RegionOptions,
    pub(super) contents: Contents,
}

/// From this many pages on, a run is long: its pages share one fault, so each costs little.
const LONG: u64 = 8;

/// Whether a fault belongs to a run.
#[derive(Debug)]
pub(super) enum Along<'e> {
    /// The fault asks about its page alone.
    None,
    /// The fault prepares its page, and leaves it as [`Along::Departing`].
    Run {
        is_long: bool,
    },
    Departing(Departing<'e>),
}

impl Along<'_> {
    /// Returns whether the page belongs to a long run, so that it costs little.
    pub(super) fn is_along(&self) -> bool {
        matches!(self, Self::Run { is_long: true })
    }
}

/// The pages of one run.
type Departures<'e> = SmallVec<[Departing<'e>; FEW_TRANSLATED]>;

impl Departing<'_> {
    /// Returns the permissions to ask for: for a clean page, read-only, so that the first write faults.
    fn watched(&self) -> Protection {
        let all = self.options.protection;
        let is_clean = matches!(
            self.contents,
            Contents::Bytes { kept: Some(_), .. } | Contents::More { is_clean: true, .. }
        );
        if is_clean { all.read_only() } else { all }
    }

    /// Returns the request to install the page, or `None` if only permissions are asked for.
    fn install(&self, protection: Protection) -> Option<Install> {
        let bytes = match &self.contents {
            Contents::Zeros(_) => Bytes::Zeros,
            Contents::Bytes { home, .. } => Bytes::Frames(*home),
            Contents::More { .. } => return None,
        };
        Some(Install { bytes, protection })
    }

    /// Asks about this page alone. Returns the answer, and the permissions that were asked for last.
    pub(super) fn ask(&self, engine: &Engine, translation: &dyn Translation) -> (Answer, Protection) {
        let ask = |protection| match self.install(protection) {
            Some(ask) => install(engine, translation, self.page, 1, ask),
            None => ask_for(self.page, 1, protection, |runs| translation.protect(runs)),
        };
        let (watched, all) = (self.watched(), self.options.protection);
        match ask(watched) {
            Answer::Unsupported if watched != all => (ask(all), all),
            answer => (answer, watched),
        }
    }

    /// Publishes the outcome. Returns whether the page is usable there.
    pub(super) fn end(self, engine: &Engine, space: SpaceId, answer: Answer, protection: Protection) -> bool {
        let Self { page, word, before, busy, options, contents } = self;
        let (owner, is_done) = (Owner { space, page }, answer == Answer::Done);
        let leave = |block| {
            engine.publish(word, busy.to_what_was(before));
            engine.frames.give_back(block);
        };
        let mark = |away| {
            if !options.compress {
                engine.frames.words(away).holds.mark_no_compress();
            }
        };
        match contents {
            Contents::Zeros(block) if is_done => {
                let away = engine.adopt(block, owner);
                mark(away);
                engine.publish(word, busy.to_away(away, protection));
            }
            Contents::Zeros(block) => leave(block),
            Contents::Bytes { home, away: block, kept } if is_done => {
                let is_kept = kept.is_some();
                if let Some(reference) = kept {
                    engine.frames.kept(block.frame()).set(Some(reference.into_page()));
                }
                let away = engine.adopt_from(home, block, owner, !is_kept);
                mark(away);
                engine.publish(word, busy.to_away(away, protection));
                engine.disown(home, owner);
                if is_kept {
                    engine.evict_clean(home);
                }
            }
            Contents::Bytes { away: block, kept, .. } => {
                leave(block);
                kept.into_iter().for_each(|reference| engine.drop_reference(reference));
            }
            Contents::More { away, is_clean } => {
                if !is_clean {
                    // If no store to the page follows, this costs one needless write.
                    engine.frames.words(away).holds.mark_dirty();
                    engine.give_place_up(away);
                }
                let shown = busy.to_what_was(before);
                engine.publish(word, if is_done { shown.with_protection(protection) } else { shown });
            }
        }
        is_done
    }
}

/// Asks for pages to be installed, and asks again for the rest while each answer makes progress.
pub(super) fn install(
    engine: &Engine,
    translation: &dyn Translation,
    page: PageNumber,
    pages: u32,
    ask: Install,
) -> Answer {
    let home = Home::new(engine.frames.bytes());
    let mut panics = 0;
    let answer = ask_for(page, pages, ask, |runs| {
        panics += 1;
        translation.install(home, runs);
        panics -= 1;
    });
    if panics > 0 {
        let done = answer.done_of(pages);
        withdraw(engine, translation, [(page.plus(u64::from(done)), pages - done)]);
    }
    answer
}

/// Takes back pages that a translation may have shown before it panicked. They stay at home.
fn withdraw(
    engine: &Engine,
    translation: &dyn Translation,
    unanswered: impl IntoIterator<Item = (PageNumber, u32)>,
) {
    let mut batch = Batch::new();
    for (page, pages) in unanswered.into_iter().filter(|(_, pages)| *pages > 0) {
        batch.add(page, pages, Remove::DROP);
    }
    batch.insist(|runs| translation.remove(Home::new(engine.frames.bytes()), runs));
}

/// Asks about all pages of a run, and publishes the outcomes. Returns how many are usable there.
fn depart(
    engine: &Engine,
    space: &SpaceState,
    translation: &dyn Translation,
    leaving: Departures<'_>,
) -> u64 {
    let (mut installs, mut protects) = (Batch::new(), Batch::new());
    for page in &leaving {
        let protection = page.watched();
        match page.install(protection) {
            Some(ask) => installs.add(page.page, 1, ask),
            None => protects.add(page.page, 1, protection),
        }
    }
    let mut panics = 0;
    let installed = installs.ask(|runs| {
        panics += 1;
        translation.install(Home::new(engine.frames.bytes()), runs);
        panics -= 1;
    });
    if panics > 0 {
        let unanswered =
            leaving.iter().filter(|page| page.install(Protection::NONE).is_some()).zip(&installed);
        let unanswered = unanswered.filter(|(_, answer)| **answer != Answer::Done);
        withdraw(engine, translation, unanswered.map(|(page, _)| (page.page, 1)));
    }
    let mut installed = installed.into_iter();
    let mut protected = protects.ask(|runs| translation.protect(runs)).into_iter();
    let (mut usable, mut is_run) = (0, true);
    for page in leaving {
        let protection = page.watched();
        let is_install = page.install(protection).is_some();
        let answer = if is_install { installed.next() } else { protected.next() };
        // Pages after the first refused one may be there, but do not count as part of the run.
        is_run &= page.end(engine, space.id, answer.unwrap_or(Answer::Busy), protection);
        usable += u64::from(is_run);
    }
    usable
}

/// Makes the pages of a range usable at the other side, from the first on. Stops before a page that must be
/// read, that another thread holds, that lacks room, or that does not allow the access. Returns how many
/// pages it has made usable.
///
/// # Errors
/// `ForkedChild` in a forked child.
pub(crate) fn show_run(
    engine: &Engine,
    space: &SpaceState,
    range: PageNumberRange,
    access: Access,
) -> Result<u64> {
    let _inside = engine.enter()?;
    let Some(translation) = space.translation.as_deref() else { return Ok(0) };
    let (mut departures, mut usable) = (Departures::new(), 0);
    let is_long = range.end.0 - range.start.0 >= LONG;
    for page in (range.start.0..range.end.0).map(PageNumber) {
        if !is_at_hand(engine, space, page) {
            break;
        }
        let (departing, is_usable) = prepare(engine, space, page, access, is_long);
        if departing.is_none() && !is_usable {
            break;
        }
        departures.extend(departing);
        // The prepared pages before a usable one depart first, so that the count is of pages in a row.
        if is_usable || departures.len() == TRANSLATED {
            let pages = departures.len() as u64;
            let departed = depart(engine, space, translation, std::mem::take(&mut departures));
            usable += departed;
            if departed < pages {
                return Ok(usable);
            }
            usable += u64::from(is_usable);
        }
    }
    Ok(usable + depart(engine, space, translation, departures))
}

/// Has a fault prepare a page of a run. Returns the page if it has to depart, and otherwise whether it is
/// usable already.
fn prepare<'e>(
    engine: &'e Engine,
    space: &'e SpaceState,
    page: PageNumber,
    access: Access,
    is_long: bool,
) -> (Option<Departing<'e>>, bool) {
    let mut fault = Fault::new(Waiter::never(engine), engine, space, page.address(), access);
    (fault.via, fault.along) = (Via::Translation { is_missing: false }, Along::Run { is_long });
    fault.counted = true;
    let polled = fault.poll(Waker::noop());
    match std::mem::replace(&mut fault.along, Along::None) {
        Along::Departing(departing) => (Some(departing), false),
        _ => (None, matches!(polled, Poll::Ready(Outcome::Usable))),
    }
}

/// Returns whether a fault need not read the page from a device. The answer is a hint.
fn is_at_hand(engine: &Engine, space: &SpaceState, page: PageNumber) -> bool {
    swapped(engine, space, page)
        .is_none_or(|slot| !engine.swap.cache.is_out(slot) || !engine.swap.is_on_device(slot))
}

/// Returns the slot to which the page's entry leads, if it is out.
fn swapped(engine: &Engine, space: &SpaceState, page: PageNumber) -> Option<SwapSlot> {
    match engine.table.walk(space.id, page).entry().state() {
        State::Swapped(slot) => Some(slot),
        _ => None,
    }
}

impl<'a> Fault<'a> {
    /// Asks about a prepared page, or leaves it to the run that this fault belongs to.
    pub(super) fn depart(
        &mut self,
        departing: Departing<'a>,
        translation: &dyn Translation,
        waker: &Waker,
    ) -> Step {
        if let Along::Run { .. } = self.along {
            self.along = Along::Departing(departing);
            return Step::End(Outcome::Usable);
        }
        let (answer, protection) = departing.ask(self.engine, translation);
        if departing.end(self.engine, self.space.id, answer, protection) {
            return Step::End(Outcome::Usable);
        }
        self.refuse(answer, waker)
    }
}
