//! A small kernel, the program's calls, and the window's calls. Each step that the kernel makes under its
//! locks is one step here.
//!
//! ```text
//!   unmap     changing + 1, the page goes ─► the event waits ─► it was read ─► changing - 1
//!   drop      changing + 1                ─► the event waits ─► it was read ─► changing - 1 ─► the page goes
//!   fork      changing + 1, the copy      ─► the event waits ─► it was read ─► changing - 1
//! ```
//!
//! A copy, a move and a change of protection return EAGAIN while something is changing. A move does not ask
//! whether its source is registered. Faults are read before events.

use std::collections::VecDeque;

use ::loom::sync::{Condvar, Mutex, MutexGuard};

use super::super::{Gate, Unsettled};
use super::entry::{ModelEngine, ModelEntry};
use super::rules::Rules;

/// Bytes of a page, by which the gate counts.
pub(super) const PAGE: u64 = 4096;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ModelPage {
    pub(super) is_registered: bool,
    /// `None` if the page is missing.
    pub(super) value: Option<u8>,
    pub(super) is_protected: bool,
    /// Whether a child has the page too. Such a page is not moved until a store makes it the program's own
    /// again.
    pub(super) is_shared: bool,
    /// Whether a device may write to the page. Such a page is not moved.
    pub(super) is_pinned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelEvent {
    Unmap(usize),
    Remove(usize),
    Remap(usize, usize),
    Fork,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ModelFault {
    number: u32,
    pub(super) page: usize,
    pub(super) is_store: bool,
    pub(super) is_protected: bool,
    is_read: bool,
}

/// An event, as it is read.
#[derive(Clone, Copy, Debug)]
pub(super) enum ModelRead {
    Fault(ModelFault),
    Change(ModelEvent),
}

#[derive(Debug, Default)]
pub(super) struct ModelKernel {
    pub(super) pages: [ModelPage; 2],
    /// Changes whose calls have not continued yet.
    changing: u32,
    events: VecDeque<ModelEvent>,
    /// Events so far, and how many of them were read.
    raised: u32,
    read: u32,
    /// Whether others have read events that the driver has not taken.
    has_told: bool,
    /// Threads that wait.
    faults: Vec<ModelFault>,
    last_fault: u32,
    /// Threads of the program that have not ended.
    running: usize,
    is_unmapped: [bool; 2],
    pub(super) child: [Option<u8>; 2],
}

/// The window's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowAnswer {
    Done,
    Busy,
    Unsupported,
}

pub(super) struct World {
    pub(super) rules: Rules,
    pub(super) gate: Gate<ModelRead>,
    kernel: Mutex<ModelKernel>,
    /// Something has happened in the kernel.
    happened: Condvar,
    pub(super) engine: Mutex<ModelEngine>,
    /// An entry is no longer Busy.
    pub(super) published: Condvar,
}

impl World {
    pub(super) fn new(rules: Rules, pages: [(ModelPage, ModelEntry); 2], running: usize) -> Self {
        let kernel = ModelKernel { pages: pages.map(|(page, _)| page), running, ..ModelKernel::default() };
        Self {
            rules,
            gate: Gate::default(),
            kernel: Mutex::new(kernel),
            happened: Condvar::new(),
            engine: Mutex::new(ModelEngine::new(pages.map(|(_, entry)| entry))),
            published: Condvar::new(),
        }
    }

    pub(super) fn kernel(&self) -> MutexGuard<'_, ModelKernel> {
        self.kernel.lock().unwrap()
    }

    // --- the program ---

    /// A thread of the program ends.
    pub(super) fn end(&self) {
        self.kernel().running -= 1;
        self.happened.notify_all();
    }

    /// Reports a change, and waits until it is read.
    fn raise(&self, event: ModelEvent) {
        let mut kernel = self.kernel();
        let number = kernel.raised;
        kernel.raised += 1;
        kernel.events.push_back(event);
        self.happened.notify_all();
        while kernel.read <= number {
            kernel = self.happened.wait(kernel).unwrap();
        }
        kernel.changing -= 1;
        self.happened.notify_all();
    }

    /// Unmaps a page. The program's next mapping there is not registered.
    pub(super) fn unmap(&self, page: usize) {
        {
            let mut kernel = self.kernel();
            kernel.changing += 1;
            kernel.pages[page] = ModelPage::default();
            kernel.is_unmapped[page] = true;
        }
        self.raise(ModelEvent::Unmap(page));
    }

    /// Moves a page to another address, unless something is mapped there.
    pub(super) fn relocate_if_free(&self, from: usize, to: usize) -> bool {
        {
            let mut kernel = self.kernel();
            if !kernel.is_unmapped[to] {
                return false;
            }
            kernel.changing += 1;
            kernel.pages[to] = std::mem::take(&mut kernel.pages[from]);
        }
        self.raise(ModelEvent::Remap(from, to));
        true
    }

    /// Drops the bytes of a page, as MADV_DONTNEED does.
    pub(super) fn drop_pages(&self, page: usize) {
        self.kernel().changing += 1;
        self.raise(ModelEvent::Remove(page));
        let mut kernel = self.kernel();
        (kernel.pages[page].value, kernel.pages[page].is_protected) = (None, false);
    }

    pub(super) fn fork(&self) {
        {
            let mut kernel = self.kernel();
            kernel.changing += 1;
            kernel.child = kernel.pages.map(|page| page.value);
            // A child has a copy of a pinned page at once.
            kernel.pages.iter_mut().for_each(|page| page.is_shared = page.value.is_some() && !page.is_pinned);
        }
        self.raise(ModelEvent::Fork);
    }

    /// Makes a thread outside the model wait for a page.
    pub(super) fn fault_of_another(&self, page: usize) {
        let mut kernel = self.kernel();
        kernel.faults.push(ModelFault {
            number: 0,
            page,
            is_store: false,
            is_protected: false,
            is_read: false,
        });
        self.happened.notify_all();
    }

    pub(super) fn load(&self, page: usize) -> u8 {
        self.access(page, false, |_| {})
    }

    pub(super) fn store(&self, page: usize, value: u8) {
        self.access(page, true, |there| there.value = Some(value));
    }

    /// Makes a device write to a page. The kernel pins the page as if for a store. The device writes later,
    /// even if the page is protected by then.
    pub(super) fn read_directly(&self, page: usize, value: u8) {
        self.access(page, true, |there| there.is_pinned = true);
        ::loom::thread::yield_now();
        let there = &mut self.kernel().pages[page];
        assert!(there.is_pinned, "no model changes a mapping that a device writes to");
        (there.value, there.is_pinned) = (Some(value), false);
    }

    /// Accesses a page, and returns its old value. A page that is written becomes the program's own.
    fn access(&self, page: usize, is_store: bool, act: impl FnOnce(&mut ModelPage)) -> u8 {
        let mut kernel = self.kernel();
        loop {
            let there = &mut kernel.pages[page];
            match there.value {
                Some(value) if !is_store || !there.is_protected => {
                    there.is_shared &= !is_store;
                    act(there);
                    return value;
                }
                None if !there.is_registered => {
                    there.value = Some(0);
                    continue;
                }
                _ => {}
            }
            let is_protected = there.value.is_some();
            kernel.last_fault += 1;
            let number = kernel.last_fault;
            kernel.faults.push(ModelFault { number, page, is_store, is_protected, is_read: false });
            self.happened.notify_all();
            while kernel.faults.iter().any(|fault| fault.number == number) {
                kernel = self.happened.wait(kernel).unwrap();
            }
        }
    }

    // --- the descriptor ---

    /// Waits until there is something to read, or a waiting fault may be tried again. Returns false if the
    /// program has ended.
    pub(super) fn poll(&self, has_waiting: bool) -> bool {
        let mut kernel = self.kernel();
        loop {
            let is_fault = kernel.faults.iter().any(|fault| !fault.is_read);
            if !kernel.events.is_empty()
                || is_fault
                || kernel.has_told
                || (has_waiting && kernel.changing == 0)
            {
                return true;
            }
            if kernel.running == 0 {
                return false;
            }
            kernel = self.happened.wait(kernel).unwrap();
        }
    }

    /// Reads all events, under the gate, and takes them with those that others have read before.
    pub(super) fn read(&self) -> Vec<ModelRead> {
        self.gate.alone(|unsettled| {
            self.read_alone(unsettled);
            self.kernel().has_told = false;
            let mut told = Vec::new();
            unsettled.take(&mut told);
            told
        })
    }

    /// Reads events in place of the driver.
    pub(super) fn read_for_driver(&self) {
        self.gate.alone(|unsettled| {
            self.read_alone(unsettled);
            self.kernel().has_told = !unsettled.told().is_empty();
        });
        self.happened.notify_all();
    }

    fn read_alone(&self, unsettled: &mut Unsettled<ModelRead>) {
        let mut kernel = self.kernel();
        for fault in kernel.faults.iter_mut().filter(|fault| !fault.is_read) {
            fault.is_read = true;
            unsettled.told().push(ModelRead::Fault(*fault));
        }
        let events: Vec<_> = kernel.events.drain(..).collect();
        for event in &events {
            unsettled.told().push(ModelRead::Change(*event));
            match *event {
                ModelEvent::Fork if self.rules.forks_concern_all => unsettled.add_all(),
                ModelEvent::Fork => {}
                ModelEvent::Unmap(page) | ModelEvent::Remove(page) => {
                    unsettled.add(address(page), address(page + 1))
                }
                ModelEvent::Remap(from, to) => {
                    unsettled.add(address(from), address(from + 1));
                    unsettled.add(address(to), address(to + 1));
                }
            }
        }
        kernel.read += events.len() as u32;
        self.happened.notify_all();
    }

    /// Settles the changes that the driver took, after it has taken them in.
    pub(super) fn settle(&self) {
        if self.rules.settles_last {
            self.gate.settle();
        } else {
            // Acts as if all events that were read were taken.
            self.gate.alone(|unsettled| {
                let mut told = Vec::new();
                unsettled.take(&mut told);
                unsettled.told().append(&mut told);
                unsettled.settle();
            });
        }
    }

    /// Lets the threads that wait for a page try again.
    pub(super) fn wake(&self, page: usize) {
        wake(&mut self.kernel(), page);
        self.happened.notify_all();
    }

    // --- the window ---

    fn under_gate(&self, page: usize, ask: impl FnOnce() -> WindowAnswer) -> WindowAnswer {
        let unsettled = self.gate.hold();
        if self.rules.refuses_unsettled && unsettled.concerns(address(page), PAGE) {
            return WindowAnswer::Busy;
        }
        ask()
    }

    pub(super) fn install(&self, page: usize, value: u8, protected: bool) -> WindowAnswer {
        self.under_gate(page, || {
            let mut kernel = self.kernel();
            if kernel.changing > 0 {
                return WindowAnswer::Busy;
            }
            let there = &mut kernel.pages[page];
            if !there.is_registered {
                return WindowAnswer::Unsupported;
            }
            let is_new = there.value.is_none();
            if is_new {
                (there.value, there.is_protected) = (Some(value), protected && self.rules.shows_in_one_call);
            } else {
                there.is_protected = false;
            }
            if is_new && protected && !self.rules.shows_in_one_call {
                drop(kernel);
                ::loom::thread::yield_now();
                kernel = self.kernel();
                kernel.pages[page].is_protected = true;
            }
            wake(&mut kernel, page);
            self.happened.notify_all();
            if is_new || !self.rules.leaves_what_it_finds {
                WindowAnswer::Done
            } else {
                WindowAnswer::Unsupported
            }
        })
    }

    pub(super) fn protect(&self, page: usize, on: bool) -> WindowAnswer {
        self.under_gate(page, || {
            let mut kernel = self.kernel();
            if kernel.changing > 0 {
                return WindowAnswer::Busy;
            }
            kernel.pages[page].is_protected = on && kernel.pages[page].value.is_some();
            wake(&mut kernel, page);
            self.happened.notify_all();
            WindowAnswer::Done
        })
    }

    /// Returns whether a page is present, or `None` if that is unknown now.
    pub(super) fn is_there(&self, page: usize) -> Option<bool> {
        let mut is_there = None;
        self.under_gate(page, || {
            is_there = Some(self.kernel().pages[page].value.is_some());
            WindowAnswer::Done
        });
        is_there
    }

    /// Takes a page out, and returns its value, or `None` if it is refused for now.
    pub(super) fn remove(&self, page: usize, is_clean: bool) -> Option<u8> {
        let unsettled = self.gate.hold();
        if self.rules.refuses_unsettled && unsettled.concerns(address(page), PAGE) {
            return None;
        }
        // Without these rules, events are read while the mover works.
        let gate = (self.rules.holds_the_gate && self.rules.hands_back).then_some(unsettled);
        let mut kernel = self.kernel();
        while kernel.changing > 0 {
            if self.rules.hands_back {
                return None;
            }
            kernel = self.happened.wait(kernel).unwrap();
        }
        if kernel.pages[page].is_pinned {
            return None;
        }
        if kernel.pages[page].is_shared {
            if is_clean && self.rules.keeps_clean_closed {
                return None;
            }
            // The mover makes the page the program's own. The page is open until it is moved, while the
            // program runs.
            kernel.pages[page].is_protected = false;
            wake(&mut kernel, page);
            self.happened.notify_all();
            drop(kernel);
            ::loom::thread::yield_now();
            kernel = self.kernel();
            if kernel.changing > 0 || kernel.pages[page].is_pinned {
                return None;
            }
        }
        let ModelPage { is_registered, value: taken, .. } = kernel.pages[page];
        kernel.pages[page] = ModelPage { is_registered, ..ModelPage::default() };
        drop(gate);
        Some(taken.unwrap_or(0))
    }

    /// Puts zeros where no page is. Returns whether the page is watched, or `None` if a change is unread.
    pub(super) fn put_zeros(&self, page: usize) -> Option<bool> {
        let mut kernel = self.kernel();
        let is_changing = kernel.changing > 0;
        let there = &mut kernel.pages[page];
        if !is_changing && there.is_registered {
            there.value.get_or_insert(0);
        }
        (!is_changing).then_some(there.is_registered)
    }

    pub(super) fn register(&self, page: usize) {
        self.kernel().pages[page].is_registered = true;
    }
}

pub(super) fn address(page: usize) -> u64 {
    page as u64 * PAGE
}

fn wake(kernel: &mut ModelKernel, page: usize) {
    kernel.faults.retain(|fault| fault.page != page);
}
