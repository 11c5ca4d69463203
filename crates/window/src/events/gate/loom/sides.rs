//! The sides that work on the entries: the program, the driver and the evictor.
//!
//! An entry is Busy during a call of the window for its page. A side that finds it Busy waits.

use ::loom::sync::MutexGuard;

use super::super::Unsettled;
use super::entry::ModelEntry::{self, Away, Busy, Empty, Out};
use super::entry::{DIRTY, ModelEngine};
use super::world::{ModelEvent, ModelFault, ModelRead, PAGE, WindowAnswer, World, address};

impl World {
    fn engine(&self) -> MutexGuard<'_, ModelEngine> {
        self.engine.lock().unwrap()
    }

    /// Waits until the entry is not Busy.
    fn settled(&self, page: usize) -> MutexGuard<'_, ModelEngine> {
        let mut engine = self.engine();
        while engine.entries[page] == Busy {
            engine = self.published.wait(engine).unwrap();
        }
        engine
    }

    fn make_busy(&self, page: usize) -> ModelEntry {
        std::mem::replace(&mut self.settled(page).entries[page], Busy)
    }

    fn publish(&self, page: usize, entry: ModelEntry) {
        self.engine().entries[page] = entry;
        self.published.notify_all();
    }

    // --- the driver ---

    /// Serves the program until it has ended.
    pub(super) fn drive(&self) {
        let (mut waiting, mut late) = (Vec::new(), Vec::new());
        while self.poll(!waiting.is_empty()) {
            waiting.retain(|fault| !self.serve(*fault));
            for told in self.read() {
                match told {
                    ModelRead::Fault(fault) if self.serve(fault) => {}
                    ModelRead::Fault(fault) => waiting.push(fault),
                    ModelRead::Change(event @ ModelEvent::Remap(_, to))
                        if self.rules.waits_for_late_events && self.engine().is_mapped[to] =>
                    {
                        late.push(event);
                    }
                    ModelRead::Change(event) => self.take_in(event),
                }
            }
            late.retain(|event| {
                let ModelEvent::Remap(_, to) = *event else { unreachable!("only these wait") };
                let is_late = self.engine().is_mapped[to];
                if !is_late {
                    self.take_in(*event);
                }
                is_late
            });
            if late.is_empty() && !self.gate.is_settled() {
                self.settle();
            }
        }
    }

    /// Takes a change in.
    fn take_in(&self, event: ModelEvent) {
        match event {
            ModelEvent::Unmap(page) => {
                let mut engine = self.settled(page);
                (engine.entries[page], engine.is_mapped[page]) = (Empty, false);
            }
            ModelEvent::Remove(page) => {
                let mut engine = self.settled(page);
                let is_there = !self.rules.dropped_is_empty && self.kernel().pages[page].value.is_some();
                engine.entries[page] = if is_there { Away(None) } else { Empty };
            }
            ModelEvent::Remap(from, to) => {
                drop(self.settled(to));
                let mut engine = self.settled(from);
                engine.entries[to] = std::mem::replace(&mut engine.entries[from], Empty);
                (engine.is_mapped[from], engine.is_mapped[to]) = (false, true);
            }
            ModelEvent::Fork => {
                for page in 0..2 {
                    let mut engine = self.settled(page);
                    if let Out(_) = engine.entries[page] {
                        engine.child[page] = engine.entries[page];
                    }
                }
            }
        }
    }

    /// Serves a fault, and brings the page beside it along. Returns false if the fault has to wait.
    fn serve(&self, fault: ModelFault) -> bool {
        let is_served = self.serve_page(fault);
        if fault.page == 1 && is_served && self.engine().entries[0] == Empty {
            let before = self.make_busy(0);
            let answer = if before == Empty { self.install(0, 0, false) } else { WindowAnswer::Busy };
            self.publish(0, if answer == WindowAnswer::Done { Away(None) } else { before });
        }
        is_served
    }

    fn serve_page(&self, fault: ModelFault) -> bool {
        let page = fault.page;
        let before = self.make_busy(page);
        let (answer, after) = match before {
            Empty => (self.install(page, 0, false), Away(None)),
            Out(value) => {
                let place = (!fault.is_store).then_some(value);
                let is_protected = place.is_some() && self.rules.protects_clean;
                (self.install(page, value, is_protected), Away(place))
            }
            // If the store does not come, the page is written for nothing.
            Away(_) if fault.is_protected => {
                let answer = self.protect(page, false);
                self.publish(page, Away(None));
                return answer == WindowAnswer::Done;
            }
            Away(_) => {
                // The page was missing. It came meanwhile, or the program has dropped it.
                let is_there = self.is_there(page);
                self.publish(page, if is_there == Some(false) { Empty } else { before });
                return match is_there {
                    Some(true) => {
                        self.wake(page);
                        true
                    }
                    Some(false) => self.serve_page(fault),
                    None => false,
                };
            }
            Busy => unreachable!("it was waited for"),
        };
        self.publish(page, if answer == WindowAnswer::Done { after } else { before });
        if answer == WindowAnswer::Unsupported {
            // The thread tries again, and meets what is there now.
            self.wake(page);
        }
        answer != WindowAnswer::Busy
    }

    // --- eviction ---

    /// Like [`World::evict`]. If the page is refused, reads the events that may be in the way.
    pub(super) fn evict_or_read(&self, page: usize) {
        if !self.evict(page) {
            self.read_for_driver();
        }
    }

    /// Evicts a page, if the program has it. Returns false if the page is refused.
    pub(super) fn evict(&self, page: usize) -> bool {
        if !self.rules.never_cleans || !self.rules.never_cleans_protected {
            self.clean(page);
        }
        let Some(place) = self.begin(page) else { return true };
        let taken = self.remove(page, place.is_some());
        // The bytes of a clean page are ignored. A page that was refused counts as written.
        self.publish(page, taken.map_or(Away(DIRTY), |bytes| Out(place.unwrap_or(bytes))));
        taken.is_some()
    }

    /// Makes the entry of a page Busy, if the program has the page. Returns its place.
    fn begin(&self, page: usize) -> Option<Option<u8>> {
        let mut engine = self.engine();
        let Away(place) = engine.entries[page] else { return None };
        engine.entries[page] = Busy;
        Some(place)
    }

    /// Writes a page to a place, and leaves the page in memory.
    fn clean(&self, page: usize) {
        let Some(place) = self.begin(page) else { return };
        let bytes = || self.kernel().pages[page].value;
        let before = bytes();
        let is_clean = self.protect(page, true) == WindowAnswer::Done;
        let written = if self.rules.never_cleans { bytes() } else { before };
        self.publish(page, Away(if is_clean { written } else { place }));
    }

    /// Takes over memory that is present already.
    pub(super) fn take_over(&self, page: usize) {
        if self.rules.registers_first {
            self.register(page);
        }
        self.engine().entries[page] = Away(None);
        if !self.rules.registers_first {
            self.evict(page);
            self.register(page);
        }
    }

    /// Adopts a page that is present and watched, if the engine does not have it yet. To find out, this asks
    /// the kernel to put zeros there. The kernel refuses if a page is present. A page that is present and not
    /// watched is not the engine's.
    pub(super) fn adopt(&self, page: usize) {
        let look = || {
            let is_there = self.kernel().pages[page].value.is_some();
            if is_there { self.put_zeros(page) } else { None }
        };
        let look_settled = |unsettled: &mut Unsettled<ModelRead>| {
            let is_settled = !unsettled.concerns(address(page), PAGE) || !self.rules.adopts_settled;
            if is_settled { look() } else { None }
        };
        let is_watched = if self.rules.looks_alone { self.gate.alone(look_settled) } else { look() };
        let mut engine = self.settled(page);
        match is_watched {
            Some(true) if engine.entries[page] == Empty => engine.entries[page] = Away(DIRTY),
            // Something else is mapped there.
            Some(false) => engine.entries[page] = Empty,
            _ => {}
        }
    }

    // --- afterwards ---

    /// The byte that the program would load.
    pub(super) fn now(&self, page: usize) -> u8 {
        match (self.kernel().pages[page].value, self.engine().entries[page]) {
            (Some(value), _) => value,
            (None, Out(value)) => value,
            (None, _) => 0,
        }
    }

    /// The byte that a child would load, or `None` if it has the page in two places.
    pub(super) fn child(&self, page: usize) -> Option<u8> {
        match (self.kernel().child[page], self.engine().child[page]) {
            (Some(_), Out(_)) => None,
            (Some(value), _) => Some(value),
            (None, Out(value)) => Some(value),
            (None, _) => Some(0),
        }
    }
}
