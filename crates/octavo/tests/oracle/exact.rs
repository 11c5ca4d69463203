//! One thread makes the same steps on a space and on the exact model. After each step, both agree.

use std::task::Poll;

use octavo::{
    Access, Error, ErrorKind, FrameId, Manager, Order, Pin, Protection, RegionOptions, Result, Space, Word,
};

use super::pages::{MappedPages, SharedBytes};
use crate::common::device::{Raw, TestDevice, Whims};
use crate::common::futures::PendingFault;
use crate::common::{MIB, PAGE, Random, Switches, assert_only_kept, run_woken};

/// A case to run.
#[derive(Clone, Debug)]
pub struct OracleCase {
    pub switches: Switches,
    pub background: bool,
    /// The number of frames for the space. Other allocated blocks leave these frames free.
    pub room_frames: u64,
    pub ops: Vec<Raw>,
}

impl OracleCase {
    pub fn random(random: &mut Random, steps: u64) -> Self {
        let ops = random.ops(steps);
        Self {
            switches: Switches::random(random),
            background: random.one_in(2),
            room_frames: 64 + random.below(3000),
            ops,
        }
    }
}

struct HeldPin<'s> {
    pin: Pin<'s>,
    /// The address of the pin's first byte.
    address: u64,
    /// The model's pages under the pin. `None` stands for a page that read as zeros and may have been written
    /// since.
    pages: Vec<Option<SharedBytes>>,
}

struct OracleRun<'s> {
    space: &'s Space,
    manager: &'s Manager,
    model: MappedPages,
    pins: Vec<HeldPin<'s>>,
    ballast: Vec<(FrameId, Order)>,
    room_frames: u64,
    stamp: u64,
    /// The device, if only this thread drives it.
    device: Option<&'s TestDevice>,
    /// The faults under way. An operation that needs their pages first ends or drops them.
    faults: Vec<PendingFault<'s>>,
}

/// The pages in use: four ranges of 2 MiB, and one range so far away that it needs a table of full height.
const NEAR_FIRST: u64 = 512;
const NEAR_PAGES: u64 = 4 * 512;
const FAR_FIRST: u64 = 1 << 34;
const FAR_PAGES: u64 = 64;
const MAX_PINS: usize = 6;
const MAX_FAULTS: usize = 40;

/// Runs a case. Panics if space and model disagree.
pub fn run(case: &OracleCase) {
    let manager = case
        .switches
        .builder()
        .budget_bytes(16 * MIB)
        .max_budget_bytes(32 * MIB)
        .background(case.background)
        .build()
        .unwrap();
    run_in(case, &manager, None);
    assert_only_kept(&manager, case.switches.keeps_huge_zero(), case.switches.encrypt);
}

/// Runs a case in the caller's manager, perhaps over a device that this thread drives. In this case,
/// transfers may be under way when the space is dropped.
pub fn run_in(case: &OracleCase, manager: &Manager, device: Option<&TestDevice>) {
    let space = manager.space().unwrap();
    let mut run = OracleRun {
        space: &space,
        manager,
        model: MappedPages::default(),
        pins: Vec::new(),
        ballast: Vec::new(),
        room_frames: case.room_frames,
        stamp: 1,
        device,
        faults: Vec::new(),
    };
    run.take_ballast(case.room_frames);
    for &raw in &case.ops {
        run.step(raw);
    }
    run.check_everything();
    run.pins.clear();
    run.drop_ballast();
    manager.validate();
}

impl<'s> OracleRun<'s> {
    /// Allocates blocks beside the space until about `room` frames are left.
    fn take_ballast(&mut self, room: u64) {
        for order in [Order::MAX, Order::ZERO] {
            // This takes first the chunks that the budget still allows, then the free blocks in them.
            loop {
                let stats = self.manager.stats().unwrap();
                let chunks = (stats.budget_bytes / 64 * 63).saturating_sub(stats.used_bytes) >> 12;
                if chunks + stats.free_frames <= room + u64::from(order.frames()) {
                    break;
                }
                match self.manager.alloc_block(order).unwrap() {
                    Some(frame) => self.ballast.push((frame, order)),
                    None => break,
                }
            }
        }
    }

    fn drop_ballast(&mut self) {
        for (frame, order) in self.ballast.drain(..) {
            self.manager.free_block(frame, order).unwrap();
        }
    }

    /// If an operation finds no room, retries it without pins and ballast. Without these, there is room for
    /// everything that the model does.
    ///
    /// A device that has failed counts as failing until a write succeeds. While pins and ballast hold all
    /// memory, there is nothing to write, so a device that is well again may still be the reason given.
    fn with_room<T>(&mut self, mut op: impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        match self.insist(&mut op) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::OutOfMemory | ErrorKind::Busy | ErrorKind::SwapFull | ErrorKind::SwapWrite
                ) =>
            {
                self.settle(0, u64::MAX);
                assert!(
                    !self.pins.is_empty() || !self.ballast.is_empty() || error.kind() == ErrorKind::Busy,
                    "no room in an empty manager: {error}"
                );
                self.pins.clear();
                self.drop_ballast();
                // The background thread may hold a block for a moment.
                for _ in 0..1000 {
                    match self.insist(&mut op) {
                        Err(error) if error.kind() == ErrorKind::Busy => std::thread::yield_now(),
                        other => return other,
                    }
                }
                self.insist(&mut op)
            }
            other => other,
        }
    }

    /// Repeats an operation that failed because of the device. Such a failure changes nothing. After some
    /// failures, heals the device.
    fn insist<T>(&mut self, op: &mut impl FnMut(&mut Self) -> Result<T>) -> Result<T> {
        let mut result = op(self);
        let Some(device) = self.device else { return result };
        for attempt in 0..20 {
            match &result {
                Err(error) if is_of_device(error.kind()) => {}
                _ => break,
            }
            if attempt == 10 {
                device.heal();
            }
            result = op(self);
        }
        result
    }

    /// Ends or drops the faults on these pages, before an operation that may wait for them.
    fn settle(&mut self, first: u64, count: u64) {
        let range = first..first.saturating_add(count);
        while let Some(at) = self.faults.iter().position(|fault| range.contains(&fault.page)) {
            let device = self.device.expect("only over a driven device are faults left pending");
            self.stamp = self.stamp.wrapping_add(1);
            if Random::new(self.stamp).one_in(3) {
                self.faults.swap_remove(at);
            } else if !self.pump() && !device.advance() {
                panic!("a fault on page {:#x} waits, and nothing is under way", self.faults[at].page);
            }
        }
    }

    /// Polls the faults that were woken. Returns whether there were such faults.
    fn pump(&mut self) -> bool {
        let mut any = false;
        while let Some(at) = self.faults.iter().position(PendingFault::is_woken) {
            any = true;
            if let Poll::Ready(result) = self.faults[at].poll() {
                let fault = self.faults.swap_remove(at);
                self.check_fault(&fault, result);
            }
        }
        any
    }

    fn check_fault(&self, fault: &PendingFault<'_>, result: Result<()>) {
        match result {
            Err(error) if is_of_device(error.kind()) || error.kind() == ErrorKind::OutOfMemory => {}
            result => {
                let allowed = self.model.allowed(fault.page, fault.access).err();
                self.expect(result, allowed, fault.page * PAGE);
            }
        }
    }

    /// Does an operation that exists only if this thread drives the device.
    fn step_device(&mut self, device: &TestDevice, (kind, a, b, c): Raw) {
        match kind % 16 {
            0..=5 => {
                for page in Self::page_at(a)..=Self::page_at(a) + u64::from(b) % 8 {
                    if self.faults.len() == MAX_FAULTS {
                        self.faults.remove(0);
                    }
                    self.faults.push(PendingFault::new(self.space, page, Self::access_of(c)));
                }
                if c & 2 == 0 {
                    self.pump();
                }
            }
            6 => {
                self.pump();
            }
            7 => {
                // A poll without a wake-up is allowed at any time.
                if let Some(fault) = self.faults.first_mut()
                    && let Poll::Ready(result) = fault.poll()
                {
                    let fault = self.faults.remove(0);
                    self.check_fault(&fault, result);
                }
            }
            8 if !self.faults.is_empty() => {
                self.faults.swap_remove(usize::from(a) % self.faults.len());
            }
            8 | 9 => {
                for _ in 0..b % 4 {
                    device.advance();
                }
            }
            10 => device.set_whims(Whims::random(&mut Random::new(u64::from(a) << 16 | u64::from(b)))),
            11 if self.ballast.is_empty() => self.take_ballast(self.room_frames),
            _ => {
                self.manager.reclaim(u64::from(b) % 600).unwrap();
            }
        }
    }

    fn page_at(raw: u16) -> u64 {
        let raw = u64::from(raw) % (NEAR_PAGES + FAR_PAGES);
        if raw < NEAR_PAGES { NEAR_FIRST + raw } else { FAR_FIRST + raw - NEAR_PAGES }
    }

    /// Returns a number of pages: mostly few, sometimes several blocks.
    fn count_of(raw: u16, kind: u8) -> u64 {
        let raw = u64::from(raw);
        match kind % 4 {
            0 => 1 + raw % 4,
            1 => 1 + raw % 40,
            2 => 512 * (1 + raw % 2),
            _ => 1 + raw % 1200,
        }
    }

    fn fresh_bytes(&mut self, len: usize) -> Vec<u8> {
        self.stamp =
            self.stamp.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut random = Random::new(self.stamp);
        (0..len).map(|_| random.next() as u8).collect()
    }

    fn step(&mut self, (kind, a, b, c): Raw) {
        if let Some(device) = self.device.filter(|_| kind >= 192) {
            return self.step_device(device, (kind, a, b, c));
        }
        match kind % 32 {
            0..=2 => self.map_at(a, b, c),
            3 => self.map_anywhere(b, c),
            4 | 5 => self.unmap(a, b, c),
            6 | 7 => self.protect(a, b, c),
            8..=11 => self.store(a, b, c),
            12..=14 => self.load(a, b, c),
            15..=17 => self.write(a, b, c),
            18 | 19 => self.read(a, b, c),
            20..=22 => self.pin(a, b, c),
            23 | 24 => self.use_pin(a, b),
            25 => {
                if !self.pins.is_empty() {
                    let index = usize::from(a) % self.pins.len();
                    self.check_pin(index);
                    self.pins.swap_remove(index);
                }
            }
            26 | 27 => {
                self.manager.reclaim(u64::from(b) % 300).unwrap();
            }
            28 | 29 => self.fault_async(a, c),
            30 => self.populate(a, b, c),
            _ => self.set_budget(b),
        }
    }

    fn options(c: u8) -> (RegionOptions, Protection) {
        let protection = if c & 0xF0 == 0xF0 { Protection::READ } else { Protection::READ_WRITE };
        (RegionOptions::new().protection(protection).huge(c & 4 != 0), protection)
    }

    fn map_at(&mut self, a: u16, b: u16, c: u8) {
        // The range mostly begins at the start of a block, so that huge leaves are possible.
        let first = if c & 8 == 0 { Self::page_at(a) } else { Self::page_at(a & !511) };
        let count = Self::count_of(b, c);
        let (options, protection) = Self::options(c);
        let overlap = self.model.any_mapped(first, count);
        let result = self.space.map_at(first * PAGE, count * PAGE, options);
        if overlap {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyMapped);
        } else {
            result.unwrap();
            self.model.map(first, count, protection);
        }
    }

    fn map_anywhere(&mut self, b: u16, c: u8) {
        let count = Self::count_of(b, c);
        let (options, protection) = Self::options(c);
        let len = count * PAGE - u64::from(c);
        let address = self.space.map(len, options).unwrap();
        assert!(len < 2 * MIB || address.is_multiple_of(2 * MIB), "large ranges are aligned to blocks");
        self.model.map(address / PAGE, count, protection);
    }

    fn unmap(&mut self, a: u16, b: u16, c: u8) {
        let (first, count) = (Self::page_at(a), Self::count_of(b, c));
        self.settle(first, count);
        self.with_room(|run| run.space.unmap(first * PAGE, count * PAGE)).unwrap();
        self.model.unmap(first, count);
    }

    fn protect(&mut self, a: u16, b: u16, c: u8) {
        let (first, count) = (Self::page_at(a), Self::count_of(b, c >> 2));
        let protection = match c % 4 {
            0 => Protection::NONE,
            1 => Protection::READ,
            _ => Protection::READ_WRITE,
        };
        self.settle(first, count);
        let mapped = self.model.all_mapped(first, count);
        let result = self.with_room(|run| run.space.protect(first * PAGE, count * PAGE, protection));
        if !mapped {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::NotMapped);
            return;
        }
        result.unwrap();
        self.model.protect(first, count, protection);
    }

    fn store(&mut self, a: u16, b: u16, c: u8) {
        match c % 5 {
            0 => self.store_word::<1>(a, b, c),
            1 => self.store_word::<2>(a, b, c),
            2 => self.store_word::<4>(a, b, c),
            3 => self.store_word::<8>(a, b, c),
            _ => self.store_word::<16>(a, b, c),
        }
    }

    fn word_at<const N: usize>(a: u16, b: u16) -> u64 {
        let size = N as u64;
        Self::page_at(a) * PAGE + u64::from(b) % PAGE / size * size
    }

    /// Stores a word, or exchanges it and checks the old word.
    fn store_word<const N: usize>(&mut self, a: u16, b: u16, c: u8)
    where
        [u8; N]: Word,
    {
        let address = Self::word_at::<N>(a, b);
        let bytes: [u8; N] = self.fresh_bytes(N).try_into().unwrap();
        self.settle(address / PAGE, 1);
        let allowed = self.model.allowed(address / PAGE, Access::Write);
        let mut before = [0; N];
        if allowed.is_ok() {
            self.model.read(address, &mut before);
        }
        let result = self.with_room(|run| match c & 0x60 {
            0 => run.space.swap(address, bytes).map(|was| assert_eq!(was, before, "{address:#x}")),
            0x20 => {
                let exchanged = run.space.compare_exchange(address, before, bytes);
                exchanged.map(|was| assert_eq!(was, Ok(before), "{address:#x}"))
            }
            _ => run.space.store(address, bytes),
        });
        self.expect(result, allowed.err(), address);
        if allowed.is_ok() {
            self.model.write(address, &bytes);
        }
    }

    fn load(&mut self, a: u16, b: u16, c: u8) {
        match c % 5 {
            0 => self.load_word::<1>(a, b),
            1 => self.load_word::<2>(a, b),
            2 => self.load_word::<4>(a, b),
            3 => self.load_word::<8>(a, b),
            _ => self.load_word::<16>(a, b),
        }
    }

    fn load_word<const N: usize>(&mut self, a: u16, b: u16)
    where
        [u8; N]: Word,
    {
        let address = Self::word_at::<N>(a, b);
        self.settle(address / PAGE, 1);
        let result = self.with_room(|run| run.space.load::<[u8; N]>(address));
        match self.model.allowed(address / PAGE, Access::Read) {
            Ok(()) => {
                let mut expected = [0; N];
                self.model.read(address, &mut expected);
                assert_eq!(result.unwrap(), expected, "load at {address:#x}");
            }
            Err(kind) => assert_eq!(result.unwrap_err().kind(), kind),
        }
    }

    fn expect(&self, result: Result<()>, kind: Option<ErrorKind>, address: u64) {
        assert_eq!(result.as_ref().err().map(Error::kind), kind, "at {address:#x}: {result:?}");
    }

    fn byte_range(a: u16, b: u16, c: u8) -> (u64, u64) {
        let len = if c & 1 == 0 { u64::from(b) % 64 } else { u64::from(b) % (3 * PAGE) };
        (Self::page_at(a) * PAGE + u64::from(b.rotate_left(5)) % PAGE, len)
    }

    fn write(&mut self, a: u16, b: u16, c: u8) {
        let (address, len) = Self::byte_range(a, b, c);
        let bytes = self.fresh_bytes(len as usize);
        self.settle(address / PAGE, 5);
        let result = self.with_room(|run| run.space.write(address, &bytes));
        let (reach, kind) = self.model.reach(address, len, Access::Write);
        self.expect(result, kind, address);
        self.model.write(address, &bytes[..reach as usize]);
    }

    fn read(&mut self, a: u16, b: u16, c: u8) {
        let (address, len) = Self::byte_range(a, b, c);
        let mut found = vec![0xAA; len as usize];
        self.settle(address / PAGE, 5);
        let result = self.with_room(|run| run.space.read(address, &mut found));
        let (reach, kind) = self.model.reach(address, len, Access::Read);
        self.expect(result, kind, address);
        let mut expected = vec![0xAA; len as usize];
        self.model.read(address, &mut expected[..reach as usize]);
        assert!(found == expected, "read of {len} at {address:#x}");
    }

    fn pin(&mut self, a: u16, b: u16, c: u8) {
        if self.pins.len() == MAX_PINS {
            self.pins.remove(0);
        }
        let (address, len) = Self::byte_range(a, b, c);
        let access = if c & 2 == 0 { Access::Read } else { Access::Write };
        let (reach, kind) = self.model.reach(address, len, access);
        let space = self.space;
        self.settle(address / PAGE, 5);
        let is_exact = c & 8 != 0;
        let result = self.with_room(|_| match is_exact {
            true => space.pin_exact(address, len as usize, access),
            false => space.pin_prefix(address, len as usize, access),
        });
        let fails = kind.is_some() && (is_exact || reach == 0);
        let pin = match result {
            Err(error) => {
                assert_eq!(
                    (Some(error.kind()), fails),
                    (kind, true),
                    "pin of {len} at {address:#x}: {error}"
                );
                if access == Access::Write {
                    // The pages before this one had frames for a while.
                    (address / PAGE..(address + reach) / PAGE).for_each(|page| self.model.mark_written(page));
                }
                return;
            }
            Ok(pin) => pin,
        };
        assert!(!fails, "pin of {len} at {address:#x} should have failed: {kind:?}");
        assert!(!is_exact || pin.len() as u64 == len, "pinned {} of {len}", pin.len());
        if len == 0 {
            assert!(pin.is_empty());
            return;
        }
        // A prefix that is shorter than the model's is correct only if no memory was left.
        if pin.len() as u64 != reach {
            assert!((pin.len() as u64) < reach && !pin.is_empty(), "pinned {} of {reach}", pin.len());
            let has_excuse = !self.pins.is_empty() || !self.ballast.is_empty() || self.device.is_some();
            assert!(has_excuse, "a short pin with room left");
        }
        assert_eq!(pin.pages().map(|(_, len)| len).sum::<usize>(), pin.len());
        let last = (address + pin.len() as u64).div_ceil(PAGE);
        let pages = (address / PAGE..last.max(address / PAGE))
            .map(|page| self.model.page(page).clone())
            .map(|page| (access == Access::Write || page.written).then_some(page.bytes))
            .collect();
        let mut bytes = vec![0xAA; pin.len()];
        pin.copy_out(0, &mut bytes).unwrap();
        let mut expected = vec![0; pin.len()];
        self.model.read(address, &mut expected);
        assert!(bytes == expected, "a pin of {} at {address:#x} shows other bytes", pin.len());
        if access == Access::Write {
            for page in address / PAGE..last {
                self.model.mark_written(page);
            }
        }
        self.pins.push(HeldPin { pin, address, pages });
    }

    fn use_pin(&mut self, a: u16, b: u16) {
        if self.pins.is_empty() {
            return;
        }
        let index = usize::from(a) % self.pins.len();
        self.check_pin(index);
        let total = self.pins[index].pin.len();
        let offset = usize::from(b) % (total + 1);
        let bytes = self.fresh_bytes((total - offset).min(usize::from(a)));
        let held = &self.pins[index];
        let result = held.pin.copy_in(offset, &bytes);
        if held.pin.access() == Access::Read {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Protected);
            return;
        }
        result.unwrap();
        let start = held.address % PAGE + offset as u64;
        for (at, byte) in (start..).zip(bytes) {
            let page = held.pages[(at / PAGE) as usize].as_ref().unwrap();
            page.borrow_mut()[(at % PAGE) as usize] = byte;
        }
        self.check_pin(index);
    }

    fn check_pin(&self, index: usize) {
        let held = &self.pins[index];
        let mut bytes = vec![0; held.pin.len()];
        held.pin.copy_out(0, &mut bytes).unwrap();
        for (at, found) in (held.address % PAGE..).zip(&bytes) {
            if let Some(page) = &held.pages[(at / PAGE) as usize] {
                let expected = page.borrow()[(at % PAGE) as usize];
                assert_eq!(*found, expected, "byte {at} of the pin at {:#x}", held.address);
            }
        }
    }

    fn access_of(c: u8) -> Access {
        if c & 1 == 0 { Access::Read } else { Access::Write }
    }

    fn fault_async(&mut self, a: u16, c: u8) {
        let (page, access) = (Self::page_at(a), Self::access_of(c));
        if self.device.is_some() {
            // No other thread would complete the transfer for which this call waits.
            return self.populate(a, 0, c);
        }
        let result = self.with_room(|run| run_woken(run.space.fault_async(page * PAGE, access)).0);
        self.expect(result, self.model.allowed(page, access).err(), page * PAGE);
    }

    fn populate(&mut self, a: u16, b: u16, c: u8) {
        let (first, count, access) = (Self::page_at(a), 1 + u64::from(b) % 64, Self::access_of(c));
        self.settle(first, count);
        let result = self.with_room(|run| run.space.populate(first * PAGE, count * PAGE, access));
        let (_, kind) = self.model.reach(first * PAGE, count * PAGE, access);
        self.expect(result, kind, first * PAGE);
    }

    fn set_budget(&mut self, b: u16) {
        let bytes = (16 + u64::from(b) % 12) * MIB;
        if let Err(error) = self.manager.set_budget(bytes) {
            assert_eq!(error.kind(), ErrorKind::InvalidBudget, "{error}");
            let has_excuse = !self.pins.is_empty() || !self.ballast.is_empty() || self.device.is_some();
            assert!(has_excuse, "cannot lower the budget: {error}");
        }
    }

    fn check_everything(&mut self) {
        self.settle(0, u64::MAX);
        for index in 0..self.pins.len() {
            self.check_pin(index);
        }
        for page in self.model.numbers() {
            if self.model.allowed(page, Access::Read).is_err() {
                self.with_room(|run| run.space.protect(page * PAGE, PAGE, Protection::READ)).unwrap();
            }
            let mut found = vec![0; PAGE as usize];
            self.with_room(|run| run.space.read(page * PAGE, &mut found)).unwrap();
            assert!(found[..] == self.model.page(page).bytes.borrow()[..], "page {page:#x} at the end");
        }
        let mapped = self.space.stats().unwrap().mapped_bytes;
        assert_eq!(mapped, self.model.numbers().len() as u64 * PAGE);
    }
}

fn is_of_device(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::SwapRead | ErrorKind::SwapWrite | ErrorKind::SwapFull)
}
