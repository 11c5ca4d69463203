//! Which pages are to be written: a hand goes round through the memory of all processes.
//!
//! Nothing tells which pages are read. A range whose pages had changed by the next stop is passed over for
//! some rounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use octavo_platform::PAGE_BYTES;
use octavo_platform::pagemap::Pagemap;

use crate::cleaner::View;
use crate::cleaner::batch::{Batch, How, Piece};
use crate::cleaner::runs::{LEAST_RUN, private_pages, runs};
use crate::mappings::{self, Mapping, What};
use crate::pages::Pages;
use crate::process::{Process, Shared};

const PAGE: u64 = PAGE_BYTES as u64;
/// Memory is chosen by windows of this size.
const WINDOW: u64 = 2 << 20;
/// A process with more mappings than this gets no more: the kernel allows some 65,000.
const MOST_MAPPINGS: usize = 30_000;
/// The most pieces of a batch: single pages cost as much as long runs.
const MOST_PIECES: usize = 2048;
/// How long a list of windows is used.
const FRESH: Duration = Duration::from_millis(250);
/// A window whose pages changed is passed over for so many rounds, twice as many each time.
const LONGEST_REST: u32 = 16;

/// A range of a process that may be written.
#[derive(Clone, Debug)]
struct Window {
    pid: u32,
    mapping: Mapping,
    changes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Choice {
    windows: VecDeque<Window>,
    made_at: Option<Instant>,
    /// Where the hand is.
    hand: (u32, u64),
    round: u32,
    /// Until which round a window rests, and for how long the next time.
    rests: BTreeMap<(u32, u64), (u32, u32)>,
}

impl Choice {
    /// Lists windows with private pages, if the list is used up or old. The programs may run.
    pub(crate) fn prepare(&mut self, shared: &Shared, bytes: u64, look: &mut dyn FnMut()) {
        let is_fresh = self.made_at.is_some_and(|at| at.elapsed() < FRESH);
        if is_fresh && !self.windows.is_empty() {
            return;
        }
        for _ in 0..=LONGEST_REST {
            self.list(shared, bytes, look);
            // If all rest, rounds pass.
            if !self.windows.is_empty() || self.rests.is_empty() {
                break;
            }
        }
        self.made_at = Some(Instant::now());
    }

    fn list(&mut self, shared: &Shared, bytes: u64, look: &mut dyn FnMut()) {
        self.round = self.round.wrapping_add(1);
        let (mut full, mut sparse) = (Vec::new(), Vec::new());
        for process in shared.all() {
            if mappings::why_not(process.pid).is_some() {
                // It has opened a device since it was taken in.
                process.pin();
            }
            if process.is_pinned() {
                continue;
            }
            let changes = process.changes();
            let Ok(plain) = mappings::plain_of(process.pid, &shared.name) else { continue };
            let Ok(pagemap) = Pagemap::of(process.pid) else { continue };
            look();
            let own = process.mapper.range();
            let windows =
                plain.iter().flat_map(windows).filter(|part| part.end <= own.start || own.end <= part.start);
            for mapping in windows {
                if self.rests(process.pid, mapping.start) {
                    continue;
                }
                let private =
                    private_pages(&pagemap, &mapping).iter().filter(|is_private| **is_private).count() as u64;
                if private == 0 {
                    continue;
                }
                let is_full = private * PAGE * 2 >= mapping.end - mapping.start;
                let window = Window { pid: process.pid, mapping, changes };
                if is_full { full.push((window, private)) } else { sparse.push((window, private)) }
            }
        }
        let hand = self.hand;
        let is_behind = |(window, _): &(Window, u64)| (window.pid, window.mapping.start) >= hand;
        self.windows.clear();
        let mut room = bytes.saturating_mul(2);
        for list in [full, sparse] {
            let (behind, before): (Vec<_>, Vec<_>) = list.into_iter().partition(is_behind);
            for (window, private) in behind.into_iter().chain(before) {
                if room == 0 {
                    break;
                }
                room = room.saturating_sub(private * PAGE);
                self.windows.push_back(window);
            }
        }
        self.rests.retain(|_, (until, _)| *until + LONGEST_REST > self.round);
    }

    /// Chooses pages of the listed windows. All processes stand still.
    pub(crate) fn choose(&mut self, shared: &Shared, view: &View, pages: &mut Pages, bytes: u64) -> Batch {
        let mut batch = Batch::default();
        while batch.bytes() < bytes && batch.len() < MOST_PIECES {
            let Some(window) = self.windows.pop_front() else { break };
            self.hand = (window.pid, window.mapping.end);
            let range = window.mapping.start..window.mapping.end;
            let Some(process) = shared.get(window.pid) else { continue };
            let Some(part) = view.part(window.pid, &range) else { continue };
            let is_same = part == window.mapping && process.changes() == window.changes;
            if !is_same || process.is_pinned() || !process.is_current() {
                continue;
            }
            let Ok(pagemap) = Pagemap::of(window.pid) else { continue };
            for run in runs(&private_pages(&pagemap, &part)) {
                let run = part.start + run.start * PAGE..part.start + run.end * PAGE;
                let part = part.within(&run).expect("the run is inside");
                if let Some(how) = how(&part, view, &process, pages) {
                    batch.add(Piece { process: process.clone(), part, how, changes: window.changes });
                }
            }
        }
        batch
    }

    /// Returns whether the window at an address rests.
    fn rests(&self, pid: u32, address: u64) -> bool {
        self.rests.get(&window_at(pid, address)).is_some_and(|(until, _)| *until > self.round)
    }

    /// Records whether the pages of a window had changed before they could be dropped.
    pub(crate) fn note(&mut self, pid: u32, address: u64, has_changed: bool) {
        let window = window_at(pid, address);
        if has_changed {
            let rest = self.rests.get(&window).map_or(1, |(_, rest)| (rest * 2).min(LONGEST_REST));
            self.rests.insert(window, (self.round + rest, rest));
        } else {
            self.rests.remove(&window);
        }
    }
}

/// Returns how a run of private pages is written: in its place, if it has one of its own, or to fresh blocks.
fn how(part: &Mapping, view: &View, process: &Process, pages: &mut Pages) -> Option<How> {
    let len = part.end - part.start;
    match part.what {
        What::Ours(offset) if view.is_alone(&(offset..offset + len)) => Some(How::Clean { offset }),
        What::Other => None,
        What::Anonymous | What::Ours(_) => {
            let may_map = len >= LEAST_RUN && view.mappings(process.pid) < MOST_MAPPINGS;
            if may_map { pages.take(len).map(|offset| How::Convert { offset }) } else { None }
        }
    }
}

/// The window of an address, by its process and its start. A mapping may begin behind that.
fn window_at(pid: u32, address: u64) -> (u32, u64) {
    (pid, address / WINDOW * WINDOW)
}

/// Cuts a mapping at multiples of [`WINDOW`].
fn windows(mapping: &Mapping) -> impl Iterator<Item = Mapping> + '_ {
    let first = mapping.start / WINDOW;
    let last = mapping.end.div_ceil(WINDOW);
    (first..last).filter_map(|index| mapping.within(&(index * WINDOW..(index + 1) * WINDOW)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cut_a_mapping_where_they_meet() {
        let (start, end) = (WINDOW - PAGE, 2 * WINDOW + PAGE);
        let mapping = Mapping { start, end, what: What::Ours(0), protection: 3 };
        let cut: Vec<_> = windows(&mapping).collect();
        assert_eq!(cut.iter().map(|part| part.end - part.start).collect::<Vec<_>>(), [PAGE, WINDOW, PAGE]);
        assert_eq!(cut[1].what, What::Ours(PAGE));
    }

    #[test]
    fn a_window_that_changes_rests_longer_each_time() {
        let mut choice = Choice::default();
        let until = |choice: &Choice| choice.rests[&(7, 0)].0 - choice.round;
        let rests: Vec<_> = (0..7)
            .map(|_| {
                choice.note(7, PAGE, true);
                until(&choice)
            })
            .collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 16, 16]);
        assert!(choice.rests(7, 0) && choice.rests(7, 3 * PAGE) && !choice.rests(7, WINDOW));
        choice.note(7, 0, false);
        assert!(choice.rests.is_empty());
    }
}
